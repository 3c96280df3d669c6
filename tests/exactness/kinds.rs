//! Kinds of clusters, and clusters that grow and shrink.

use std::collections::HashMap;
use std::time::Duration;

use crate::movers::{Masters, while_moving};
use crate::support::{RedisCluster, Version, slot_of, wait_until};
use crate::{PATIENCE, finished, increment, start, values, zeros};

const KEYS: usize = 30_000;

/// Nodes that are to be reached by name.
#[test]
fn nodes_behind_announced_host_names_are_reached_by_them() {
    let named = ["--cluster-announce-hostname", "localhost", "--cluster-preferred-endpoint-type", "hostname"];
    for version in [Version::V8, Version::V7_0, Version::Valkey9, Version::Valkey8] {
        let cluster = RedisCluster::start_with(version, 3, 0, &named);
        cluster.load(zeros(1_000));
        let hosts = || cluster.nodes.iter().map(|node| node.query::<String>(&["CLUSTER", "NODES"]));
        wait_until(PATIENCE, "the names to be known", || {
            hosts().all(|nodes| nodes.lines().all(|line| line.contains(",localhost")))
        });
        let report = finished(start(&cluster.url(), &["count", "--match", "user:*"]));
        assert_eq!(report["result"], 1_000, "{version:?}");
        for hop in report["hops"].as_array().unwrap() {
            assert!(hop["node"].as_str().unwrap().starts_with("localhost:"), "{version:?}: {hop}");
        }
    }
}

/// A move that was broken off has left a key where its slot is not: it is not counted twice, and it is told.
#[test]
fn keys_that_a_node_holds_of_slots_that_are_not_its_own_are_told_and_not_counted() {
    for version in [Version::V8, Version::V7_0, Version::Valkey9, Version::Valkey8] {
        let cluster = RedisCluster::start(version, 3, 0);
        cluster.load(zeros(1_000));
        let slot = slot_of(b"user:1");
        let owner = cluster.owners()[slot];
        let (other, slot) = ((owner + 1) % 3, slot.to_string());
        let mut connection = cluster.nodes[other].connection();
        let mut ask = |words: &[&str]| {
            let mut command = redis::cmd(words[0]);
            for word in &words[1..] {
                command.arg(*word);
            }
            command.exec(&mut connection).unwrap();
        };
        ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &cluster.id_of(owner)]);
        ask(&["ASKING"]);
        ask(&["SET", "user:1", "stale"]);
        ask(&["CLUSTER", "SETSLOT", &slot, "STABLE"]);
        let report = finished(start(&cluster.url(), &["count", "--match", "user:*"]));
        assert_eq!(report["result"], 1_000, "{version:?}: {report:#}");
        let notes: Vec<&str> = (report["hops"].as_array().unwrap().iter())
            .filter_map(|hop| hop["notes"].as_array())
            .flatten()
            .filter_map(|note| note.as_str())
            .collect();
        let told = format!("{} also holds 1 keys of slots", cluster.nodes[other].address());
        assert!(notes.len() == 1 && notes[0].starts_with(&told), "{version:?}: {notes:?}");
    }
}

/// Valkey 9 moves whole ranges of slots at once.
#[test]
fn slots_that_move_atomically() {
    let cluster = RedisCluster::start(Version::Valkey9, 3, 0);
    cluster.load(zeros(KEYS));
    let mut rng = fastrand::Rng::with_seed(9);
    let mut ranges = 0;
    let ids: Vec<String> = (0..3).map(|node| cluster.id_of(node)).collect();
    for round in 1..=2 {
        let id = format!("atomic-{round}");
        let job = increment("spin=6000", &["--agents", "off", "--chains", "1", "--id", &id]);
        let mut job = start(&cluster.url(), &job);
        let mut nodes: Vec<redis::Connection> = cluster.nodes.iter().map(|node| node.connection()).collect();
        while job.is_running() {
            let owners = cluster.owners();
            let first = rng.usize(..owners.len() - 100);
            let last = (first..first + 100).take_while(|slot| owners[*slot] == owners[first]).last().unwrap();
            let (from, to) = (owners[first], (owners[first] + rng.usize(1..3)) % 3);
            let mut migrate = redis::cmd("CLUSTER");
            migrate.arg("MIGRATESLOTS").arg("SLOTSRANGE").arg(first).arg(last).arg("NODE").arg(&ids[to]);
            migrate.exec(&mut nodes[from]).expect("nothing else moves");
            ranges += 1;
            // One at a time: a Valkey 9.1.2 that ends an import while it exports dies of an assertion of its own
            // (server.c, `!isPausedActions(PAUSE_ACTION_REPLICA)`).
            wait_until(PATIENCE, "the slots to arrive", || !nodes.iter_mut().any(is_moving));
            std::thread::sleep(Duration::from_millis(10));
        }
        let report = finished(job);
        assert_eq!(report["result"], KEYS, "round {round}: {report:#}");
        assert_eq!(values(&cluster, &[0, 1, 2]), [(round, KEYS)].into(), "round {round}: {report:#}");
    }
    assert!(ranges > 10, "{ranges} ranges moved");
}

