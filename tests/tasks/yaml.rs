//! Edge and single-process Skalds: what a workers file lists.

use std::time::Duration;

use serde_json::json;
use skalds::actors::ActorSystem;
use skalds::actors::skald::{Skald, SkaldError};
use skalds::config::env::SkaldMode;
use skalds::config::workers_file::parse;
use skalds::core::submission::NewTask;
use skalds::core::task::LifecycleStatus::*;
use skalds::core::task::{Task, TaskMode};

use crate::house::{House, eventually};
use crate::workers;

const FILE: &str = r#"
TaskWorkers:
  greet:
    className: Echo
    attachments: { the_word: "hello" }
  watch:
    className: Wait
  retry:
    className: Fail
    attachments: { until: 3 }
"#;

#[tokio::test]
async fn an_edge_skald_runs_what_its_file_lists_without_a_controllers_help() {
    let house = House::new();
    let edge = || {
        workers::all(house.skald("edge")).mode(SkaldMode::Edge).workers(parse("workers.yml", FILE).unwrap())
    };
    let skald = house.run(edge()).await;
    let task = house.becomes_at_last("greet", Finished).await;
    assert_eq!(task.skalds.result, Some(json!("hello")));
    assert_eq!((task.mode, task.source.as_str(), task.deadline_date_time), (TaskMode::Active, "YAML", 0));
    assert_eq!(house.becomes_at_last("retry", Finished).await.skalds.attempt, 3);
    house.becomes_at_last("watch", Running).await;
    // It is seen, and nothing is assigned to it.
    eventually("the fleet knows it", || async {
        house
            .controller
            .skalds()
            .iter()
            .any(|skald| skald.id == "edge" && skald.mode == "edge" && skald.online)
    })
    .await;
    house.submit(NewTask::new("Echo").id("other").attach("theWord", 1)).await;
    // Live updates and cancels reach it.
    house.controller.update_attachments("watch", json!({"x": 1}).as_object().cloned()).await.unwrap();
    skald.drain().await;
    assert_eq!(house.get("watch").await.lifecycle_status, Created);
    let (greeted, retried) = (house.get("greet").await, house.get("retry").await);

    // Restarted: everything runs again, with what storage says, but not what was cancelled.
    house.controller.cancel("watch").await.unwrap();
    house.controller.update_attachments("retry", json!({"until": 1}).as_object().cloned()).await.unwrap_err();
    let skald = house.run(edge()).await;
    for before in [greeted, retried] {
        let newer = |task: &Task| task.skalds.incarnation > before.skalds.incarnation;
        let after = house.until(&before.id, |task| task.lifecycle_status == Finished && newer(task)).await;
        assert_eq!(
            (after.skalds.result, after.skalds.attempt),
            (before.skalds.result.clone(), before.skalds.attempt)
        );
    }
    assert_eq!(house.get("watch").await.lifecycle_status, Cancelled);
    assert_eq!(house.get("other").await.lifecycle_status, Created, "nobody takes it");
    skald.drain().await;
}

#[tokio::test]
async fn a_single_process_that_is_a_job_ends_with_its_task() {
    let house = House::new();
    for (file, status) in [
        (
            "TaskWorkers:\n  good:\n    className: Echo\n    isPersistent: false\n    attachments: { theWord: 1 }\n",
            Finished,
        ),
        (
            "TaskWorkers:\n  bad:\n    className: Fail\n    isPersistent: false\n  unused: { className: Wait }\n",
            Failed,
        ),
    ] {
        let system = ActorSystem::start().unwrap();
        let single = workers::all(house.skald("one"))
            .mode(SkaldMode::SingleProcess)
            .workers(parse("workers.yml", file).unwrap());
        let skald = single.start(&system).unwrap();
        assert_eq!(skald.id(), "[SP]one");
        tokio::time::timeout(Duration::from_secs(20), skald.ended()).await.expect("it ends by itself");
        let outcome = skald.outcome().expect("an outcome");
        assert_eq!((outcome.lifecycle_status, outcome.mode), (status, TaskMode::PassiveProcess));
        system.shutdown(Duration::from_secs(5)).await;
    }
    assert!(house.controller.get("unused").await.is_err(), "only the first is run");
}

#[tokio::test]
async fn a_single_process_that_is_a_deployment_runs_its_task_again() {
    let house = House::new();
    let file = "TaskWorkers:\n  again:\n    className: Echo\n    attachments: { theWord: 1 }\n";
    let single = workers::all(house.skald("one"))
        .mode(SkaldMode::SingleProcess)
        .workers(parse("workers.yml", file).unwrap());
    let skald = single.start(&house.system).unwrap();
    let first = house.becomes_at_last("again", Finished).await;
    house
        .until("again", |task| {
            task.lifecycle_status == Finished && task.skalds.incarnation > first.skalds.incarnation
        })
        .await;
    skald.drain().await;
}

#[tokio::test]
async fn a_file_that_lists_nothing_is_refused() {
    let system = ActorSystem::start().unwrap();
    let error = Skald::builder().mode(SkaldMode::Edge).start(&system).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a skald in mode edge runs what its workers file lists, and it lists nothing"
    );
}

#[tokio::test]
async fn a_file_with_a_class_that_the_skald_does_not_have_is_refused() {
    let system = ActorSystem::start().unwrap();
    let file = "TaskWorkers:\n  good: { className: Echo }\n  bad: { className: Nope }\n";
    let start = |mode| {
        let workers = parse("workers.yml", file).unwrap();
        Skald::builder()
            .register::<workers::Echo>("Echo")
            .register::<workers::Wait>("Wait")
            .mode(mode)
            .workers(workers)
    };
    let error = start(SkaldMode::Edge).start(&system).unwrap_err();
    assert_eq!(error.to_string(), "bad: there is no worker class \"Nope\"; known here: Echo, Wait");
    assert!(matches!(error, SkaldError::UnknownClass { .. }));
    // A single process runs the first only, a node none of them.
    for mode in [SkaldMode::SingleProcess, SkaldMode::Node] {
        start(mode).start(&system).unwrap();
    }
    system.shutdown(Duration::from_secs(5)).await;
}

impl House {
    /// As `becomes`, for a task that may not be there yet.
    async fn becomes_at_last(
        &self,
        id: &str,
        status: skalds::core::task::LifecycleStatus,
    ) -> skalds::core::task::Task {
        eventually("the task is there", || async { self.controller.get(id).await.is_ok() }).await;
        self.becomes(id, status).await
    }
}
