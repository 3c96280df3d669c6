//! The runner: works off one node's share of a job, one bounded call at a time.

use std::sync::Arc;
use std::time::Instant;

use super::access::RedisAccess;
use super::care::Care;
use super::engine::Engine;
use super::error::NodeError;
use super::ledger::Place;
use super::native::{ChainJob, NativeJobs};
use super::sequence_hop::SequenceHop;
use super::site::Site;
use super::slot_hop::SlotHop;
use super::{page_hop, raw_hop};
use crate::chain::job::{Combine, JobSpec, Step, Target};
use crate::chain::slots::SlotSet;
use crate::chain::state::{Hop, HopId, JobState, MAX_ERRORS, NodeId, PlanNode};
use crate::chain::value::Value;

/// What an [`StepRunner::advance`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advance {
    /// There is more to do on this node.
    Working {
        /// Units that were committed into the state.
        units: u32,
    },
    /// This node's share is done, or what is left of it cannot be done now: the state's position has moved on, or
    /// [`JobState::failed`] is set.
    HopDone,
}

/// What one turn of a hop came to.
pub(crate) enum Turn {
    /// So many units were committed, and there is more.
    Working(u32),
    /// The hop is over.
    Done(Onward),
}

/// Where the chain goes.
pub(crate) enum Onward {
    /// To the next hop of its route.
    Next,
    /// To this node, wherever the route wanted to go.
    Node { id: NodeId, address: String },
    /// To the coordinator.
    End,
    /// Nowhere: it has failed.
    Stay,
}

/// Runs a job's step on one node.
pub struct StepRunner {
    site: Site,
    /// The hop at hand, and the time of its last commit.
    hop: Option<(HopId, Work, Instant)>,
    /// How often the state has been changed.
    commits: u32,
    /// The last call was lost, and the next one is about less.
    narrowed: bool,
}

/// So many changes of the state go by before its size is looked at again: that takes as long as it is large.
const COMMITS_PER_SIZE: u32 = 32;

enum Work {
    Slots(SlotHop),
    Pages(Care),
    Sequence(SequenceHop),
    Raw,
}

impl StepRunner {
    /// Connects to the node and loads the step there.
    ///
    /// # Errors
    /// When the node cannot be reached, refuses, or the job cannot be run on it.
    pub async fn open(
        node: &PlanNode,
        job: &Arc<JobSpec>,
        access: &RedisAccess,
        natives: &NativeJobs,
    ) -> Result<Self, NodeError> {
        let native = native_of(job, natives)?;
        let engine = Engine::open(&node.redis, job, access).await?;
        let place = Place {
            node: node.id.clone(),
            address: node.redis.clone(),
            agent: node.agent.clone().unwrap_or_else(|| "direct".into()),
            replication_id: engine.replication_id.clone(),
        };
        let site = Site { job: job.clone(), place, engine, native, aside: 0 };
        Ok(StepRunner { site, hop: None, commits: 0, narrowed: false })
    }

    /// Connects again after an error, and goes on where it was; behind another primary, from the state alone. Answers whether
    /// the next call is about less than the one that was lost: then it is worth the attempt, however often that was.
    ///
    /// # Errors
    /// As [`StepRunner::open`]; it may be tried again.
    pub async fn reopen(&mut self, access: &RedisAccess) -> Result<bool, NodeError> {
        let calls = self.site.engine.calls;
        self.site.engine = Engine::open(&self.site.place.address, &self.site.job, access).await?;
        self.site.engine.calls = calls;
        if self.site.place.replication_id != self.site.engine.replication_id {
            self.site.place.replication_id.clone_from(&self.site.engine.replication_id);
            self.hop = None;
        }
        Ok(std::mem::take(&mut self.narrowed))
    }

    /// Makes at most one bounded call and folds what it did into `state`: units, delta, counters, errors and the hop's
    /// report change together. When the hop is done the state's position moves on (and a walk's route grows).
    ///
    /// # Errors
    /// When the node fails or the job cannot go on; `state` then holds nothing of what failed. After a transient
    /// error ([`NodeError::is_transient`]) reopen the runner, or open a new one, and go on with the same state.
    pub async fn advance(&mut self, state: &mut JobState) -> Result<Advance, NodeError> {
        self.commits += 1;
        if self.commits.is_multiple_of(COMMITS_PER_SIZE) {
            check_size(state)?;
        }
        let StepRunner { site, hop, narrowed, .. } = self;
        let id = state.hop_id();
        if hop.as_ref().is_none_or(|(own, ..)| *own != id) {
            *hop = Some((id, Work::new(site, state).await?, Instant::now()));
        }
        let Some((_, work, last)) = hop else { return Ok(Advance::HopDone) };
        let turn = match work {
            Work::Slots(slots) => slots.advance(site, state).await,
            Work::Pages(care) => page_hop::advance(site, state, care).await,
            Work::Sequence(sequence) => sequence.advance(site, state).await,
            Work::Raw => raw_hop::advance(site, state).await,
        };
        let turn = match turn {
            Ok(turn) => turn,
            Err(error) => {
                *narrowed = matches!(error, NodeError::Lost { .. }) && work.lost(site);
                if !*narrowed {
                    *hop = None;
                }
                return Err(error);
            }
        };
        let now = Instant::now();
        site.report_calls(state, super::cluster::micros(now - *last));
        *last = now;
        match turn {
            Turn::Working(units) if state.failed.is_none() => return Ok(Advance::Working { units }),
            Turn::Done(onward) if state.failed.is_none() => move_on(state, onward),
            _ => {}
        }
        self.hop = None;
        Ok(Advance::HopDone)
    }

