//! The three backends together, as they are handed to actors.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::embedded::{EmbeddedCache, EmbeddedEvents, SqliteStorage};
use super::{BackendError, CacheMemory, DiskStorage, EventQueue};

/// Cache memory, events and storage. Cheap to clone.
#[derive(Clone)]
pub struct Backends {
    /// Hot state.
    pub cache: Arc<dyn CacheMemory>,
    /// Events.
    pub events: Arc<dyn EventQueue>,
    /// Tasks.
    pub storage: Arc<dyn DiskStorage>,
}

impl fmt::Debug for Backends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backends").finish_non_exhaustive()
    }
}

impl Backends {
    /// Everything in this process; the tasks in a SQLite file, where they survive it.
    pub fn embedded(file: impl AsRef<Path>) -> Result<Self, BackendError> {
        Ok(Backends::around(SqliteStorage::open(file)?))
    }

    /// Everything in this process, and gone with it.
    pub fn in_memory() -> Result<Self, BackendError> {
        Ok(Backends::around(SqliteStorage::in_memory()?))
    }

    fn around(storage: SqliteStorage) -> Self {
        Backends {
            cache: Arc::new(EmbeddedCache::new()),
            events: Arc::new(EmbeddedEvents::new()),
            storage: Arc::new(storage),
        }
    }
}
