//! The queue in front of the journal, and the thread that empties it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::{Notify, oneshot};

use super::disk::Disk;
use super::journal::{Batch, Journal};
use super::segment::MAX_KEY;
use super::{OutboxError, OutboxOptions, OutboxStats};

type Waiter = oneshot::Sender<Result<(), OutboxError>>;

/// What the handles and the thread share.
pub(super) struct Shared {
    options: OutboxOptions,
    state: Mutex<State>,
    /// Wakes the thread.
    work: Condvar,
    /// Wakes those who wait for room.
    room: Notify,
}

#[derive(Default)]
struct State {
    queue: Queue,
    /// The thread waits without a timeout.
    parked: bool,
    /// Nothing is taken any more: why.
    end: Option<OutboxError>,
    stats: OutboxStats,
}

#[derive(Default)]
struct Queue {
    batch: Batch,
    waiters: Vec<Waiter>,
    /// When the first record was queued.
    since: Option<Instant>,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.batch.is_empty() && self.waiters.is_empty()
    }

    fn exceeds(&self, options: &OutboxOptions, times: usize) -> bool {
        self.batch.len() >= times.saturating_mul(options.queue_records)
            || self.batch.bytes() >= times.saturating_mul(options.queue_bytes)
    }
}

impl Shared {
    pub(super) fn new(options: OutboxOptions, (live_records, live_bytes): (usize, u64)) -> Self {
        let stats = OutboxStats { live_records, live_bytes, ..OutboxStats::default() };
        Shared {
            options,
            state: Mutex::new(State { stats, ..State::default() }),
            work: Condvar::new(),
            room: Notify::new(),
        }
    }

