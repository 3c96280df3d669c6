//! The job state: what travels from node to node, and all that must survive a crash.

use std::collections::BTreeMap;
use std::sync::Arc;

use bincode::{Decode, Encode};

use super::job::{JobSpec, Target};
use super::slots::{SlotSet, slot_of};
use super::value::Value;

/// A cache node's own id (`CLUSTER MYID`), or `host:port` on a server without cluster mode.
pub type NodeId = String;

/// Names one hop of one chain of one plan of one job: what acknowledgements are about.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode)]
pub struct HopId {
    /// The job.
    pub job: String,
    /// The chain's number within its plan.
    pub chain: u16,
    /// The plan's number.
    pub epoch: u32,
    /// The hop's place in the chain; `route.len()` is the hand-off to the coordinator.
    pub hop: u32,
}

/// A node as the plan knows it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Encode, Decode)]
pub struct PlanNode {
    /// Its id.
    pub id: NodeId,
    /// Where Redis listens, `host:port`.
    pub redis: String,
    /// Where the agent that drives it listens, `host:port`; `None` in direct mode.
    pub agent: Option<String>,
}

/// One hop of the chain.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Hop {
    /// Index into [`JobState::nodes`].
    pub node: u16,
    /// The slots to be done here (pattern and any-order list jobs).
    pub slots: SlotSet,
}

/// What was done under one primary: kept apart until the end, because a failover that loses acknowledged writes
/// re-opens exactly the units that ran under the lost primary.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct Part {
    /// The node.
    pub node: NodeId,
    /// Its replication id at the time (`INFO replication`: `master_replid`).
    pub replication_id: String,
    /// The ledger: the units (slots) done.
    pub slots: SlotSet,
    /// Their deltas, folded.
    pub acc: Value,
}

/// Where a sequential job is. Its accumulator is [`JobState::acc`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Encode, Decode)]
pub struct Sequence {
    /// Units done: keys of an ordered list, steps of a walk, SCAN pages, nodes of a raw job.
    pub done: u64,
    /// The walk's next key; `None` at its end.
    pub next_key: Option<Vec<u8>>,
    /// The next SCAN cursor on a server without cluster mode.
    pub cursor: u64,
    /// The replication id of the server that gave the cursor: another server, or the same one restarted, hashes its
    /// keys differently, and the cursor means nothing to it.
    pub cursor_of: String,
    /// All units are done.
    pub complete: bool,
}

/// Counters over all units done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Encode, Decode)]
pub struct Tally {
    /// Keys looked at.
    pub visited: u64,
    /// Keys the step was run on.
    pub matched: u64,
    /// Keys the step failed on.
    pub errors: u64,
}

impl Tally {
    /// Counts what another has counted.
    pub(crate) fn add(&mut self, more: &Tally) {
        self.visited = self.visited.saturating_add(more.visited);
        self.matched = self.matched.saturating_add(more.matched);
        self.errors = self.errors.saturating_add(more.errors);
    }
}

/// A key that the step failed on, or a unit that could not be done.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct KeyError {
    /// The key; empty when it is about a node or a slot.
    pub key: Vec<u8>,
    /// The node.
    pub node: NodeId,
    /// What went wrong: the server's words, a script error with its line.
    pub reason: String,
}

/// What one hop did.
#[derive(Debug, Clone, PartialEq, Eq, Default, Encode, Decode)]
pub struct HopReport {
    /// The node.
    pub node: NodeId,
    /// The agent that ran it (`direct` for the coordinator's own process).
    pub agent: String,
    /// The chain.
    pub chain: u16,
    /// The epoch.
    pub epoch: u32,
    /// Its place in the chain.
    pub order: u32,
    /// Units done here.
    pub units: u64,
    /// Keys looked at here.
    pub keys: u64,
    /// From the first call to the last answer.
    pub micros: u64,
    /// The sum of all calls' durations as the agent saw them.
    pub engine_micros: u64,
    /// Calls made.
    pub calls: u64,
    /// The longest call.
    pub max_block_micros: u64,
    /// The job state when it left.
    pub state_bytes: u64,
    /// The same, compressed as it was sent.
    pub state_bytes_compressed: u64,
    /// What a reader should know: a slot had to be taken whole, a raw script is not exact while slots move, …
    pub notes: Vec<String>,
}

/// The state of one chain.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct JobState {
    /// The job.
    pub job: Arc<JobSpec>,
    /// Which chain of the plan.
    pub chain: u16,
    /// Which plan.
    pub epoch: u32,
    /// The nodes that `route` speaks of, and every other that a walk may reach.
    pub nodes: Vec<PlanNode>,
    /// The hops, in order; a walk appends to it.
    pub route: Vec<Hop>,
    /// The hop that is due or under way; `route.len()`: the chain is done and goes to the coordinator.
    pub position: u32,
    /// What was done, by primary (pattern and any-order list jobs).
    pub parts: Vec<Part>,
    /// Where a sequential job is.
    pub sequence: Sequence,
    /// A sequential job's accumulator.
    pub acc: Value,
    /// Counters.
    pub tally: Tally,
    /// The first keys that failed, at most [`MAX_ERRORS`].
    pub errors: Vec<KeyError>,
    /// Why slots were left open, by slot; at most [`MAX_ERRORS`] of them (the ledger has them all).
    pub open: BTreeMap<u16, String>,
    /// The chain must not go on: why. It goes straight to the coordinator.
    pub failed: Option<KeyError>,
    /// What each hop did.
    pub reports: Vec<HopReport>,
}

/// How many failed keys and open slots are kept with their reasons.
pub const MAX_ERRORS: usize = 20;

impl JobState {
    /// The id of the hop that is due.
    pub fn hop_id(&self) -> HopId {
        HopId { job: self.job.id.clone(), chain: self.chain, epoch: self.epoch, hop: self.position }
    }

    /// The node of the hop that is due; `None`: the state is for the coordinator.
    pub fn due_node(&self) -> Option<&PlanNode> {
        if self.failed.is_some() {
            return None;
        }
        let hop = self.route.get(self.position as usize)?;
        self.nodes.get(usize::from(hop.node))
    }

    /// All slots done so far.
    pub fn ledger(&self) -> SlotSet {
        let mut ledger = SlotSet::empty();
        for part in &self.parts {
            ledger.union_with(&part.slots);
        }
        ledger
    }

    /// How many units are done: slots in the ledger, or the sequence's.
    pub fn units_done(&self) -> u64 {
        let slots: u64 = self.parts.iter().map(|part| u64::from(part.slots.len())).sum();
        slots + self.sequence.done
    }

    /// The slots of the due hop that are still to be done.
    pub fn due_slots(&self) -> SlotSet {
        let mut slots =
            self.route.get(self.position as usize).map(|hop| hop.slots.clone()).unwrap_or_default();
        slots.subtract(&self.ledger());
        slots
    }

    /// A slot that the due hop is about, where that can be told.
    pub fn due_slot(&self) -> Option<u16> {
        let key = match &self.job.target {
            Target::OrderedKeys(keys) => keys.get(usize::try_from(self.sequence.done).ok()?),
            Target::Walk(start) if self.sequence.done == 0 => Some(start),
            Target::Walk(_) => self.sequence.next_key.as_ref(),
            Target::Pattern(_) | Target::Keys(_) => return self.due_slots().iter().next(),
        };
        key.map(|key| slot_of(key))
    }

    /// Notes a failed key, within the bound.
    pub fn note_error(&mut self, error: KeyError) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(error);
        }
    }
}
