//! Hops that have gone on: their ids, so that duplicates are acknowledged, and states retained two hops back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::chain::message::ChainId;
use crate::chain::state::{HopId, JobState};

/// Ids of done hops, up to a limit; beyond it the oldest is forgotten. A duplicate of a forgotten hop is run again:
/// that costs work, and nothing else, since its chain is folded once and its writes have their markers.
#[derive(Debug, Clone)]
pub(super) struct Done {
    hops: BTreeSet<HopId>,
    order: VecDeque<HopId>,
    limit: usize,
}

impl Done {
    pub(super) fn new(limit: usize) -> Self {
        Done { hops: BTreeSet::new(), order: VecDeque::new(), limit: limit.max(1) }
    }

    pub(super) fn insert(&mut self, hop: HopId) {
        if self.hops.insert(hop.clone()) {
            self.order.push_back(hop);
        }
        while self.order.len() > self.limit {
            if let Some(oldest) = self.order.pop_front() {
                self.hops.remove(&oldest);
            }
        }
    }

    pub(super) fn contains(&self, hop: &HopId) -> bool {
        self.hops.contains(hop)
    }

    pub(super) fn remove(&mut self, hop: &HopId) {
        self.hops.remove(hop); // its place in the order goes when it is the oldest
    }

    pub(super) fn remove_job(&mut self, job: &str) {
        let of_job = self.hops.range(super::first_hop(job)..).take_while(|hop| hop.job == job);
        let hops: Vec<HopId> = of_job.cloned().collect();
        for hop in hops {
            self.remove(&hop);
        }
    }

    /// Oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &HopId> {
        self.order.iter().filter(|hop| self.hops.contains(hop))
    }
}

/// A hop whose receiver holds it, but has not passed it on.
#[derive(Debug, Clone)]
pub(super) struct RetainedHop {
    /// The id under which the receiver took it.
    pub(super) id: HopId,
    pub(super) state: Arc<JobState>,
}

/// Retained hops, up to a limit.
#[derive(Debug, Clone)]
pub(super) struct Retained {
    hops: BTreeMap<HopId, RetainedHop>,
    order: VecDeque<HopId>,
    limit: usize,
}

impl Retained {
    pub(super) fn new(limit: usize) -> Self {
        Retained { hops: BTreeMap::new(), order: VecDeque::new(), limit: limit.max(1) }
    }

    /// Retains one more; returns the one that has to go for it.
    pub(super) fn insert(&mut self, hop: HopId, retained: RetainedHop) -> Option<HopId> {
        if self.hops.insert(hop.clone(), retained).is_none() {
            self.order.push_back(hop);
        }
        if self.hops.len() <= self.limit {
            return None;
        }
        while let Some(oldest) = self.order.pop_front() {
            if self.hops.remove(&oldest).is_some() {
                return Some(oldest);
            }
        }
        None
    }

    pub(super) fn contains(&self, hop: &HopId) -> bool {
        self.hops.contains_key(hop)
    }

    /// The hop that was sent on under this id.
    pub(super) fn sent_as(&self, id: &HopId) -> Option<HopId> {
        // A chain's hops are neighbours in the map, and few are retained at a time.
        let first = HopId { hop: 0, ..id.clone() };
        self.hops
            .range(first..id.clone())
            .find(|(_, retained)| retained.id == *id)
            .map(|(hop, _)| hop.clone())
    }

    pub(super) fn remove(&mut self, hop: &HopId) {
        if self.hops.remove(hop).is_some() {
            self.order.retain(|other| other != hop);
        }
    }

    pub(super) fn remove_below(&mut self, job: &str, epoch: u32) {
        let before = self.hops.len();
        self.hops.retain(|hop, _| hop.job != job || hop.epoch >= epoch);
        if self.hops.len() != before {
            let hops = &self.hops;
            self.order.retain(|hop| hops.contains_key(hop));
        }
    }

    pub(super) fn of_chain<'a>(&'a self, chain: &'a ChainId) -> impl Iterator<Item = &'a Arc<JobState>> {
        self.hops
            .iter()
            .filter(move |(hop, _)| ChainId::of_hop(hop) == *chain)
            .map(|(_, retained)| &retained.state)
    }

    /// Oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&HopId, &RetainedHop)> {
        self.order.iter().filter_map(|hop| self.hops.get_key_value(hop))
    }
}
