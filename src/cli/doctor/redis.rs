//! What the doctor says of Redis.

use crate::config::env::Environment;
use crate::node::{ClusterView, NodeView, discover};

use super::{Finding, Verdict};
use crate::cli::exit::Failure;
use crate::cli::redis::RedisArgs;
use crate::cli::runtime;
use crate::cli::table::{bytes, count};

/// Looks at the Redis that was named, or else at the one that REDIS_HOST and REDIS_PORT name.
pub(super) fn look(args: &RedisArgs) -> Result<Vec<Finding>, Failure> {
    let (named, (access, seeds)) = match args.access()? {
        Some(found) => (true, found),
        None => {
            // Bad variables have been told already.
            let settings = Environment::read(|name| std::env::var(name).ok()).ok().map(|all| all.redis);
            let address = settings.and_then(|redis| Some(format!("{}:{}", redis.host?, redis.port)));
            let Some(address) = address else {
                return Ok(vec![Finding::new(Verdict::Absent, "redis", "none is named (--redis)")]);
            };
            (std::env::var_os("REDIS_HOST").is_some(), args.access_to(&[address])?)
        }
    };
    Ok(match runtime()?.block_on(discover(&seeds, &access)) {
        Ok(view) => describe(&view),
        Err(error) => {
            let verdict = if named { Verdict::Failed } else { Verdict::Absent };
            vec![Finding::new(verdict, "redis", error.to_string())]
        }
    })
}

fn describe(view: &ClusterView) -> Vec<Finding> {
    let keys = view.nodes.iter().map(|node| node.keys).sum();
    let kind = match (view.cluster, view.nodes.len()) {
        (false, _) => "a single server".to_owned(),
        (true, 1) => "a cluster of one primary".to_owned(),
        (true, primaries) => format!("a cluster of {primaries} primaries"),
    };
    let mut findings = vec![Finding::new(Verdict::Ok, "redis", format!("{kind}, {} keys", count(keys)))];
    if !view.uncovered.is_empty() {
        let said = format!("{} slots have no owner: keys in them cannot be reached", view.uncovered.len());
        findings.push(Finding::new(Verdict::Failed, "redis", said));
    }
    for error in &view.unreachable {
        findings.push(Finding::new(Verdict::Warn, "redis", error.to_string()));
    }
    for node in &view.nodes {
        findings.push(Finding::new(Verdict::Ok, "node", describe_node(node, view.cluster)));
        findings.extend(missing(node).into_iter().map(|said| {
            Finding::new(
                Verdict::Warn,
                "node",
                format!("{} ({} {}): {said}", node.redis, node.flavour, node.version),
            )
        }));
    }
    let agents = view.nodes.iter().filter(|node| node.agent.is_some()).count();
    findings.push(match (agents, view.nodes.len()) {
        (0, _) => {
            Finding::new(Verdict::Absent, "agents", "none: jobs are driven from where they are started")
        }
        (agents, nodes) if agents < nodes => {
            Finding::new(Verdict::Warn, "agents", format!("beside {agents} of {nodes} nodes"))
        }
        _ => Finding::new(Verdict::Ok, "agents", "beside every node"),
    });
    findings
}

fn describe_node(node: &NodeView, cluster: bool) -> String {
    let mut facts = vec![
        format!("{} {} {}", node.redis, node.flavour, node.version),
        format!("{} keys", count(node.keys)),
        bytes(node.memory_bytes),
        format!("ping {:.2} ms", node.ping_micros as f64 / 1_000.0),
    ];
    if cluster {
        facts.push(format!("{} slots", node.slots.len()));
        facts.push(format!("{} replicas", node.replicas.len()));
    }
    if !node.moving.is_empty() {
        facts.push(format!("{} slots moving", node.moving.len()));
    }
    facts.extend(node.agent.as_ref().map(|agent| format!("agent {agent}")));
    facts.join(", ")
}

/// What this version cannot do that Skalds would use.
fn missing(node: &NodeView) -> Vec<&'static str> {
    let version = version_of(&node.version);
    let since = |redis: (u64, u64), valkey: (u64, u64)| {
        version >= if node.flavour == "valkey" { valkey } else { redis }
    };
    let mut missing = Vec::new();
    if !since((6, 2), (7, 2)) {
        missing.push("too old, 6.2 is the oldest that jobs are written for");
    }
    if !since((7, 4), (9, 0)) {
        missing.push("no TTL per hash field (Redis 7.4, Valkey 9): it is emulated");
    }
    if !since((7, 4), (8, 0)) {
        missing.push("scripts have no clock and SCAN does not go by slots (Redis 7.4, Valkey 8): slots are taken whole");
    }
    missing
}

/// Major and minor; what cannot be read is taken for new.
fn version_of(text: &str) -> (u64, u64) {
    let mut parts = text.split('.').map(str::parse);
    match (parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        _ => (u64::MAX, 0),
    }
}

#[cfg(test)]
mod tests {
    use crate::chain::slots::SlotSet;

    use super::*;

    fn node(flavour: &str, version: &str) -> NodeView {
        NodeView {
            id: "n".into(),
            redis: "h:1".into(),
            slots: SlotSet::range(0, 99),
            moving: SlotSet::empty(),
            replicas: vec![],
            agent: None,
            zone: None,
            rack: None,
            keys: 1_234,
            flavour: flavour.into(),
            version: version.into(),
            ping_micros: 150,
            memory_bytes: 3 << 20,
            memory_limit_bytes: 0,
            clients: 1,
            ops_per_second: 0,
            replication_id: String::new(),
        }
    }

    #[test]
    fn what_a_version_lacks_is_said() {
        for (flavour, version, count) in
            [("redis", "8.2.3", 0), ("redis", "7.4.1", 0), ("redis", "7.0.15", 2), ("redis", "5.0.1", 3)]
        {
            assert_eq!(missing(&node(flavour, version)).len(), count, "{version}");
        }
        assert_eq!(missing(&node("valkey", "9.1.2")).len(), 0);
        assert_eq!(missing(&node("valkey", "8.1.0")).len(), 1);
        assert_eq!(missing(&node("redis", "unstable")).len(), 0);
    }

    #[test]
    fn slots_without_an_owner_are_a_failure_and_no_agents_are_not() {
        let mut view = ClusterView {
            cluster: true,
            nodes: vec![node("redis", "8.2.3")],
            uncovered: SlotSet::empty(),
            unreachable: vec![],
        };
        let said = describe(&view);
        assert_eq!(said[0], Finding::new(Verdict::Ok, "redis", "a cluster of one primary, 1,234 keys"));
        let shown = "h:1 redis 8.2.3, 1,234 keys, 3.0 MiB, ping 0.15 ms, 100 slots, 0 replicas";
        assert_eq!(said[1], Finding::new(Verdict::Ok, "node", shown));
        assert_eq!(said[2].verdict, Verdict::Absent);
        view.uncovered = SlotSet::range(100, 16_383);
        view.nodes[0].agent = Some("h:2".into());
        let said = describe(&view);
        assert_eq!((said[1].verdict, said.last().unwrap().verdict), (Verdict::Failed, Verdict::Ok));
    }
}
