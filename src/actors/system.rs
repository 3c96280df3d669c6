//! The system that owns the actors: starting it, spawning, finding by name, events, blocking code, metrics.

use std::{
    any::{Any, type_name},
    fmt,
    sync::{
        Arc, Mutex, RwLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix::Actor;
use tokio::sync::{Notify, broadcast, watch};

use super::{
    actor_ref::ActorRef,
    blocking::BlockingPool,
    clock::{Clock, Manual},
    error::ActorError,
    mailbox::{About, AnyMailbox, Mailbox},
    metrics::Metrics,
    registry::Core,
    shutdown::ShutdownReport,
    spec::Spec,
    supervisor::{Exit, Life, Orders},
    threads,
};

/// The longest actor name, in bytes.
pub const MAX_NAME: usize = 256;
/// How many events a slow reader may be behind before it misses some.
const EVENT_CAPACITY: usize = 1_024;

/// Something that an operator wants to know.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SystemEvent {
    /// A panic was caught; a restart or an escalation follows.
    Panicked {
        /// The actor.
        actor: Arc<str>,
        /// What the panic said.
        text: Arc<str>,
    },
    /// The actor was made again.
    Restarted {
        /// The actor.
        actor: Arc<str>,
        /// Which incarnation runs now.
        incarnation: u64,
    },
    /// The actor panicked more often than its restarts allow and was given up.
    Escalated {
        /// The actor.
        actor: Arc<str>,
        /// What the last panic said.
        text: Arc<str>,
        /// How many times it had been restarted in all.
        restarts: u64,
    },
}

/// An actor that was given up; see [`ActorSystem::failed`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedActor {
    /// Its name.
    pub actor: Arc<str>,
    /// What the last panic said.
    pub text: Arc<str>,
    /// How many times it had been restarted in all.
    pub restarts: u64,
}

/// How a system is set up.
pub struct SystemBuilder {
    arbiters: usize,
    max_actors: usize,
    seed: Option<u64>,
    blocking_threads: usize,
    blocking_queue: usize,
    /// The test kit's clock, and what it wants to hear when an arbiter has nothing to do.
    by_hand: Option<(Arc<Manual>, threads::OnIdle)>,
}

impl Default for SystemBuilder {
    fn default() -> Self {
        SystemBuilder {
            arbiters: std::thread::available_parallelism().map_or(1, usize::from),
            max_actors: 262_144,
            seed: None,
            blocking_threads: 64,
            blocking_queue: 1_024,
            by_hand: None,
        }
    }
}

impl SystemBuilder {
    /// How many arbiter threads run actors (one per core unless said otherwise; at least 1, at most 256).
    pub fn arbiters(mut self, threads: usize) -> Self {
        self.arbiters = threads.clamp(1, 256);
        self
    }

    /// How many actors may live at once (262,144 unless said otherwise).
    pub fn max_actors(mut self, actors: usize) -> Self {
        self.max_actors = actors;
        self
    }

    /// Makes every random choice of the system repeatable. Without it a seed is drawn at start.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// How many threads run blocking code (64 unless said otherwise). They are started when needed.
    pub fn blocking_threads(mut self, threads: usize) -> Self {
        self.blocking_threads = threads.max(1);
        self
    }

    /// How many blocking jobs may wait for a thread (1,024 unless said otherwise).
    pub fn blocking_queue(mut self, jobs: usize) -> Self {
        self.blocking_queue = jobs;
        self
    }

    pub(crate) fn by_hand(mut self, clock: Arc<Manual>, on_idle: threads::OnIdle) -> Self {
        self.by_hand = Some((clock, on_idle));
        self
    }

    /// Starts the threads; returns when they run, after a millisecond or so. Works in a plain `main` and inside any
    /// runtime.
    pub fn start(self) -> Result<ActorSystem, ActorError> {
        let on_idle = self.by_hand.as_ref().map(|(_, on_idle)| Arc::clone(on_idle));
        let arbiters = self.arbiters;
        let core = threads::start(arbiters, on_idle, move |home, runtime, handles| {
            let clock = match self.by_hand {
                Some((manual, _)) => Clock::manual(manual),
                None => Clock::machine(runtime),
            };
            let seed = self.seed.unwrap_or_else(|| fastrand::u64(..));
            let core = Arc::new(Core {
                clock,
                seed,
                rng: Mutex::new(fastrand::Rng::with_seed(seed)),
                metrics: Metrics::new(),
                actors: RwLock::default(),
                max_actors: self.max_actors,
                loads: handles.iter().map(|_| AtomicUsize::new(0)).collect(),
                arbiters: handles,
                home,
                events: broadcast::Sender::new(EVENT_CAPACITY),
                failed: Mutex::default(),
                blocking: BlockingPool::new(self.blocking_threads, self.blocking_queue),
                closing: AtomicBool::new(false),
                stop: Notify::new(),
                draft: Mutex::default(),
                report: watch::Sender::new(None),
            });
            core.metrics.observe(Arc::downgrade(&core));
            core
        })?;
        let alive = Arc::new(Alive { core: Arc::clone(&core) });
        Ok(ActorSystem { core, _alive: Some(alive) })
    }
}

