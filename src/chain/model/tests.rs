//! What is explored: with `cargo test` the smaller bounds, and with `SKALDS_MODEL=full` the larger ones (in a release
//! build). `SKALDS_MODEL=<name>` explores one.

use std::time::Instant;

use super::actions::Job;
use super::explore::{Explored, explore};
use super::world::{Bounds, Faults};

const LIMIT: usize = 60_000_000;

fn bounds(units: u16, chains: usize) -> Bounds {
    Bounds {
        units,
        chains,
        retain: 1,
        capacity: 8,
        plans: 2,
        faults: Faults::default(),
        ack_before_persist: false,
        check_promises: true,
    }
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
fn probe() {
    let env = |name: &str, or: usize| std::env::var(name).map_or(or, |u| u.parse().unwrap());
    let none = Faults::default();
    let all: Vec<(&str, Faults)> = vec![
        ("calm", none),
        ("lose", Faults { lose: 1, ..none }),
        ("double", Faults { double: 1, ..none }),
        ("overtake", Faults { overtake: 1, ..none }),
        ("cut", Faults { cut: 1, ..none }),
        ("early", Faults { early: 1, ..none }),
        ("refuse", Faults { refuse: 1, ..none }),
        ("cancel", Faults { cancel: 1, ..none }),
        ("ccrash", Faults { coordinator_crash: 1, ..none }),
        ("acrash", Faults { agent_crash: 1, ..none }),
        ("false", Faults { false_alarm: 1, ..none }),
        ("acrash+ccrash", Faults { agent_crash: 1, coordinator_crash: 1, ..none }),
        ("acrash+lose", Faults { agent_crash: 1, lose: 1, ..none }),
        ("acrash+double", Faults { agent_crash: 1, double: 1, ..none }),
        ("acrash+refuse", Faults { agent_crash: 1, refuse: 1, ..none }),
        ("acrash2", Faults { agent_crash: 2, ..none }),
        ("lose+double+overtake", Faults { lose: 1, double: 1, overtake: 1, ..none }),
    ];
    let only = std::env::var("SKALDS_MODEL").unwrap_or_default();
    for (name, faults) in all {
        if !only.is_empty() && !only.split(',').any(|one| one == name) {
            continue;
        }
        let mut bounds = bounds(env("U", 2) as u16, env("C", 1));
        bounds.faults = faults;
        bounds.retain = env("R", 1) as u8;
        bounds.capacity = env("K", 8);
        bounds.plans = env("P", 2) as u32;
        let explored = run(name, bounds);
        if let Some((what, way)) = explored.violation {
            println!("{name}: {what}\n{}", way.join("\n"));
        }
    }
}
