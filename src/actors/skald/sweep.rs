//! What a Skald looks for in storage behind the events: lost assignments, lost cancels and updates, tasks that it
//! held in a former life.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::core::SkaldCore;
use crate::actors::tasks::TaskError;
use crate::actors::worker::{Held, StopReason};
use crate::backend::{MAX_PAGE, TaskOrder, TaskQuery, TaskScan};
use crate::core::lifecycle::Change;
use crate::core::task::LifecycleStatus;

/// A Skald that holds very many tasks looks less often which of them are over: with 30,000 every 3 seconds.
const TIME_PER_LOOK: Duration = Duration::from_micros(100);

impl SkaldCore {
    /// Sweeps at every period and when told to; for ever.
    pub(super) async fn sweep_loop(self: Arc<Self>) {
        let mut periods = self.tasks.clock.interval(self.timing.sync);
        let mut after = None;
        let mut next_look = Duration::ZERO;
        loop {
            let now = self.tasks.clock.elapsed();
            if now >= next_look {
                self.stop_what_is_over().await;
                next_look = now + TIME_PER_LOOK * self.table.len() as u32;
            }
            if let Err(error) = self.sweep(&mut after).await {
                tracing::warn!(skald = self.id, %error, "storage could not be searched; trying again");
            }
            tokio::select! {
                () = periods.tick() => {}
                () = self.sweep_now.notified() => {}
            }
        }
    }

    async fn sweep(self: &Arc<Self>, after: &mut Option<String>) -> Result<(), TaskError> {
        self.look_after_own().await?;
        self.take_assigned().await?;
        self.check_held(after).await
    }

    /// Starts what was assigned while nobody listened or there was no room. In a drain: hands it back.
    pub(super) async fn take_assigned(self: &Arc<Self>) -> Result<(), TaskError> {
        let room = if self.is_draining() {
            MAX_PAGE
        } else {
            u64::from(self.capacity).saturating_sub(self.table.len() as u64)
        };
        if room == 0 {
            return Ok(());
        }
        let query = TaskQuery {
            statuses: vec![LifecycleStatus::Assigning],
            executor: Some(self.id.clone()),
            order: TaskOrder::DispatchOrder,
            limit: room.min(MAX_PAGE),
            ..TaskQuery::default()
        };
        let page = self.backends.storage.list(&query).await?;
        futures_util::future::join_all(page.tasks.into_iter().map(|task| async move {
            let id = task.id.clone();
            if let Err(error) = self.take_task(task).await {
                tracing::warn!(skald = self.id, task = id, %error, "an assigned task was not started; trying again");
            }
        }))
        .await;
        Ok(())
    }

    /// Compares what storage says of our tasks with what we hold, a batch each time: all of it in turn.
    async fn check_held(self: &Arc<Self>, after: &mut Option<String>) -> Result<(), TaskError> {
        // Before the look: what comes later need not be in it.
        let held = self.table.after(after.as_deref(), MAX_PAGE as usize);
        let scan = TaskScan {
            statuses: vec![LifecycleStatus::Running, LifecycleStatus::Paused],
            executor: Some(self.id.clone()),
            after: after.take(),
        };
        let batch = self.backends.storage.scan(&scan).await?;
        after.clone_from(&batch.next);
        for task in &batch.tasks {
            if let Some(held) = self.table.held(&task.id) {
                held.obey(task);
            } else if !self.table.knows(&task.id) {
                // It is ours by name, but nobody here runs it: an earlier process of this id did.
                let lost = Change::Lost {
                    incarnation: task.skalds.incarnation,
                    reason: format!("skald {} was restarted while it ran the task", self.id),
                };
                match self.tasks.change_from(task.clone(), &lost).await?.into_result(&task.id) {
                    Ok(task) => self.own_task_ended(task),
                    Err(TaskError::Refused { .. } | TaskError::Missing(_)) => {} // it moved on meanwhile
                    Err(error) => return Err(error),
                }
            }
        }
        // What we hold within the batch's stretch and storage does not list as ours.
        let listed: HashSet<&str> = batch.tasks.iter().map(|task| task.id.as_str()).collect();
        for held in held {
            let within = batch.next.as_deref().is_none_or(|last| held.id() <= last);
            if within && !listed.contains(held.id()) && held.stopping().is_none() {
                held.refresh().await?;
            }
        }
        Ok(())
    }

    /// Deadlines of what we hold, and workers that do not even let their own actor end them.
    async fn stop_what_is_over(self: &Arc<Self>) {
        let more = self.timing.grace + self.timing.sync;
        let patience =
            |held: &Held| held.stopping().map(|reason| held.patience(reason, self.timing.grace) + more);
        let too_long =
            |held: &Held| held.stopping_for().zip(patience(held)).is_some_and(|(time, most)| time > most);
        let over = self.table.that(|held| too_long(held) || held.deadline_passed());
        for held in over {
            if too_long(&held) {
                self.give_up(&held).await;
            } else if held.stopping().is_none() {
                match held.change(&Change::Expire).await {
                    Ok(_) => held.stop(StopReason::DeadlinePassed),
                    Err(error) => tracing::debug!(task = held.id(), %error, "the task was not expired"),
                }
            }
        }
    }
}
