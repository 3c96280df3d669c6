//! Skalds and a controller with cache memory on a real Redis: the keys of the wire, and a Redis that goes away.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use skalds::actors::ActorSystem;
use skalds::backend::Backends;
use skalds::backend::redis::RedisCache;
use skalds::core::submission::NewTask;
use skalds::core::task::LifecycleStatus::*;

use crate::house::{House, controller, eventually};
use crate::support::{RedisServer, Version};
use crate::workers;

async fn house(server: &RedisServer) -> House {
    let mut backends = Backends::in_memory().unwrap();
    backends.cache = Arc::new(RedisCache::connect(&server.url()).await.unwrap());
    let system = ActorSystem::builder().arbiters(3).start().unwrap();
    House { controller: controller(&backends).start(&system).unwrap(), backends, system }
}

#[tokio::test]
async fn the_keys_are_those_that_python_peers_read() {
    let server = RedisServer::start(Version::V8, &[]);
    let house = house(&server).await;
    let skald = house.run(workers::all(house.skald("skald-a")).capacity(7)).await;
    house.submit(NewTask::new("Wait").id("task_1")).await;
    house.becomes("task_1", Running).await;
    let text = |command: &[&str]| server.query::<Option<String>>(command);
    let number = |command: &[&str]| server.query::<i64>(command);

    let seen: i64 = text(&["HGET", "skalds:hash", "skald-a"]).unwrap().parse().unwrap();
    assert!(
        (house.system.clock().now_millis() - seen).abs() < 60_000,
        "milliseconds of its last sign of life"
    );
    assert_eq!(text(&["HGET", "skalds:mode:hash", "skald-a"]).as_deref(), Some("node"));
    for hash in ["skalds:hash", "skalds:mode:hash"] {
        assert_eq!(number(&["TTL", hash]), -1, "the field has a TTL, the key has none");
        let ttl: Vec<i64> = server.query(&["HTTL", hash, "FIELDS", "1", "skald-a"]);
        assert!((3_500..=3_600).contains(&ttl[0]), "{ttl:?}");
    }
    for key in ["skalds:skald-a:heartbeat", "task:task_1:heartbeat"] {
        eventually("a beat", || async { text(&["GET", key]).is_some() }).await;
        let beat: i64 = text(&["GET", key]).unwrap().parse().unwrap();
        assert!((0..200).contains(&beat), "{beat}");
        assert!((1..=8).contains(&number(&["TTL", key])));
    }
    let classes: Vec<String> = server.query(&["LRANGE", "skalds:skald-a:allow-task-class-name", "0", "-1"]);
    assert!(classes.contains(&"Wait".to_owned()));
    assert!((3_500..=3_600).contains(&number(&["TTL", "skalds:skald-a:allow-task-class-name"])));
    eventually("its list names the task", || async {
        let list = text(&["GET", "skalds:skald-a:all-task"]).unwrap();
        let list: Value = serde_json::from_str(&list).unwrap();
        list["tasks"] == json!([{"id": "task_1", "class_name": "Wait"}])
            && list["existed_task_ids"] == json!(["task_1"])
            && list["timestamp"].as_i64().is_some()
            && list["capacity"] == 7
    })
    .await;

    house.controller.cancel("task_1").await.unwrap();
    house.becomes("task_1", Cancelled).await;
    eventually("its last word", || async {
        text(&["GET", "task:task_1:heartbeat"]).as_deref() == Some("-2")
    })
    .await;
    assert!((3_500..=3_600).contains(&number(&["TTL", "task:task_1:heartbeat"])));
    assert_eq!(text(&["GET", "task:task_1:exception"]).as_deref(), Some(""));
    house.submit(NewTask { max_attempts: Some(1), ..NewTask::new("Fail").id("task_f") }).await;
    house.becomes("task_f", Failed).await;
    eventually("its exception", || async {
        text(&["GET", "task:task_f:exception"]).as_deref() == Some("attempt 1 did not work")
            && text(&["GET", "task:task_f:heartbeat"]).as_deref() == Some("-1")
    })
    .await;

    skald.drain().await;
    assert_eq!(text(&["HGET", "skalds:hash", "skald-a"]), None);
    assert_eq!(text(&["GET", "skalds:skald-a:heartbeat"]), None);
}

#[tokio::test]
async fn a_redis_that_restarts_empty_loses_no_task() {
    let mut server = RedisServer::start(Version::V8, &[]);
    let house = house(&server).await;
    let _skald = house.run(workers::all(house.skald("a"))).await;
    house.submit(NewTask::new("Wait").id("long")).await;
    let before = house.becomes("long", Running).await;
    server.kill_hard();
    eventually("health is red", || async { !house.controller.health().await.ok }).await;
    // Work goes on, and ends, without its heartbeats.
    house.submit(NewTask::new("Echo").id("meanwhile").attach("theWord", 1)).await;
    house.becomes("meanwhile", Finished).await;
    server.restart();
    eventually("it beats again", || async {
        server.query::<Option<String>>(&["GET", "task:long:heartbeat"]).is_some()
    })
    .await;
    eventually("health is green", || async { house.controller.health().await.ok }).await;
    eventually("the last words were kept", || async {
        server.query::<Option<String>>(&["GET", "task:meanwhile:heartbeat"]).as_deref() == Some("200")
    })
    .await;
    // Longer than anybody waits for a heartbeat before a task is taken back.
    tokio::time::sleep(Duration::from_secs(11)).await;
    let after = house.get("long").await;
    assert_eq!(
        (after.lifecycle_status, after.skalds.attempt, after.skalds.incarnation),
        (Running, 1, before.skalds.incarnation)
    );
    house.controller.cancel("long").await.unwrap();
    house.becomes("long", Cancelled).await;
}