    // A panic while the lock was held cannot leave a half-made change: every change is one call.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn check(&self, key: &[u8], body: &[u8]) -> Result<(), OutboxError> {
        let bytes = key.len() + body.len();
        // The record's own length is 32 bits wide.
        let limit = self.options.max_record_bytes.min(u32::MAX as usize - 64);
        if key.len() > MAX_KEY {
            return Err(OutboxError::TooLarge { bytes: key.len(), limit: MAX_KEY });
        }
        if bytes > limit {
            return Err(OutboxError::TooLarge { bytes, limit });
        }
        Ok(())
    }

    /// Queues a record. With a waiter it is committed at once, without one soon.
    pub(super) fn queue(
        &self,
        waiter: Option<Waiter>,
        add: impl FnOnce(&mut Batch),
    ) -> Result<(), OutboxError> {
        let state = self.lock();
        if state.end.is_none() && state.queue.exceeds(&self.options, 2) {
            return Err(OutboxError::Full { records: state.queue.batch.len() });
        }
        self.add(state, waiter, add)
    }

    pub(super) fn queue_removal(&self, key: &[u8]) -> Result<(), OutboxError> {
        self.add(self.lock(), None, |batch| batch.remove(key))
    }

    fn add(
        &self,
        mut state: MutexGuard<'_, State>,
        waiter: Option<Waiter>,
        add: impl FnOnce(&mut Batch),
    ) -> Result<(), OutboxError> {
        if let Some(end) = &state.end {
            return Err(end.clone());
        }
        add(&mut state.queue.batch);
        state.queue.since.get_or_insert_with(Instant::now);
        // Further records do not wake a thread that has been woken: it takes all of them.
        let wake = match waiter {
            Some(waiter) => {
                state.queue.waiters.push(waiter);
                state.queue.waiters.len() == 1
            }
            None => state.parked || state.queue.exceeds(&self.options, 1),
        };
        state.parked &= !wake;
        drop(state);
        if wake {
            self.work.notify_one();
        }
        Ok(())
    }

    /// Queues only the wish to be told.
    pub(super) fn queue_waiter(&self, waiter: Waiter) -> Result<(), OutboxError> {
        let mut state = self.lock();
        if let Some(end) = &state.end {
            return Err(end.clone());
        }
        state.queue.waiters.push(waiter);
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    pub(super) async fn room(&self) -> Result<(), OutboxError> {
        loop {
            let notified = self.room.notified();
            tokio::pin!(notified);
            // Registered before the look, so that no wake-up is missed between the two.
            notified.as_mut().enable();
            {
                let state = self.lock();
                if let Some(end) = &state.end {
                    return Err(end.clone());
                }
                if !state.queue.exceeds(&self.options, 1) {
                    return Ok(());
                }
            }
            notified.await;
        }
    }

    pub(super) fn stats(&self) -> OutboxStats {
        let state = self.lock();
        OutboxStats { pending: state.queue.batch.len(), ..state.stats }
    }

    /// Refuses everything from now on; what is queued is still committed.
    pub(super) fn close(&self) {
        self.lock().end.get_or_insert(OutboxError::Closed);
        self.work.notify_one();
        self.room.notify_waiters();
    }

    /// Refuses everything from now on, and tells those whose records are queued.
    fn fail(&self, error: &OutboxError) {
        let waiters = {
            let mut state = self.lock();
            state.end = Some(error.clone());
            std::mem::take(&mut state.queue).waiters
        };
        answer(waiters, Err(error));
        self.room.notify_waiters();
    }

    /// Waits until a commit is due and takes the queue; `None`: closed, and nothing is left.
    fn take(&self, empty: Queue) -> Option<Queue> {
        let mut state = self.lock();
        loop {
            let queue = &state.queue;
            if !queue.waiters.is_empty() || queue.exceeds(&self.options, 1) || state.end.is_some() {
                break;
            }
            // A thread that has just been busy waits with a timeout even when nothing is queued: so a lazy record
            // of a busy outbox need not wake it.
            let wait = queue.since.map_or(self.options.lazy_delay, |since| {
                self.options.lazy_delay.saturating_sub(since.elapsed())
            });
            if wait.is_zero() {
                break;
            }
            let (guard, timeout) =
                self.work.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner);
            state = guard;
            if timeout.timed_out() && state.queue.is_empty() && state.end.is_none() {
                state.parked = true;
                while state.queue.is_empty() && state.end.is_none() {
                    state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                state.parked = false;
            }
        }
        if state.queue.is_empty() {
            return None;
        }
        let full = state.queue.exceeds(&self.options, 1);
        let queue = std::mem::replace(&mut state.queue, empty);
        drop(state);
        if full {
            self.room.notify_waiters();
        }
        Some(queue)
    }
}

fn answer(waiters: impl IntoIterator<Item = Waiter>, result: Result<(), &OutboxError>) {
    for waiter in waiters {
        // A waiter that has gone away does not care.
        let _ = waiter.send(result.map_err(OutboxError::clone));
    }
}

/// Tells everybody, should the thread panic, that nothing is taken any more.
struct OnPanic<'a>(&'a Shared);

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(&OutboxError::Closed);
        }
    }
}

/// The commit thread.
pub(super) fn run<D: Disk>(shared: &Shared, mut journal: Journal<D>) {
    let _on_panic = OnPanic(shared);
    let mut empty = Queue::default();
    while let Some(mut queue) = shared.take(empty) {
        let records = queue.batch.len() as u64;
        let written = journal.write(&mut queue.batch);
        answer(queue.waiters.drain(..), written.as_ref().copied());
        // After the answers: the index is nobody's concern but the journal's.
        if let Err(error) = written.and_then(|()| journal.apply(&mut queue.batch)) {
            tracing::error!(%error, "the outbox stops");
            shared.fail(&error);
            return;
        }
        let (live_records, live_bytes) = journal.live();
        {
            let mut state = shared.lock();
            state.stats.live_records = live_records;
            state.stats.live_bytes = live_bytes;
            state.stats.commits += u64::from(records > 0);
            state.stats.records += records;
        }
        queue.batch.clear();
        queue.since = None;
        empty = queue;
    }
}
