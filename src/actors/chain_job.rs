//! The worker class `ChainJob`: a chain job is a task, whose attachments are the job.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use serde_json::{Map, Value, json};

use super::coordinator::{JobMetrics, JobOptions, JobProgress, JobRun, JobStore};
use super::worker::{Outcome, StopReason, TaskWorker, WorkerClasses, WorkerContext, WorkerError};
use super::{ActorSystem, JobPhase};
use crate::chain::report::JobReport;
use crate::chain::request::JobRequest;
use crate::config::secret::Secret;
use crate::core::task::LifecycleStatus;
use crate::node::{NativeJobs, RedisAccess};

/// The class's name.
pub const CHAIN_JOB: &str = "ChainJob";

/// What every chain job of a Skald shares.
#[derive(Debug, Clone)]
pub struct ChainJobs {
    /// Coordinators and the agents of direct mode are spawned here.
    pub system: ActorSystem,
    /// Where jobs are kept, so that they go on after a crash.
    pub store: Option<JobStore>,
    /// Where the outboxes of direct mode live, one directory a job. `None`: in memory.
    pub direct_dir: Option<PathBuf>,
    /// Rust jobs that this process can run.
    pub natives: NativeJobs,
    /// The user that jobs connect as; attachments name only addresses, because they are stored and shown.
    pub username: Option<String>,
    /// Its password.
    pub password: Option<Secret>,
}

impl ChainJobs {
    /// Adds the class to those of a Skald.
    pub fn register(self, classes: &mut WorkerClasses) {
        let metrics = JobMetrics::register(&self.system);
        classes.register_with(CHAIN_JOB, move |map| ChainJobWorker::new(map, self.clone(), metrics.clone()));
        classes.set_works_outside(CHAIN_JOB); // its agents go on when its coordinator is gone
    }
}

/// The worker of one job.
struct ChainJobWorker {
    request: JobRequest,
    jobs: ChainJobs,
    metrics: JobMetrics,
    /// The job has its report: nothing of it goes on.
    over: AtomicBool,
}

impl ChainJobWorker {
    fn new(map: &Map<String, Value>, jobs: ChainJobs, metrics: JobMetrics) -> Result<Self, WorkerError> {
        let permanent =
            |error: String| WorkerError::permanent(format!("attachments of a {CHAIN_JOB}: {error}"));
        let request: JobRequest = serde_json::from_value(Value::Object(map.clone()))
            .map_err(|error| permanent(error.to_string()))?;
        Ok(ChainJobWorker { request, jobs, metrics, over: AtomicBool::new(false) })
    }

    fn options(&self, ctx: &WorkerContext) -> Result<JobOptions, WorkerError> {
        let (mut access, seeds) = RedisAccess::from_urls(&self.request.redis)
            .map_err(|error| WorkerError::permanent(error.to_string()))?;
        access.username.clone_from(&self.jobs.username);
        access.password.clone_from(&self.jobs.password);
        let mut options = JobOptions::new(seeds, access);
        options.natives = self.jobs.natives.clone();
        options.store.clone_from(&self.jobs.store);
        options.direct_dir = self.jobs.direct_dir.as_ref().map(|dir| dir.join(ctx.task_id()));
        options.incarnation = ctx.incarnation();
        options.metrics = Some(self.metrics.clone());
        Ok(options)
    }
}

#[async_trait]
impl TaskWorker for ChainJobWorker {
    async fn run(&self, ctx: &WorkerContext) -> Result<Outcome, WorkerError> {
        let mut request = self.request.clone();
        request.job.id = ctx.task_id().to_owned();
        request.check().map_err(|error| WorkerError::permanent(error.to_string()))?;
        let mut run = JobRun::start(&self.jobs.system, request.job, self.options(ctx)?)?;
        let mut progress = run.progress();
        let mut told = false;
        loop {
            tokio::select! {
                report = run.report() => {
                    let report = report?;
                    self.over.store(true, Ordering::Release);
                    return ended(ctx, report).await;
                }
                Ok(()) = progress.changed() => {
                    let now = progress.borrow_and_update().clone();
                    ctx.progress(share(&now), text(&now));
                }
                reason = ctx.cancelled(), if !told => match reason {
                    StopReason::Cancelled | StopReason::DeadlinePassed => {
                        told = true;
                        run.cancel();
                    }
                    // The job is kept, and its agents go on: whoever holds the task next attaches to it.
                    _ => {
                        run.leave().await;
                        return Ok(Outcome::Stopped);
                    }
                },
            }
        }
    }

    async fn release(&mut self, ctx: &WorkerContext) {
        // Somebody else goes on with the job, or ends it.
        let over = match ctx.stop_reason() {
            Some(StopReason::Draining | StopReason::Lost) => false,
            Some(_) => self.over.load(Ordering::Acquire),
            None => true,
        };
        if let (true, Some(store)) = (over, &self.jobs.store)
            && let Err(error) = store.forget(ctx.task_id())
        {
            tracing::warn!(job = ctx.task_id(), %error, "the record of a job that is over stays in the store");
        }
    }
}

/// A job that did not finish well keeps its report as the task's checkpoint: a task has a result only when it is done.
async fn ended(ctx: &WorkerContext, report: JobReport) -> Result<Outcome, WorkerError> {
    let reason = report.error.clone().unwrap_or_else(|| "the job did not finish".into());
    match report.status {
        LifecycleStatus::Finished => Outcome::with(&report),
        LifecycleStatus::Cancelled => {
            // The task may be over by now, and then nothing more is stored for it.
            if let Err(error) = ctx.checkpoint(&json!({ "report": report })).await {
                tracing::debug!(job = ctx.task_id(), %error, "the report of a cancelled job is not kept");
            }
            Ok(Outcome::Stopped)
        }
        _ => {
            ctx.checkpoint(&json!({ "report": report })).await?;
            Err(WorkerError::permanent(reason))
        }
    }
}

fn share(progress: &JobProgress) -> f64 {
    match progress.units_total {
        Some(total) if total > 0 => progress.units_done as f64 / total as f64,
        _ => 0.0,
    }
}

fn text(progress: &JobProgress) -> String {
    let doing = match progress.phase {
        JobPhase::Planning => "planning".to_owned(),
        JobPhase::Running => format!("at {}", progress.at.join(", ")),
        JobPhase::Ending => "ending".to_owned(),
    };
    format!("{} keys, {doing}", progress.tally.visited)
}
