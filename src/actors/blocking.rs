//! Code that blocks or may crash, away from the arbiters: a bounded pool of threads with a bounded queue.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    time::Duration,
};

use tokio::sync::{Notify, oneshot};

use super::error::{ActorError, panic_text};

/// An idle thread ends after this long.
const IDLE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

/// Threads are started when a job finds none idle, up to `max_threads`.
pub(crate) struct BlockingPool {
    max_threads: usize,
    capacity: usize,
    state: Mutex<State>,
    work: Condvar,
    /// Told whenever no job waits or runs any more.
    empty: Notify,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
    running: usize,
    /// Jobs that have ended, ever.
    done: u64,
    closed: bool,
}

impl BlockingPool {
    pub(crate) fn new(max_threads: usize, capacity: usize) -> Arc<Self> {
        Arc::new(BlockingPool {
            max_threads: max_threads.max(1),
            capacity,
            state: Mutex::default(),
            work: Condvar::new(),
            empty: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Jobs run outside the lock, so a poisoned one still holds a whole state.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Queues `code`; the receiver gets what it returns, or its panic's text.
    pub(crate) fn submit<T, F>(
        self: &Arc<Self>,
        code: F,
    ) -> Result<oneshot::Receiver<Result<T, ActorError>>, ActorError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let (tx, rx) = oneshot::channel();
        let job: Job = Box::new(move || {
            let result = catch_unwind(AssertUnwindSafe(code))
                .map_err(|payload| ActorError::BlockingPanicked { text: panic_text(&*payload) });
            // The caller may have stopped waiting: then nobody wants the result.
            let _ = tx.send(result);
        });
        let mut state = self.lock();
        if state.closed {
            return Err(ActorError::ShuttingDown);
        }
        if state.queue.len() >= self.capacity {
            return Err(ActorError::BlockingFull { capacity: self.capacity });
        }
        state.queue.push_back(job);
        if state.idle >= state.queue.len() {
            self.work.notify_one();
        } else if state.threads < self.max_threads {
            state.threads += 1;
            let pool = Arc::clone(self);
            let started =
                std::thread::Builder::new().name("skalds-blocking".into()).spawn(move || pool.run());
            if let Err(reason) = started {
                state.threads -= 1;
                if state.threads == 0 {
                    state.queue.pop_back();
                    return Err(ActorError::Start {
                        what: "blocking thread".into(),
                        reason: reason.to_string(),
                    });
                }
                // The other threads will come to it.
            }
        }
        Ok(rx)
    }

    fn run(&self) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                state.running += 1;
                drop(state);
                job();
                state = self.lock();
                state.running -= 1;
                state.done += 1;
                if state.running == 0 && state.queue.is_empty() {
                    self.empty.notify_waiters();
                }
            } else if state.closed {
                break;
            } else {
                state.idle += 1;
                let (back, waited) =
                    self.work.wait_timeout(state, IDLE).unwrap_or_else(|poisoned| poisoned.into_inner());
                state = back;
                state.idle -= 1;
                if waited.timed_out() && state.queue.is_empty() {
                    break;
                }
            }
        }
        state.threads -= 1;
    }

    /// Waits until no job waits or runs.
    pub(crate) async fn emptied(&self) {
        loop {
            let told = self.empty.notified();
            let mut told = std::pin::pin!(told);
            told.as_mut().enable(); // before looking, so that nothing is missed between
            if self.load().0 == 0 {
                return;
            }
            told.await;
        }
    }

    /// Jobs that wait or run, and jobs ended ever.
    pub(crate) fn load(&self) -> (usize, u64) {
        let state = self.lock();
        (state.queue.len() + state.running, state.done)
    }

    /// Takes no more jobs; those that wait still run unless `drop_queue`.
    pub(crate) fn close(&self, drop_queue: bool) {
        let mut state = self.lock();
        state.closed = true;
        let dropped = if drop_queue { std::mem::take(&mut state.queue) } else { VecDeque::new() };
        drop(state);
        drop(dropped);
        self.work.notify_all();
    }
}
