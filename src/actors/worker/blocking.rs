//! Workers whose code blocks its thread: each runs on a thread of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::{Outcome, StopReason, TaskWorker, WorkerContext, WorkerError};
use crate::actors::error::panic_text;

/// Work that computes or calls blocking code.
///
/// A thread cannot be ended from outside. Work that has not ended within the grace period after it was asked to stop is
/// given up: the task ends as if it had stopped, a warning is logged, and nothing that the thread says counts any more.
/// Work that must be ended whatever it does runs as a program: [`Command`](super::command::Command).
///
/// There is `run` and nothing else. The hooks (`before`, `update`, `after`, `on_error`, `release`) are those of the async
/// [`TaskWorker`]. A worker that needs them and blocks is a `TaskWorker` that hands its blocking parts to
/// [`ActorSystem::run_blocking`](crate::actors::ActorSystem::run_blocking), which it gets where its class is registered:
///
/// ```
/// use skalds::actors::ActorSystem;
/// use skalds::actors::worker::{Outcome, TaskWorker, WorkerClasses, WorkerContext, WorkerError};
///
/// struct Index { system: ActorSystem, entries: u64 }
///
/// #[async_trait::async_trait]
/// impl TaskWorker for Index {
///     async fn before(&mut self, _: &WorkerContext) -> Result<(), WorkerError> {
///         self.entries = self.system.run_blocking(|| 1_000).await?; // opens a file
///         Ok(())
///     }
///
///     async fn run(&self, ctx: &WorkerContext) -> Result<Outcome, WorkerError> {
///         let (entries, stop) = (self.entries, ctx.clone());
///         let sum = self.system.run_blocking(move || {
///             // A thread sees the cancel, too, if it looks; dropped or not, the code runs to its end.
///             (0..entries).take_while(|_| !stop.is_cancelled()).sum::<u64>()
///         });
///         Outcome::with(&sum.await?)
///     }
/// }
///
/// fn register(classes: &mut WorkerClasses, system: &ActorSystem) {
///     let system = system.clone();
///     classes.register_with("Index", move |_| Ok(Index { system: system.clone(), entries: 0 }));
/// }
/// ```
///
/// The threads of `run_blocking` are a bounded pool that the whole system shares; a `BlockingTaskWorker` has one of its own.
pub trait BlockingTaskWorker: Send + 'static {
    /// The work, from first to last. What it took is given back by its `Drop`.
    fn run(&mut self, ctx: &BlockingContext) -> Result<Outcome, WorkerError>;
}

/// A blocking worker's side of its task.
#[derive(Debug, Clone)]
pub struct BlockingContext {
    ctx: WorkerContext,
    runtime: Handle,
}

impl BlockingContext {
    /// Everything that does not wait.
    pub fn context(&self) -> &WorkerContext {
        &self.ctx
    }

    /// Why the worker is to stop, once it is.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.ctx.stop_reason()
    }

    /// Whether the worker is to stop. Ask often.
    pub fn is_cancelled(&self) -> bool {
        self.ctx.is_cancelled()
    }

    /// Waits this long, or until the worker is to stop; says whether it is.
    pub fn wait(&self, duration: Duration) -> bool {
        self.runtime.block_on(async {
            tokio::select! {
                _ = self.ctx.cancelled() => true,
                () = self.ctx.held.clock().sleep(duration) => false,
            }
        })
    }

    /// As [`WorkerContext::paused`].
    pub fn paused(&self) {
        self.runtime.block_on(self.ctx.paused());
    }

    /// As [`WorkerContext::progress`].
    pub fn progress(&self, value: f64, text: impl Into<String>) {
        self.ctx.progress(value, text);
    }

    /// As [`WorkerContext::attachments_as`].
    pub fn attachments_as<T: DeserializeOwned>(&self) -> Result<T, WorkerError> {
        self.ctx.attachments_as()
    }

    /// As [`WorkerContext::checkpoint`].
    pub fn checkpoint(&self, data: &impl Serialize) -> Result<(), WorkerError> {
        let data = serde_json::to_value(data)?;
        self.runtime.block_on(self.ctx.checkpoint(&data))
    }

    /// As [`WorkerContext::last_checkpoint`].
    pub fn last_checkpoint<T: DeserializeOwned>(&self) -> Result<Option<T>, WorkerError> {
        self.runtime.block_on(self.ctx.last_checkpoint())
    }
}

/// Makes a [`TaskWorker`] of a blocking one.
pub(super) struct Blocking<W> {
    /// Taken when it runs. The lock makes it `Sync`; nobody waits for it.
    worker: Mutex<Option<W>>,
}

impl<W> Blocking<W> {
    pub(super) fn new(worker: W) -> Self {
        Blocking { worker: Mutex::new(Some(worker)) }
    }
}

#[async_trait]
impl<W: BlockingTaskWorker> TaskWorker for Blocking<W> {
    async fn run(&self, ctx: &WorkerContext) -> Result<Outcome, WorkerError> {
        let worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut worker) = worker else {
            return Err(WorkerError::permanent("a blocking worker was run twice")); // cannot happen: a worker runs once
        };
        let blocking = BlockingContext { ctx: ctx.clone(), runtime: Handle::current() };
        let (report, reported) = oneshot::channel();
        let work = move || {
            let result = catch_unwind(AssertUnwindSafe(|| {
                let result = worker.run(&blocking);
                drop(worker); // what it gives back may panic too
                result
            }));
            let result = result.unwrap_or_else(|payload| {
                Err(WorkerError::new(format!("the worker panicked: {}", panic_text(&*payload))))
            });
            // Nobody listens to a thread that was given up.
            let _ = report.send(result);
        };
        std::thread::Builder::new().name("skalds-worker".into()).spawn(work)?;
        match reported.await {
            Ok(result) => result,
            Err(_) => Err(WorkerError::new("the worker's thread ended without a word")),
        }
    }
}
