//! What a coordinator must not forget of a run, and how chains are folded into it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bincode::{Decode, Encode};

use crate::chain::combine;
use crate::chain::job::{Combine, JobSpec, Target};
use crate::chain::message::EndReason;
use crate::chain::slots::SlotSet;
use crate::chain::state::{HopReport, JobState, KeyError, MAX_ERRORS, NodeId, Part, Sequence, Tally};
use crate::chain::value::Value;

/// How many hop reports are kept.
pub const MAX_REPORTS: usize = 10_000;

/// Room for this many bits of plans in one incarnation of a task.
const EPOCH_BITS: u32 = 12;

/// What must be done for a job to be finished.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum Goal {
    /// These slots: all 16,384 of a pattern job on a cluster; those that hold a listed key (any order).
    Slots(SlotSet),
    /// One chain at a time until `sequence.complete`: strict order, walks, raw scripts, and patterns on a server
    /// without cluster mode.
    Sequence,
}

/// What was done under one primary, over all chains.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct SettledPart {
    /// Which primary.
    pub key: PartKey,
    /// The ledger.
    pub slots: SlotSet,
    /// The deltas, folded into one value, or, where that needs the job's own `merge`, one value for each chain.
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

/// All that has been folded.
#[derive(Debug, Clone, PartialEq, Default, Encode, Decode)]
pub struct Settled {
    /// What was done, by primary; no two parts share a slot.
    pub parts: Vec<SettledPart>,
    /// Where a sequential job is.
    pub sequence: Sequence,
    /// A sequential job's accumulator.
    pub acc: Value,
    /// Counters over all chains that are in.
    pub tally: Tally,
    /// The first keys that failed, at most [`MAX_ERRORS`].
    pub errors: Vec<KeyError>,
    /// Why slots are open, as last said; at most [`MAX_ERRORS`].
    pub open: BTreeMap<u16, String>,
    /// What each hop did, at most [`MAX_REPORTS`].
    pub reports: Vec<HopReport>,
}

/// A chain that is on its way.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct LiveChain {
    /// The plan it belongs to.
    pub epoch: u32,
    /// Its number in it.
    pub chain: u16,
    /// What it is to do ([`Goal::Slots`]).
    pub slots: SlotSet,
    /// The agent of each hop, in order; of a walk, which goes on its own way, then those of all nodes.
    pub agents: Vec<String>,
    /// The state to be sent to the first agent, until that has acknowledged it.
    pub unsent: Option<Arc<JobState>>,
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct RunOutcome {
    /// Well, with an error, or by an operator.
    pub status: EndReason,
    /// Why, when it failed.
    pub reason: Option<String>,
    /// The result does not cover all units, or keys failed.
    pub partial: bool,
    /// Units done: those folded, and those that the chains on their way had told of when the end was decided on.
    pub units: u64,
    /// Counters over the same.
    pub tally: Tally,
    /// Agents that could not be told: what they held of the job may still run there until they are reached.
    pub unconfirmed: Vec<String>,
}

/// What a coordinator keeps of a run.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct RunRecord {
    /// The job.
    pub spec: Arc<JobSpec>,
    /// What has to be done.
    pub goal: Goal,
    /// The last plan's number, or `first_epoch`: none was made yet.
    pub epoch: u32,
    /// What the plans are numbered from; see [`RunRecord::plan_number`].
    pub first_epoch: u32,
    /// What is folded.
    pub settled: Settled,
    /// Chains on their way.
    pub live: Vec<LiveChain>,
    /// Chains that are in, by epoch and number, so that each is folded once. Those of epochs below every live one are
    /// forgotten: their duplicates are refused as stale.
    pub returned: BTreeSet<(u32, u16)>,
    /// All agents that may know of the job.
    pub agents: BTreeSet<String>,
    /// The units that were done when the last plan was asked for with no chain on its way.
    pub units_at_plan: Option<u64>,
    /// How many such plans in a row have settled nothing.
    pub idle_plans: u16,
    /// Plans made after the first.
    pub replans: u32,
    /// The end that has been decided on, and is being told to the agents.
    pub ending: Option<RunOutcome>,
    /// The end has been told.
    pub over: bool,
}

