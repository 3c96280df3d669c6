//! A Skald of the Python package under our controller, played by hand: it knows nothing of incarnations, speaks through
//! heartbeats, and never writes an outcome into storage.

use std::time::Duration;

use skalds::backend::{Backends, CacheWrite, Delivery, EventSubscription};
use skalds::core::submission::NewTask;
use skalds::core::task::LifecycleStatus::*;

use crate::house::{House, eventually};

pub(crate) struct Python {
    backends: Backends,
    events: Box<dyn EventSubscription>,
    beats: tokio::task::JoinHandle<()>,
}

impl Drop for Python {
    fn drop(&mut self) {
        self.beats.abort();
    }
}

impl Python {
    pub(crate) async fn new(backends: &Backends) -> Python {
        let topics = ["task.assign", "task.cancel", "task.update.attachment"];
        let events = backends.events.subscribe("py", &topics).await.unwrap();
        alive(backends, 0).await;
        let beating = backends.clone();
        let beats = tokio::spawn(async move {
            for beat in 1.. {
                alive(&beating, beat % 100).await;
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        });
        Python { backends: backends.clone(), events, beats }
    }

    pub(crate) async fn heartbeat(&self, task: &str, value: i32) {
        let key = format!("task:{task}:heartbeat");
        self.backends
            .cache
            .set_string(key.as_bytes(), value.to_string().as_bytes(), Some(Duration::from_secs(8)))
            .await
            .unwrap();
    }

    pub(crate) async fn hears(&mut self, topic: &str, task: &str) {
        self.hears_one_of(&[topic], task).await;
    }

    /// Which of these topics it hears of first.
    pub(crate) async fn hears_one_of(&mut self, topics: &[&str], task: &str) -> String {
        loop {
            let heard = tokio::time::timeout(Duration::from_secs(20), self.events.next()).await;
            let Ok(Some(Ok(Delivery::Event(event)))) = heard else {
                panic!("{topics:?} for {task} never came: {heard:?}")
            };
            if topics.contains(&&event.topic[..]) && event.key == task.as_bytes() {
                let value = String::from_utf8(event.value).unwrap();
                assert!(value.contains(&format!(r#""taskIds":["{task}"]"#)), "{value}");
                return event.topic;
            }
        }
    }
}

/// What its loops write.
async fn alive(backends: &Backends, beat: u8) {
    let ttl = Some(Duration::from_secs(3_600));
    let field = |key: &str, value: String| CacheWrite::SetHashField {
        key: key.into(),
        field: b"py".to_vec(),
        value: value.into_bytes(),
        ttl,
    };
    let string = |key: &str, value: String, ttl| CacheWrite::SetString {
        key: key.into(),
        value: value.into_bytes(),
        ttl,
    };
    let tasks = r#"{"tasks":[],"existed_task_ids":[],"timestamp":1795967224128}"#;
    let writes = [
        field("skalds:hash", format!("17959671698{beat:02}")),
        field("skalds:mode:hash", "node".into()),
        string("skalds:py:heartbeat", beat.to_string(), Some(Duration::from_secs(8))),
        string("skalds:py:all-task", tasks.into(), ttl),
        CacheWrite::ReplaceList {
            key: b"skalds:py:allow-task-class-name".to_vec(),
            values: vec![b"MyWorker".to_vec()],
            ttl,
        },
    ];
    backends.cache.write_batch(&writes).await.unwrap();
}

#[tokio::test]
async fn heartbeats_of_python_workers_make_their_tasks_states() {
    let house = House::new();
    let mut python = Python::new(&house.backends).await;
    eventually("the fleet knows it", || async {
        house.controller.skalds().iter().any(|skald| skald.id == "py" && skald.online && !skald.native)
    })
    .await;

    // Stale words of a former run must not end this one.
    python.heartbeat("finishes", 200).await;
    house.submit(NewTask::new("MyWorker").id("finishes")).await;
    python.hears("task.assign", "finishes").await;
    assert_eq!(house.get("finishes").await.executor.as_deref(), Some("py"));
    python.heartbeat("finishes", 93).await;
    house.becomes("finishes", Running).await;
    python.heartbeat("finishes", 200).await;
    house.becomes("finishes", Finished).await;

    house.submit(NewTask { max_attempts: Some(1), ..NewTask::new("MyWorker").id("fails") }).await;
    python.hears("task.assign", "fails").await;
    house.backends.cache.set_string(b"task:fails:exception", b"boom", None).await.unwrap();
    python.heartbeat("fails", -1).await;
    let task = house.becomes("fails", Failed).await;
    assert_eq!(task.skalds.last_error.as_deref(), Some("boom"));

    house.submit(NewTask::new("MyWorker").id("cancelled")).await;
    python.hears("task.assign", "cancelled").await;
    python.heartbeat("cancelled", 5).await;
    house.becomes("cancelled", Running).await;
    house.controller.cancel("cancelled").await.unwrap();
    python.hears("task.cancel", "cancelled").await;
    python.heartbeat("cancelled", -2).await;
    house.becomes("cancelled", Cancelled).await;
}

#[tokio::test]
async fn a_python_worker_that_dies_is_noticed() {
    let house = House::new();
    let mut python = Python::new(&house.backends).await;
    house.submit(NewTask::new("MyWorker").id("t")).await;
    python.hears("task.assign", "t").await;
    python.heartbeat("t", 7).await;
    house.becomes("t", Running).await;
    // Its Skald lives on; the worker's key is renewed no more, and expires.
    house.backends.cache.delete_key(b"task:t:heartbeat").await.unwrap();
    let task = house.until("t", |task| task.skalds.attempt == 1 && task.skalds.last_error.is_some()).await;
    assert!(
        task.skalds.last_error.unwrap().contains("it has no heartbeat any more, though skald py is alive")
    );
}
