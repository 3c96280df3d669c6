//! Runs one hop: one bounded call after the other, on one node, until the hop is done, aborted or given up.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::AgentInput;
use super::actor::AgentActor;
use super::crash_point::crash_point;
use crate::actors::ActorRef;
use crate::chain::frame;
use crate::chain::hop::HopInput;
use crate::chain::job::Access;
use crate::chain::state::{HopId, HopReport, JobState, KeyError, MAX_ERRORS, NodeId, PlanNode};
use crate::node::{Advance, NativeJobs, NodeError, RedisAccess, StepRunner, end_script, successor};

/// A running hop is checkpointed when both have passed since the last time: what a crash runs again is bounded, and a
/// hop of few large units does not spend its time on checkpoints.
const CHECKPOINT_UNITS: u64 = 64;
const CHECKPOINT_EVERY: Duration = Duration::from_millis(50);

/// Waits between attempts to reach a node that does not answer.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(1);

/// After so long without an answer the other nodes are asked whether it has been replaced.
const ASK_OTHERS_AFTER: Duration = Duration::from_millis(500);

/// Runners that are kept for a chain's next hop at the same node; the oldest one goes.
const IDLE_RUNNERS: usize = 16;

/// The job, its epoch and the node that a runner was opened for.
type RunnerKey = (String, u32, NodeId);

/// What every hop of an agent needs.
pub(super) struct Tools {
    /// How to reach the nodes.
    pub(super) access: RedisAccess,
    /// Rust jobs by name.
    pub(super) natives: NativeJobs,
    /// The agent's name in hop reports.
    pub(super) name: String,
    /// Connected runners by job, epoch and node. A list in strict order comes back to a node again and again, and
    /// opening a runner takes several round trips.
    idle: Mutex<VecDeque<(RunnerKey, StepRunner)>>,
}

impl Tools {
    pub(super) fn new(access: RedisAccess, natives: NativeJobs, name: String) -> Self {
        Tools { access, natives, name, idle: Mutex::default() }
    }

    fn take(&self, key: &RunnerKey) -> Option<StepRunner> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let at = idle.iter().position(|(kept, _)| kept == key)?;
        idle.remove(at).map(|(_, runner)| runner)
    }

    fn keep(&self, key: RunnerKey, runner: StepRunner) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push_back((key, runner));
        if idle.len() > IDLE_RUNNERS {
            idle.pop_front();
        }
    }
}

impl std::fmt::Debug for Tools {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tools").field("name", &self.name).finish_non_exhaustive()
    }
}

/// One hop under way.
pub(super) struct HopRun {
    hop: HopId,
    state: JobState,
    tools: Arc<Tools>,
    abort: CancellationToken,
    agent: ActorRef<AgentActor>,
    /// A runner whose connection has failed, and goes on with another.
    broken: Option<StepRunner>,
    /// The last call was lost: if a script holds the node now, it is most likely ours.
    lost: bool,
    doubt: Doubt,
}

/// Whether a call of a writing job that was lost may still have an effect.
#[derive(Debug, Clone, Copy, Default)]
struct Doubt {
    /// The node has not answered since: the call may be under way.
    under_way: bool,
    /// If it has not begun by then, the node refuses it as late.
    until: Option<Instant>,
}

/// How a hop's work ended.
enum End {
    Done,
    Aborted,
}

impl HopRun {
    pub(super) fn new(
        hop: HopId,
        state: JobState,
        tools: Arc<Tools>,
        abort: CancellationToken,
        agent: ActorRef<AgentActor>,
    ) -> Self {
        HopRun { hop, state, tools, abort, agent, broken: None, lost: false, doubt: Doubt::default() }
    }

    /// Works the hop off and tells the agent how it ended.
    pub(super) async fn run(mut self) {
        let ended = match self.state.due_node().cloned() {
            Some(node) => self.work(&node).await,
            // A state without a node due is the coordinator's: the machine never asks for it to be run.
            None => End::Done,
        };
        let input = match ended {
            End::Aborted => HopInput::Stopped { hop: self.hop.clone() },
            End::Done => {
                self.finish_report();
                HopInput::Ran { hop: self.hop.clone(), state: Arc::new(self.state) }
            }
        };
        tell(&self.agent, input).await;
    }

    async fn work(&mut self, node: &PlanNode) -> End {
        let timeout = Duration::from_millis(self.state.job.limits.node_timeout_millis.into());
        let mut answered = Instant::now();
        let mut wait = RETRY_MIN;
        let mut attempt = 0;
        loop {
            let error = match self.advance_until_error(node, &mut answered, &mut wait).await {
                Ok(end) => return end,
                Err(error) => error,
            };
            if !error.is_transient() {
                let reason = error.to_string();
                self.state.failed = Some(KeyError { key: Vec::new(), node: node.id.clone(), reason });
                return End::Done;
            }
            let must_stay = self.abort.is_cancelled() && self.doubt.under_way;
            let silent = answered.elapsed();
            if !must_stay && silent >= ASK_OTHERS_AFTER {
                let heir = self.successor(node, attempt).await;
                if heir.is_some() || silent >= timeout {
                    let heir = heir.map(|heir| format!("; {heir} has its slots now")).unwrap_or_default();
                    let reason = format!("{error}{heir}");
                    tracing::warn!(job = %self.hop.job, node = %node.redis, %reason, "leaving the units of a hop open");
                    leave_open(&mut self.state, &reason);
                    return End::Done;
                }
            }
            tracing::debug!(job = %self.hop.job, node = %node.redis, %error, "trying a node again");
            attempt += 1;
            tokio::select! {
                () = self.abort.cancelled(), if !self.doubt.under_way => {
                    self.settle().await;
                    return End::Aborted;
                }
                () = tokio::time::sleep(wait) => wait = (wait * 2).min(RETRY_MAX),
            }
        }
    }

