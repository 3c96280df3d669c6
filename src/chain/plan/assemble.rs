//! Puts a plan together from what has been decided, with what is to be expected of it.

use super::chains::{Choice, MERGE_MICROS, Times, handoff};
use super::cost::{Costs, Reach};
use super::order::OrderMethod;
use super::share::{Drive, Work};
use super::{Driver, Estimate, Plan, PlanInput, PlannedChain, PlannedHop};
use crate::chain::job::{AgentPolicy, JobSpec, Step, Target};
use crate::chain::state::{Hop, PlanNode};

/// A state's own bytes: the fields that do not grow.
const STATE_BYTES: u64 = 1_024;
/// What a hop adds to a state: its node, its slots as ranges, its part of the ledger and its report.
const HOP_BYTES: u64 = 256;
/// A node that takes this many times what was expected is stuck.
const PATIENCE: u64 = 4;
const SLACK_MILLIS: u64 = 1_000;

/// Everything that a plan is made of.
pub(super) struct Parts<'a> {
    pub(super) job: &'a JobSpec,
    pub(super) input: &'a PlanInput,
    pub(super) work: Work,
    pub(super) drivers: Vec<Drive>,
    pub(super) costs: Costs,
    pub(super) times: Times,
    pub(super) routes: Vec<Vec<usize>>,
    pub(super) order: OrderMethod,
    pub(super) choice: Choice,
}

impl Parts<'_> {
    pub(super) fn into_plan(mut self) -> Plan {
        let walks = matches!(self.job.target, Target::Walk(_)) && !matches!(self.job.step, Step::Raw(_));
        let mut places: Vec<Option<u16>> = vec![None; self.input.nodes.len()];
        let mut nodes = Vec::new();
        let visited: Vec<usize> = self.work.stops.iter().map(|stop| stop.node).collect();
        let reachable = 0..if walks { self.input.nodes.len() } else { 0 };
        for node in visited.into_iter().chain(reachable) {
            places[node].get_or_insert_with(|| {
                nodes.push(self.plan_node(node));
                (nodes.len() - 1) as u16 // the input has no more than 65,535
            });
        }
        let routes = std::mem::take(&mut self.routes);
        let chains: Vec<PlannedChain> = routes.iter().map(|route| self.chain(route, &places)).collect();
        let longest = |of: fn(&PlannedHop) -> u64| {
            chains.iter().flat_map(|chain| &chain.hops).map(of).max().unwrap_or(0)
        };
        let estimate = Estimate {
            keys: chains.iter().flat_map(|chain| &chain.hops).map(|hop| hop.keys).sum(),
            micros: chains.iter().map(|chain| chain.micros).max().unwrap_or(0)
                + chains.len() as u64 * MERGE_MICROS,
            bytes_moved: chains.iter().map(|chain| self.bytes_moved(chain)).sum(),
            block_micros: match self.job.step {
                Step::Raw(_) => longest(|hop| hop.micros),
                _ => longest(|hop| hop.micros).min(self.job.limits.max_block_micros.into()),
            },
        };
        Plan {
            epoch: self.input.epoch,
            nodes,
            timeout_millis: chains.iter().map(|chain| chain.timeout_millis).max().unwrap_or(SLACK_MILLIS),
            chains,
            uncovered: self.work.uncovered,
            order: self.order,
            choice: self.choice,
            estimate,
        }
    }

    fn plan_node(&self, node: usize) -> PlanNode {
        let agent = match (self.drivers[node], &self.job.agents) {
            (Drive::Beside, _) => self.input.nodes[node].node.agent.clone(),
            (Drive::By(agent), _) => self.input.nodes[agent].node.agent.clone(),
            (Drive::Foreign(agent), AgentPolicy::At(listed)) => listed.get(agent).cloned(),
            (Drive::Foreign(_) | Drive::Direct, _) => None,
        };
        PlanNode { agent, ..self.input.nodes[node].node.clone() }
    }

    fn chain(&mut self, route: &[usize], places: &[Option<u16>]) -> PlannedChain {
        let mut here = self.costs.coordinator();
        let (mut cost, mut micros, mut slowest_run, mut slowest_way) = (0.0, 0, 0, 0);
        let mut hops = Vec::with_capacity(route.len());
        for number in route {
            let stop = &mut self.work.stops[*number];
            let (node, run) = (stop.node, self.times.run[*number]);
            let way = handoff(&self.costs, here, node);
            let hop_cost = self.costs.hop(here, node);
            hops.push(PlannedHop {
                hop: Hop {
                    node: places[node].unwrap_or_default(), // set for every stop
                    slots: std::mem::take(&mut stop.slots),
                },
                keys: stop.keys,
                cost: hop_cost,
                load_cost: self.costs.load(node),
                reach: self.costs.reach(here, node),
                micros: run,
                driver: match self.drivers[node] {
                    Drive::Beside => Driver::Beside,
                    Drive::By(_) | Drive::Foreign(_) => Driver::Remote,
                    Drive::Direct => Driver::Direct,
                },
            });
            cost += hop_cost;
            micros += way + run;
            slowest_run = slowest_run.max(run);
            slowest_way = slowest_way.max(way);
            here = node;
        }
        cost += f64::from(self.costs.way(here, self.costs.coordinator()));
        micros += handoff(&self.costs, here, self.costs.coordinator());
        let count = hops.len() as u64;
        let per_node = u64::from(self.job.limits.node_timeout_millis) + PATIENCE * slowest_run / 1_000;
        let ways = slowest_way * count.saturating_sub(1) / 1_000;
        let timeout_millis = per_node * count + ways;
        PlannedChain {
            hops,
            cost,
            micros,
            timeout_millis: timeout_millis + timeout_millis / 10 + SLACK_MILLIS,
        }
    }

    fn bytes_moved(&self, chain: &PlannedChain) -> u64 {
        let keys = match &self.job.target {
            Target::Pattern(key) | Target::Walk(key) => key.len(),
            Target::Keys(keys) | Target::OrderedKeys(keys) => keys.iter().map(|key| key.len() + 1).sum(),
        };
        let text = match &self.job.step {
            Step::Lua(text) | Step::Native(text) | Step::Raw(text) => text.len(),
            Step::Builtin(_) => 0,
        };
        let state = STATE_BYTES + (keys + text) as u64 + HOP_BYTES * chain.hops.len() as u64;
        let sent = chain.hops.iter().filter(|hop| hop.reach != Reach::SameProcess).count() as u64;
        let back = u64::from(chain.hops.last().is_some_and(|hop| hop.driver != Driver::Direct));
        state * (sent + back)
    }
}
