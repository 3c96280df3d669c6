//! The planner: which nodes a job visits, in how many chains and in what order, and why.
//!
//! Everything it knows is in [`PlanInput`]; the same input gives the same plan. What it weighs is in `cost`, the
//! order in `order`, the number of chains in `chains`, what each node has to do in `share`, and the words for it
//! in [`Explanation`].

mod assemble;
mod chains;
mod cost;
mod explain;
mod order;
mod share;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use super::job::{JobSpec, Step, Target};
use super::slots::SlotSet;
use super::state::{Hop, JobState, PlanNode, Sequence, Tally};
use super::value::Value;

pub use chains::{Choice, ChoiceReason};
pub use cost::{Link, Load, Place, Reach};
pub use explain::{Explanation, ExplanationRow};
pub use order::OrderMethod;

/// What the planner is told.
#[derive(Debug, Clone)]
pub struct PlanInput {
    /// The primaries, each at most once. A raw job visits every one of them.
    pub nodes: Vec<NodeFacts>,
    /// Whether the server runs in cluster mode. Without it a pattern job is one hop, whatever `open` says.
    pub cluster: bool,
    /// The units still to be done (pattern jobs and lists in any order).
    pub open: SlotSet,
    /// Where a sequential job is: keys that are done, the walk's next key.
    pub sequence: Sequence,
    /// The plan's number.
    pub epoch: u32,
    /// Where the coordinator is.
    pub coordinator: Place,
    /// Round trips that somebody has measured.
    pub links: Vec<Link>,
    /// Agents that are not there; their nodes are driven by others.
    pub lost: BTreeSet<String>,
    /// A node is hot when it is busier than this share of what it can do (0 to 1).
    pub watermark: f64,
}

impl Default for PlanInput {
    fn default() -> Self {
        PlanInput {
            nodes: Vec::new(),
            cluster: true,
            open: SlotSet::empty(),
            sequence: Sequence::default(),
            epoch: 1,
            coordinator: Place::default(),
            links: Vec::new(),
            lost: BTreeSet::new(),
            watermark: 0.8,
        }
    }
}

/// What is known of a primary.
#[derive(Debug, Clone, Default)]
pub struct NodeFacts {
    /// Its name, its address, and the agent beside it if there is one.
    pub node: PlanNode,
    /// Where it is.
    pub place: Place,
    /// The slots it owns. Where two nodes claim a slot, the first one listed has it.
    pub slots: SlotSet,
    /// How many keys it holds.
    pub keys: u64,
    /// How busy it is.
    pub load: Load,
    /// How fast this job's step (or one like it) ran there, when it has been measured.
    pub keys_per_second: Option<f64>,
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The cluster has no primaries.
    #[error("there is no node to run on; check that the address is that of a cluster with primaries")]
    NoNodes,
    /// More nodes than a plan can name.
    #[error("{0} nodes are more than the 65,535 that a plan can name")]
    TooManyNodes(usize),
    /// The job insists on agents beside the nodes.
    #[error(
        "no agent is beside {}; start 'skald agent' there, or let the job use other agents (agents: auto)",
        .nodes.join(", ")
    )]
    NoAgent {
        /// The nodes without one, `host:port`.
        nodes: Vec<String>,
    },
    /// Slots that no node serves.
    #[error("no node serves the slots {}; bring their primary back, or check 'cluster slots'", ranges_text(.ranges))]
    NoCoverage {
        /// The slots, as inclusive ranges.
        ranges: Vec<(u16, u16)>,
    },
}

fn ranges_text(ranges: &[(u16, u16)]) -> String {
    const SHOWN: usize = 8;
    let mut text = String::new();
    for (first, last) in ranges.iter().take(SHOWN) {
        let comma = if text.is_empty() { "" } else { ", " };
        text += &if first == last { format!("{comma}{first}") } else { format!("{comma}{first}-{last}") };
    }
    match ranges.len() {
        0..=SHOWN => text,
        more => format!("{text} and {} more ranges", more - SHOWN),
    }
}

/// A plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Its number.
    pub epoch: u32,
    /// The nodes that the hops speak of; for a walk all nodes, since it may reach any.
    pub nodes: Vec<PlanNode>,
    /// The chains. There are none when nothing is open.
    pub chains: Vec<PlannedChain>,
    /// Open slots that no node serves. For keys in strict order: that of the key at which the route has to end.
    pub uncovered: SlotSet,
    /// How the order was found.
    pub order: OrderMethod,
    /// Why so many chains.
    pub choice: Choice,
    /// What to expect.
    pub estimate: Estimate,
    /// When the job has taken so long, something is wrong: the longest chain's own.
    pub timeout_millis: u64,
}

