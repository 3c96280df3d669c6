//! What a Skald knows, and how it takes a task and lets go of it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::beats::Beats;
use super::own::Own;
use super::table::{Slot, Table};
use crate::actors::actor_ref::ActorRef;
use crate::actors::spec::{Place, Restart, Spec, Stage};
use crate::actors::supervisor::Exit;
use crate::actors::system::ActorSystem;
use crate::actors::tasks::{Changed, TaskError, Tasks};
use crate::actors::worker::{Held, StopReason, WorkerActor, WorkerClasses, WorkerEnd};
use crate::backend::Backends;
use crate::config::env::SkaldMode;
use crate::config::workers_file::WorkerEntry;
use crate::core::lease::Heartbeat;
use crate::core::lifecycle::{Change, Refused};
use crate::core::task::{LifecycleStatus, Task};

/// How long things take.
#[derive(Debug, Clone)]
pub(super) struct Timing {
    pub(super) grace: Duration,
    pub(super) drain: Duration,
    pub(super) beat: Duration,
    pub(super) sync: Duration,
    pub(super) key_ttl: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Timing {
            grace: Duration::from_secs(5),
            drain: Duration::from_secs(5),
            beat: Duration::from_secs(1),
            sync: Duration::from_secs(3),
            key_ttl: Duration::from_secs(3_600),
        }
    }
}

/// What all parts of a Skald share. It outlives the actor's restarts.
pub(super) struct SkaldCore {
    pub(super) id: String,
    pub(super) mode: SkaldMode,
    pub(super) backends: Backends,
    pub(super) classes: WorkerClasses,
    pub(super) capacity: u32,
    pub(super) tasks: Tasks,
    pub(super) timing: Timing,
    pub(super) system: ActorSystem,
    pub(super) beats: Beats,
    pub(super) own: Own,
    /// Look into storage now instead of at the next period.
    pub(super) sweep_now: Notify,
    /// The table was full when a task came; what waits is looked for as soon as there is room.
    overflown: AtomicBool,
    draining: AtomicBool,
    pub(super) table: Table,
    /// Told whenever a slot becomes free.
    freed: Notify,
    placed: AtomicUsize,
    /// (listens for events, has told the fleet)
    ready: watch::Sender<(bool, bool)>,
    outcome: Mutex<Option<Task>>,
}

impl SkaldCore {
    #[allow(clippy::too_many_arguments)] // called once, by the builder
    pub(super) fn new(
        id: String,
        mode: SkaldMode,
        backends: Backends,
        classes: WorkerClasses,
        capacity: u32,
        tasks: Tasks,
        timing: Timing,
        workers: Vec<(String, WorkerEntry)>,
        system: ActorSystem,
    ) -> Self {
        SkaldCore {
            id,
            mode,
            backends,
            classes,
            capacity,
            tasks,
            timing,
            system,
            beats: Beats::default(),
            own: Own::new(mode, workers),
            sweep_now: Notify::new(),
            overflown: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            table: Table::default(),
            freed: Notify::new(),
            placed: AtomicUsize::new(0),
            ready: watch::Sender::new((false, false)),
            outcome: Mutex::default(),
        }
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    pub(super) fn begin_drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Waits until nothing is held or being started.
    pub(super) async fn empty(&self) {
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            // Before the look, so that what is freed between the look and the wait is not missed.
            freed.as_mut().enable();
            if self.table.len() == 0 {
                return;
            }
            freed.await;
        }
    }

    pub(super) fn set_listening(&self, listening: bool) {
        self.ready.send_modify(|ready| ready.0 = listening);
    }

    pub(super) fn set_announced(&self) {
        self.ready.send_modify(|ready| ready.1 = true);
    }

    pub(super) async fn ready(&self) {
        let mut ready = self.ready.subscribe();
        // cannot fail: `self` keeps the sender
        let _ = ready.wait_for(|(listening, announced)| *listening && *announced).await;
    }

    pub(super) fn outcome(&self) -> Option<Task> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_outcome(&self, task: Task) {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
    }

    /// Takes an assigned task by its id, if it is ours to take.
    pub(super) async fn take(self: &Arc<Self>, id: &str) -> Result<(), TaskError> {
        match self.tasks.storage.get(id).await? {
            Some(task) => self.take_task(task).await,
            None => Ok(()), // deleted since it was assigned
        }
    }

