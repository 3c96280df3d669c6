//! Finds out what a cluster consists of: nodes, slots, agents, load.
//!
//! Every primary is asked about itself, because only a node itself says which of its slots are moving, and because
//! its own claim on a slot is younger than what another node has heard of it.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;

use super::access::{RedisAccess, join_address, split_address};
use super::connection::{NodeConnection, text_of};
use super::error::NodeError;
use super::presence::Presence;
use crate::chain::slots::{SLOTS, SlotSet};
use crate::chain::state::NodeId;

/// How many rounds of "who else is there" are made before the view is taken as it is.
const ROUNDS: usize = 4;

/// A cluster as it is now, or a single server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterView {
    /// Whether the server runs in cluster mode.
    pub cluster: bool,
    /// The primaries, by address.
    pub nodes: Vec<NodeView>,
    /// Slots that no node owns.
    pub uncovered: SlotSet,
    /// Primaries without slots that could not be asked, and why.
    pub unreachable: Vec<NodeError>,
}

/// One primary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    /// `CLUSTER MYID`, or the address on a single server.
    pub id: NodeId,
    /// Where it listens, `host:port`, as the cluster announces it.
    pub redis: String,
    /// The slots it owns; all of them on a single server.
    pub slots: SlotSet,
    /// Those of its slots that are on their way to or from another node.
    pub moving: SlotSet,
    /// Its replicas, `host:port`.
    pub replicas: Vec<String>,
    /// The agent beside it, `host:port`, found by its connection's name.
    pub agent: Option<String>,
    /// The zone that the agent says it is in.
    pub zone: Option<String>,
    /// The rack.
    pub rack: Option<String>,
    /// How many keys it holds (expired ones that are not yet removed included).
    pub keys: u64,
    /// `redis` or `valkey`.
    pub flavour: String,
    /// Its version.
    pub version: String,
    /// The best of three round trips, in microseconds.
    pub ping_micros: u64,
    /// Memory in use, bytes.
    pub memory_bytes: u64,
    /// The memory limit, bytes; 0 is none.
    pub memory_limit_bytes: u64,
    /// Connected clients.
    pub clients: u64,
    /// Commands per second, as the node last measured it.
    pub ops_per_second: u64,
    /// Its replication id (`INFO replication`: `master_replid`); a failover or a restart changes it.
    pub replication_id: String,
}

impl ClusterView {
    /// The node that owns a slot.
    pub fn owner(&self, slot: u16) -> Option<&NodeView> {
        self.nodes.iter().find(|node| node.slots.contains(slot))
    }
}

/// Asks the first seed that answers who is there, and then every primary about itself, all at once.
///
/// # Errors
/// When no seed answers, or a primary that owns slots cannot be asked (its address and the reason are named). Others
/// that cannot be asked are listed in [`ClusterView::unreachable`].
pub async fn discover(seeds: &[String], access: &RedisAccess) -> Result<ClusterView, NodeError> {
    let mut reasons = Vec::new();
    let mut refused = None;
    for seed in seeds {
        match ask(seed, access).await {
            Ok(first) if first.cluster => return whole_cluster(first, access).await,
            Ok(first) => {
                let mut node = first.view;
                node.slots = SlotSet::full();
                return Ok(ClusterView {
                    cluster: false,
                    nodes: vec![node],
                    uncovered: SlotSet::empty(),
                    unreachable: Vec::new(),
                });
            }
            Err(error) => {
                reasons.push(error.to_string());
                if !error.is_transient() {
                    refused.get_or_insert(error);
                }
            }
        }
    }
    // A wrong password does not get better by waiting, whatever the other seeds said.
    Err(refused.unwrap_or(NodeError::NoSeed(reasons)))
}

