//! How long the planner takes: `cargo bench --bench plan`. The goal is under 10 ms for 1,000 nodes.

use std::time::Instant;

use skalds::chain::job::{AgentPolicy, Builtin, JobSpec, Target};
use skalds::chain::plan::{Link, Load, NodeFacts, Place, PlanInput, plan};
use skalds::chain::slots::{SLOTS, SlotSet};
use skalds::chain::state::PlanNode;

const ROUNDS: usize = 31;

/// A cluster of so many nodes in 3 zones of 20 racks, their slots in contiguous ranges.
fn cluster(nodes: u16, rng: &mut fastrand::Rng) -> PlanInput {
    let facts = |index: u16| {
        let bound = |index: u16| (u32::from(index) * u32::from(SLOTS) / u32::from(nodes)) as u16;
        NodeFacts {
            node: PlanNode {
                id: format!("{index:040x}"),
                redis: format!("10.0.{}.{}:6379", index / 250, index % 250),
                agent: Some(format!("10.0.{}.{}:7400", index / 250, index % 250)),
            },
            place: Place {
                zone: Some(format!("zone-{}", rng.u8(..3))),
                rack: Some(format!("rack-{}", rng.u8(..20))),
            },
            slots: SlotSet::range(bound(index), bound(index + 1) - 1),
            keys: rng.u64(100_000..1_000_000),
            load: Load { cpu: rng.f64() * 0.7, ops_per_sec: rng.f64() * 50_000.0, ..Load::default() },
            keys_per_second: None,
        }
    };
    PlanInput { nodes: (0..nodes).map(facts).collect(), open: SlotSet::full(), ..PlanInput::default() }
}

/// Every round trip measured, from places on a plane, with noise.
fn measure(input: &mut PlanInput, rng: &mut fastrand::Rng) {
    let places: Vec<(f64, f64)> = input.nodes.iter().map(|_| (rng.f64(), rng.f64())).collect();
    for (a, from) in places.iter().enumerate() {
        for (b, to) in places.iter().enumerate().skip(a + 1) {
            let way = (from.0 - to.0).hypot(from.1 - to.1);
            let micros = (80.0 + 2_000.0 * way) * (1.0 + 0.1 * rng.f64());
            input.links.push(Link { from: Some(a as u16), to: b as u16, micros: micros as u32 });
        }
    }
}

fn time(name: &str, job: &JobSpec, input: &PlanInput) {
    let cpu_before = cpu_millis();
    let mut millis: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            let plan = plan(job, input);
            let taken = start.elapsed().as_secs_f64() * 1_000.0;
            assert!(plan.is_ok_and(|plan| !plan.chains.is_empty()));
            taken
        })
        .collect();
    let cpu =
        cpu_before.zip(cpu_millis()).map_or(f64::NAN, |(before, after)| (after - before) / ROUNDS as f64);
    millis.sort_by(f64::total_cmp);
    let explanation = plan(job, input).map(|plan| plan.explain());
    let (chains, order) = explanation.map(|it| (it.chains, it.order)).unwrap_or_default();
    let (best, median) = (millis[0], millis[ROUNDS / 2]);
    println!("{name:<46} {best:>7.2} {median:>7.2} {cpu:>7.2}   {chains}; {order}");
}

/// CPU time of this thread so far, where Linux says it: on a busy machine wall-clock time says little.
fn cpu_millis() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse::<f64>().ok().map(|nanos| nanos / 1e6)
}

fn main() {
    println!("{:<46} {:>7} {:>7} {:>7}", "milliseconds a plan", "best", "median", "CPU");
    let rng = &mut fastrand::Rng::with_seed(1);
    let free = JobSpec::builtin("bench", Target::Pattern(b"order:*".to_vec()), Builtin::Count);
    let chained = JobSpec { chains: Some(1), ..free.clone() };
    let tens = JobSpec { chains: Some(100), ..free.clone() };
    let direct = JobSpec { agents: AgentPolicy::Off, ..free.clone() };
    for nodes in [3, 12, 100, 1_000] {
        let mut input = cluster(nodes, rng);
        time(&format!("{nodes} nodes in racks and zones, one chain"), &chained, &input);
        time(&format!("{nodes} nodes in racks and zones, 100 chains"), &tens, &input);
        time(&format!("{nodes} nodes in racks and zones, k chosen"), &free, &input);
        time(&format!("{nodes} nodes without agents, k chosen"), &direct, &input);
        measure(&mut input, rng);
        time(&format!("{nodes} nodes, every link measured, one chain"), &chained, &input);
        time(&format!("{nodes} nodes, every link measured, k chosen"), &free, &input);
    }
    let keys = (0..100_000).map(|number| format!("order:{number}").into_bytes()).collect();
    let ordered = JobSpec { target: Target::OrderedKeys(keys), ..free };
    time("100,000 keys in strict order over 1,000 nodes", &ordered, &cluster(1_000, rng));
}
