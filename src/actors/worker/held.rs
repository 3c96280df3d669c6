//! A task that this process holds: its document, its lease, and what its worker is asked to do.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::{Map, Value};
use tokio::sync::{Mutex, Notify, watch};

use super::StopReason;
use crate::actors::clock::Clock;
use crate::actors::tasks::{Changed, TaskError, Tasks};
use crate::core::lease::Lease;
use crate::core::lifecycle::{Change, Refused};
use crate::core::task::{LifecycleStatus, Millis, Progress, Task};

/// What a worker is asked to do. The latest word counts.
#[derive(Debug, Clone)]
pub(crate) struct Orders {
    /// To stop, and why.
    pub(crate) stop: Option<StopReason>,
    /// To hold still.
    pub(crate) pause: bool,
    /// The attachments as they are now.
    pub(crate) attachments: Arc<Map<String, Value>>,
    /// Raised with each change of the attachments; 0 is what the worker was made with.
    pub(crate) version: u64,
}

/// The last complaint of each worker of a Skald that its heartbeats have not shown yet.
#[derive(Debug, Default)]
pub(crate) struct Complaints(std::sync::Mutex<HashMap<String, String>>);

impl Complaints {
    /// Task and text of each.
    pub(crate) fn take(&self) -> HashMap<String, String> {
        std::mem::take(&mut lock(&self.0))
    }
}

/// A task in the hands of this process.
pub(crate) struct Held {
    pub(crate) lease: Lease,
    pub(crate) class_name: String,
    pub(crate) attempt: u32,
    pub(crate) deadline: Millis,
    /// When the worker was started, by the wall clock.
    pub(crate) started_at: Millis,
    tasks: Tasks,
    /// The document as last read or written. The lock is held while it is being changed, so that the holder's own writes
    /// never race each other.
    document: Mutex<Task>,
    orders: watch::Sender<Orders>,
    /// `run` listens for updates itself.
    pub(crate) listens: AtomicBool,
    /// The version of the attachments that the worker was given last: made from, or by `update`.
    pub(crate) given: AtomicU64,
    /// The latest progress that is not stored yet.
    progress: std::sync::Mutex<Option<Progress>>,
    /// The stage that the worker is in.
    stage: std::sync::Mutex<Option<String>>,
    pub(crate) progressed: Notify,
    complaints: Arc<Complaints>,
    /// When the worker was first asked to stop.
    stop_since: OnceLock<Duration>,
    /// The newest revision that was obeyed.
    obeyed: AtomicU64,
    /// The work goes on without the worker: only the worker can end it.
    outside: bool,
    /// The worker has ended: whatever code is left over speaks for nobody.
    over: AtomicBool,
}

/// How long a worker may take to end work that goes on elsewhere: agents of a chain job that are away are waited for.
const END_OUTSIDE: Duration = Duration::from_secs(60);

impl Held {
    /// Takes a task that has just become `Running`. `None` when its document names no executor.
    pub(crate) fn new(task: Task, tasks: Tasks, complaints: Arc<Complaints>) -> Option<Arc<Held>> {
        let lease = Lease::of(&task)?;
        let (orders, _) = watch::channel(Orders {
            stop: None,
            pause: task.skalds.pause_requested,
            attachments: Arc::new(task.attachments.clone().unwrap_or_default()),
            version: 0,
        });
        Some(Arc::new(Held {
            class_name: task.class_name.clone(),
            attempt: task.skalds.attempt,
            deadline: task.deadline_date_time,
            started_at: tasks.clock.now_millis(),
            lease,
            tasks,
            outside: task.skalds.outside,
            document: Mutex::new(task),
            orders,
            listens: AtomicBool::new(false),
            given: AtomicU64::new(0),
            progress: std::sync::Mutex::default(),
            stage: std::sync::Mutex::default(),
            progressed: Notify::new(),
            complaints,
            stop_since: OnceLock::new(),
            obeyed: AtomicU64::new(0),
            over: AtomicBool::new(false),
        }))
    }

    pub(crate) fn id(&self) -> &str {
        &self.lease.task_id
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.tasks.clock
    }

    pub(crate) fn orders(&self) -> watch::Receiver<Orders> {
        self.orders.subscribe()
    }

    pub(crate) fn stopping(&self) -> Option<StopReason> {
        self.orders.borrow().stop
    }

    /// Asks the worker to stop. The first reason stays, except that a lost lease outranks every other.
    pub(crate) fn stop(&self, reason: StopReason) {
        self.orders.send_if_modified(|orders| {
            let new = orders.stop.is_none()
                || (reason == StopReason::Lost && orders.stop != Some(StopReason::Lost));
            if new {
                orders.stop = Some(reason);
            }
            new
        });
        self.stop_since.get_or_init(|| self.tasks.clock.elapsed());
    }

    /// How long ago the worker was first asked to stop.
    pub(crate) fn stopping_for(&self) -> Option<Duration> {
        self.stop_since.get().map(|since| self.tasks.clock.elapsed().saturating_sub(*since))
    }

    pub(crate) fn works_outside(&self) -> bool {
        self.outside
    }

    /// How long a worker may take to stop for this reason.
    pub(crate) fn patience(&self, reason: StopReason, grace: Duration) -> Duration {
        match reason {
            StopReason::Cancelled | StopReason::DeadlinePassed if self.outside => grace.max(END_OUTSIDE),
            _ => grace,
        }
    }

