//! In what order the nodes are visited: the shortest round trip from the coordinator through all of them and back.
//!
//! Every node's load and the way from its driver count once whatever the order, so only the ways between hops
//! matter here, and those are the same in both directions.

use super::cost::Costs;

/// Up to here every order is considered (Held–Karp: 4,096 sets of 12 nodes).
const EXACT: usize = 12;
/// How many of the nearest nodes each is tried next to.
const NEIGHBOURS: usize = 10;
/// The longest piece that Or-opt moves.
const SEGMENT: usize = 3;
/// How many exchanges are looked at for each node. A bound, not a goal: most tours are done long before.
const TRIES: usize = 400;
/// Less is no gain, but rounding.
const EPSILON: f64 = 1e-6;

/// How an order was found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OrderMethod {
    /// The job's own: keys in strict order, a walk, a single hop.
    Given,
    /// The best of all orders.
    Exact,
    /// The nearest neighbour each time, improved by 2-opt and Or-opt.
    Improved {
        /// The way before.
        nearest_neighbour: f64,
        /// The way after.
        improved: f64,
    },
}

/// The order in which to visit these nodes, as indices into `nodes`.
pub(super) fn shortest(costs: &Costs, nodes: &[usize]) -> (Vec<usize>, OrderMethod) {
    let ways = Ways { costs, nodes };
    if nodes.len() <= EXACT {
        return (to_stops(exact(&ways)), OrderMethod::Exact);
    }
    let mut tour = nearest_neighbour(&ways);
    let before = ways.length(&tour);
    improve(&ways, &mut tour);
    let method = OrderMethod::Improved { nearest_neighbour: before, improved: ways.length(&tour) };
    (to_stops(tour), method)
}

/// A better order of these nodes, given a good one (that in which they stand).
pub(super) fn polish(costs: &Costs, nodes: &[usize]) -> Vec<usize> {
    let ways = Ways { costs, nodes };
    let mut tour: Vec<usize> = (0..=nodes.len()).collect();
    improve(&ways, &mut tour);
    to_stops(tour)
}

/// Distances between points; point 0 is the coordinator, point `i + 1` is `nodes[i]`. A tour starts with point 0.
struct Ways<'a> {
    costs: &'a Costs,
    nodes: &'a [usize],
}

impl Ways<'_> {
    fn points(&self) -> usize {
        self.nodes.len() + 1
    }

    fn node(&self, point: usize) -> usize {
        if point == 0 { self.costs.coordinator() } else { self.nodes[point - 1] }
    }

    fn between(&self, a: usize, b: usize) -> f64 {
        f64::from(self.costs.way(self.node(a), self.node(b)))
    }

    fn length(&self, tour: &[usize]) -> f64 {
        let back = tour.last().map_or(0.0, |last| self.between(*last, tour[0]));
        tour.windows(2).map(|pair| self.between(pair[0], pair[1])).sum::<f64>() + back
    }
}

fn to_stops(tour: Vec<usize>) -> Vec<usize> {
    tour.into_iter().skip(1).map(|point| point - 1).collect()
}

/// Held and Karp's dynamic programme: the shortest way through each set of nodes that ends at each of them.
fn exact(ways: &Ways<'_>) -> Vec<usize> {
    let count = ways.nodes.len();
    if count == 0 {
        return vec![0];
    }
    let at = |set: usize, last: usize| set * count + last;
    let mut shortest = vec![f64::INFINITY; count << count];
    let mut before = vec![0u8; count << count];
    for node in 0..count {
        shortest[at(1 << node, node)] = ways.between(0, node + 1);
    }
    let between: Vec<f64> =
        (0..count * count).map(|pair| ways.between(pair / count + 1, pair % count + 1)).collect();
    for set in 1..1usize << count {
        for last in (0..count).filter(|last| set & 1 << last != 0) {
            let so_far = shortest[at(set, last)];
            for next in (0..count).filter(|next| set & 1 << next == 0) {
                let length = so_far + between[last * count + next];
                let place = at(set | 1 << next, next);
                if length < shortest[place] {
                    shortest[place] = length;
                    before[place] = last as u8;
                }
            }
        }
    }
    let mut set = (1 << count) - 1;
    let whole = |last: &usize| shortest[at(set, *last)] + ways.between(*last + 1, 0);
    let mut last = (0..count).min_by(|a, b| whole(a).total_cmp(&whole(b))).unwrap_or(0);
    let mut tour = Vec::with_capacity(count + 1);
    while set != 0 {
        tour.push(last + 1);
        let previous = usize::from(before[at(set, last)]);
        set &= !(1 << last);
        last = previous;
    }
    tour.push(0);
    tour.reverse();
    tour
}

