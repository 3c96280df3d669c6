//! How many chains, and which hops in each: a model of the time it all takes.

use super::PlanInput;
use super::cost::{Costs, UNIT_MICROS};
use super::order::{self, OrderMethod};
use super::share::Stop;
use crate::chain::job::JobSpec;

/// Keys that a node's core works off in a second, where it has not been measured: one HGET each, in the engine
/// (0.45 to 0.75 million were, on an idle core).
const KEYS_PER_SECOND: f64 = 400_000.0;
/// The least share of a core that a busy node is taken to have left.
const LEAST_CORE: f64 = 0.1;
/// Connecting and loading the step at a node.
const START_MICROS: u64 = 500;
/// Making a state durable at the receiver.
const HANDOFF_MICROS: f64 = 1_000.0;
/// Folding one chain's state into the result.
pub(super) const MERGE_MICROS: u64 = 300;
/// Fewer chains are taken when they are slower by no more than one part in this many.
const GENTLE: u64 = 20;
/// To one part in this many, numbers of chains are compared.
const PRECISION: u64 = 100;

/// How many chains a plan has, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// How many.
    pub chains: usize,
    /// How many there might have been: one for each node, fewer where nodes are hot and the job can wait.
    pub at_most: usize,
    /// Nodes past the watermark.
    pub hot: usize,
    /// What decided.
    pub reason: ChoiceReason,
}

/// What decided on the number of chains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChoiceReason {
    /// The accumulator passes from hop to hop.
    Sequential,
    /// The job says how many.
    Asked,
    /// More would hardly be faster.
    Fastest,
    /// More would be faster, but the cluster is hot.
    Hot,
}

impl Choice {
    pub(super) fn sequential() -> Self {
        Choice { chains: 1, at_most: 1, hot: 0, reason: ChoiceReason::Sequential }
    }
}

/// How long each stop is expected to take, by its number.
pub(super) struct Times {
    pub(super) run: Vec<u64>,
}

impl Times {
    pub(super) fn new(job: &JobSpec, input: &PlanInput, costs: &Costs, stops: &[Stop]) -> Self {
        let block = f64::from(job.limits.max_block_micros.max(1));
        let run = |stop: &Stop| {
            let facts = &input.nodes[stop.node];
            let left = (1.0 - facts.load.pressure()).max(LEAST_CORE);
            let measured = facts.keys_per_second.filter(|rate| rate.is_finite() && *rate > 0.0);
            let rate = measured.unwrap_or(KEYS_PER_SECOND * left);
            let engine = stop.keys as f64 / rate * 1e6;
            let calls = (engine / block).ceil().max(1.0);
            (engine + calls * costs.drive(stop.node) * UNIT_MICROS) as u64 + START_MICROS
        };
        Times { run: stops.iter().map(run).collect() }
    }
}

/// How long the state takes from one point to another.
pub(super) fn handoff(costs: &Costs, from: usize, to: usize) -> u64 {
    match f64::from(costs.way(from, to)) {
        0.0 => 0,
        way => (way * UNIT_MICROS + HANDOFF_MICROS) as u64,
    }
}

/// How many chains there may be: one for each node, less those that a job of this priority leaves alone while the
/// cluster is hot. Priority 10 leaves none alone, priority 0 all hot ones; at least one chain there is always.
fn at_most(job: &JobSpec, nodes: usize, hot: usize) -> usize {
    let left_alone = hot as f64 * (1.0 - f64::from(job.priority.min(10)) / 10.0);
    (nodes - (left_alone.ceil() as usize).min(nodes)).max(1)
}

/// Chooses the number of chains for these stops in this order.
pub(super) fn choose(
    job: &JobSpec,
    input: &PlanInput,
    times: &Times,
    costs: &Costs,
    stops: &[Stop],
    tour: &[usize],
) -> Choice {
    let is_hot = |stop: &&Stop| input.nodes[stop.node].load.pressure() > input.watermark;
    let hot = stops.iter().filter(is_hot).count();
    let at_most = at_most(job, tour.len(), hot);
    let choice = |chains, reason| Choice { chains, at_most, hot, reason };
    if job.is_sequential() || tour.is_empty() {
        return Choice::sequential();
    }
    if let Some(asked) = job.chains {
        return choice(usize::from(asked).clamp(1, tour.len()), ChoiceReason::Asked);
    }
    let sums = Sums::new(&weights(times, costs, stops, tour));
    let time = |chains: &usize| {
        sums.longest(*chains, sums.mean(*chains) / PRECISION) + *chains as u64 * MERGE_MICROS
    };
    let candidates = candidates(tour.len());
    let fastest = |most: usize| {
        let candidates = candidates.iter().chain([&most]).filter(|chains| **chains <= most);
        let times: Vec<(u64, usize)> = candidates.map(|chains| (time(chains), *chains)).collect();
        let best = times.iter().map(|(time, _)| *time).min().unwrap_or(0);
        times.iter().filter(|(time, _)| *time <= best + best / GENTLE).map(|(_, chains)| *chains).min()
    };
    let wanted = fastest(tour.len()).unwrap_or(1);
    if wanted <= at_most {
        return choice(wanted, ChoiceReason::Fastest);
    }
    choice(fastest(at_most).unwrap_or(1), ChoiceReason::Hot)
}

/// Every number up to 16, then steps of a fifth.
fn candidates(most: usize) -> Vec<usize> {
    let next = |chains: &usize| Some(if *chains < 16 { chains + 1 } else { chains + chains / 5 });
    let mut candidates: Vec<usize> =
        std::iter::successors(Some(1), next).take_while(|chains| *chains < most).collect();
    candidates.push(most.max(1));
    candidates
}

