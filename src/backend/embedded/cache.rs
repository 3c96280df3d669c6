//! Cache memory inside this process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::channels::Channels;
use super::expiry::{Moment, NEVER};
use super::memory::Memory;
use crate::backend::{BackendError, CacheMemory, CacheWrite, ChannelSubscription, ListEnd, ttl_millis};

/// The time since some fixed moment, never going back. Tests hand in their own.
pub type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// How much an [`EmbeddedCache`] may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheLimits {
    /// Strings, hash fields and list values together.
    pub entries: usize,
    /// Bytes of keys, fields and values, with about 100 bytes more for each.
    pub bytes: usize,
}

impl Default for CacheLimits {
    /// One million entries, 512 MiB.
    fn default() -> Self {
        CacheLimits { entries: 1_000_000, bytes: 512 << 20 }
    }
}

/// [`CacheMemory`] in this process's memory: bounded, and gone when the process ends.
///
/// A write that does not fit is [`BackendError::Full`]; what has expired makes room first, what lives is never
/// thrown away. Types behave as in Redis, `WRONGTYPE` included. Memory of what has expired is freed bit by bit with
/// each access; a read never shows it.
pub struct EmbeddedCache {
    memory: Mutex<Memory>,
    channels: Arc<Channels>,
    clock: Clock,
}

/// How many expired entries an access frees beside its own work.
const SWEEP: usize = 32;
/// A batch lets others in after so many writes: about a millisecond.
const CHUNK: usize = 4_096;

impl EmbeddedCache {
    /// An empty cache with the default limits.
    pub fn new() -> Self {
        EmbeddedCache::with(CacheLimits::default(), system_clock())
    }

    /// An empty cache with other limits and another clock.
    pub fn with(limits: CacheLimits, clock: Clock) -> Self {
        EmbeddedCache { memory: Mutex::new(Memory::new(limits)), channels: Arc::default(), clock }
    }

    fn now(&self) -> Moment {
        Moment::try_from((self.clock)().as_millis()).unwrap_or(NEVER - 1)
    }

    /// Locks the contents, for one access.
    fn at_now(&self) -> (MutexGuard<'_, Memory>, Moment) {
        // No entry is left half written by a panic: each rule checks, then writes. So a poisoned state is whole.
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.now();
        memory.sweep(now, SWEEP);
        (memory, now)
    }
}

/// The operating system's monotonic clock.
fn system_clock() -> Clock {
    let start = Instant::now();
    Arc::new(move || start.elapsed())
}

fn end(now: Moment, ttl: Option<Duration>) -> Moment {
    ttl.map_or(NEVER, |ttl| now.saturating_add(ttl_millis(ttl)))
}

fn write_one(memory: &mut Memory, write: &CacheWrite, now: Moment) -> Result<(), BackendError> {
    match write {
        CacheWrite::SetString { key, value, ttl } => memory.set_string(key, value, end(now, *ttl), now),
        CacheWrite::SetHashField { key, field, value, ttl } => {
            memory.set_hash_field(key, field, value, end(now, *ttl), now)
        }
        CacheWrite::ReplaceList { key, values, ttl } => memory.replace_list(key, values, end(now, *ttl), now),
        CacheWrite::DeleteKey { key } => {
            memory.delete_key(key, now);
            Ok(())
        }
    }
}

impl Default for EmbeddedCache {
    fn default() -> Self {
        EmbeddedCache::new()
    }
}

impl Drop for EmbeddedCache {
    fn drop(&mut self) {
        self.channels.close();
    }
}

impl std::fmt::Debug for EmbeddedCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmbeddedCache").finish_non_exhaustive()
    }
}

#[async_trait]
impl CacheMemory for EmbeddedCache {
    async fn get_string(&self, key: &[u8]) -> Result<Option<Vec<u8>>, BackendError> {
        let (mut memory, now) = self.at_now();
        Ok(memory.get_string(key, now)?.map(<[u8]>::to_vec))
    }