/// Always to the node that costs least from here, its load included.
fn nearest_neighbour(ways: &Ways<'_>) -> Vec<usize> {
    let costs = ways.costs;
    let mut left: Vec<usize> = (1..ways.points()).collect();
    let mut sites = costs.sites_of(ways.nodes.iter().copied());
    let own = |node: &usize| (costs.load(*node) + costs.drive(*node)) as f32;
    let mut own: Vec<f32> = ways.nodes.iter().map(own).collect();
    let mut row = Vec::with_capacity(left.len());
    let mut tour = vec![0];
    let mut here = costs.coordinator();
    while !left.is_empty() {
        costs.ways(here, &sites, &mut row);
        let mut best = (0, f32::INFINITY);
        for (place, (way, own)) in row.iter().zip(&own).enumerate() {
            if way + own < best.1 {
                best = (place, way + own);
            }
        }
        own.swap_remove(best.0);
        sites.swap_remove(best.0);
        let next = left.swap_remove(best.0);
        here = ways.node(next);
        tour.push(next);
    }
    tour
}

/// Exchanges two edges (2-opt) or moves up to three nodes (Or-opt) as long as that shortens the tour.
fn improve(ways: &Ways<'_>, tour: &mut Vec<usize>) {
    if tour.len() < 4 {
        return; // there is only one round trip
    }
    let neighbours = neighbours(ways);
    let mut search = Search { ways, place: vec![0; tour.len()], tour, tries: 0 };
    search.tries = TRIES * search.tour.len();
    search.note_places(0..search.tour.len());
    let mut queue: std::collections::VecDeque<usize> = search.tour.iter().copied().collect();
    let mut queued = vec![true; queue.len()];
    while let Some(point) = queue.pop_front() {
        queued[point] = false;
        while let Some(touched) = search.step(point, &neighbours[point]) {
            for point in touched {
                if !std::mem::replace(&mut queued[point], true) {
                    queue.push_back(point);
                }
            }
        }
        if search.tries == 0 {
            break;
        }
    }
}

fn neighbours(ways: &Ways<'_>) -> Vec<Vec<usize>> {
    let keep = NEIGHBOURS.min(ways.points() - 1);
    let sites = ways.costs.sites_of((0..ways.points()).map(|point| ways.node(point)));
    let mut row = Vec::with_capacity(ways.points());
    let mut nearest: Vec<(f32, usize)> = Vec::with_capacity(keep + 1);
    (0..ways.points())
        .map(|point| {
            ways.costs.ways(ways.node(point), &sites, &mut row);
            nearest.clear();
            let mut farthest = f32::INFINITY;
            for (other, way) in row.iter().enumerate() {
                if *way < farthest && other != point {
                    let place = nearest.partition_point(|(before, _)| before <= way);
                    nearest.insert(place, (*way, other));
                    nearest.truncate(keep);
                    if nearest.len() == keep {
                        farthest = nearest[keep - 1].0;
                    }
                }
            }
            nearest.iter().map(|(_, other)| *other).collect()
        })
        .collect()
}

/// A tour under improvement. Point 0 stays at its head.
struct Search<'a> {
    ways: &'a Ways<'a>,
    tour: &'a mut Vec<usize>,
    /// Where in the tour each point is.
    place: Vec<usize>,
    /// How many exchanges may still be looked at.
    tries: usize,
}

