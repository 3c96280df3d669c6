//! The queue between whoever receives channel messages and one slow or fast reader: bounded, and it says what it
//! dropped.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::{BackendError, ChannelMessage};

/// The most messages that wait for one reader.
pub(crate) const MAX_MESSAGES: usize = 1_024;
/// The most bytes that wait for one reader.
pub(crate) const MAX_BYTES: usize = 8 << 20;

/// One reader's queue. When it is full the oldest message makes room: a reader that fell behind wants what is
/// newest, and hears at once that it missed something.
#[derive(Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    queue: VecDeque<ChannelMessage>,
    bytes: usize,
    /// Dropped because the reader was slow; told before the next message.
    missed: u64,
    /// Why an unknown number of messages was lost on the way here; told before the next message.
    gap: Option<String>,
    closed: bool,
}

fn size(message: &ChannelMessage) -> usize {
    message.channel.len() + message.payload.len()
}

impl Inbox {
    /// Adds a message; false when the reader is gone.
    pub(crate) fn push(&self, message: ChannelMessage) -> bool {
        let mut state = self.lock();
        if state.closed {
            return false;
        }
        state.bytes += size(&message);
        state.queue.push_back(message);
        while state.queue.len() > MAX_MESSAGES || (state.bytes > MAX_BYTES && state.queue.len() > 1) {
            let Some(oldest) = state.queue.pop_front() else { break };
            state.bytes -= size(&oldest);
            state.missed += 1;
        }
        drop(state);
        self.changed.notify_one();
        true
    }

    /// Messages were lost before they came here, nobody knows how many.
    #[cfg(feature = "redis")]
    pub(crate) fn lost(&self, why: String) {
        self.lock().gap = Some(why);
        self.changed.notify_one();
    }

    /// No message comes any more; what waits is still read.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
    }

    /// See [`super::ChannelSubscription::next`]. For one reader.
    pub(crate) async fn next(&self) -> Option<Result<ChannelMessage, BackendError>> {
        loop {
            if let Some(ready) = self.take() {
                return ready;
            }
            // A permit is stored when something arrives between the look above and this wait.
            self.changed.notified().await;
        }
    }

    fn take(&self) -> Option<Option<Result<ChannelMessage, BackendError>>> {
        let mut state = self.lock();
        if state.missed > 0 || state.gap.is_some() {
            let missed = std::mem::take(&mut state.missed);
            let gap = state.gap.take();
            return Some(Some(Err(told(missed, gap))));
        }
        if let Some(message) = state.queue.pop_front() {
            state.bytes -= size(&message);
            return Some(Some(Ok(message)));
        }
        state.closed.then_some(None)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the lock is held, so a poisoned state is still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn told(missed: u64, gap: Option<String>) -> BackendError {
    let mut lost = Vec::new();
    if missed > 0 {
        lost.push(format!("{missed} messages were dropped because this reader was too slow"));
    }
    if let Some(why) = gap {
        lost.push(format!("an unknown number of messages was lost: {why}"));
    }
    BackendError::Full {
        what: "the queue of a channel subscription".into(),
        limit: format!("{MAX_MESSAGES} messages or {} MiB", MAX_BYTES >> 20),
        hint: format!("{}; read the state itself to find out what they said", lost.join(" and ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(payload: Vec<u8>) -> ChannelMessage {
        ChannelMessage { channel: b"c".to_vec(), payload }
    }

    #[tokio::test]
    async fn the_oldest_messages_make_room_and_the_reader_is_told_how_many() {
        let inbox = Inbox::default();
        for n in 0..MAX_MESSAGES as u32 + 3 {
            assert!(inbox.push(message(n.to_be_bytes().to_vec())));
        }
        let error = inbox.next().await.unwrap().unwrap_err();
        assert!(error.to_string().contains("3 messages were dropped"), "{error}");
        assert_eq!(inbox.next().await.unwrap().unwrap().payload, 3u32.to_be_bytes());
        inbox.close();
        for _ in 4..MAX_MESSAGES + 3 {
            inbox.next().await.unwrap().unwrap();
        }
        assert!(inbox.next().await.is_none());
        assert!(!inbox.push(message(vec![])));
    }

    #[tokio::test]
    async fn big_messages_are_bounded_by_bytes_and_the_last_one_always_stays() {
        let inbox = Inbox::default();
        for _ in 0..3 {
            inbox.push(message(vec![0; MAX_BYTES]));
        }
        assert!(inbox.next().await.unwrap().unwrap_err().to_string().contains("2 messages"));
        assert_eq!(inbox.next().await.unwrap().unwrap().payload.len(), MAX_BYTES);
    }
}
