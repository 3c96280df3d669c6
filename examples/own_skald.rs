//! A `skald` of your own: the same program with a chain job and a worker class written in Rust.
//!
//! ```text
//! own_skald agent --redis redis://127.0.0.1:7000 --data /var/lib/skald     # beside each node
//! own_skald job run --native types --match '*' --redis redis://127.0.0.1:7000
//! own_skald dev                                                             # runs tasks of the class Greet, too
//! ```

use std::collections::BTreeMap;

use async_trait::async_trait;
use serde::Deserialize;
use skalds::actors::worker::{Outcome, TaskWorker, WorkerContext, WorkerError};
use skalds::chain::value::Value;
use skalds::cli::Own;
use skalds::node::{ChainJob, Command, StepContext, StepError};

/// How many keys of each type there are.
struct Types;

#[async_trait]
impl ChainJob for Types {
    fn name(&self) -> &str {
        "types"
    }

    async fn step(&self, context: &mut StepContext<'_>, keys: &[Vec<u8>]) -> Result<Value, StepError> {
        let reads: Vec<Command> = keys.iter().map(|key| Command::new("TYPE").arg(key)).collect();
        let mut counts = BTreeMap::new();
        for (key, reply) in keys.iter().zip(context.read(&reads).await?) {
            match reply {
                Ok(Value::Bytes(kind)) => *counts.entry(kind).or_insert(0i64) += 1,
                Ok(other) => context.fail(key, format!("TYPE answered {other:?}")),
                Err(reason) => context.fail(key, reason),
            }
        }
        Ok(Value::Map(counts.into_iter().map(|(kind, count)| (kind, Value::Int(count))).collect()))
    }
}

/// Greets.
#[derive(Deserialize)]
struct Greet {
    name: String,
}

#[async_trait]
impl TaskWorker for Greet {
    async fn run(&self, _: &WorkerContext) -> Result<Outcome, WorkerError> {
        Outcome::with(&format!("hello, {}", self.name))
    }
}

fn main() -> std::process::ExitCode {
    let mut own = Own::default();
    own.jobs = own.jobs.with(Types);
    own.classes.register::<Greet>("Greet");
    skalds::cli::main(own)
}
