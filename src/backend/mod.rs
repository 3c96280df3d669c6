//! What the system needs from outside, as three traits, and the adapters that provide it.
//!
//! | trait | holds | adapters |
//! | --- | --- | --- |
//! | [`CacheMemory`] | hot state that expires: heartbeats, who is there | embedded, Redis |
//! | [`EventQueue`] | events between processes | embedded, Kafka |
//! | [`DiskStorage`] | the tasks, durable | embedded (SQLite), MongoDB |
//!
//! Every adapter passes the same contract suite (`tests/backend_contract/`).

mod document;
pub mod embedded;
mod inbox;
#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(feature = "mongo")]
pub mod mongo;
#[cfg(feature = "redis")]
pub mod redis;
mod services;

pub use services::Backends;

use std::time::Duration;

use async_trait::async_trait;

use crate::core::task::{LifecycleStatus, Millis, Task};

/// Why a backend could not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The service is away or did not answer in time; trying again later may help.
    #[error("{service} is not reachable while trying to {action}: {reason}")]
    Unavailable {
        /// Which service, with its address and without its password.
        service: String,
        /// What was tried.
        action: String,
        /// What the client said.
        reason: String,
    },
    /// The service refused: wrong password, no permission, a key of another type, …
    #[error("{service} refused to {action}: {reason}")]
    Refused {
        /// Which service.
        service: String,
        /// What was tried.
        action: String,
        /// What the service said, and what to do.
        reason: String,
    },
    /// The server is too old for what was asked.
    #[error("{service} cannot {action}: {missing} is missing ({hint})")]
    Unsupported {
        /// Which service and version.
        service: String,
        /// What was tried.
        action: String,
        /// The missing feature.
        missing: String,
        /// What to do.
        hint: String,
    },
    /// A stored document cannot be read.
    #[error("{what} holds something unreadable: {reason}")]
    Corrupt {
        /// Which document.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A bound was reached (queue, page size, value size).
    #[error("{what} is full ({limit}); {hint}")]
    Full {
        /// What is full.
        what: String,
        /// Its limit with its unit.
        limit: String,
        /// What to do.
        hint: String,
    },
    /// It was closed.
    #[error("{0} is closed")]
    Closed(String),
    /// The write was made in a term of leadership that is over; nothing was changed.
    #[error("term {term} of leadership is over: another controller has begun a newer one")]
    Superseded {
        /// The term that was named.
        term: u64,
    },
}

/// A TTL in whole milliseconds as every adapter takes it: at least one (0 would be an error or a deletion,
/// depending on the command), at most about a hundred years (what HPEXPIRE can count is bounded).
pub(crate) fn ttl_millis(ttl: Duration) -> u64 {
    const CENTURY: u128 = 100 * 365 * 24 * 3_600_000;
    // cannot fail: a century of milliseconds fits.
    ttl.as_millis().clamp(1, CENTURY) as u64
}

/// One write of a batch; see [`CacheMemory::write_batch`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheWrite {
    /// Set a string.
    SetString {
        /// The key; any bytes.
        key: Vec<u8>,
        /// The value; any bytes.
        value: Vec<u8>,
        /// When it expires; `None` is never.
        ttl: Option<Duration>,
    },
    /// Set one field of a hash and that field's own time to live, atomically.
    SetHashField {
        /// The key of the hash; any bytes.
        key: Vec<u8>,
        /// The field; any bytes.
        field: Vec<u8>,
        /// The value; any bytes.
        value: Vec<u8>,
        /// When the field expires; `None` is never.
        ttl: Option<Duration>,
    },
    /// Replace a whole list, atomically: readers see the old or the new one.
    ReplaceList {
        /// The key; any bytes.
        key: Vec<u8>,
        /// The new values, head first.
        values: Vec<Vec<u8>>,
        /// When the key expires; `None` is never.
        ttl: Option<Duration>,
    },
    /// Delete a key.
    DeleteKey {
        /// The key; any bytes.
        key: Vec<u8>,
    },
}

