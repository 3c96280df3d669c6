//! What a worker knows of its task, and how it is heard.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::sync::watch;

use super::held::{Held, Orders};
use super::{StopReason, WorkerError};
use crate::actors::tasks::TaskError;
use crate::core::attachments;
use crate::core::lifecycle::{Change, Refused};
use crate::core::submission::{MAX_CHECKPOINT, check_size};
use crate::core::task::{Millis, Progress, Task};

/// A worker's side of its task. Cheap to clone.
#[derive(Clone)]
pub struct WorkerContext {
    pub(super) held: Arc<Held>,
    grace: Duration,
}

impl fmt::Debug for WorkerContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerContext").field("lease", &self.held.lease).finish_non_exhaustive()
    }
}

impl WorkerContext {
    pub(crate) fn new(held: Arc<Held>, grace: Duration) -> Self {
        WorkerContext { held, grace }
    }

    /// The task's id.
    pub fn task_id(&self) -> &str {
        self.held.id()
    }

    /// The task's document as this process last saw it.
    pub async fn task(&self) -> Task {
        self.held.task().await
    }

    /// Which attempt this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.held.attempt
    }

    /// The incarnation under which the task is held: a fencing token for effects outside of it.
    pub fn incarnation(&self) -> u64 {
        self.held.incarnation()
    }

    /// The id of the Skald that runs it.
    pub fn skald_id(&self) -> &str {
        &self.held.lease.executor
    }

    /// When the task fails if it has not ended, milliseconds since the Unix epoch; `None` is never.
    pub fn deadline(&self) -> Option<Millis> {
        (self.held.deadline > 0).then_some(self.held.deadline)
    }

    /// The attachments as they are now, live updates included.
    pub fn attachments(&self) -> Arc<Map<String, Value>> {
        Arc::clone(&self.held.orders().borrow().attachments)
    }

    /// The attachments as they are now, as a type of the worker's own; either spelling of its fields fits.
    pub fn attachments_as<T: DeserializeOwned>(&self) -> Result<T, WorkerError> {
        attachments::read(Some(&*self.attachments()))
            .map_err(|error| WorkerError::permanent(error.to_string()))
    }

    /// Live updates as they come, beginning with one that came since the worker was made. From now on
    /// [`TaskWorker::update`](super::TaskWorker::update) is not called.
    pub fn updates(&self) -> Updates {
        self.held.listens.store(true, Ordering::Release);
        Updates { orders: self.held.orders(), seen: self.held.given.load(Ordering::Acquire) }
    }

    /// How long the worker has to stop once it was asked to.
    pub fn grace(&self) -> Duration {
        self.grace
    }

    /// Why the worker is to stop, once it is.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.held.stopping()
    }

    /// Whether the worker is to stop, for whatever reason.
    pub fn is_cancelled(&self) -> bool {
        self.stop_reason().is_some()
    }

    /// Is ready when the worker is to stop; for `select!`.
    pub async fn cancelled(&self) -> StopReason {
        let mut orders = self.held.orders();
        loop {
            if let Some(reason) = orders.borrow_and_update().stop {
                return reason;
            }
            if orders.changed().await.is_err() {
                return StopReason::Lost; // cannot happen: `self` keeps the sender
            }
        }
    }

    /// Whether an operator wants the task to hold still.
    pub fn is_pause_requested(&self) -> bool {
        self.held.orders().borrow().pause
    }

    /// A place where the worker can hold still. Returns at once unless an operator has paused the task; else reports it
    /// as `Paused` and waits until it is resumed or to stop. Work that has no such place goes on while the task
    /// shows `pauseRequested`.
    pub async fn paused(&self) {
        let mut orders = self.held.orders();
        let mut suspended = false;
        loop {
            let (pause, stop) = {
                let orders = orders.borrow_and_update();
                (orders.pause, orders.stop.is_some())
            };
            if stop || (!pause && !suspended) {
                return;
            }
            let incarnation = self.incarnation();
            let report = match (pause, suspended) {
                (true, false) => Some(Change::Suspend { incarnation }),
                (false, true) => Some(Change::Continue { incarnation }),
                _ => None,
            };
            if let Some(report) = report {
                match self.held.change_at_last(&report).await {
                    Ok(_) => suspended = pause,
                    // It was resumed, or paused again, in between: the orders say so by now.
                    Err(TaskError::Refused { refused: Refused::Overruled { .. }, .. }) => {}
                    Err(error) => {
                        tracing::debug!(task = self.task_id(), %error, "a pause was not reported");
                        return;
                    }
                }
                continue;
            }
            if orders.changed().await.is_err() {
                return; // cannot happen: `self` keeps the sender
            }
        }
    }

    /// Says how far the work is: `value` from 0 to 1, and a word for people. Never waits; what is said in quick
    /// succession is stored once.
    pub fn progress(&self, value: f64, text: impl Into<String>) {
        self.report(value, Some(text.into()), None);
    }

    pub(super) fn report(&self, value: f64, text: Option<String>, stage: Option<String>) {
        if !self.held.is_over() {
            let value = if value.is_finite() { value.clamp(0.0, 1.0) } else { 0.0 };
            self.held.set_progress(Progress { value, text, stage });
        }
    }

    /// Stores what the work can go on from, at most 256 KiB of JSON. It survives anything once this returns `Ok`.
    pub async fn checkpoint(&self, data: &impl Serialize) -> Result<(), WorkerError> {
        let data = serde_json::to_value(data)?;
        self.store(|checkpoint| checkpoint.data = Some(data)).await
    }

    /// What the last attempt, or the last Skald, stored. `None` when there is nothing.
    pub async fn last_checkpoint<T: DeserializeOwned>(&self) -> Result<Option<T>, WorkerError> {
        match self.stored().await.data {
            Some(data) => Ok(Some(serde_json::from_value(data)?)),
            None => Ok(None),
        }
    }

    pub(super) async fn stored(&self) -> Checkpoint {
        let stored = self.held.task().await.skalds.checkpoint;
        stored.and_then(|stored| serde_json::from_value(stored).ok()).unwrap_or_default()
    }

    pub(super) async fn store(&self, change: impl FnOnce(&mut Checkpoint)) -> Result<(), WorkerError> {
        if self.held.is_over() {
            return Err(WorkerError::new("the task has ended; nothing more can be stored for it"));
        }
        let mut checkpoint = self.stored().await;
        change(&mut checkpoint);
        let checkpoint = serde_json::to_value(&checkpoint)?;
        check_size("checkpoint", &checkpoint, MAX_CHECKPOINT)
            .map_err(|error| WorkerError::permanent(error.to_string()))?;
        let note = Change::Note {
            incarnation: self.incarnation(),
            progress: self.held.take_progress(),
            checkpoint: Some(checkpoint),
        };
        self.held.change(&note).await.map_err(|error| WorkerError::new(error.to_string()))?;
        Ok(())
    }
}

/// How a checkpoint is kept: finished stages beside the worker's own data.
#[derive(Debug, Default, Serialize, serde::Deserialize)]
#[serde(default)]
pub(super) struct Checkpoint {
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub(super) stages: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) data: Option<Value>,
}

/// Live updates of a task's attachments. One that came while nobody waited is given next; of several, the last.
#[derive(Debug)]
pub struct Updates {
    orders: watch::Receiver<Orders>,
    seen: u64,
}

impl Updates {
    /// The next attachments, all of them; `None` once the worker is to stop.
    pub async fn next(&mut self) -> Option<Arc<Map<String, Value>>> {
        loop {
            {
                let orders = self.orders.borrow_and_update();
                if orders.stop.is_some() {
                    return None;
                }
                if orders.version > self.seen {
                    self.seen = orders.version;
                    return Some(Arc::clone(&orders.attachments));
                }
            }
            self.orders.changed().await.ok()?;
        }
    }
}
