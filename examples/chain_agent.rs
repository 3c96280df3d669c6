//! An agent with a job written in Rust, and a coordinator that runs it over the cluster, in one process.
//!
//! ```text
//! cargo run --example chain_agent -- redis://127.0.0.1:7000
//! ```
//!
//! In production the agents are processes beside the cache nodes; each registers the same jobs. Here one agent stands
//! beside the node that is named, and drives the others over the network.

use async_trait::async_trait;
use skalds::actors::{ActorSystem, AgentOptions, JobOptions, JobRun, NodeAgent};
use skalds::chain::job::{Access, Combine, JobSpec, Step, Target};
use skalds::chain::value::Value;
use skalds::node::{ChainJob, Command, NativeJobs, RedisAccess, StepContext, StepError};

/// How many keys of each type there are: what no built-in asks for.
struct Types;

#[async_trait]
impl ChainJob for Types {
    fn name(&self) -> &str {
        "types"
    }

    async fn step(&self, context: &mut StepContext<'_>, keys: &[Vec<u8>]) -> Result<Value, StepError> {
        let reads: Vec<Command> = keys.iter().map(|key| Command::new("TYPE").arg(key)).collect();
        let mut counts = std::collections::BTreeMap::new();
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

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:7000".into());
    let (access, seeds) = RedisAccess::from_urls(&[url])?;
    let natives = NativeJobs::new().with(Types);

    let system = ActorSystem::start()?;
    let data = std::env::temp_dir().join(format!("skalds-chain-agent-{}", std::process::id()));
    let agent = AgentOptions {
        redis: Some(seeds[0].clone()),
        access: access.clone(),
        natives: natives.clone(),
        data_dir: Some(data.clone()),
        ..AgentOptions::default()
    };
    let agent = NodeAgent::start(&system, agent).await?;
    println!("agent at {}, beside {}", agent.address(), seeds[0]);

    let mut job = JobSpec::new(
        format!("types-{}", std::process::id()),
        Target::Pattern(b"*".to_vec()),
        Step::Native("types".into()),
        Combine::Sum,
        Access::Read,
    );
    job.agents = skalds::chain::job::AgentPolicy::At(vec![agent.address().to_owned()]);
    let mut options = JobOptions::new(seeds, access);
    options.natives = natives;
    let report = JobRun::start(&system, job, options)?.report().await?;
    println!("{}", serde_json::to_string_pretty(&report)?);

    agent.stop().await;
    system.shutdown(std::time::Duration::from_secs(5)).await;
    std::fs::remove_dir_all(data)?;
    Ok(())
}
