//! Tasks that wait: for a time, for each other, for their deadline.

use std::time::Duration;

use serde_json::json;
use skalds::core::submission::NewTask;
use skalds::core::task::LifecycleStatus::*;

use crate::house::{House, eventually};
use crate::workers;

#[tokio::test]
async fn a_scheduled_task_runs_at_its_ticks_until_it_is_cancelled() {
    let house = House::new();
    let _skald = house.run(workers::all(house.skald("a"))).await;
    let task =
        NewTask { cron: Some("* * * * * *".into()), ..NewTask::new("Echo").id("t").attach("theWord", 1) };
    let task = house.submit(task).await;
    let first = task.skalds.not_before.unwrap();
    assert!(first > task.create_date_time && first % 1_000 == 0);
    let later = house.until("t", |task| task.skalds.not_before.unwrap() >= first + 2_000).await;
    assert_eq!(later.skalds.result, Some(json!(1)));
    house.controller.cancel("t").await.unwrap();
    let ended = house.becomes("t", Cancelled).await;
    tokio::time::sleep(Duration::from_millis(1_200)).await; // a tick passes: nothing may happen at it
    assert_eq!(house.get("t").await, ended);
}

#[tokio::test]
async fn a_task_does_not_start_before_its_time() {
    let house = House::new();
    let _skald = house.run(workers::all(house.skald("a"))).await;
    let at = house.system.clock().now_millis() + 700;
    house.submit(NewTask { not_before: Some(at), ..NewTask::new("Echo").id("t").attach("theWord", 1) }).await;
    let task = house.becomes("t", Finished).await;
    assert!(task.update_date_time >= at, "{} ms too early", at - task.update_date_time);
    assert!(task.update_date_time < at + 150, "a timer, not the sweep, woke the dispatcher");
}

#[tokio::test]
async fn a_task_waits_for_those_it_depends_on() {
    let house = House::new();
    let _skald = house.run(workers::all(house.skald("a"))).await;
    let after = |id: &str, dependencies: &[&str]| NewTask {
        dependencies: dependencies.iter().map(|id| (*id).to_owned()).collect(),
        ..NewTask::new("Echo").id(id).attach("theWord", 1)
    };
    house.submit(NewTask::new("Wait").id("gate")).await;
    house.submit(after("second", &["first", "late"])).await;
    house.submit(after("first", &[])).await;
    house.becomes("first", Finished).await;
    assert_eq!(house.get("second").await.lifecycle_status, Created);
    house.submit(after("late", &[])).await; // may come after the one that waits for it
    house.becomes("second", Finished).await;

    house.submit(after("never", &["gate"])).await;
    house.submit(after("neither", &["never"])).await;
    house.becomes("gate", Running).await;
    house.controller.cancel("gate").await.unwrap();
    let never = house.becomes("never", Failed).await;
    assert_eq!(never.skalds.last_error.as_deref(), Some("it depends on task \"gate\", which was cancelled"));
    let neither = house.becomes("neither", Failed).await;
    assert_eq!(neither.skalds.last_error.as_deref(), Some("it depends on task \"never\", which has failed"));
}

#[tokio::test]
async fn a_deadline_ends_what_waits_and_what_runs() {
    let house = House::new();
    let skald = house.run(workers::all(house.skald("a"))).await;
    let soon = house.system.clock().now_millis() + 600;
    let late =
        |class: &str, id: &str| NewTask { deadline_date_time: Some(soon), ..NewTask::new(class).id(id) };
    house.submit(late("Wait", "running")).await;
    house.submit(late("NobodyRunsThis", "waiting")).await;
    house.becomes("running", Running).await;
    for id in ["running", "waiting"] {
        let task = house.becomes(id, Failed).await;
        assert_eq!(task.skalds.last_error.as_deref(), Some("the deadline has passed"));
        assert!(task.skalds.dead && task.update_date_time >= soon);
    }
    eventually("the worker is gone", || async { skald.task_ids().is_empty() }).await;
}