/// Which end of a list a value is pushed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListEnd {
    /// LPUSH.
    Head,
    /// RPUSH.
    Tail,
}

/// A message of a cache channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelMessage {
    /// The channel.
    pub channel: Vec<u8>,
    /// What was published.
    pub payload: Vec<u8>,
}

/// Messages of the channels subscribed to, or the news that some were dropped.
#[async_trait]
pub trait ChannelSubscription: Send {
    /// The next message. `Err(Full)` says that this reader was too slow and how many messages it lost; reading
    /// goes on after it. `None` when the cache was closed.
    async fn next(&mut self) -> Option<Result<ChannelMessage, BackendError>>;
}

/// Hot state that expires by itself. Keys, fields and values are any bytes.
#[async_trait]
pub trait CacheMemory: Send + Sync {
    /// A string's value, `None` when it does not exist.
    async fn get_string(&self, key: &[u8]) -> Result<Option<Vec<u8>>, BackendError>;
    /// Strings in the order asked for, in as few round trips as the server allows.
    async fn get_strings(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, BackendError>;
    /// Sets a string.
    async fn set_string(&self, key: &[u8], value: &[u8], ttl: Option<Duration>) -> Result<(), BackendError>;
    /// Sets a string only when the key does not exist; says whether it did. The lease primitive.
    async fn set_string_if_absent(
        &self,
        key: &[u8],
        value: &[u8],
        ttl: Duration,
    ) -> Result<bool, BackendError>;
    /// Replaces a string (and renews its TTL) only while it still holds `expected`; says whether it did.
    async fn swap_string(
        &self,
        key: &[u8],
        expected: &[u8],
        value: &[u8],
        ttl: Duration,
    ) -> Result<bool, BackendError>;
    /// What is left of a key's life: `None` when there is no such key, `Some(None)` when it never expires.
    async fn time_to_live(&self, key: &[u8]) -> Result<Option<Option<Duration>>, BackendError>;
    /// One field of a hash.
    async fn get_hash_field(&self, key: &[u8], field: &[u8]) -> Result<Option<Vec<u8>>, BackendError>;
    /// All fields of a hash that have not expired, in no particular order.
    async fn get_all_hash(&self, key: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>, BackendError>;
    /// Sets one field and its own TTL in one atomic command (no moment at which the field has no TTL).
    async fn set_hash_field(
        &self,
        key: &[u8],
        field: &[u8],
        value: &[u8],
        ttl: Option<Duration>,
    ) -> Result<(), BackendError>;
    /// What is left of a field's life, as [`CacheMemory::time_to_live`].
    async fn hash_field_time_to_live(
        &self,
        key: &[u8],
        field: &[u8],
    ) -> Result<Option<Option<Duration>>, BackendError>;
    /// Removes one field; says whether it was there.
    async fn delete_hash_field(&self, key: &[u8], field: &[u8]) -> Result<bool, BackendError>;
    /// Pushes one value; the key's TTL becomes `ttl` when given.
    async fn push_list(
        &self,
        key: &[u8],
        value: &[u8],
        end: ListEnd,
        ttl: Option<Duration>,
    ) -> Result<(), BackendError>;
    /// Values from `start` to `stop`, both inclusive, negative from the end, as LRANGE.
    async fn get_list(&self, key: &[u8], start: i64, stop: i64) -> Result<Vec<Vec<u8>>, BackendError>;
    /// Replaces the whole list, atomically.
    async fn replace_list(
        &self,
        key: &[u8],
        values: &[Vec<u8>],
        ttl: Option<Duration>,
    ) -> Result<(), BackendError>;
    /// Removes a key of any type; says whether it was there.
    async fn delete_key(&self, key: &[u8]) -> Result<bool, BackendError>;
    /// Keys that match a glob (`*`, `?`, `[…]`, `\`), at most `limit`, without blocking the server.
    async fn keys(&self, pattern: &[u8], limit: usize) -> Result<Vec<Vec<u8>>, BackendError>;
    /// Many writes in one round trip (one pipeline per node). Every write is atomic, the batch is not: the answer
    /// names the first that failed, the others have been tried.
    async fn write_batch(&self, writes: &[CacheWrite]) -> Result<(), BackendError>;
    /// Publishes to a channel; says how many received it where that is known.
    async fn publish(&self, channel: &[u8], payload: &[u8]) -> Result<u64, BackendError>;
    /// Subscribes to channels. Messages published before it returns may be missed, later ones are not.
    async fn subscribe(&self, channels: &[Vec<u8>]) -> Result<Box<dyn ChannelSubscription>, BackendError>;
    /// Round trip to the service.
    async fn ping(&self) -> Result<Duration, BackendError>;
}

/// An event as it travels: a topic, a key (the task id) and a JSON value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// One of `core::names`' topics.
    pub topic: String,
    /// Orders events: those with the same key arrive in the order in which they were published.
    pub key: Vec<u8>,
    /// JSON in UTF-8.
    pub value: Vec<u8>,
}

/// What a subscriber receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    /// An event. It is redelivered after a crash unless [`EventSubscription::handled`] was called for it.
    Event(Event),
    /// This subscriber was too slow or was away: up to `missed` events (0 when unknown) were dropped. It must
    /// read storage to find out what they said.
    Lagged {
        /// How many.
        missed: u64,
    },
}

