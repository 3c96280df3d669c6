//! The dispatcher: gives waiting tasks to Skalds.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use actix::{Actor, AsyncContext, Context, WrapFuture};
use futures_util::future::join_all;
use tokio::sync::Mutex;

use super::builder::Shared;
use super::unrunnable::Unrunnable;
use crate::actors::tasks::{Changed, TaskError, Tasks};
use crate::backend::{BackendError, CacheWrite, Event, MAX_PAGE, TaskOrder, TaskQuery};
use crate::core::event::{TaskEvent, write};
use crate::core::lifecycle::Change;
use crate::core::names;
use crate::core::placement::{Candidate, Placement};
use crate::core::task::{LifecycleStatus, Millis, Task, TaskMode};

/// How many tasks of one class are looked at in one round.
const ROUND: u64 = 500;
/// How many pages a round reads when tasks that wait for others stand in front.
const MAX_PAGES: u64 = 20;

pub(super) struct DispatcherActor(pub(super) Arc<Dispatcher>);

impl Actor for DispatcherActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let dispatcher = Arc::clone(&self.0);
        ctx.spawn(async move { dispatcher.run().await }.into_actor(self));
    }
}

pub(super) struct Dispatcher {
    shared: Arc<Shared>,
    placement: Mutex<Placement>,
}

impl Dispatcher {
    pub(super) fn new(shared: Arc<Shared>, placement: Placement) -> Self {
        Dispatcher { shared, placement: Mutex::new(placement) }
    }

    async fn run(&self) {
        let clock = &self.shared.tasks.clock;
        let mut sweeps = clock.interval(self.shared.timing.dispatcher_interval);
        let mut offset = 0;
        let mut unrunnable = Unrunnable::default();
        loop {
            self.shared.leads().await;
            match self.round().await {
                Ok(more) => {
                    self.shared.pulse.dispatched(clock.elapsed());
                    if more {
                        continue;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "a round of the dispatcher failed; trying again");
                    self.shared.failed(&error);
                }
            }
            tokio::select! {
                () = self.shared.dispatch.notified() => {}
                () = clock.sleep(self.next_due()) => {}
                () = sweeps.tick() => {
                    if let Err(error) = self.sweep(&mut offset, &mut unrunnable).await {
                        tracing::warn!(%error, "waiting tasks could not be searched; trying again");
                        self.shared.failed(&error);
                    }
                }
            }
        }
    }

    /// The time to the next task that becomes due.
    fn next_due(&self) -> Duration {
        let now = self.shared.tasks.clock.now_millis();
        let mut due = self.shared.due.lock().unwrap_or_else(PoisonError::into_inner);
        *due = due.split_off(&(now + 1));
        let wait = due.first().map_or(3_600_000, |at| at - now);
        Duration::from_millis(wait.unsigned_abs())
    }

    /// Assigns what can be assigned. Says whether another round would find more.
    async fn round(&self) -> Result<bool, TaskError> {
        let Some(lead) = self.shared.lead().filter(|lead| self.shared.is_swept(lead)) else {
            return Ok(false);
        };
        let mut skalds = self.candidates();
        let mut free: BTreeMap<String, u64> = BTreeMap::new();
        for skald in &skalds {
            let room =
                skald.capacity.map_or(ROUND, |capacity| u64::from(capacity.saturating_sub(skald.tasks)));
            for class in &skald.classes {
                *free.entry(class.clone()).or_default() += room;
            }
        }
        let mut ready = Vec::new();
        let mut more = false;
        let mut dependencies = Dependencies::default();
        for (class, room) in free.into_iter().filter(|(_, room)| *room > 0) {
            let (tasks, rest) = self.ready(&lead, &class, room.min(ROUND), &mut dependencies).await?;
            ready.extend(tasks);
            more |= rest;
        }
        if ready.is_empty() {
            return Ok(false);
        }
        let placed = self.placement.lock().await.place(&ready, &mut skalds);
        if placed.is_empty() {
            return Ok(false);
        }
        let python: BTreeSet<&str> =
            skalds.iter().filter(|s| s.capacity.is_none()).map(|s| s.id.as_str()).collect();
        let mut tasks: Vec<Option<Task>> = ready.into_iter().map(Some).collect();
        let assigned = join_all(placed.into_iter().filter_map(|(task, skald)| {
            let executor = skalds[skald].id.clone();
            Some(self.assign(&lead, tasks[task].take()?, executor))
        }))
        .await;
        let assigned: Vec<Task> = assigned.into_iter().flatten().collect();
        self.tell(&lead, &assigned, &python).await;
        Ok(more && !assigned.is_empty())
    }

