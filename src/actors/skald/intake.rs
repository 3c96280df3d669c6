//! What a Skald hears: assignments, cancels, updates.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;

use super::core::SkaldCore;
use crate::actors::worker::Held;
use crate::backend::{BackendError, Delivery, Event, EventSubscription};
use crate::config::env::SkaldMode;
use crate::core::event::{TaskEvent, UpdateTaskWorkerEvent, read};
use crate::core::lifecycle::Change;
use crate::core::names::{TASK_ASSIGN, TASK_CANCEL, TASK_UPDATE_ATTACHMENT, TASK_WORKER_UPDATE, TESTING};
use crate::core::task::LifecycleStatus;

/// How often a task that is being started is looked at, every 5 ms, before its news is left to the sweep.
const STARTING_LOOKS: u32 = 200;
/// How many events are handled at once; together they are acknowledged.
const BATCH: usize = 256;

impl SkaldCore {
    /// Listens for events and handles them; again when the queue comes back; for ever.
    pub(super) async fn intake_loop(self: Arc<Self>) {
        let mut wait = Duration::from_millis(100);
        loop {
            match self.backends.events.subscribe(&self.id, self.topics()).await {
                Ok(subscription) => {
                    self.set_listening(true);
                    self.sweep_now.notify_one(); // for what was said before
                    let heard = self.listen(subscription).await;
                    self.set_listening(false);
                    match heard {
                        Ok(()) => return, // the queue was closed
                        Err(error) => {
                            tracing::warn!(skald = self.id, %error, "events are not heard; listening again")
                        }
                    }
                    wait = Duration::from_millis(100);
                }
                Err(error) => {
                    tracing::warn!(skald = self.id, %error, ?wait, "events are not heard; trying again");
                }
            }
            self.tasks.clock.sleep(wait).await;
            wait = (wait * 2).min(Duration::from_secs(5));
        }
    }

    fn topics(&self) -> &'static [&'static str] {
        match self.mode {
            SkaldMode::Node => {
                &[TASK_ASSIGN, TASK_CANCEL, TASK_UPDATE_ATTACHMENT, TASK_WORKER_UPDATE, TESTING]
            }
            SkaldMode::Edge | SkaldMode::SingleProcess => {
                &[TASK_CANCEL, TASK_UPDATE_ATTACHMENT, TASK_WORKER_UPDATE, TESTING]
            }
        }
    }

    async fn listen(
        self: &Arc<Self>,
        mut subscription: Box<dyn EventSubscription>,
    ) -> Result<(), BackendError> {
        loop {
            let Some(first) = subscription.next().await else { return Ok(()) };
            let mut batch = vec![first?];
            while batch.len() < BATCH
                && let Some(next) = subscription.next().now_or_never()
            {
                match next {
                    Some(delivery) => batch.push(delivery?),
                    None => break,
                }
            }
            self.handle(batch).await;
            subscription.handled().await?;
        }
    }

    /// Handles a batch: tasks side by side, the events of one task in their order.
    async fn handle(self: &Arc<Self>, batch: Vec<Delivery>) {
        let mut by_task: Vec<(String, Vec<Heard>)> = Vec::new();
        for delivery in batch {
            match delivery {
                Delivery::Event(event) => {
                    for (id, heard) in self.understand(event) {
                        match by_task.iter_mut().find(|(other, _)| *other == id) {
                            Some((_, events)) => events.push(heard),
                            None => by_task.push((id, vec![heard])),
                        }
                    }
                }
                Delivery::Lagged { missed } => {
                    tracing::warn!(skald = self.id, missed, "events were missed; looking into storage");
                    self.sweep_now.notify_one();
                }
            }
        }
        join_all(by_task.into_iter().map(|(id, events)| async move {
            for heard in events {
                if let Err(error) = self.act(&id, heard).await {
                    tracing::warn!(skald = self.id, task = id, %error, "an event was not acted on; the sweep will");
                    self.sweep_now.notify_one();
                }
            }
        }))
        .await;
    }

    /// What an event says to this Skald, by task.
    fn understand(&self, event: Event) -> Vec<(String, Heard)> {
        // Python controllers name no recipient; who is meant is read from storage then.
        let mine = |said: TaskEvent| match said.recipient {
            Some(other) if other != self.id => Vec::new(),
            _ => said.task_ids,
        };
        let said: Result<Vec<(String, Heard)>, _> = match event.topic.as_str() {
            TASK_ASSIGN => read::<TaskEvent>("task.assign event", &event.value)
                .map(|said| mine(said).into_iter().map(|id| (id, Heard::Assigned)).collect()),
            TASK_CANCEL => read::<TaskEvent>("task.cancel event", &event.value).map(|said| {
                let at = said.create_date_time;
                mine(said).into_iter().map(|id| (id, Heard::Cancelled { at })).collect()
            }),
            TASK_UPDATE_ATTACHMENT => read::<TaskEvent>("task.update.attachment event", &event.value)
                .map(|said| mine(said).into_iter().map(|id| (id, Heard::Changed)).collect()),
            TASK_WORKER_UPDATE => {
                let id = String::from_utf8_lossy(&event.key).into_owned();
                read::<UpdateTaskWorkerEvent>("taskworker.update event", &event.value)
                    .map(|said| vec![(id, Heard::Update(said))])
            }
            TESTING => {
                tracing::info!(text = %String::from_utf8_lossy(&event.value), "a test message");
                Ok(Vec::new())
            }
            _ => Ok(Vec::new()),
        };
        said.unwrap_or_else(|error| {
            tracing::warn!(topic = event.topic, %error, "an event was left out");
            Vec::new()
        })
    }

    async fn act(self: &Arc<Self>, id: &str, heard: Heard) -> Result<(), crate::actors::tasks::TaskError> {
        if let Heard::Assigned = heard {
            return self.take(id).await;
        }
        let Some(held) = self.held_soon(id).await else { return Ok(()) };
        match heard {
            Heard::Assigned => {}
            Heard::Changed => held.refresh().await?,
            Heard::Update(said) => {
                if let Some(attachments) = &said.attachments {
                    held.give_attachments(attachments);
                }
            }
            Heard::Cancelled { at } => {
                held.refresh().await?;
                // Some producers send the event alone. One from before the worker was started is about a former run.
                let running = held.task().await.lifecycle_status == LifecycleStatus::Running;
                if held.stopping().is_none() && running && at >= held.started_at {
                    held.change(&Change::Cancel).await?;
                }
            }
        }
        Ok(())
    }
}

impl SkaldCore {
    /// The task, also when it is just being started: what is said about it then must not be lost.
    async fn held_soon(&self, id: &str) -> Option<Arc<Held>> {
        for _ in 0..STARTING_LOOKS {
            match self.table.held(id) {
                None if self.table.knows(id) => self.tasks.clock.sleep(Duration::from_millis(5)).await,
                held => return held,
            }
        }
        self.sweep_now.notify_one();
        None
    }
}

/// What was said about a task.
enum Heard {
    Assigned,
    Cancelled { at: i64 },
    Changed,
    Update(UpdateTaskWorkerEvent),
}