/// One group's view of some topics.
#[async_trait]
pub trait EventSubscription: Send {
    /// The next delivery; `None` when the queue was closed.
    async fn next(&mut self) -> Option<Result<Delivery, BackendError>>;
    /// Everything delivered so far has been handled and need not be delivered again.
    async fn handled(&mut self) -> Result<(), BackendError>;
}

/// Events between processes. Delivery is at least once; events of one key keep their order.
#[async_trait]
pub trait EventQueue: Send + Sync {
    /// Publishes; returns when the event cannot be lost by this process's death any more (as far as the adapter
    /// can promise: embedded queues live in memory and are backed by the sweep over storage).
    async fn publish(&self, events: &[Event]) -> Result<(), BackendError>;
    /// Subscribes a group to topics. Each group sees every event once; two subscriptions of one group share them.
    /// Events published before the first subscription of a group are not delivered to it.
    async fn subscribe(
        &self,
        group: &str,
        topics: &[&str],
    ) -> Result<Box<dyn EventSubscription>, BackendError>;
    /// Sends what is buffered and refuses what comes after.
    async fn close(&self) -> Result<(), BackendError>;
    /// Round trip to the service.
    async fn ping(&self) -> Result<Duration, BackendError>;
}

/// Which tasks, in which order, which page.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TaskQuery {
    /// Any of these; empty is all.
    pub statuses: Vec<LifecycleStatus>,
    /// Any of these worker classes; empty is all.
    pub class_names: Vec<String>,
    /// This Skald.
    pub executor: Option<String>,
    /// Id, name, description or class contains this, ignoring case.
    pub text: Option<String>,
    /// Only tasks that may start at this time: `nextAttemptAt` and `notBefore` are absent or past.
    pub due_at: Option<Millis>,
    /// The order.
    pub order: TaskOrder,
    /// How many to leave out first.
    pub offset: u64,
    /// How many at most; 0 is the adapter's limit ([`MAX_PAGE`]).
    pub limit: u64,
}

/// The most tasks that one query returns.
pub const MAX_PAGE: u64 = 1_000;

/// The largest task document, in bytes of JSON.
pub const MAX_DOCUMENT: usize = 1 << 20;

/// In which order a query answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TaskOrder {
    /// Newest first.
    #[default]
    Newest,
    /// Highest priority first, then oldest first: the dispatcher's order.
    DispatchOrder,
}

/// One page of tasks.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskPage {
    /// The tasks.
    pub tasks: Vec<Task>,
    /// How many match in all.
    pub total: u64,
    /// The offset of the next page; `None` when this is the last one.
    pub next: Option<u64>,
}

