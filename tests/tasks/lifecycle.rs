//! One task's life: run, fail, stop, hold, change.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};
use skalds::actors::worker::{Outcome, TaskWorker, WorkerContext, WorkerError};
use skalds::actors::{TaskError, worker::StopReason};
use skalds::core::lifecycle::Refused;
use skalds::core::submission::NewTask;
use skalds::core::task::LifecycleStatus::*;

use crate::house::{Counter, House, eventually};
use crate::workers;

#[tokio::test]
async fn a_task_runs_from_submission_to_its_result() {
    let house = House::new();
    let _skald = house.run(workers::all(house.skald("a"))).await;
    // Field names fit as well as aliases.
    let task = house.submit(NewTask::new("Echo").id("t").attach("the_word", json!({"n": 7}))).await;
    assert_eq!((task.lifecycle_status, task.source.as_str()), (Created, "api"));
    let task = house.becomes("t", Finished).await;
    assert_eq!(task.skalds.result, Some(json!({"n": 7})));
    assert_eq!((task.executor.as_deref(), task.skalds.attempt), (Some("a"), 1));
    eventually("the last heartbeat says so", || async {
        house.controller.heartbeat("t").await.unwrap().heartbeat == Some(200)
    })
    .await;
    let again = house.controller.submit(NewTask::new("Echo").id("t").attach("theWord", 1)).await;
    assert_eq!(again, Err(TaskError::Taken("t".into())));
    assert_eq!(house.controller.get("nobody").await, Err(TaskError::Missing("nobody".into())));
}

#[tokio::test]
async fn a_running_task_beats_and_says_who_runs_it() {
    let house = House::new();
    let skald = house.run(workers::all(house.skald("a")).beat_period(Duration::from_millis(20))).await;
    house.submit(NewTask::new("Wait").id("t")).await;
    house.becomes("t", Running).await;
    let beat = || async { house.controller.heartbeat("t").await.unwrap().heartbeat };
    eventually("a beat", || async { beat().await.is_some() }).await;
    let first = beat().await;
    eventually("another beat", || async { beat().await != first }).await;
    assert_eq!(skald.task_ids(), ["t"]);
    eventually("the fleet knows", || async {
        house.controller.skalds().iter().any(|skald| {
            skald.id == "a"
                && skald.online
                && skald.mode == "node"
                && skald.classes.contains(&"Wait".to_owned())
        })
    })
    .await;
    let health = house.controller.health().await;
    assert!(health.ok && health.skalds_online == 1, "{health:?}");
}

#[tokio::test]
async fn a_cancel_works_in_every_state() {
    let house = House::new();
    // Created: nobody runs it.
    house.submit(NewTask::new("Wait").id("created")).await;
    assert_eq!(house.controller.cancel("created").await.unwrap().lifecycle_status, Cancelled);
    // Paused, and nobody holds it.
    house.submit(NewTask::new("Wait").id("paused")).await;
    assert_eq!(house.controller.pause("paused").await.unwrap().lifecycle_status, Paused);
    assert_eq!(house.controller.cancel("paused").await.unwrap().lifecycle_status, Cancelled);

    let skald = house.run(workers::all(house.skald("a"))).await;
    // Running, and a second cancel changes nothing.
    house.submit(NewTask::new("Wait").id("running")).await;
    house.becomes("running", Running).await;
    let start = Instant::now();
    house.controller.cancel("running").await.unwrap();
    house.becomes("running", Cancelled).await;
    assert!(start.elapsed() < Duration::from_millis(400), "at once: {:?}", start.elapsed());
    assert_eq!(house.controller.cancel("running").await.unwrap().lifecycle_status, Cancelled);
    eventually("the last heartbeat says so", || async {
        house.controller.heartbeat("running").await.unwrap().heartbeat == Some(-2)
    })
    .await;
    // Paused in a worker's hands.
    house.submit(NewTask::new("Wait").id("held")).await;
    house.becomes("held", Running).await;
    house.controller.pause("held").await.unwrap();
    house.becomes("held", Paused).await;
    house.controller.cancel("held").await.unwrap();
    house.becomes("held", Cancelled).await;
    // Failed, and about to be tried again.
    house.submit(NewTask { max_attempts: Some(1), ..NewTask::new("Fail").id("failed") }).await;
    house.becomes("failed", Failed).await;
    assert_eq!(house.controller.cancel("failed").await.unwrap().lifecycle_status, Cancelled);
    // Finished: refused.
    house.submit(NewTask::new("Echo").id("finished").attach("theWord", 1)).await;
    house.becomes("finished", Finished).await;
    let refused = house.controller.cancel("finished").await.unwrap_err();
    assert!(
        matches!(&refused, TaskError::Refused { refused: Refused::NotAllowed { status: Finished, .. }, .. }),
        "{refused}"
    );
    // Assigned to a Skald that is full: it is cancelled without having run.
    skald.drain().await;
    let full = house.run(workers::all(house.skald("full")).capacity(1)).await;
    house.submit(NewTask::new("Wait").id("first")).await;
    house.becomes("first", Running).await;
    let assigned = house.submit(NewTask::new("Wait").id("assigned")).await;
    let assign = skalds::core::lifecycle::Change::Assign { executor: full.id().into() };
    let next =
        skalds::core::lifecycle::apply(&assigned, &assign, assigned.create_date_time, &Default::default());
    house.backends.storage.replace(&next.unwrap(), &assigned).await.unwrap();
    assert_eq!(house.controller.cancel("assigned").await.unwrap().lifecycle_status, Assigning);
    house.controller.cancel("first").await.unwrap();
    let task = house.becomes("assigned", Cancelled).await;
    assert_eq!(task.skalds.attempt, 0);
}

