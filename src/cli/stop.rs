//! When a subcommand that serves is told to stop.

use tokio::signal::unix::{SignalKind, signal};

/// Waits for SIGTERM or Ctrl-C and names which.
pub(crate) async fn requested() -> &'static str {
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = tokio::signal::ctrl_c() => "Ctrl-C",
        },
        // Without a handler SIGTERM ends the process at once, which loses nothing that is durable.
        Err(error) => {
            tracing::warn!(%error, "SIGTERM will not be handled");
            let _ = tokio::signal::ctrl_c().await; // cannot matter: there is nothing else to wait for
            "Ctrl-C"
        }
    }
}
