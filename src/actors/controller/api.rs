//! What the API, the command line and an embedder ask of a controller.

use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};
use tokio::sync::broadcast;

use super::builder::{ControllerBuilder, Shared};
use super::fleet::SkaldInfo;
use super::health::Health;
use crate::actors::notice::{Notice, TaskChange};
use crate::actors::tasks::TaskError;
use crate::backend::{Event, TaskPage, TaskQuery};
use crate::core::event::{TaskEvent, write};
use crate::core::lease::Heartbeat;
use crate::core::lifecycle::Change;
use crate::core::names;
use crate::core::order::Order;
use crate::core::submission::{NewTask, check_attachments};
use crate::core::task::{LifecycleStatus, Task};

/// A handle to a controller. Cheap to clone, and usable from any thread and any runtime.
#[derive(Clone)]
pub struct SystemController {
    pub(super) shared: Arc<Shared>,
}

impl fmt::Debug for SystemController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SystemController").field("mode", &self.shared.mode).finish_non_exhaustive()
    }
}

/// What a task's worker shows of itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskHeartbeat {
    /// 0 to 199 while it runs, 200 finished, -1 failed, -2 cancelled; `None`: nothing to be seen.
    pub heartbeat: Option<i32>,
    /// What it complains of while it goes on.
    pub error: Option<String>,
    /// What it failed with.
    pub exception: Option<String>,
}

impl SystemController {
    /// How a controller is set up.
    pub fn builder() -> ControllerBuilder {
        ControllerBuilder::default()
    }

    /// Takes a task in. When this returns, the task survives anything, and a Skald that can run it gets it within
    /// milliseconds.
    pub async fn submit(&self, task: NewTask) -> Result<Task, TaskError> {
        let task = task.into_task(new_id, self.now())?;
        if !self.shared.backends.storage.insert(&task).await? {
            return Err(TaskError::Taken(task.id));
        }
        self.entered(&task);
        Ok(task)
    }

    /// Takes many tasks in, in one commit. The first that is not valid refuses all; one whose id is taken is left out, and
    /// answered as such.
    pub async fn submit_many(&self, tasks: Vec<NewTask>) -> Result<Vec<Result<Task, TaskError>>, TaskError> {
        let now = self.now();
        let tasks =
            tasks.into_iter().map(|task| task.into_task(new_id, now)).collect::<Result<Vec<_>, _>>()?;
        let inserted = self.shared.backends.storage.insert_many(&tasks).await?;
        Ok(tasks
            .into_iter()
            .zip(inserted)
            .map(|(task, inserted)| {
                if !inserted {
                    return Err(TaskError::Taken(task.id));
                }
                self.entered(&task);
                Ok(task)
            })
            .collect())
    }

    fn entered(&self, task: &Task) {
        self.shared.tasks.notices.post(Notice::task(task));
        self.shared.dispatch.notify_one();
    }

    /// One task.
    pub async fn get(&self, id: &str) -> Result<Task, TaskError> {
        self.shared.backends.storage.get(id).await?.ok_or_else(|| TaskError::Missing(id.into()))
    }

    /// A page of tasks.
    pub async fn list(&self, query: &TaskQuery) -> Result<TaskPage, TaskError> {
        Ok(self.shared.backends.storage.list(query).await?)
    }

    /// All worker classes that any task names, sorted.
    pub async fn class_names(&self) -> Result<Vec<String>, TaskError> {
        Ok(self.shared.backends.storage.class_names().await?)
    }

    /// How many tasks there are of each status.
    pub async fn count_by_status(&self) -> Result<Vec<(LifecycleStatus, u64)>, TaskError> {
        Ok(self.shared.backends.storage.count_by_status().await?)
    }

    /// Cancels a task. What nobody holds is `Cancelled` at once; else the wish is stored, the holder is told, and the task
    /// is `Cancelled` when its worker has ended. A task that is cancelled already is answered as it is.
    pub async fn cancel(&self, id: &str) -> Result<Task, TaskError> {
        let task = self.get(id).await?;
        if task.lifecycle_status == LifecycleStatus::Cancelled {
            return Ok(task);
        }
        let task = self.shared.tasks.change_from(task, &Change::Cancel).await?.into_result(id)?;
        if task.lifecycle_status != LifecycleStatus::Cancelled {
            self.shared.tell(names::TASK_CANCEL, &task).await;
        }
        Ok(task)
    }

    /// Holds a task. What nobody holds is `Paused` at once; else its worker is asked, and the task is `Paused` when it
    /// holds still.
    pub async fn pause(&self, id: &str) -> Result<Task, TaskError> {
        self.change_and_tell(id, &Change::Pause).await
    }

