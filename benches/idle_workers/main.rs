//! What idle actors cost: bytes each, and the machine's time while nothing, or a little, happens.
//!
//! `cargo bench --bench idle_workers [-- actors|tasks] [NUMBER]`; 100,000 unless said otherwise. Goal: under 1 GiB and
//! under 5 % of a core. `actors` are plain supervised ones; `tasks` are workers that a Skald runs, with storage, status
//! changes and heartbeats in the embedded cache.

mod tasks;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use actix::prelude::*;
use skalds::actors::{ActorRef, ActorSystem, Spec};

pub(crate) const GOAL_BYTES: u64 = 1 << 30;
pub(crate) const GOAL_CPU: f64 = 0.05;
pub(crate) const WATCHED: Duration = Duration::from_secs(10);
/// Linux counts a process's time in hundredths of a second.
const TICK: f64 = 0.01;

struct Idle {
    started: Arc<AtomicU64>,
}

impl Actor for Idle {
    type Context = Context<Self>;
    fn started(&mut self, _: &mut Context<Self>) {
        self.started.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Message)]
#[rtype(result = "()")]
struct Beat;

impl Handler<Beat> for Idle {
    type Result = ();
    fn handle(&mut self, _: Beat, _: &mut Context<Self>) {}
}

/// Resident memory of this process in bytes.
pub(crate) fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
    pages * 4_096
}

/// The time that this process has used, all threads together, in seconds.
pub(crate) fn used() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    // The fields behind the program's name, which may hold blanks.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|ticks| ticks.parse::<f64>().ok()).expect("a number");
    (ticks(11) + ticks(12)) * TICK
}

fn main() {
    let number = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(100_000_u64);
    let wanted = |part: &str| {
        let named: Vec<String> =
            std::env::args().skip(1).filter(|arg| ["actors", "tasks"].contains(&&**arg)).collect();
        named.is_empty() || named.iter().any(|name| name == part)
    };
    // Tasks first: memory that the actors gave back would be found again and not be counted.
    if wanted("tasks") {
        tasks::measure(number);
    }
    if wanted("actors") {
        actors(number);
    }
}

fn actors(actors: u64) {
    let system = ActorSystem::builder().start().expect("the system starts");
    let started = Arc::new(AtomicU64::new(0));
    let before = resident();
    let begin = Instant::now();
    let refs: Vec<ActorRef<Idle>> = (0..actors)
        .map(|n| {
            let started = Arc::clone(&started);
            let spec = Spec::new(format!("worker-{n}"), move || Idle { started: Arc::clone(&started) });
            system.spawn(spec.label("worker")).expect("there is room")
        })
        .collect();
    while started.load(Ordering::Relaxed) < actors {
        std::thread::sleep(Duration::from_millis(1));
    }
    let spawned_in = begin.elapsed();
    let grown = resident().saturating_sub(before);
    println!(
        "{actors} actors started in {spawned_in:.2?}, {:.1} µs each",
        spawned_in.as_micros() as f64 / actors as f64
    );
    println!("{:.1} MiB, {} bytes an actor", grown as f64 / 1_048_576.0, grown / actors);

    let (at, begin) = (used(), Instant::now());
    std::thread::sleep(WATCHED);
    let idle = (used() - at) / begin.elapsed().as_secs_f64();
    println!("idle: {:.2} % of a core", idle * 100.0);

    let (at, begin) = (used(), Instant::now());
    let mut next = begin;
    while begin.elapsed() < WATCHED {
        for actor in &refs {
            actor.tell(Beat).expect("there is room");
        }
        next += Duration::from_secs(1);
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    let told = (used() - at) / begin.elapsed().as_secs_f64();
    let after = resident().saturating_sub(before);
    println!("told once a second: {:.2} % of a core, {} bytes an actor", told * 100.0, after / actors);

    let begin = Instant::now();
    let report = system.block_on(system.shutdown(Duration::from_secs(30))).expect("a plain thread");
    println!("drained {} actors in {:.2?}", report.drained, begin.elapsed());
    let met = after < GOAL_BYTES && idle < GOAL_CPU && report.is_clean();
    println!("goal (under 1 GiB and 5 % of a core): {}", if met { "met" } else { "MISSED" });
}
