//! What waits to be sent on one connection. Messages are encoded where they are sent, into one buffer that the
//! connection writes as it is: no message is copied or allocated on the way.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::chain::frame::{self, EncodedSizes, FrameError};
use crate::chain::message::{Ack, Message};

/// What an acknowledged hop takes, about: the text of its id, and numbers.
const HOP_BYTES: usize = 64;
/// A buffer that has grown past this is not kept.
const KEEP_BYTES: usize = 1 << 20;

/// The send queue.
pub(super) struct Outgoing {
    limit: usize,
    queue: Mutex<Queue>,
    /// Something is to be written.
    work: Notify,
    /// Something has been.
    room: Notify,
}

#[derive(Default)]
struct Queue {
    bytes: Vec<u8>,
    frames: u64,
    /// Acknowledgements: one message when they are written.
    ack: Ack,
    closed: bool,
}

/// Why a message is not taken.
pub(super) enum Refusal {
    Closed,
    Full(usize),
    Unsendable(FrameError),
}

impl Queue {
    fn is_acks(&self) -> bool {
        self.bytes.is_empty() && self.ack != Ack::default()
    }

    fn len(&self) -> usize {
        self.bytes.len() + HOP_BYTES * (self.ack.hops.len() + self.ack.forwarded.len())
    }
}

impl Outgoing {
    pub(super) fn new(limit: usize) -> Self {
        Outgoing { limit, queue: Mutex::default(), work: Notify::new(), room: Notify::new() }
    }

    // A panic while the lock was held cannot leave half a frame: `encode` takes back what it has begun.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, message: &Message) -> Result<EncodedSizes, Refusal> {
        let mut queue = self.lock();
        if queue.closed {
            return Err(Refusal::Closed);
        }
        if queue.len() >= self.limit {
            return Err(Refusal::Full(queue.len()));
        }
        let sizes = match message {
            Message::Ack(ack) => {
                queue.ack.hops.extend_from_slice(&ack.hops);
                queue.ack.forwarded.extend_from_slice(&ack.forwarded);
                EncodedSizes::default()
            }
            _ => {
                let sizes = frame::encode(message, &mut queue.bytes).map_err(Refusal::Unsendable)?;
                queue.frames += 1;
                sizes
            }
        };
        drop(queue);
        self.work.notify_one();
        Ok(sizes)
    }

    /// Returns when something has been taken out, or the connection has ended, since the last look at the queue.
    pub(super) async fn room(&self) {
        let notified = self.room.notified();
        tokio::pin!(notified);
        // Registered before the look, so that no wake-up is missed between the two.
        notified.as_mut().enable();
        let full = {
            let queue = self.lock();
            !queue.closed && queue.len() >= self.limit
        };
        if full {
            notified.await;
        }
    }

    /// Waits until there is something to write, and takes all of it in exchange for an empty buffer; how many frames
    /// it is. `None`: closed, and nothing is left.
    /// Acknowledgements alone let others go first: a state that waits for another connection is on its way sooner.
    pub(super) async fn take(&self, buffer: &mut Vec<u8>) -> Result<Option<u64>, FrameError> {
        buffer.clear();
        if buffer.capacity() > KEEP_BYTES {
            *buffer = Vec::new();
        }
        loop {
            let (ack, mut frames, closed) = {
                let mut queue = self.lock();
                std::mem::swap(buffer, &mut queue.bytes);
                (std::mem::take(&mut queue.ack), std::mem::take(&mut queue.frames), queue.closed)
            };
            if ack != Ack::default() {
                frame::encode(&Message::Ack(ack), buffer)?;
                frames += 1;
            }
            if !buffer.is_empty() {
                self.room.notify_waiters();
                return Ok(Some(frames));
            }
            if closed {
                return Ok(None);
            }
            self.work.notified().await;
            if self.lock().is_acks() {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Takes nothing more. What is queued is still written.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.work.notify_one();
        self.room.notify_waiters();
    }
}
