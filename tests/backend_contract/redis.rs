//! What only a Redis server can do to its adapter.

use std::time::{Duration, Instant};

use skalds::backend::redis::{FieldTtlSupport, RedisCache, RedisOptions};
use skalds::backend::{BackendError, CacheMemory, CacheWrite, ListEnd};
use skalds::config::secret::Secret;

use crate::support::{RedisServer, Version, wait_until_async};

const HOUR: Option<Duration> = Some(Duration::from_secs(3_600));
const DEADLINE: Duration = Duration::from_secs(10);

fn quick() -> RedisOptions {
    RedisOptions {
        connect_timeout: Duration::from_millis(500),
        call_timeout: Duration::from_millis(500),
        ..RedisOptions::default()
    }
}

fn unavailable<T: std::fmt::Debug>(answer: Result<T, BackendError>) -> bool {
    match answer {
        Ok(_) => false,
        Err(BackendError::Unavailable { .. }) => true,
        Err(other) => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn calls_fail_while_the_server_is_gone_and_go_on_when_it_is_back() {
    let mut server = RedisServer::start(Version::V8, &[]);
    let cache = RedisCache::connect(&server.url()).await.unwrap();
    cache.set_string(b"k", b"v", None).await.unwrap();
    server.kill_hard();
    let begin = Instant::now();
    for _ in 0..20 {
        let refused = cache.set_string(b"k", b"v", None).await.unwrap_err();
        assert!(matches!(refused, BackendError::Unavailable { .. }), "{refused:?}");
        assert!(refused.to_string().contains(&server.address()), "{refused}");
        assert!(unavailable(cache.get_string(b"k").await));
        assert!(unavailable(cache.push_list(b"l", b"v", ListEnd::Head, None).await));
        assert!(unavailable(cache.keys(b"*", 10).await));
        assert!(unavailable(cache.ping().await));
        assert!(unavailable(cache.subscribe(&[b"c".to_vec()]).await.map(drop)));
    }
    assert!(begin.elapsed() < DEADLINE, "each fails at once");
    server.restart();
    wait_until_async(DEADLINE, "calls to work again", || async {
        cache.set_hash_field(b"h", b"f", b"v", HOUR).await.is_ok()
    })
    .await;
    assert_eq!(cache.get_hash_field(b"h", b"f").await.unwrap().unwrap(), b"v");
}

#[tokio::test]
async fn a_restart_that_nobody_noticed_costs_no_read_and_no_plain_write() {
    let mut server = RedisServer::start(Version::V8, &[]);
    let cache = RedisCache::connect(&server.url()).await.unwrap();
    for _ in 0..5 {
        cache.set_string(b"k", b"v", HOUR).await.unwrap();
        server.restart();
        assert_eq!(cache.get_string(b"k").await.unwrap(), None);
        server.restart();
        cache.write_batch(&[CacheWrite::DeleteKey { key: b"k".to_vec() }]).await.unwrap();
    }
}

#[tokio::test]
async fn a_server_that_hangs_is_given_up_in_time_and_found_again() {
    let server = RedisServer::start(Version::V8, &[]);
    let cache = RedisCache::connect_with(&server.url(), quick()).await.unwrap();
    cache.set_string(b"k", b"v", None).await.unwrap();
    server.freeze();
    for _ in 0..4 {
        let begin = Instant::now();
        assert!(unavailable(cache.get_string(b"k").await));
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    }
    server.thaw();
    wait_until_async(DEADLINE, "an answer", || async {
        cache.get_string(b"k").await.is_ok_and(|found| found.is_some())
    })
    .await;
}

#[tokio::test]
async fn a_server_that_only_comes_later_is_an_error_now() {
    let mut server = RedisServer::start(Version::V8, &[]);
    server.kill_hard();
    let error = RedisCache::connect_with(&server.url(), quick()).await.unwrap_err();
    assert!(matches!(error, BackendError::Unavailable { .. }), "{error:?}");
    assert!(error.to_string().contains(&server.address()), "{error}");
}

#[tokio::test]
async fn passwords_open_the_server_and_are_never_shown() {
    let server = RedisServer::start(Version::V8, &["--requirepass", "correct-horse"]);
    let cache = RedisCache::connect(&server.url()).await.unwrap();
    cache.set_string(b"k", b"v", None).await.unwrap();
    assert!(!format!("{cache:?}").contains("horse"));
    let address = server.address();
    let apart = RedisOptions { password: Secret::new("correct-horse"), ..RedisOptions::default() };
    assert!(!format!("{apart:?}").contains("horse"));
    RedisCache::connect_with(&format!("redis://{address}"), apart).await.unwrap().ping().await.unwrap();

    for url in [format!("redis://:wrong-horse@{address}"), format!("redis://nobody:wrong-horse@{address}")] {
        let error = RedisCache::connect(&url).await.unwrap_err();
        assert!(matches!(error, BackendError::Refused { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("WRONGPASS") || text.contains("assword"), "{text}");
        assert!(text.contains(&address) && text.contains("check the user, the password"), "{text}");
        assert!(!text.contains("horse") && !format!("{error:?}").contains("horse"), "{text}");
    }
    let error = RedisCache::connect(&format!("redis://{address}")).await.unwrap_err().to_string();
    assert!(error.contains("NOAUTH") && error.contains("redis://:password@host:port"), "{error}");

    // The password changes while we are connected: the next connection is refused, and says so.
    server.query::<()>(&["CONFIG", "SET", "requirepass", "new-horse"]);
    redis::cmd("CLIENT")
        .arg("KILL")
        .arg("TYPE")
        .arg("normal")
        .exec(&mut connection_with(&server, "new-horse"))
        .unwrap();
    let error = cache.get_string(b"k").await.unwrap_err();
    assert!(matches!(error, BackendError::Refused { .. }), "{error:?}");
}

fn connection_with(server: &RedisServer, password: &str) -> redis::Connection {
    let client = redis::Client::open(format!("redis://:{password}@{}", server.address())).unwrap();
    client.get_connection_with_timeout(DEADLINE).unwrap()
}

#[tokio::test]
async fn a_missing_permission_is_named() {
    let server = RedisServer::start(Version::V8, &[]);
    server.query::<()>(&["ACL", "SETUSER", "small", "on", ">pw", "~mine:*", "+get", "+set", "+ping"]);
    let cache = RedisCache::connect(&format!("redis://small:pw@{}", server.address())).await.unwrap();
    cache.set_string(b"mine:1", b"v", HOUR).await.unwrap();
    for refused in [
        cache.get_string(b"yours:1").await.map(drop),
        cache.get_hash_field(b"mine:h", b"f").await.map(drop),
        cache.push_list(b"mine:l", b"v", ListEnd::Head, HOUR).await,
    ] {
        let error = refused.unwrap_err();
        assert!(matches!(error, BackendError::Refused { .. }), "{error:?}");
        assert!(error.to_string().contains("ACL SETUSER"), "{error}");
    }
}

#[tokio::test]
async fn a_full_server_is_full() {
    let server = RedisServer::start(Version::V8, &[]);
    let cache = RedisCache::connect(&server.url()).await.unwrap();
    server.query::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = cache.set_string(b"k", b"v", None).await.unwrap_err();
    assert!(matches!(error, BackendError::Full { .. }), "{error:?}");
    assert!(error.to_string().contains("maxmemory"), "{error}");
}

/// How often each command was called since the last reset, as the server counts.
fn calls(server: &RedisServer) -> Vec<(String, u64)> {
    let info: String = server.query(&["INFO", "commandstats"]);
    let count = |line: &str| {
        let (name, counters) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), counters.split(',').next()?.parse().ok()?))
    };
    info.lines().filter_map(count).collect()
}

/// No moment at which a field stands without its end: a crash between two commands would make it immortal.
#[tokio::test]
async fn a_field_and_its_life_are_set_by_one_command() {
    for (version, command) in [
        (Version::V8, "hsetex"),
        (Version::Valkey9, "hsetex"),
        (Version::V7_4, "eval"),
        (Version::V7_0, "eval"),
        (Version::Valkey8, "eval"),
    ] {
        let server = RedisServer::start(version, &[]);
        let cache = RedisCache::connect(&server.url()).await.unwrap();
        server.query::<()>(&["CONFIG", "RESETSTAT"]);
        cache.set_hash_field(b"h", b"f", b"v", HOUR).await.unwrap();
        let field = CacheWrite::SetHashField {
            key: b"h".to_vec(),
            field: b"g".to_vec(),
            value: b"v".to_vec(),
            ttl: HOUR,
        };
        cache.write_batch(&[field]).await.unwrap();
        let calls = calls(&server);
        let count =
            |name: &str| calls.iter().find(|(called, _)| called == name).map_or(0, |(_, count)| *count);
        assert_eq!(count(command), 2, "{version:?}: {calls:?}");
        // What stands beside it was called by the script, which is one command to everybody else.
        if command == "hsetex" {
            assert_eq!((count("hset"), count("hpexpire")), (0, 0), "{version:?}: {calls:?}");
        }
    }
}

/// A Python Skald sets and reads the same keys with its own commands.
#[tokio::test]
async fn peers_with_other_commands_share_the_keys() {
    for version in [Version::V8, Version::V7_4, Version::Valkey9] {
        let server = RedisServer::start(version, &[]);
        let cache = RedisCache::connect(&server.url()).await.unwrap();
        assert_eq!(cache.field_ttl_support().await.unwrap(), FieldTtlSupport::Native);
        server.query::<()>(&["HSET", "skalds:hash", "python", "1"]);
        server.query::<Vec<i64>>(&["HEXPIRE", "skalds:hash", "3600", "FIELDS", "1", "python"]);
        cache.set_hash_field(b"skalds:hash", b"rust", b"2", HOUR).await.unwrap();
        let left = cache.hash_field_time_to_live(b"skalds:hash", b"python").await.unwrap().unwrap();
        assert!(left.is_some_and(|left| left <= HOUR.unwrap()), "{left:?}");
        let left: Vec<i64> = server.query(&["HTTL", "skalds:hash", "FIELDS", "1", "rust"]);
        assert!((3_500..=3_600).contains(&left[0]), "{left:?}");
        assert_eq!(server.query::<i64>(&["HLEN", "skalds:hash"]), 2);
        assert_eq!(server.query::<i64>(&["DBSIZE"]), 1);
    }
}

#[tokio::test]
async fn an_old_server_is_named_and_the_emulation_leaves_nothing_behind() {
    let server = RedisServer::start(Version::V7_0, &[]);
    let cache = RedisCache::connect(&server.url()).await.unwrap();
    let FieldTtlSupport::Emulated { server: named, missing, hint } = cache.field_ttl_support().await.unwrap()
    else {
        panic!("Redis 7.0 has no field TTL")
    };
    assert!(named.contains(&server.address()) && named.contains("Redis 7.0.15"), "{named}");
    assert!(missing.contains("HPEXPIRE") && hint.contains("Redis 7.4"), "{missing}: {hint}");

    let soon = Some(Duration::from_secs(1));
    cache.set_hash_field(b"h", b"a", b"1", soon).await.unwrap();
    cache.set_hash_field(b"h", b"b", b"1", soon).await.unwrap();
    assert_eq!(cache.keys(b"*", 10).await.unwrap(), [b"h"]);
    // Both keys end by themselves when all fields have, though nobody looks.
    let pttl: i64 = server.query(&["PTTL", "h"]);
    assert!((1..=1_000).contains(&pttl), "{pttl}");
    wait_until_async(DEADLINE, "the hash to end", || async { server.query::<i64>(&["EXISTS", "h"]) == 0 })
        .await;
    assert!(cache.delete_key(b"h").await.is_ok_and(|there| !there));
    assert_eq!(server.query::<i64>(&["DBSIZE"]), 0);

    // One field lives on: what is over is removed by the next write.
    cache.set_hash_field(b"h", b"ever", b"1", None).await.unwrap();
    for n in 0..150 {
        cache
            .set_hash_field(b"h", format!("f{n}").as_bytes(), b"1", Some(Duration::from_millis(1)))
            .await
            .unwrap();
    }
    wait_until_async(DEADLINE, "all others to be over", || async {
        cache.get_all_hash(b"h").await.unwrap().len() == 1
    })
    .await;
    for _ in 0..2 {
        cache.set_hash_field(b"h", b"ever", b"2", None).await.unwrap();
    }
    assert_eq!(server.query::<i64>(&["HLEN", "h"]), 1);
    assert_eq!(server.query::<i64>(&["PTTL", "h"]), -1);
    // Somebody else deletes the hash: the ends that are left do not touch its successor.
    cache.set_hash_field(b"h", b"ever", b"2", soon).await.unwrap();
    server.query::<()>(&["DEL", "h"]);
    cache.set_hash_field(b"h", b"other", b"3", None).await.unwrap();
    cache.set_hash_field(b"h", b"ever", b"3", None).await.unwrap();
    assert_eq!(cache.hash_field_time_to_live(b"h", b"ever").await.unwrap(), Some(None));
}

#[tokio::test]
async fn a_subscription_goes_on_after_a_restart_and_tells_of_the_gap() {
    let mut server = RedisServer::start(Version::V8, &[]);
    let cache = RedisCache::connect(&server.url()).await.unwrap();
    let mut reader = cache.subscribe(&[b"c".to_vec()]).await.unwrap();
    cache.publish(b"c", b"before").await.unwrap();
    assert_eq!(reader.next().await.unwrap().unwrap().payload, b"before");
    server.restart();
    let gap = reader.next().await.unwrap().unwrap_err();
    assert!(matches!(&gap, BackendError::Full { hint, .. } if hint.contains("unknown number")), "{gap}");
    // It was told when the channel was subscribed to again: nothing from here on is missed.
    wait_until_async(DEADLINE, "a publication", || async { cache.publish(b"c", b"after").await == Ok(1) })
        .await;
    assert_eq!(reader.next().await.unwrap().unwrap().payload, b"after");
    let numbered: Vec<String> = (0..100).map(|n| n.to_string()).collect();
    for number in &numbered {
        cache.publish(b"c", number.as_bytes()).await.unwrap();
    }
    for number in &numbered {
        assert_eq!(reader.next().await.unwrap().unwrap().payload, number.as_bytes());
    }
    drop(reader);
    wait_until_async(DEADLINE, "the subscription to end", || async {
        cache.publish(b"c", b"").await == Ok(0)
    })
    .await;
}

#[tokio::test]
async fn several_servers_that_are_no_cluster_are_refused() {
    let (one, two) = (RedisServer::start(Version::V8, &[]), RedisServer::start(Version::V8, &[]));
    let error = RedisCache::connect(&format!("{},{}", one.url(), two.url())).await.unwrap_err().to_string();
    assert!(error.contains("a server alone"), "{error}");
}

/// 100,000 heartbeats are one batch.
#[tokio::test]
async fn a_hundred_thousand_heartbeats_fit_into_a_beat() {
    let server = RedisServer::start(Version::V8, &[]);
    let cache = RedisCache::connect(&server.url()).await.unwrap();
    let writes: Vec<CacheWrite> = (0..100_000)
        .map(|n| CacheWrite::SetString {
            key: format!("task:{n}:heartbeat").into_bytes(),
            value: b"7".to_vec(),
            ttl: HOUR,
        })
        .collect();
    let begin = Instant::now();
    cache.write_batch(&writes).await.unwrap();
    println!("100,000 heartbeats in {:?}", begin.elapsed());
    assert_eq!(server.query::<u64>(&["DBSIZE"]), 100_000);
}
