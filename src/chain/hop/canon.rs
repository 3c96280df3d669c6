//! The machine as the model checker tells its states apart: without what cannot change what it does next.

use super::{HopMachine, Phase};
use crate::chain::message::ChainId;
use crate::chain::model::Canon;
use crate::chain::state::HopId;
use crate::core::task::Millis;

impl HopMachine {
    /// Left out: tickets and places in orders (their order is in), since when a job is alone (`orphan_after` is for
    /// ever in the model), when a hop has come to its queue (all have one priority, so the order is enough), bytes.
    pub(in crate::chain) fn canon(&self, now: Millis, to: &mut Canon) {
        for (hop, held) in &self.held {
            to.put(hop).state(&held.state);
            to.put(&(held.phase, held.durable, &held.ack_to, &held.origin));
        }
        to.end();
        for (hop, retained) in self.retained.iter() {
            to.put(hop).put(&retained.id).state(&retained.state);
        }
        to.end();
        for hop in self.done.iter() {
            to.put(hop);
        }
        to.end();
        for (name, job) in self.jobs.iter() {
            to.put(name).put(&(job.fence, job.incarnation, job.conn, &job.recalled, &job.ended));
        }
        to.end();
        to.put(&self.queue.running);
        for (id, node) in &self.queue.nodes {
            to.put(id).put(&node.waiting.values().collect::<Vec<_>>()).put(&node.running);
        }
        to.end();
        for (hop, forward) in &self.forwards.forwards {
            to.put(hop).put(&(&forward.dest, &forward.id, forward.wait)).state(&forward.state);
            to.due(forward.timer, now);
        }
        to.put(&self.forwards.sent_as);
        for (dest, peer) in &self.forwards.peers {
            to.put(dest).put(&peer.link).put(&peer.waiting.values().collect::<Vec<_>>());
            to.put(&peer.flying.values().collect::<Vec<_>>());
        }
        to.end();
        to.put(&self.pending.values().collect::<Vec<_>>());
        to.due(self.progress_at, now);
    }

    /// The hops that this agent believes it may run: queued, or under way.
    pub(in crate::chain) fn may_run(&self) -> impl Iterator<Item = &HopId> {
        self.held
            .iter()
            .filter(|(_, held)| matches!(held.phase, Phase::Queued | Phase::Running))
            .map(|(hop, _)| hop)
    }

    /// Whether it keeps a state of this chain.
    pub(in crate::chain) fn keeps(&self, chain: &ChainId) -> bool {
        let held = self.held.keys().any(|hop| ChainId::of_hop(hop) == *chain);
        held || self.retained.of_chain(chain).next().is_some()
    }

    /// Whether this hop's epoch, chain or job is closed here.
    pub(in crate::chain) fn is_fenced(&self, hop: &HopId) -> bool {
        self.jobs.refusal(hop).is_some()
    }
}
