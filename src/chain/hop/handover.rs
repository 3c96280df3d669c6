//! From the end of a hop's work to its acknowledgement by the next one.

use std::sync::Arc;

use super::done::RetainedHop;
use super::forward::{Dest, Forward};
use super::intake::fail;
use super::{HopEffect, HopMachine, Link, Phase, Record};
use crate::chain::message::{Ack, Message, Refuse, RefuseReason};
use crate::chain::state::{HopId, JobState};
use crate::core::task::Millis;

impl HopMachine {
    pub(super) fn forward(
        &mut self,
        now: Millis,
        hop: &HopId,
        state: Arc<JobState>,
        out: &mut Vec<HopEffect>,
    ) {
        let Some(held) = self.held.get_mut(hop) else { return };
        held.phase = Phase::Forwarding;
        let agent = state.due_node().and_then(|node| node.agent.clone());
        let dest = agent.map_or_else(|| Dest::Coordinator(hop.job.clone()), Dest::Agent);
        self.forwards.add(now, hop.clone(), dest, state, out);
    }

    pub(super) fn acknowledged(&mut self, now: Millis, from: &Link, ack: Ack, out: &mut Vec<HopEffect>) {
        for id in ack.hops {
            for (hop, forward) in self.forwards.take(now, &id, from, out) {
                let Some(held) = self.unhold(&hop) else { continue };
                let retains = forward.state.job.limits.retain >= 2;
                if retains && matches!(forward.dest, Dest::Agent(_)) {
                    self.retain(hop, forward, out);
                } else {
                    self.done(hop, out);
                }
                if let Some((to, id)) = held.origin.filter(|_| retains) {
                    let ack = Ack { hops: Vec::new(), forwarded: vec![id] };
                    out.push(HopEffect::Send { to, message: Message::Ack(ack) });
                }
            }
        }
        for id in ack.forwarded {
            if let Some(hop) = self.retained.sent_as(&id) {
                self.retained.remove(&hop);
                self.done(hop, out);
            }
        }
    }

    pub(super) fn retain(&mut self, hop: HopId, forward: Forward, out: &mut Vec<HopEffect>) {
        out.push(HopEffect::Note {
            record: Record::Retained { hop: hop.clone(), state: forward.state.clone() },
        });
        let retained = RetainedHop { id: forward.id, state: forward.state };
        if let Some(oldest) = self.retained.insert(hop, retained) {
            self.done(oldest, out);
        }
    }

    pub(super) fn done(&mut self, hop: HopId, out: &mut Vec<HopEffect>) {
        out.push(HopEffect::Note { record: Record::Done { hop: hop.clone() } });
        self.done.insert(hop);
    }

    pub(super) fn refused(&mut self, now: Millis, from: &Link, refuse: Refuse, out: &mut Vec<HopEffect>) {
        match refuse.reason {
            RefuseReason::Busy => self.forwards.busy(now, &refuse.hop, from, out),
            RefuseReason::TooLarge { limit } => {
                let reason = format!("the job state is over the receiver's limit of {limit} bytes");
                for (hop, forward) in self.forwards.take(now, &refuse.hop, from, out) {
                    self.fail_forward(now, hop, forward, reason.clone(), out);
                }
            }
            RefuseReason::Ended | RefuseReason::StaleEpoch { .. } => {
                for (hop, forward) in self.forwards.take(now, &refuse.hop, from, out) {
                    if matches!(forward.dest, Dest::Agent(_)) && refuse.reason != RefuseReason::Ended {
                        // The chain has been recalled there: the coordinator will ask here too.
                        self.park(now, &hop, Some(forward.state), out);
                    } else {
                        self.unhold(&hop);
                        self.done(hop, out);
                    }
                }
            }
        }
    }

    pub(super) fn unsendable(&mut self, now: Millis, id: &HopId, reason: &str, out: &mut Vec<HopEffect>) {
        let Some(hop) = self.forwards.held_as(id) else { return };
        if let Some(forward) = self.forwards.remove(now, &hop, out) {
            self.fail_forward(now, hop, forward, reason.to_owned(), out);
        }
    }

    /// A state that cannot go on as it is goes to the coordinator without what made it too large.
    pub(super) fn fail_forward(
        &mut self,
        now: Millis,
        hop: HopId,
        forward: Forward,
        reason: String,
        out: &mut Vec<HopEffect>,
    ) {
        let mut state = forward.state;
        let already = state.failed.is_some() && state.parts.is_empty();
        fail(&mut state, reason);
        let inner = Arc::make_mut(&mut state);
        inner.position = inner.route.len() as u32;
        inner.parts = Vec::new();
        inner.acc = Default::default();
        inner.reports = Vec::new();
        if already {
            // Nothing is left to be taken off: the coordinator hears of it when it recalls the chain.
            self.park(now, &hop, Some(state), out);
        } else {
            self.forward(now, &hop, state, out);
        }
    }
}
