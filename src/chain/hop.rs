//! The agent's side of the hand-off (types first; the rules follow).

use std::sync::Arc;

use bincode::{Decode, Encode};

use super::message::{ChainId, Message};
use super::state::{HopId, JobState};
use crate::core::task::Millis;

/// One end of a connection, as the machine sees it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Link {
    /// A connection that this agent dials: the other agent's advertised address.
    Agent(String),
    /// A connection that somebody else has dialled: the actor's number for it, never used twice in one process life.
    Conn(u64),
}

/// What happens to an agent.
#[derive(Debug, Clone)]
pub enum HopInput {
    /// A message other than `Hello`, `Ping` and `Pong` has arrived; `bytes` is the size of its body, uncompressed.
    Received {
        /// From where.
        from: Link,
        /// What.
        message: Message,
        /// How large, in bytes.
        bytes: u64,
    },
    /// All records up to and with this ticket's are durable.
    Persisted {
        /// The ticket of a [`HopEffect::Persist`].
        up_to: u64,
    },
    /// A running hop has come this far.
    Checkpoint {
        /// The hop.
        hop: HopId,
        /// Its state now.
        state: Arc<JobState>,
    },
    /// A hop's own work is done: `state.position` is the next hop (or `state.failed` is set).
    Ran {
        /// The hop.
        hop: HopId,
        /// Its state as it goes on.
        state: Arc<JobState>,
    },
    /// A hop that was told to abort has stopped: no effect of it follows.
    Stopped {
        /// The hop.
        hop: HopId,
    },
    /// A state that the machine gave to `Send` cannot be sent (it is over the job's or the frame's limit).
    Unsendable {
        /// The id of the state that was to be sent.
        hop: HopId,
        /// Why.
        reason: String,
    },
    /// A dialled connection is up, its `Hello`s exchanged.
    Connected {
        /// Which.
        link: Link,
    },
    /// A connection is gone.
    Lost {
        /// Which.
        link: Link,
    },
    /// [`HopMachine::alarm_at`] has come.
    Tick,
}

/// What the actor has to do, in this order.
#[derive(Debug, Clone, PartialEq)]
pub enum HopEffect {
    /// Append to the outbox and make durable, then answer [`HopInput::Persisted`]. Records become durable in the
    /// order in which they were given, lazy ones included.
    Persist {
        /// Ascending.
        ticket: u64,
        /// What.
        record: Record,
    },
    /// Append to the outbox; it becomes durable with whatever is persisted next, or after a while.
    Note {
        /// What.
        record: Record,
    },
    /// Send, if the link is up; else drop it: the machine sends again when the link comes up.
    Send {
        /// Over which connection. A `Link::Agent` that is not connected must be dialled.
        to: Link,
        /// What.
        message: Message,
    },
    /// Start the work of a hop, from this state on.
    Run {
        /// Which.
        hop: HopId,
        /// From where.
        state: Arc<JobState>,
    },
    /// Stop the work of a hop as soon as possible, then answer [`HopInput::Stopped`] (or `Ran`).
    Abort {
        /// Which.
        hop: HopId,
    },
}

/// What an agent's outbox holds: a log that is read from its start after a crash.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub enum Record {
    /// A hop is held; replaces what was held under the same id.
    Held {
        /// The hop as it was received.
        hop: HopId,
        /// Its state: as received, or as of the last checkpoint.
        state: Arc<JobState>,
    },
    /// A hop has gone on to the next one of the same agent: the first is done, the second held.
    Moved {
        /// Done.
        from: HopId,
        /// Held.
        hop: HopId,
        /// The state of the second.
        state: Arc<JobState>,
    },
    /// A hop is acknowledged by its receiver, but its state is retained until the receiver has passed it on.
    Retained {
        /// The hop as it was received.
        hop: HopId,
        /// The state that was sent.
        state: Arc<JobState>,
    },
    /// A hop is done with: only its id is kept, so that a duplicate is acknowledged.
    Done {
        /// The hop.
        hop: HopId,
    },
    /// Epochs of a job below this one are refused.
    Fence {
        /// The job.
        job: String,
        /// The lowest epoch that is taken.
        epoch: u32,
        /// The highest incarnation that has attached.
        incarnation: u64,
    },
    /// A chain has been recalled: its hops are refused.
    Recalled {
        /// The chain.
        chain: ChainId,
    },
    /// A job has ended: nothing of it happens any more.
    Ended {
        /// The job.
        job: String,
        /// When, for the age limit.
        at: Millis,
    },
}

impl Record {
    /// The state in it, if it has one.
    pub fn state(&self) -> Option<&JobState> {
        match self {
            Record::Held { state, .. } | Record::Moved { state, .. } | Record::Retained { state, .. } => {
                Some(state)
            }
            _ => None,
        }
    }
}

/// An agent's bounds and times.
#[derive(Debug, Clone)]
pub struct HopConfig {
    /// This agent's advertised address.
    pub address: String,
    /// Hops run at a time on one node.
    pub per_node: usize,
    /// Hops held (queued, running, not yet acknowledged) before first hops are refused as busy; a later hop `h` is
    /// refused from `capacity + h` on.
    pub capacity: usize,
    /// Bytes held before first hops are refused as busy.
    pub capacity_bytes: u64,
    /// Forwards that are under way to one peer without an acknowledgement.
    pub window: usize,
    /// The first wait before an unacknowledged forward is sent again; it doubles up to `resend_max`.
    pub resend_min: Millis,
    /// The longest wait.
    pub resend_max: Millis,
    /// A hop of priority `p` waits as if it had come `p` times this earlier.
    pub ageing: Millis,
    /// How often an attached coordinator hears of every chain that is held.
    pub progress_every: Millis,
    /// Ids of done hops that are kept to acknowledge duplicates.
    pub keep_done: usize,
    /// Ended jobs that are remembered.
    pub keep_ended: usize,
}

impl HopConfig {
    /// The defaults for an agent at this address.
    pub fn new(address: impl Into<String>) -> Self {
        HopConfig {
            address: address.into(),
            per_node: 1,
            capacity: 1_024,
            capacity_bytes: 256 << 20,
            window: 64,
            resend_min: 500,
            resend_max: 10_000,
            ageing: 5_000,
            progress_every: 1_000,
            keep_done: 65_536,
            keep_ended: 65_536,
        }
    }
}

/// The agent's state machine.
#[derive(Debug)]
pub struct HopMachine {
    config: HopConfig,
}

impl HopMachine {
    /// A machine that takes up what an outbox holds (nothing: a fresh one).
    pub fn recover(
        config: HopConfig,
        records: impl IntoIterator<Item = Record>,
        now: Millis,
        effects: &mut Vec<HopEffect>,
    ) -> Self {
        let _ = (records.into_iter().count(), now, effects);
        HopMachine { config }
    }

    /// One input; appends what has to be done.
    pub fn handle(&mut self, now: Millis, input: HopInput, effects: &mut Vec<HopEffect>) {
        let _ = (now, input, effects, &self.config);
    }

    /// When [`HopInput::Tick`] is wanted.
    pub fn alarm_at(&self) -> Option<Millis> {
        None
    }

    /// All that the outbox must hold now: what a new segment starts with when older ones are removed.
    pub fn snapshot(&self) -> Vec<Record> {
        Vec::new()
    }

    /// Hops that wait, and hops under way.
    pub fn load(&self) -> (u32, u32) {
        (0, 0)
    }
}
