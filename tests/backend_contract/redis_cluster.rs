//! What only a cluster can do to its adapter.

use std::time::{Duration, Instant};

use skalds::backend::redis::{RedisCache, RedisOptions};
use skalds::backend::{BackendError, CacheMemory, CacheWrite};

use crate::support::{RedisCluster, RedisServer, Version, slot_of, wait_until_async};

const HOUR: Option<Duration> = Some(Duration::from_secs(3_600));

fn heartbeats(count: usize, value: &str) -> Vec<CacheWrite> {
    let write = |n| CacheWrite::SetString {
        key: format!("task:{n}:heartbeat").into_bytes(),
        value: value.into(),
        ttl: HOUR,
    };
    (0..count).map(write).collect()
}

#[tokio::test]
async fn commands_follow_slots_that_move() {
    let cluster = RedisCluster::start(Version::V8, 3, 0);
    let cache = RedisCache::connect(&cluster.nodes[0].url()).await.unwrap();
    assert!(cache.is_cluster());
    cache.write_batch(&heartbeats(5_000, "1")).await.unwrap();
    assert_eq!(cluster.key_count(), 5_000);

    // A slot that has moved: single commands and a batch find it.
    let moved = slot_of(b"task:1:heartbeat");
    let to = (cluster.owners()[moved] + 1) % 3;
    cluster.migrate_slot(moved, to);
    assert_eq!(cache.get_string(b"task:1:heartbeat").await.unwrap().unwrap(), b"1");
    cluster.migrate_slot(moved, (to + 1) % 3);
    cache.write_batch(&heartbeats(5_000, "2")).await.unwrap();
    let keys: Vec<Vec<u8>> = (0..5_000).map(|n| format!("task:{n}:heartbeat").into_bytes()).collect();
    assert!(cache.get_strings(&keys).await.unwrap().iter().all(|value| value.as_deref() == Some(b"2")));
    assert_eq!(cluster.key_count(), 5_000);
    assert_eq!(cache.keys(b"task:*", 10_000).await.unwrap().len(), 5_000);

    // A slot in the middle of its move: the keys that have moved are asked for, the others are not.
    let open = slot_of(b"{open}1");
    for n in 0..10 {
        cache.set_hash_field(format!("{{open}}{n}").as_bytes(), b"f", b"1", HOUR).await.unwrap();
    }
    let to = (cluster.owners()[open] + 1) % 3;
    cluster.open_migration(open, to);
    cluster.migrate_keys(open, to, 5);
    for n in 0..20 {
        let key = format!("{{open}}{n}").into_bytes();
        cache.set_hash_field(&key, b"f", b"2", HOUR).await.unwrap();
        assert_eq!(cache.get_hash_field(&key, b"f").await.unwrap().unwrap(), b"2");
        assert!(
            cache.swap_string(&[&key[..], b"s"].concat(), b"", b"x", Duration::from_secs(9)).await.is_ok()
        );
    }
    while cluster.migrate_keys(open, to, 100) > 0 {}
    cluster.close_migration(open, to);
    for n in 0..20 {
        let key = format!("{{open}}{n}").into_bytes();
        assert_eq!(cache.get_hash_field(&key, b"f").await.unwrap().unwrap(), b"2");
    }
}

#[tokio::test]
async fn the_replica_of_a_node_that_died_is_found() {
    a_replica_that_takes_over_is_found(RedisServer::kill_hard).await;
}

#[tokio::test]
async fn the_replica_of_a_node_that_hangs_is_found() {
    a_replica_that_takes_over_is_found(|node| node.freeze()).await;
}

async fn a_replica_that_takes_over_is_found(lose: impl FnOnce(&mut RedisServer)) {
    let mut cluster = RedisCluster::start(Version::V8, 3, 1);
    let options = RedisOptions { call_timeout: Duration::from_secs(1), ..RedisOptions::default() };
    let cache = RedisCache::connect_with(&cluster.url(), options).await.unwrap();
    cache.write_batch(&heartbeats(1_000, "1")).await.unwrap();
    let mut reader = cache.subscribe(&[b"task:1:heartbeat".to_vec()]).await.unwrap();
    let owners = cluster.owners();
    let lost = owners[slot_of(b"task:1:heartbeat")];
    lose(&mut cluster.nodes[lost]);
    let begin = Instant::now();
    // The other slots are written meanwhile; the error names the node that is gone.
    let error = cache.write_batch(&heartbeats(1_000, "2")).await.unwrap_err();
    assert!(matches!(error, BackendError::Unavailable { .. }), "{error:?}");
    assert!(error.to_string().contains(&cluster.nodes[lost].address()), "{error}");
    for n in 0..1_000 {
        let key = format!("task:{n}:heartbeat").into_bytes();
        if owners[slot_of(&key)] != lost {
            assert_eq!(cache.get_string(&key).await.unwrap().unwrap(), b"2");
        }
    }
    wait_until_async(Duration::from_secs(30), "the replica to take over", || async {
        cache.write_batch(&heartbeats(1_000, "3")).await.is_ok()
    })
    .await;
    println!("writes again after {:?}", begin.elapsed());
    assert_eq!(cache.get_string(b"task:1:heartbeat").await.unwrap().unwrap(), b"3");
    assert!(reader.next().await.unwrap().is_err(), "it is told of the gap");
    cache.publish(b"task:1:heartbeat", b"again").await.unwrap();
    assert_eq!(reader.next().await.unwrap().unwrap().payload, b"again");
}
