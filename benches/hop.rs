//! One durable hop against its floor.
//!
//! Two agents, each on a thread of its own like an arbiter, with what an agent has: the hand-off machine, an outbox
//! on real files, links over loopback TCP. A coordinator hands job states over; each travels from one agent to the
//! other and back along its route, and at every hop it is received, persisted, acknowledged, run (an empty step) and
//! forwarded. What is measured is the time from one agent's receiving a state to the next one's.
//!
//! The floor is measured in the same run, in turn with the hops, with blocking calls and nothing else: the frame of
//! the same state to a peer and back over TCP, then one write and `fdatasync` of the same record.
//!
//! `cargo bench --bench hop`; with a number of seconds behind `--` it measures that long at each step.

#[path = "hop/agent.rs"]
mod agent;
#[path = "hop/coordinator.rs"]
mod coordinator;
#[path = "hop/floor.rs"]
mod floor;

use std::time::{Duration, Instant};

use skalds::chain::frame;
use skalds::chain::hop::Record;
use skalds::chain::job::{Access, Combine, JobSpec, Step, Target};
use skalds::chain::message::{Hello, PROTOCOL, Role};
use skalds::chain::slots::SlotSet;
use skalds::chain::state::{Hop, HopReport, JobState, PlanNode, Sequence, Tally};
use skalds::chain::value::Value;
use tokio_util::sync::CancellationToken;

/// How many hops a chain has; then its state goes to the coordinator, and a new one sets out.
const HOPS: u16 = 64;
/// Every measurement is made this often, in turn with the floor.
const ROUNDS: usize = 5;

/// Hops are counted by this.
const WINDOW: Duration = Duration::from_millis(100);

/// When a state arrived where.
#[derive(Clone, Copy)]
struct Arrival {
    job: u64,
    hop: u32,
    at: Instant,
}

fn main() {
    let seconds = std::env::args().filter_map(|argument| argument.parse().ok()).next().unwrap_or(2.0);
    let time = Duration::from_secs_f64(seconds);
    let example = state(0, &["127.0.0.1:10001".into(), "127.0.0.1:10002".into()]);
    let (mut sent, mut kept) = (Vec::new(), Vec::new());
    let sizes = frame::encode_state(&example, &mut sent).expect("it can be encoded");
    let held = Record::Held { hop: example.hop_id(), state: example.into() };
    frame::encode_record(&held, &mut kept).expect("it can be encoded");
    println!(
        "a state of {} bytes, {} as it is sent, {} as it is kept; {ROUNDS} rounds of {seconds} s",
        sizes.raw,
        sent.len(),
        kept.len()
    );

    let mut floors = Vec::new();
    let mut alone = Vec::new();
    for _ in 0..ROUNDS {
        floors.push(floor::measure(&sent, &kept, time / 2));
        alone.push(hops(1, time));
    }
    let mut together = Vec::new();
    for _ in 0..ROUNDS {
        together.push(hops(64, time));
    }

    let floor = |name, part: fn(&floor::Floor) -> &Vec<Duration>| {
        Line::of(name, floors.iter().flat_map(|floor| part(floor).iter().copied()).collect())
    };
    let latencies = |name, runs: &[Run]| {
        Line::of(name, runs.iter().flat_map(|run| run.latencies.iter().copied()).collect())
    };
    println!("{:<40}{:>10}{:>10}{:>10}", "", "p10 µs", "p50 µs", "p99 µs");
    floor("TCP there and back", |floor| &floor.ping_pong);
    floor("write and fdatasync", |floor| &floor.sync);
    let base = floor("the floor: both", |floor| &floor.both);
    let one_way = floor("(one way, write and fdatasync)", |floor| &floor.one_way);
    let hop = latencies("a durable hop, 1 in flight", &alone);
    latencies("a durable hop, 64 in flight", &together);
    println!(
        "1 in flight: {:.2} x the floor by p50, {:.2} x by p10 (goal 1.5); {:.2} x one way, write and fdatasync",
        hop.p50 / base.p50,
        hop.p10 / base.p10,
        hop.p50 / one_way.p50
    );
    let mut rates: Vec<f64> = together.iter().flat_map(|run| run.rates.iter().copied()).collect();
    rates.sort_by(f64::total_cmp);
    println!(
        "64 in flight: {:.0} hops/s, {:.0} in the best tenth of {} windows of {WINDOW:?} (goal 20,000)",
        rates[rates.len() / 2],
        rates[rates.len() * 9 / 10],
        rates.len(),
    );
    println!(
        "{:.1} records a commit, {:.1} frames a write, {:.0} µs of processor time a hop",
        mean(together.iter().map(|run| run.records_per_commit)),
        mean(together.iter().map(|run| run.frames_per_write)),
        mean(together.iter().map(|run| run.processor_micros)),
    );
}

/// What a run has shown.
struct Run {
    /// Hops a second, by window.
    rates: Vec<f64>,
    latencies: Vec<Duration>,
    records_per_commit: f64,
    frames_per_write: f64,
    processor_micros: f64,
}

