//! The actor that runs one worker, from its start to its stored outcome.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use actix::{Actor, ActorContext, ActorFutureExt, AsyncContext, Context, WrapFuture};
use futures_util::FutureExt;

use super::held::{Held, is_stale};
use super::{Outcome, StopReason, TaskWorker, WorkerContext, WorkerError};
use crate::actors::error::panic_text;
use crate::actors::tasks::TaskError;
use crate::core::lease::Heartbeat;
use crate::core::lifecycle::Change;
use crate::core::submission::{MAX_RESULT, check_size};
use crate::core::task::{LifecycleStatus, Task};

/// How often progress is stored at most.
const PROGRESS_PERIOD: Duration = Duration::from_millis(500);

/// What the actor tells its Skald at the end.
#[derive(Debug)]
pub(crate) struct WorkerEnd {
    /// The last heartbeat; `None`: the key is to be removed, or is somebody else's by now.
    pub(crate) heartbeat: Option<Heartbeat>,
    /// What is shown as the task's exception.
    pub(crate) exception: Option<String>,
    /// The document that was written; `None` when somebody else holds the task or it is gone.
    pub(crate) task: Option<Task>,
}

/// How the work ended, before it is stored.
enum Ending {
    Done(Option<serde_json::Value>),
    /// It ended when it was asked to.
    Stopped,
    /// It did not, and was dropped.
    Dropped,
    Failed(WorkerError),
}

type Told = Box<dyn FnOnce(WorkerEnd) + Send>;

/// Runs one worker.
pub(crate) struct WorkerActor {
    held: Arc<Held>,
    work: Option<(Box<dyn TaskWorker>, Told)>,
    grace: Duration,
}

impl WorkerActor {
    /// `told` is called when the outcome is stored.
    pub(crate) fn new(
        held: Arc<Held>,
        worker: Box<dyn TaskWorker>,
        grace: Duration,
        told: impl FnOnce(WorkerEnd) + Send + 'static,
    ) -> Self {
        WorkerActor { held, work: Some((worker, Box::new(told))), grace }
    }

    /// One without work, which ends at once.
    pub(crate) fn spent(held: Arc<Held>) -> Self {
        WorkerActor { held, work: None, grace: Duration::ZERO }
    }
}

impl Actor for WorkerActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let Some((worker, told)) = self.work.take() else { return ctx.stop() };
        let (held, grace) = (Arc::clone(&self.held), self.grace);
        let life = async move {
            let ending = work(worker, &held, grace).await;
            held.close();
            told(Box::pin(settle(&held, ending)).await);
        };
        ctx.spawn(life.into_actor(self).map(|(), _, ctx| ctx.stop()));
    }
}

/// The work itself, with progress stored beside it.
async fn work(mut worker: Box<dyn TaskWorker>, held: &Arc<Held>, grace: Duration) -> Ending {
    let ctx = WorkerContext::new(Arc::clone(held), grace);
    let live = AssertUnwindSafe(live(&mut *worker, &ctx)).catch_unwind();
    let mut dropped = false;
    let result = tokio::select! {
        biased;
        result = live => result,
        () = store_progress(held) => Ok(Err(WorkerError::new("progress ended"))), // it never does
        () = stopped_for(&ctx, grace) => {
            tracing::warn!(task = held.id(), ?grace, "the worker did not stop in time; its work is dropped");
            dropped = true;
            Ok(Ok(Outcome::Stopped))
        }
    };
    let ending = match result {
        Ok(Ok(Outcome::Finished(result))) => match check_size("result", &result, MAX_RESULT) {
            Ok(()) => Ending::Done(result),
            Err(error) => Ending::Failed(WorkerError::permanent(error.to_string())),
        },
        Ok(Ok(Outcome::Stopped)) if dropped => Ending::Dropped,
        Ok(Ok(Outcome::Stopped)) => Ending::Stopped,
        // It has not ended what it should have ended.
        Ok(Err(_)) if ctx.is_cancelled() && held.works_outside() => Ending::Dropped,
        // What a worker says when it was asked to stop is that it stopped.
        Ok(Err(_)) if ctx.is_cancelled() => Ending::Stopped,
        Ok(Err(error)) => Ending::Failed(error),
        Err(payload) => {
            let text = panic_text(&*payload);
            // The worker's state may be broken: it is dropped, and nothing more is asked of it.
            drop_quietly(worker, held.id());
            return Ending::Failed(WorkerError::new(format!("the worker panicked: {text}")));
        }
    };
    let told_error = match &ending {
        Ending::Failed(error) => Some(error),
        _ => None,
    };
    let farewell = async {
        if let Some(error) = told_error {
            worker.on_error(&ctx, error).await;
        }
        worker.release(&ctx).await;
    };
    let farewell = AssertUnwindSafe(farewell).catch_unwind();
    tokio::select! {
        result = farewell => {
            if let Err(payload) = result {
                tracing::error!(task = held.id(), panic = %panic_text(&*payload), "the worker panicked in its release");
            }
        }
        () = held.clock().sleep(grace.max(Duration::from_secs(1))) => {
            tracing::warn!(task = held.id(), "the worker's release took too long and was dropped");
        }
    }
    drop_quietly(worker, held.id());
    ending
}