/// Which tasks a sweep visits, a batch at a time, each once however many there are and whatever changes meanwhile.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TaskScan {
    /// Any of these; none is no task.
    pub statuses: Vec<LifecycleStatus>,
    /// This Skald.
    pub executor: Option<String>,
    /// Only ids greater than this: [`TaskBatch::next`] of the batch before.
    pub after: Option<String>,
}

/// Tasks in the order of their ids (as bytes), [`MAX_PAGE`] at most.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskBatch {
    /// The tasks. A document that cannot be read is left out and logged.
    pub tasks: Vec<Task>,
    /// Where the next batch begins; `None` when this is the last one.
    pub next: Option<String>,
}

/// What a compare-and-set found.
#[derive(Debug, Clone, PartialEq)]
#[allow(clippy::large_enum_variant)] // it lives for a moment, and the task is what everyone wants
pub enum Stored {
    /// It was written.
    Done,
    /// It is not what was seen any more, somebody else changed it first: here is what it is now.
    Stale(Task),
    /// There is no such task.
    Missing,
}

/// The tasks. When a call returns `Ok`, what it wrote survives `kill -9`.
#[async_trait]
pub trait DiskStorage: Send + Sync {
    /// Adds a task; `false` when its id is taken (nothing is changed then).
    async fn insert(&self, task: &Task) -> Result<bool, BackendError>;
    /// Adds many in one commit; answers which were added.
    async fn insert_many(&self, tasks: &[Task]) -> Result<Vec<bool>, BackendError>;
    /// One task.
    async fn get(&self, id: &str) -> Result<Option<Task>, BackendError>;
    /// Writes `task` if what is stored still has the revision, the incarnation and the status of `seen`, the document that
    /// `task` was made from (the adapter sets `task.skalds.revision` to that of `seen` and one). The rule that made the new
    /// document (`core::lifecycle`) has already been applied: storage decides only who was first. Where others write into
    /// the same documents, only what `task` and `seen` differ in is written.
    async fn replace(&self, task: &Task, seen: &Task) -> Result<Stored, BackendError>;
    /// Begins a term of leadership and says its number, greater than any before. Once this has answered, no
    /// [`DiskStorage::replace_in_term`] of an older term is done any more, however long it was under way.
    async fn begin_term(&self) -> Result<u64, BackendError>;
    /// The latest term that has begun; 0 when none has.
    async fn latest_term(&self) -> Result<u64, BackendError>;
    /// As [`DiskStorage::replace`], in the same atomic step only while no newer term than this has begun: else
    /// [`BackendError::Superseded`]. What a leader decides is written with this, so that one that was frozen between
    /// deciding and writing changes nothing when it wakes up.
    async fn replace_in_term(&self, task: &Task, seen: &Task, term: u64) -> Result<Stored, BackendError>;
    /// Removes a task; says whether it was there.
    async fn delete(&self, id: &str) -> Result<bool, BackendError>;
    /// A page of tasks. It may be shorter than asked for: it ends early when its documents are large, and a document
    /// that cannot be read is left out and logged. [`TaskPage::next`] says where to go on.
    async fn list(&self, query: &TaskQuery) -> Result<TaskPage, BackendError>;
    /// The next batch of a sweep. Unlike [`DiskStorage::list`] it counts nothing and costs no more far in than at the start.
    async fn scan(&self, scan: &TaskScan) -> Result<TaskBatch, BackendError>;
    /// The tasks with an order ([`crate::core::order::Untold`]) that was stored before this time and may not have been sent,
    /// oldest first, [`MAX_PAGE`] at most. A document that cannot be read is left out and logged.
    async fn untold(&self, before: Millis) -> Result<Vec<Task>, BackendError>;
    /// How many tasks there are of each status.
    async fn count_by_status(&self) -> Result<Vec<(LifecycleStatus, u64)>, BackendError>;
    /// All worker classes that any task names, sorted.
    async fn class_names(&self) -> Result<Vec<String>, BackendError>;
    /// Round trip to the service.
    async fn ping(&self) -> Result<Duration, BackendError>;
}
