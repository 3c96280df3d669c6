//! The coordinator: the actor that owns one chain job, from its first plan to its report.
//!
//! | file | answers |
//! | --- | --- |
//! | `actor.rs` | how the rules of [`crate::chain::run`] meet the links, the planner and the store |
//! | `markers.rs` | what a write job that has finished leaves behind |
//! | `metrics.rs` | what jobs are counted as |
//! | `peers.rs` | which agents are connected, and which have been away too long |
//! | `planning.rs` | how a look at the cluster becomes chains |
//! | `result.rs` | how what was folded becomes a report |
//! | `store.rs` | what is kept of a job so that another process can go on with it |

mod actor;
mod markers;
mod metrics;
mod peers;
mod planning;
mod result;
mod store;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use self::actor::{CoordinatorActor, CoordinatorInput, Task};
pub use self::metrics::JobMetrics;
pub use self::planning::explain;
pub use self::store::{JobStore, JobStoreError};
use crate::actors::{ActorError, ActorRef, ActorSystem, Restart, Spec, Stage};
use crate::chain::job::JobSpec;
use crate::chain::plan::Explanation;
use crate::chain::report::JobReport;
use crate::chain::state::Tally;
use crate::node::{NativeJobs, RedisAccess};

/// What a coordinator needs to run a job.
#[derive(Debug, Clone)]
pub struct JobOptions {
    /// Nodes of the cluster, `host:port`; one that answers is enough.
    pub seeds: Vec<String>,
    /// How to reach the nodes.
    pub access: RedisAccess,
    /// Rust jobs that the coordinator's own process can run, in direct mode.
    pub natives: NativeJobs,
    /// Where the job is kept, so that it goes on after a crash. `None`: it ends with the process.
    pub store: Option<JobStore>,
    /// Where the outbox of direct mode lives. `None`: what it does is kept in memory.
    pub direct_dir: Option<PathBuf>,
    /// Raised whenever another coordinator takes the job over: agents listen to the highest.
    pub incarnation: u64,
    /// How long an agent may be away before its part of the job is planned without it.
    pub agent_timeout: Duration,
    /// Where the job is counted when it is over.
    pub metrics: Option<JobMetrics>,
}

impl JobOptions {
    /// The defaults: in memory, first incarnation, an agent may be away for five seconds.
    pub fn new(seeds: Vec<String>, access: RedisAccess) -> Self {
        JobOptions {
            seeds,
            access,
            natives: NativeJobs::default(),
            store: None,
            direct_dir: None,
            incarnation: 1,
            agent_timeout: Duration::from_secs(5),
            metrics: None,
        }
    }
}

/// Where a job is.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct JobProgress {
    /// For people: what is being done.
    pub phase: JobPhase,
    /// The plan's number.
    pub epoch: u32,
    /// Units done.
    pub units_done: u64,
    /// Units in all, where that is known.
    pub units_total: Option<u64>,
    /// Keys so far.
    pub tally: Tally,
    /// The nodes at work, by address.
    pub at: Vec<String>,
    /// The plan of the current epoch, and why.
    pub plan: Option<Arc<Explanation>>,
}

/// What a coordinator is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum JobPhase {
    /// Looking at the cluster and planning.
    #[default]
    Planning,
    /// Chains are under way.
    Running,
    /// Folding what came back, telling the agents that it is over.
    Ending,
}

/// A job under way.
#[derive(Debug)]
pub struct JobRun {
    actor: ActorRef<CoordinatorActor>,
    progress: watch::Receiver<JobProgress>,
    report: watch::Receiver<Option<JobReport>>,
}

impl JobRun {
    /// Starts a job, or goes on with one that the store holds under the same id.
    ///
    /// # Errors
    /// When the system does not take another actor, or one with the job's id runs already.
    pub fn start(system: &ActorSystem, job: JobSpec, options: JobOptions) -> Result<Self, ActorError> {
        let (progress_in, progress) = watch::channel(JobProgress::default());
        let (report_in, report) = watch::channel(None);
        let name = format!("coordinator {}", job.id);
        let task = Arc::new(Task { job: Arc::new(job), options, progress: progress_in, report: report_in });
        let spec = Spec::with_scope(name, move |scope| CoordinatorActor::new(Arc::clone(&task), scope))
            .label("coordinator")
            .mailbox(1024)
            .stage(Stage::Work)
            // It starts again from its store; without one a second start would begin the job again.
            .restart(Restart::never());
        Ok(JobRun { actor: system.spawn(spec)?, progress, report })
    }

    /// Where the job is; changes are seen without being asked for.
    pub fn progress(&self) -> watch::Receiver<JobProgress> {
        self.progress.clone()
    }

    /// Ends the job as cancelled. Final once [`JobRun::report`] says so: no effect of it follows.
    pub fn cancel(&self) {
        // A full control lane or an actor that has ended: the job is over, or will hear of it from its task.
        if let Err(error) = self.actor.control(CoordinatorInput::Cancel) {
            tracing::debug!(%error, "the job could not be told to end");
        }
    }

    /// Ends the coordinator and leaves the job: agents go on with what they hold, and whoever starts it again with the
    /// same store attaches to it.
    pub async fn leave(&self) {
        self.actor.stop();
        self.actor.ended().await;
    }

    /// The job's report, when it is over.
    ///
    /// # Errors
    /// When the coordinator ended without one: it panicked, or the system was shut down. What the store holds can be
    /// gone on with.
    pub async fn report(&mut self) -> Result<JobReport, ActorError> {
        let ended = self.actor.ended();
        tokio::select! {
            biased;
            report = self.report.wait_for(Option::is_some) => {
                if let Ok(Some(report)) = report.as_deref() {
                    return Ok(report.clone());
                }
            }
            _ = ended => {}
        }
        match self.report.borrow().clone() {
            Some(report) => Ok(report),
            None => Err(ActorError::Closed { actor: Arc::clone(self.actor.name()) }),
        }
    }
}
