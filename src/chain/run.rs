//! The coordinator's side of one job (types first; the rules follow).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bincode::{Decode, Encode};

use super::job::JobSpec;
use super::message::{EndReason, Message};
use super::slots::SlotSet;
use super::state::{HopReport, JobState, KeyError, NodeId, Part, Sequence, Tally};
use super::value::Value;
use crate::core::task::Millis;

/// What must be done for a job to be finished.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum Goal {
    /// These slots: all 16,384 of a pattern job on a cluster; those that hold a listed key (any order).
    Slots(SlotSet),
    /// One chain until `sequence.complete`: strict order, walks, raw scripts, and patterns on a server without
    /// cluster mode.
    Sequence,
}

/// All that has been folded.
#[derive(Debug, Clone, PartialEq, Default, Encode, Decode)]
pub struct Settled {
    /// What was done, by node and replication id; no two parts share a slot. Parts are merged only where that needs
    /// no folding: the values in `accs` are folded at the end.
    pub parts: Vec<SettledPart>,
    /// Where a sequential job is.
    pub sequence: Sequence,
    /// A sequential job's accumulator.
    pub acc: Value,
    /// Counters over all chains that are in.
    pub tally: Tally,
    /// The first keys that failed.
    pub errors: Vec<KeyError>,
    /// Why slots are open, as last said.
    pub open: BTreeMap<u16, String>,
    /// What each hop did.
    pub reports: Vec<HopReport>,
}

/// What was done under one primary, over all chains.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct SettledPart {
    /// Which primary.
    pub key: PartKey,
    /// The ledger.
    pub slots: SlotSet,
    /// One accumulator for each chain that ran here; still to be folded.
    pub accs: Vec<Value>,
}

/// One primary at one time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct PartKey {
    /// The node.
    pub node: NodeId,
    /// Its replication id.
    pub replication_id: String,
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct RunOutcome {
    /// Well, with an error, or by an operator.
    pub status: EndReason,
    /// Why, when not well.
    pub reason: Option<String>,
    /// The result does not cover all units, or keys failed.
    pub partial: bool,
    /// Agents that could not be told: what they held of the job may still run there until they are reached.
    pub unconfirmed: Vec<String>,
}

/// What happens to a run.
#[derive(Debug, Clone)]
pub enum RunInput {
    /// The answer to [`RunEffect::NeedPlan`].
    Planned {
        /// The epoch that was asked for.
        epoch: u32,
        /// The chains, numbered from 0; no two share a slot.
        chains: Vec<JobState>,
        /// Slots that no chain covers, and why.
        uncovered: BTreeMap<u16, String>,
    },
    /// No plan could be made.
    PlanFailed {
        /// The epoch that was asked for.
        epoch: u32,
        /// Why.
        reason: String,
        /// Trying again is of no use.
        permanent: bool,
    },
    /// A message of an agent (by its address) about this job.
    Received {
        /// The agent.
        from: String,
        /// What.
        message: Message,
    },
    /// The record of this ticket, and all before, is durable.
    Persisted {
        /// The ticket of a [`RunEffect::Persist`].
        ticket: u64,
    },
    /// A connection to an agent is up.
    Connected {
        /// The agent.
        agent: String,
    },
    /// An agent has not been heard of for too long, or cannot be reached.
    AgentLost {
        /// The agent.
        agent: String,
    },
    /// The answer to [`RunEffect::Verify`]; may also come unasked.
    Verified {
        /// Primaries that were replaced by a failover since: what ran under them is open again.
        gone: Vec<PartKey>,
    },
    /// An operator wants the job to end.
    Cancel,
    /// [`RunMachine::alarm_at`] has come.
    Tick,
}

/// What the actor has to do, in this order.
#[derive(Debug, Clone, PartialEq)]
pub enum RunEffect {
    /// Make the record durable (it replaces the one before), then answer [`RunInput::Persisted`].
    Persist {
        /// Ascending. At most one is under way.
        ticket: u64,
        /// What.
        record: Arc<RunRecord>,
    },
    /// Look at the cluster and plan what is open; answer [`RunInput::Planned`] or [`RunInput::PlanFailed`].
    NeedPlan {
        /// The new chains' epoch.
        epoch: u32,
        /// The open slots ([`Goal::Slots`]).
        open: SlotSet,
        /// Where a sequential job goes on, and with what.
        sequence: Sequence,
        /// See `sequence`.
        acc: Value,
        /// Agents that are not there: plan around them.
        lost: BTreeSet<String>,
    },
    /// Compare the replication ids with those of the primaries now; answer [`RunInput::Verified`].
    Verify {
        /// Under which the job has written.
        parts: Vec<PartKey>,
    },
    /// Send to an agent if it is connected, else dial it and drop the message: the machine sends again when it is.
    Send {
        /// The agent's address; [`RunConfig::direct`] is the one in this process.
        to: String,
        /// What.
        message: Message,
    },
    /// It is over, durably: the result is in the record.
    Finished {
        /// How.
        outcome: RunOutcome,
    },
}

