//! The cluster that the simulated job is about: who owns a unit, what was written, who has which replication id.

use std::collections::BTreeMap;

use super::JobKind;
use crate::chain::job::{Access, JobSpec};
use crate::chain::slots::SlotSet;
use crate::chain::state::{Hop, JobState, KeyError, Part, PlanNode, Sequence};
use crate::chain::value::Value;
use std::sync::Arc;

/// A unit's tokens are `unit * RUNS + run`.
pub(super) const RUNS: i64 = 1_000_000;

pub(super) struct Cluster {
    pub(super) kind: JobKind,
    pub(super) spec: Arc<JobSpec>,
    pub(super) units: u16,
    /// The owner of each unit; `None` while it moves.
    pub(super) owner: Vec<Option<usize>>,
    /// What a writing step has left of each unit: the recorded token, and on which node it was written.
    marker: BTreeMap<u16, (i64, usize)>,
    /// How often each unit's effect is there now.
    pub(super) applied: Vec<u32>,
    pub(super) replication: Vec<u32>,
    runs: i64,
    /// The unit that the step fails on.
    pub(super) poison: Option<u16>,
}

impl Cluster {
    pub(super) fn new(
        kind: JobKind,
        spec: Arc<JobSpec>,
        units: u16,
        nodes: usize,
        rng: &mut fastrand::Rng,
    ) -> Self {
        // Neighbours are mostly together, as slots are.
        let mut owner = Vec::new();
        let mut node = rng.usize(..nodes);
        for _ in 0..units {
            if rng.u8(..4) == 0 {
                node = rng.usize(..nodes);
            }
            owner.push(Some(node));
        }
        Cluster {
            kind,
            spec,
            units,
            owner,
            marker: BTreeMap::new(),
            applied: vec![0; usize::from(units)],
            replication: vec![0; nodes],
            runs: 0,
            poison: None,
        }
    }

    pub(super) fn replication_id(&self, node: usize) -> String {
        format!("r{node}.{}", self.replication[node])
    }

    /// A failover that loses some of the writes that were acknowledged.
    pub(super) fn fail_over(&mut self, node: usize, rng: &mut fastrand::Rng) {
        self.replication[node] += 1;
        let written: Vec<u16> =
            self.marker.iter().filter(|(_, (_, on))| *on == node).map(|(unit, _)| *unit).collect();
        for unit in written {
            if rng.bool() {
                self.marker.remove(&unit);
                self.applied[usize::from(unit)] -= 1;
            }
        }
    }

    /// Runs one unit on a node: its token, or why not.
    fn run_unit(&mut self, unit: u16, node: usize) -> Result<i64, String> {
        if self.owner[usize::from(unit)] != Some(node) {
            return Err(format!("unit {unit} is not on n{node}"));
        }
        if self.spec.access == Access::Write
            && let Some((token, _)) = self.marker.get(&unit)
        {
            return Ok(*token);
        }
        self.runs += 1;
        let token = i64::from(unit) * RUNS + self.runs;
        self.applied[usize::from(unit)] += 1;
        self.marker.insert(unit, (token, node));
        Ok(token)
    }

    /// Runs the next unit of the due hop. False: the hop has nothing more to do, and its position has gone on.
    pub(super) fn run_next(&mut self, state: &mut JobState) -> bool {
        let Some(node) = state.due_node() else { return false };
        let node_id = node.id.clone();
        let node: usize = node_id[1..].parse().unwrap();
        let unit = match self.kind {
            JobKind::Slots => {
                let due = &state.route[state.position as usize].slots;
                due.iter().find(|unit| !state.ledger().contains(*unit) && !state.open.contains_key(unit))
            }
            JobKind::Ordered | JobKind::Walk => {
                let next = state.sequence.done as u16;
                let here = next < self.units && self.owner[usize::from(next)] == Some(node);
                state.sequence.complete = next >= self.units;
                here.then_some(next)
            }
        };
        let Some(unit) = unit else {
            if self.kind == JobKind::Walk
                && let Some(Some(owner)) = self.owner.get(state.sequence.done as usize)
            {
                let id = format!("n{owner}");
                let index = state.nodes.iter().position(|node| node.id == id).unwrap();
                state.route.push(Hop { node: index as u16, slots: SlotSet::empty() });
            }
            state.position += 1;
            return false;
        };
        if self.poison == Some(unit) {
            let key = unit.to_string().into_bytes();
            state.failed = Some(KeyError { key, node: node_id, reason: "poison".into() });
            return false;
        }
        match self.run_unit(unit, node) {
            Err(why) => drop(state.open.insert(unit, why)),
            Ok(token) => {
                state.tally.visited += 1;
                if self.kind == JobKind::Slots {
                    let replication_id = self.replication_id(node);
                    let part = state
                        .parts
                        .iter_mut()
                        .find(|part| part.node == node_id && part.replication_id == replication_id);
                    let part = match part {
                        Some(part) => part,
                        None => {
                            state.parts.push(Part {
                                node: node_id,
                                replication_id,
                                slots: SlotSet::empty(),
                                acc: Value::List(Vec::new()),
                            });
                            state.parts.last_mut().unwrap()
                        }
                    };
                    assert!(part.slots.insert(unit));
                    push(&mut part.acc, token);
                } else {
                    state.sequence.done += 1;
                    push(&mut state.acc, token);
                }
            }
        }
        true
    }