    async fn get_strings(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, BackendError> {
        let (mut memory, now) = self.at_now();
        // As MGET: a key of another type reads as absent.
        Ok(keys.iter().map(|key| memory.get_string(key, now).ok().flatten().map(<[u8]>::to_vec)).collect())
    }

    async fn set_string(&self, key: &[u8], value: &[u8], ttl: Option<Duration>) -> Result<(), BackendError> {
        let (mut memory, now) = self.at_now();
        memory.set_string(key, value, end(now, ttl), now)
    }

    async fn set_string_if_absent(
        &self,
        key: &[u8],
        value: &[u8],
        ttl: Duration,
    ) -> Result<bool, BackendError> {
        let (mut memory, now) = self.at_now();
        if memory.exists(key, now) {
            return Ok(false);
        }
        memory.set_string(key, value, end(now, Some(ttl)), now)?;
        Ok(true)
    }

    async fn swap_string(
        &self,
        key: &[u8],
        expected: &[u8],
        value: &[u8],
        ttl: Duration,
    ) -> Result<bool, BackendError> {
        let (mut memory, now) = self.at_now();
        if memory.get_string(key, now)? != Some(expected) {
            return Ok(false);
        }
        memory.set_string(key, value, end(now, Some(ttl)), now)?;
        Ok(true)
    }

    async fn time_to_live(&self, key: &[u8]) -> Result<Option<Option<Duration>>, BackendError> {
        let (mut memory, now) = self.at_now();
        Ok(memory.time_to_live(key, now).map(|left| left.map(Duration::from_millis)))
    }

    async fn get_hash_field(&self, key: &[u8], field: &[u8]) -> Result<Option<Vec<u8>>, BackendError> {
        let (mut memory, now) = self.at_now();
        Ok(memory.get_hash_field(key, field, now)?.map(<[u8]>::to_vec))
    }

    async fn get_all_hash(&self, key: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>, BackendError> {
        let (mut memory, now) = self.at_now();
        memory.get_all_hash(key, now)
    }

    async fn set_hash_field(
        &self,
        key: &[u8],
        field: &[u8],
        value: &[u8],
        ttl: Option<Duration>,
    ) -> Result<(), BackendError> {
        let (mut memory, now) = self.at_now();
        memory.set_hash_field(key, field, value, end(now, ttl), now)
    }

    async fn hash_field_time_to_live(
        &self,
        key: &[u8],
        field: &[u8],
    ) -> Result<Option<Option<Duration>>, BackendError> {
        let (mut memory, now) = self.at_now();
        Ok(memory.field_time_to_live(key, field, now)?.map(|left| left.map(Duration::from_millis)))
    }

    async fn delete_hash_field(&self, key: &[u8], field: &[u8]) -> Result<bool, BackendError> {
        let (mut memory, now) = self.at_now();
        memory.delete_hash_field(key, field, now)
    }

    async fn push_list(
        &self,
        key: &[u8],
        value: &[u8],
        at: ListEnd,
        ttl: Option<Duration>,
    ) -> Result<(), BackendError> {
        let (mut memory, now) = self.at_now();
        memory.push_list(key, value, at, ttl.map(|ttl| end(now, Some(ttl))), now)
    }

    async fn get_list(&self, key: &[u8], start: i64, stop: i64) -> Result<Vec<Vec<u8>>, BackendError> {
        let (mut memory, now) = self.at_now();
        memory.get_list(key, start, stop, now)
    }

    async fn replace_list(
        &self,
        key: &[u8],
        values: &[Vec<u8>],
        ttl: Option<Duration>,
    ) -> Result<(), BackendError> {
        let (mut memory, now) = self.at_now();
        memory.replace_list(key, values, end(now, ttl), now)
    }

    async fn delete_key(&self, key: &[u8]) -> Result<bool, BackendError> {
        let (mut memory, now) = self.at_now();
        Ok(memory.delete_key(key, now))
    }

    async fn keys(&self, pattern: &[u8], limit: usize) -> Result<Vec<Vec<u8>>, BackendError> {
        let (memory, now) = self.at_now();
        Ok(memory.keys(pattern, limit, now))
    }

    async fn write_batch(&self, writes: &[CacheWrite]) -> Result<(), BackendError> {
        let mut first_error = None;
        for chunk in writes.chunks(CHUNK) {
            let (mut memory, now) = self.at_now();
            memory.sweep(now, chunk.len());
            for write in chunk {
                if let Err(error) = write_one(&mut memory, write, now) {
                    first_error.get_or_insert(error);
                }
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    async fn publish(&self, channel: &[u8], payload: &[u8]) -> Result<u64, BackendError> {
        Ok(self.channels.publish(channel, payload))
    }

    async fn subscribe(&self, channels: &[Vec<u8>]) -> Result<Box<dyn ChannelSubscription>, BackendError> {
        Ok(Box::new(self.channels.subscribe(channels)?))
    }

    async fn ping(&self) -> Result<Duration, BackendError> {
        let start = Instant::now();
        drop(self.at_now());
        Ok(start.elapsed())
    }
}