/// Runs two agents and a coordinator that keeps `in_flight` states on their way, for `time` and a fifth to warm up.
fn hops(in_flight: usize, time: Duration) -> Run {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a real disk");
    let stop = CancellationToken::new();
    let agents: Vec<agent::Handle> =
        ["a", "b"].map(|name| agent::start(&dir.path().join(name), stop.clone())).into();
    let addresses = [agents[0].address.clone(), agents[1].address.clone()];
    let before = processor_time();
    let (began, ended) = coordinator::run(&addresses, in_flight, time.mul_f64(1.2));
    stop.cancel();
    let ended_agents: Vec<agent::Summary> = agents.into_iter().map(agent::Handle::join).collect();

    let used = processor_time().zip(before).map_or(f64::NAN, |(after, before)| after - before);
    let all: usize = ended_agents.iter().map(|agent| agent.arrivals.len()).sum();

    let from = began + time.mul_f64(0.2);
    let mut arrivals: Vec<Arrival> = ended_agents
        .iter()
        .flat_map(|agent| agent.arrivals.iter().copied())
        .filter(|arrival| arrival.at >= from && arrival.at <= ended)
        .collect();
    let mut windows = vec![0u32; ((ended - from).as_nanos() / WINDOW.as_nanos()) as usize];
    for arrival in &arrivals {
        let window = ((arrival.at - from).as_nanos() / WINDOW.as_nanos()) as usize;
        if let Some(count) = windows.get_mut(window) {
            *count += 1;
        }
    }
    arrivals.sort_by_key(|arrival| (arrival.job, arrival.hop));
    let latencies = arrivals
        .windows(2)
        .filter(|pair| pair[0].job == pair[1].job && pair[0].hop + 1 == pair[1].hop)
        .map(|pair| pair[1].at - pair[0].at)
        .collect();
    let sum = |part: fn(&agent::Summary) -> u64| ended_agents.iter().map(part).sum::<u64>() as f64;
    Run {
        rates: windows.iter().map(|count| f64::from(*count) / WINDOW.as_secs_f64()).collect(),
        latencies,
        records_per_commit: sum(|agent| agent.records) / sum(|agent| agent.commits),
        frames_per_write: sum(|agent| agent.frames) / sum(|agent| agent.writes),
        processor_micros: used / all as f64 * 1e6,
    }
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

/// A line of the table. The tenth percentile is what it takes when nothing else wants the processor or the disk.
struct Line {
    p10: f64,
    p50: f64,
}

impl Line {
    fn of(name: &str, mut values: Vec<Duration>) -> Self {
        values.sort_unstable();
        let micros = |share: f64| values[((values.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
        println!("{name:<40}{:>10.0}{:>10.0}{:>10.0}", micros(0.1), micros(0.5), micros(0.99));
        Line { p10: micros(0.1), p50: micros(0.5) }
    }
}

fn hello(role: Role, name: &str) -> Hello {
    Hello { protocol: PROTOCOL, role, name: name.into(), incarnation: 1, token: None }
}

/// The state of a walk over twelve nodes, of which each agent drives every second one: a Lua step, an accumulator
/// with a count for each of twenty words, and a report for each of the last eight hops.
fn state(number: u64, agents: &[String; 2]) -> JobState {
    let mut rng = fastrand::Rng::with_seed(number);
    let step = include_str!("hop/step.lua").to_owned();
    let mut job = JobSpec::new(
        format!("0198c7d2-5b1e-7c40-9d3f-{number:012x}"),
        Target::Walk(b"order:1".to_vec()),
        Step::Lua(step),
        Combine::Sum,
        Access::Read,
    );
    job.args = [("limit".to_owned(), "1000".to_owned())].into();
    let mut id = || -> String { std::iter::repeat_with(|| hex(&mut rng)).take(40).collect() };
    let nodes: Vec<PlanNode> = (0..12)
        .map(|node| PlanNode {
            id: id(),
            redis: format!("10.1.2.{}:6379", node + 10),
            agent: Some(agents[node % 2].clone()),
        })
        .collect();
    let counts =
        (0..20).map(|word| (format!("status-{word}").into_bytes(), Value::Int(rng.i64(0..1_000_000))));
    let acc = Value::Map(counts.collect());
    let reports = (0..8usize)
        .map(|order| HopReport {
            node: nodes[order].id.clone(),
            agent: agents[order % 2].clone(),
            order: order as u32,
            epoch: 1,
            units: 1,
            keys: rng.u64(..100),
            micros: rng.u64(..1_000_000),
            engine_micros: rng.u64(..1_000_000),
            calls: rng.u64(..1000),
            max_block_micros: rng.u64(..2000),
            state_bytes: rng.u64(..4000),
            state_bytes_compressed: rng.u64(..3000),
            ..HopReport::default()
        })
        .collect();
    JobState {
        job: job.into(),
        chain: 0,
        epoch: 1,
        nodes,
        route: (0..HOPS).map(|hop| Hop { node: hop % 12, slots: SlotSet::empty() }).collect(),
        position: 0,
        parts: Vec::new(),
        sequence: Sequence { done: 8, next_key: Some(b"order:123456".to_vec()), ..Sequence::default() },
        acc,
        tally: Tally { visited: 8, matched: 8, errors: 0 },
        errors: Vec::new(),
        open: Default::default(),
        failed: None,
        reports,
    }
}

fn hex(rng: &mut fastrand::Rng) -> char {
    char::from_digit(rng.u32(..16), 16).expect("it is below 16")
}

/// Seconds of processor time that this process has used (in steps of 10 ms); none where there is no `/proc`.
fn processor_time() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let ticks: f64 = fields.next()?.parse::<f64>().ok()? + fields.next()?.parse::<f64>().ok()?;
    Some(ticks / 100.0)
}
