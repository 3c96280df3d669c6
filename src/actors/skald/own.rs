//! The tasks of a workers file: an edge Skald and a single process look after these themselves.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::core::SkaldCore;
use crate::actors::tasks::{Changed, TaskError};
use crate::config::env::SkaldMode;
use crate::config::workers_file::WorkerEntry;
use crate::core::lifecycle::{Change, apply, not_before};
use crate::core::task::{LifecycleStatus, Millis, Task, TaskMode};

/// What the workers file lists.
pub(super) struct Own {
    workers: Mutex<BTreeMap<String, WorkerEntry>>,
    /// Which are to be looked at, and not before when. Empty for a node.
    due: Mutex<BTreeMap<String, Millis>>,
    /// They have been looked at for the first time, when even ended ones are run again.
    begun: AtomicBool,
    /// A single process has nothing more to do.
    over: Notify,
}

impl Own {
    pub(super) fn new(mode: SkaldMode, workers: Vec<(String, WorkerEntry)>) -> Self {
        let count = if mode == SkaldMode::SingleProcess { 1 } else { usize::MAX };
        let workers: Vec<_> = match mode {
            SkaldMode::Node => Vec::new(),
            SkaldMode::Edge | SkaldMode::SingleProcess => workers.into_iter().take(count).collect(),
        };
        let due = workers.iter().map(|(id, _)| (id.clone(), Millis::MIN)).collect();
        Own {
            workers: Mutex::new(workers.into_iter().collect()),
            due: Mutex::new(due),
            begun: AtomicBool::new(false),
            over: Notify::new(),
        }
    }

    /// What the file lists now.
    pub(super) fn listed(&self) -> BTreeMap<String, WorkerEntry> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Another version of the file; those that are new are to be looked at now.
    pub(super) fn replace(&self, workers: BTreeMap<String, WorkerEntry>, added: &[String]) {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        due.retain(|id, _| workers.contains_key(id));
        due.extend(added.iter().map(|id| (id.clone(), Millis::MIN)));
        *self.workers.lock().unwrap_or_else(PoisonError::into_inner) = workers;
    }

    fn entry(&self, id: &str) -> Option<WorkerEntry> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    pub(super) fn set_due(&self, id: &str, at: Millis) {
        self.due.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned(), at);
    }

    fn take_due(&self, now: Millis) -> Vec<String> {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let ids: Vec<String> = due.iter().filter(|(_, at)| **at <= now).map(|(id, _)| id.clone()).collect();
        ids.iter().for_each(|id| {
            due.remove(id);
        });
        ids
    }
}

/// How long a persistent single process waits before it runs its task again.
const RUN_AGAIN_AFTER: Millis = 1_000;
/// How often a task that cannot be started now (paused, held by another Skald) is looked at.
const LOOK_AGAIN_AFTER: Millis = 3_000;

impl SkaldCore {
    /// Waits until a single process has nothing more to do; other Skalds wait for ever.
    pub(super) async fn single_process_ended(&self) {
        self.own.over.notified().await;
    }

    /// Starts those of the workers file that are due.
    pub(super) async fn look_after_own(self: &Arc<Self>) -> Result<(), TaskError> {
        if self.is_draining() {
            return Ok(());
        }
        for id in self.own.take_due(self.tasks.clock.now_millis()) {
            if let Err(error) = self.ensure(&id).await {
                self.own.set_due(&id, self.tasks.clock.now_millis() + LOOK_AGAIN_AFTER);
                return Err(error);
            }
        }
        self.own.begun.store(true, Ordering::Release);
        Ok(())
    }