    /// Takes an assigned task, if it is ours to take.
    pub(super) async fn take_task(self: &Arc<Self>, task: Task) -> Result<(), TaskError> {
        let mine = task.executor.as_deref() == Some(&self.id);
        if task.lifecycle_status != LifecycleStatus::Assigning || !mine {
            return Ok(());
        }
        let incarnation = task.skalds.incarnation;
        if self.is_draining() {
            let (id, release) = (task.id.clone(), Change::Release { incarnation });
            return self.tasks.change_from(task, &release).await?.into_result(&id).map(drop);
        }
        if !self.classes.has(&task.class_name) {
            let error = format!("skald {} has no worker class {:?}", self.id, task.class_name);
            let fail = Change::Fail { incarnation, error, retry: true };
            let id = task.id.clone();
            return self.tasks.change_from(task, &fail).await?.into_result(&id).map(drop);
        }
        let Some(slot) = self.reserve(&task) else { return Ok(()) };
        let outside = self.classes.works_outside(&task.class_name);
        let start = Change::Start { executor: self.id.clone(), incarnation, outside };
        match self.tasks.change_from(task, &start).await? {
            Changed::Done(task) => slot.run(task).await,
            Changed::Refused(Refused::Overruled { .. }, task) => {
                // It is to be cancelled or paused before it has even started.
                let release = Change::Release { incarnation: task.skalds.incarnation };
                let id = task.id.clone();
                self.tasks.change_from(task, &release).await?.into_result(&id).map(drop)
            }
            Changed::Refused(refused, task) => {
                tracing::debug!(task = task.id, %refused, "an assigned task was not started");
                Ok(())
            }
            Changed::Missing => Ok(()),
        }
    }

    /// A place for a task; `None` when it is known already or there is no room.
    pub(super) fn reserve(self: &Arc<Self>, task: &Task) -> Option<Reserved> {
        let mut table = self.table.lock();
        if let Some(slot) = table.get(&task.id) {
            if let Slot::Running(held, _) = slot
                && held.incarnation() < task.skalds.incarnation
            {
                held.stop(StopReason::Lost); // its place is free when it has gone; then the sweep starts the new one
                self.overflown.store(true, Ordering::Release);
            }
            return None;
        }
        if table.len() >= self.capacity as usize {
            self.overflown.store(true, Ordering::Release);
            return None;
        }
        table.insert(task.id.clone(), Slot::Starting);
        Some(Reserved { core: Arc::clone(self), id: Some(task.id.clone()) })
    }

    /// Frees a task's place; what is said of it is said before anybody sees the place free.
    fn free(&self, id: &str, say: impl FnOnce()) {
        self.table.edit(|slots| {
            slots.remove(id);
            say();
        });
        if self.overflown.swap(false, Ordering::AcqRel) {
            self.sweep_now.notify_one();
        }
        self.freed.notify_waiters();
    }

    /// Where a worker runs: not on the Skald's own arbiter, if there is another one.
    fn place(&self) -> Place {
        match self.system.arbiters() {
            0 | 1 => Place::Arbiter(0),
            arbiters => Place::Arbiter(1 + self.placed.fetch_add(1, Ordering::Relaxed) % (arbiters - 1)),
        }
    }

    /// A worker has ended and its outcome is stored.
    fn ended(self: &Arc<Self>, held: &Arc<Held>, end: WorkerEnd) {
        let current = self.table.held(held.id()).is_some_and(|other| Arc::ptr_eq(&other, held));
        if !current {
            return; // it was given up before; its end has been told
        }
        self.free(held.id(), || {
            self.beats.last_words(held.id(), end.heartbeat, end.exception, self.timing.key_ttl);
        });
        if let Some(task) = end.task {
            self.own_task_ended(task);
        }
    }

    /// A worker's actor is gone without a word: our own code panicked, or the system ended under it.
    fn lost_actor(self: &Arc<Self>, held: &Arc<Held>, exit: &Exit) {
        if let Exit::Failed { text, .. } = exit {
            let error = format!("the worker's actor panicked: {text}");
            let fail = Change::Fail { incarnation: held.incarnation(), error: error.clone(), retry: true };
            let (core, held) = (Arc::clone(self), Arc::clone(held));
            actix_rt::spawn(async move {
                held.close();
                let task = held.change_at_last(&fail).await.ok();
                core.ended(
                    &held,
                    WorkerEnd { heartbeat: Some(Heartbeat::Failed), exception: Some(error), task },
                );
            });
        } else {
            self.free_if(held);
        }
    }

    fn free_if(&self, held: &Arc<Held>) {
        if self.table.held(held.id()).is_some_and(|other| Arc::ptr_eq(&other, held)) {
            self.free(held.id(), || {});
        }
    }