impl RunRecord {
    /// The record of a run that has not begun.
    pub fn new(spec: Arc<JobSpec>, goal: Goal) -> Self {
        RunRecord {
            spec,
            goal,
            epoch: 0,
            first_epoch: 0,
            settled: Settled::default(),
            live: Vec::new(),
            returned: BTreeSet::new(),
            agents: BTreeSet::new(),
            units_at_plan: None,
            idle_plans: 0,
            replans: 0,
            ending: None,
            over: false,
        }
    }

    /// The epoch as people count plans: from 1.
    pub fn plan_number(&self, epoch: u32) -> u32 {
        epoch.saturating_sub(self.first_epoch)
    }

    /// Numbers the plans of a run that has not begun from above all those of earlier incarnations of its task: what an
    /// agent still holds of one of those must never be taken for this one's.
    pub(super) fn begin(&mut self, incarnation: u64) {
        if self.epoch == 0 {
            let before = u32::try_from(incarnation.saturating_sub(1)).unwrap_or(u32::MAX);
            self.first_epoch = before.min(u32::MAX >> EPOCH_BITS) << EPOCH_BITS;
            self.epoch = self.first_epoch;
        }
    }

    /// Takes a failed run up again, for the task's next attempt: what is folded stays folded, the rest is planned
    /// anew. The attempt must attach under a higher incarnation. Says whether the run was a failed one.
    pub fn retry(&mut self) -> bool {
        if !self.ending.as_ref().is_some_and(|ending| ending.status == EndReason::Failed) {
            return false;
        }
        self.ending = None;
        self.over = false;
        self.idle_plans = 0;
        self.units_at_plan = None;
        self.live.clear();
        true
    }

    /// The slots that are still to be done, those of live chains included.
    pub fn open_slots(&self) -> SlotSet {
        let Goal::Slots(goal) = &self.goal else { return SlotSet::empty() };
        let mut open = goal.clone();
        for part in &self.settled.parts {
            open.subtract(&part.slots);
        }
        open
    }

    /// The open slots that no live chain is to do.
    pub fn unassigned_slots(&self) -> SlotSet {
        let mut open = self.open_slots();
        for chain in &self.live {
            open.subtract(&chain.slots);
        }
        open
    }

    /// Units folded.
    pub fn units_settled(&self) -> u64 {
        let slots: u64 = self.settled.parts.iter().map(|part| u64::from(part.slots.len())).sum();
        slots + self.settled.sequence.done
    }

    /// Whether all units are folded.
    pub fn is_complete(&self) -> bool {
        match &self.goal {
            Goal::Slots(_) => self.open_slots().is_empty(),
            Goal::Sequence => self.settled.sequence.complete,
        }
    }

    /// The lowest epoch that a state may still have.
    pub fn fence(&self) -> u32 {
        self.live.iter().map(|chain| chain.epoch).min().unwrap_or(self.epoch.saturating_add(1))
    }

    /// Why these cannot be the chains of `epoch`; they are the planner's, so it would be a defect.
    pub(super) fn check_plan(&self, epoch: u32, chains: &[JobState]) -> Result<(), String> {
        let mut free = self.unassigned_slots();
        let mut numbers = BTreeSet::new();
        for state in chains {
            let number = state.chain;
            let says = |what: &str| Err(format!("the plan's chain {number} {what}"));
            if state.job.id != self.spec.id || state.epoch != epoch || !numbers.insert(number) {
                return says("is of another job or plan, or there twice");
            }
            let bad_node = state.route.iter().any(|hop| usize::from(hop.node) >= state.nodes.len());
            if state.position != 0 || state.route.is_empty() || state.failed.is_some() || bad_node {
                return says("does not start at the first hop of a route");
            }
            if !state.parts.is_empty() || state.tally != Tally::default() || !state.reports.is_empty() {
                return says("does not start empty");
            }
            if self.goal == Goal::Sequence {
                if chains.len() > 1 || !self.live.is_empty() {
                    return says("is not the only one of a sequential job");
                }
                continue;
            }
            for hop in &state.route {
                let before = free.len();
                free.subtract(&hop.slots);
                if before - free.len() != hop.slots.len() {
                    return says("is to do slots that are done, or another's");
                }
            }
        }
        Ok(())
    }