impl Search<'_> {
    fn note_places(&mut self, range: std::ops::Range<usize>) {
        for place in range {
            self.place[self.tour[place]] = place;
        }
    }

    fn after(&self, point: usize) -> usize {
        self.tour[(self.place[point] + 1) % self.tour.len()]
    }

    fn before(&self, point: usize) -> usize {
        self.tour[(self.place[point] + self.tour.len() - 1) % self.tour.len()]
    }

    /// Makes the first exchange around a point that shortens the tour; answers the points at its ends.
    fn step(&mut self, point: usize, neighbours: &[usize]) -> Option<Vec<usize>> {
        self.exchange(point, neighbours, true)
            .or_else(|| self.exchange(point, neighbours, false))
            .or_else(|| (1..=SEGMENT).find_map(|length| self.relocate(point, length, true, neighbours)))
            .or_else(|| (2..=SEGMENT).find_map(|length| self.relocate(point, length, false, neighbours)))
    }

    /// 2-opt: the edges after (or before) `point` and a neighbour give way to one between the two and one between
    /// their other ends.
    fn exchange(&mut self, point: usize, neighbours: &[usize], forward: bool) -> Option<Vec<usize>> {
        let next = |search: &Self, point| if forward { search.after(point) } else { search.before(point) };
        let end = next(self, point);
        let edge = self.ways.between(point, end);
        for neighbour in neighbours {
            let gained = edge - self.ways.between(point, *neighbour);
            if gained <= EPSILON {
                return None; // the others are farther still
            }
            self.tries = self.tries.checked_sub(1)?;
            let other_end = next(self, *neighbour);
            let gained =
                gained + self.ways.between(*neighbour, other_end) - self.ways.between(end, other_end);
            if gained > EPSILON {
                let first = if forward { point } else { end };
                let second = if forward { *neighbour } else { other_end };
                let (a, b) = (self.place[first], self.place[second]);
                let (from, to) = (a.min(b) + 1, a.max(b));
                self.tour[from..=to].reverse();
                self.note_places(from..to + 1);
                return Some(vec![point, end, *neighbour, other_end]);
            }
        }
        None
    }

    /// Or-opt: the piece of the tour that starts (or ends) with `point` goes next to a neighbour of it.
    fn relocate(
        &mut self,
        point: usize,
        length: usize,
        starts: bool,
        neighbours: &[usize],
    ) -> Option<Vec<usize>> {
        let place = self.place[point];
        let (from, to) =
            if starts { (place, place + length - 1) } else { ((place + 1).checked_sub(length)?, place) };
        if from == 0 || to >= self.tour.len() {
            return None; // the coordinator stays where it is
        }
        let other = if starts { self.tour[to] } else { self.tour[from] };
        let (left, right) = (self.tour[from - 1], self.tour[(to + 1) % self.tour.len()]);
        let ends = if starts { [point, other] } else { [other, point] };
        let gap = self.ways.between(left, ends[0]) + self.ways.between(ends[1], right);
        let saved = gap - self.ways.between(left, right);
        for neighbour in neighbours {
            let way = self.ways.between(point, *neighbour);
            if saved - way <= EPSILON {
                return None;
            }
            if (from..=to).contains(&self.place[*neighbour]) {
                continue;
            }
            for follows in [true, false] {
                self.tries = self.tries.checked_sub(1)?;
                let beyond = if follows { self.after(*neighbour) } else { self.before(*neighbour) };
                if (from..=to).contains(&self.place[beyond]) {
                    continue;
                }
                let added = way + self.ways.between(other, beyond) - self.ways.between(*neighbour, beyond);
                if saved - added > EPSILON {
                    self.move_piece(from, to, *neighbour, follows, starts);
                    return Some(vec![left, right, point, other, *neighbour, beyond]);
                }
            }
        }
        None
    }

    /// Moves a piece behind a point (or before it), with the right end next to it.
    fn move_piece(&mut self, from: usize, to: usize, neighbour: usize, follows: bool, starts: bool) {
        if follows != starts {
            self.tour[from..=to].reverse();
        }
        let length = to + 1 - from;
        let place = self.place[neighbour];
        let at = match follows {
            true => place + 1,
            false if place == 0 => self.tour.len(), // before the coordinator is at the end
            false => place,
        };
        let changed = if at <= from { at..to + 1 } else { from..at };
        if at <= from {
            self.tour[changed.clone()].rotate_right(length);
        } else {
            self.tour[changed.clone()].rotate_left(length);
        }
        self.note_places(changed);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The way through these nodes in this order and back.
    pub(in crate::chain::plan) fn length(costs: &Costs, nodes: &[usize]) -> f64 {
        let tour: Vec<usize> = (0..=nodes.len()).collect();
        Ways { costs, nodes }.length(&tour)
    }

    pub(in crate::chain::plan) fn nearest(costs: &Costs, nodes: &[usize]) -> Vec<usize> {
        to_stops(nearest_neighbour(&Ways { costs, nodes }))
    }
}