    /// Ends a worker whose code does not even let its own actor run: the task goes on without it.
    pub(super) async fn give_up(self: &Arc<Self>, held: &Arc<Held>) {
        let actor = match self.table.lock().get(held.id()) {
            Some(Slot::Running(other, Some(actor))) if Arc::ptr_eq(other, held) => actor.clone(),
            _ => return,
        };
        tracing::error!(
            task = held.id(),
            class = held.class_name,
            "the worker blocks its thread and does not stop; it is given up (use a blocking worker, or a program)"
        );
        actor.kill();
        held.close();
        let release = Change::Release { incarnation: held.incarnation() };
        let (heartbeat, task) = match held.change_at_last(&release).await {
            Ok(task) if task.lifecycle_status == LifecycleStatus::Cancelled => {
                (Some(Heartbeat::Cancelled), Some(task))
            }
            Ok(task) => (None, Some(task)),
            Err(_) => (None, None), // it is somebody else's by now
        };
        self.ended(held, WorkerEnd { heartbeat, exception: None, task });
    }
}

/// A place in the table that is freed unless a worker takes it.
pub(super) struct Reserved {
    core: Arc<SkaldCore>,
    id: Option<String>,
}

impl Reserved {
    /// Starts the worker of a task that has just become `Running`.
    pub(super) async fn run(mut self, task: Task) -> Result<(), TaskError> {
        let core = Arc::clone(&self.core);
        let id = task.id.clone();
        let attachments = task.attachments.clone().unwrap_or_default();
        let asked_to_end = task.skalds.cancel_requested;
        let Some(held) = Held::new(task, core.tasks.clone(), core.beats.complaints()) else { return Ok(()) };
        if asked_to_end {
            held.stop(StopReason::Cancelled); // it was cancelled before, and is started to end what is under way
        }
        core.beats.first_words(&id, core.timing.key_ttl);
        let worker = match core.classes.make(&held.class_name, &attachments) {
            Ok(worker) => worker,
            Err(error) => {
                let text = error.text().to_owned();
                let fail = Change::Fail {
                    incarnation: held.incarnation(),
                    error: text.clone(),
                    retry: !error.is_permanent(),
                };
                let task = held.change_at_last(&fail).await?;
                core.beats.last_words(&id, Some(Heartbeat::Failed), Some(text), core.timing.key_ttl);
                drop(self);
                core.own_task_ended(task);
                return Ok(());
            }
        };
        // Before the actor is there, which may end before this function does.
        core.table.edit(|slots| slots.insert(id.clone(), Slot::Running(Arc::clone(&held), None)));
        match self.spawn(Arc::clone(&held), worker) {
            Ok(actor) => {
                self.id = None;
                if let Some(Slot::Running(current, place)) = core.table.lock().get_mut(&id)
                    && Arc::ptr_eq(current, &held)
                {
                    *place = Some(actor);
                }
                Ok(())
            }
            Err(error) => {
                // The system is full or shutting down: the task goes back.
                tracing::warn!(task = id, %error, "a worker could not be spawned; the task goes back");
                let release = Change::Release { incarnation: held.incarnation() };
                held.change_at_last(&release).await.map(drop)
            }
        }
    }

    fn spawn(
        &self,
        held: Arc<Held>,
        worker: Box<dyn crate::actors::worker::TaskWorker>,
    ) -> Result<ActorRef<WorkerActor>, crate::actors::error::ActorError> {
        let core = &self.core;
        let name = format!("task/{}/{}", held.incarnation(), held.id());
        let (told, lost) = (Arc::clone(core), Arc::clone(core));
        let (told_held, lost_held, spent) = (Arc::clone(&held), Arc::clone(&held), Arc::clone(&held));
        let grace = core.timing.grace;
        // A factory may be called again; a worker is made once. It is never called again: see `Restart::never`.
        let actor =
            Mutex::new(Some(WorkerActor::new(held, worker, grace, move |end| told.ended(&told_held, end))));
        let spec = Spec::new(name, move || {
            let actor = actor.lock().unwrap_or_else(PoisonError::into_inner).take();
            actor.unwrap_or_else(|| WorkerActor::spent(Arc::clone(&spent)))
        })
        .label("task")
        .mailbox(1)
        .restart(Restart::never())
        .place(core.place())
        .stage(Stage::Work)
        .on_exit(move |exit| lost.lost_actor(&lost_held, exit));
        core.system.spawn(spec)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.core.free(&id, || {});
        }
    }
}
