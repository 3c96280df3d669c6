//! Skalds: an actor system for long-running tasks, and for batch jobs that move to the data of a Redis Cluster.
//!
//! **Tasks** are workers that a fleet of [Skalds](actors::skald::Skald) runs, a
//! [System Controller](actors::controller::SystemController) dispatches and watches, and people update, pause and
//! cancel while they run. **Chain jobs** (`actors::JobRun`, feature `redis`) work over all keys of a cluster: an
//! agent (`actors::NodeAgent`) beside each node runs the step there and hands a small state to the next node. A chain job
//! can be a task (`actors::ChainJobs`). Everything that acts is an actix actor in one
//! [`ActorSystem`](actors::ActorSystem).
//!
//! ```text
//!   core ◄── chain       rules: pure functions over data
//!    ▲ ▲      ▲ ▲
//!    │ └──┬───┘ │
//!    │ backend  node     cache memory, events, storage │ one cache node
//!    └────┴─ actors ─┘   the system, Skalds, workers, controller, agents, coordinators
//!             ▲   ▲
//!            web  cli    REST │ the `skald` binary
//! ```
//!
//! # What it promises
//! - A task changes its status by one table ([`core::lifecycle`]) and one holder at a time: what a stale holder says is
//!   refused. What storage has acknowledged survives `kill -9`.
//! - A chain job ends as `Finished` only when every unit is in its ledger, and each unit's result is folded once and its
//!   writes are applied once, also when agents or the coordinator crash and while slots move.
//! - A panic ends one actor, with its text; the others go on. Every queue has a bound.
//!
//! # What it does not do yet
//! - Authentication and encryption: everything listens on loopback unless told otherwise.
//! - A sandbox: a user's Lua runs in Redis with the rights of the connection.
//! - Pause and live update of a chain job that runs: it can be cancelled, and tasks of other classes can be paused and
//!   updated.
//! - Reads from replicas, a probe of the latency between nodes, and a cap on keys per second of a chain job.
//! - Rust workers in processes of their own: an async worker that does not listen is dropped at its next `await`, a thread
//!   that does not is abandoned and runs on, and only a program (class `Command`) is really ended.
//!
//! # A task in one process
//! ```
//! use serde::Deserialize;
//! use skalds::actors::ActorSystem;
//! use skalds::actors::controller::SystemController;
//! use skalds::actors::skald::Skald;
//! use skalds::actors::worker::{Outcome, TaskWorker, WorkerContext, WorkerError};
//! use skalds::backend::Backends;
//! use skalds::core::submission::NewTask;
//! use skalds::core::task::LifecycleStatus;
//!
//! #[derive(Deserialize)]
//! struct Greet { name: String }
//!
//! #[async_trait::async_trait]
//! impl TaskWorker for Greet {
//!     async fn run(&self, _: &WorkerContext) -> Result<Outcome, WorkerError> {
//!         Outcome::with(&format!("hello, {}", self.name))
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let system = ActorSystem::start()?;
//! let inside = system.clone();
//! let greeting = system.block_on(async move {
//!     let backends = Backends::in_memory()?;
//!     let controller = SystemController::builder().backends(backends.clone()).start(&inside)?;
//!     let skald = Skald::builder().backends(backends).register::<Greet>("Greet").start(&inside)?;
//!     skald.ready().await;
//!     let mut changes = controller.subscribe();
//!     controller.submit(NewTask::new("Greet").id("g").attach("name", "world")).await?;
//!     while let Some(Ok(change)) = changes.next().await {
//!         if change.lifecycle_status == LifecycleStatus::Finished { break }
//!     }
//!     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(controller.get("g").await?.skalds.result)
//! })?;
//! assert_eq!(greeting.unwrap(), Some("hello, world".into()));
//! # Ok(())
//! # }
//! ```

pub mod actors;
pub mod backend;
pub mod chain;
#[cfg(feature = "cli")]
pub mod cli;
pub mod config;
pub mod core;
#[cfg(feature = "redis")]
pub mod node;
#[cfg(feature = "web")]
pub mod web;