#[tokio::test]
async fn code_that_does_not_listen_is_ended_after_the_grace_period() {
    let house = House::new();
    let skald = house.run(workers::all(house.skald("a"))).await;
    // Work that at least awaits: dropped.
    house.submit(NewTask::new("Deaf").id("deaf")).await;
    house.becomes("deaf", Running).await;
    house.controller.cancel("deaf").await.unwrap();
    house.becomes("deaf", Cancelled).await;
    // A thread that goes on: given up, and what it says later counts for nothing.
    house.submit(NewTask::new("Block").id("thread").attach("ignore_cancel", true)).await;
    house.until("thread", |task| task.skalds.checkpoint.is_some()).await;
    house.controller.cancel("thread").await.unwrap();
    let ended = house.becomes("thread", Cancelled).await;
    // Code that blocks its arbiter: the Skald, which runs on another one, gives it up.
    house.submit(NewTask::new("Stubborn").id("stubborn").attach("millis", 4_000)).await;
    house.becomes("stubborn", Running).await;
    let start = Instant::now();
    house.controller.cancel("stubborn").await.unwrap();
    house.becomes("stubborn", Cancelled).await;
    assert!(
        start.elapsed() < Duration::from_millis(3_500),
        "not only when it is done: {:?}",
        start.elapsed()
    );
    assert_eq!(house.get("thread").await.skalds.revision, ended.skalds.revision);
    eventually("nothing is held", || async { skald.task_ids().is_empty() }).await;
    house.submit(NewTask::new("Echo").id("after").attach("theWord", 1)).await;
    house.becomes("after", Finished).await;
}

#[tokio::test]
async fn failures_are_tried_again_until_they_work_or_are_dead() {
    let house = House::new();
    let _skald = house.run(workers::all(house.skald("a"))).await;
    house.submit(NewTask::new("Fail").id("third").attach("until", 3)).await;
    let task = house.becomes("third", Finished).await;
    assert_eq!((task.skalds.attempt, task.skalds.result), (3, Some(json!(3))));
    assert_eq!(task.skalds.last_error, None);

    house.submit(NewTask { max_attempts: Some(2), ..NewTask::new("Fail").id("dead") }).await;
    let task = house.becomes("dead", Failed).await;
    assert_eq!((task.skalds.attempt, task.skalds.dead), (2, true));
    assert_eq!(task.skalds.last_error.as_deref(), Some("attempt 2 did not work"));
    eventually("it shows", || async {
        let shown = house.controller.heartbeat("dead").await.unwrap();
        shown.heartbeat == Some(-1) && shown.exception.as_deref() == Some("attempt 2 did not work")
    })
    .await;

    house.submit(NewTask::new("Fail").id("permanent").attach("permanent", true)).await;
    assert_eq!(house.becomes("permanent", Failed).await.skalds.attempt, 1);

    // An operator puts it back; its attempts begin anew.
    let back = house.controller.requeue("dead").await.unwrap();
    assert_eq!((back.lifecycle_status, back.skalds.attempt), (Created, 0));
    assert_eq!(house.until("dead", |task| task.skalds.dead).await.skalds.attempt, 2);
}

#[tokio::test]
async fn attachments_that_do_not_fit_fail_for_good_and_say_why() {
    let house = House::new();
    let _skald = house.run(workers::all(house.skald("a"))).await;
    house.submit(NewTask::new("Echo").id("t").attach("wrong", 1)).await;
    let task = house.becomes("t", Failed).await;
    let error = task.skalds.last_error.unwrap();
    assert!(error.contains("missing field `theWord`"), "{error}");
    house.controller.update_attachments("t", json!({"theWord": "right"}).as_object().cloned()).await.unwrap();
    house.controller.requeue("t").await.unwrap();
    assert_eq!(house.becomes("t", Finished).await.skalds.result, Some(json!("right")));
}

