//! A node of a fleet: `cargo run --example worker_node`.
//!
//! It registers an asynchronous and a blocking worker class, is configured by the environment variables of the Python
//! package (`SKALD_ID`, `TASK_WORKER_RETRY`, …), and drains when it is done or on Ctrl-C: what runs may end, the rest is
//! handed back. A real node shares its backends with the fleet; here a controller in the same process gives it work.

use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use skalds::actors::ActorSystem;
use skalds::actors::controller::SystemController;
use skalds::actors::skald::Skald;
use skalds::actors::worker::{
    BlockingContext, BlockingTaskWorker, Outcome, TaskWorker, WorkerContext, WorkerError,
};
use skalds::backend::Backends;
use skalds::config::env::{ControllerMode, Environment};
use skalds::core::submission::NewTask;
use skalds::core::task::LifecycleStatus;

/// Work that waits: it shares its thread with others.
#[derive(Deserialize)]
struct Pipeline {
    steps: u32,
}

#[async_trait]
impl TaskWorker for Pipeline {
    async fn run(&self, ctx: &WorkerContext) -> Result<Outcome, WorkerError> {
        for step in 0..self.steps {
            // Each stage is tried again by itself, and is not done again after a restart.
            ctx.stage(&format!("step {step}"), 3, || async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                Ok(step)
            })
            .await?;
        }
        Ok(Outcome::done())
    }
}

/// Work that computes: it has a thread of its own.
#[derive(Deserialize)]
struct Primes {
    below: u64,
}

impl BlockingTaskWorker for Primes {
    fn run(&mut self, ctx: &BlockingContext) -> Result<Outcome, WorkerError> {
        let mut primes: Vec<u64> = Vec::new();
        for number in 2..self.below {
            if ctx.is_cancelled() {
                return Ok(Outcome::Stopped);
            }
            if primes.iter().take_while(|prime| *prime * *prime <= number).all(|prime| number % prime != 0) {
                primes.push(number);
            }
        }
        Outcome::with(&primes.len())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let environment = Environment::read(|name| std::env::var(name).ok())?;
    let backends = Backends::in_memory()?;
    let system = ActorSystem::start()?;
    let controller = SystemController::builder()
        .settings(&environment.controller)
        .mode(ControllerMode::Dispatcher)
        .backends(backends.clone())
        .start(&system)?;
    let skald = Skald::builder()
        .settings(&environment)
        .backends(backends)
        .register::<Pipeline>("Pipeline")
        .register_blocking::<Primes>("Primes")
        .start(&system)?;
    skald.ready().await;
    println!("{} is ready", skald.id());

    let mut changes = controller.subscribe();
    controller.submit(NewTask::new("Pipeline").attach("steps", 5)).await?;
    controller.submit(NewTask::new("Primes").attach("below", 100_000)).await?;
    let mut open = 2;
    while open > 0 {
        tokio::select! {
            change = changes.next() => {
                let Some(Ok(change)) = change else { break };
                println!("{} {:?} {:?}", change.class_name, change.lifecycle_status, change.progress);
                open -= i32::from(change.lifecycle_status == LifecycleStatus::Finished);
            }
            result = tokio::signal::ctrl_c() => {
                result?;
                break;
            }
        }
    }
    system.shutdown(Duration::from_secs(15)).await;
    Ok(())
}
