//! What goes into the machine of a run, and what comes out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{PartKey, RunOutcome, RunRecord};
use crate::chain::message::Message;
use crate::chain::slots::SlotSet;
use crate::chain::state::{JobState, Sequence};
use crate::chain::value::Value;
use crate::core::task::Millis;

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
    /// A connection to an agent is up, or one that was said to be lost is heard of again.
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
    /// [`super::RunMachine::alarm_at`] has come.
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
        /// The open slots ([`Goal::Slots`](super::Goal::Slots)).
        open: SlotSet,
        /// Where a sequential job goes on, and with what.
        sequence: Sequence,
        /// See `sequence`.
        acc: Value,
        /// Agents that are not there: plan around them.
        lost: BTreeSet<String>,
    },
    /// Compare the replication ids with those of the primaries now; answer [`RunInput::Verified`]. Asked again, at
    /// growing distances, until it is answered.
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

/// A run's times.
#[derive(Debug, Clone)]
pub struct RunConfig {
    /// The incarnation of the job's task: raised whenever another coordinator takes it over.
    pub incarnation: u64,
    /// What stands for the agent in the coordinator's own process ([`PlanNode::agent`](crate::chain::state::PlanNode) is
    /// `None`).
    pub direct: String,
    /// A chain that nobody has reported for this long is recalled.
    pub hop_timeout: Millis,
    /// How long agents are waited for when a chain is recalled.
    pub recall_timeout: Millis,
    /// How long agents are waited for when the job has failed or is cancelled.
    pub end_timeout: Millis,
    /// How long agents are waited for when all is done, and nothing can run any more.
    pub finish_timeout: Millis,
    /// How long after a plan the next one is made while chains of earlier ones are still on their way, so that what
    /// they leave open is gathered.
    pub regroup: Millis,
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
            finish_timeout: 1_000,
            regroup: 1_000,
            resend_min: 500,
            resend_max: 10_000,
            replan_min: 50,
            replan_max: 5_000,
        }
    }
}
