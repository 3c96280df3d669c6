//! What is cleaned up when a write job has finished.

use std::time::Duration;

use super::actor::Task;
use crate::chain::job::{Access, Target};
use crate::node::{self, NodeError};

/// How long that may keep the report waiting. What is left expires.
const LIMIT: Duration = Duration::from_secs(10);

/// Removes the job's markers from all nodes. To be called when the job has finished and every agent has confirmed that
/// nothing of it can run any more.
pub(super) async fn forget(task: &Task) {
    let of_slots = matches!(task.job.target, Target::Pattern(_) | Target::Keys(_));
    if task.job.access != Access::Write || !of_slots {
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
    if view.cluster {
        let nodes = view.nodes.iter().map(|node| node::forget_markers(node, &task.job, &options.access));
        futures_util::future::try_join_all(nodes).await?;
    }
    Ok(())
}
