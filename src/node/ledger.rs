//! What a call did, and how it gets into the job state.

use super::reply::{Fields, pack, unpack_all};
use crate::chain::job::OnError;
use crate::chain::slots::SlotSet;
use crate::chain::state::{HopReport, JobState, KeyError, MAX_ERRORS, NodeId, Part};
use crate::chain::value::Value;

/// The most notes of one hop, and the most reports of one chain: a walk may make many hops.
const MAX_NOTES: usize = 8;
const MAX_REPORTS: usize = 512;

/// Where the work is done.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) node: NodeId,
    /// `host:port`: what errors name.
    pub(crate) address: String,
    pub(crate) agent: String,
    pub(crate) replication_id: String,
}

/// What some keys added.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Gain {
    pub(crate) visited: u64,
    pub(crate) matched: u64,
    pub(crate) failed: u64,
    /// The first of those that failed, and why.
    pub(crate) failures: Vec<(Vec<u8>, String)>,
}

impl Gain {
    /// Reads the three counters that every mode of the loop answers.
    pub(crate) fn counters(fields: &mut Fields) -> Result<Self, String> {
        Ok(Gain {
            visited: fields.count()?,
            matched: fields.count()?,
            failed: fields.count()?,
            failures: Vec::new(),
        })
    }

    pub(crate) fn add(&mut self, other: Gain) {
        self.visited += other.visited;
        self.matched += other.matched;
        self.failed += other.failed;
        let room = MAX_ERRORS.saturating_sub(self.failures.len());
        self.failures.extend(other.failures.into_iter().take(room));
    }

    pub(crate) fn fail(&mut self, key: &[u8], reason: String) {
        self.add(Gain { failed: 1, failures: vec![(key.to_vec(), reason)], ..Gain::default() });
    }
}

/// What a unit's marker says. The script writes the same.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Marker {
    /// The whole unit is done.
    pub(crate) done: bool,
    /// The last key applied, in ascending order; a page's marker holds the next cursor here.
    pub(crate) last: Option<Vec<u8>>,
    pub(crate) gain: Gain,
    pub(crate) delta: Value,
}

impl Marker {
    pub(crate) fn read(packed: &[u8]) -> Result<Self, String> {
        Marker::from_fields(&mut Fields::new(unpack_all(packed)?))
    }

    pub(crate) fn from_fields(fields: &mut Fields) -> Result<Self, String> {
        let done = fields.value() == Value::Bool(true);
        Ok(Marker {
            done,
            last: fields.bytes_or_none()?,
            gain: Gain::counters(fields)?,
            delta: fields.value(),
        })
    }

    pub(crate) fn packed(&self) -> Vec<u8> {
        let last = self.last.clone().map_or(Value::Bool(false), Value::Bytes);
        let count = |number: u64| Value::Int(i64::try_from(number).unwrap_or(i64::MAX));
        let Gain { visited, matched, failed, .. } = &self.gain;
        [Value::Bool(self.done), last, count(*visited), count(*matched), count(*failed), self.delta.clone()]
            .iter()
            .flat_map(pack)
            .collect()
    }
}

impl Place {
    /// The report of the hop that is due; begun where there is none yet.
    pub(crate) fn report<'a>(&self, state: &'a mut JobState) -> &'a mut HopReport {
        let (chain, epoch, order) = (state.chain, state.epoch, state.position);
        let own = |report: &HopReport| (report.chain, report.epoch, report.order) == (chain, epoch, order);
        let full = state.reports.len() >= MAX_REPORTS;
        let at = state.reports.iter().rposition(own).or_else(|| {
            // A long walk comes back to its nodes: what it does there later is added to what it did before.
            state.reports.iter().rposition(|report| full && report.node == self.node)
        });
        let at = at.unwrap_or_else(|| {
            let (node, agent) = (self.node.clone(), self.agent.clone());
            state.reports.push(HopReport { node, agent, chain, epoch, order, ..HopReport::default() });
            state.reports.len() - 1
        });
        &mut state.reports[at]
    }

    pub(crate) fn note(&self, state: &mut JobState, note: String) {
        let notes = &mut self.report(state).notes;
        if notes.len() < MAX_NOTES && !notes.contains(&note) {
            notes.push(note);
        }
    }

    /// Adds counters and failed keys. With [`OnError::Stop`] the first failed key fails the chain.
    pub(crate) fn count(&self, state: &mut JobState, units: u64, gain: Gain) {
        state.tally.visited += gain.visited;
        state.tally.matched += gain.matched;
        state.tally.errors += gain.failed;
        let report = self.report(state);
        report.units += units;
        report.keys += gain.visited;
        for (key, reason) in gain.failures {
            let error = KeyError { key, node: self.address.clone(), reason };
            if state.job.on_error == OnError::Stop && state.failed.is_none() {
                state.failed = Some(error.clone());
            }
            state.note_error(error);
        }
    }

    /// Where the deltas of slots that are done here go.
    pub(crate) fn part<'a>(&self, state: &'a mut JobState) -> &'a mut Part {
        let own = |part: &Part| part.node == self.node && part.replication_id == self.replication_id;
        let at = state.parts.iter().position(own).unwrap_or_else(|| {
            state.parts.push(Part {
                node: self.node.clone(),
                replication_id: self.replication_id.clone(),
                slots: SlotSet::empty(),
                acc: Value::Nil,
            });
            state.parts.len() - 1
        });
        &mut state.parts[at]
    }

    /// A slot that cannot be done here now.
    pub(crate) fn leave_open(&self, state: &mut JobState, slot: u16, reason: String) {
        if state.open.len() < MAX_ERRORS || state.open.contains_key(&slot) {
            state.open.insert(slot, format!("{}: {reason}", self.address));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_survive_both_ways() {
        for last in [None, Some(b"=".to_vec()), Some(b"=k\xff".to_vec())] {
            let gain = Gain { visited: 3, matched: 2, failed: 1, failures: Vec::new() };
            let marker = Marker { done: last.is_none(), last, gain, delta: Value::Float(0.5) };
            assert_eq!(Marker::read(&marker.packed()).unwrap(), marker);
        }
        assert!(Marker::read(b"12").is_err());
    }
}
