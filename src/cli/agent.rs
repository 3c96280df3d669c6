//! `skald agent`: an agent beside one cache node.

use std::path::PathBuf;
use std::time::Duration;

use crate::actors::{ActorSystem, AgentMetrics, AgentOptions, NodeAgent};
use crate::web;

use super::exit::{Exit, Failure};
use super::output;
use super::redis::RedisArgs;
use super::serve::own_addresses;
use super::stop;

/// How long hops under way have to come to a stop.
const SHUTDOWN: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    redis: RedisArgs,
    /// Where other agents and coordinators connect; port 0 chooses one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    listen: String,
    /// The address that they are told, where it is another one
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Where job states are kept until the next agent has them; each agent needs a directory of its own. Left out:
    /// .skald/agent-HOST-PORT, after its node
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Serve metrics over HTTP here, under /metrics
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<String>,
    /// The zone that it is in, as availability zones are called: chains stay within one where they can
    #[arg(long, value_name = "NAME")]
    zone: Option<String>,
    /// The rack that it is in
    #[arg(long, value_name = "NAME")]
    rack: Option<String>,
    /// Hops that run at once on one node
    #[arg(long, value_name = "N", default_value_t = 1)]
    per_node: usize,
    /// Listen on addresses that other machines reach. Nothing is authenticated or encrypted yet: whoever reaches the
    /// port can run jobs
    #[arg(long)]
    allow_remote: bool,
}

pub(crate) fn run(args: Args) -> Result<Exit, Failure> {
    let (access, seeds) = args.redis.access()?.ok_or_else(|| {
        Failure::usage("say which node it stands beside: --redis redis://host:port (or REDIS_URL)")
    })?;
    let [redis] = &seeds[..] else {
        return Err(Failure::usage("an agent stands beside one node; give --redis one address"));
    };
    let metrics = match &args.metrics {
        Some(listen) => Some(own_addresses(listen, args.allow_remote, "read this agent's metrics")?),
        None => None,
    };
    let mut options = AgentOptions {
        listen: Some(args.listen),
        advertise: args.advertise,
        redis: Some(redis.clone()),
        zone: args.zone,
        rack: args.rack,
        access,
        data_dir: Some(args.data.unwrap_or_else(|| folder_beside(redis))),
        allow_remote: args.allow_remote,
        per_node: args.per_node,
        natives: super::own().jobs,
        ..AgentOptions::default()
    };
    let system = ActorSystem::start().map_err(Failure::failed)?;
    let inside = system.clone();
    options.metrics = Some(AgentMetrics::register(&system));
    let served = system.block_on(async move {
        let metrics = match &metrics {
            Some(addresses) => Some(web::serve_metrics(&addresses[..], inside.clone()).map_err(|error| {
                Failure::failed(format!("cannot serve metrics on {addresses:?}: {error}"))
            })?),
            None => None,
        };
        let agent = NodeAgent::start(&inside, options).await.map_err(Failure::failed)?;
        let address = agent.address();
        let served_at = metrics.as_ref().map(|metrics| format!("http://{}/metrics", metrics.address()));
        let mut facts: Vec<(&str, &dyn std::fmt::Display)> = vec![("listen", &address), ("redis", redis)];
        facts.extend(served_at.as_ref().map(|url| ("metrics", url as _)));
        output::ready("agent", &facts)?;
        let ended = tokio::select! {
            signal = stop::requested() => { tracing::info!(%signal, "stopping"); Ok(Exit::Finished) }
            () = agent.ended() => Err(Failure::failed("the agent has ended; the log says why")),
        };
        agent.stop().await;
        if let Some(metrics) = metrics {
            metrics.stop().await;
        }
        inside.shutdown(SHUTDOWN).await;
        ended
    });
    served.map_err(Failure::failed)?
}

/// Where the agent beside a node keeps its states when nothing is said.
fn folder_beside(redis: &str) -> PathBuf {
    let name: String =
        redis.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
    PathBuf::from(".skald").join(format!("agent-{name}"))
}

#[cfg(test)]
mod tests {
    use super::folder_beside;

    #[test]
    fn each_node_has_a_folder_of_its_own() {
        assert_eq!(folder_beside("127.0.0.1:7000").to_str(), Some(".skald/agent-127.0.0.1-7000"));
        assert_eq!(folder_beside("[::1]:7000").to_str(), Some(".skald/agent----1--7000"));
    }
}