/// What each hop of the tour takes, the way to it included.
fn weights(times: &Times, costs: &Costs, stops: &[Stop], tour: &[usize]) -> Vec<u64> {
    let mut here = costs.coordinator();
    tour.iter()
        .map(|stop| {
            let there = stops[*stop].node;
            let weight = handoff(costs, here, there) + times.run[*stop];
            here = there;
            weight
        })
        .collect()
}

/// Weights, summed up.
struct Sums {
    /// `upto[i]`: of the first `i`.
    upto: Vec<u64>,
    largest: u64,
}

impl Sums {
    fn new(weights: &[u64]) -> Self {
        let mut upto = vec![0];
        let mut sum = 0;
        upto.extend(weights.iter().map(|weight| {
            sum += weight;
            sum
        }));
        Sums { upto, largest: weights.iter().copied().max().unwrap_or(0) }
    }

    fn mean(&self, pieces: usize) -> u64 {
        self.upto[self.count()].div_ceil(pieces.max(1) as u64)
    }

    fn count(&self) -> usize {
        self.upto.len() - 1
    }

    /// Where a piece that starts at `from` and weighs at most `limit` ends.
    fn end(&self, from: usize, limit: u64) -> usize {
        let most = self.upto[from] + limit;
        // Pieces are short where there are many: look near by first.
        let mut reach = 1;
        while from + reach < self.upto.len() && self.upto[from + reach] <= most {
            reach *= 2;
        }
        let (low, high) = (from + reach / 2, (from + reach).min(self.upto.len()));
        low + self.upto[low..high].partition_point(|sum| *sum <= most) - 1
    }

    fn fits(&self, pieces: usize, limit: u64) -> bool {
        let mut from = 0;
        for _ in 0..pieces {
            from = self.end(from, limit);
            if from == self.count() {
                return true;
            }
        }
        false
    }

    /// The least weight that the heaviest of so many consecutive pieces can have, or at most `slack` more.
    fn longest(&self, pieces: usize, slack: u64) -> u64 {
        let mut low = self.largest.max(self.mean(pieces));
        let mut high = low + self.largest; // one more than the mean always fits
        while low + slack < high {
            let middle = low + (high - low) / 2;
            if self.fits(pieces, middle) { high = middle } else { low = middle + 1 }
        }
        high
    }

    /// Cuts into exactly so many pieces, none of them empty, none heavier than it has to be, and as even as that
    /// allows. `1 <= pieces <= count`.
    fn cut(&self, pieces: usize) -> Vec<std::ops::Range<usize>> {
        let limit = self.longest(pieces, 0);
        let count = self.count();
        // The fewest pieces that what starts at each place can be cut into.
        let mut fewest = vec![0usize; count + 1];
        for from in (0..count).rev() {
            fewest[from] = fewest[self.end(from, limit)] + 1;
        }
        let mut ranges = Vec::with_capacity(pieces);
        let mut from = 0;
        for left in (1..=pieces).rev() {
            if left == 1 {
                ranges.push(from..count);
                break;
            }
            let mean = (self.upto[count] - self.upto[from]) / left as u64;
            let last = self.end(from, limit).min(count - (left - 1));
            let mut to = self.end(from, mean).clamp(from + 1, last);
            // Nearest to the mean, from either side.
            if to < last
                && self.upto[to + 1] - self.upto[from] - mean
                    < mean - (self.upto[to] - self.upto[from]).min(mean)
            {
                to += 1;
            }
            while to < last && fewest[to] > left - 1 {
                to += 1;
            }
            ranges.push(from..to);
            from = to;
        }
        ranges
    }
}

#[cfg(test)]
pub(super) fn cut(weights: &[u64], pieces: usize) -> Vec<std::ops::Range<usize>> {
    Sums::new(weights).cut(pieces)
}

/// Cuts a tour into chains of about the same length in time, each in its own best order.
pub(super) fn split(
    costs: &Costs,
    times: &Times,
    stops: &[Stop],
    tour: &[usize],
    chains: usize,
    method: OrderMethod,
) -> Vec<Vec<usize>> {
    if tour.is_empty() {
        return Vec::new();
    }
    if chains == 1 {
        return vec![from_the_cheaper_end(costs, stops, tour.to_vec(), method)];
    }
    let pieces = Sums::new(&weights(times, costs, stops, tour)).cut(chains);
    let order = |piece: std::ops::Range<usize>| {
        let piece = &tour[piece];
        let nodes: Vec<usize> = piece.iter().map(|stop| stops[*stop].node).collect();
        let order = match method {
            OrderMethod::Exact => order::shortest(costs, &nodes).0,
            _ => order::polish(costs, &nodes),
        };
        let chain = order.into_iter().map(|place| piece[place]).collect();
        from_the_cheaper_end(costs, stops, chain, method)
    };
    pieces.into_iter().map(order).collect()
}

/// A round trip is as long in either direction; the busy end comes last, and may have become idle by then.
fn from_the_cheaper_end(
    costs: &Costs,
    stops: &[Stop],
    mut chain: Vec<usize>,
    method: OrderMethod,
) -> Vec<usize> {
    let start =
        |stop: Option<&usize>| stop.map_or(0.0, |stop| costs.hop(costs.coordinator(), stops[*stop].node));
    if method != OrderMethod::Given && start(chain.last()) < start(chain.first()) {
        chain.reverse();
    }
    chain
}
