//! What all handles, actors and threads of one system share: who is there, under which name, on which arbiter.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, RwLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix_rt::ArbiterHandle;
use tokio::sync::{Notify, broadcast, watch};

use super::{
    blocking::BlockingPool,
    clock::Clock,
    mailbox::AnyMailbox,
    metrics::{LabelMetrics, Metrics, Tally},
    shutdown::ShutdownReport,
    spec::{Place, Stage},
    supervisor::Exit,
    system::{FailedActor, SystemEvent},
};

/// How many failed actors are remembered.
const MAX_FAILED: usize = 1_000;
/// The deadline of a shutdown that nobody gave one: by escalation.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(30);

/// See the module's text.
pub(crate) struct Core {
    pub(crate) clock: Clock,
    pub(crate) seed: u64,
    pub(crate) rng: Mutex<fastrand::Rng>,
    pub(crate) metrics: Metrics,
    pub(crate) actors: RwLock<HashMap<Arc<str>, Arc<dyn AnyMailbox>>>,
    pub(crate) max_actors: usize,
    pub(crate) arbiters: Vec<ArbiterHandle>,
    /// How many actors each arbiter has.
    pub(crate) loads: Vec<AtomicUsize>,
    /// The system's own thread, which runs no actors.
    pub(crate) home: ArbiterHandle,
    pub(crate) events: broadcast::Sender<SystemEvent>,
    pub(crate) failed: Mutex<VecDeque<FailedActor>>,
    pub(crate) blocking: Arc<BlockingPool>,
    pub(crate) closing: AtomicBool,
    /// Tells the system's thread to end the arbiters.
    pub(crate) stop: Notify,
    /// The report while the shutdown runs.
    pub(crate) draft: Mutex<ShutdownReport>,
    /// The report when everything has ended.
    pub(crate) report: watch::Sender<Option<ShutdownReport>>,
}

impl Core {
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(crate) fn arbiter(&self, at: usize) -> &ArbiterHandle {
        &self.arbiters[at]
    }

    pub(crate) fn read(&self) -> std::sync::RwLockReadGuard<'_, HashMap<Arc<str>, Arc<dyn AnyMailbox>>> {
        self.actors.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn lock_failed(&self) -> MutexGuard<'_, VecDeque<FailedActor>> {
        self.failed.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// The actors of a stage, or all.
    pub(crate) fn actors_of(&self, stage: Option<Stage>) -> Vec<Arc<dyn AnyMailbox>> {
        let actors = self.read();
        actors
            .values()
            .filter(|each| stage.is_none_or(|stage| each.about().stage == stage))
            .cloned()
            .collect()
    }

    /// `true` for the first who begins to close the system.
    pub(crate) fn close(&self) -> bool {
        // With the lock that `spawn` holds: every actor is either in the registry or refused.
        let _actors = self.actors.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        !self.closing.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn stop_because(self: &Arc<Self>, cause: String) {
        self.begin_shutdown(DEFAULT_DEADLINE, Some(cause));
    }

    pub(crate) fn seed_of(&self, name: &str, incarnation: u64) -> u64 {
        // FNV-1a spreads the names; the generator does the rest.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        fastrand::Rng::with_seed(hash ^ self.seed.rotate_left(17) ^ incarnation).u64(..)
    }

    /// Tells the readers of events, if there are any.
    pub(crate) fn publish(&self, event: impl FnOnce() -> SystemEvent) {
        if self.events.receiver_count() > 0 {
            // It fails only when the last reader has just gone.
            let _ = self.events.send(event());
        }
    }

    pub(crate) fn place(&self, place: &Place) -> usize {
        let beside = match place {
            Place::Arbiter(at) => return at % self.arbiters.len(),
            Place::Beside(name) => self.read().get(name.as_str()).map(|found| found.about().arbiter),
            Place::Spread => None,
        };
        beside.unwrap_or_else(|| {
            let least = self.loads.iter().enumerate().min_by_key(|(_, load)| load.load(Ordering::Relaxed));
            least.map_or(0, |(at, _)| at)
        })
    }

    /// An actor has ended for good: its name is free.
    pub(crate) fn ended(&self, mailbox: &dyn AnyMailbox, exit: &Exit) {
        let about = mailbox.about();
        self.loads[about.arbiter].fetch_sub(1, Ordering::Relaxed);
        if let Exit::Failed { text, restarts } = exit {
            let mut failed = self.lock_failed();
            failed.retain(|each| each.actor != about.name);
            if failed.len() == MAX_FAILED {
                failed.pop_front();
            }
            failed.push_back(FailedActor {
                actor: Arc::clone(&about.name),
                text: Arc::clone(text),
                restarts: *restarts,
            });
        }
        let mut actors = self.actors.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        about.metrics.handled(mailbox.handled());
        actors.remove(&about.name);
    }

    /// How many actors there are, and what those of each label add up to. Under the lock that `ended` takes, so that
    /// an actor that ends meanwhile is counted once.
    pub(crate) fn tally(&self) -> (u64, BTreeMap<*const LabelMetrics, Tally>) {
        let actors = self.read();
        let mut tallies = BTreeMap::<_, Tally>::new();
        for mailbox in actors.values() {
            let tally = tallies.entry(Arc::as_ptr(&mailbox.about().metrics)).or_default();
            tally.waiting += mailbox.depth() as u64;
            tally.handled += mailbox.handled();
        }
        (actors.len() as u64, tallies)
    }
}
