//! Publish and subscribe inside this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use async_trait::async_trait;

use crate::backend::inbox::Inbox;
use crate::backend::{BackendError, ChannelMessage, ChannelSubscription};

/// The most subscriptions at one time; each may hold a full inbox.
const MAX_SUBSCRIPTIONS: usize = 10_000;

/// Who listens to what.
#[derive(Default)]
pub(super) struct Channels {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next_id: u64,
    subscriptions: HashMap<u64, Arc<Inbox>>,
    by_channel: HashMap<Vec<u8>, Vec<u64>>,
}

impl Channels {
    /// Never waits for a slow reader; says how many inboxes took it.
    pub(super) fn publish(&self, channel: &[u8], payload: &[u8]) -> u64 {
        let state = self.lock();
        let Some(readers) = state.by_channel.get(channel) else { return 0 };
        let message = ChannelMessage { channel: channel.to_vec(), payload: payload.to_vec() };
        let inboxes = readers.iter().filter_map(|id| state.subscriptions.get(id));
        inboxes.filter(|inbox| inbox.push(message.clone())).count() as u64
    }

    pub(super) fn subscribe(self: &Arc<Self>, channels: &[Vec<u8>]) -> Result<Subscription, BackendError> {
        let mut state = self.lock();
        if state.subscriptions.len() >= MAX_SUBSCRIPTIONS {
            return Err(BackendError::Full {
                what: "the embedded cache's subscriptions".into(),
                limit: format!("{MAX_SUBSCRIPTIONS} subscriptions"),
                hint: "drop those that are no longer read".into(),
            });
        }
        let id = state.next_id;
        state.next_id += 1;
        let inbox = Arc::new(Inbox::default());
        state.subscriptions.insert(id, inbox.clone());
        for channel in channels {
            let readers = state.by_channel.entry(channel.clone()).or_default();
            if !readers.contains(&id) {
                readers.push(id);
            }
        }
        Ok(Subscription { id, channels: channels.to_vec(), inbox, from: Arc::downgrade(self) })
    }

    /// Readers get what waits for them, then the end.
    pub(super) fn close(&self) {
        self.lock().subscriptions.values().for_each(|inbox| inbox.close());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the lock is held, so a poisoned state is still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct Subscription {
    id: u64,
    channels: Vec<Vec<u8>>,
    inbox: Arc<Inbox>,
    from: Weak<Channels>,
}

#[async_trait]
impl ChannelSubscription for Subscription {
    async fn next(&mut self) -> Option<Result<ChannelMessage, BackendError>> {
        self.inbox.next().await
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let Some(from) = self.from.upgrade() else { return };
        let mut state = from.lock();
        state.subscriptions.remove(&self.id);
        for channel in &self.channels {
            if let Some(readers) = state.by_channel.get_mut(channel) {
                readers.retain(|id| *id != self.id);
                if readers.is_empty() {
                    state.by_channel.remove(channel);
                }
            }
        }
    }
}