    /// The job's own `merge(a, b)`, run on this node (Lua) or here (native).
    ///
    /// # Errors
    /// When the node fails or `merge` does.
    pub async fn merge(&mut self, a: Value, b: Value) -> Result<Value, NodeError> {
        let values = [a, b].into_iter().filter(|value| *value != Value::Nil);
        self.site.merge(values.collect()).await
    }

    /// The job's own `finish(acc)`; a job without one: `acc` as it is.
    ///
    /// # Errors
    /// When the node fails or `finish` does.
    pub async fn finish(&mut self, acc: Value) -> Result<Value, NodeError> {
        match (&self.site.native, &self.site.job.step) {
            (Some(native), _) => {
                native.finish(acc).map_err(|reason| NodeError::job(&self.site.job.id, reason))
            }
            (None, Step::Lua(_)) => self.site.engine.protected("finish", &[acc]).await,
            _ => Ok(acc),
        }
    }
}

impl Work {
    async fn new(site: &Site, state: &JobState) -> Result<Self, NodeError> {
        Ok(match (&site.job.step, &site.job.target) {
            (Step::Raw(_), _) => Work::Raw,
            (_, Target::OrderedKeys(_) | Target::Walk(_)) => Work::Sequence(SequenceHop::new(site).await?),
            (_, Target::Pattern(_)) if !site.engine.cluster => Work::Pages(Care::default()),
            (_, Target::Pattern(_) | Target::Keys(_)) => Work::Slots(SlotHop::new(site, state)),
        })
    }
}

impl Work {
    /// A call was lost. Answers whether the next one is about less.
    fn lost(&mut self, site: &mut Site) -> bool {
        // Where nothing is answered, it is not the keys' fault.
        if site.aside >= MAX_ERRORS {
            return false;
        }
        match self {
            Work::Slots(slots) => return slots.lost(site),
            Work::Pages(care) => care.lost(),
            Work::Sequence(sequence) => sequence.lost(),
            Work::Raw => return false,
        }
        true
    }
}

/// A step that returns too much is stopped before it fills the agent's memory; what is sent is measured exactly.
fn check_size(state: &JobState) -> Result<(), NodeError> {
    let parts = state.parts.iter().map(|part| part.acc.approximate_bytes());
    let bytes = parts.sum::<usize>() + state.acc.approximate_bytes();
    let limit = state.job.limits.max_state_bytes;
    if bytes <= limit as usize {
        return Ok(());
    }
    let reason = format!(
        "its result so far takes about {bytes} bytes and limits.maxStateBytes is {limit}: let the step return less \
         per key, combine with a cap, or raise the limit"
    );
    Err(NodeError::job(&state.job.id, reason))
}

/// Moves the state's position, and bends its route where the chain follows a key.
fn move_on(state: &mut JobState, onward: Onward) {
    let next = state.position as usize + 1;
    match onward {
        Onward::Stay => return,
        Onward::Next => {}
        Onward::End => state.route.truncate(next),
        Onward::Node { id, address } => {
            let known = state.nodes.iter().position(|node| node.id == id);
            let index = known.unwrap_or_else(|| {
                state.nodes.push(PlanNode { id, redis: address, agent: None });
                state.nodes.len() - 1
            });
            let node = u16::try_from(index).unwrap_or(u16::MAX);
            if state.route.get(next).is_none_or(|hop| hop.node != node) {
                state.route.truncate(next);
                state.route.push(Hop { node, slots: SlotSet::empty() });
            }
        }
    }
    state.position = u32::try_from(next).unwrap_or(u32::MAX);
}

fn native_of(job: &JobSpec, natives: &NativeJobs) -> Result<Option<Arc<dyn ChainJob>>, NodeError> {
    let Step::Native(name) = &job.step else { return Ok(None) };
    natives.get(name).map(Some).ok_or_else(|| {
        let known: Vec<_> = natives.names().collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let reason = format!(
            "no native job {name:?} is registered here; registered: {known}. Agents and whoever starts the job must be \
             built with it (see examples/own_skald.rs)"
        );
        NodeError::job(&job.id, reason)
    })
}

/// Checks a job against a node before it is submitted: a script must compile (the error names the user's own line)
/// and define what its target and combiner need; a native job must be registered. The script's top level is run there.
///
/// # Errors
/// [`NodeError::Job`] when the job cannot be run; otherwise what the node said.
pub async fn check(
    redis: &str,
    job: &JobSpec,
    access: &RedisAccess,
    natives: &NativeJobs,
) -> Result<(), NodeError> {
    native_of(job, natives)?;
    let mut engine = Engine::open(redis, job, access).await?;
    if let Step::Raw(text) = &job.step {
        return engine.check_raw(text).await;
    }
    if !matches!(job.step, Step::Lua(_)) {
        return Ok(());
    }
    let [each, merge, _, next] = engine.defines().await?;
    let missing = if !each {
        "each(key, acc)"
    } else if job.combine == Combine::Merge && !merge {
        "merge(a, b), which the combiner `merge` calls"
    } else if matches!(job.target, Target::Walk(_)) && !next {
        "next(key, acc), which names a walk's next key"
    } else {
        return Ok(());
    };
    Err(NodeError::job(&job.id, format!("the script defines no function {missing}")))
}