/// One chain.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedChain {
    /// Its hops, in order.
    pub hops: Vec<PlannedHop>,
    /// The way: from the coordinator through the hops and back. One unit is a hop within a rack (100 µs).
    pub cost: f64,
    /// The time it is expected to take.
    pub micros: u64,
    /// A limit per node times the hops, plus the hand-offs, plus slack.
    pub timeout_millis: u64,
}

/// One hop, and why it stands there.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedHop {
    /// The node (into [`Plan::nodes`]) and its slots.
    pub hop: Hop,
    /// How many keys are expected.
    pub keys: u64,
    /// The way to it and its load, in the unit of [`PlannedChain::cost`].
    pub cost: f64,
    /// How much of the cost is the node's load.
    pub load_cost: f64,
    /// The way.
    pub reach: Reach,
    /// The time the node is expected to take.
    pub micros: u64,
    /// Who drives it.
    pub driver: Driver,
}

/// Who drives a hop. Its address is the node's `agent` in [`Plan::nodes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driver {
    /// The agent beside the node.
    Beside,
    /// The nearest agent, over the network.
    Remote,
    /// The coordinator's own process.
    Direct,
}

/// What to expect of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Estimate {
    /// Keys looked at.
    pub keys: u64,
    /// From start to result.
    pub micros: u64,
    /// Job states sent between processes, before compression.
    pub bytes_moved: u64,
    /// The longest call on a node.
    pub block_micros: u64,
}

/// Plans a job, or what is left of it.
///
/// # Errors
/// See [`PlanError`]. Slots that nobody serves are no error here: see [`Plan::uncovered`] and [`Plan::covered`].
pub fn plan(job: &JobSpec, input: &PlanInput) -> Result<Plan, PlanError> {
    if input.nodes.is_empty() {
        return Err(PlanError::NoNodes);
    }
    if input.nodes.len() > usize::from(u16::MAX) {
        return Err(PlanError::TooManyNodes(input.nodes.len()));
    }
    let work = share::shares(job, input);
    let drivers = share::drivers(job, input, &work.stops)?;
    let costs = cost::Costs::new(input, &drivers);
    let times = chains::Times::new(job, input, &costs, &work.stops);
    let (tour, order) = if work.in_given_order {
        ((0..work.stops.len()).collect(), OrderMethod::Given)
    } else {
        let nodes: Vec<usize> = work.stops.iter().map(|stop| stop.node).collect();
        order::shortest(&costs, &nodes)
    };
    let choice = if work.in_given_order {
        Choice::sequential()
    } else {
        chains::choose(job, input, &times, &costs, &work.stops, &tour)
    };
    let routes = chains::split(&costs, &times, &work.stops, &tour, choice.chains, order);
    Ok(assemble::Parts { job, input, work, drivers, costs, times, routes, order, choice }.into_plan())
}

impl Plan {
    /// The plan, if every open slot is in it.
    ///
    /// # Errors
    /// [`PlanError::NoCoverage`] names the slots that no node serves.
    pub fn covered(self) -> Result<Plan, PlanError> {
        if self.uncovered.is_empty() {
            return Ok(self);
        }
        Err(PlanError::NoCoverage { ranges: self.uncovered.ranges() })
    }

    /// The states that start the chains. Each names only the nodes that it needs (a walk's all of them).
    pub fn states(&self, job: &Arc<JobSpec>, sequence: &Sequence, acc: &Value) -> Vec<JobState> {
        let walks = matches!(job.target, Target::Walk(_)) && !matches!(job.step, Step::Raw(_));
        let state = |(number, chain): (usize, &PlannedChain)| {
            let (nodes, route) = if walks {
                (self.nodes.clone(), chain.hops.iter().map(|planned| planned.hop.clone()).collect())
            } else {
                self.own_nodes(chain)
            };
            JobState {
                job: job.clone(),
                chain: number as u16, // at most one chain per node
                epoch: self.epoch,
                nodes,
                route,
                position: 0,
                parts: Vec::new(),
                sequence: sequence.clone(),
                acc: acc.clone(),
                tally: Tally::default(),
                errors: Vec::new(),
                open: Default::default(),
                failed: None,
                reports: Vec::new(),
            }
        };
        self.chains.iter().enumerate().map(state).collect()
    }

    fn own_nodes(&self, chain: &PlannedChain) -> (Vec<PlanNode>, Vec<Hop>) {
        let mut places: Vec<Option<u16>> = vec![None; self.nodes.len()];
        let mut nodes = Vec::new();
        let mut route = Vec::with_capacity(chain.hops.len());
        for PlannedHop { hop, .. } in &chain.hops {
            let node = *places[usize::from(hop.node)].get_or_insert_with(|| {
                nodes.push(self.nodes[usize::from(hop.node)].clone());
                (nodes.len() - 1) as u16
            });
            route.push(Hop { node, slots: hop.slots.clone() });
        }
        (nodes, route)
    }
}
