//! What an autoscaler wants to know: how much waits, for how long, and how much room there is.

use std::time::Duration;

use super::SystemController;
use crate::actors::tasks::TaskError;
use crate::backend::{TaskOrder, TaskQuery};
use crate::core::task::LifecycleStatus::{Assigning, Created, Paused, Running};

/// More classes than this are not looked at: each costs three questions to storage.
pub const MOST_CLASSES: usize = 1_000;

/// One worker class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassScale {
    /// Its name.
    pub class_name: String,
    /// Tasks that could start now and wait.
    pub backlog: u64,
    /// For how long the oldest of them has been there since it was created; zero where nothing waits.
    pub oldest: Duration,
    /// Tasks that a Skald holds.
    pub held: u64,
    /// Skalds that take such tasks.
    pub skalds: u64,
    /// How many more tasks these take, shared with their other classes; `None`: one of them takes any number.
    pub free_slots: Option<u64>,
}

impl SystemController {
    /// Each class that a task names or a Skald runs, by name.
    ///
    /// # Errors
    /// When storage cannot be asked.
    pub async fn scale(&self) -> Result<Vec<ClassScale>, TaskError> {
        let skalds = self.skalds();
        let mut names = self.class_names().await?;
        names.extend(skalds.iter().flat_map(|skald| skald.classes.iter().cloned()));
        names.sort_unstable();
        names.dedup();
        let mut classes = Vec::new();
        for class_name in names.into_iter().take(MOST_CLASSES) {
            let now = self.shared.tasks.clock.now_millis();
            let waiting = TaskQuery {
                statuses: vec![Created],
                class_names: vec![class_name.clone()],
                due_at: Some(now),
                order: TaskOrder::Newest,
                limit: 1,
                ..TaskQuery::default()
            };
            let backlog = self.list(&waiting).await?.total;
            // The last of the newest first is the oldest.
            let oldest = match backlog {
                0 => None,
                _ => self.list(&TaskQuery { offset: backlog - 1, ..waiting.clone() }).await?.tasks.pop(),
            };
            let age = oldest.map_or(0, |task| now.saturating_sub(task.create_date_time).max(0));
            let held = TaskQuery { statuses: vec![Assigning, Running, Paused], due_at: None, ..waiting };
            let takers = || {
                skalds.iter().filter(|skald| {
                    skald.online && skald.mode == "node" && skald.classes.contains(&class_name)
                })
            };
            let free = takers().map(|skald| {
                skald.capacity.map(|capacity| u64::from(capacity).saturating_sub(skald.tasks.len() as u64))
            });
            classes.push(ClassScale {
                backlog,
                oldest: Duration::from_millis(age.unsigned_abs()),
                held: self.list(&held).await?.total,
                skalds: takers().count() as u64,
                free_slots: free.sum(),
                class_name,
            });
        }
        Ok(classes)
    }
}