    /// Lets a task go on.
    pub async fn resume(&self, id: &str) -> Result<Task, TaskError> {
        self.change_and_tell(id, &Change::Resume).await
    }

    /// Puts a task that has ended back into the queue, from the start, or from its checkpoint if it failed or was
    /// cancelled; a task that waits for its next attempt is tried at once.
    pub async fn requeue(&self, id: &str) -> Result<Task, TaskError> {
        let task = self.shared.tasks.change(id, &Change::Requeue).await?;
        self.shared.dispatch.notify_one();
        Ok(task)
    }

    /// Gives a task other attachments, all of them. A running worker gets them live.
    pub async fn update_attachments(
        &self,
        id: &str,
        attachments: Option<Map<String, Value>>,
    ) -> Result<Task, TaskError> {
        check_attachments(attachments.as_ref())?;
        self.change_and_tell(id, &Change::SetAttachments(attachments)).await
    }

    async fn change_and_tell(&self, id: &str, change: &Change) -> Result<Task, TaskError> {
        // A Python Skald does not know pauses, and reads attachments only when it is told to.
        let order = matches!(change, Change::SetAttachments(_)).then_some(Order::Update);
        let task = self.get(id).await?;
        let task = self
            .shared
            .change_with(&self.shared.tasks, task, std::slice::from_ref(change), order)
            .await?
            .into_result(id)?;
        let task = if task.skalds.untold.as_ref().is_some_and(|untold| Some(untold.order) == order) {
            self.shared.send_order(task).await
        } else {
            if task.executor.is_some() {
                // No topic of the Python package says "look again" but this one.
                self.shared.tell(names::TASK_UPDATE_ATTACHMENT, &task).await;
            }
            task
        };
        self.shared.dispatch.notify_one();
        Ok(task)
    }

    /// What a task's worker shows of itself.
    pub async fn heartbeat(&self, id: &str) -> Result<TaskHeartbeat, TaskError> {
        let keys = [names::task_heartbeat(id), names::task_error(id), names::task_exception(id)];
        let keys = keys.map(String::into_bytes);
        let mut values = self.shared.backends.cache.get_strings(&keys).await?.into_iter();
        let mut next = || values.next().flatten().filter(|value| !value.is_empty());
        let heartbeat = next().and_then(|value| Heartbeat::parse(&value).ok()).map(Heartbeat::number);
        let mut text = || next().map(|value| String::from_utf8_lossy(&value).into_owned());
        Ok(TaskHeartbeat { heartbeat, error: text(), exception: text() })
    }

    /// The Skalds of the fleet, by id, as the monitor last saw them.
    pub fn skalds(&self) -> Vec<SkaldInfo> {
        self.shared.fleet.borrow().skalds.values().cloned().collect()
    }

    /// Whether this controller and the services under it are well.
    pub async fn health(&self) -> Health {
        self.shared.health().await
    }

    /// Changes of tasks from now on, whoever makes them.
    pub fn subscribe(&self) -> TaskChanges {
        TaskChanges(self.shared.changes.subscribe())
    }

    fn now(&self) -> crate::core::task::Millis {
        self.shared.tasks.clock.now_millis()
    }
}

fn new_id() -> String {
    uuid::Uuid::now_v7().to_string()
}

/// Changes of tasks as they come; see [`SystemController::subscribe`].
#[derive(Debug)]
pub struct TaskChanges(broadcast::Receiver<TaskChange>);

impl TaskChanges {
    /// The next change. `Err` says how many were missed because this reader was too slow: it should list what it shows
    /// anew. `None` when the controller has ended.
    pub async fn next(&mut self) -> Option<Result<TaskChange, u64>> {
        match self.0.recv().await {
            Ok(change) => Some(Ok(change)),
            Err(broadcast::error::RecvError::Lagged(missed)) => Some(Err(missed)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

impl Shared {
    /// Tells whoever holds a task to look at it. What is not heard is found by the sweeps.
    pub(super) async fn tell(&self, topic: &str, task: &Task) {
        let now = self.tasks.clock.now_millis();
        let said = TaskEvent { recipient: task.executor.clone(), ..TaskEvent::about(&task.id, now) };
        let event = Event { topic: topic.into(), key: task.id.clone().into_bytes(), value: write(&said) };
        if let Err(error) = self.backends.events.publish(&[event]).await {
            tracing::warn!(task = task.id, topic, %error, "an event was not published; the sweeps will do its work");
        }
    }
}