#[tokio::test]
async fn a_panic_fails_that_task_alone_and_its_text_is_kept() {
    let house = House::new();
    let _skald = house.run(workers::all(house.skald("a"))).await;
    house.submit(NewTask::new("Wait").id("neighbour")).await;
    house.becomes("neighbour", Running).await;
    for place in ["before", "run"] {
        let task =
            NewTask { max_attempts: Some(1), ..NewTask::new("Panic").id(place).attach("place", place) };
        house.submit(task).await;
        let error = house.becomes(place, Failed).await.skalds.last_error.unwrap();
        assert_eq!(error, format!("the worker panicked: fell over in {place}"));
    }
    house.submit(NewTask::new("Panic").id("release").attach("place", "release")).await;
    house.becomes("release", Finished).await; // the work itself was done
    let blocking =
        NewTask { max_attempts: Some(1), ..NewTask::new("Block").id("block").attach("panic", true) };
    house.submit(blocking).await;
    let error = house.becomes("block", Failed).await.skalds.last_error.unwrap();
    assert_eq!(error, "the worker panicked: a thread fell over");
    let neighbour = house.get("neighbour").await;
    assert_eq!((neighbour.lifecycle_status, neighbour.skalds.attempt), (Running, 1));
}

#[tokio::test]
async fn updates_reach_a_running_worker_and_all_count() {
    let house = House::new();
    let _skald = house.run(workers::all(house.skald("a"))).await;
    house.submit(NewTask::new("Listen").id("hook")).await;
    house.becomes("hook", Running).await;
    let update =
        |id: &'static str, value: Value| house.controller.update_attachments(id, value.as_object().cloned());
    for frame in 1..=3 {
        update("hook", json!({"frame": frame})).await.unwrap();
        house
            .until("hook", |task| {
                task.skalds.progress.as_ref().and_then(|progress| progress.text.clone())
                    == Some(frame.to_string())
            })
            .await;
    }
    update("hook", json!({"frame": "bad"})).await.unwrap();
    eventually("the complaint shows", || async {
        house.controller.heartbeat("hook").await.unwrap().error.as_deref() == Some("not that one")
    })
    .await;
    assert_eq!(house.get("hook").await.lifecycle_status, Running);

    house.submit(NewTask::new("Hear").id("listener")).await;
    house.becomes("listener", Running).await;
    // It may be Running a moment before it listens: what it is told meanwhile is the first thing that it hears.
    update("listener", json!({"the_end": false})).await.unwrap();
    update("listener", json!({"the_end": true})).await.unwrap();
    let task = house.becomes("listener", Finished).await;
    assert_eq!(task.skalds.result, Some(json!({"the_end": true})));
    assert_eq!(task.skalds.attachments_version, 2);
}

#[tokio::test]
async fn a_paused_task_holds_still_and_goes_on() {
    let house = House::new();
    let skald = house.run(workers::all(house.skald("a"))).await;
    house.submit(NewTask::new("Wait").id("t")).await;
    house.becomes("t", Running).await;
    for _ in 0..3 {
        house.controller.pause("t").await.unwrap();
        let paused = house.becomes("t", Paused).await;
        assert_eq!((paused.executor.as_deref(), paused.skalds.attempt), (Some("a"), 1));
        house.controller.resume("t").await.unwrap();
        house.becomes("t", Running).await;
    }
    // A pause outlives its holder: the task is not given to anybody until it is resumed.
    house.controller.pause("t").await.unwrap();
    house.becomes("t", Paused).await;
    skald.drain().await;
    let held = house.get("t").await;
    assert_eq!((held.lifecycle_status, held.executor), (Paused, None));
    let _other = house.run(workers::all(house.skald("b"))).await;
    assert_eq!(house.get("t").await.lifecycle_status, Paused);
    house.controller.resume("t").await.unwrap();
    assert_eq!(house.becomes("t", Running).await.executor.as_deref(), Some("b"));
}

#[tokio::test]
async fn a_blocking_worker_goes_on_from_its_checkpoint() {
    let house = House::new();
    let skald = house.run(workers::all(house.skald("a"))).await;
    house.submit(NewTask::new("Block").id("t")).await;
    let done = |task: &skalds::core::task::Task| {
        task.skalds.checkpoint.as_ref().and_then(|c| c["data"].as_u64()).unwrap_or(0)
    };
    house.until("t", |task| done(task) >= 5).await;
    house.controller.update_attachments("t", json!({"rounds": 20}).as_object().cloned()).await.unwrap();
    skald.drain().await;
    let before = house.get("t").await;
    assert_eq!(
        (before.lifecycle_status, before.skalds.attempt),
        (Created, 0),
        "handed back, no attempt used up"
    );
    let _other = house.run(workers::all(house.skald("b"))).await;
    let after = house.becomes("t", Finished).await;
    assert!(after.skalds.result.unwrap().as_u64().unwrap() >= done(&before));
}