async fn whole_cluster(first: Asked, access: &RedisAccess) -> Result<ClusterView, NodeError> {
    let mut answered: BTreeMap<NodeId, Asked> = BTreeMap::new();
    let mut failed: BTreeMap<NodeId, NodeError> = BTreeMap::new();
    let mut known: BTreeMap<NodeId, String> = first.primaries.clone();
    // What the seed is called by the others is how it is to be reached from elsewhere.
    answered.insert(first.view.id.clone(), first);
    for _ in 0..ROUNDS {
        let missing: Vec<_> = known
            .iter()
            .filter(|(id, _)| !answered.contains_key(*id) && !failed.contains_key(*id))
            .map(|(id, address)| (id.clone(), address.clone()))
            .collect();
        if missing.is_empty() {
            break;
        }
        let answers = join_all(missing.iter().map(|(_, address)| ask(address, access))).await;
        for ((id, _), answer) in missing.into_iter().zip(answers) {
            match answer {
                Ok(asked) => {
                    for (id, address) in &asked.primaries {
                        known.entry(id.clone()).or_insert_with(|| address.clone());
                    }
                    answered.insert(id, asked);
                }
                Err(error) => {
                    failed.insert(id, error);
                }
            }
        }
    }
    // A node that has become a replica since answers, but has nothing to say for itself.
    answered.retain(|_, asked| asked.is_primary);

    let mut owners: Vec<Option<(u64, NodeId)>> = vec![None; usize::from(SLOTS)];
    for (id, asked) in &answered {
        for slot in asked.view.slots.iter() {
            let owner = &mut owners[usize::from(slot)];
            if owner.as_ref().is_none_or(|(epoch, _)| *epoch < asked.config_epoch) {
                *owner = Some((asked.config_epoch, id.clone()));
            }
        }
    }
    let mut uncovered = SlotSet::empty();
    let mut slots: BTreeMap<&NodeId, SlotSet> = BTreeMap::new();
    for (slot, owner) in (0..SLOTS).zip(&owners) {
        match owner {
            Some((_, id)) => {
                slots.entry(id).or_default().insert(slot);
            }
            None => {
                uncovered.insert(slot);
            }
        }
    }
    // Slots that nobody who answered claims, but that another node says a silent one owns.
    let mut unreachable = Vec::new();
    for (id, error) in failed {
        let claimed = answered.values().any(|asked| {
            asked.others.get(&id).is_some_and(|claimed| claimed.iter().any(|slot| uncovered.contains(slot)))
        });
        if claimed {
            return Err(error);
        }
        unreachable.push(error);
    }
    let mut nodes: Vec<NodeView> = answered
        .iter()
        .map(|(id, asked)| {
            let mut view = asked.view.clone();
            view.slots = slots.remove(id).unwrap_or_default();
            if let Some(address) = known.get(id) {
                view.redis.clone_from(address);
            }
            view
        })
        .collect();
    nodes.sort_by(|a, b| a.redis.cmp(&b.redis));
    Ok(ClusterView { cluster: true, nodes, uncovered, unreachable })
}

/// What one node says.
struct Asked {
    cluster: bool,
    is_primary: bool,
    config_epoch: u64,
    view: NodeView,
    /// All primaries it knows, by id, itself included, with the address it announces for them.
    primaries: BTreeMap<NodeId, String>,
    /// The slots that it believes others own.
    others: BTreeMap<NodeId, SlotSet>,
}

