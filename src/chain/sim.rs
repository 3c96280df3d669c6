//! A seeded simulation of whole jobs: three agents and a coordinator with the machines that run in production, over
//! a network and disks that misbehave in every way they can. A seed decides everything, so a failure is repeated by
//! its seed: `SKALDS_SIM_SEED=n cargo test --lib chain::sim` prints what happened.

mod cluster;
mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use self::world::World;
use super::job::{Access, Combine, JobSpec, Step, Target};
use super::message::EndReason;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JobKind {
    Slots,
    Ordered,
    Walk,
}

/// What a seed is about.
#[derive(Debug, Clone)]
struct Plan {
    kind: JobKind,
    spec: Arc<JobSpec>,
    units: u16,
    crashes: u32,
    lose_agent: bool,
    false_alarms: bool,
    breaks: u32,
    moves: u32,
    fail_over: bool,
    cancel: bool,
    poison: Option<u16>,
    /// Percent of messages.
    loss: u8,
    doubling: u8,
    capacity: usize,
    ack_before_persist: bool,
}

impl Plan {
    fn of_seed(rng: &mut fastrand::Rng) -> Self {
        let kind = [JobKind::Slots, JobKind::Slots, JobKind::Ordered, JobKind::Walk][rng.usize(..4)];
        let access = if rng.bool() { Access::Read } else { Access::Write };
        let target = match kind {
            JobKind::Slots => Target::Pattern(b"*".to_vec()),
            JobKind::Ordered => Target::OrderedKeys(Vec::new()),
            JobKind::Walk => Target::Walk(b"0".to_vec()),
        };
        let step = Step::Native("tokens".into());
        let mut spec = JobSpec::new("j", target, step, Combine::Concat { cap: 1_000 }, access);
        spec.limits.retain = rng.u8(1..=2);
        let units = rng.u16(1..=16);
        let often = |rng: &mut fastrand::Rng, one_in: u8| rng.u8(..one_in) == 0;
        Plan {
            kind,
            units,
            crashes: rng.u32(0..=3),
            lose_agent: often(rng, 5),
            false_alarms: often(rng, 5),
            breaks: rng.u32(0..=2),
            moves: rng.u32(0..=3),
            fail_over: kind == JobKind::Slots && access == Access::Write && often(rng, 3),
            cancel: often(rng, 6),
            poison: often(rng, 10).then(|| rng.u16(..units)),
            loss: rng.u8(0..15),
            doubling: rng.u8(0..15),
            capacity: rng.usize(1..4),
            ack_before_persist: false,
            spec: Arc::new(spec),
        }
    }
}

struct Report {
    status: Option<EndReason>,
    handled: u64,
    replans: u32,
    result: Result<(), String>,
    trace: Vec<String>,
}

fn simulate(seed: u64, ack_before_persist: bool, trace: bool) -> Report {
    let mut rng = fastrand::Rng::with_seed(seed);
    let plan = Plan { ack_before_persist, ..Plan::of_seed(&mut rng) };
    let mut world = World::new(plan.clone(), rng, trace);
    let result = world.run().map_err(|error| format!("seed {seed}: {error}\n{plan:?}"));
    Report {
        status: world.outcome.as_ref().map(|outcome| outcome.status),
        handled: world.handled,
        replans: world.replans(),
        result,
        trace: world.trace.unwrap_or_default(),
    }
}

/// The end of what happened, for people.
fn explain(seed: u64, ack_before_persist: bool) -> String {
    let report = simulate(seed, ack_before_persist, true);
    let tail = report.trace.len().saturating_sub(60);
    let error = report.result.err().unwrap_or_default();
    format!("{error}\n{}", report.trace[tail..].join("\n"))
}

#[test]
fn no_unit_is_lost_or_doubled() {
    if let Ok(seed) = std::env::var("SKALDS_SIM_SEED") {
        let seed = seed.parse().unwrap();
        let report = simulate(seed, false, true);
        eprintln!("{}", report.trace.join("\n"));
        return report.result.unwrap();
    }
    let next = AtomicU64::new(0);
    let ends = [const { AtomicU64::new(0) }; 3];
    let (events, replans) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= SEEDS {
                        return;
                    }
                    let report = simulate(seed, false, false);
                    if report.result.is_err() {
                        next.store(SEEDS, Ordering::Relaxed);
                        panic!("{}", explain(seed, false));
                    }
                    let end = match report.status {
                        Some(EndReason::Finished) => 0,
                        Some(EndReason::Failed) => 1,
                        _ => 2,
                    };
                    ends[end].fetch_add(1, Ordering::Relaxed);
                    events.fetch_add(report.handled, Ordering::Relaxed);
                    replans.fetch_add(u64::from(report.replans), Ordering::Relaxed);
                }
            });
        }
    });
    let [finished, failed, cancelled] = ends.map(AtomicU64::into_inner);
    println!(
        "{SEEDS} seeds: {finished} finished, {failed} failed, {cancelled} cancelled; {} events, {} plans made again",
        events.into_inner(),
        replans.into_inner()
    );
    // A simulation in which nothing of this happens would show nothing.
    assert!(finished > SEEDS / 2 && failed > SEEDS / 50 && cancelled > SEEDS / 50);
}

const SEEDS: u64 = 10_000;

#[test]
fn an_agent_that_acknowledges_before_its_record_is_durable_is_found() {
    let found = (0..2_000).find(|seed| simulate(*seed, true, false).result.is_err());
    let seed = found.expect("2,000 seeds have not noticed");
    println!("seed {seed}: {}", explain(seed, true).lines().next().unwrap_or_default());
}