static FETCHED: Counter = Counter::new();
static SHAKEN: Counter = Counter::new();

/// Two stages: one that is done once, one that fails twice.
#[derive(Deserialize)]
struct Stages;

#[async_trait]
impl TaskWorker for Stages {
    async fn run(&self, ctx: &WorkerContext) -> Result<Outcome, WorkerError> {
        let fetched: u32 = ctx.stage("fetch", 0, || async { Ok(FETCHED.count() * 100) }).await?;
        if ctx.attempt() == 1 {
            return Err(WorkerError::new("the Skald stumbles after the first stage"));
        }
        let shaken: u32 = ctx
            .stage("shake", 2, || async {
                match SHAKEN.count() {
                    3 => Ok(3),
                    _ => Err(WorkerError::new("not yet")),
                }
            })
            .await?;
        Outcome::with(&[fetched, shaken])
    }
}

#[tokio::test]
async fn finished_stages_are_skipped_and_failing_ones_tried_again() {
    let house = House::new();
    let _skald = house.run(house.skald("a").register::<Stages>("Stages")).await;
    house.submit(NewTask::new("Stages").id("t")).await;
    let task = house.becomes("t", Finished).await;
    assert_eq!(task.skalds.result, Some(json!([100, 3])));
    assert_eq!((FETCHED.get(), SHAKEN.get(), task.skalds.attempt), (1, 3, 2));
    assert_eq!(task.skalds.progress.and_then(|progress| progress.stage).as_deref(), Some("shake"));
}

static CALLS: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());

/// Notes each call of its life.
#[derive(Deserialize)]
struct Diary {
    fail: bool,
}

impl Diary {
    fn note(&self, ctx: &WorkerContext, what: &str) {
        CALLS.lock().unwrap().push(format!("{}:{what}", ctx.task_id()));
    }
}

#[async_trait]
impl TaskWorker for Diary {
    async fn before(&mut self, ctx: &WorkerContext) -> Result<(), WorkerError> {
        self.note(ctx, "before");
        Ok(())
    }

    async fn run(&self, ctx: &WorkerContext) -> Result<Outcome, WorkerError> {
        self.note(ctx, "run");
        if self.fail { Err(WorkerError::permanent("no")) } else { Ok(Outcome::done()) }
    }

    async fn after(&mut self, ctx: &WorkerContext, outcome: &Outcome) -> Result<(), WorkerError> {
        assert_eq!(*outcome, Outcome::done());
        self.note(ctx, "after");
        Ok(())
    }

    async fn on_error(&mut self, ctx: &WorkerContext, error: &WorkerError) {
        assert_eq!(error.text(), "no");
        self.note(ctx, "error");
    }

    async fn release(&mut self, ctx: &WorkerContext) {
        assert_eq!(ctx.stop_reason(), None::<StopReason>);
        self.note(ctx, "release");
    }
}

#[tokio::test]
async fn the_hooks_are_called_in_order() {
    let house = House::new();
    let _skald = house.run(house.skald("a").register::<Diary>("Diary")).await;
    house.submit(NewTask::new("Diary").id("good").attach("fail", false)).await;
    house.becomes("good", Finished).await;
    house.submit(NewTask::new("Diary").id("bad").attach("fail", true)).await;
    house.becomes("bad", Failed).await;
    let calls = CALLS.lock().unwrap();
    assert_eq!(
        *calls,
        [
            "good:before",
            "good:run",
            "good:after",
            "good:release",
            "bad:before",
            "bad:run",
            "bad:error",
            "bad:release"
        ]
    );
}

#[tokio::test]
async fn changes_can_be_followed() {
    let house = House::new();
    let mut changes = house.controller.subscribe();
    let _skald = house.run(workers::all(house.skald("a"))).await;
    house.submit(NewTask::new("Echo").id("t").attach("theWord", 1)).await;
    let mut seen = Vec::new();
    while seen.last() != Some(&Finished) {
        let change = tokio::time::timeout(Duration::from_secs(10), changes.next()).await;
        let change =
            change.expect("a change comes").expect("the controller is there").expect("none was missed");
        assert_eq!((change.id.as_str(), change.class_name.as_str()), ("t", "Echo"));
        seen.push(change.lifecycle_status);
    }
    assert_eq!(seen, [Created, Assigning, Running, Finished]);
}
