//! What is explored: with `cargo test` the smaller bounds; with `SKALDS_MODEL=full` the larger ones too, for which a
//! release build is wanted; with `SKALDS_MODEL=<part of a name>` those of that name.

use std::sync::Mutex;
use std::time::Instant;

use super::actions::Job;
use super::explore::{Explored, explore};
use super::world::{Bounds, Faults};

/// More states than this are a defect of the model: something in it grows without bound.
const LIMIT: usize = 40_000_000;

const NONE: Faults = Faults {
    agent_crash: 0,
    coordinator_crash: 0,
    lose: 0,
    double: 0,
    overtake: 0,
    cut: 0,
    early: 0,
    false_alarm: 0,
    refuse: 0,
    cancel: 0,
};

/// One of each.
const AGENT: Faults = Faults { agent_crash: 1, ..NONE };
const COORDINATOR: Faults = Faults { coordinator_crash: 1, ..NONE };
const LOSE: Faults = Faults { lose: 1, ..NONE };
const DOUBLE: Faults = Faults { double: 1, ..NONE };
const OVERTAKE: Faults = Faults { overtake: 1, ..NONE };
const CUT: Faults = Faults { cut: 1, ..NONE };
const EARLY: Faults = Faults { early: 1, ..NONE };
const ALARM: Faults = Faults { false_alarm: 1, ..NONE };
const REFUSE: Faults = Faults { refuse: 1, ..NONE };
const CANCEL: Faults = Faults { cancel: 1, ..NONE };

fn bounds(units: u16, chains: usize, faults: Faults) -> Bounds {
    Bounds {
        units,
        chains,
        retain: 1,
        capacity: 8,
        plans: 2,
        faults,
        ack_before_persist: false,
        check_promises: true,
    }
}

/// What every run of the tests explores.
fn small() -> Vec<(&'static str, Bounds)> {
    let network = Faults { lose: 1, double: 1, overtake: 1, ..NONE };
    vec![
        ("2 hops, an agent crashes", bounds(2, 1, AGENT)),
        ("2 hops, an agent crashes, two states kept", Bounds { retain: 2, ..bounds(2, 1, AGENT) }),
        ("2 hops, an agent is said to be lost", bounds(2, 1, ALARM)),
        ("2 hops, a message lost, one doubled, one overtaking", bounds(2, 1, network)),
        ("3 hops, no fault", bounds(3, 1, NONE)),
        ("3 hops, a message lost", bounds(3, 1, LOSE)),
        ("3 hops, a message overtaking", bounds(3, 1, OVERTAKE)),
        ("3 hops, a unit refused", bounds(3, 1, REFUSE)),
        ("3 hops, cancelled", bounds(3, 1, CANCEL)),
        ("2 chains, a message lost, agents busy", Bounds { capacity: 1, ..bounds(3, 2, LOSE) }),
        ("2 chains, a unit refused", bounds(3, 2, REFUSE)),
        ("2 hops, the coordinator crashes", bounds(2, 1, COORDINATOR)),
        ("2 hops, a connection cut", bounds(2, 1, CUT)),
        ("2 hops, an early alarm", bounds(2, 1, EARLY)),
    ]
}

/// What is explored by hand.
fn large() -> Vec<(&'static str, Bounds)> {
    let all = Faults { agent_crash: 1, lose: 1, double: 1, overtake: 1, ..NONE };
    vec![
        ("3 hops, a message doubled", bounds(3, 1, DOUBLE)),
        ("3 hops, a connection cut", bounds(3, 1, CUT)),
        ("3 hops, an early alarm", bounds(3, 1, EARLY)),
        ("3 hops, the coordinator crashes", bounds(3, 1, COORDINATOR)),
        ("3 hops, an agent crashes", bounds(3, 1, AGENT)),
        ("3 hops, an agent is said to be lost", bounds(3, 1, ALARM)),
        ("4 units, a checkpoint, an agent crashes", bounds(4, 3, AGENT)),
        ("2 chains, an early alarm", bounds(3, 2, EARLY)),
        ("2 chains, cancelled", bounds(3, 2, CANCEL)),
        (
            "2 chains, the coordinator crashes, agents busy",
            Bounds { capacity: 1, ..bounds(3, 2, COORDINATOR) },
        ),
        ("2 chains, an agent crashes", bounds(3, 2, AGENT)),
        ("2 hops, two crashes of agents", bounds(2, 1, Faults { agent_crash: 2, ..NONE })),
        (
            "2 hops, an agent and the coordinator crash",
            bounds(2, 1, Faults { coordinator_crash: 1, ..AGENT }),
        ),
        ("2 hops, an agent crashes, a unit refused", bounds(2, 1, Faults { refuse: 1, ..AGENT })),
        ("2 hops, an agent crashes, a connection cut", bounds(2, 1, Faults { cut: 1, ..AGENT })),
        ("2 hops, an agent crashes, an early alarm", bounds(2, 1, Faults { early: 1, ..AGENT })),
        ("2 hops, the coordinator crashes, a message lost", bounds(2, 1, Faults { lose: 1, ..COORDINATOR })),
        ("2 hops, an agent crashes, a message lost, one doubled, one overtaking", bounds(2, 1, all)),
    ]
}

fn run(name: &str, bounds: Bounds) -> Explored {
    let started = Instant::now();
    let explored = explore(&Job::new(bounds), LIMIT);
    let Explored { states, transitions, ends, depth, .. } = explored;
    let took = started.elapsed();
    println!("{name}: {states} states, {transitions} transitions, {ends} ends, depth {depth}, {took:.1?}");
    explored
}

#[test]
fn no_unit_is_lost_or_folded_twice_and_every_run_ends() {
    let mut todo = small();
    let wanted = std::env::var("SKALDS_MODEL").unwrap_or_default();
    match wanted.as_str() {
        "" => {}
        "full" => todo.extend(large()),
        name => {
            todo.extend(large());
            todo.retain(|(other, _)| other.contains(name));
        }
    }
    let todo = Mutex::new(todo.into_iter());
    let total = Mutex::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let Some((name, bounds)) = todo.lock().unwrap().next() else { return };
                    let explored = run(name, bounds);
                    if let Some((what, way)) = explored.violation {
                        panic!("{name}: {what}\n{}", way.join("\n"));
                    }
                    assert!(explored.states > 1_000 && explored.ends > 1, "{name}: next to nothing happens");
                    *total.lock().unwrap() += explored.states;
                }
            });
        }
    });
    let total = total.into_inner().unwrap();
    println!("{total} states in all");
    assert!(total > 200_000 || !matches!(wanted.as_str(), "" | "full"), "less is explored than was");
}

/// An agent that acknowledges before its record is durable is caught when it does so, and, where nobody looks at
/// that, by what comes of it: a state that nobody has.
#[test]
fn an_agent_that_acknowledges_before_its_record_is_durable_is_found() {
    for (check_promises, expected) in
        [(true, "which a crash would lose"), (false, "nobody has a durable state")]
    {
        let bounds = Bounds { ack_before_persist: true, check_promises, ..bounds(2, 1, AGENT) };
        let (what, way) = run("acknowledged before persisted", bounds).violation.expect("nobody has noticed");
        println!("{what}, after {} steps:\n  {}", way.len(), way.join("\n  "));
        assert!(what.contains(expected), "{what}");
    }
}
