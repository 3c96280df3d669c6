//! A Redis Cluster on loopback.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use super::load::{Command, load};
use super::ports::{ClusterPermit, cluster_permit, free_port};
use super::server::{RedisServer, Version};
use super::wait::wait_until;

const SLOTS: usize = 16_384;

/// A running cluster: first the masters in the order of their slots, then the replicas. Killed when dropped.
#[derive(Debug)]
pub struct RedisCluster {
    /// The nodes; a test may kill, freeze and restart them.
    pub nodes: Vec<RedisServer>,
    masters: usize,
    bus_ports: Vec<u16>,
    /// Last, so that it is given back when the nodes are gone.
    _permit: ClusterPermit,
}

impl RedisCluster {
    /// Starts a cluster and waits until every node sees all nodes and all slots, and every replica has its data.
    pub fn start(version: Version, masters: usize, replicas_per_master: usize) -> Self {
        Self::start_with(version, masters, replicas_per_master, &[])
    }

    /// [`RedisCluster::start`] with further command-line options for every node.
    pub fn start_with(
        version: Version,
        masters: usize,
        replicas_per_master: usize,
        options: &[&str],
    ) -> Self {
        let permit = cluster_permit();
        let count = masters * (1 + replicas_per_master);
        let mut nodes: Vec<RedisServer> =
            (0..count).map(|_| RedisServer::prepare(version, options)).collect();
        let bus_ports: Vec<u16> = (0..count).map(|_| free_port()).collect();
        let described = describe(&nodes, &bus_ports, masters);
        for (index, node) in nodes.iter_mut().enumerate() {
            fs::write(node.folder().join("nodes.conf"), nodes_conf(&described, index, count)).unwrap();
            let bus_port = bus_ports[index].to_string();
            node.add_options(&["--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"]);
            node.add_options(&["--cluster-port", &bus_port, "--cluster-node-timeout", "3000"]);
            node.launch();
        }
        for node in &mut nodes {
            node.wait_until_it_answers();
        }
        let cluster = RedisCluster { nodes, masters, bus_ports, _permit: permit };
        cluster.wait_until_ok();
        cluster
    }

    /// Waits until every running node sees a cluster with all slots served and every replica is in step.
    #[track_caller]
    pub fn wait_until_ok(&self) {
        wait_until(Duration::from_secs(30), "the cluster to be ok on every node", || {
            self.nodes.iter().all(|node| {
                let Ok(info) = node.try_query::<String>(&["CLUSTER", "INFO"]) else { return false };
                let Ok(replication) = node.try_query::<String>(&["INFO", "replication"]) else {
                    return false;
                };
                info.contains("cluster_state:ok")
                    && info.contains(&format!("cluster_slots_ok:{SLOTS}\r"))
                    && info.contains(&format!("cluster_known_nodes:{}\r", self.nodes.len()))
                    && (replication.contains("role:master") || replication.contains("master_link_status:up"))
            })
        });
    }

    /// Where a node listens for the others.
    pub fn bus_port(&self, index: usize) -> u16 {
        self.bus_ports[index]
    }

    /// The nodes that started as masters.
    pub fn masters(&self) -> &[RedisServer] {
        &self.nodes[..self.masters]
    }

    /// `redis://…` of every node, comma separated: what `--redis` takes.
    pub fn url(&self) -> String {
        let urls: Vec<String> = self.nodes.iter().map(RedisServer::url).collect();
        urls.join(",")
    }

    /// The index in `nodes` of the master that serves each slot, as the first node that answers sees it.
    pub fn owners(&self) -> Vec<usize> {
        let ranges: Vec<Vec<redis::Value>> = self
            .nodes
            .iter()
            .find_map(|node| node.try_query(&["CLUSTER", "SLOTS"]).ok())
            .expect("a node of the cluster answers");
        let mut owners = vec![usize::MAX; SLOTS];
        for range in ranges {
            // [first, last, [host, port, …], replicas…]
            let redis::Value::Array(master) = &range[2] else { panic!("not a node: {:?}", range[2]) };
            let (first, last, port) = (number(&range[0]), number(&range[1]), number(&master[1]));
            let index = self.nodes.iter().position(|node| usize::from(node.port()) == port);
            owners[first..=last].fill(index.expect("a node of ours"));
        }
        owners
    }

