//! Several Skalds and one controller: lost events, dead Skalds, drains, numbers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde::Deserialize;
use skalds::actors::ActorSystem;
use skalds::actors::worker::{Outcome, TaskWorker, WorkerContext, WorkerError};
use skalds::backend::embedded::{EmbeddedEvents, EventLimits};
use skalds::backend::{BackendError, Backends, Event, EventQueue, EventSubscription, Stored, TaskQuery};
use skalds::core::event::{TaskEvent, write};
use skalds::core::lifecycle::{Change, Refused, apply};
use skalds::core::names::{TASK_ASSIGN, TASK_CANCEL, TESTING};
use skalds::core::submission::NewTask;
use skalds::core::task::LifecycleStatus::*;
use skalds::core::task::Task;

use crate::house::{House, PATIENCE, controller, eventually, fast_retry};
use crate::workers;

/// An event queue that loses what is published while it is told to.
struct Lossy {
    inner: Arc<dyn EventQueue>,
    lose: AtomicBool,
}

#[async_trait]
impl EventQueue for Lossy {
    async fn publish(&self, events: &[Event]) -> Result<(), BackendError> {
        if self.lose.load(Ordering::SeqCst) { Ok(()) } else { self.inner.publish(events).await }
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
async fn lost_events_are_found_by_the_sweeps() {
    let mut backends = Backends::in_memory().unwrap();
    let lossy = Arc::new(Lossy { inner: Arc::clone(&backends.events), lose: AtomicBool::new(true) });
    backends.events = Arc::clone(&lossy) as Arc<dyn EventQueue>;
    let system = ActorSystem::builder().arbiters(2).start().unwrap();
    let house = House { controller: controller(&backends).start(&system).unwrap(), backends, system };
    let _skald = house.run(workers::all(house.skald("a"))).await;
    house.submit(NewTask::new("Wait").id("t")).await;
    house.becomes("t", Running).await;
    house.controller.pause("t").await.unwrap();
    house.becomes("t", Paused).await;
    house.controller.resume("t").await.unwrap();
    house.becomes("t", Running).await;
    house.controller.cancel("t").await.unwrap();
    house.becomes("t", Cancelled).await;
    // And a task that was written into storage by somebody who tells nobody.
    let task = NewTask::new("Echo")
        .attach("theWord", 1)
        .into_task(|| "silent".into(), house.system.clock().now_millis());
    let task = task.unwrap();
    house.backends.storage.insert(&task).await.unwrap();
    house.becomes("silent", Finished).await;
}

/// Nothing but the news that events were missed can make the Skald look: all periods are an hour, and no event is left.
#[tokio::test]
async fn a_skald_that_missed_events_catches_up_from_storage() {
    let hour = Duration::from_secs(3_600);
    let mut backends = Backends::in_memory().unwrap();
    backends.events =
        Arc::new(EmbeddedEvents::with_limits(EventLimits { events: 3, ..EventLimits::default() }));
    let system = ActorSystem::builder().arbiters(2).start().unwrap();
    let seldom = controller(&backends).intervals(hour, hour, hour).start(&system).unwrap();
    let house = House { controller: seldom, backends, system };
    let _skald = house.run(workers::all(house.skald("a")).sync_period(hour)).await;
    house.submit(NewTask::new("Wait").id("held")).await;
    let held = house.becomes("held", Running).await;
    tokio::time::sleep(Duration::from_millis(300)).await; // what it looks for when it starts is over

    let now = house.system.clock().now_millis();
    let assign = Change::Assign { executor: "a".into() };
    let assigned = apply(&Task::new("assigned", "Wait", now), &assign, now, &fast_retry()).unwrap();
    house.backends.storage.insert(&assigned).await.unwrap();
    let mut held = held;
    loop {
        let cancelled = apply(&held, &Change::Cancel, now, &fast_retry()).unwrap();
        match house.backends.storage.replace(&cancelled, &held).await.unwrap() {
            Stored::Done => break,
            Stored::Stale(newer) => held = newer,
            Stored::Missing => panic!("it is there"),
        }
    }
    tokio::time::sleep(Duration::from_millis(300)).await; // nothing may happen meanwhile
    assert_eq!(house.get("assigned").await.lifecycle_status, Assigning, "nothing told the Skald");
    assert_eq!(house.get("held").await.lifecycle_status, Running, "nothing told the Skald");

    // What says so is pushed out by what comes after it, all in one go.
    let event = |topic: &str, id: &str| Event {
        topic: topic.into(),
        key: id.into(),
        value: write(&TaskEvent::about(id, now)),
    };
    let mut events = vec![event(TASK_ASSIGN, "assigned"), event(TASK_CANCEL, "held")];
    events.extend((0..3).map(|_| Event {
        topic: TESTING.into(),
        key: b"k".to_vec(),
        value: b"noise".to_vec(),
    }));
    house.backends.events.publish(&events).await.unwrap();
    house.becomes("held", Cancelled).await;
    house.becomes("assigned", Running).await;
}

#[tokio::test]
async fn a_dead_skalds_task_runs_elsewhere_and_its_late_word_is_refused() {
    let house = House::new();
    let doomed = ActorSystem::builder().arbiters(2).start().unwrap();
    let dead = workers::all(house.skald("dead")).start(&doomed).unwrap();
    dead.ready().await;
    house.submit(NewTask::new("Wait").id("t")).await;
    let held = house.becomes("t", Running).await;
    assert_eq!(held.executor.as_deref(), Some("dead"));
    let _heir = house.run(workers::all(house.skald("heir"))).await;
    drop(doomed); // no goodbye: killed in the middle of its work
    let taken = house.until("t", |task| task.executor.as_deref() == Some("heir")).await;
    let taken = if taken.lifecycle_status == Running { taken } else { house.becomes("t", Running).await };
    assert_eq!(taken.skalds.attempt, 2);
    assert!(taken.skalds.incarnation > held.skalds.incarnation);
    assert!(taken.skalds.last_error.as_ref().unwrap().contains("skald dead is gone"), "{taken:?}");
    // The zombie wakes up and says that it is done.
    let finish = Change::Finish { incarnation: held.skalds.incarnation, result: None };
    assert!(matches!(
        apply(&taken, &finish, taken.update_date_time, &fast_retry()),
        Err(Refused::Stale { .. })
    ));
    house.controller.cancel("t").await.unwrap();
    house.becomes("t", Cancelled).await;
}

#[tokio::test]
async fn a_skald_that_comes_back_under_its_name_takes_up_its_tasks() {
    // No controller: the Skald finds by itself what its former process left.
    let house =
        House::with(|backends| controller(backends).mode(skalds::config::env::ControllerMode::Controller));
    let mut task = NewTask::new("Echo").attach("theWord", 1).into_task(|| "t".into(), 1).unwrap();
    task.deadline_date_time = 0;
    for change in [
        Change::Assign { executor: "a".into() },
        Change::Start { executor: "a".into(), incarnation: 1, outside: false },
    ] {
        task = apply(&task, &change, 2, &fast_retry()).unwrap();
    }
    house.backends.storage.insert(&task).await.unwrap();
    let _skald = house.run(workers::all(house.skald("a"))).await;
    let task = house.becomes("t", Created).await;
    assert_eq!(task.skalds.last_error.as_deref(), Some("skald a was restarted while it ran the task"));
    assert_eq!(task.skalds.attempt, 1, "the attempt is used up: it may be the task that kills the Skald");
}

#[tokio::test]
async fn two_hundred_queued_tasks_survive_a_drain() {
    let house = House::new();
    let first = house.run(workers::all(house.skald("first")).capacity(20)).await;
    let tasks = (0..10).map(|n| NewTask::new("Wait").id(format!("long-{n}")));
    let tasks =
        tasks.chain((0..200).map(|n| NewTask::new("Echo").id(format!("short-{n}")).attach("theWord", n)));
    let answers = house.controller.submit_many(tasks.collect()).await.unwrap();
    assert!(answers.iter().all(Result::is_ok));
    eventually("some run", || async { first.task_ids().len() >= 10 }).await;
    tokio::time::timeout(PATIENCE, first.drain()).await.expect("the drain ends");
    assert!(first.task_ids().is_empty());
    let counts: HashMap<_, _> = house.controller.count_by_status().await.unwrap().into_iter().collect();
    let of = |status| counts.get(&status).copied().unwrap_or(0);
    assert_eq!((of(Assigning), of(Running)), (0, 0), "{counts:?}");
    assert_eq!(of(Created) + of(Finished), 210, "{counts:?}");
    eventually("the fleet knows", || async {
        !house.controller.skalds().iter().any(|skald| skald.id == "first" && skald.online)
    })
    .await;
    let _second = house.run(workers::all(house.skald("second"))).await;
    eventually("all short ones are done", || async {
        let counts = house.controller.count_by_status().await.unwrap();
        counts.contains(&(Finished, 200)) && counts.contains(&(Running, 10))
    })
    .await;
    for n in 0..200 {
        let task = house.get(&format!("short-{n}")).await;
        assert_eq!(task.skalds.attempt, 1, "{task:?}");
    }
}

#[tokio::test]
async fn the_systems_own_shutdown_hands_tasks_back() {
    let house = House::new();
    let other = ActorSystem::builder().arbiters(2).start().unwrap();
    let skald = workers::all(house.skald("a")).start(&other).unwrap();
    skald.ready().await;
    for (id, class) in [("polite", "Wait"), ("deaf", "Deaf")] {
        house.submit(NewTask::new(class).id(id)).await;
        house.becomes(id, Running).await;
    }
    let report = other.shutdown(Duration::from_secs(20)).await;
    assert!(report.is_clean(), "{report:?}");
    for id in ["polite", "deaf"] {
        let task = house.get(id).await;
        assert_eq!((task.lifecycle_status, task.skalds.attempt, task.executor), (Created, 0, None), "{id}");
    }
}

static RUNS: Mutex<Option<HashMap<String, u32>>> = Mutex::new(None);

/// Counts its runs by task.
#[derive(Deserialize)]
struct Tally;

#[async_trait]
impl TaskWorker for Tally {
    async fn run(&self, ctx: &WorkerContext) -> Result<Outcome, WorkerError> {
        *RUNS.lock().unwrap().get_or_insert_default().entry(ctx.task_id().to_owned()).or_default() += 1;
        Ok(Outcome::done())
    }
}

#[tokio::test]
async fn two_thousand_short_tasks_each_run_once() {
    let house = House::new();
    let mut skalds = Vec::new();
    for id in ["a", "b", "c"] {
        skalds.push(house.run(house.skald(id).register::<Tally>("Tally").capacity(50)).await);
    }
    let start = Instant::now();
    for chunk in 0..4 {
        let tasks = (0..500).map(|n| NewTask::new("Tally").id(format!("{chunk}-{n}"))).collect();
        house.controller.submit_many(tasks).await.unwrap();
    }
    eventually("all are done", || async {
        house.controller.count_by_status().await.unwrap().contains(&(Finished, 2_000))
    })
    .await;
    let time = start.elapsed();
    let runs = RUNS.lock().unwrap().take().unwrap();
    assert_eq!(runs.len(), 2_000);
    assert!(runs.values().all(|runs| *runs == 1));
    println!("2,000 tasks in {time:?}: {:.0} tasks/s", 2_000.0 / time.as_secs_f64());
    let page = house.controller.list(&TaskQuery { limit: 1, ..TaskQuery::default() }).await.unwrap();
    assert_eq!(page.total, 2_000);
}

#[tokio::test]
async fn a_full_skald_does_not_hold_up_short_tasks() {
    let house = House::new();
    let _one = house.run(workers::all(house.skald("one")).capacity(1)).await;
    house.submit(NewTask::new("Wait").id("long")).await;
    house.becomes("long", Running).await;
    let _two = house.run(workers::all(house.skald("two")).capacity(1)).await;
    for n in 0..20 {
        house.submit(NewTask::new("Echo").id(format!("short-{n}")).attach("theWord", n)).await;
    }
    for n in 0..20 {
        let task = house.becomes(&format!("short-{n}"), Finished).await;
        assert_eq!(task.executor.as_deref(), Some("two"));
    }
    assert_eq!(house.get("long").await.lifecycle_status, Running);
}

/// From submission to the worker's first line, with nothing else going on.
#[tokio::test]
async fn a_task_starts_within_milliseconds() {
    let house = House::new();
    let _skald = house.run(workers::all(house.skald("a"))).await;
    eventually("the fleet is known", || async { !house.controller.skalds().is_empty() }).await;
    let mut changes = house.controller.subscribe();
    let mut times = Vec::new();
    for n in 0..100 {
        let id = format!("t-{n}");
        let start = Instant::now();
        house.submit(NewTask::new("Wait").id(&id)).await;
        loop {
            let change = changes.next().await.unwrap().unwrap();
            if change.id == id && change.lifecycle_status == Running {
                break;
            }
        }
        times.push(start.elapsed());
        house.controller.cancel(&id).await.unwrap();
        house.becomes(&id, Cancelled).await;
    }
    times.sort();
    println!("submission to running: p50 {:?}, p99 {:?}", times[50], times[98]);
    assert!(times[50] < Duration::from_millis(50), "p50 {:?}", times[50]);
}
