//! What each node has to do, and who drives it there.

use std::collections::BTreeSet;

use super::cost::Costs;
use super::{PlanError, PlanInput};
use crate::chain::job::{AgentPolicy, JobSpec, Step, Target};
use crate::chain::slots::{SLOTS, SlotSet, slot_of};

/// The most hops of one plan for keys in strict order; what is left is planned again when the chain is back. A route
/// travels with the state.
pub(super) const MAX_ROUTE: usize = 4_096;

/// A visit to a node.
#[derive(Debug, Clone)]
pub(super) struct Stop {
    /// Which node of the input.
    pub(super) node: usize,
    /// The units there, where units are slots.
    pub(super) slots: SlotSet,
    /// How many keys are expected.
    pub(super) keys: u64,
}

/// All there is to do.
pub(super) struct Work {
    pub(super) stops: Vec<Stop>,
    pub(super) uncovered: SlotSet,
    /// The stops stand in the order in which they have to be made.
    pub(super) in_given_order: bool,
}

pub(super) fn shares(job: &JobSpec, input: &PlanInput) -> Work {
    if matches!(job.step, Step::Raw(_)) {
        let stop = |(node, facts): (usize, &super::NodeFacts)| Stop {
            node,
            slots: SlotSet::empty(),
            keys: facts.keys,
        };
        let stops = input.nodes.iter().enumerate().map(stop).collect();
        return Work { stops, uncovered: SlotSet::empty(), in_given_order: false };
    }
    match &job.target {
        Target::Pattern(_) if !input.cluster => {
            let keys = input.nodes[0].keys;
            let stops = vec![Stop { node: 0, slots: SlotSet::full(), keys }];
            Work { stops, uncovered: SlotSet::empty(), in_given_order: true }
        }
        Target::Pattern(_) => by_slot(input, |facts, slots| {
            let owned = u64::from(facts.slots.len()).max(1);
            (u128::from(facts.keys) * u128::from(slots.len()) / u128::from(owned)) as u64
        }),
        Target::Keys(keys) => {
            let mut per_slot = vec![0u32; usize::from(SLOTS)];
            keys.iter().for_each(|key| per_slot[usize::from(slot_of(key))] += 1);
            by_slot(input, |_, slots| slots.iter().map(|slot| u64::from(per_slot[usize::from(slot)])).sum())
        }
        Target::OrderedKeys(keys) => {
            let done = usize::try_from(input.sequence.done).unwrap_or(usize::MAX);
            in_order(input, keys.get(done..).unwrap_or_default())
        }
        Target::Walk(start) => {
            let next = match (&input.sequence.next_key, input.sequence.done) {
                (Some(next), _) => Some(next),
                (None, 0) => Some(start),
                (None, _) => None, // it has come to its end
            };
            in_order(input, next.map(std::slice::from_ref).unwrap_or_default())
        }
    }
}

fn by_slot(input: &PlanInput, keys: impl Fn(&super::NodeFacts, &SlotSet) -> u64) -> Work {
    let mut open = input.open.clone();
    let mut stops = Vec::new();
    for (node, facts) in input.nodes.iter().enumerate() {
        if !open.intersects(&facts.slots) {
            continue;
        }
        let slots = open.intersection(&facts.slots);
        open.subtract(&slots);
        stops.push(Stop { node, keys: keys(facts, &slots), slots });
    }
    Work { stops, uncovered: open, in_given_order: false }
}

/// A stop for each run of keys with the same owner.
fn in_order(input: &PlanInput, keys: &[Vec<u8>]) -> Work {
    let mut owners = vec![None; usize::from(SLOTS)];
    for (node, facts) in input.nodes.iter().enumerate() {
        for slot in facts.slots.iter() {
            owners[usize::from(slot)].get_or_insert(node);
        }
    }
    let mut stops: Vec<Stop> = Vec::new();
    let mut uncovered = SlotSet::empty();
    for key in keys {
        let slot = slot_of(key);
        let Some(node) = owners[usize::from(slot)] else {
            uncovered.insert(slot); // the order cannot go around it
            break;
        };
        let full = stops.len() == MAX_ROUTE;
        match stops.last_mut() {
            Some(stop) if stop.node == node => stop.keys += 1,
            _ if full => break,
            _ => stops.push(Stop { node, slots: SlotSet::empty(), keys: 1 }),
        }
    }
    Work { stops, uncovered, in_given_order: true }
}

/// Who drives a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Drive {
    /// The agent beside it.
    Beside,
    /// The agent beside this other node.
    By(usize),
    /// An agent that is beside no node: its number in the job's own list.
    Foreign(usize),
    /// The coordinator's process.
    Direct,
}

/// Who drives each node of the input.
pub(super) fn drivers(job: &JobSpec, input: &PlanInput, stops: &[Stop]) -> Result<Vec<Drive>, PlanError> {
    let usable = |index: &usize| {
        let agent = input.nodes[*index].node.agent.as_ref();
        agent.is_some_and(|agent| {
            !input.lost.contains(agent)
                && match &job.agents {
                    AgentPolicy::Auto | AgentPolicy::Require => true,
                    AgentPolicy::Off => false,
                    AgentPolicy::At(listed) => listed.contains(agent),
                }
        })
    };
    let count = input.nodes.len();
    let mut drivers = vec![Drive::Direct; count];
    let beside: Vec<usize> = (0..count).filter(usable).collect();
    beside.iter().for_each(|node| drivers[*node] = Drive::Beside);
    if job.agents == AgentPolicy::Require {
        let without: BTreeSet<usize> =
            stops.iter().map(|stop| stop.node).filter(|node| drivers[*node] != Drive::Beside).collect();
        if !without.is_empty() {
            let nodes = without.into_iter().map(|node| input.nodes[node].node.redis.clone()).collect();
            return Err(PlanError::NoAgent { nodes });
        }
    }
    if beside.len() == count {
        return Ok(drivers);
    }
    if beside.is_empty() {
        if let AgentPolicy::At(listed) = &job.agents {
            let there = (0..listed.len()).filter(|index| !input.lost.contains(&listed[*index]));
            drivers.iter_mut().zip(there.cycle()).for_each(|(drive, agent)| *drive = Drive::Foreign(agent));
        }
        return Ok(drivers);
    }
    // As if every node had an agent: where the agents that there are would be.
    let costs = Costs::new(input, &vec![Drive::Beside; count]);
    let mut given = vec![0u32; count];
    for (node, driver) in drivers.iter_mut().enumerate().filter(|(_, driver)| **driver != Drive::Beside) {
        let nearness = |agent: &usize| f64::from(costs.way(*agent, node)) + costs.load(*agent);
        // Among equals the one that drives the fewest.
        let nearest = beside
            .iter()
            .copied()
            .min_by(|a, b| nearness(a).total_cmp(&nearness(b)).then(given[*a].cmp(&given[*b])));
        if let Some(agent) = nearest {
            given[agent] += 1;
            *driver = Drive::By(agent);
        }
    }
    Ok(drivers)
}