/// The system that owns the actors, their threads, names, time, randomness and metrics. Cheap to clone, `Send` and
/// `Sync`. When the last clone outside the actors is dropped, the actors are killed and the threads end; call
/// [`shutdown`](Self::shutdown) to let them finish.
#[derive(Clone)]
pub struct ActorSystem {
    core: Arc<Core>,
    /// Absent in the handles that actors get from their `Scope`, so that these do not keep the system running.
    _alive: Option<Arc<Alive>>,
}

struct Alive {
    core: Arc<Core>,
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.core.stop_at_once();
    }
}

impl fmt::Debug for ActorSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActorSystem")
            .field("arbiters", &self.core.arbiters.len())
            .field("actors", &self.core.read().len())
            .finish_non_exhaustive()
    }
}

impl ActorSystem {
    /// How a system is set up.
    pub fn builder() -> SystemBuilder {
        SystemBuilder::default()
    }

    /// A system with one arbiter per core and all defaults.
    pub fn start() -> Result<Self, ActorError> {
        SystemBuilder::default().start()
    }

    pub(crate) fn inner(core: &Arc<Core>) -> Self {
        ActorSystem { core: Arc::clone(core), _alive: None }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Spawns an actor under supervision. It is made and started on its arbiter soon after; messages may be sent at
    /// once. A factory that panics is a panic like any other: restarted, in the end given up.
    pub fn spawn<A: Actor<Context = actix::Context<A>>>(
        &self,
        spec: Spec<A>,
    ) -> Result<ActorRef<A>, ActorError> {
        let core = &self.core;
        let name = checked_name(&spec.name)?;
        let arbiter = core.place(&spec.place);
        let mailbox = Arc::new(Mailbox::<A>::new(About {
            metrics: core.metrics.label(spec.label.as_deref().unwrap_or(&name)),
            name: Arc::clone(&name),
            type_name: type_name::<A>(),
            core: Arc::clone(core),
            capacity: spec.mailbox,
            arbiter,
            stage: spec.stage,
        }));
        {
            let mut actors = core.actors.write().unwrap_or_else(|poisoned| poisoned.into_inner());
            // Under the lock, so that a shutdown either sees the actor or refuses it.
            if core.is_closing() {
                return Err(ActorError::ShuttingDown);
            }
            if actors.len() >= core.max_actors {
                return Err(ActorError::TooManyActors { max: core.max_actors });
            }
            if actors.contains_key(&name) {
                return Err(ActorError::NameTaken { name });
            }
            core.lock_failed().retain(|each| each.actor != name);
            actors.insert(name, Arc::clone(&mailbox) as Arc<dyn AnyMailbox>);
            core.loads[arbiter].fetch_add(1, Ordering::Relaxed);
        }
        let orders = Orders {
            factory: spec.factory,
            in_flight: spec.in_flight,
            restart: spec.restart,
            escalation: spec.escalation,
            drain: spec.drain,
            on_exit: spec.on_exit,
        };
        let unborn = Unborn { mailbox: Arc::clone(&mailbox), orders: Some(orders) };
        // An arbiter that has ended drops the closure, and with it `unborn`, which ends the mailbox.
        core.arbiters[arbiter].spawn_fn(move || unborn.be_born());
        Ok(ActorRef::new(mailbox))
    }

    /// A running actor by its name. An actor of another type is an error that names both types.
    pub fn find<A: Actor<Context = actix::Context<A>>>(&self, name: &str) -> Result<ActorRef<A>, ActorError> {
        let found = self.core.read().get(name).cloned();
        let Some(found) = found else { return Err(ActorError::NotFound { name: shown(name) }) };
        let about = found.about();
        let other = ActorError::OtherType {
            name: Arc::clone(&about.name),
            found: about.type_name,
            asked: type_name::<A>(),
        };
        let any: Arc<dyn Any + Send + Sync> = found;
        any.downcast::<Mailbox<A>>().map(ActorRef::new).map_err(|_| other)
    }

    /// The names of all actors, sorted.
    pub fn names(&self) -> Vec<Arc<str>> {
        let mut names: Vec<_> = self.core.read().keys().cloned().collect();
        names.sort_unstable();
        names
    }

    /// How many actors live.
    pub fn actors(&self) -> usize {
        self.core.read().len()
    }

    /// How many arbiter threads run actors.
    pub fn arbiters(&self) -> usize {
        self.core.arbiters.len()
    }

    /// The actors that were given up and whose names have not been used since, oldest first; at most 1,000.
    pub fn failed(&self) -> Vec<FailedActor> {
        self.core.lock_failed().iter().cloned().collect()
    }

    /// Panics, restarts and escalations from now on. A reader that is more than 1,024 behind is told what it missed.
    pub fn events(&self) -> broadcast::Receiver<SystemEvent> {
        self.core.events.subscribe()
    }

    /// The system's time.
    pub fn clock(&self) -> Clock {
        self.core.clock.clone()
    }

    /// A new seed for a random generator. In a system with a seed, the n-th call always gives the same; where several
    /// threads call, use the seed of the actor's [`Scope`](super::Scope), which depends on nothing but its name.
    pub fn rng_seed(&self) -> u64 {
        self.core.rng.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).u64(..)
    }

