//! A breadth-first explorer of everything that can happen.

use std::collections::{HashMap, VecDeque};
use std::fmt::Debug;

/// What can be explored.
pub(super) trait Model {
    type State: Clone;
    type Action: Debug;

    fn start(&self) -> Self::State;

    /// All that can happen next, in an order that the state decides. Nothing happens in a state that is over.
    fn actions(&self, state: &Self::State) -> Vec<Self::Action>;

    fn next(&self, state: &Self::State, action: &Self::Action) -> Self::State;

    /// Whether it may happen but need not: whatever must come about has to come about without it.
    fn is_fault(&self, state: &Self::State, action: &Self::Action) -> bool;

    fn fingerprint(&self, state: &Self::State) -> u64;

    /// What must hold in every state.
    fn check(&self, state: &Self::State) -> Result<(), String>;

    fn is_over(&self, state: &Self::State) -> bool;
}

/// What an exploration has seen.
#[derive(Debug)]
pub(super) struct Explored {
    pub(super) states: usize,
    pub(super) transitions: usize,
    /// States in which all is over.
    pub(super) ends: usize,
    /// The longest shortest way.
    pub(super) depth: u32,
    /// What is wrong, and the shortest way there.
    pub(super) violation: Option<(String, Vec<String>)>,
}

struct Visited {
    parent: u32,
    /// Which of its actions.
    choice: u16,
    depth: u32,
}

/// Explores all states. In each [`Model::check`] must hold, and from each a state that is over must be reachable
/// without a fault: there is no state in which a run is stuck, and none from which it can only go round.
pub(super) fn explore<M: Model>(model: &M, limit: usize) -> Explored {
    let mut seen: HashMap<u64, u32> = HashMap::new();
    let mut visited: Vec<Visited> = Vec::new();
    let mut queue: VecDeque<(u32, M::State)> = VecDeque::new();
    // Backwards, without faults.
    let mut edges: Vec<(u32, u32)> = Vec::new();
    let mut over: Vec<u32> = Vec::new();
    let mut explored = Explored { states: 0, transitions: 0, ends: 0, depth: 0, violation: None };

    let start = model.start();
    seen.insert(model.fingerprint(&start), 0);
    visited.push(Visited { parent: 0, choice: 0, depth: 0 });
    queue.push_back((0, start));
    while let Some((index, state)) = queue.pop_front() {
        let depth = visited[index as usize].depth;
        explored.depth = explored.depth.max(depth);
        if let Err(what) = model.check(&state) {
            explored.states = visited.len();
            explored.violation = Some((what, way(model, &visited, index)));
            return explored;
        }
        if model.is_over(&state) {
            over.push(index);
            continue;
        }
        for (choice, action) in model.actions(&state).iter().enumerate() {
            let next = model.next(&state, action);
            explored.transitions += 1;
            let number = visited.len() as u32;
            let to = *seen.entry(model.fingerprint(&next)).or_insert(number);
            if !model.is_fault(&state, action) {
                edges.push((to, index));
            }
            if to == number {
                assert!(
                    visited.len() < limit,
                    "more than {limit} states: {explored:?}, {} wait",
                    queue.len()
                );
                visited.push(Visited { parent: index, choice: choice as u16, depth: depth + 1 });
                queue.push_back((number, next));
            }
        }
    }
    explored.states = visited.len();
    explored.ends = over.len();
    if let Some(stuck) = first_stuck(visited.len(), edges, over) {
        explored.violation = Some(("the run cannot end from here".into(), way(model, &visited, stuck)));
    }
    explored
}

/// The first state from which no end can be reached.
fn first_stuck(states: usize, mut edges: Vec<(u32, u32)>, over: Vec<u32>) -> Option<u32> {
    edges.sort_unstable();
    let mut ends = vec![false; states];
    over.iter().for_each(|index| ends[*index as usize] = true);
    let mut todo = over;
    while let Some(to) = todo.pop() {
        let first = edges.partition_point(|(edge, _)| *edge < to);
        for (_, from) in edges[first..].iter().take_while(|(edge, _)| *edge == to) {
            if !std::mem::replace(&mut ends[*from as usize], true) {
                todo.push(*from);
            }
        }
    }
    ends.iter().position(|ends| !ends).map(|index| index as u32)
}

/// The actions that lead to a state.
fn way<M: Model>(model: &M, visited: &[Visited], mut index: u32) -> Vec<String> {
    let mut choices = Vec::new();
    while index != 0 {
        let Visited { parent, choice, .. } = visited[index as usize];
        choices.push(choice);
        index = parent;
    }
    let mut state = model.start();
    let mut way = Vec::new();
    for choice in choices.iter().rev() {
        let action = model.actions(&state).swap_remove(usize::from(*choice));
        way.push(format!("{action:?}"));
        state = model.next(&state, &action);
    }
    way
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two lamps that are put on one after the other; a fault may break the second for good.
    struct Lamps {
        breaks: bool,
    }

    impl Model for Lamps {
        type State = (u8, bool);
        type Action = &'static str;

        fn start(&self) -> (u8, bool) {
            (0, false)
        }

        fn actions(&self, (on, broken): &(u8, bool)) -> Vec<&'static str> {
            let mut actions = vec!["wait"];
            if !broken {
                actions.push("on");
            }
            if self.breaks && *on == 1 {
                actions.push("break");
                actions.push("repair");
            }
            actions
        }

        fn next(&self, (on, broken): &(u8, bool), action: &&'static str) -> (u8, bool) {
            match *action {
                "on" => (on + 1, *broken),
                "break" => (*on, true),
                "repair" => (*on, false),
                _ => (*on, *broken),
            }
        }

        fn is_fault(&self, _: &(u8, bool), action: &&'static str) -> bool {
            matches!(*action, "break" | "repair")
        }

        fn fingerprint(&self, (on, broken): &(u8, bool)) -> u64 {
            u64::from(*on) * 2 + u64::from(*broken)
        }

        fn check(&self, (on, _): &(u8, bool)) -> Result<(), String> {
            if *on > 2 { Err("too bright".into()) } else { Ok(()) }
        }

        fn is_over(&self, (on, _): &(u8, bool)) -> bool {
            *on == 2
        }
    }

    #[test]
    fn going_round_is_no_end_and_a_lucky_fault_no_way_out() {
        let fine = explore(&Lamps { breaks: false }, 100);
        assert_eq!((fine.states, fine.transitions, fine.ends, fine.depth), (3, 4, 1, 2));
        assert_eq!(fine.violation, None);
        let (what, way) = explore(&Lamps { breaks: true }, 100).violation.unwrap();
        assert_eq!(
            (what.as_str(), &way[..]),
            ("the run cannot end from here", &["\"on\"".into(), "\"break\"".into()][..])
        );
    }
}
