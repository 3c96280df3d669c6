//! A failover that loses acknowledged writes.

use std::time::Instant;

use crate::support::{RedisCluster, RedisServer, Version, wait_until};
use crate::{INCREMENT, PATIENCE, finished, increment, start, values, zeros};

const KEYS: usize = 30_000;

/// The replica of a master has stopped; the master works off units, acknowledges them and dies; the replica comes back
/// as it was and takes over: its keys know nothing of those units, and nothing of their markers.
#[test]
fn units_that_a_failover_has_lost_are_run_again() {
    let mut cluster = RedisCluster::start_with(Version::V8, 3, 1, &["--save", "3600 1000000"]);
    cluster.load(zeros(KEYS));
    cluster.wait_until_ok();
    // The master that the plan comes to first is not known: all three replicas stop with what there is now.
    for replica in 3..6 {
        cluster.nodes[replica].query::<()>(&["SAVE"]);
        cluster.nodes[replica].kill_hard();
    }
    let before: Vec<u64> = cluster.masters().iter().map(|node| node.script_calls()).collect();
    let job = start(&cluster.url(), &increment("spin=20000", &["--agents", "off", "--chains", "1"]));
    let busy = || {
        let under_way = |(node, before): (&RedisServer, &u64)| node.script_calls() > before + 40;
        cluster.masters().iter().zip(&before).position(under_way)
    };
    wait_until(PATIENCE, "a node is in the middle of its hop", || busy().is_some());
    let lost = busy().expect("it was just now");
    let written = values(&cluster, &[lost]).get(&1).copied().unwrap_or(0);
    cluster.nodes[lost].kill_hard();
    take_over(&mut cluster, lost + 3);
    assert!(written > 100, "{written} keys were written before the failover");
    let report = finished(job);
    let alive: Vec<usize> = (0..3).map(|node| if node == lost { node + 3 } else { node }).collect();
    assert_eq!(values(&cluster, &alive), [(1, KEYS)].into(), "{written} writes were lost: {report:#}");
    assert_eq!(report["result"], KEYS, "{report:#}");
}

fn take_over(cluster: &mut RedisCluster, replica: usize) {
    cluster.nodes[replica].restart();
    let replica = &cluster.nodes[replica];
    assert!(replica.query::<u64>(&["DBSIZE"]) > 5_000, "the replica has its old data");
    wait_until(PATIENCE, "the replica to take over", || {
        let _ = replica.try_query::<()>(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
        replica.try_query::<String>(&["INFO", "replication"]).is_ok_and(|info| info.contains("role:master"))
    });
}

/// A primary dies in the middle of a hop. What it had done stays done; the agent goes on when a replica has taken over.
#[test]
fn a_primary_that_dies_at_half_way_costs_its_failover_and_little_more() {
    let mut cluster = RedisCluster::start(Version::V8, 3, 1);
    cluster.load(zeros(KEYS));
    cluster.wait_until_ok();
    let before: Vec<u64> = cluster.nodes.iter().map(|node| node.script_calls()).collect();
    let arguments = ["--lua", INCREMENT, "--match", "user:*", "--arg", "spin=20000", "--arg", "by=0"];
    let job = start(&cluster.url(), &[&arguments[..], &["--agents", "off", "--chains", "1"]].concat());
    let under_way = |(node, before): (&RedisServer, &u64)| node.script_calls() > before + 40;
    let busy = || cluster.masters().iter().zip(&before).position(under_way);
    wait_until(PATIENCE, "a node is in the middle of its hop", || busy().is_some());
    let lost = busy().expect("it was just now");
    cluster.nodes[lost].kill_hard();
    let heir = &cluster.nodes[lost + 3];
    let alive =
        || (0..6).filter(|node| *node != lost).map(|node| cluster.nodes[node].script_calls()).sum::<u64>();
    let replaced = || heir.query::<String>(&["INFO", "replication"]).contains("role:master");
    wait_until(PATIENCE, "the replica takes over", replaced);
    let (taken, calls) = (Instant::now(), alive());
    wait_until(PATIENCE, "the job goes on", || alive() > calls);
    println!("the job went on {:?} after the replica had taken over", taken.elapsed());
    let report = finished(job);
    assert_eq!((&report["result"], &report["keys"]["visited"]), (&KEYS.into(), &KEYS.into()), "{report:#}");
    // A hop counts each key whose unit it has committed, so a unit that was run twice would show.
    let run: u64 = report["hops"].as_array().unwrap().iter().filter_map(|hop| hop["keys"].as_u64()).sum();
    assert_eq!(run, KEYS as u64, "no unit that was done is done again: {report:#}");
}