/// A chain that is on its way.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct LiveChain {
    /// The plan it belongs to.
    pub epoch: u32,
    /// Its number in it.
    pub chain: u16,
    /// What it is to do.
    pub slots: SlotSet,
    /// The agents on its route, in order.
    pub agents: Vec<String>,
    /// The state to be sent, until the first agent has acknowledged it.
    pub unsent: Option<Arc<JobState>>,
    /// It is being given up: the agents that have not yet said what they hold of it.
    pub recalling: Option<BTreeSet<String>>,
    /// The best state that the others have said to hold.
    pub recalled: Option<Arc<JobState>>,
}

/// What a coordinator keeps of a run.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct RunRecord {
    /// The job.
    pub spec: Arc<JobSpec>,
    /// What has to be done.
    pub goal: Goal,
    /// The last plan's number; 0: none was made yet.
    pub epoch: u32,
    /// What is folded.
    pub settled: Settled,
    /// Chains on their way.
    pub live: Vec<LiveChain>,
    /// Chains that are in, by epoch and number, so that each is folded once.
    pub returned: BTreeSet<(u32, u16)>,
    /// All agents that may know of the job.
    pub agents: BTreeSet<String>,
    /// Plans in a row that have settled nothing.
    pub idle_plans: u16,
    /// Plans made after the first.
    pub replans: u32,
    /// The end that has been decided on, and is being told to the agents.
    pub ending: Option<RunOutcome>,
    /// It is over.
    pub over: bool,
}

/// A run's times.
#[derive(Debug, Clone)]
pub struct RunConfig {
    /// The incarnation of the job's task: raised whenever another coordinator takes it over.
    pub incarnation: u64,
    /// What stands for the agent in the coordinator's own process ([`PlanNode::agent`](super::state::PlanNode) is
    /// `None`).
    pub direct: String,
    /// A chain that nobody has reported for this long is recalled.
    pub hop_timeout: Millis,
    /// How long agents are waited for when a chain is recalled.
    pub recall_timeout: Millis,
    /// How long agents are waited for at the end.
    pub end_timeout: Millis,
    /// The first wait before an unanswered message is sent again; doubles up to `resend_max`.
    pub resend_min: Millis,
    /// The longest wait.
    pub resend_max: Millis,
    /// The wait after a first plan that settled nothing; doubles up to `replan_max`.
    pub replan_min: Millis,
    /// The longest wait.
    pub replan_max: Millis,
}

impl Default for RunConfig {
    fn default() -> Self {
        RunConfig {
            incarnation: 0,
            direct: "direct".into(),
            hop_timeout: 30_000,
            recall_timeout: 3_000,
            end_timeout: 10_000,
            resend_min: 500,
            resend_max: 10_000,
            replan_min: 50,
            replan_max: 5_000,
        }
    }
}

/// The coordinator's state machine for one job.
#[derive(Debug)]
pub struct RunMachine {
    config: RunConfig,
    record: Arc<RunRecord>,
}

impl RunMachine {
    /// A new run; it persists its record and asks for a plan.
    pub fn start(
        config: RunConfig,
        spec: Arc<JobSpec>,
        goal: Goal,
        now: Millis,
        effects: &mut Vec<RunEffect>,
    ) -> Self {
        let record = RunRecord {
            spec,
            goal,
            epoch: 0,
            settled: Settled::default(),
            live: Vec::new(),
            returned: BTreeSet::new(),
            agents: BTreeSet::new(),
            idle_plans: 0,
            replans: 0,
            ending: None,
            over: false,
        };
        Self::recover(config, record, now, effects)
    }

    /// Goes on with a run after a restart or a takeover.
    pub fn recover(config: RunConfig, record: RunRecord, now: Millis, effects: &mut Vec<RunEffect>) -> Self {
        let _ = (now, effects);
        RunMachine { config, record: Arc::new(record) }
    }

    /// One input; appends what has to be done.
    pub fn handle(&mut self, now: Millis, input: RunInput, effects: &mut Vec<RunEffect>) {
        let _ = (now, input, effects, &self.config);
    }

    /// When [`RunInput::Tick`] is wanted.
    pub fn alarm_at(&self) -> Option<Millis> {
        None
    }

    /// What is known and folded so far; may be ahead of what is durable.
    pub fn record(&self) -> &RunRecord {
        &self.record
    }

    /// Units done, folded ones and those that chains on their way have reported.
    pub fn units_done(&self) -> u64 {
        0
    }
}

impl From<Part> for SettledPart {
    fn from(part: Part) -> Self {
        SettledPart {
            key: PartKey { node: part.node, replication_id: part.replication_id },
            slots: part.slots,
            accs: vec![part.acc],
        }
    }
}
