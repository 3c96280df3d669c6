//! Workers of a Skald that do nothing: what their actors, documents and heartbeats cost.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde::Deserialize;
use skalds::actors::ActorSystem;
use skalds::actors::controller::SystemController;
use skalds::actors::skald::Skald;
use skalds::actors::worker::{Outcome, TaskWorker, WorkerContext, WorkerError};
use skalds::backend::Backends;
use skalds::core::submission::NewTask;
use skalds::core::task::LifecycleStatus;

use crate::{GOAL_BYTES, GOAL_CPU, WATCHED, resident, used};

/// Tasks submitted at once.
const BATCH: u64 = 1_000;
const PATIENCE: Duration = Duration::from_secs(600);

#[derive(Deserialize)]
struct Idle {}

#[async_trait]
impl TaskWorker for Idle {
    async fn run(&self, ctx: &WorkerContext) -> Result<Outcome, WorkerError> {
        ctx.cancelled().await;
        Ok(Outcome::Stopped)
    }
}

pub(crate) fn measure(tasks: u64) {
    let system = ActorSystem::start().expect("the system starts");
    let before = resident();
    let inside = system.clone();
    system.block_on(async move { run(&inside, tasks, before).await }).expect("a plain thread");
}

async fn run(system: &ActorSystem, tasks: u64, before: u64) {
    let backends = Backends::in_memory().expect("it needs nothing");
    let capacity = u32::try_from(tasks).expect("a number of tasks that fits");
    let controller = SystemController::builder().backends(backends.clone()).start(system).expect("it starts");
    let skald = Skald::builder().backends(backends).capacity(capacity).register::<Idle>("Idle").start(system);
    let skald = skald.expect("it starts");
    skald.ready().await;

    let begin = Instant::now();
    for first in (0..tasks).step_by(BATCH as usize) {
        let batch = (first..tasks.min(first + BATCH)).map(|n| NewTask::new("Idle").id(format!("idle-{n}")));
        controller.submit_many(batch.collect()).await.expect("they are fine");
    }
    let submitted = begin.elapsed();
    let running = async || {
        let counts = controller.count_by_status().await.expect("the storage is there");
        counts.iter().find(|(status, _)| *status == LifecycleStatus::Running).map_or(0, |(_, count)| *count)
    };
    while running().await < tasks {
        assert!(begin.elapsed() < PATIENCE, "{} of {tasks} tasks run", running().await);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    println!("{tasks} tasks submitted in {submitted:.2?}, all running after {:.2?}", begin.elapsed());

    // What starting needed is over by then.
    tokio::time::sleep(WATCHED).await;
    let (at, watched) = (used(), Instant::now());
    tokio::time::sleep(3 * WATCHED).await;
    let cpu = (used() - at) / watched.elapsed().as_secs_f64();
    let grown = resident().saturating_sub(before);
    let alive = running().await;
    println!("idle with heartbeats: {:.2} % of a core; {alive} still run", cpu * 100.0);
    println!("{:.1} MiB, {} bytes a task", grown as f64 / 1_048_576.0, grown / tasks);
    let met = grown < GOAL_BYTES && cpu < GOAL_CPU && alive == tasks;
    println!("goal (under 1 GiB and 5 % of a core): {}", if met { "met" } else { "MISSED" });

    let begin = Instant::now();
    let report = system.shutdown(Duration::from_secs(120)).await;
    println!("drained in {:.2?}, clean: {}", begin.elapsed(), report.is_clean());
}
