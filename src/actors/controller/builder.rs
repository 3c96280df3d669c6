//! Setting a controller up.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, broadcast, watch};

use super::api::SystemController;
use super::board::Board;
use super::dispatcher::{Dispatcher, DispatcherActor};
use super::fleet::Fleet;
use super::health::Pulse;
use super::leader::{LeaderActor, Leadership};
use super::monitor::{Monitor, MonitorActor};
use crate::actors::error::ActorError;
use crate::actors::notice::Notices;
use crate::actors::spec::{Place, Spec, Stage};
use crate::actors::system::ActorSystem;
use crate::actors::tasks::Tasks;
use crate::backend::Backends;
use crate::config::env::{ControllerMode, ControllerSettings};
use crate::core::lease::EXPIRED_AFTER;
use crate::core::placement::{DispatchStrategy, Placement};
use crate::core::policy::Retry;
use crate::core::task::Millis;

/// How many changes a slow reader of [`SystemController::subscribe`] may be behind before it misses some.
const CHANGES: usize = 4_096;

/// What all parts of a controller share.
pub(super) struct Shared {
    pub(super) backends: Backends,
    pub(super) tasks: Tasks,
    pub(super) mode: ControllerMode,
    pub(super) leadership: Leadership,
    pub(super) timing: Timing,
    pub(super) board: Board,
    pub(super) fleet: watch::Sender<Arc<Fleet>>,
    /// A round of the dispatcher is wanted.
    pub(super) dispatch: Notify,
    /// The fleet has changed.
    pub(super) fleet_changed: Notify,
    /// Held tasks are to be judged at once.
    pub(super) judge_now: Notify,
    pub(super) changes: broadcast::Sender<crate::actors::notice::TaskChange>,
    /// When waiting tasks become due, as far as it is known; the sweep knows the rest.
    pub(super) due: Mutex<std::collections::BTreeSet<Millis>>,
    pub(super) pulse: Pulse,
    /// Orders that were left over when this controller began to lead have been looked after.
    pub(super) looked: AtomicBool,
}

/// How often things happen.
#[derive(Debug, Clone)]
pub(super) struct Timing {
    pub(super) skald_interval: Duration,
    pub(super) task_interval: Duration,
    pub(super) dispatcher_interval: Duration,
    pub(super) expired_after: Millis,
}

/// See [`SystemController::builder`].
#[derive(Debug)]
pub struct ControllerBuilder {
    backends: Option<Backends>,
    mode: ControllerMode,
    strategy: DispatchStrategy,
    retry: Retry,
    timing: Timing,
}

impl Default for ControllerBuilder {
    fn default() -> Self {
        ControllerBuilder {
            backends: None,
            mode: ControllerMode::Dispatcher,
            strategy: DispatchStrategy::default(),
            retry: Retry::default(),
            timing: Timing {
                skald_interval: Duration::from_secs(5),
                task_interval: Duration::from_secs(3),
                dispatcher_interval: Duration::from_secs(5),
                expired_after: EXPIRED_AFTER,
            },
        }
    }
}

impl ControllerBuilder {
    /// Where tasks, events and hot state are. Unless said otherwise: in this process, and gone with it.
    pub fn backends(mut self, backends: Backends) -> Self {
        self.backends = Some(backends);
        self
    }

    /// What it does; everything, unless said otherwise.
    pub fn mode(mut self, mode: ControllerMode) -> Self {
        self.mode = mode;
        self
    }

    /// How a Skald is chosen; the one with the fewest tasks, unless said otherwise.
    pub fn strategy(mut self, strategy: DispatchStrategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// How attempts that the controller finds failed are tried again.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// How often the sweeps look: for Skalds, for held tasks, for waiting tasks (5, 3 and 5 s unless said otherwise).
    pub fn intervals(mut self, skalds: Duration, tasks: Duration, dispatcher: Duration) -> Self {
        self.timing.skald_interval = skalds;
        self.timing.task_interval = tasks;
        self.timing.dispatcher_interval = dispatcher;
        self
    }

    /// Mode, strategy and intervals from the environment.
    pub fn settings(mut self, settings: &ControllerSettings) -> Self {
        self.mode = settings.mode;
        self.strategy = settings.strategy;
        self.timing.expired_after =
            Millis::try_from(settings.heartbeat_timeout.as_millis()).unwrap_or(EXPIRED_AFTER);
        self.intervals(settings.skald_interval, settings.task_interval, settings.dispatcher_interval)
    }

    /// Starts it. It connects by itself, and again when a service comes back.
    pub fn start(self, system: &ActorSystem) -> Result<SystemController, ActorError> {
        let backends = match self.backends {
            Some(backends) => backends,
            None => Backends::in_memory().map_err(|error| ActorError::Start {
                what: "embedded backends".into(),
                reason: error.to_string(),
            })?,
        };
        let shared = Arc::new(Shared {
            tasks: Tasks {
                storage: Arc::clone(&backends.storage),
                notices: Arc::<Notices>::default(),
                retry: Arc::new(self.retry),
                clock: system.clock(),
                term: None,
            },
            backends,
            mode: self.mode,
            leadership: Leadership::new(self.mode),
            timing: self.timing,
            board: Board::default(),
            fleet: watch::Sender::new(Arc::default()),
            dispatch: Notify::new(),
            fleet_changed: Notify::new(),
            judge_now: Notify::new(),
            changes: broadcast::Sender::new(CHANGES),
            due: Mutex::default(),
            pulse: Pulse::default(),
            looked: AtomicBool::new(false),
        });
        if self.mode != ControllerMode::Controller {
            let stands = Arc::clone(&shared);
            let leader = Spec::new("leader", move || LeaderActor(Arc::clone(&stands)));
            // It ends when those who act for it have ended.
            system.spawn(leader.stage(Stage::Flush).place(Place::Arbiter(0)).drain_hook())?;
        }
        let watched = Arc::clone(&shared);
        let monitor =
            Spec::new("monitor", move || MonitorActor(Arc::new(Monitor::new(Arc::clone(&watched)))));
        system.spawn(monitor.stage(Stage::Intake).place(Place::Arbiter(0)))?;
        if self.mode == ControllerMode::Dispatcher {
            let (dispatched, strategy, seed) = (Arc::clone(&shared), self.strategy, system.rng_seed());
            let dispatcher = Spec::new("dispatcher", move || {
                DispatcherActor(Arc::new(Dispatcher::new(
                    Arc::clone(&dispatched),
                    Placement::new(strategy, seed),
                )))
            });
            system.spawn(dispatcher.stage(Stage::Intake).place(Place::Arbiter(0)))?;
        }
        Ok(SystemController { shared })
    }
}