async fn live(worker: &mut dyn TaskWorker, ctx: &WorkerContext) -> Result<Outcome, WorkerError> {
    worker.before(ctx).await?;
    let outcome = {
        let worker = &*worker;
        tokio::select! {
            biased;
            outcome = worker.run(ctx) => outcome?,
            never = pass_updates(worker, ctx) => match never {},
        }
    };
    worker.after(ctx, &outcome).await?;
    Ok(outcome)
}

/// Calls `update` beside `run`.
async fn pass_updates(worker: &dyn TaskWorker, ctx: &WorkerContext) -> std::convert::Infallible {
    let mut orders = ctx.held.orders();
    loop {
        let (version, attachments) = {
            let orders = orders.borrow_and_update();
            (orders.version, Arc::clone(&orders.attachments))
        };
        let listens = ctx.held.listens.load(Ordering::Acquire);
        if !listens
            && ctx.held.given.fetch_max(version, Ordering::AcqRel) < version
            && let Err(error) = worker.update(ctx, &attachments).await
        {
            tracing::warn!(task = ctx.task_id(), %error, "the worker refused an update of its attachments");
            ctx.held.complain(error.text());
        }
        if orders.changed().await.is_err() {
            std::future::pending::<()>().await; // cannot happen: the context keeps the sender
        }
    }
}

/// Is ready when the worker was asked to stop and has had its grace period.
async fn stopped_for(ctx: &WorkerContext, grace: Duration) {
    let reason = ctx.cancelled().await;
    ctx.held.clock().sleep(ctx.held.patience(reason, grace)).await;
}

async fn store_progress(held: &Held) {
    loop {
        held.progressed.notified().await;
        if let Some(progress) = held.take_progress() {
            let note =
                Change::Note { incarnation: held.incarnation(), progress: Some(progress), checkpoint: None };
            if let Err(error) = held.change(&note).await {
                tracing::debug!(task = held.id(), %error, "progress was not stored");
            }
        }
        held.clock().sleep(PROGRESS_PERIOD).await;
    }
}

/// Stores the outcome.
async fn settle(held: &Held, ending: Ending) -> WorkerEnd {
    let incarnation = held.incarnation();
    let gone = WorkerEnd { heartbeat: None, exception: None, task: None };
    if held.stopping() == Some(StopReason::Lost) {
        return gone;
    }
    let (change, exception) = match ending {
        Ending::Done(result) => (Change::Finish { incarnation, result }, None),
        // The task is to be cancelled, and its worker has seen to it.
        Ending::Stopped if held.stopping() == Some(StopReason::Cancelled) => {
            (Change::Finish { incarnation, result: None }, None)
        }
        Ending::Stopped | Ending::Dropped => (Change::Release { incarnation }, None),
        Ending::Failed(error) => (
            Change::Fail { incarnation, error: error.text().to_owned(), retry: !error.is_permanent() },
            Some(error.text().to_owned()),
        ),
    };
    match held.change_at_last(&change).await {
        Ok(task) => {
            let heartbeat = match (task.lifecycle_status, &change) {
                (LifecycleStatus::Cancelled, _) => Some(Heartbeat::Cancelled),
                (_, Change::Finish { .. }) => Some(Heartbeat::Finished),
                (_, Change::Fail { .. }) => Some(Heartbeat::Failed),
                _ => None,
            };
            WorkerEnd { heartbeat, exception, task: Some(task) }
        }
        Err(TaskError::Refused { refused, .. }) if is_stale(&refused) => {
            let reason = held.stopping();
            tracing::info!(task = held.id(), %refused, ?reason, "the outcome of a task was not wanted any more");
            let heartbeat = match reason {
                Some(StopReason::Cancelled) => Some(Heartbeat::Cancelled),
                Some(StopReason::DeadlinePassed) => Some(Heartbeat::Failed),
                _ => None,
            };
            WorkerEnd { heartbeat, ..gone }
        }
        Err(error) => {
            tracing::warn!(task = held.id(), %error, "the outcome of a task was not stored");
            gone
        }
    }
}

/// A worker's `Drop` may panic; it must not take the outcome with it.
fn drop_quietly(worker: Box<dyn TaskWorker>, task: &str) {
    if let Err(payload) = std::panic::catch_unwind(AssertUnwindSafe(|| drop(worker))) {
        tracing::error!(task, panic = %panic_text(&*payload), "the worker panicked while it was dropped");
    }
}
