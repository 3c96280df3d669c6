//! A controller and Skalds in one process, and waiting for what they do.

use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use skalds::actors::ActorSystem;
use skalds::actors::controller::{ControllerBuilder, SystemController};
use skalds::actors::skald::{Skald, SkaldBuilder};
use skalds::backend::Backends;
use skalds::core::policy::Retry;
use skalds::core::submission::NewTask;
use skalds::core::task::{LifecycleStatus, Task};

/// How long a test waits for what must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct House {
    pub(crate) system: ActorSystem,
    pub(crate) backends: Backends,
    pub(crate) controller: SystemController,
}

/// Retries after 20 ms, for ever.
pub(crate) fn fast_retry() -> Retry {
    Retry { first: 20, cap: 40, ..Retry::default() }
}

pub(crate) fn controller(backends: &Backends) -> ControllerBuilder {
    let often = Duration::from_millis(200);
    SystemController::builder().backends(backends.clone()).retry(fast_retry()).intervals(often, often, often)
}

impl House {
    pub(crate) fn new() -> Self {
        House::with(controller)
    }

    pub(crate) fn with(controller: impl FnOnce(&Backends) -> ControllerBuilder) -> Self {
        let system = ActorSystem::builder().arbiters(3).start().expect("a system");
        let backends = Backends::in_memory().expect("backends");
        let controller = controller(&backends).start(&system).expect("a controller");
        House { system, backends, controller }
    }

    /// A Skald that is set up for tests: short waits.
    pub(crate) fn skald(&self, id: &str) -> SkaldBuilder {
        Skald::builder()
            .id(id)
            .backends(self.backends.clone())
            .retry(fast_retry())
            .grace(Duration::from_millis(500))
            .drain_time(Duration::from_millis(500))
            .sync_period(Duration::from_millis(300))
    }

    pub(crate) async fn run(&self, builder: SkaldBuilder) -> Skald {
        let skald = builder.start(&self.system).expect("a skald");
        skald.ready().await;
        skald
    }

    pub(crate) async fn submit(&self, task: NewTask) -> Task {
        self.controller.submit(task).await.expect("the task is taken")
    }

    pub(crate) async fn get(&self, id: &str) -> Task {
        self.controller.get(id).await.expect("the task is there")
    }

    /// Waits until the task has this status.
    pub(crate) async fn becomes(&self, id: &str, status: LifecycleStatus) -> Task {
        self.until(id, |task| task.lifecycle_status == status).await
    }

    pub(crate) async fn until(&self, id: &str, wanted: impl Fn(&Task) -> bool) -> Task {
        let start = Instant::now();
        loop {
            let task = self.get(id).await;
            if wanted(&task) {
                return task;
            }
            assert!(start.elapsed() < PATIENCE, "task {id} does not come to what is wanted: {task:?}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// Waits until a condition holds.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < PATIENCE, "it never came: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Counts what workers do.
pub(crate) struct Counter(AtomicU32);

impl Counter {
    pub(crate) const fn new() -> Self {
        Counter(AtomicU32::new(0))
    }

    /// One more; says how many there are then.
    pub(crate) fn count(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn get(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}
