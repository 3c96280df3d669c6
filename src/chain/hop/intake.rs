//! From the arrival of a hop to the end of its own work.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::done::RetainedHop;
use super::{Held, HopEffect, HopMachine, Link, Pending, Phase, Record, of_job};
use crate::chain::message::{ChainId, Message, Progress, RefuseReason};
use crate::chain::state::{HopId, JobState, KeyError, NodeId};
use crate::core::task::Millis;

impl HopMachine {
    pub(super) fn replay(&mut self, now: Millis, record: Record) {
        match record {
            Record::Held { hop, state } => self.replay_held(hop, state),
            Record::Moved { from, hop, state } => {
                self.held.remove(&from);
                self.done.insert(from);
                self.replay_held(hop, state);
            }
            Record::Retained { hop, state } => {
                if !self.is_closed(&hop) {
                    self.held.remove(&hop);
                    let id = state.hop_id();
                    if let Some(oldest) = self.retained.insert(hop, RetainedHop { id, state }) {
                        self.done.insert(oldest);
                    }
                }
            }
            Record::Done { hop } => {
                self.held.remove(&hop);
                self.retained.remove(&hop);
                self.done.insert(hop);
            }
            Record::Fence { job, epoch, incarnation } => {
                if self.jobs.fence(now, &job, epoch, incarnation).is_some() {
                    let hops: Vec<HopId> =
                        of_job(&self.held, &job).filter(|hop| hop.epoch < epoch).cloned().collect();
                    for hop in hops {
                        self.held.remove(&hop);
                    }
                    self.retained.remove_below(&job, epoch);
                }
            }
            Record::Recalled { chain } => drop(self.jobs.recall(now, &chain)),
            Record::Ended { job, incarnation, retryable } => {
                self.jobs.end(now, &job, retryable);
                let entry = self.jobs.entry(now, &job);
                entry.incarnation = entry.incarnation.max(incarnation);
                if let Some(ended) = &mut entry.ended {
                    ended.durable = true;
                }
                self.forget_job(&job);
            }
        }
    }

    /// Whether a hop's job has ended, or its epoch is behind the fence. What is held or retained of a recalled chain is
    /// kept, whichever record comes first: a snapshot has the recalls before the states.
    fn is_closed(&self, hop: &HopId) -> bool {
        self.jobs.get(&hop.job).is_some_and(|job| job.ended.is_some() || hop.epoch < job.fence)
    }

    pub(super) fn replay_held(&mut self, hop: HopId, state: Arc<JobState>) {
        if !self.is_closed(&hop) {
            self.done.remove(&hop);
            let held = Held {
                state,
                bytes: 0,
                phase: Phase::Queued,
                durable: true,
                ack_to: Vec::new(),
                origin: None,
            };
            self.held.insert(hop, held);
        }
    }

