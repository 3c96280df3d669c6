//! Events on Kafka, or on anything that speaks its protocol.
//!
//! - Publishing: [`sender`] over [`outbox`] (the rules) and [`journal`] (the file that survives this process).
//! - Reading: [`group`] (one consumer and its thread) over [`board`] (who gets what) and [`positions`] (where a group is).
//!
//! [`sender`]: self
//! [`outbox`]: self
//! [`journal`]: self
//! [`group`]: self
//! [`board`]: self
//! [`positions`]: self

mod board;
mod failure;
mod group;
mod journal;
mod options;
mod outbox;
mod positions;
mod sender;
mod topics;

pub use options::{KafkaOptions, KafkaTls, MAX_EVENT, SaslMechanism};

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use self::board::Taken;
use self::failure::LastWord;
use self::group::Group;
use self::sender::Sender;
use super::{BackendError, Delivery, Event, EventQueue, EventSubscription};

/// The most groups that one process reads: each has a consumer with its connections and threads.
const MAX_GROUPS: usize = 100;
/// How long closing waits for the broker.
const CLOSE: Duration = Duration::from_secs(10);

/// [`EventQueue`] on Kafka.
///
/// `docs/backends.md` says what is promised. A value is for one process; its threads end with it, and with
/// [`EventQueue::close`] in good order.
pub struct KafkaEvents {
    options: KafkaOptions,
    last: LastWord,
    sender: Arc<Sender>,
    groups: Mutex<HashMap<String, Arc<Group>>>,
    readers: AtomicU64,
}

impl std::fmt::Debug for KafkaEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KafkaEvents").field("options", &self.options).finish_non_exhaustive()
    }
}

impl KafkaEvents {
    /// Checks the options and starts to send what a former process has left in the outbox's folder. A broker that is
    /// away is no error here: [`EventQueue::ping`] tells.
    pub fn open(options: KafkaOptions) -> Result<Self, BackendError> {
        options.check()?;
        let last = LastWord::new(options.service());
        let sender = Arc::new(Sender::open(options.clone(), last.clone())?);
        Ok(KafkaEvents { options, last, sender, groups: Mutex::default(), readers: AtomicU64::new(0) })
    }

    /// How many published events the broker has not acknowledged.
    pub fn unacknowledged(&self) -> usize {
        self.sender.waiting()
    }

    fn groups(&self) -> MutexGuard<'_, HashMap<String, Arc<Group>>> {
        // A plain map: it is whole whatever happened to its last holder.
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn closed(&self) -> BackendError {
        BackendError::Closed(self.options.service())
    }

    /// The group of this name, started if need be.
    fn group(&self, name: &str) -> Result<Arc<Group>, BackendError> {
        let mut groups = self.groups();
        if let Some(group) = groups.get(name) {
            return Ok(Arc::clone(group));
        }
        groups.retain(|_, group| !group.has_ended());
        if groups.len() >= MAX_GROUPS {
            return Err(BackendError::Full {
                what: "this process".into(),
                limit: format!("{MAX_GROUPS} groups on kafka"),
                hint: "end subscriptions that are no longer read".into(),
            });
        }
        let group = Group::start(name, &self.options, &self.last)?;
        groups.insert(name.into(), Arc::clone(&group));
        Ok(group)
    }

    /// A group that has ended makes room for a new one of its name.
    fn forget(&self, group: &Arc<Group>) {
        let mut groups = self.groups();
        if groups.get(&group.name).is_some_and(|known| Arc::ptr_eq(known, group)) {
            groups.remove(&group.name);
        }
    }
}

#[async_trait]
impl EventQueue for KafkaEvents {
    async fn publish(&self, events: &[Event]) -> Result<(), BackendError> {
        self.sender.publish(events).await
    }

    async fn subscribe(
        &self,
        group: &str,
        topics: &[&str],
    ) -> Result<Box<dyn EventSubscription>, BackendError> {
        if group.is_empty() || topics.is_empty() {
            return Err(BackendError::Refused {
                service: self.options.service(),
                action: format!("subscribe the group {group:?}"),
                reason: "a subscription has a group and at least one topic".into(),
            });
        }
        topics.iter().try_for_each(|topic| options::check_topic(&self.options.service(), topic))?;
        let reader = self.readers.fetch_add(1, Ordering::Relaxed);
        loop {
            if self.sender.is_closed() {
                return Err(self.closed());
            }
            let group = self.group(group)?;
            let Some(joined) = group.join(reader, topics) else {
                // It is leaving; the new one must not meet it at the broker.
                group.ended(CLOSE).await;
                self.forget(&group);
                continue;
            };
            let subscription = Subscription { reader, group };
            return match tokio::time::timeout(self.options.join_wait, joined).await {
                Ok(Ok(Ok(()))) => Ok(Box::new(subscription)),
                Ok(Ok(Err(error))) => Err(error),
                Ok(Err(_)) => Err(self.closed()),
                Err(_) => Err(self.last.silence("find the positions of a group", "")),
            };
        }
    }

    async fn close(&self) -> Result<(), BackendError> {
        let flushed = self.sender.close(CLOSE).await;
        let groups: Vec<Arc<Group>> = self.groups().drain().map(|(_, group)| group).collect();
        groups.iter().for_each(|group| group.close());
        let ended = groups.iter().map(|group| group.ended(CLOSE));
        futures_util::future::join_all(ended).await;
        flushed
    }

    async fn ping(&self) -> Result<Duration, BackendError> {
        if self.sender.is_closed() {
            return Err(self.closed());
        }
        let sender = Arc::clone(&self.sender);
        match tokio::task::spawn_blocking(move || sender.ping()).await {
            Ok(answered) => answered,
            Err(_) => Err(self.closed()), // the runtime is ending
        }
    }
}

impl Drop for KafkaEvents {
    fn drop(&mut self) {
        self.groups().values().for_each(|group| group.close());
    }
}

struct Subscription {
    reader: u64,
    group: Arc<Group>,
}

#[async_trait]
impl EventSubscription for Subscription {
    async fn next(&mut self) -> Option<Result<Delivery, BackendError>> {
        loop {
            let mut arrived = std::pin::pin!(self.group.changed.notified());
            // Before the look, so that nothing that comes between the look and the wait is missed.
            arrived.as_mut().enable();
            let taken = self.group.board().take(self.reader);
            match taken {
                Taken::Event(event) => return Some(Ok(Delivery::Event(event))),
                Taken::Missed(missed) => return Some(Ok(Delivery::Lagged { missed })),
                Taken::Failed(error) => return Some(Err(error)),
                Taken::End => return None,
                Taken::Nothing => arrived.await,
            }
        }
    }

    async fn handled(&mut self) -> Result<(), BackendError> {
        self.group.board().handled(self.reader);
        self.group.handed.notify_all();
        // Partitions that were held are free for the group's other readers.
        self.group.changed.notify_waiters();
        Ok(())
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.group.leave(self.reader);
    }
}
