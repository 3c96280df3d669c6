//! Which waiting task goes to which Skald.

use std::collections::BTreeSet;

use super::task::{Millis, Task};

/// How a Skald is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DispatchStrategy {
    /// The one with the fewest tasks.
    #[default]
    LeastTasks,
    /// One after the other.
    RoundRobin,
    /// Any.
    Random,
}

/// A Skald that takes tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Its id.
    pub id: String,
    /// The worker classes that it runs.
    pub classes: BTreeSet<String>,
    /// How many tasks it holds.
    pub tasks: u32,
    /// How many it takes at most; `None`: it does not say (Python Skalds never do).
    pub capacity: Option<u32>,
}

impl Candidate {
    /// Whether it can take one more task of this class.
    pub fn takes(&self, class_name: &str) -> bool {
        self.capacity.is_none_or(|capacity| self.tasks < capacity) && self.classes.contains(class_name)
    }
}

/// What places tasks. It remembers whose turn it is, for round robin, and draws for random.
#[derive(Debug, Clone)]
pub struct Placement {
    strategy: DispatchStrategy,
    last: Option<String>,
    rng: fastrand::Rng,
}

impl Placement {
    /// A strategy, and the seed of its choices.
    pub fn new(strategy: DispatchStrategy, seed: u64) -> Self {
        Placement { strategy, last: None, rng: fastrand::Rng::with_seed(seed) }
    }

    /// Chooses a Skald for each of `tasks`, the most urgent first, and counts it in. Answers pairs of a task's index
    /// and a Skald's index; a task that nobody takes is left out, and does not hold up those behind it.
    pub fn place(&mut self, tasks: &[Task], skalds: &mut [Candidate]) -> Vec<(usize, usize)> {
        let mut order: Vec<usize> = (0..tasks.len()).collect();
        order.sort_by_key(|index| urgency(&tasks[*index]));
        let mut placed = Vec::new();
        for task in order {
            if let Some(skald) = self.choose(&tasks[task].class_name, skalds) {
                skalds[skald].tasks += 1;
                placed.push((task, skald));
            }
        }
        placed
    }

    fn choose(&mut self, class_name: &str, skalds: &[Candidate]) -> Option<usize> {
        let mut open: Vec<usize> =
            (0..skalds.len()).filter(|index| skalds[*index].takes(class_name)).collect();
        open.sort_by(|a, b| skalds[*a].id.cmp(&skalds[*b].id)); // a choice does not depend on who was listed first
        let chosen = match self.strategy {
            DispatchStrategy::LeastTasks => open.into_iter().min_by_key(|index| skalds[*index].tasks),
            DispatchStrategy::RoundRobin => open
                .iter()
                .find(|index| self.last.as_ref().is_none_or(|last| skalds[**index].id > *last))
                .or(open.first())
                .copied(),
            DispatchStrategy::Random => (!open.is_empty()).then(|| open[self.rng.usize(..open.len())]),
        }?;
        self.last = Some(skalds[chosen].id.clone());
        Some(chosen)
    }
}