    /// The indices in `nodes` of those that serve slots now.
    pub fn nodes_with_slots(&self) -> Vec<usize> {
        let mut nodes = self.owners();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// The master that serves a key now.
    pub fn owner_of(&self, key: &[u8]) -> &RedisServer {
        &self.nodes[self.owners()[slot_of(key)]]
    }

    /// Sends each command (its first argument is its key) to the node that serves it, in pipelines. Panics at the
    /// first error.
    pub fn load(&self, commands: impl IntoIterator<Item = Command>) {
        let owners = self.owners();
        let mut shares: HashMap<usize, Vec<Command>> = HashMap::new();
        for command in commands {
            shares.entry(owners[slot_of(&command[1])]).or_default().push(command);
        }
        std::thread::scope(|scope| {
            for (index, share) in shares {
                scope.spawn(move || load(&self.nodes[index], share));
            }
        });
    }

    /// Keys in all masters.
    pub fn key_count(&self) -> u64 {
        self.masters().iter().map(|node| node.query::<u64>(&["DBSIZE"])).sum()
    }

    /// Opens a slot's move to the node with index `to`: MIGRATING and IMPORTING are set, no key has moved.
    pub fn open_migration(&self, slot: usize, to: usize) {
        let from = self.owners()[slot];
        let slot = slot.to_string();
        let (from_id, to_id) = (self.id_of(from), self.id_of(to));
        self.nodes[to].query::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
        self.nodes[from].query::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
    }

    /// Moves at most `limit` keys of an open slot; says how many moved.
    pub fn migrate_keys(&self, slot: usize, to: usize, limit: usize) -> usize {
        let from = &self.nodes[self.owners()[slot]];
        let mut connection = from.connection();
        let keys: Vec<Vec<u8>> = redis::cmd("CLUSTER")
            .arg("GETKEYSINSLOT")
            .arg(slot)
            .arg(limit)
            .query(&mut connection)
            .expect("keys of the slot");
        if !keys.is_empty() {
            let mut migrate = redis::cmd("MIGRATE");
            migrate
                .arg("127.0.0.1")
                .arg(self.nodes[to].port())
                .arg("")
                .arg(0)
                .arg(10_000)
                .arg("KEYS")
                .arg(&keys);
            migrate.exec(&mut connection).expect("the keys move");
        }
        keys.len()
    }

    /// Ends an open slot's move once all its keys have moved.
    pub fn close_migration(&self, slot: usize, to: usize) {
        let from = self.owners()[slot];
        let (slot, to_id) = (slot.to_string(), self.id_of(to));
        // The importing node first: it then claims the slot with a new epoch. The others are told before the next
        // slot moves, so that no two nodes claim theirs with the same one.
        let others = (0..self.masters).filter(|index| ![to, from].contains(index));
        for index in [to, from].into_iter().chain(others) {
            // A node that is down hears of it when it is back.
            let told = self.nodes[index].try_query::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]);
            assert!(told.is_ok() || ![to, from].contains(&index), "slot {slot}: {told:?}");
        }
    }

    /// Moves a slot key by key, as `redis-cli --cluster reshard` does.
    pub fn migrate_slot(&self, slot: usize, to: usize) {
        if self.owners()[slot] == to {
            return;
        }
        self.open_migration(slot, to);
        while self.migrate_keys(slot, to, 100) > 0 {}
        self.close_migration(slot, to);
    }

    /// A node's cluster id.
    pub fn id_of(&self, index: usize) -> String {
        self.nodes[index].query(&["CLUSTER", "MYID"])
    }
}

/// The hash slot of a key.
pub fn slot_of(key: &[u8]) -> usize {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let length = key[open + 1..].iter().position(|byte| *byte == b'}')?;
        (length > 0).then(|| &key[open + 1..open + 1 + length])
    });
    usize::from(crc16::State::<crc16::XMODEM>::calculate(tag.unwrap_or(key))) % SLOTS
}

fn number(value: &redis::Value) -> usize {
    let redis::Value::Int(number) = value else { panic!("not a number: {value:?}") };
    usize::try_from(*number).unwrap()
}

/// One line of `nodes.conf` for every node, without its flags and its link, in two halves: before and after them.
///
/// Writing the file before the nodes start gives them their cluster at once; with CLUSTER MEET and ADDSLOTS they
/// would first have to find each other.
fn describe(nodes: &[RedisServer], bus_ports: &[u16], masters: usize) -> Vec<[String; 3]> {
    let id = |index: usize| format!("{:040x}", 0x5ca1d5_u128 << 32 | u128::from(nodes[index].port()));
    let line = |index: usize| {
        let address = format!("{} 127.0.0.1:{}@{}", id(index), nodes[index].port(), bus_ports[index]);
        if index < masters {
            let (first, last) = (index * SLOTS / masters, (index + 1) * SLOTS / masters - 1);
            [address, "master -".to_owned(), format!("0 0 {} connected {first}-{last}", index + 1)]
        } else {
            let master = (index - masters) % masters;
            [address, format!("slave {}", id(master)), format!("0 0 {} connected", master + 1)]
        }
    };
    (0..nodes.len()).map(line).collect()
}

fn nodes_conf(described: &[[String; 3]], own: usize, epoch: usize) -> String {
    let lines = described.iter().enumerate().map(|(index, [address, role, rest])| {
        let myself = if index == own { "myself," } else { "" };
        format!("{address} {myself}{role} {rest}\n")
    });
    let mut text: String = lines.collect();
    text.push_str(&format!("vars currentEpoch {epoch} lastVoteEpoch 0\n"));
    text
}
