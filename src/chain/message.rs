//! What coordinators and agents say to each other.
//!
//! Coordinators dial agents, agents dial agents, nobody dials a coordinator: what an agent has for a coordinator goes
//! over the connection on which that coordinator has attached to the job. Both sides of a connection say [`Hello`]
//! first. [`Message::State`] is the only message that carries work, and the only one that must be acknowledged;
//! [`Message::is_lossy`] names those that may be dropped when a connection is slow.

use std::sync::Arc;

use bincode::{Decode, Encode};

use super::state::{HopId, JobState, NodeId, Tally};
use crate::core::task::Millis;

/// The version of the conversation, said in [`Hello`]; both sides must say the same.
pub const PROTOCOL: u16 = 1;

/// One message.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// The first message of both sides.
    Hello(Hello),
    /// The hand-off: "this hop is yours". Answered with [`Message::Ack`] or [`Message::Refuse`].
    State(Arc<JobState>),
    /// "I hold these durably (or have done them)": the sender may forget them.
    Ack(Ack),
    /// "I do not take this hop."
    Refuse(Refuse),
    /// Coordinator to agent: "deliver this job's finished chains and progress to me, on this connection".
    Attach(Attach),
    /// Agent to coordinator: where a chain is.
    Progress(Progress),
    /// Coordinator to agent: "stop this chain, and give me the last state of it that you hold".
    Recall(ChainId),
    /// The answer to a recall.
    Recalled(Recalled),
    /// Coordinator to agent: "forget this job; nothing of it may happen any more".
    End(End),
    /// The answer to an end, once it is durable and nothing of the job runs any more.
    Ended {
        /// The job.
        job: String,
    },
    /// "Are you there?"
    Ping {
        /// The sender's clock; comes back in the answer.
        at: Millis,
    },
    /// "I am."
    Pong {
        /// The ping's `at`.
        at: Millis,
        /// Hops that wait to be run.
        queue: u32,
        /// Hops under way.
        active: u32,
    },
}

impl Message {
    /// Whether losing it costs nothing but freshness.
    pub fn is_lossy(&self) -> bool {
        matches!(self, Message::Progress(_) | Message::Ping { .. } | Message::Pong { .. })
    }

    /// An acknowledgement of these hops.
    pub fn ack(hops: Vec<HopId>) -> Self {
        Message::Ack(Ack { hops, forwarded: Vec::new() })
    }

    /// A refusal of this hop.
    pub fn refuse(hop: HopId, reason: RefuseReason) -> Self {
        Message::Refuse(Refuse { hop, reason })
    }
}

/// Who is speaking.
#[derive(Clone, PartialEq, Eq, Encode, Decode)]
pub struct Hello {
    /// [`PROTOCOL`].
    pub protocol: u16,
    /// What the speaker is.
    pub role: Role,
    /// An agent's advertised address (`host:port`), or the coordinator's name.
    pub name: String,
    /// Raised with every start of the speaker; a peer that is back under another number has lost its connections.
    pub incarnation: u64,
    /// Proof of identity; room for a later step. Never printed.
    pub token: Option<Vec<u8>>,
}

impl std::fmt::Debug for Hello {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hello")
            .field("protocol", &self.protocol)
            .field("role", &self.role)
            .field("name", &self.name)
            .field("incarnation", &self.incarnation)
            .field("token", &self.token.as_ref().map(|_| "…"))
            .finish()
    }
}

/// What a speaker is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum Role {
    /// It runs hops beside a cache node.
    Agent,
    /// It owns jobs.
    Coordinator,
}

/// Hops that the sender may forget.
#[derive(Debug, Clone, PartialEq, Eq, Default, Encode, Decode)]
pub struct Ack {
    /// Durably held, or done before.
    pub hops: Vec<HopId>,
    /// Passed on and acknowledged by the next one: a sender that retains two hops back may drop these too.
    pub forwarded: Vec<HopId>,
}

/// A hop that is not taken.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Refuse {
    /// The hop.
    pub hop: HopId,
    /// Why.
    pub reason: RefuseReason,
}

/// Why a hop is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum RefuseReason {
    /// Its plan has been superseded, or its chain recalled: forget it.
    StaleEpoch {
        /// The lowest epoch that is still taken.
        current: u32,
    },
    /// The job has ended: forget it.
    Ended,
    /// The queue is full: hold it and send it again later.
    Busy,
    /// The state is over the receiver's limit: the chain fails.
    TooLarge {
        /// The limit in bytes.
        limit: u64,
    },
}

/// A coordinator's claim to a job.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Attach {
    /// The job.
    pub job: String,
    /// The lowest epoch that is still live: what is below may be dropped, and is refused from now on.
    pub epoch: u32,
    /// The incarnation of the job's task: an attach under a lower one than seen before is a zombie's and is ignored.
    pub incarnation: u64,
}

/// Where a chain is.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Progress {
    /// The chain.
    pub chain: ChainId,
    /// The hop that the sender holds.
    pub position: u32,
    /// That hop's node.
    pub node: NodeId,
    /// The state's counters.
    pub tally: Tally,
    /// The state's units done: slots in its ledger, or its sequence.
    pub units_done: u64,
}

/// One chain of one plan of one job.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode)]
pub struct ChainId {
    /// The job.
    pub job: String,
    /// The plan's number.
    pub epoch: u32,
    /// The chain's number within its plan.
    pub chain: u16,
}

/// What an agent had of a chain that was recalled from it. From now on it refuses that chain's hops.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct Recalled {
    /// The chain.
    pub chain: ChainId,
    /// The newest state that the agent holds or retains; `None`: it has none.
    pub state: Option<Arc<JobState>>,
}

/// The end of a job.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct End {
    /// The job.
    pub job: String,
    /// The coordinator's, as in [`Attach`]: an attach of it or of an earlier one that comes later than this takes nothing
    /// back.
    pub incarnation: u64,
    /// How it ended.
    pub why: EndReason,
}

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum EndReason {
    /// Well.
    Finished,
    /// With an error.
    Failed,
    /// By an operator.
    Cancelled,
}

impl ChainId {
    /// The chain that a state belongs to.
    pub fn of(state: &JobState) -> Self {
        ChainId { job: state.job.id.clone(), epoch: state.epoch, chain: state.chain }
    }

    /// The chain that a hop belongs to.
    pub fn of_hop(hop: &HopId) -> Self {
        ChainId { job: hop.job.clone(), epoch: hop.epoch, chain: hop.chain }
    }
}