/// Sorts the most urgent first: priority, then age, then id (so that the order is total).
fn urgency(task: &Task) -> (std::cmp::Reverse<u8>, Millis, &str) {
    (std::cmp::Reverse(task.priority), task.create_date_time, &task.id)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn skald(id: &str, classes: &[&str], tasks: u32, capacity: Option<u32>) -> Candidate {
        Candidate {
            id: id.into(),
            classes: classes.iter().map(|class| (*class).to_owned()).collect(),
            tasks,
            capacity,
        }
    }

    fn task(id: &str, class: &str, priority: u8, created: Millis) -> Task {
        Task { priority, ..Task::new(id, class, created) }
    }

    fn by_name(tasks: &[Task], skalds: &[Candidate], placed: &[(usize, usize)]) -> Vec<(String, String)> {
        placed.iter().map(|(task, skald)| (tasks[*task].id.clone(), skalds[*skald].id.clone())).collect()
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(task, skald)| ((*task).to_owned(), (*skald).to_owned())).collect()
    }

    #[test]
    fn priority_goes_first_then_age() {
        let tasks = [
            task("young", "C", 5, 30),
            task("old", "C", 5, 10),
            task("low", "C", 0, 1),
            task("high", "C", 10, 99),
        ];
        let mut skalds = [skald("a", &["C"], 0, Some(3))];
        let placed = Placement::new(DispatchStrategy::LeastTasks, 0).place(&tasks, &mut skalds);
        assert_eq!(
            by_name(&tasks, &skalds, &placed),
            pairs(&[("high", "a"), ("old", "a"), ("young", "a")]),
            "and the fourth does not fit"
        );
    }

    #[test]
    fn least_tasks_evens_out() {
        let tasks: Vec<Task> = (0..4).map(|n| task(&format!("t{n}"), "C", 0, n)).collect();
        let mut skalds =
            [skald("a", &["C"], 3, None), skald("b", &["C"], 0, None), skald("c", &["D"], 0, None)];
        let placed = Placement::new(DispatchStrategy::LeastTasks, 0).place(&tasks, &mut skalds);
        assert_eq!(
            by_name(&tasks, &skalds, &placed),
            pairs(&[("t0", "b"), ("t1", "b"), ("t2", "b"), ("t3", "a")])
        );
    }

    #[test]
    fn round_robin_takes_turns_across_calls_and_when_skalds_come_and_go() {
        let mut placement = Placement::new(DispatchStrategy::RoundRobin, 0);
        let mut next = |ids: &[&str]| {
            let mut skalds: Vec<_> = ids.iter().map(|id| skald(id, &["C"], 0, None)).collect();
            let placed = placement.place(&[task("t", "C", 0, 0)], &mut skalds);
            skalds[placed[0].1].id.clone()
        };
        let turns = [
            next(&["a", "b", "c"]),
            next(&["c", "a", "b"]),
            next(&["a", "c"]),
            next(&["a", "b", "c"]),
            next(&["a", "b", "c"]),
        ];
        assert_eq!(turns, ["a", "b", "c", "a", "b"]);
    }

    #[test]
    fn a_task_that_nobody_takes_does_not_hold_up_the_others() {
        let tasks = [task("stuck", "Nobody", 10, 0), task("t", "C", 0, 1)];
        let mut skalds = [skald("a", &["C"], 0, Some(1))];
        for strategy in [DispatchStrategy::LeastTasks, DispatchStrategy::RoundRobin, DispatchStrategy::Random]
        {
            skalds[0].tasks = 0;
            let placed = Placement::new(strategy, 1).place(&tasks, &mut skalds);
            assert_eq!(by_name(&tasks, &skalds, &placed), pairs(&[("t", "a")]));
        }
        assert!(Placement::new(DispatchStrategy::Random, 1).place(&tasks, &mut []).is_empty());
    }

    proptest! {
        #[test]
        fn classes_and_capacities_are_kept(
            seed: u64,
            strategy in prop::sample::select(vec![DispatchStrategy::LeastTasks, DispatchStrategy::RoundRobin, DispatchStrategy::Random]),
            tasks in prop::collection::vec((0u8..3, 0u8..=10), 0..60),
            skalds in prop::collection::vec((prop::collection::vec(0u8..3, 0..3), prop::option::of(0u32..9)), 0..6),
        ) {
            let tasks: Vec<Task> = tasks.iter().enumerate()
                .map(|(n, (class, priority))| task(&n.to_string(), &class.to_string(), *priority, n as i64)).collect();
            let mut skalds: Vec<Candidate> = skalds.iter().enumerate().map(|(n, (classes, capacity))| Candidate {
                id: n.to_string(),
                classes: classes.iter().map(u8::to_string).collect(),
                tasks: 0,
                capacity: *capacity,
            }).collect();
            let placed = Placement::new(strategy, seed).place(&tasks, &mut skalds);
            let mut counts = vec![0u32; skalds.len()];
            let mut seen = BTreeSet::new();
            for (task, skald) in &placed {
                prop_assert!(seen.insert(*task), "placed twice");
                prop_assert!(skalds[*skald].classes.contains(&tasks[*task].class_name));
                counts[*skald] += 1;
            }
            for (skald, count) in skalds.iter().zip(&counts) {
                prop_assert_eq!(skald.tasks, *count);
                prop_assert!(skald.capacity.is_none_or(|capacity| *count <= capacity));
            }
            // What was left out could go nowhere, even now.
            for (index, task) in tasks.iter().enumerate() {
                prop_assert!(seen.contains(&index) || !skalds.iter().any(|skald| skald.takes(&task.class_name)));
            }
        }
    }
}