    /// Who has taken over from a node that does not answer.
    async fn successor(&self, node: &PlanNode, turn: usize) -> Option<String> {
        let slot = self.state.due_slot()?;
        successor(node, &self.state.nodes, slot, &self.tools.access, turn).await
    }

    /// Connects, or connects again.
    async fn connect(&mut self, node: &PlanNode, answered: &mut Instant) -> Result<StepRunner, NodeError> {
        let access = &self.tools.access;
        let Some(mut runner) = self.broken.take() else {
            return StepRunner::open(node, &self.state.job, access, &self.tools.natives).await;
        };
        match runner.reopen(access).await {
            Ok(narrowed) => {
                if narrowed {
                    *answered = Instant::now();
                }
                self.doubt.under_way = false; // it answers, so it runs no script
                Ok(runner)
            }
            Err(error) => {
                if self.lost && error.is_busy() {
                    self.end_script(node).await;
                }
                self.doubt.under_way &= !error.says_nobody_listens();
                self.broken = Some(runner);
                Err(error)
            }
        }
    }

    /// Waits until no lost call can have an effect any more.
    async fn settle(&self) {
        if let Some(until) = self.doubt.until {
            tokio::time::sleep_until(until).await;
        }
    }

    async fn end_script(&self, node: &PlanNode) {
        let (job, redis) = (&self.hop.job, &node.redis);
        match end_script(redis, &self.tools.access).await {
            Ok(()) => {
                tracing::warn!(%job, node = %redis, "ended a script that had held the node for too long")
            }
            Err(error) => tracing::warn!(%job, node = %redis, %error, "a script holds the node"),
        }
    }

    async fn advance_until_error(
        &mut self,
        node: &PlanNode,
        answered: &mut Instant,
        wait: &mut Duration,
    ) -> Result<End, NodeError> {
        let key = (self.hop.job.clone(), self.hop.epoch, node.id.clone());
        let mut runner = match self.tools.take(&key) {
            Some(runner) => runner,
            None if self.doubt.under_way => self.connect(node, answered).await?,
            None => {
                let abort = self.abort.clone();
                tokio::select! {
                    () = abort.cancelled() => {
                        self.settle().await;
                        return Ok(End::Aborted);
                    }
                    runner = self.connect(node, answered) => runner?,
                }
            }
        };
        let (mut units, mut checkpointed) = (0u64, Instant::now());
        // A call that has been sent is waited for, also when the hop is to be aborted: its effects must be over
        // before anyone is told that it has stopped.
        while !self.abort.is_cancelled() {
            match runner.advance(&mut self.state).await {
                Ok(Advance::HopDone) => {
                    self.tools.keep(key, runner);
                    return Ok(End::Done);
                }
                Ok(Advance::Working { units: done }) => units += u64::from(done),
                Err(error) => {
                    self.broken = Some(runner);
                    self.lost = matches!(error, NodeError::Lost { .. });
                    if self.lost && self.state.job.access != Access::Read {
                        let until = Some(Instant::now() + self.tools.access.call_timeout);
                        self.doubt = Doubt { under_way: true, until };
                    }
                    return Err(error);
                }
            }
            if units > 0 {
                crash_point("running");
            }
            (*answered, *wait) = (Instant::now(), RETRY_MIN);
            self.doubt.under_way = false;
            if units >= CHECKPOINT_UNITS && checkpointed.elapsed() >= CHECKPOINT_EVERY {
                let state = Arc::new(self.state.clone());
                tell(&self.agent, HopInput::Checkpoint { hop: self.hop.clone(), state }).await;
                (units, checkpointed) = (0, Instant::now());
            }
        }
        self.settle().await;
        Ok(End::Aborted)
    }

    fn finish_report(&mut self) {
        let (hop, epoch) = (self.hop.hop, self.hop.epoch);
        let Ok(sizes) = frame::encode_state(&self.state, &mut Vec::new()) else {
            return; // what cannot be encoded cannot be sent either: the hand-off says so
        };
        // A node that never answered has left no report of this hop.
        let of_this_hop = |report: &&mut HopReport| report.order == hop && report.epoch == epoch;
        if let Some(report) = self.state.reports.last_mut().filter(of_this_hop) {
            report.agent = self.tools.name.clone();
            report.state_bytes = sizes.raw as u64;
            report.state_bytes_compressed = sizes.sent as u64;
        }
    }
}

/// Passes over a node that does not answer. The units stay out of the ledger, so the coordinator plans them again.
fn leave_open(state: &mut JobState, reason: &str) {
    for slot in state.due_slots().iter().take(MAX_ERRORS) {
        state.open.insert(slot, reason.to_owned());
    }
    // A sequence cannot go on behind a gap; everything else can.
    let end = state.route.len() as u32;
    state.position = if state.job.is_sequential() { end } else { (state.position + 1).min(end) };
}

async fn tell(agent: &ActorRef<AgentActor>, input: HopInput) {
    if agent.tell_wait(AgentInput::Hop(input)).await.is_err() {
        // The agent is gone, and with it everyone who could use this: what it holds durably is run again.
        tracing::debug!("a hop outlived its agent");
    }
}
