//! The queue in front of the journal, and who empties it: a thread, or an owner that commits itself as long as the disk
//! is quick. Waking the thread takes longer than a quick disk's sync where idle cores are slow to wake.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};

use super::disk::Disk;
use super::journal::{Batch, Journal};
use super::segment::MAX_KEY;
use super::{OutboxError, OutboxOptions, OutboxStats};

/// An owner commits itself for so many who wait, where what counts is how soon it is done. With more the owner has better
/// things to do in the meantime.
const MOST_HERE: usize = 4;

type Waiter = oneshot::Sender<Result<(), OutboxError>>;

/// What the handles and the thread share.
pub(super) struct Shared {
    options: OutboxOptions,
    state: Mutex<State>,
    /// Locked before `state` by who commits: records go to the disk in the order in which they were queued. `None`
    /// when nothing is written any more, so that the directory is free.
    writer: Mutex<Option<Writer>>,
    /// Wakes the thread.
    work: Condvar,
    /// Wakes those who wait for room.
    room: Notify,
}

/// What a commit needs.
struct Writer {
    journal: Box<dyn Commits>,
    /// Buffers that are used again.
    spare: Queue,
    /// How long the last commit took.
    took: Duration,
}

/// A [`Journal`] on any disk.
trait Commits: Send {
    fn write(&mut self, batch: &mut Batch) -> Result<(), OutboxError>;
    fn apply(&mut self, batch: &mut Batch) -> Result<(), OutboxError>;
    fn live(&self) -> (usize, u64);
}

impl<D: Disk> Commits for Journal<D> {
    fn write(&mut self, batch: &mut Batch) -> Result<(), OutboxError> {
        self.write(batch)
    }

    fn apply(&mut self, batch: &mut Batch) -> Result<(), OutboxError> {
        self.apply(batch)
    }

    fn live(&self) -> (usize, u64) {
        self.live()
    }
}

#[derive(Default)]
struct State {
    queue: Queue,
    /// A commit is due: somebody waits for it.
    due: bool,
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
    pub(super) fn new<D: Disk>(options: OutboxOptions, journal: Journal<D>) -> Self {
        let (live_records, live_bytes) = journal.live();
        let writer = Writer { journal: Box::new(journal), spare: Queue::default(), took: Duration::ZERO };
        let stats = OutboxStats { live_records, live_bytes, ..OutboxStats::default() };
        Shared {
            options,
            state: Mutex::new(State { stats, ..State::default() }),
            writer: Mutex::new(Some(writer)),
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

    /// Queues a record. It is committed soon, and at once after [`Shared::make_due`] or [`Shared::commit`].
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
        state.queue.waiters.extend(waiter);
        let wake = state.parked || state.queue.exceeds(&self.options, 1);
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
        self.make_due();
        Ok(())
    }

    /// Has the thread commit what is queued.
    pub(super) fn make_due(&self) {
        let mut state = self.lock();
        // It takes everything, so it is woken once.
        if !std::mem::replace(&mut state.due, true) {
            drop(state);
            self.work.notify_one();
        }
    }

    /// Commits what is queued: here when that is quick and few wait, else by the thread.
    pub(super) fn commit(&self) {
        if self.lock().queue.waiters.len() > MOST_HERE {
            return self.make_due();
        }
        match self.writer.try_lock() {
            Ok(mut writer)
                if writer.as_ref().is_some_and(|writer| writer.took < self.options.commit_here_below) =>
            {
                self.commit_with(&mut writer);
            }
            // Who is at it has taken its records already.
            _ => self.make_due(),
        }
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

    /// Waits until a commit is due; false: closed, and nothing is left.
    fn wait(&self) -> bool {
        let mut state = self.lock();
        loop {
            if state.end.is_some() {
                return !state.queue.is_empty();
            }
            if state.due || state.queue.exceeds(&self.options, 1) {
                return true;
            }
            // A thread that has just been busy waits with a timeout even when nothing is queued: so a lazy record
            // of a busy outbox need not wake it.
            let wait = state.queue.since.map_or(self.options.lazy_delay, |since| {
                self.options.lazy_delay.saturating_sub(since.elapsed())
            });
            if wait.is_zero() {
                return true;
            }
            let (guard, timeout) =
                self.work.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner);
            state = guard;
            if timeout.timed_out() && state.queue.is_empty() && state.end.is_none() && !state.due {
                state.parked = true;
                while state.parked && state.end.is_none() && !state.due {
                    state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                state.parked = false;
            }
        }
    }

    /// One commit of everything that is queued; after a failure there is no writer any more.
    fn commit_with(&self, slot: &mut Option<Writer>) {
        let Some(writer) = slot else { return };
        let mut queue = {
            let mut state = self.lock();
            state.due = false;
            if state.queue.is_empty() {
                return;
            }
            std::mem::replace(&mut state.queue, std::mem::take(&mut writer.spare))
        };
        let records = queue.batch.len() as u64;
        let full = queue.exceeds(&self.options, 1);
        let begun = Instant::now();
        let written = writer.journal.write(&mut queue.batch);
        writer.took = begun.elapsed();
        answer(queue.waiters.drain(..), written.as_ref().copied());
        if full {
            self.room.notify_waiters();
        }
        // After the answers: the index is nobody's concern but the journal's.
        if let Err(error) = written.and_then(|()| writer.journal.apply(&mut queue.batch)) {
            tracing::error!(%error, "the outbox stops");
            *slot = None;
            self.fail(&error);
            return;
        }
        let (live_records, live_bytes) = writer.journal.live();
        {
            let mut state = self.lock();
            state.stats.live_records = live_records;
            state.stats.live_bytes = live_bytes;
            state.stats.commits += u64::from(records > 0);
            state.stats.records += records;
        }
        queue.batch.clear();
        queue.since = None;
        writer.spare = queue;
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
pub(super) fn run(shared: &Shared) {
    let _on_panic = OnPanic(shared);
    while shared.wait() {
        // Poisoned: the owner panicked in a commit, and what that left on the disk is not known.
        match shared.writer.lock() {
            Ok(mut writer) => shared.commit_with(&mut writer),
            Err(_) => {
                shared.fail(&OutboxError::Closed);
                break;
            }
        }
    }
    *shared.writer.lock().unwrap_or_else(PoisonError::into_inner) = None;
}