    pub(super) fn receive(
        &mut self,
        now: Millis,
        from: Link,
        state: Arc<JobState>,
        bytes: u64,
        out: &mut Vec<HopEffect>,
    ) {
        let hop = state.hop_id();
        if let Some(reason) = self.jobs.refusal(&hop) {
            return out.push(HopEffect::Send { to: from, message: Message::refuse(hop, reason) });
        }
        if self.done.contains(&hop) || self.retained.contains(&hop) {
            return out.push(HopEffect::Send { to: from, message: Message::ack(vec![hop]) });
        }
        if let Some(held) = self.held.get_mut(&hop) {
            held.origin = Some((from.clone(), hop.clone()));
            if held.durable {
                return out.push(HopEffect::Send { to: from, message: Message::ack(vec![hop]) });
            }
            // Either its record is on its way to the disk, or it was moved here lazily by this agent itself and
            // somebody else now wants to forget it: then it must become durable first.
            let record = Record::Held { hop: hop.clone(), state: held.state.clone() };
            let persisting = held.phase == Phase::Persisting || !held.ack_to.is_empty();
            if !held.ack_to.contains(&from) {
                held.ack_to.push(from);
            }
            if !persisting {
                self.persist(Pending::Hop(hop), record, out);
            }
            return;
        }
        let room = self.config.capacity.saturating_add(hop.hop as usize);
        let first_and_full = hop.hop == 0 && self.bytes.saturating_add(bytes) > self.config.capacity_bytes;
        if self.held.len() >= room || (first_and_full && !self.held.is_empty()) {
            let message = Message::refuse(hop, RefuseReason::Busy);
            return out.push(HopEffect::Send { to: from, message });
        }
        self.jobs.entry(now, &hop.job);
        let held = Held {
            state: state.clone(),
            bytes,
            phase: Phase::Persisting,
            durable: false,
            ack_to: vec![from.clone()],
            origin: Some((from, hop.clone())),
        };
        self.hold(hop.clone(), held);
        self.persist(Pending::Hop(hop.clone()), Record::Held { hop: hop.clone(), state }, out);
        #[cfg(test)]
        if self.config.ack_before_persist {
            let up_to = self.tickets;
            self.persisted(now, up_to, out);
        }
    }

    pub(super) fn persisted(&mut self, now: Millis, up_to: u64, out: &mut Vec<HopEffect>) {
        let later = self.pending.split_off(&up_to.saturating_add(1));
        let durable = std::mem::replace(&mut self.pending, later);
        let mut acks: BTreeMap<Link, Vec<HopId>> = BTreeMap::new();
        let mut ready = Vec::new();
        for pending in durable.into_values() {
            match pending {
                Pending::Hop(hop) => {
                    let Some(held) = self.held.get_mut(&hop) else { continue };
                    held.durable = true;
                    for link in std::mem::take(&mut held.ack_to) {
                        acks.entry(link).or_default().push(hop.clone());
                    }
                    if held.phase == Phase::Persisting {
                        ready.push(hop);
                    }
                }
                Pending::Ended(job) => {
                    if let Some(ended) = self.jobs.get_mut(&job).and_then(|job| job.ended.as_mut()) {
                        ended.durable = true;
                    }
                    self.answer_end(&job, out);
                }
            }
        }
        out.extend(acks.into_iter().map(|(to, hops)| HopEffect::Send { to, message: Message::ack(hops) }));
        for hop in ready {
            self.enqueue(now, &hop, out);
        }
    }

    /// A hop's record is durable, or as good as: what is to be done with it next?
    pub(super) fn enqueue(&mut self, now: Millis, hop: &HopId, out: &mut Vec<HopEffect>) {
        let Some(held) = self.held.get_mut(hop) else { return };
        if held.phase == Phase::Parked {
            return;
        }
        let Some(node) = held.state.due_node().map(|node| node.id.clone()) else {
            // Nothing to be run: a state that is for the coordinator.
            let state = held.state.clone();
            return self.forward(now, hop, state, out);
        };
        held.phase = Phase::Queued;
        self.queue.push(now, hop.clone(), node.clone(), held.state.job.priority);
        self.start(&node, out);
    }

    /// Starts what may run on a node.
    pub(super) fn start(&mut self, node: &NodeId, out: &mut Vec<HopEffect>) {
        while let Some(hop) = self.queue.start(node) {
            let Some(held) = self.held.get_mut(&hop) else {
                self.queue.stopped(&hop);
                continue;
            };
            held.phase = Phase::Running;
            out.push(HopEffect::Run { hop, state: held.state.clone() });
        }
    }

    pub(super) fn checkpoint(&mut self, hop: HopId, state: Arc<JobState>, out: &mut Vec<HopEffect>) {
        let Some(held) = self.held.get_mut(&hop) else { return };
        if held.phase != Phase::Running {
            return;
        }
        held.state = state.clone();
        let progress = progress_of(&hop, &state);
        out.push(HopEffect::Note { record: Record::Held { hop: hop.clone(), state } });
        if let Some(conn) = self.jobs.get(&hop.job).and_then(|job| job.conn) {
            out.push(HopEffect::Send { to: Link::Conn(conn), message: progress });
        }
    }

