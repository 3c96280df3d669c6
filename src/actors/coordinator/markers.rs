//! What is cleaned up when a write job has finished.

use std::time::Duration;

use super::actor::Task;
use crate::chain::job::Access;
use crate::node::{self, NodeError};

/// How long that may keep the report waiting. What is left expires.
const LIMIT: Duration = Duration::from_secs(10);

/// Removes the job's markers from all nodes. To be called when the job has finished and every agent has confirmed that
/// nothing of it can run any more.
pub(super) async fn forget(task: &Task) {
    if task.job.access != Access::Write {
        return;
    }
    let reason = match tokio::time::timeout(LIMIT, forget_everywhere(task)).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("it took longer than {LIMIT:?}"),
    };
    tracing::warn!(job = %task.job.id, %reason, "some of the job's markers stay until they expire");
}

async fn forget_everywhere(task: &Task) -> Result<(), NodeError> {
    let options = &task.options;
    let view = node::discover(&options.seeds, &options.access).await?;
    node::forget_markers(&view, &task.job, &options.access).await
}
