//! Orders that a crash between the stored change and the event must not lose.

use std::sync::atomic::Ordering;

use super::builder::Shared;
use super::monitor::Monitor;
use crate::actors::tasks::{Changed, TaskError, Tasks};
use crate::backend::Event;
use crate::core::event::{TaskEvent, write};
use crate::core::lifecycle::Change;
use crate::core::order::Order;
use crate::core::task::{Millis, Task};

/// Whoever stored an order sends it within this time, or has crashed, or could not.
const SEND_WITHIN: Millis = 2_000;

impl Shared {
    /// Changes a task, with the order for its holder as a mark in the same write; without one for a Skald of ours, which
    /// finds in storage what it is not told.
    pub(super) async fn change_with(
        &self,
        tasks: &Tasks,
        task: Task,
        changes: &[Change],
        order: Option<Order>,
    ) -> Result<Changed, TaskError> {
        let mark =
            |task: &Task, now| order?.mark(task, now).filter(|untold| !self.is_ours(&untold.recipient));
        tasks.change_marked(task, changes, mark).await
    }

    fn is_ours(&self, skald: &str) -> bool {
        self.fleet.borrow().skalds.get(skald).is_some_and(|skald| skald.native)
    }

    /// Sends the order that a task is marked with and removes the mark. What fails here is done again by the monitors.
    /// Answers the task as it is then, as far as it is known.
    pub(super) async fn send_order(&self, task: Task) -> Task {
        let Some(untold) = &task.skalds.untold else { return task };
        let said = TaskEvent {
            recipient: Some(untold.recipient.clone()),
            ..TaskEvent::about(&task.id, untold.at) // of the change: what began after it is not meant
        };
        let event = Event {
            topic: untold.order.topic().into(),
            key: task.id.clone().into_bytes(),
            value: write(&said),
        };
        if let Err(error) = self.backends.events.publish(&[event]).await {
            tracing::warn!(task = task.id, order = ?untold.order, %error, "an order was not sent; trying again");
            return task;
        }
        self.remove_mark(task).await
    }

    async fn remove_mark(&self, task: Task) -> Task {
        match self.tasks.told(task.clone()).await {
            Ok(now) => {
                self.dispatch.notify_one(); // it may have waited for this
                now.unwrap_or(task)
            }
            Err(error) => {
                tracing::warn!(task = task.id, %error, "an order was sent and may be sent again");
                task
            }
        }
    }
}

impl Monitor {
    /// Sends what whoever stored it did not send, while this controller leads; for ever.
    pub(super) async fn send_orders(&self) {
        let shared = &self.shared;
        let mut ticks = shared.tasks.clock.interval(shared.timing.task_interval);
        loop {
            shared.leads().await;
            match self.send_what_is_untold().await {
                Ok(()) => {
                    if !shared.looked.swap(true, Ordering::AcqRel) {
                        shared.dispatch.notify_one();
                    }
                }
                Err(error) => tracing::warn!(%error, "orders could not be looked for; trying again"),
            }
            ticks.tick().await;
        }
    }

    async fn send_what_is_untold(&self) -> Result<(), TaskError> {
        let shared = &self.shared;
        let before = shared.tasks.clock.now_millis().saturating_sub(SEND_WITHIN);
        for task in shared.backends.storage.untold(before).await? {
            if shared.term().is_none() {
                return Ok(());
            }
            let Some(untold) = &task.skalds.untold else { continue };
            let ours = task.executor.as_ref().is_some_and(|executor| shared.is_ours(executor));
            if untold.is_due(&task, ours) {
                tracing::info!(task = task.id, order = ?untold.order, "an order that was not sent is sent");
                shared.send_order(task).await;
            } else {
                tracing::info!(task = task.id, order = ?untold.order, "an order is not meant for who holds the task now");
                shared.remove_mark(task).await;
            }
        }
        Ok(())
    }
}
