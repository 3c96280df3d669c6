//! The servers that the other tests stand on do what they promise.

mod support;

use std::time::{Duration, Instant};

use support::{RedisCluster, RedisServer, Version, slot_of, wait_until};

#[test]
fn every_version_starts_and_says_which_it_is() {
    for (version, said) in [
        (Version::V8, "redis_version:8.2.3"),
        (Version::V7_4, "redis_version:7.4.1"),
        (Version::V7_0, "redis_version:7.0.15"),
        (Version::Valkey9, "valkey_version:9.1.2"),
    ] {
        let server = RedisServer::start(version, &[]);
        let info: String = server.query(&["INFO", "server"]);
        assert!(info.contains(said), "{version:?} says {info}");
    }
}

#[test]
fn a_server_killed_hard_comes_back_on_its_port_with_what_it_saved() {
    let mut server = RedisServer::start(Version::V8, &["--requirepass", "secret", "--appendonly", "yes"]);
    let port = server.port();
    server.query::<()>(&["SET", "key", "value"]);
    server.stop();
    assert!(std::net::TcpStream::connect(server.address()).is_err());
    server.restart();
    assert_eq!(server.query::<String>(&["GET", "key"]), "value");
    server.kill_hard();
    server.restart();
    assert_eq!(server.port(), port);
}

#[test]
fn a_cluster_serves_all_slots_soon() {
    for version in [Version::V8, Version::V7_0, Version::Valkey9] {
        let begin = Instant::now();
        let cluster = RedisCluster::start(version, 3, 0);
        eprintln!("{version:?}: three masters after {:?}", begin.elapsed());
        let keys = (0..3_000).map(|n| vec![b"SET".to_vec(), format!("key:{n}").into(), b"1".to_vec()]);
        cluster.load(keys);
        assert_eq!(cluster.key_count(), 3_000);
        assert!(cluster.masters().iter().all(|node| node.query::<u64>(&["DBSIZE"]) > 800));
    }
}

#[test]
fn a_replica_takes_over_and_a_slot_moves() {
    let mut cluster = RedisCluster::start(Version::V8, 3, 1);
    let slot = slot_of(b"{a}1");
    assert_eq!(slot, 15_495);
    let set = |key: &str| vec![b"SET".to_vec(), key.into(), b"x".to_vec()];
    cluster.load([set("{a}1"), set("{a}2")]);
    cluster.migrate_slot(slot, 0);
    assert_eq!(cluster.owner_of(b"{a}1").address(), cluster.nodes[0].address());
    assert_eq!(cluster.nodes[0].query::<u64>(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]), 2);
    cluster.nodes[1].kill_hard();
    wait_until(Duration::from_secs(30), "the replica to take over", || cluster.owners()[8_000] != 1);
}
