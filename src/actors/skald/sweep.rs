//! What a Skald looks for in storage behind the events: lost assignments, lost cancels and updates, tasks that it
//! held in a former life.

use std::collections::HashSet;
use std::sync::Arc;

use super::core::SkaldCore;
use crate::actors::tasks::TaskError;
use crate::actors::worker::StopReason;
use crate::backend::{MAX_PAGE, TaskOrder, TaskQuery};
use crate::core::lifecycle::Change;
use crate::core::task::LifecycleStatus;

impl SkaldCore {
    /// Sweeps at every period and when told to; for ever.
    pub(super) async fn sweep_loop(self: Arc<Self>) {
        let mut periods = self.tasks.clock.interval(self.timing.sync);
        let mut offset = 0;
        loop {
            if let Err(error) = self.sweep(&mut offset).await {
                tracing::warn!(skald = self.id, %error, "storage could not be searched; trying again");
            }
            tokio::select! {
                () = periods.tick() => {}
                () = self.sweep_now.notified() => {}
            }
        }
    }

    async fn sweep(self: &Arc<Self>, offset: &mut u64) -> Result<(), TaskError> {
        self.stop_what_is_over().await;
        self.look_after_own().await?;
        self.take_assigned().await?;
        self.check_held(offset).await
    }

    fn mine(&self, statuses: &[LifecycleStatus]) -> TaskQuery {
        TaskQuery {
            statuses: statuses.to_vec(),
            executor: Some(self.id.clone()),
            order: TaskOrder::DispatchOrder,
            ..TaskQuery::default()
        }
    }

    /// Starts what was assigned while nobody listened or there was no room. In a drain: hands it back.
    pub(super) async fn take_assigned(self: &Arc<Self>) -> Result<(), TaskError> {
        let room = if self.is_draining() {
            MAX_PAGE
        } else {
            u64::from(self.capacity).saturating_sub(self.len() as u64)
        };
        if room == 0 {
            return Ok(());
        }
        let query = TaskQuery { limit: room.min(MAX_PAGE), ..self.mine(&[LifecycleStatus::Assigning]) };
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

    /// Compares what storage says of our tasks with what we hold, a page each time: all of it in turn.
    async fn check_held(self: &Arc<Self>, offset: &mut u64) -> Result<(), TaskError> {
        let held_before = self.all_held();
        let query =
            TaskQuery { offset: *offset, ..self.mine(&[LifecycleStatus::Running, LifecycleStatus::Paused]) };
        let page = self.backends.storage.list(&query).await?;
        let whole = *offset == 0 && page.tasks.len() as u64 == page.total;
        *offset += page.tasks.len() as u64;
        if *offset >= page.total {
            *offset = 0;
        }
        for task in &page.tasks {
            if let Some(held) = self.held(&task.id) {
                held.obey(task);
            } else if !self.knows(&task.id) {
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
        if whole {
            // What we held before the look and storage does not list as ours.
            let listed: HashSet<&str> = page.tasks.iter().map(|task| task.id.as_str()).collect();
            for held in held_before {
                if !listed.contains(held.id()) && held.stopping().is_none() {
                    held.refresh().await?;
                }
            }
        }
        Ok(())
    }

    /// Deadlines of what we hold, and workers that do not even let their own actor end them.
    async fn stop_what_is_over(self: &Arc<Self>) {
        let patience = self.timing.grace * 2 + self.timing.sync;
        for held in self.all_held() {
            if held.stopping_for().is_some_and(|time| time > patience) {
                self.give_up(&held).await;
            } else if held.deadline_passed() && held.stopping().is_none() {
                match held.change(&Change::Expire).await {
                    Ok(_) => held.stop(StopReason::DeadlinePassed),
                    Err(error) => tracing::debug!(task = held.id(), %error, "the task was not expired"),
                }
            }
        }
    }
}
