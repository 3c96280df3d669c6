//! What a write job leaves behind, and how it is removed: a marker in every slot in which it has written, and one for each
//! unit of a strict order.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::access::RedisAccess;
use super::cluster::{ClusterView, NodeView};
use super::connection::NodeConnection;
use super::engine::Engine;
use super::error::NodeError;
use super::ledger::Marker;
use super::reply::Fields;
use super::unit::MARKER_PREFIX;
use crate::chain::job::{Access, JobSpec, Step, Target};
use crate::chain::slots::{SlotSet, key_tag, slot_of, tag_of};

/// Slots whose markers one call is given; it ends by its budget.
const SLOTS_PER_CALL: usize = 1_024;
/// How many keys one call looks at for markers of pages.
const KEYS_PER_PAGE: u32 = 500;
/// Markers that one call removes by name.
const NAMES_PER_CALL: usize = 512;

/// Removes the job's markers. Only when nothing of the job can run any more: a unit that is run again without its marker
/// writes again. Those in slots that are moving stay until they expire.
///
/// # Errors
/// When a node fails; some markers are left then.
pub async fn forget_markers(
    view: &ClusterView,
    job: &Arc<JobSpec>,
    access: &RedisAccess,
) -> Result<(), NodeError> {
    if job.access != Access::Write || matches!(job.step, Step::Raw(_)) {
        return Ok(());
    }
    let sites = Sites { view, access };
    match &job.target {
        Target::Pattern(_) if !view.cluster => sites.scan_pages(&job.id).await,
        Target::Pattern(_) => sites.forget_slots(job, &SlotSet::full()).await,
        Target::Keys(keys) => sites.forget_slots(job, &keys.iter().map(|key| slot_of(key)).collect()).await,
        Target::OrderedKeys(keys) => sites.forget_ordered(&job.id, keys).await,
        Target::Walk(start) => sites.follow_walk(&job.id, start, matches!(job.step, Step::Native(_))).await,
    }
}

struct Sites<'a> {
    view: &'a ClusterView,
    access: &'a RedisAccess,
}

fn name(tag: &[u8], job: &str, suffix: &str) -> Vec<u8> {
    [MARKER_PREFIX, tag, b"}:", job.as_bytes(), suffix.as_bytes()].concat()
}

impl Sites<'_> {
    async fn forget_slots(&self, job: &Arc<JobSpec>, slots: &SlotSet) -> Result<(), NodeError> {
        let nodes = self.view.nodes.iter().map(|node| async move {
            let tags: Vec<&str> =
                node.slots.iter().filter(|slot| slots.contains(*slot)).map(tag_of).collect();
            forget_tags(node, job, &tags, self.access).await
        });
        futures_util::future::try_join_all(nodes).await.map(|_| ())
    }

    async fn forget_ordered(&self, job: &str, keys: &[Vec<u8>]) -> Result<(), NodeError> {
        let mut names: BTreeMap<&str, Vec<Vec<u8>>> = BTreeMap::new();
        for (number, key) in keys.iter().enumerate() {
            let slot = slot_of(key);
            if let Some(node) = self.owner(slot) {
                names.entry(&node.redis).or_default().push(name(
                    tag_of(slot).as_bytes(),
                    job,
                    &format!(":{number}"),
                ));
            }
        }
        for (redis, names) in names {
            let connection = NodeConnection::open(redis, self.access).await?;
            for names in names.chunks(NAMES_PER_CALL) {
                let mut commands = redis::pipe();
                names.iter().for_each(|name| {
                    commands.cmd("UNLINK").arg(&name[..]);
                });
                connection.answers(&commands, names.len(), REMOVE).await?;
            }
        }
        Ok(())
    }

    /// Each marker of a walk names the next key.
    async fn follow_walk(&self, job: &str, start: &[u8], native: bool) -> Result<(), NodeError> {
        let mut connections: BTreeMap<&str, NodeConnection> = BTreeMap::new();
        let mut key = start.to_vec();
        for number in 0u64.. {
            let slot = slot_of(&key);
            let Some(node) = self.owner(slot) else { break };
            if !connections.contains_key(&node.redis[..]) {
                connections.insert(&node.redis, NodeConnection::open(&node.redis, self.access).await?);
            }
            let tag = if native { tag_of(slot).as_bytes() } else { key_tag(&key) };
            let marker = name(tag, job, &format!(":{number}"));
            match take(&connections[&node.redis[..]], &marker).await?.and_then(|marker| marker.last) {
                Some(next) if !next.is_empty() => key = next,
                _ => break,
            }
        }
        Ok(())
    }

    /// Pages without a matching key have left none, so there is nothing to follow.
    async fn scan_pages(&self, job: &str) -> Result<(), NodeError> {
        let Some(node) = self.view.nodes.first() else { return Ok(()) };
        let connection = NodeConnection::open(&node.redis, self.access).await?;
        let mut pattern = name(b"*", "", "");
        for byte in job.bytes() {
            pattern.extend_from_slice(&[b'\\', byte]);
        }
        let mut cursor = "0".to_owned();
        loop {
            let mut command = redis::cmd("SCAN");
            command.arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(KEYS_PER_PAGE);
            let page = connection.call(&command, "look for markers").await?;
            let (next, names): (String, Vec<Vec<u8>>) = redis::from_redis_value(page)
                .map_err(|error| NodeError::unreadable(&node.redis, "SCAN", error.to_string()))?;
            if !names.is_empty() {
                let mut command = redis::cmd("UNLINK");
                command.arg(&names);
                connection.call(&command, REMOVE).await?;
            }
            if next == "0" {
                return Ok(());
            }
            cursor = next;
        }
    }

    fn owner(&self, slot: u16) -> Option<&NodeView> {
        self.view.nodes.iter().find(|node| node.slots.contains(slot))
    }
}

const REMOVE: &str = "remove a marker";

/// Reads a marker and removes it.
async fn take(node: &NodeConnection, marker: &[u8]) -> Result<Option<Marker>, NodeError> {
    let mut command = redis::cmd("GETDEL");
    command.arg(marker);
    match node.call(&command, REMOVE).await? {
        redis::Value::BulkString(packed) => Marker::read(&packed)
            .map(Some)
            .map_err(|reason| NodeError::unreadable(&node.address, REMOVE, reason)),
        _ => Ok(None),
    }
}

async fn forget_tags(
    node: &NodeView,
    job: &Arc<JobSpec>,
    tags: &[&str],
    access: &RedisAccess,
) -> Result<(), NodeError> {
    let mut engine = Engine::open(&node.redis, job, access).await?;
    let mut rest = tags;
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
