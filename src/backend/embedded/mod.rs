//! Adapters that need no service: they live in this process and, for storage, in one SQLite file.

mod cache;
mod channels;
mod events;
mod expiry;
mod group;
mod memory;
mod storage;

pub use cache::{CacheLimits, Clock, EmbeddedCache};
pub use events::{EmbeddedEvents, EventLimits};
pub use storage::SqliteStorage;