    /// Runs a task of the workers file, if it is not running and may.
    async fn ensure(self: &Arc<Self>, id: &str) -> Result<(), TaskError> {
        let Some(worker) = self.own.entry(id) else { return Ok(()) };
        let now = self.tasks.clock.now_millis();
        let mode = match self.mode {
            SkaldMode::SingleProcess => TaskMode::PassiveProcess,
            SkaldMode::Edge | SkaldMode::Node => TaskMode::Active,
        };
        let task = match self.tasks.storage.get(id).await? {
            Some(task) => task,
            None => {
                let mut task = worker.clone().into_task(id, mode, now);
                if self.mode == SkaldMode::SingleProcess
                    && !worker.is_persistent
                    && self.tasks.retry.max_attempts < 0
                {
                    task.skalds.max_attempts = Some(1); // a Job that is tried for ever never ends
                }
                self.tasks.storage.insert(&task).await?;
                task
            }
        };
        if task.class_name != worker.class_name {
            tracing::error!(
                task = id,
                file = worker.class_name,
                stored = task.class_name,
                "the workers file and storage name different classes; the task is not run"
            );
            return Ok(());
        }
        let Some(slot) = self.reserve(&task) else {
            self.own.set_due(id, now + LOOK_AGAIN_AFTER);
            return Ok(());
        };
        match self.own_changes(&task) {
            Ok(changes) => match self.tasks.change_all(task, &changes).await? {
                Changed::Done(task) => slot.run(task).await,
                Changed::Refused(refused, _) => {
                    tracing::debug!(task = id, %refused, "a task of the workers file was not started; trying again");
                    self.own.set_due(id, now + LOOK_AGAIN_AFTER);
                    Ok(())
                }
                Changed::Missing => {
                    self.own.set_due(id, now);
                    Ok(())
                }
            },
            Err(WhyNot::Later(at)) => {
                self.own.set_due(id, at);
                Ok(())
            }
            Err(WhyNot::Never(why)) => {
                tracing::warn!(task = id, why, "a task of the workers file is not run");
                drop(slot);
                self.own_task_ended(task);
                Ok(())
            }
        }
    }

    /// Which changes make a stored task one that runs here.
    fn own_changes(&self, task: &Task) -> Result<Vec<Change>, WhyNot> {
        use LifecycleStatus::{Assigning, Cancelled, Created, Failed, Finished, Paused, Running};
        let now = self.tasks.clock.now_millis();
        let later = WhyNot::Later(now + LOOK_AGAIN_AFTER);
        let persistent = self.mode == SkaldMode::SingleProcess && task.is_persistent;
        let again = persistent || !self.own.begun.load(Ordering::Acquire);
        let mut changes = Vec::new();
        match task.lifecycle_status {
            Created => {
                if let Some(at) = not_before(task).filter(|at| *at > now) {
                    return Err(WhyNot::Later(at));
                }
            }
            // We held it in a former life; that we were restarted is not the task's fault.
            Assigning | Running | Paused if task.executor.as_ref() == Some(&self.id) => {
                changes.push(Change::Release { incarnation: task.skalds.incarnation });
            }
            Assigning | Running => return Err(later), // another Skald holds it
            Paused => return Err(later),
            Finished | Failed if again => changes.push(Change::Requeue),
            Finished | Failed => return Err(WhyNot::Never("it has ended")),
            Cancelled => return Err(WhyNot::Never("it was cancelled; requeue it to run it again")),
        }
        changes.push(Change::Assign { executor: self.id.clone() });
        // The incarnation that the changes so far lead to.
        let mut next = task.clone();
        for change in &changes {
            next = apply(&next, change, now, &self.tasks.retry)
                .map_err(|_| WhyNot::Later(now + LOOK_AGAIN_AFTER))?;
        }
        let (executor, incarnation) = (self.id.clone(), next.skalds.incarnation);
        changes.push(Change::Start {
            executor,
            incarnation,
            outside: self.classes.works_outside(&task.class_name),
        });
        Ok(changes)
    }

    /// A task of the workers file has left our hands: when it is looked at next, or what that means for a single process.
    pub(super) fn own_task_ended(self: &Arc<Self>, task: Task) {
        use LifecycleStatus::{Cancelled, Created, Failed, Finished};
        if self.own.entry(&task.id).is_none() {
            return;
        }
        let now = self.tasks.clock.now_millis();
        let again = match task.lifecycle_status {
            Cancelled => None,
            Finished | Failed if self.mode == SkaldMode::SingleProcess && task.is_persistent => {
                Some(now + RUN_AGAIN_AFTER)
            }
            Finished | Failed => None,
            Created => Some(not_before(&task).unwrap_or(now)),
            _ => Some(now + LOOK_AGAIN_AFTER),
        };
        match again {
            Some(at) if !self.is_draining() => {
                self.own.set_due(&task.id, at);
                let wait = Duration::from_millis(at.saturating_sub(now).max(0).unsigned_abs());
                let core = Arc::clone(self);
                actix_rt::spawn(async move {
                    core.tasks.clock.sleep(wait).await;
                    core.sweep_now.notify_one();
                });
            }
            Some(_) => {}
            None => {
                let single = self.mode == SkaldMode::SingleProcess;
                self.set_outcome(task);
                if single {
                    self.own.over.notify_one();
                }
            }
        }
    }
}

/// Why a task of the workers file is not started.
enum WhyNot {
    /// Not now; look again at this time.
    Later(Millis),
    /// Not at all.
    Never(&'static str),
}