async fn ask(address: &str, access: &RedisAccess) -> Result<Asked, NodeError> {
    let node = NodeConnection::open(address, access).await?;
    let info = node.text(&redis::cmd("INFO"), "read INFO").await?;
    let info = Info::new(&info);
    let cluster = info.get("cluster_enabled") == Some("1");
    let ping = node.round_trip().await?;
    let size = node.call(&redis::cmd("DBSIZE"), "read DBSIZE").await?;
    let beside = agent_beside(&node).await;
    let mut view = NodeView {
        id: address.to_owned(),
        redis: address.to_owned(),
        slots: SlotSet::empty(),
        moving: SlotSet::empty(),
        replicas: Vec::new(),
        agent: beside.as_ref().map(|agent| agent.address.clone()),
        zone: beside.as_ref().and_then(|agent| agent.zone.clone()),
        rack: beside.and_then(|agent| agent.rack),
        keys: redis::from_redis_value(size)
            .map_err(|error| NodeError::unreadable(address, "DBSIZE", error.to_string()))?,
        flavour: if info.get("valkey_version").is_some() { "valkey" } else { "redis" }.into(),
        version: info.version().to_owned(),
        ping_micros: micros(ping),
        memory_bytes: info.number("used_memory"),
        memory_limit_bytes: info.number("maxmemory"),
        clients: info.number("connected_clients"),
        ops_per_second: info.number("instantaneous_ops_per_sec"),
        replication_id: info.get("master_replid").unwrap_or_default().to_owned(),
    };
    let mut asked = Asked {
        cluster,
        is_primary: true,
        config_epoch: 0,
        primaries: BTreeMap::new(),
        others: BTreeMap::new(),
        view: view.clone(),
    };
    if !cluster {
        return Ok(asked);
    }
    let table = node.text(redis::cmd("CLUSTER").arg("NODES"), "read CLUSTER NODES").await?;
    let announced: BTreeMap<_, _> =
        slot_table(&node).await?.into_iter().flat_map(|range| range.nodes).collect();
    let (host, _) = split_address(address)?;
    let lines: Vec<_> = table.lines().filter_map(NodeLine::parse).collect();
    let reach = |line: &NodeLine<'_>| announced.get(line.id).cloned().or_else(|| line.address(&host));
    let Some(own) = lines.iter().find(|line| line.has_flag("myself")) else {
        return Err(NodeError::unreadable(address, "CLUSTER NODES", "no line is its own"));
    };
    asked.is_primary = own.has_flag("master");
    asked.config_epoch = own.config_epoch;
    view.id = own.id.to_owned();
    view.slots = own.slots.clone();
    view.moving = own.moving.clone();
    view.replicas = lines
        .iter()
        .filter(|line| line.primary == own.id && !line.has_flag("fail"))
        .filter_map(reach)
        .collect();
    for line in &lines {
        // One that is called dead and owns nothing is not missed.
        let gone = line.has_flag("fail") && line.slots.is_empty();
        if !line.has_flag("master") || line.has_flag("handshake") || line.has_flag("noaddr") || gone {
            continue;
        }
        if let Some(address) = reach(line) {
            asked.primaries.insert(line.id.to_owned(), address);
        }
        asked.others.insert(line.id.to_owned(), line.slots.clone());
    }
    asked.view = view;
    Ok(asked)
}

/// A line of `CLUSTER NODES`.
struct NodeLine<'a> {
    id: &'a str,
    place: &'a str,
    flags: &'a str,
    primary: &'a str,
    config_epoch: u64,
    slots: SlotSet,
    moving: SlotSet,
}

impl<'a> NodeLine<'a> {
    /// `id ip:port@bus[,host] flags primary ping pong epoch link slot…`; a slot is `1`, `1-9` or `[1->-id]`.
    fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.split_whitespace();
        let (id, place, flags, primary) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let config_epoch = fields.nth(2)?.parse().ok()?;
        let mut slots = SlotSet::empty();
        let mut moving = SlotSet::empty();
        for field in fields.skip(1) {
            if let Some(inner) = field.strip_prefix('[') {
                let digits = inner.split(|c: char| !c.is_ascii_digit()).next()?;
                moving.insert(digits.parse().ok()?);
            } else {
                let (first, last) = field.split_once('-').unwrap_or((field, field));
                slots.union_with(&SlotSet::range(first.parse().ok()?, last.parse().ok()?));
            }
        }
        Some(NodeLine { id, place, flags, primary, config_epoch, slots, moving })
    }

    fn has_flag(&self, flag: &str) -> bool {
        self.flags.split(',').any(|own| own == flag)
    }

    /// `host:port`; a node that does not know its own address yet is where we reached it.
    fn address(&self, reached: &str) -> Option<String> {
        let (ip, port) = self.place.split('@').next()?.rsplit_once(':')?;
        let port = port.parse().ok()?;
        Some(join_address(if ip.is_empty() { reached } else { ip }, port))
    }
}

/// One range of `CLUSTER SLOTS`: the primary first, then its replicas.
pub(crate) struct SlotRange {
    pub(crate) first: u16,
    pub(crate) last: u16,
    /// Id and `host:port`.
    pub(crate) nodes: Vec<(NodeId, String)>,
}