    /// Whether the task's deadline has passed, by this machine's clock.
    pub(crate) fn deadline_passed(&self) -> bool {
        self.deadline > 0 && self.tasks.clock.now_millis() >= self.deadline
    }

    /// Gives the worker other attachments.
    pub(crate) fn give_attachments(&self, attachments: &Map<String, Value>) {
        self.orders.send_if_modified(|orders| {
            if *orders.attachments == *attachments {
                return false;
            }
            orders.attachments = Arc::new(attachments.clone());
            orders.version += 1;
            true
        });
    }

    pub(crate) async fn task(&self) -> Task {
        self.document.lock().await.clone()
    }

    /// Changes the document. Whatever is found in it meanwhile is passed on to the worker.
    ///
    /// Boxed: a change moves whole documents about, and an idle worker should not keep room for them.
    pub(crate) fn change<'a>(&'a self, change: &'a Change) -> BoxFuture<'a, Result<Task, TaskError>> {
        Box::pin(self.change_document(change))
    }

    async fn change_document(&self, change: &Change) -> Result<Task, TaskError> {
        let mut document = self.document.lock().await;
        let mut changed = self.tasks.change_from(document.clone(), change).await?;
        if let Changed::Refused(..) = changed {
            // What is refused may be what this process last saw, and not what is.
            changed = match self.tasks.storage.get(self.id()).await? {
                Some(task) if task != *document => self.tasks.change_from(task, change).await?,
                Some(_) => changed,
                None => Changed::Missing,
            };
        }
        match changed {
            Changed::Done(task) => {
                *document = task.clone();
                drop(document);
                self.obey(&task);
                Ok(task)
            }
            Changed::Refused(refused, task) => {
                *document = task.clone();
                drop(document);
                self.obey(&task);
                Err(TaskError::Refused { id: task.id, refused })
            }
            Changed::Missing => {
                self.stop(StopReason::Lost);
                Err(TaskError::Missing(self.id().to_owned()))
            }
        }
    }

    /// As [`Held::change`], until storage has taken it or refuses it: an outcome must not be lost because storage is away.
    pub(crate) async fn change_at_last(&self, change: &Change) -> Result<Task, TaskError> {
        let mut wait = Duration::from_millis(50);
        loop {
            match self.change(change).await {
                Err(TaskError::Backend(error)) => {
                    tracing::warn!(task = self.id(), %error, "the outcome of a task is not stored yet; trying again");
                    self.clock().sleep(wait).await;
                    wait = (wait * 2).min(Duration::from_secs(5));
                }
                Err(TaskError::Contended(_)) => {}
                done => return done,
            }
        }
    }

    /// Does what the stored document asks for.
    pub(crate) fn obey(&self, task: &Task) {
        use LifecycleStatus::{Cancelled, Failed, Paused, Running};
        if self.obeyed.fetch_max(task.skalds.revision, Ordering::AcqRel) > task.skalds.revision {
            return; // it was read before something newer was
        }
        let mine = task.skalds.incarnation == self.lease.incarnation
            && task.executor.as_ref() == Some(&self.lease.executor);
        match task.lifecycle_status {
            // A Python controller sets the status alone.
            Cancelled => self.stop(StopReason::Cancelled),
            Failed if self.deadline_passed() => self.stop(StopReason::DeadlinePassed),
            Running | Paused if mine => {
                if task.skalds.cancel_requested {
                    self.stop(StopReason::Cancelled);
                }
                if let Some(attachments) = &task.attachments {
                    self.give_attachments(attachments);
                }
                self.orders.send_if_modified(|orders| {
                    let changed = orders.pause != task.skalds.pause_requested;
                    orders.pause = task.skalds.pause_requested;
                    changed
                });
            }
            _ => self.stop(StopReason::Lost),
        }
    }

    /// Reads the document anew and obeys it.
    pub(crate) async fn refresh(&self) -> Result<(), TaskError> {
        let mut document = self.document.lock().await;
        match self.tasks.storage.get(self.id()).await? {
            Some(task) => {
                *document = task.clone();
                drop(document);
                self.obey(&task);
            }
            None => {
                drop(document);
                self.stop(StopReason::Lost);
            }
        }
        Ok(())
    }

    /// Keeps the latest progress until it is stored. Without a stage of its own it is about the stage before it.
    pub(crate) fn set_progress(&self, mut progress: Progress) {
        let mut stage = lock(&self.stage);
        match &progress.stage {
            Some(entered) => *stage = Some(entered.clone()),
            None => progress.stage.clone_from(&stage),
        }
        drop(stage);
        *lock(&self.progress) = Some(progress);
        self.progressed.notify_one();
    }

    pub(crate) fn take_progress(&self) -> Option<Progress> {
        lock(&self.progress).take()
    }

    /// What the worker complains of while it goes on.
    pub(crate) fn complain(&self, text: &str) {
        lock(&self.complaints.0).insert(self.id().to_owned(), text.to_owned());
    }

    /// Nothing that left-over code says counts from now on.
    pub(crate) fn close(&self) {
        self.over.store(true, Ordering::Release);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    pub(crate) fn incarnation(&self) -> u64 {
        self.lease.incarnation
    }
}

fn lock<T>(slot: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Nothing panics under these locks, so what a poisoned one holds is whole.
    slot.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Whether a refusal says that somebody else has the task.
pub(crate) fn is_stale(refused: &Refused) -> bool {
    matches!(refused, Refused::Stale { .. } | Refused::NotAllowed { .. })
}