/// Whether a Valkey 9 has moves that are not over.
fn is_moving(connection: &mut redis::Connection) -> bool {
    let moves: Vec<HashMap<String, redis::Value>> =
        redis::cmd("CLUSTER").arg("GETSLOTMIGRATIONS").query(connection).expect("the moves");
    let state =
        |one: &HashMap<String, redis::Value>| redis::from_redis_value_ref::<String>(&one["state"]).unwrap();
    moves.iter().any(|one| !["success", "failed", "canceled", "cancelled"].contains(&state(one).as_str()))
}

/// A node gives up its last slots and leaves while a job runs, and joins again and takes some while the next one runs.
#[test]
fn a_node_leaves_and_another_joins() {
    let cluster = RedisCluster::start(Version::V8, 3, 0);
    // It keeps 60 to begin with: to move them all under the job would take too long.
    let first = cluster.owners().iter().position(|owner| *owner == 2).unwrap() + 60;
    let given_away = [first.to_string(), "16383".to_owned()];
    for node in &cluster.nodes {
        node.query::<()>(&["CLUSTER", "DELSLOTSRANGE", &given_away[0], &given_away[1]]);
    }
    cluster.nodes[0].query::<()>(&["CLUSTER", "ADDSLOTSRANGE", &given_away[0], &given_away[1]]);
    cluster.wait_until_ok();
    let mut masters = Masters::of(&cluster);
    assert_eq!(masters.slots_of(2).len(), 60);
    cluster.load(zeros(KEYS));
    let ids: Vec<String> = (0..3).map(|node| cluster.id_of(node)).collect();
    let url = cluster.masters()[0].url();
    let job = increment("spin=6000", &["--agents", "off", "--chains", "1", "--id", "shrinks"]);
    let mut last: Vec<usize> = masters.slots_of(2);
    let job = while_moving(&mut masters, start(&url, &job), |_| {
        let next = last.pop().map(|slot| (slot, slot % 2));
        if next.is_none() {
            for node in &cluster.nodes[..2] {
                let _ = node.try_query::<()>(&["CLUSTER", "FORGET", &ids[2]]); // again each time: unknown by then
            }
        }
        next
    });
    let report = finished(job);
    assert_eq!(report["result"], KEYS, "{report:#}");
    assert_eq!(values(&cluster, &[0, 1]), [(1, KEYS)].into(), "{report:#}");
    assert_eq!(masters.slots_of(2), Vec::<usize>::new());

    // As a new node it is empty and knows nobody.
    cluster.nodes[2].query::<()>(&["CLUSTER", "RESET", "HARD"]);
    let port = cluster.nodes[2].port().to_string();
    let bus = cluster.bus_port(2).to_string();
    cluster.nodes[0].query::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
    cluster.wait_until_ok();
    let mut masters = Masters::among(&cluster, vec![0, 1, 2]);
    let mut to_move = masters.slots_of(0);
    let job = increment("spin=6000", &["--agents", "off", "--chains", "1", "--id", "grows"]);
    let job = while_moving(&mut masters, start(&url, &job), |_| to_move.pop().map(|slot| (slot, 2)));
    let report = finished(job);
    assert_eq!(report["result"], KEYS, "{report:#}");
    assert_eq!(values(&cluster, &[0, 1, 2]), [(2, KEYS)].into(), "{report:#}");
    assert!(masters.moved > 20, "{} slots moved", masters.moved);
}
