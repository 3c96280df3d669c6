//! Waiting for a task's end: its outcome as a future.

use std::time::Duration;

use super::SystemController;
use crate::actors::tasks::TaskError;
use crate::core::task::{LifecycleStatus, Task};

/// How often storage is asked, since an event may be lost.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl SystemController {
    /// Waits until a task is `Finished`, `Failed` for good or `Cancelled`, and answers it as it is then: its result is
    /// `task.skalds.result`. A task with a cron schedule begins anew and never ends, so put a limit around it.
    ///
    /// # Errors
    /// When there is no such task (any more), or storage cannot be asked.
    pub async fn ended(&self, id: &str) -> Result<Task, TaskError> {
        let mut changes = self.subscribe();
        loop {
            let task = self.get(id).await?;
            if has_ended(task.lifecycle_status) {
                return Ok(task);
            }
            let ends = async {
                loop {
                    match changes.next().await {
                        Some(Ok(change)) if change.id != id || !has_ended(change.lifecycle_status) => {}
                        Some(_) => return,
                        None => std::future::pending().await, // the controller is going: storage still answers
                    }
                }
            };
            // Late is as good as early: storage is asked in any case.
            let _ = tokio::time::timeout(LOOK_EVERY, ends).await;
        }
    }
}

fn has_ended(status: LifecycleStatus) -> bool {
    matches!(status, LifecycleStatus::Finished | LifecycleStatus::Failed | LifecycleStatus::Cancelled)
}
