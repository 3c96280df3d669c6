//! A controller that is killed between a stored change and its event: who must hear it hears it all the same.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use skalds::actors::ActorSystem;
use skalds::backend::mongo::{MongoOptions, MongoStorage};
use skalds::backend::{BackendError, Backends, Event, EventQueue, EventSubscription};
use skalds::core::submission::NewTask;
use skalds::core::task::LifecycleStatus::*;

use crate::house::{House, controller, eventually};
use crate::python::Python;
use crate::support::MongoDatabase;

/// An event queue in front of which the process dies, as if it were killed there.
struct Deadly {
    inner: Arc<dyn EventQueue>,
    topic: &'static str,
}

#[async_trait]
impl EventQueue for Deadly {
    async fn publish(&self, events: &[Event]) -> Result<(), BackendError> {
        if events.iter().any(|event| event.topic == self.topic) {
            std::process::abort();
        }
        self.inner.publish(events).await
    }

    async fn subscribe(
        &self,
        group: &str,
        topics: &[&str],
    ) -> Result<Box<dyn EventSubscription>, BackendError> {
        self.inner.subscribe(group, topics).await
    }

    async fn close(&self) -> Result<(), BackendError> {
        self.inner.close().await
    }

    async fn ping(&self) -> Result<Duration, BackendError> {
        self.inner.ping().await
    }
}

/// Where the tasks are: a SQLite file, or `URL#DATABASE` of a MongoDB.
async fn backends_at(place: &str) -> Backends {
    let Some((url, database)) = place.split_once('#') else { return Backends::embedded(place).unwrap() };
    let options = MongoOptions { database: database.into(), ..MongoOptions::new(url) };
    let storage = MongoStorage::connect(options).await.unwrap();
    Backends { storage: Arc::new(storage), ..Backends::in_memory().unwrap() }
}

/// Names the place of the tasks to a child: the same test again, in a process of its own, which is the one that dies.
const CHILD: &str = "SKALDS_TEST_ORDERS";

async fn house_at(place: &str, deadly: Option<&'static str>) -> House {
    let mut backends = backends_at(place).await;
    if let Some(topic) = deadly {
        backends.events = Arc::new(Deadly { inner: Arc::clone(&backends.events), topic });
    }
    let system = ActorSystem::builder().arbiters(2).start().unwrap();
    House { controller: controller(&backends).start(&system).unwrap(), backends, system }
}

/// A Python worker runs the task `t`.
async fn running(house: &House) -> Python {
    let mut python = Python::new(&house.backends).await;
    house.submit(NewTask::new("MyWorker").id("t").attach("fixFrame", 30)).await;
    python.hears("task.assign", "t").await;
    python.heartbeat("t", 7).await;
    house.becomes("t", Running).await;
    python
}

/// Runs the test in a child until it dies in front of the event, on SQLite and on MongoDB; `then` gets the place of the tasks.
async fn after_the_crash(test: &str, then: impl AsyncFn(String)) {
    use std::os::unix::process::ExitStatusExt;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tasks.db").to_str().unwrap().to_owned();
    let database = MongoDatabase::new();
    for place in [file, format!("{}#{}", database.url, database.name)] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test]).env(CHILD, &place).stdout(Stdio::null()).stderr(Stdio::null());
        let status = tokio::task::spawn_blocking(move || command.status().unwrap()).await.unwrap();
        assert_eq!(status.signal(), Some(6), "it is aborted: {status}"); // SIGABRT
        then(place).await;
    }
}

#[tokio::test]
async fn an_update_of_a_python_worker_survives_the_controller_that_stored_it() {
    let attachments = json!({"fixFrame": 41}).as_object().cloned();
    if let Ok(place) = std::env::var(CHILD) {
        let house = house_at(&place, Some("task.update.attachment")).await;
        let _python = running(&house).await;
        house.controller.update_attachments("t", attachments).await.unwrap();
        unreachable!("publishing ends the process");
    }
    let test = "orders::an_update_of_a_python_worker_survives_the_controller_that_stored_it";
    after_the_crash(test, async |place| {
        let stored = backends_at(&place).await.storage.get("t").await.unwrap().unwrap();
        assert_eq!((&stored.attachments, stored.lifecycle_status), (&attachments, Running));
        assert!(stored.skalds.untold.is_some(), "the change is stored, and that nobody was told");
        let house = house_at(&place, None).await;
        let mut python = Python::new(&house.backends).await;
        python.heartbeat("t", 8).await;
        python.hears("task.update.attachment", "t").await;
        let told = house.until("t", |task| task.skalds.untold.is_none()).await;
        assert_eq!((&told.attachments, told.lifecycle_status), (&attachments, Running));
    })
    .await;
}

