//! Watches a workers file, and gives the Skald what it says now.

use std::path::Path;
use std::time::Duration;

use crate::actors::skald::Skald;
use crate::config::workers_file;

/// How often the file is looked at. Its text is compared, so no clock or file system can hide a change.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A workers file is small; a larger one is a mistake, and would be read every second.
const MOST_BYTES: u64 = 16 << 20;

/// For ever. A file that cannot be used changes nothing, and is told once.
pub(super) async fn watch(file: &Path, mut text: String, skald: &Skald) -> std::convert::Infallible {
    let name = file.display().to_string();
    let mut trouble = String::new();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let taken_on = match read(file).await {
            Ok(now) if now == text => Ok(()),
            Ok(now) => take_on(&name, &now, skald).await.map(|()| text = now),
            Err(error) => Err(format!("{name}: {error}")),
        };
        match taken_on {
            Ok(()) => trouble.clear(),
            Err(error) if error == trouble => {}
            Err(error) => {
                tracing::error!(%error, "the workers file is not taken on; what it said before goes on");
                trouble = error;
            }
        }
    }
}

async fn read(file: &Path) -> std::io::Result<String> {
    let bytes = tokio::fs::metadata(file).await?.len();
    if bytes > MOST_BYTES {
        return Err(std::io::Error::other(format!("it has {bytes} bytes; {MOST_BYTES} are allowed")));
    }
    tokio::fs::read_to_string(file).await
}

async fn take_on(name: &str, text: &str, skald: &Skald) -> Result<(), String> {
    let workers = workers_file::parse(name, text).map_err(|error| error.to_string())?;
    let reloaded = skald.reload(workers).await.map_err(|error| format!("{name}: {error}"))?;
    let (added, changed, removed) = (reloaded.added, reloaded.changed, reloaded.removed);
    tracing::info!(file = name, ?added, ?changed, ?removed, "the workers file has changed");
    Ok(())
}
