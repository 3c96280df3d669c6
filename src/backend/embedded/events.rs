//! The event queue inside this process.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::sync::Notify;

use super::group::{Group, Taken};
use crate::backend::{BackendError, Delivery, Event, EventQueue, EventSubscription};

/// How much an [`EmbeddedEvents`] keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventLimits {
    /// Events that wait for one group.
    pub events: usize,
    /// Bytes that wait for one group.
    pub bytes: usize,
    /// Groups. Those without a subscriber are forgotten first, the one that has been idle longest before others.
    pub groups: usize,
}

impl Default for EventLimits {
    /// 10,000 events and 16 MiB a group, 1,000 groups.
    fn default() -> Self {
        EventLimits { events: 10_000, bytes: 16 << 20, groups: 1_000 }
    }
}

/// [`EventQueue`] in this process's memory.
///
/// A publisher never waits: when a group's queue is full its oldest events are dropped and the group is told
/// ([`Delivery::Lagged`]). A group goes on collecting while nobody is subscribed. When a subscription ends, what it
/// was given and did not call handled is given to the group's next reader. Events of one key are never with two
/// subscriptions at a time, so their order holds across readers too.
pub struct EmbeddedEvents {
    shared: Arc<Shared>,
}

struct Shared {
    limits: EventLimits,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    groups: HashMap<String, Slot>,
    next_member: u64,
    /// Orders groups by when they lost their last subscriber.
    idle_count: u64,
    /// A group was forgotten: a new one of that name must be told that it may have missed something.
    forgotten: bool,
    closed: bool,
}

struct Slot {
    group: Group,
    members: HashSet<u64>,
    idle_since: u64,
    changed: Arc<Notify>,
}

impl EmbeddedEvents {
    /// An empty queue with the default limits.
    pub fn new() -> Self {
        EmbeddedEvents::with_limits(EventLimits::default())
    }

    /// An empty queue with other limits.
    pub fn with_limits(limits: EventLimits) -> Self {
        EmbeddedEvents { shared: Arc::new(Shared { limits, state: Mutex::default() }) }
    }
}

impl Default for EmbeddedEvents {
    fn default() -> Self {
        EmbeddedEvents::new()
    }
}

impl std::fmt::Debug for EmbeddedEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmbeddedEvents").field("limits", &self.shared.limits).finish_non_exhaustive()
    }
}

impl Drop for EmbeddedEvents {
    fn drop(&mut self) {
        self.shared.close();
    }
}

fn closed() -> BackendError {
    BackendError::Closed("the embedded event queue".into())
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the lock is held, so a poisoned state is still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.groups.values().for_each(|slot| slot.changed.notify_waiters());
    }
}

impl State {
    /// Forgets the group that has been without a subscriber longest; false when all have one.
    fn forget_one(&mut self) -> bool {
        let idle = self.groups.iter().filter(|(_, slot)| slot.members.is_empty());
        let Some(name) = idle.min_by_key(|(_, slot)| slot.idle_since).map(|(name, _)| name.clone()) else {
            return false;
        };
        self.forgotten = true;
        self.groups.remove(&name).is_some()
    }
}

#[async_trait]
impl EventQueue for EmbeddedEvents {
    async fn publish(&self, events: &[Event]) -> Result<(), BackendError> {
        let limit = self.shared.limits.bytes;
        if let Some(event) = events.iter().find(|event| super::group::size(event) > limit) {
            return Err(BackendError::Full {
                what: format!("an event of {} bytes on {}", super::group::size(event), event.topic),
                limit: format!("{limit} bytes"),
                hint: "keep large data elsewhere and send its address".into(),
            });
        }
        let mut state = self.shared.lock();
        if state.closed {
            return Err(closed());
        }
        for slot in state.groups.values_mut() {
            for event in events {
                slot.group.push(event);
            }
            slot.changed.notify_waiters();
        }
        Ok(())
    }

    async fn subscribe(
        &self,
        group: &str,
        topics: &[&str],
    ) -> Result<Box<dyn EventSubscription>, BackendError> {
        let limits = self.shared.limits;
        let mut state = self.shared.lock();
        if state.closed {
            return Err(closed());
        }
        if !state.groups.contains_key(group) {
            if state.groups.len() >= limits.groups && !state.forget_one() {
                return Err(BackendError::Full {
                    what: "the embedded event queue".into(),
                    limit: format!("{} groups", limits.groups),
                    hint: "end subscriptions that are no longer read".into(),
                });
            }
            let mut fresh = Group::new(limits.events, limits.bytes);
            if state.forgotten {
                fresh.may_have_missed();
            }
            let slot = Slot {
                group: fresh,
                members: HashSet::new(),
                idle_since: 0,
                changed: Arc::new(Notify::new()),
            };
            state.groups.insert(group.into(), slot);
        }
        let id = state.next_member;
        state.next_member += 1;
        // cannot fail: it was there, or was made above.
        let Some(slot) = state.groups.get_mut(group) else { return Err(closed()) };
        slot.members.insert(id);
        slot.group.join(id, topics);
        let changed = slot.changed.clone();
        Ok(Box::new(Subscription { id, group: group.into(), changed, shared: self.shared.clone() }))
    }

    async fn close(&self) -> Result<(), BackendError> {
        self.shared.close();
        Ok(())
    }

    async fn ping(&self) -> Result<Duration, BackendError> {
        let start = Instant::now();
        if self.shared.lock().closed {
            return Err(closed());
        }
        Ok(start.elapsed())
    }
}

struct Subscription {
    id: u64,
    group: String,
    changed: Arc<Notify>,
    shared: Arc<Shared>,
}

impl Subscription {
    fn take(&self) -> Taken {
        let mut state = self.shared.lock();
        let closed = state.closed;
        let taken = state.groups.get_mut(&self.group).map_or(Taken::Nothing, |slot| slot.group.take(self.id));
        if closed && taken == Taken::Nothing { Taken::End } else { taken }
    }
}

#[async_trait]
impl EventSubscription for Subscription {
    async fn next(&mut self) -> Option<Result<Delivery, BackendError>> {
        let changed = self.changed.clone();
        loop {
            let mut arrived = std::pin::pin!(changed.notified());
            // Before the look, so that nothing that comes between the look and the wait is missed.
            arrived.as_mut().enable();
            match self.take() {
                Taken::Event(event) => return Some(Ok(Delivery::Event(event))),
                Taken::Missed(missed) => return Some(Ok(Delivery::Lagged { missed })),
                Taken::End => return None,
                Taken::Nothing => arrived.await,
            }
        }
    }

    async fn handled(&mut self) -> Result<(), BackendError> {
        let mut state = self.shared.lock();
        if let Some(slot) = state.groups.get_mut(&self.group) {
            slot.group.handled(self.id);
            // Keys that were held are free for the group's other readers.
            slot.changed.notify_waiters();
        }
        Ok(())
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.idle_count += 1;
        let now = state.idle_count;
        if let Some(slot) = state.groups.get_mut(&self.group) {
            slot.members.remove(&self.id);
            slot.group.leave(self.id);
            slot.idle_since = now;
            slot.changed.notify_waiters();
        }
    }
}
