//! Trouble with the cluster: bursts of slots that move, primaries that are killed.
//!
//! One after the other: an open slot whose primary dies is a cluster to be repaired by hand, with or without us. Before a
//! primary is killed its replica has what it has, so that what jobs before have written stays; units of the job that
//! runs may be lost all the same. (What happens when much is lost: `failover.rs`.)

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::timeline::Timeline;
use crate::PATIENCE;
use crate::movers::Masters;
use crate::support::{RedisCluster, wait_until};

pub(super) struct Servers<'a> {
    cluster: &'a mut RedisCluster,
    rng: fastrand::Rng,
    timeline: &'a Timeline,
}

impl<'a> Servers<'a> {
    pub(super) fn new(cluster: &'a mut RedisCluster, seed: u64, timeline: &'a Timeline) -> Self {
        Servers { cluster, rng: fastrand::Rng::with_seed(seed), timeline }
    }

    pub(super) fn trouble(mut self, over: &AtomicBool) {
        while !over.load(Ordering::Relaxed) {
            match self.rng.u8(..4) {
                0 => self.fail_over(),
                _ => self.move_slots(over),
            }
            std::thread::sleep(Duration::from_millis(self.rng.u64(50..800)));
        }
    }

    fn move_slots(&mut self, over: &AtomicBool) {
        let mut masters = Masters::of(self.cluster);
        let (from, to) = (self.rng.usize(..3), self.rng.usize(1..3));
        let slots = masters.slots_of(from);
        if slots.len() < 2_000 {
            return; // each keeps its share over a long run
        }
        let first = self.rng.usize(..slots.len());
        let count = self.rng.usize(5..60);
        self.timeline.fault("slots moved", &format!("{count} of master {from} from slot {}", slots[first]));
        for slot in slots.iter().cycle().skip(first).take(count.min(slots.len())) {
            if over.load(Ordering::Relaxed) {
                break;
            }
            masters.move_slot(*slot, (from + to) % 3);
        }
    }

    fn fail_over(&mut self) {
        let masters = self.cluster.nodes_with_slots();
        let lost = masters[self.rng.usize(..masters.len())];
        let id = self.cluster.id_of(lost);
        let node = &self.cluster.nodes[lost];
        let replicas: Vec<String> = node.query(&["CLUSTER", "REPLICAS", &id]);
        let replica = self
            .cluster
            .nodes
            .iter()
            .position(|node| replicas.iter().any(|line| line.contains(&format!(":{}@", node.port()))));
        let Some(replica) = replica else { return };
        let in_step: u64 = node.query(&["WAIT", "1", "5000"]);
        assert_eq!(in_step, 1, "the replica of {} is in step", node.address());
        self.timeline.fault("primary killed", &format!("{} of {}", lost, node.address()));
        self.cluster.nodes[lost].kill_hard();
        let replica = &self.cluster.nodes[replica];
        wait_until(PATIENCE, "the replica to take over", || {
            replica
                .try_query::<String>(&["INFO", "replication"])
                .is_ok_and(|info| info.contains("role:master"))
        });
        self.timeline.say(format!("{} has taken over", replica.address()));
        self.cluster.nodes[lost].restart();
        self.cluster.wait_until_ok();
        self.timeline.say("the cluster is whole again".into());
    }
}
