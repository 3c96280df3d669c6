//! Who has taken over from a node that does not answer.

use std::time::Duration;

use super::access::RedisAccess;
use super::cluster::slot_table;
use super::connection::NodeConnection;
use crate::chain::state::PlanNode;

/// How long one of the others may take to say.
const LIMIT: Duration = Duration::from_millis(500);

/// Asks one of the other nodes, the `turn`th, who owns a slot of this one. Answers the new owner's address where it is
/// another, and nothing where that node does not know of one, or does not answer either.
pub(crate) async fn successor(
    node: &PlanNode,
    others: &[PlanNode],
    slot: u16,
    access: &RedisAccess,
    turn: usize,
) -> Option<String> {
    let others: Vec<&PlanNode> = others.iter().filter(|other| other.id != node.id).collect();
    let other = others.get(turn % others.len().max(1))?;
    let asked = async {
        let connection = NodeConnection::open(&other.redis, access).await?;
        slot_table(&connection).await
    };
    // A node that cannot say is no reason to do anything.
    let table = tokio::time::timeout(LIMIT, asked).await.ok()?.ok()?;
    let range = table.iter().find(|range| (range.first..=range.last).contains(&slot))?;
    range.nodes.first().filter(|(id, _)| *id != node.id).map(|(_, address)| address.clone())
}