/// `CLUSTER SLOTS` as this node sees it. It answers the endpoint that a node wants to be reached at: a host name
/// where the cluster announces host names.
pub(crate) async fn slot_table(node: &NodeConnection) -> Result<Vec<SlotRange>, NodeError> {
    use redis::Value::{Array, Int};
    let action = "read CLUSTER SLOTS";
    let (host, _) = split_address(&node.address)?;
    let answer = node.call(redis::cmd("CLUSTER").arg("SLOTS"), action).await?;
    let Array(entries) = answer else {
        return Err(NodeError::unreadable(&node.address, action, "not a list"));
    };
    let range = |entry: &redis::Value| {
        let Array(fields) = entry else { return None };
        let (Int(first), Int(last)) = (fields.first()?, fields.get(1)?) else { return None };
        let nodes = fields[2..]
            .iter()
            .map(|place| {
                let Array(place) = place else { return None };
                let Int(port) = place.get(1)? else { return None };
                // Nil or `?`: the node does not say; `""`: it does not know yet. Both mean "where you found me".
                let endpoint = text_of(place.first()?).filter(|name| !name.is_empty() && name != "?");
                let reach = join_address(endpoint.as_deref().unwrap_or(&host), u16::try_from(*port).ok()?);
                Some((text_of(place.get(2)?)?, reach))
            })
            .collect::<Option<_>>()?;
        Some(SlotRange { first: u16::try_from(*first).ok()?, last: u16::try_from(*last).ok()?, nodes })
    };
    entries
        .iter()
        .map(|entry| {
            range(entry).ok_or_else(|| NodeError::unreadable(&node.address, action, format!("{entry:?}")))
        })
        .collect()
}

/// The slots that a node says it owns, and those that are on their way to or from it.
pub(crate) async fn own_slots(node: &NodeConnection) -> Result<(SlotSet, SlotSet), NodeError> {
    let table = node.text(redis::cmd("CLUSTER").arg("NODES"), "read CLUSTER NODES").await?;
    let own = table.lines().filter_map(NodeLine::parse).find(|line| line.has_flag("myself"));
    let own =
        own.ok_or_else(|| NodeError::unreadable(&node.address, "CLUSTER NODES", "no line is its own"))?;
    Ok((own.slots, own.moving))
}

/// The agent whose connection's name says so.
async fn agent_beside(node: &NodeConnection) -> Option<Presence> {
    let clients = match node.text(redis::cmd("CLIENT").arg("LIST"), "read CLIENT LIST").await {
        Ok(clients) => clients,
        Err(error) => {
            tracing::warn!(node = %node.address, %error, "cannot look for an agent; name it with --agents HOST:PORT,…");
            return None;
        }
    };
    let names = clients.split_whitespace().filter_map(|field| field.strip_prefix("name="));
    names.filter_map(Presence::from_name).min()
}

/// `INFO`, by field.
pub(crate) struct Info<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Info<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Info(text.lines().filter_map(|line| line.trim_end().split_once(':')).collect())
    }

    pub(crate) fn get(&self, field: &str) -> Option<&'a str> {
        self.0.get(field).copied()
    }

    pub(crate) fn version(&self) -> &'a str {
        self.get("valkey_version").or_else(|| self.get("redis_version")).unwrap_or("unknown")
    }

    fn number(&self, field: &str) -> u64 {
        self.get(field).and_then(|text| text.parse().ok()).unwrap_or(0)
    }
}

pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_lines_are_read() {
        let line = "07c37d 127.0.0.1:30004@31004,cache-4 myself,master - 0 1426238317239 4 connected 0-2 7 \
                    [93-<-292f8b] [77->-e7d1ee]";
        let node = NodeLine::parse(line).unwrap();
        assert!(node.has_flag("master") && !node.has_flag("mast"));
        assert_eq!(node.config_epoch, 4);
        assert_eq!(node.slots.iter().collect::<Vec<_>>(), [0, 1, 2, 7]);
        assert_eq!(node.moving.iter().collect::<Vec<_>>(), [77, 93]);
        assert_eq!(node.address("x").as_deref(), Some("127.0.0.1:30004"));
        let lonely = NodeLine::parse("07c37d :7000@17000 myself,master - 0 0 0 connected").unwrap();
        assert_eq!(lonely.address("cache-1").as_deref(), Some("cache-1:7000"));
        assert!(NodeLine::parse("garbage").is_none());
    }

    #[test]
    fn info_is_read_by_field() {
        let info = Info::new("# Server\r\nredis_version:7.2.4\r\nvalkey_version:9.1.2\r\nused_memory:42\r\n");
        assert_eq!(info.version(), "9.1.2");
        assert_eq!((info.number("used_memory"), info.number("nothing")), (42, 0));
    }
}
