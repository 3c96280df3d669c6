//! Setting a Skald up.

use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::Skald;
use super::actor::SkaldActor;
use super::core::{SkaldCore, Timing};
use crate::actors::error::ActorError;
use crate::actors::notice::Notices;
use crate::actors::spec::{Escalation, Place, Spec, Stage};
use crate::actors::system::ActorSystem;
use crate::actors::tasks::Tasks;
use crate::actors::worker::{BlockingTaskWorker, TaskWorker, WorkerClasses, WorkerError};
use crate::backend::{BackendError, Backends};
use crate::config::env::{Environment, SkaldMode, made_up_id};
use crate::config::workers_file::WorkerEntry;
use crate::core::names::{NameError, check_name};
use crate::core::policy::Retry;

/// Why a Skald could not be started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SkaldError {
    /// Its id cannot be used.
    #[error(transparent)]
    Name(#[from] NameError),
    /// It could not be spawned; another actor of the system may have its name.
    #[error("the skald could not be started: {0}")]
    Actor(#[from] ActorError),
    /// The embedded backends could not be made.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// An edge or single-process Skald has nothing to run.
    #[error("a skald in mode {mode} runs what its workers file lists, and it lists nothing")]
    NoWorkers {
        /// The mode.
        mode: &'static str,
    },
    /// A worker of its file is of a class that it does not have, and nobody else would run it.
    #[error("{task}: there is no worker class {class:?}; known here: {}", known.join(", "))]
    UnknownClass {
        /// The entry.
        task: String,
        /// The class that it names.
        class: String,
        /// All classes of the Skald, sorted.
        known: Vec<String>,
    },
}

/// See [`Skald::builder`].
#[derive(Debug)]
pub struct SkaldBuilder {
    id: Option<String>,
    mode: SkaldMode,
    backends: Option<Backends>,
    classes: WorkerClasses,
    capacity: u32,
    retry: Retry,
    timing: Timing,
    workers: Vec<(String, WorkerEntry)>,
}

impl Default for SkaldBuilder {
    fn default() -> Self {
        SkaldBuilder {
            id: None,
            mode: SkaldMode::Node,
            backends: None,
            classes: WorkerClasses::default(),
            capacity: 1_000,
            retry: Retry::default(),
            timing: Timing::default(),
            workers: Vec::new(),
        }
    }
}

impl SkaldBuilder {
    /// Its id; `skalds-` and five hex digits unless said otherwise. Two Skalds of a fleet must not share one.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// What it runs; what a controller assigns to it, unless said otherwise.
    pub fn mode(mut self, mode: SkaldMode) -> Self {
        self.mode = mode;
        self
    }

    /// Where tasks, events and hot state are. Unless said otherwise: in this process, and gone with it.
    pub fn backends(mut self, backends: Backends) -> Self {
        self.backends = Some(backends);
        self
    }

    /// Registers a class whose workers are read from the attachments; see [`WorkerClasses::register`].
    pub fn register<W: TaskWorker + DeserializeOwned>(mut self, name: impl Into<String>) -> Self {
        self.classes.register::<W>(name);
        self
    }

    /// Registers a class whose workers are made by a function.
    pub fn register_with<W: TaskWorker>(
        mut self,
        name: impl Into<String>,
        make: impl Fn(&Map<String, Value>) -> Result<W, WorkerError> + Send + Sync + 'static,
    ) -> Self {
        self.classes.register_with(name, make);
        self
    }

    /// Registers a class whose workers block their thread.
    pub fn register_blocking<W: BlockingTaskWorker + DeserializeOwned>(
        mut self,
        name: impl Into<String>,
    ) -> Self {
        self.classes.register_blocking::<W>(name);
        self
    }

    /// Uses these classes and those registered after.
    pub fn classes(mut self, classes: WorkerClasses) -> Self {
        self.classes = classes;
        self
    }

    /// How many tasks it holds at most (1,000 unless said otherwise).
    pub fn capacity(mut self, tasks: u32) -> Self {
        self.capacity = tasks;
        self
    }

    /// How failed attempts of its tasks are tried again.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// How long a worker has to stop once it was asked to (5 s unless said otherwise).
    pub fn grace(mut self, grace: Duration) -> Self {
        self.timing.grace = grace;
        self
    }

    /// How long running work may go on when the Skald drains, before it is asked to stop (5 s unless said otherwise).
    pub fn drain_time(mut self, time: Duration) -> Self {
        self.timing.drain = time;
        self
    }

    /// How often the heartbeats of its tasks are written (every second unless said otherwise).
    pub fn beat_period(mut self, period: Duration) -> Self {
        self.timing.beat = period;
        self
    }

    /// `REDIS_SYNC_PERIOD`: how often it says what it runs, and looks in storage for what an event should have told it
    /// (3 s unless said otherwise). Told that it has missed events, it looks at once, whatever this says.
    pub fn sync_period(mut self, period: Duration) -> Self {
        self.timing.sync = period;
        self
    }

    /// `REDIS_KEY_TTL`: how long keys live that are not heartbeats (one hour unless said otherwise).
    pub fn key_ttl(mut self, ttl: Duration) -> Self {
        self.timing.key_ttl = ttl;
        self
    }

    /// Id, mode, retries, `REDIS_SYNC_PERIOD` and `REDIS_KEY_TTL` from the environment.
    pub fn settings(self, environment: &Environment) -> Self {
        self.id(&environment.skald.id)
            .mode(environment.skald.mode)
            .retry(Retry::with_retries(environment.skald.task_worker_retry))
            .sync_period(environment.redis.sync_period)
            .key_ttl(environment.redis.key_ttl)
    }

    /// The workers of an edge or single-process Skald; see [`crate::config::workers_file`].
    pub fn workers(mut self, workers: Vec<(String, WorkerEntry)>) -> Self {
        self.workers = workers;
        self
    }

    /// Refuses the first of these workers whose class the Skald does not have, as [`start`](Self::start) does with its own.
    pub fn check_classes<'a>(
        &self,
        workers: impl IntoIterator<Item = &'a (String, WorkerEntry)>,
    ) -> Result<(), SkaldError> {
        check_classes(&self.classes, workers)
    }

    /// Starts it. It connects by itself, and again when a service comes back; see [`Skald::ready`].
    pub fn start(self, system: &ActorSystem) -> Result<Skald, SkaldError> {
        if self.mode != SkaldMode::Node && self.workers.is_empty() {
            return Err(SkaldError::NoWorkers { mode: self.mode.word() });
        }
        self.check_classes(match self.mode {
            SkaldMode::Node => &[],
            SkaldMode::Edge => &self.workers[..],
            SkaldMode::SingleProcess => &self.workers[..1], // the others are not run
        })?;
        let mut id = self.id.unwrap_or_else(made_up_id);
        check_name("skald id", &id)?;
        if self.mode == SkaldMode::SingleProcess {
            id = format!("[SP]{id}"); // as the Python package does
        }
        let backends = match self.backends {
            Some(backends) => backends,
            None => Backends::in_memory()?,
        };
        let notices = Arc::<Notices>::default();
        let tasks = Tasks {
            storage: Arc::clone(&backends.storage),
            notices: Arc::clone(&notices),
            retry: Arc::new(self.retry),
            clock: system.clock(),
            term: None,
        };
        let core = Arc::new(SkaldCore::new(
            id.clone(),
            self.mode,
            backends,
            self.classes,
            self.capacity,
            tasks,
            self.timing,
            self.workers,
            ActorSystem::inner(system.core()),
        ));
        let made = Arc::clone(&core);
        let spec = Spec::with_scope(format!("skald/{id}"), move |scope| {
            SkaldActor::new(Arc::clone(&made), scope.me)
        })
        .label("skald")
        // Worker code that blocks its arbiter must not stop the heartbeats; see `SkaldCore::place`.
        .place(Place::Arbiter(0))
        .stage(Stage::Intake)
        .escalation(Escalation::MarkFailed)
        .drain_hook();
        let actor = system.spawn(spec)?;
        Ok(Skald { core, actor })
    }
}

pub(super) fn check_classes<'a>(
    classes: &WorkerClasses,
    workers: impl IntoIterator<Item = &'a (String, WorkerEntry)>,
) -> Result<(), SkaldError> {
    match workers.into_iter().find(|(_, worker)| !classes.has(&worker.class_name)) {
        Some((task, worker)) => Err(SkaldError::UnknownClass {
            task: task.clone(),
            class: worker.class_name.clone(),
            known: classes.names().map(str::to_owned).collect(),
        }),
        None => Ok(()),
    }
}
