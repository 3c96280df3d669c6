//! What a write job leaves behind: a marker in every slot in which it has written.

use std::sync::Arc;

use super::access::RedisAccess;
use super::cluster::NodeView;
use super::engine::Engine;
use super::error::NodeError;
use super::reply::Fields;
use crate::chain::job::JobSpec;
use crate::chain::slots::tag_of;

/// Slots whose markers one call is given; it ends by its budget.
const SLOTS_PER_CALL: usize = 1_024;

/// Removes the job's markers from the slots of a node. Only when nothing of the job can run any more: a unit that is run
/// again without its marker writes again. Those in slots that are moving stay until they expire, and so do the markers
/// of walks, strict orders and pages, whose names depend on where the job came by.
///
/// # Errors
/// When the node fails.
pub async fn forget_markers(
    node: &NodeView,
    job: &Arc<JobSpec>,
    access: &RedisAccess,
) -> Result<(), NodeError> {
    let mut engine = Engine::open(&node.redis, job, access).await?;
    let tags: Vec<&str> = node.slots.iter().map(tag_of).collect();
    let mut rest = &tags[..];
    while !rest.is_empty() {
        let ran = engine.run("forget", |command| {
            command.arg(&rest[..rest.len().min(SLOTS_PER_CALL)]);
        });
        let ran = ran.await?;
        let handled = Fields::new(ran.values).count().map_err(|reason| engine.unreadable(reason))? as usize;
        if handled == 0 || handled > rest.len() {
            return Err(engine.unreadable("no marker was looked at"));
        }
        engine.pace.learn(ran.seen, ran.clock, handled as u64);
        rest = &rest[handled..];
    }
    Ok(())
}
