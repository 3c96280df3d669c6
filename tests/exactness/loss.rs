//! What is lost for good, and what only hangs for a while.

use std::path::Path;
use std::time::Duration;

use crate::support::{Process, RedisCluster, RedisServer, Version, free_port, wait_until};
use crate::{PATIENCE, finished, increment, start, values, zeros};

const KEYS: usize = 30_000;

fn agent(redis: &str, listen: &str, data: &Path) -> Process {
    let data = data.display().to_string();
    let mut agent =
        Process::skald(&["--log", "warn", "agent", "--redis", redis, "--listen", listen, "--data", &data]);
    agent.ready(PATIENCE);
    agent
}

/// The master whose hop is under way.
fn busy(cluster: &RedisCluster, before: &[u64]) -> Option<usize> {
    let under_way = |(node, before): (&RedisServer, &u64)| node.script_calls() > before + 30;
    cluster.masters().iter().zip(before).position(under_way)
}

/// An agent dies in the middle of its hop, and its disk with it: the state that it has acknowledged is nowhere any more.
/// What it had done is found by its markers and is not done again.
#[test]
fn an_agent_whose_disk_is_gone_costs_a_plan_and_nothing_else() {
    let cluster = RedisCluster::start(Version::V8, 3, 0);
    cluster.load(zeros(KEYS));
    let data = tempfile::tempdir().unwrap();
    let places: Vec<_> = (0..3)
        .map(|number| (format!("127.0.0.1:{}", free_port()), data.path().join(number.to_string())))
        .collect();
    let beside = |number: usize| {
        let (listen, folder) = &places[number];
        agent(&cluster.masters()[number].url(), listen, folder)
    };
    let mut agents: Vec<Process> = (0..3).map(beside).collect();
    let known = |node: &RedisServer| node.query::<String>(&["CLIENT", "LIST"]).contains("name=skald-agent:");
    wait_until(PATIENCE, "the agents are known", || cluster.masters().iter().all(known));
    let before: Vec<u64> = cluster.masters().iter().map(RedisServer::script_calls).collect();
    let job = start(&cluster.url(), &increment("spin=20000", &["--agents", "require", "--chains", "1"]));
    wait_until(PATIENCE, "a hop is under way", || busy(&cluster, &before).is_some());
    let lost = busy(&cluster, &before).expect("it was just now");
    agents[lost].kill_hard();
    std::fs::remove_dir_all(&places[lost].1).unwrap();
    agents[lost] = beside(lost);
    let report = finished(job);
    assert_eq!(report["result"], KEYS, "{report:#}");
    assert!(report["plan"]["epoch"].as_u64() >= Some(2), "{report:#}");
    assert_eq!(values(&cluster, &[0, 1, 2]), [(1, KEYS)].into(), "{report:#}");
}

/// A node accepts connections and answers nothing for a while, as one that is cut off from its agent.
#[test]
fn a_node_that_hangs_for_a_while_is_waited_for() {
    let cluster = RedisCluster::start_with(Version::V8, 3, 0, &["--cluster-require-full-coverage", "no"]);
    cluster.load(zeros(KEYS));
    let before: Vec<u64> = cluster.masters().iter().map(RedisServer::script_calls).collect();
    let job = start(&cluster.url(), &increment("spin=20000", &["--agents", "off", "--chains", "1"]));
    wait_until(PATIENCE, "a hop is under way", || busy(&cluster, &before).is_some());
    let node = &cluster.masters()[busy(&cluster, &before).expect("it was just now")];
    node.freeze();
    // Longer than a call may take.
    std::thread::sleep(Duration::from_secs(7));
    node.thaw();
    let report = finished(job);
    assert_eq!(report["result"], KEYS, "{report:#}");
    assert_eq!(values(&cluster, &[0, 1, 2]), [(1, KEYS)].into(), "{report:#}");
}