    /// The Skalds that take tasks, with what they hold.
    fn candidates(&self) -> Vec<Candidate> {
        let fleet = Arc::clone(&self.shared.fleet.borrow());
        fleet
            .nodes()
            .map(|skald| Candidate {
                id: skald.id.clone(),
                classes: skald.classes.iter().cloned().collect(),
                tasks: self.shared.board.count(&skald.id),
                capacity: skald.capacity,
            })
            .filter(|skald| skald.capacity.is_none_or(|capacity| skald.tasks < capacity))
            .collect()
    }

    /// The most urgent tasks of a class that can start now, and whether there may be more.
    async fn ready(
        &self,
        lead: &Tasks,
        class: &str,
        room: u64,
        dependencies: &mut Dependencies,
    ) -> Result<(Vec<Task>, bool), TaskError> {
        let now = self.shared.tasks.clock.now_millis();
        let mut ready = Vec::new();
        let mut offset = 0;
        for _ in 0..MAX_PAGES {
            let query = TaskQuery {
                statuses: vec![LifecycleStatus::Created],
                class_names: vec![class.to_owned()],
                due_at: Some(now),
                order: TaskOrder::DispatchOrder,
                offset,
                limit: room,
                ..TaskQuery::default()
            };
            let page = self.shared.backends.storage.list(&query).await?;
            let count = page.tasks.len() as u64;
            for task in page.tasks {
                if self.may_start(lead, &task, now, dependencies).await? {
                    ready.push(task);
                }
            }
            offset += count;
            let last = count < room || offset >= page.total;
            if last || ready.len() as u64 >= room {
                return Ok((ready, !last));
            }
        }
        Ok((ready, false))
    }