    /// The chains for what is open, over agents that are not lost.
    pub(super) fn plan(
        &self,
        epoch: u32,
        open: &SlotSet,
        from: (Sequence, Value),
        agents: &[String],
        rng: &mut fastrand::Rng,
    ) -> (Vec<JobState>, BTreeMap<u16, String>) {
        let nodes: Vec<PlanNode> = (0..self.replication.len())
            .map(|node| PlanNode {
                id: format!("n{node}"),
                redis: format!("redis-{node}"),
                // Beside the node, if that agent is there.
                agent: Some(agents.get(node).filter(|_| agents.len() > node).unwrap_or(&agents[0]).clone()),
            })
            .collect();
        let empty = |chain| JobState {
            job: self.spec.clone(),
            chain,
            epoch,
            nodes: nodes.clone(),
            route: Vec::new(),
            position: 0,
            parts: Vec::new(),
            sequence: from.0.clone(),
            acc: from.1.clone(),
            tally: Default::default(),
            errors: Vec::new(),
            open: BTreeMap::new(),
            failed: None,
            reports: Vec::new(),
        };
        let mut uncovered = BTreeMap::new();
        let mut chains = Vec::new();
        if self.kind == JobKind::Slots {
            let mut by_node: Vec<SlotSet> = vec![SlotSet::empty(); nodes.len()];
            for slot in open.iter() {
                match self.owner[usize::from(slot)] {
                    Some(node) => drop(by_node[node].insert(slot)),
                    None => drop(uncovered.insert(slot, "it moves".to_owned())),
                }
            }
            let mut count = rng.u16(1..=nodes.len() as u16);
            let mut order: Vec<usize> = (0..nodes.len()).filter(|node| !by_node[*node].is_empty()).collect();
            rng.shuffle(&mut order);
            chains = (0..count).map(empty).collect();
            for node in order {
                let slots = std::mem::take(&mut by_node[node]);
                chains[usize::from(rng.u16(..count))].route.push(Hop { node: node as u16, slots });
            }
            chains.retain(|chain| !chain.route.is_empty());
            count = 0;
            for chain in &mut chains {
                chain.chain = count;
                count += 1;
            }
        } else {
            let mut state = empty(0);
            for unit in from.0.done..u64::from(self.units) {
                let Some(node) = self.owner[unit as usize] else { break };
                if state.route.last().is_none_or(|hop| usize::from(hop.node) != node) {
                    state.route.push(Hop { node: node as u16, slots: SlotSet::empty() });
                }
                if self.kind == JobKind::Walk {
                    break;
                }
            }
            if state.route.is_empty() && from.0.done == u64::from(self.units) {
                state.route.push(Hop { node: 0, slots: SlotSet::empty() }); // to learn that nothing is left
            }
            if !state.route.is_empty() {
                chains.push(state);
            }
        }
        (chains, uncovered)
    }

    /// What is wrong with a result, if anything.
    pub(super) fn check(&self, tokens: &[i64]) -> Result<(), String> {
        let mut units: Vec<i64> = tokens.iter().map(|token| token / RUNS).collect();
        if self.kind == JobKind::Slots {
            units.sort_unstable();
        }
        if units != (0..i64::from(self.units)).collect::<Vec<_>>() {
            return Err(format!("units folded: {units:?}"));
        }
        if self.spec.access == Access::Write {
            for token in tokens {
                let unit = (token / RUNS) as u16;
                let written = self.marker.get(&unit).map(|(token, _)| *token);
                if self.applied[usize::from(unit)] != 1 || written != Some(*token) {
                    let applied = self.applied[usize::from(unit)];
                    return Err(format!(
                        "unit {unit} was applied {applied} times, token {written:?} written and {token} folded"
                    ));
                }
            }
        }
        Ok(())
    }
}

fn push(list: &mut Value, token: i64) {
    match list {
        Value::List(list) => list.push(Value::Int(token)),
        other => *other = Value::List(vec![Value::Int(token)]),
    }
}

pub(super) fn tokens_of(value: &Value) -> Vec<i64> {
    let Value::List(list) = value else { return Vec::new() };
    list.iter()
        .map(|token| match token {
            Value::Int(token) => *token,
            other => panic!("{other:?} is no token"),
        })
        .collect()
}