    pub(super) fn ran(
        &mut self,
        now: Millis,
        hop: HopId,
        mut state: Arc<JobState>,
        out: &mut Vec<HopEffect>,
    ) {
        let running = self.held.get(&hop).is_some_and(|held| held.phase == Phase::Running);
        if !running {
            return self.stopped(now, &hop, out);
        }
        let freed = self.queue.stopped(&hop);
        if state.failed.is_none() && state.position <= hop.hop {
            fail(&mut state, "the hop has ended without going on".into());
        }
        if state.failed.is_some() {
            // A failed chain skips the rest of its route; the id of that hand-off must not be one of a hop.
            Arc::make_mut(&mut state).position = state.route.len() as u32;
        }
        let own = state.due_node().is_some_and(|node| match &node.agent {
            None => true,
            Some(address) => *address == self.config.address,
        });
        if own {
            self.move_on(now, hop, state, out);
        } else {
            self.forward(now, &hop, state, out);
        }
        if let Some(node) = freed {
            self.start(&node, out);
        }
    }

    /// The next hop is this agent's own: one record does both, so nothing has to be durable in between.
    pub(super) fn move_on(
        &mut self,
        now: Millis,
        from: HopId,
        state: Arc<JobState>,
        out: &mut Vec<HopEffect>,
    ) {
        let hop = state.hop_id();
        let Some(held) = self.unhold(&from) else { return };
        if self.held.contains_key(&hop) || self.done.contains(&hop) || self.retained.contains(&hop) {
            return self.done(from, out); // it was here already: this one is what a crash has made run twice
        }
        self.done.insert(from.clone());
        out.push(HopEffect::Note { record: Record::Moved { from, hop: hop.clone(), state: state.clone() } });
        let held = Held { state, phase: Phase::Queued, durable: false, ack_to: Vec::new(), ..held };
        self.hold(hop.clone(), held);
        self.enqueue(now, &hop, out);
    }

    /// Work has stopped, because it was told to or by itself.
    pub(super) fn stopped(&mut self, now: Millis, hop: &HopId, out: &mut Vec<HopEffect>) {
        let Some(node) = self.queue.stopped(hop) else { return };
        if self.held.get(hop).is_some_and(|held| held.phase == Phase::Running) {
            self.enqueue(now, hop, out);
        }
        self.answer_end(&hop.job, out);
        self.start(&node, out);
    }

    pub(super) fn hold(&mut self, hop: HopId, held: Held) {
        self.bytes = self.bytes.saturating_add(held.bytes);
        self.held.insert(hop, held);
    }

    pub(super) fn unhold(&mut self, hop: &HopId) -> Option<Held> {
        let held = self.held.remove(hop)?;
        self.bytes = self.bytes.saturating_sub(held.bytes);
        Some(held)
    }

    pub(super) fn persist(&mut self, pending: Pending, record: Record, out: &mut Vec<HopEffect>) {
        self.tickets += 1;
        self.pending.insert(self.tickets, pending);
        out.push(HopEffect::Persist { ticket: self.tickets, record });
    }
}

pub(super) fn progress_of(hop: &HopId, state: &JobState) -> Message {
    Message::Progress(Progress {
        chain: ChainId::of_hop(hop),
        position: hop.hop,
        node: state.due_node().map(|node| node.id.clone()).unwrap_or_default(),
        tally: state.tally,
        units_done: state.units_done(),
    })
}

pub(super) fn fail(state: &mut Arc<JobState>, reason: String) {
    let node = state.due_node().map(|node| node.id.clone()).unwrap_or_default();
    let state = Arc::make_mut(state);
    if state.failed.is_none() {
        state.failed = Some(KeyError { key: Vec::new(), node, reason });
    }
}