    /// Runs blocking or crash-prone code on a thread of the pool. A panic is caught and its text returned. When all
    /// threads are busy the code waits in a bounded queue. Dropping the future does not end the code.
    pub async fn run_blocking<T, F>(&self, code: F) -> Result<T, ActorError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        // A job that is dropped unrun was in the queue at shutdown.
        self.core.blocking.submit(code)?.await.unwrap_or(Err(ActorError::ShuttingDown))
    }

    /// All metrics in the OpenMetrics text format.
    pub fn metrics_text(&self) -> String {
        self.core.metrics.text()
    }

    /// Adds metrics to those that [`metrics_text`](Self::metrics_text) shows.
    pub fn with_metrics<R>(&self, change: impl FnOnce(&mut prometheus_client::registry::Registry) -> R) -> R {
        self.core.metrics.with_registry(change)
    }

    /// Shuts down in order: no new actors; then stage by stage (`Intake`, `Work`, `Flush`, `Store`) each actor takes no
    /// new messages, handles those that wait, gets its drain hook, and ends; then the blocking jobs; then the
    /// threads. What is not done when `deadline` has passed is ended and named in the report. A second call waits
    /// for the first. The system goes down also when the returned future is dropped.
    pub async fn shutdown(&self, deadline: Duration) -> ShutdownReport {
        self.core.begin_shutdown(deadline, None);
        self.stopped().await
    }

    /// Waits until the system has ended, for whatever reason.
    pub async fn stopped(&self) -> ShutdownReport {
        let mut report = self.core.report.subscribe();
        loop {
            if let Some(report) = report.borrow_and_update().as_ref() {
                return report.clone();
            }
            if report.changed().await.is_err() {
                // cannot happen: `core` owns the sender and is borrowed
                return ShutdownReport::default();
            }
        }
    }

    /// Whether a shutdown has begun.
    pub fn is_closing(&self) -> bool {
        self.core.is_closing()
    }

    /// Runs a future to its end on this thread, for a plain `main`. Must not be called inside a runtime: there,
    /// `await` it.
    pub fn block_on<F: Future>(&self, future: F) -> Result<F::Output, ActorError> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|reason| {
                ActorError::Start { what: "runtime for a plain thread".into(), reason: reason.to_string() }
            })?;
        Ok(runtime.block_on(future))
    }
}

/// An actor on its way to its arbiter.
struct Unborn<A: Actor<Context = actix::Context<A>>> {
    mailbox: Arc<Mailbox<A>>,
    orders: Option<Orders<A>>,
}

impl<A: Actor<Context = actix::Context<A>>> Unborn<A> {
    fn be_born(mut self) {
        if let Some(orders) = self.orders.take() {
            actix_rt::spawn(Life::new(Arc::clone(&self.mailbox), orders));
        }
    }
}

impl<A: Actor<Context = actix::Context<A>>> Drop for Unborn<A> {
    fn drop(&mut self) {
        if let Some(mut orders) = self.orders.take() {
            let about = self.mailbox.about();
            about.core.ended(&*self.mailbox, &Exit::Killed);
            self.mailbox.end(&Exit::Killed);
            orders.tell_exit(&about.name, &Exit::Killed);
        }
    }
}

fn checked_name(name: &str) -> Result<Arc<str>, ActorError> {
    if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
        return Err(ActorError::InvalidName { name: shown(name), max: MAX_NAME });
    }
    Ok(Arc::from(name))
}

/// A name as an error shows it.
fn shown(name: &str) -> String {
    name.chars().take(MAX_NAME).collect()
}
