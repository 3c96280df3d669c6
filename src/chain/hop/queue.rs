//! Hops that wait for their node, and those that run on it.

use std::collections::BTreeMap;

use crate::chain::state::{HopId, NodeId};
use crate::core::task::Millis;

/// A queue for each node, ordered by priority with ageing.
///
/// A hop's rank is `priority + waited / ageing`. Two ranks keep their order for ever, since both grow at the same
/// pace, so each hop gets one fixed key when it comes: its arrival, moved back by `priority * ageing`.
#[derive(Debug, Clone)]
pub(super) struct RunQueue {
    per_node: usize,
    ageing: Millis,
    pub(super) nodes: BTreeMap<NodeId, Node>,
    waiting: BTreeMap<HopId, (NodeId, Key)>,
    pub(super) running: BTreeMap<HopId, NodeId>,
    arrivals: u64,
}

/// The lowest goes first; ties by arrival.
pub(super) type Key = (Millis, u64);

#[derive(Debug, Clone, Default)]
pub(super) struct Node {
    pub(super) waiting: BTreeMap<Key, HopId>,
    pub(super) running: usize,
}

impl RunQueue {
    pub(super) fn new(per_node: usize, ageing: Millis) -> Self {
        RunQueue {
            per_node: per_node.max(1),
            ageing,
            nodes: BTreeMap::new(),
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            arrivals: 0,
        }
    }

    pub(super) fn push(&mut self, now: Millis, hop: HopId, node: NodeId, priority: u8) {
        let head_start = self.ageing.saturating_mul(Millis::from(priority));
        let key = (now.saturating_sub(head_start), self.arrivals);
        self.arrivals += 1;
        self.nodes.entry(node.clone()).or_default().waiting.insert(key, hop.clone());
        self.waiting.insert(hop, (node, key));
    }

    /// Takes the next hop of a node, if it may run one more now. It counts as running from here on.
    pub(super) fn start(&mut self, node: &NodeId) -> Option<HopId> {
        let queue = self.nodes.get_mut(node)?;
        if queue.running >= self.per_node {
            return None;
        }
        let (_, hop) = queue.waiting.pop_first()?;
        queue.running += 1;
        self.waiting.remove(&hop);
        self.running.insert(hop.clone(), node.clone());
        Some(hop)
    }

    /// A running hop has stopped: the node that is free again.
    pub(super) fn stopped(&mut self, hop: &HopId) -> Option<NodeId> {
        let node = self.running.remove(hop)?;
        if let Some(queue) = self.nodes.get_mut(&node) {
            queue.running -= 1;
            if queue.running == 0 && queue.waiting.is_empty() {
                self.nodes.remove(&node);
            }
        }
        Some(node)
    }

    /// Takes a waiting hop out; a running one stays until it has stopped.
    pub(super) fn remove(&mut self, hop: &HopId) {
        let Some((node, key)) = self.waiting.remove(hop) else { return };
        if let Some(queue) = self.nodes.get_mut(&node) {
            queue.waiting.remove(&key);
            if queue.running == 0 && queue.waiting.is_empty() {
                self.nodes.remove(&node);
            }
        }
    }

    pub(super) fn is_running(&self, hop: &HopId) -> bool {
        self.running.contains_key(hop)
    }

    pub(super) fn runs_job(&self, job: &str) -> bool {
        self.running.range(super::first_hop(job)..).next().is_some_and(|(hop, _)| hop.job == job)
    }

    pub(super) fn load(&self) -> (usize, usize) {
        (self.waiting.len(), self.running.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hop(number: u32) -> HopId {
        HopId { job: "j".into(), chain: 0, epoch: 1, hop: number }
    }

    #[test]
    fn priority_goes_first_until_the_others_have_waited_long_enough() {
        let mut queue = RunQueue::new(1, 1_000);
        let node = NodeId::from("n");
        queue.push(0, hop(0), node.clone(), 0);
        queue.push(500, hop(1), node.clone(), 2);
        queue.push(1_999, hop(2), node.clone(), 2);
        queue.push(2_001, hop(3), node.clone(), 2);
        let mut order = Vec::new();
        while let Some(next) = queue.start(&node) {
            assert_eq!(queue.start(&node), None, "one at a time");
            assert_eq!(queue.stopped(&next), Some(node.clone()));
            order.push(next.hop);
        }
        assert_eq!(order, [1, 2, 0, 3]);
        assert!(queue.nodes.is_empty() && queue.waiting.is_empty());
    }

    #[test]
    fn a_running_hop_keeps_its_place_until_it_has_stopped() {
        let mut queue = RunQueue::new(1, 1_000);
        let node = NodeId::from("n");
        queue.push(0, hop(0), node.clone(), 0);
        queue.push(0, hop(1), node.clone(), 0);
        assert_eq!(queue.start(&node), Some(hop(0)));
        queue.remove(&hop(0));
        assert!(queue.is_running(&hop(0)) && queue.runs_job("j") && !queue.runs_job("i"));
        assert_eq!(queue.start(&node), None);
        queue.remove(&hop(1));
        assert_eq!(queue.stopped(&hop(0)), Some(node.clone()));
        assert_eq!((queue.start(&node), queue.load()), (None, (0, 0)));
    }
}