#[tokio::test]
async fn a_python_worker_whose_task_was_taken_is_stopped_before_the_task_is_given_to_another() {
    if let Ok(place) = std::env::var(CHILD) {
        let house = house_at(&place, Some("task.cancel")).await;
        let _python = running(&house).await;
        // Its Skald lives on; the worker's key is renewed no more, and expires. It is alive all the same.
        house.backends.cache.delete_key(b"task:t:heartbeat").await.unwrap();
        std::future::pending().await
    }
    let test = "orders::a_python_worker_whose_task_was_taken_is_stopped_before_the_task_is_given_to_another";
    after_the_crash(test, async |place| {
        let house = house_at(&place, None).await;
        let stored = house.get("t").await;
        assert_eq!((stored.lifecycle_status, &stored.executor), (Created, &None));
        // The same Skald would get the task again at once, as far as the dispatcher is concerned.
        let mut python = Python::new(&house.backends).await;
        let first = python.hears_one_of(&["task.cancel", "task.assign"], "t").await;
        assert_eq!(first, "task.cancel");
        python.hears("task.assign", "t").await;
        assert!(house.get("t").await.skalds.untold.is_none());
    })
    .await;
}

/// An event queue that is away for a while.
struct Away {
    inner: Arc<dyn EventQueue>,
    away: AtomicBool,
}

#[async_trait]
impl EventQueue for Away {
    async fn publish(&self, events: &[Event]) -> Result<(), BackendError> {
        if !self.away.load(Ordering::SeqCst) {
            return self.inner.publish(events).await;
        }
        let (service, action, reason) = ("events".into(), "publish".into(), "they are away".into());
        Err(BackendError::Unavailable { service, action, reason })
    }

    async fn subscribe(
        &self,
        group: &str,
        topics: &[&str],
    ) -> Result<Box<dyn EventSubscription>, BackendError> {
        self.inner.subscribe(group, topics).await
    }

    async fn close(&self) -> Result<(), BackendError> {
        self.inner.close().await
    }

    async fn ping(&self) -> Result<Duration, BackendError> {
        self.inner.ping().await
    }
}

#[tokio::test]
async fn an_update_made_while_events_are_away_is_told_when_they_are_back() {
    let mut backends = Backends::in_memory().unwrap();
    let away = Arc::new(Away { inner: Arc::clone(&backends.events), away: AtomicBool::new(false) });
    backends.events = Arc::clone(&away) as Arc<dyn EventQueue>;
    let system = ActorSystem::builder().arbiters(2).start().unwrap();
    let house = House { controller: controller(&backends).start(&system).unwrap(), backends, system };
    let mut python = running(&house).await;
    away.away.store(true, Ordering::SeqCst);
    let attachments = json!({"fixFrame": 41}).as_object().cloned();
    let updated = house.controller.update_attachments("t", attachments).await.unwrap();
    assert!(updated.skalds.untold.is_some());
    away.away.store(false, Ordering::SeqCst);
    python.hears("task.update.attachment", "t").await;
    eventually("the mark is removed", || async { house.get("t").await.skalds.untold.is_none() }).await;
}

/// Our own Skalds look into storage: nothing more is written for them.
#[tokio::test]
async fn an_update_for_a_skald_of_ours_needs_no_mark() {
    let house = House::new();
    let _skald = house.run(crate::workers::all(house.skald("ours"))).await;
    house.submit(NewTask::new("Wait").id("t")).await;
    let before = house.becomes("t", Running).await;
    eventually("the fleet knows it", || async {
        house.controller.skalds().iter().any(|skald| skald.id == "ours" && skald.native)
    })
    .await;
    house.controller.update_attachments("t", json!({"x": 1}).as_object().cloned()).await.unwrap();
    let after = house.get("t").await;
    assert_eq!(after.skalds.revision, before.skalds.revision + 1);
}
