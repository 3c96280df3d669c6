//! Where tasks, events and hot state are, from the command line.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::backend::Backends;
use crate::backend::redis::{RedisCache, RedisOptions};
use crate::config::secret::Secret;

use super::exit::Failure;
use super::mongo::MongoArgs;

/// Where hot state is, for processes that share it.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Backends")]
pub(crate) struct CacheArgs {
    /// Keep hot state (heartbeats, who is there) in this Redis instead of in this process
    #[arg(long, value_name = "URL[,URL…]", value_delimiter = ',', env = "REDIS_URL", hide_env_values = true)]
    redis: Vec<String>,
    /// A file that holds the Redis password, better than one in the URL; else REDIS_PASSWORD is used
    #[arg(long, value_name = "FILE", requires = "redis")]
    password_file: Option<PathBuf>,
    #[cfg(feature = "kafka")]
    #[command(flatten)]
    kafka: super::kafka::KafkaArgs,
}

/// The backends, and the lock on their folder for as long as they are used.
pub(crate) struct Opened {
    pub(crate) backends: Backends,
    _lock: Option<File>,
}

impl Opened {
    /// Sends what is buffered and says goodbye, so that nobody waits for this process.
    pub(crate) async fn close(self) {
        if let Err(error) = self.backends.events.close().await {
            tracing::warn!(%error, "not every event was sent; the sweeps of the others will do their work");
        }
    }
}

/// Opens the storage in `folder`, or one in memory, and the cache. With a MongoDB the tasks are there, and the folder has
/// only what else is kept in it. Must be called on a runtime.
pub(crate) async fn open(
    folder: Option<&Path>,
    cache: &CacheArgs,
    mongo: &MongoArgs,
) -> Result<Opened, Failure> {
    if mongo.is_given() {
        cache.required()?; // whoever uses the database shares its tasks
    }
    let lock = folder.map(|folder| lock(folder, cache.is_given())).transpose()?;
    let mut backends = match folder.filter(|_| !mongo.is_given()) {
        None => Backends::in_memory(),
        Some(folder) => Backends::embedded(folder.join("tasks.db")),
    }
    .map_err(Failure::failed)?;
    if let Some(storage) = mongo.connect().await? {
        backends.storage = storage;
    }
    if cache.is_given() {
        let options = RedisOptions { password: cache.password()?, ..RedisOptions::default() };
        let redis = RedisCache::connect_with(&cache.urls(), options).await.map_err(Failure::failed)?;
        backends.cache = Arc::new(redis);
    }
    #[cfg(feature = "kafka")]
    if let Some(kafka) = cache.kafka.open()? {
        backends.events = Arc::new(kafka);
    }
    Ok(Opened { backends, _lock: lock })
}

impl CacheArgs {
    /// Refuses a process that shares its tasks without sharing its hot state.
    pub(crate) fn required(&self) -> Result<(), Failure> {
        if self.is_given() {
            return Ok(());
        }
        Err(Failure::usage("name the Redis that controller and nodes share: --redis (or REDIS_URL)"))
    }

    fn is_given(&self) -> bool {
        !self.redis.is_empty()
    }

    /// The addresses as the adapter takes them; `host:port` will do on the command line.
    fn urls(&self) -> String {
        let full = |url: &String| if url.contains("://") { url.clone() } else { format!("redis://{url}") };
        self.redis.iter().map(full).collect::<Vec<_>>().join(",")
    }

    fn password(&self) -> Result<Secret, Failure> {
        let text = match &self.password_file {
            Some(file) => super::redis::read_password(file)?,
            None => std::env::var("REDIS_PASSWORD").unwrap_or_default(),
        };
        Ok(Secret::new(text))
    }
}

/// Refuses a process that would have its tasks to itself.
pub(crate) fn place_is_given(folder: Option<&Path>, mongo: &MongoArgs) -> Result<(), Failure> {
    if folder.is_some() || mongo.is_given() {
        return Ok(());
    }
    Err(Failure::usage(
        "say where the tasks are that controller and nodes share: --mongo URL (or MONGO_HOST), or --data FOLDER",
    ))
}

/// Processes may share a folder only when they share their cache too: else each would take the others' workers for dead.
fn lock(folder: &Path, shared: bool) -> Result<File, Failure> {
    let cannot =
        |error: &dyn std::fmt::Display| Failure::failed(format!("cannot use {}: {error}", folder.display()));
    fs::create_dir_all(folder).map_err(|error| cannot(&error))?;
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(folder.join("lock"))
        .map_err(|error| cannot(&error))?;
    let locked = if shared { file.try_lock_shared() } else { file.try_lock() };
    match locked {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(cannot(
            &"another skald uses it; name another --data, or give all of them the same --redis to share it",
        )),
        Err(TryLockError::Error(error)) => Err(cannot(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_shared_only_by_those_who_share_their_cache() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new");
        let first = lock(&path, true).unwrap();
        let second = lock(&path, true).unwrap();
        let refused = lock(&path, false).unwrap_err().to_string();
        assert!(refused.contains("another skald uses it"), "{refused}");
        drop((first, second));
        let alone = lock(&path, false).unwrap();
        assert!(lock(&path, true).is_err());
        drop(alone);
    }
}
