//! What is lost for good, and what only hangs for a while.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::proxy::Proxy;
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

/// A step that hangs on one key. The server is told to end it, the key is found and named, and all others are read.
#[test]
fn a_key_on_which_the_step_never_ends_is_named_and_passed_over_or_ends_the_job() {
    let cluster = RedisCluster::start_with(Version::V8, 3, 0, &["--busy-reply-threshold", "100"]);
    cluster.load(zeros(3_000));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hangs.lua");
    let text = "function each(key, acc)
        while key == 'user:77' do end
        return (acc or 0) + 1
      end";
    std::fs::write(&file, text).unwrap();
    let job = ["--lua", file.to_str().unwrap(), "--match", "user:*", "--agents", "off", "--chains", "1"];
    let run = |more: &[&str]| -> (Option<i32>, Value) {
        let ended = start(&cluster.url(), &[&job[..], more].concat()).wait(PATIENCE);
        (ended.code, serde_json::from_str(&ended.stdout).unwrap())
    };
    let (code, report) = run(&["--on-error", "skip"]);
    assert_eq!((code, &report["status"], &report["partial"]), (Some(3), &"Finished".into(), &true.into()));
    assert_eq!((&report["result"], &report["keys"]["errors"]), (&2_999.into(), &1.into()), "{report:#}");
    assert_eq!(report["errors"][0]["key"], "user:77", "{report:#}");
    assert_eq!(report["units"]["done"], 16_384, "{report:#}");
    let (code, report) = run(&[]);
    assert_eq!((code, &report["status"], &report["partial"]), (Some(1), &"Failed".into(), &true.into()));
    let said = report["error"].as_str().unwrap();
    assert!(said.contains("user:77") && said.contains("no answer"), "{report:#}");
}

/// Everybody reaches the nodes through a proxy, whose port they announce.
fn behind_proxies(cluster: &RedisCluster) -> Vec<Proxy> {
    let announce = |node: &RedisServer| {
        let proxy = Proxy::start(free_port(), node.address());
        let port = proxy.address.rsplit(':').next().unwrap().to_owned();
        node.query::<()>(&["CONFIG", "SET", "cluster-announce-port", &port]);
        proxy
    };
    let proxies: Vec<Proxy> = cluster.masters().iter().map(announce).collect();
    let known = |node: &RedisServer| {
        let nodes = node.query::<String>(&["CLUSTER", "NODES"]);
        proxies.iter().all(|proxy| nodes.contains(&proxy.address))
    };
    wait_until(PATIENCE, "the announced ports are known", || cluster.masters().iter().all(known));
    proxies
}

/// An agent cannot reach its node for a while; what it had sent is lost, or arrives late.
#[test]
fn a_node_that_is_cut_off_from_its_agent_is_waited_for() {
    let cluster = RedisCluster::start(Version::V8, 3, 0);
    cluster.load(zeros(KEYS));
    let proxies = behind_proxies(&cluster);
    let data = tempfile::tempdir().unwrap();
    let agents: Vec<Process> = cluster
        .masters()
        .iter()
        .enumerate()
        .map(|(number, node)| {
            let listen = format!("127.0.0.1:{}", free_port());
            agent(&node.url(), &listen, &data.path().join(number.to_string()))
        })
        .collect();
    for (round, late) in [false, true].into_iter().enumerate() {
        let before: Vec<u64> = cluster.masters().iter().map(RedisServer::script_calls).collect();
        let job = start(&cluster.url(), &increment("spin=20000", &["--agents", "require", "--chains", "1"]));
        wait_until(PATIENCE, "a hop is under way", || busy(&cluster, &before).is_some());
        let proxy = &proxies[busy(&cluster, &before).expect("it was just now")];
        if late {
            proxy.hold()
        } else {
            proxy.cut()
        }
        std::thread::sleep(Duration::from_secs(7));
        proxy.heal();
        let report = finished(job);
        assert_eq!(report["result"], KEYS, "late: {late}: {report:#}");
        assert_eq!(
            values(&cluster, &[0, 1, 2]),
            [(round as i64 + 1, KEYS)].into(),
            "late: {late}: {report:#}"
        );
    }
    drop(agents);
}

/// A job is cancelled while a call is on its way to a node that cannot be reached. It arrives after the job's end, and
/// the node refuses it.
#[test]
fn a_call_that_arrives_after_its_job_was_cancelled_writes_nothing() {
    let cluster = RedisCluster::start(Version::V8, 3, 0);
    cluster.load(zeros(KEYS));
    let proxies = behind_proxies(&cluster);
    let before: Vec<u64> = cluster.masters().iter().map(RedisServer::script_calls).collect();
    let job = start(&cluster.url(), &increment("spin=20000", &["--agents", "off", "--chains", "1"]));
    wait_until(PATIENCE, "a hop is under way", || busy(&cluster, &before).is_some());
    let node = busy(&cluster, &before).expect("it was just now");
    proxies[node].hold();
    job.interrupt();
    let ended = job.wait(PATIENCE);
    assert_eq!(ended.code, Some(130), "{} {}", ended.stdout, ended.stderr);
    assert!(ended.stdout.contains("not confirmed by direct"), "{}", ended.stdout);
    let written = values(&cluster, &[0, 1, 2]);
    let calls = cluster.masters()[node].script_calls();
    proxies[node].heal();
    wait_until(PATIENCE, "the late call arrives", || cluster.masters()[node].script_calls() > calls);
    assert_eq!(values(&cluster, &[0, 1, 2]), written, "{}", ended.stdout);
    assert!(written[&1] > 0 && written[&0] > 0, "{written:?}");
}
