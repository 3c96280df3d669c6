//! Who moves slots while a job runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::{Process, RedisCluster, wait_until};

/// The masters of a cluster as they are now, and which of them has each slot: as long as nobody else moves any and no
/// other node becomes one.
pub(crate) struct Masters {
    ports: Vec<u16>,
    ids: Vec<String>,
    connections: Vec<redis::Connection>,
    pub(crate) owners: Vec<usize>,
    /// How many slots have moved.
    pub(crate) moved: usize,
}

impl Masters {
    pub(crate) fn of(cluster: &RedisCluster) -> Self {
        Self::among(cluster, cluster.nodes_with_slots())
    }

    /// These nodes: a new one has no slots yet.
    pub(crate) fn among(cluster: &RedisCluster, nodes: Vec<usize>) -> Self {
        let mut owners = cluster.owners();
        for owner in &mut owners {
            *owner = nodes.iter().position(|node| node == owner).expect("it has this slot");
        }
        Masters {
            ports: nodes.iter().map(|node| cluster.nodes[*node].port()).collect(),
            ids: nodes.iter().map(|node| cluster.id_of(*node)).collect(),
            connections: nodes.iter().map(|node| cluster.nodes[*node].connection()).collect(),
            owners,
            moved: 0,
        }
    }

    pub(crate) fn slots_of(&self, node: usize) -> Vec<usize> {
        (0..self.owners.len()).filter(|slot| self.owners[*slot] == node).collect()
    }

    /// How many scripts each has been asked to run.
    fn script_calls(&mut self) -> Vec<u64> {
        let calls = |line: &str| line.split("calls=").nth(1)?.split(',').next()?.parse::<u64>().ok();
        let of = |connection: &mut redis::Connection| {
            let stats: String = redis::cmd("INFO").arg("commandstats").query(connection).expect("INFO");
            stats.lines().filter(|line| line.starts_with("cmdstat_evalsha")).filter_map(calls).sum()
        };
        self.connections.iter_mut().map(of).collect()
    }

    /// Moves a slot key by key, as `redis-cli --cluster reshard` does, its keys in two halves: in between, the slot is
    /// open on both sides.
    pub(crate) fn move_slot(&mut self, slot: usize, to: usize) {
        let from = self.owners[slot];
        if from == to {
            return;
        }
        let (from_id, to_id) = (self.ids[from].clone(), self.ids[to].clone());
        self.set_slot(to, slot, "IMPORTING", &from_id);
        // Now and then a node hears late that a slot is its own (again).
        wait_until(Duration::from_secs(10), "the slot's owner to know that it is", || {
            self.try_set_slot(from, slot, "MIGRATING", &to_id).is_ok()
        });
        loop {
            let keys: Vec<Vec<u8>> = redis::cmd("CLUSTER")
                .arg("GETKEYSINSLOT")
                .arg(slot)
                .arg(100)
                .query(&mut self.connections[from])
                .expect("keys of the slot");
            if keys.is_empty() {
                break;
            }
            let half = keys.len().div_ceil(2);
            let mut migrate = redis::cmd("MIGRATE");
            migrate
                .arg("127.0.0.1")
                .arg(self.ports[to])
                .arg("")
                .arg(0)
                .arg(10_000)
                .arg("KEYS")
                .arg(&keys[..half]);
            migrate.exec(&mut self.connections[from]).expect("the keys move");
        }
        // The importing node first: it claims the slot with a new epoch.
        self.set_slot(to, slot, "NODE", &to_id);
        self.set_slot(from, slot, "NODE", &to_id);
        for other in (0..self.ids.len()).filter(|other| ![from, to].contains(other)) {
            self.set_slot(other, slot, "NODE", &to_id);
        }
        self.owners[slot] = to;
        self.moved += 1;
        // Until all know with which epoch it was claimed: a node that does not takes an older claim for the newer one,
        // gives the slot back to who had it, and with it the keys that have moved.
        let claimed = self.config_epoch(to, &to_id);
        wait_until(Duration::from_secs(10), "a claim to be known", || {
            (0..self.ids.len()).all(|node| self.config_epoch(node, &to_id) >= claimed)
        });
    }

    /// With which epoch a node claims its slots, as another one (or itself) knows.
    fn config_epoch(&mut self, as_seen_by: usize, id: &str) -> u64 {
        let nodes: String = redis::cmd("CLUSTER")
            .arg("NODES")
            .query(&mut self.connections[as_seen_by])
            .expect("CLUSTER NODES");
        let line = nodes.lines().find(|line| line.starts_with(id));
        // A node that has left is not known.
        line.and_then(|line| line.split(' ').nth(6)?.parse().ok()).unwrap_or(0)
    }

    fn set_slot(&mut self, node: usize, slot: usize, how: &str, id: &str) {
        match self.try_set_slot(node, slot, how, id) {
            Ok(()) => {}
            // Who has just lost its last slot has become a replica.
            Err(error) if error.to_string().contains("only with masters") => {}
            Err(error) => panic!("slot {slot} {how}: {error}"),
        }
    }

    fn try_set_slot(&mut self, node: usize, slot: usize, how: &str, id: &str) -> redis::RedisResult<()> {
        redis::cmd("CLUSTER").arg("SETSLOT").arg(slot).arg(how).arg(id).exec(&mut self.connections[node])
    }
}

/// Waits for a job to end, while `next` says which slot moves where, again and again. Nothing is left moving.
pub(crate) fn while_moving(
    masters: &mut Masters,
    mut job: Process,
    mut next: impl FnMut(&mut Masters) -> Option<(usize, usize)> + Send,
) -> Process {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mover = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                match next(masters) {
                    Some((slot, to)) => masters.move_slot(slot, to),
                    None => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        while job.is_running() && !mover.is_finished() {
            std::thread::sleep(Duration::from_millis(5));
        }
        over.store(true, Ordering::Relaxed);
        mover.join().expect("the mover moves on");
        job
    })
}

/// Follows a chain from node to node by the scripts that the nodes run.
pub(crate) struct Follower {
    before: Vec<u64>,
    /// The nodes in the order in which the chain has come to them.
    pub(crate) seen: Vec<usize>,
}

impl Follower {
    pub(crate) fn new(masters: &mut Masters) -> Self {
        Follower { before: masters.script_calls(), seen: Vec::new() }
    }

    /// The node that the chain has come to last, and how many before it are done with.
    pub(crate) fn look(&mut self, masters: &mut Masters) -> Option<(usize, usize)> {
        for (node, calls) in masters.script_calls().into_iter().enumerate() {
            // A few are made when a hop begins, by all hops of a plan.
            if calls > self.before[node] + 10 && !self.seen.contains(&node) {
                self.seen.push(node);
            }
        }
        self.seen.last().map(|busy| (*busy, self.seen.len() - 1))
    }
}