    /// Whether a due task can start; one that never can is ended here.
    async fn may_start(
        &self,
        lead: &Tasks,
        task: &Task,
        now: Millis,
        dependencies: &mut Dependencies,
    ) -> Result<bool, TaskError> {
        if task.mode != TaskMode::Passive {
            return Ok(false);
        }
        if task.deadline_date_time > 0 && task.deadline_date_time <= now {
            self.end(lead, task, &Change::Expire).await?;
            return Ok(false);
        }
        let looked = self.shared.looked.load(Ordering::Acquire);
        if task.skalds.untold.as_ref().is_some_and(|untold| untold.comes_first(now, looked)) {
            return Ok(false); // its former holder is told to stop first; that sends for the dispatcher
        }
        for id in task.dependencies.iter().flatten() {
            match dependencies.status(id, &self.shared).await? {
                Dependency::Finished => {}
                Dependency::Pending => return Ok(false),
                Dependency::Never(why) => {
                    let error = format!("it depends on task {id:?}, which {why}");
                    self.end(lead, task, &Change::Abandon { error }).await?;
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    async fn end(&self, lead: &Tasks, task: &Task, change: &Change) -> Result<(), TaskError> {
        match lead.change_from(task.clone(), change).await? {
            Changed::Done(task) => {
                tracing::info!(task = task.id, error = task.skalds.last_error, "a waiting task ended")
            }
            Changed::Refused(..) | Changed::Missing => {} // it moved on meanwhile
        }
        Ok(())
    }

    async fn assign(&self, lead: &Tasks, task: Task, executor: String) -> Option<Task> {
        let id = task.id.clone();
        match lead.change_from(task, &Change::Assign { executor }).await {
            Ok(Changed::Done(task)) => {
                self.shared.board.see_task(&task);
                Some(task)
            }
            Ok(Changed::Refused(..) | Changed::Missing) => None, // it moved on meanwhile
            Err(error) => {
                tracing::warn!(task = id, %error, "a task was not assigned; trying again");
                self.shared.failed(&error);
                None
            }
        }
    }

    /// Tells the chosen Skalds. Whoever does not hear it finds it in storage, or is reminded by the monitor.
    async fn tell(&self, lead: &Tasks, tasks: &[Task], python: &BTreeSet<&str>) {
        if !self.shared.still_leads(lead) {
            return; // it was frozen since: by now the next leader reminds them, or has taken the tasks back
        }
        // A Python worker's last word stays under its key for an hour; it must not be taken for the new run's.
        let speaks_python = |task: &&Task| task.executor.as_deref().is_some_and(|id| python.contains(id));
        let to_python: Vec<&Task> = tasks.iter().filter(speaks_python).collect();
        if !to_python.is_empty() {
            let key =
                |task: &&Task| CacheWrite::DeleteKey { key: names::task_heartbeat(&task.id).into_bytes() };
            let stale: Vec<CacheWrite> = to_python.iter().map(key).collect();
            match self.shared.backends.cache.write_batch(&stale).await {
                Ok(()) => to_python.iter().for_each(|task| self.shared.board.cleared(task)),
                Err(error) => tracing::warn!(%error, "heartbeats of former runs were not removed"),
            }
        }
        let now = self.shared.tasks.clock.now_millis();
        let events: Vec<Event> = tasks
            .iter()
            .map(|task| {
                let said = TaskEvent { recipient: task.executor.clone(), ..TaskEvent::about(&task.id, now) };
                Event {
                    topic: names::TASK_ASSIGN.into(),
                    key: task.id.clone().into_bytes(),
                    value: write(&said),
                }
            })
            .collect();
        if let Err(error) = self.shared.backends.events.publish(&events).await {
            tracing::warn!(%error, count = events.len(), "assignments were not published; the sweeps will do it");
        }
    }

    /// Looks at a page of all waiting tasks, also of classes that nobody runs: for deadlines, for what can never start,
    /// for when tasks become due, and for classes without a Skald.
    async fn sweep(&self, offset: &mut u64, unrunnable: &mut Unrunnable) -> Result<(), TaskError> {
        let Some(lead) = self.shared.lead() else { return Ok(()) };
        let now = self.shared.tasks.clock.now_millis();
        let query = TaskQuery {
            statuses: vec![LifecycleStatus::Created],
            order: TaskOrder::DispatchOrder,
            offset: *offset,
            limit: MAX_PAGE,
            ..TaskQuery::default()
        };
        let page = self.shared.backends.storage.list(&query).await?;
        *offset += page.tasks.len() as u64;
        if *offset >= page.total {
            *offset = 0;
        }
        let mut dependencies = Dependencies::default();
        let mut waiting = BTreeSet::new();
        for task in &page.tasks {
            match crate::core::lifecycle::not_before(task).filter(|at| *at > now) {
                Some(at) => self.shared.becomes_due(at),
                None => {
                    if self.may_start(&lead, task, now, &mut dependencies).await? {
                        waiting.insert(&task.class_name[..]);
                    }
                }
            }
        }
        let fleet = Arc::clone(&self.shared.fleet.borrow());
        if fleet.known {
            let nodes = fleet.nodes();
            let runs = nodes.flat_map(|skald| skald.classes.iter().map(String::as_str)).collect();
            for class in unrunnable.look(&waiting, &runs) {
                tracing::warn!(class, "no Skald that is online runs class {class}; its tasks wait for one");
            }
        }
        Ok(())
    }
}

/// How many times are remembered; the sweep finds the others.
const MAX_DUE: usize = 10_000;

impl Shared {
    /// A waiting task becomes due at this time.
    pub(super) fn becomes_due(&self, at: Millis) {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let first = due.first().is_none_or(|first| at < *first);
        due.insert(at);
        if due.len() > MAX_DUE {
            due.pop_last();
        }
        drop(due);
        if first {
            self.dispatch.notify_one(); // it sleeps longer than that
        }
    }
}

enum Dependency {
    Finished,
    Pending,
    Never(&'static str),
}

/// What was found out about dependencies in this round.
#[derive(Default)]
struct Dependencies(HashMap<String, Option<Task>>);

impl Dependencies {
    async fn status(&mut self, id: &str, shared: &Shared) -> Result<Dependency, BackendError> {
        if !self.0.contains_key(id) {
            let task = shared.backends.storage.get(id).await?;
            self.0.insert(id.to_owned(), task);
        }
        Ok(match self.0.get(id) {
            Some(Some(task)) => match task.lifecycle_status {
                LifecycleStatus::Finished => Dependency::Finished,
                LifecycleStatus::Cancelled => Dependency::Never("was cancelled"),
                LifecycleStatus::Failed if task.skalds.dead => Dependency::Never("has failed"),
                _ => Dependency::Pending,
            },
            _ => Dependency::Pending, // it may still be submitted
        })
    }
}