    /// Makes a chain of the plan a live one.
    pub(super) fn add_live(&mut self, state: Arc<JobState>, direct: &str) {
        let mut slots = SlotSet::empty();
        for hop in &state.route {
            slots.union_with(&hop.slots);
        }
        let agent =
            |node: &crate::chain::state::PlanNode| node.agent.clone().unwrap_or_else(|| direct.into());
        let on_route = state.route.iter().filter_map(|hop| state.nodes.get(usize::from(hop.node)));
        let mut agents: Vec<String> = on_route.map(agent).collect();
        if matches!(self.spec.target, Target::Walk(_)) {
            agents.extend(state.nodes.iter().map(agent));
        }
        self.agents.extend(agents.iter().cloned());
        self.live.push(LiveChain {
            epoch: state.epoch,
            chain: state.chain,
            slots,
            agents,
            unsent: Some(state),
        });
    }

    /// Folds the last state of a live chain, which ends it; what it was to do and has not is open again.
    pub(super) fn settle(&mut self, index: usize, state: &JobState) -> Result<(), SettleError> {
        let chain = self.live.swap_remove(index);
        if self.goal == Goal::Sequence {
            if state.sequence.done < self.settled.sequence.done {
                return Err(SettleError::Nonsense("has gone back in its sequence".into()));
            }
            self.settled.sequence = state.sequence.clone();
            self.settled.acc = state.acc.clone();
        } else {
            let mut free = chain.slots;
            for part in &state.parts {
                let before = free.len();
                free.subtract(&part.slots);
                if before - free.len() != part.slots.len() {
                    return Err(SettleError::Nonsense("has done slots that were not its own".into()));
                }
            }
            for part in &state.parts {
                self.settled.add_part(&self.spec.combine, part).map_err(SettleError::Combine)?;
            }
        }
        self.settled.add_counters(state);
        Ok(())
    }

    /// Takes back what was done under primaries that are no more. Says whether there was anything.
    pub(super) fn reopen(&mut self, gone: &[PartKey]) -> bool {
        let before = self.settled.parts.len();
        self.settled.parts.retain(|part| !gone.contains(&part.key));
        self.settled.parts.len() != before
    }
}

/// Why a chain could not be folded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SettleError {
    /// It is not what the chain could have done.
    Nonsense(String),
    /// The combiner refuses: a cap is passed, or values of different kinds. The job cannot be finished.
    Combine(combine::CombineError),
}

impl Settled {
    fn add_part(&mut self, combine: &Combine, part: &Part) -> Result<(), combine::CombineError> {
        if part.slots.is_empty() {
            return Ok(());
        }
        let same = |other: &&mut SettledPart| {
            other.key.node == part.node && other.key.replication_id == part.replication_id
        };
        let Some(settled) = self.parts.iter_mut().find(same) else {
            let key = PartKey { node: part.node.clone(), replication_id: part.replication_id.clone() };
            self.parts.push(SettledPart { key, slots: part.slots.clone(), accs: vec![part.acc.clone()] });
            return Ok(());
        };
        match settled.accs.last_mut() {
            // Only the engine can call the job's own merge: the values are kept side by side until the end.
            Some(acc) if *combine != Combine::Merge => combine::fold_into(combine, acc, part.acc.clone())?,
            _ => settled.accs.push(part.acc.clone()),
        }
        settled.slots.union_with(&part.slots);
        Ok(())
    }

    fn add_counters(&mut self, state: &JobState) {
        self.tally.add(&state.tally);
        let errors = state.errors.iter().take(MAX_ERRORS.saturating_sub(self.errors.len()));
        self.errors.extend(errors.cloned());
        let reports = state.reports.iter().take(MAX_REPORTS.saturating_sub(self.reports.len()));
        self.reports.extend(reports.cloned());
        self.open.extend(state.open.iter().map(|(slot, why)| (*slot, why.clone())));
        self.trim_open();
    }

    pub(super) fn note_error(&mut self, error: KeyError) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(error);
        }
    }

    pub(super) fn trim_open(&mut self) {
        let Settled { parts, open, .. } = self;
        open.retain(|slot, _| !parts.iter().any(|part| part.slots.contains(*slot)));
        while open.len() > MAX_ERRORS {
            open.pop_last();
        }
    }
}
