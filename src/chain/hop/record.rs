//! What an agent must not forget: the records of its outbox.

use std::sync::Arc;

use bincode::{Decode, Encode};

use crate::chain::message::ChainId;
use crate::chain::state::{HopId, JobState};

/// What an agent's outbox holds: a log that is read from its start after a crash. A later record overrides an
/// earlier one about the same thing.
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
    /// Epochs of a job below this one are refused. Takes up an ended job again when the incarnation is a higher one.
    Fence {
        /// The job.
        job: String,
        /// The lowest epoch that is taken.
        epoch: u32,
        /// The highest incarnation that has attached.
        incarnation: u64,
    },
    /// A chain has been recalled: its hops are refused, and what is held of it is not run.
    Recalled {
        /// The chain.
        chain: ChainId,
    },
    /// A job has ended: nothing of it happens any more.
    Ended {
        /// The job.
        job: String,
        /// The highest incarnation that had attached.
        incarnation: u64,
        /// It was not cancelled: an attach under a higher incarnation (the task's next attempt, or its next time)
        /// takes it up again.
        retryable: bool,
    },
}

impl Record {
    /// The state in it, if it has one.
    pub fn state(&self) -> Option<&JobState> {
        match self {
            Record::Held { state, .. } | Record::Moved { state, .. } | Record::Retained { state, .. } => {
                Some(state)
            }
            Record::Done { .. } | Record::Fence { .. } | Record::Recalled { .. } | Record::Ended { .. } => {
                None
            }
        }
    }
}
