//! Where actors take time from: the machine's clock, or one that a test moves by hand.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll, Waker},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use futures_util::Stream;

use crate::core::task::Millis;

/// The system's time. Cheap to clone; all clones show the same time.
///
/// Inside an actor, timers are futures and streams of its context:
/// `ctx.spawn(clock.sleep(d).into_actor(self).map(…))`, or `ctx.add_stream(clock.interval(d))` with a
/// `StreamHandler<Tick>`. Then a test that holds a [`TestKit`](super::TestKit) decides when they fire; `ctx.run_later`
/// and `ctx.run_interval` always follow the machine.
#[derive(Clone)]
pub struct Clock(Kind);

#[derive(Clone)]
enum Kind {
    /// The runtime is the system's own: it drives timers of callers that are in no tokio runtime.
    Machine {
        start: Instant,
        runtime: tokio::runtime::Handle,
    },
    Manual(Arc<Manual>),
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.0 {
            Kind::Machine { .. } => "machine",
            Kind::Manual(_) => "manual",
        };
        f.debug_struct("Clock").field("kind", &kind).field("elapsed", &self.elapsed()).finish()
    }
}

impl Clock {
    pub(crate) fn machine(runtime: tokio::runtime::Handle) -> Self {
        Clock(Kind::Machine { start: Instant::now(), runtime })
    }

    pub(crate) fn manual(manual: Arc<Manual>) -> Self {
        Clock(Kind::Manual(manual))
    }

    /// Milliseconds since the Unix epoch.
    pub fn now_millis(&self) -> Millis {
        match &self.0 {
            Kind::Machine { .. } => {
                // A clock before 1970 is read as 1970: no rule here needs an earlier time.
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Millis::try_from(since.as_millis()).unwrap_or(Millis::MAX)
            }
            Kind::Manual(manual) => {
                let elapsed = Millis::try_from(manual.lock().now.as_millis()).unwrap_or(Millis::MAX);
                manual.epoch.saturating_add(elapsed)
            }
        }
    }

    /// Time since the system started. It never goes back, whatever happens to the machine's date.
    pub fn elapsed(&self) -> Duration {
        match &self.0 {
            Kind::Machine { start, .. } => start.elapsed(),
            Kind::Manual(manual) => manual.lock().now,
        }
    }

    /// Is ready when `duration` has passed.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        Sleep(match &self.0 {
            Kind::Machine { runtime, .. } => {
                // The caller's own runtime wakes it without crossing threads; without one, ours does.
                let timer = match tokio::runtime::Handle::try_current() {
                    Ok(_) => tokio::time::sleep(duration),
                    Err(_) => {
                        let _entered = runtime.enter();
                        tokio::time::sleep(duration)
                    }
                };
                Timer::Machine(Box::pin(timer))
            }
            Kind::Manual(manual) => {
                let due = manual.lock().now.saturating_add(duration);
                Timer::Manual(ManualSleep { manual: Arc::clone(manual), due, ticket: None })
            }
        })
    }

    /// A stream that ticks every `period`, the first time after one period. A reader that is late gets one tick for
    /// all that it missed. A period of zero is taken as one millisecond.
    pub fn interval(&self, period: Duration) -> Interval {
        let period = period.max(Duration::from_millis(1));
        let due = self.elapsed().saturating_add(period);
        Interval { clock: self.clone(), period, due, sleep: self.sleep(period) }
    }
}

/// One tick of an [`Interval`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tick;

impl actix::Message for Tick {
    type Result = ();
}

/// See [`Clock::sleep`].
#[must_use = "a sleep does nothing unless awaited"]
pub struct Sleep(Timer);

enum Timer {
    Machine(Pin<Box<tokio::time::Sleep>>),
    Manual(ManualSleep),
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep").finish_non_exhaustive()
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.0 {
            Timer::Machine(timer) => timer.as_mut().poll(cx),
            Timer::Manual(timer) => timer.poll(cx),
        }
    }
}

/// See [`Clock::interval`].
#[derive(Debug)]
#[must_use = "an interval does nothing unless read"]
pub struct Interval {
    clock: Clock,
    period: Duration,
    due: Duration,
    sleep: Sleep,
}

impl Interval {
    /// Waits for the next tick.
    pub async fn tick(&mut self) {
        std::future::poll_fn(|cx| self.poll_tick(cx)).await;
    }

    fn poll_tick(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        std::task::ready!(Pin::new(&mut self.sleep).poll(cx));
        let now = self.clock.elapsed();
        self.due = self.due.saturating_add(self.period);
        if self.due <= now {
            self.due = now.saturating_add(self.period);
        }
        self.sleep = self.clock.sleep(self.due - now);
        Poll::Ready(())
    }
}

impl Stream for Interval {
    type Item = Tick;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Tick>> {
        self.poll_tick(cx).map(|()| Some(Tick))
    }
}

/// A clock that stands still until it is moved.
pub(crate) struct Manual {
    epoch: Millis,
    state: Mutex<ManualState>,
}

struct ManualState {
    now: Duration,
    next_ticket: u64,
    /// Timers by due time, then by the order in which they were set. Bounded by the futures that wait.
    timers: BTreeMap<(Duration, u64), Waker>,
}

impl Manual {
    pub(crate) fn new(epoch: Millis) -> Arc<Self> {
        let state = ManualState { now: Duration::ZERO, next_ticket: 0, timers: BTreeMap::new() };
        Arc::new(Manual { epoch, state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, ManualState> {
        // Nothing of a user's runs under this lock, so a poisoned one still holds a whole state.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn now(&self) -> Duration {
        self.lock().now
    }

    /// Moves to the next timer due until `target` and fires it; `false`, at `target`, when none is left.
    pub(crate) fn fire_next(&self, target: Duration) -> bool {
        let fired = {
            let mut state = self.lock();
            match state.timers.first_key_value().map(|(key, _)| *key) {
                Some(key) if key.0 <= target => {
                    state.now = state.now.max(key.0);
                    state.timers.remove(&key)
                }
                _ => {
                    state.now = state.now.max(target);
                    None
                }
            }
        };
        fired.map(Waker::wake).is_some()
    }
}

struct ManualSleep {
    manual: Arc<Manual>,
    due: Duration,
    ticket: Option<u64>,
}

impl ManualSleep {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.manual.lock();
        if state.now >= self.due {
            if let Some(ticket) = self.ticket.take() {
                state.timers.remove(&(self.due, ticket));
            }
            return Poll::Ready(());
        }
        let ticket = *self.ticket.get_or_insert_with(|| {
            state.next_ticket += 1;
            state.next_ticket
        });
        state.timers.insert((self.due, ticket), cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for ManualSleep {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.manual.lock().timers.remove(&(self.due, ticket));
        }
    }
}
