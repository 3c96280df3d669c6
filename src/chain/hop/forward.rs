//! States that are on their way to somebody else and not acknowledged yet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{HopEffect, Link};
use crate::chain::message::Message;
use crate::chain::state::{HopId, JobState};
use crate::core::task::Millis;

/// To whom a state goes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Dest {
    /// The agent at this address.
    Agent(String),
    /// Whoever has attached to this job.
    Coordinator(String),
}

/// One state on its way.
#[derive(Debug, Clone)]
pub(super) struct Forward {
    pub(super) dest: Dest,
    /// The id under which the receiver takes it.
    pub(super) id: HopId,
    pub(super) state: Arc<JobState>,
    /// Its place in its peer's order.
    order: u64,
    /// How long to wait after the next time it is sent, or refused as busy.
    pub(super) wait: Millis,
    pub(super) timer: Option<Millis>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Peer {
    /// Its connection, when it is up.
    pub(super) link: Option<Link>,
    /// Not sent over this connection yet. What a busy peer has refused is in neither map, only under a timer.
    pub(super) waiting: BTreeMap<u64, HopId>,
    /// Sent, and neither acknowledged nor refused: at most a window's worth.
    pub(super) flying: BTreeMap<u64, HopId>,
}

#[derive(Debug, Clone)]
pub(super) struct Forwards {
    window: usize,
    resend_min: Millis,
    resend_max: Millis,
    /// By the id under which the state is held here.
    pub(super) forwards: BTreeMap<HopId, Forward>,
    /// By the id under which it was sent. More than one only when a hop was run again after a crash.
    pub(super) sent_as: BTreeMap<HopId, Vec<HopId>>,
    pub(super) peers: BTreeMap<Dest, Peer>,
    timers: BTreeSet<(Millis, HopId)>,
    orders: u64,
}

impl Forwards {
    pub(super) fn new(window: usize, resend_min: Millis, resend_max: Millis) -> Self {
        Forwards {
            window: window.max(1),
            resend_min,
            resend_max,
            forwards: BTreeMap::new(),
            sent_as: BTreeMap::new(),
            peers: BTreeMap::new(),
            timers: BTreeSet::new(),
            orders: 0,
        }
    }

    /// A hop's state is to go to `dest`.
    pub(super) fn add(
        &mut self,
        now: Millis,
        hop: HopId,
        dest: Dest,
        state: Arc<JobState>,
        out: &mut Vec<HopEffect>,
    ) {
        let id = state.hop_id();
        let order = self.orders;
        self.orders += 1;
        self.sent_as.entry(id.clone()).or_default().push(hop.clone());
        let peer = self.peers.entry(dest.clone()).or_default();
        peer.waiting.insert(order, hop.clone());
        let down = peer.link.is_none();
        let forward = Forward { dest: dest.clone(), id, state, order, wait: self.resend_min, timer: None };
        self.forwards.insert(hop.clone(), forward);
        if down {
            self.knock(now, &hop, out);
        } else {
            self.pump(now, &dest, out);
        }
    }

    /// A peer can be reached over this link: all that is not acknowledged goes out at once.
    pub(super) fn up(&mut self, now: Millis, dest: Dest, link: Link, out: &mut Vec<HopEffect>) {
        self.down(now, &dest);
        self.peers.entry(dest.clone()).or_default().link = Some(link);
        for hop in self.hops_to(&dest) {
            if let Some(forward) = self.forwards.get_mut(&hop) {
                forward.wait = self.resend_min;
            }
        }
        self.pump(now, &dest, out);
    }

    /// A peer cannot be reached any more.
    pub(super) fn down(&mut self, now: Millis, dest: &Dest) {
        let Some(peer) = self.peers.get_mut(dest) else { return };
        peer.link = None;
        let mut flying = std::mem::take(&mut peer.flying);
        peer.waiting.append(&mut flying);
        if peer.waiting.is_empty() {
            self.peers.remove(dest);
        }
        // An agent that is not connected is dialled by sending to it, so each needs a timer.
        if matches!(dest, Dest::Agent(_)) {
            for hop in self.hops_to(dest) {
                if self.forwards.get(&hop).is_some_and(|forward| forward.timer.is_none()) {
                    self.arm(now, &hop);
                }
            }
        }
    }

    /// The hops whose state was sent under this id to the one who speaks over `from`, no longer on their way.
    pub(super) fn take(
        &mut self,
        now: Millis,
        id: &HopId,
        from: &Link,
        out: &mut Vec<HopEffect>,
    ) -> Vec<(HopId, Forward)> {
        let hops = self.sent_as.get(id).cloned().unwrap_or_default();
        let mut taken = Vec::new();
        for hop in hops {
            if self.is_from(&hop, from)
                && let Some(forward) = self.remove(now, &hop, out)
            {
                taken.push((hop, forward));
            }
        }
        taken
    }

    /// The receiver has no room: later again.
    pub(super) fn busy(&mut self, now: Millis, id: &HopId, from: &Link, out: &mut Vec<HopEffect>) {
        for hop in self.sent_as.get(id).cloned().unwrap_or_default() {
            if !self.is_from(&hop, from) {
                continue;
            }
            let Some(forward) = self.forwards.get_mut(&hop) else { continue };
            let dest = forward.dest.clone();
            if let Some(peer) = self.peers.get_mut(&dest) {
                peer.flying.remove(&forward.order);
                peer.waiting.remove(&forward.order);
            }
            self.arm(now, &hop);
            self.pump(now, &dest, out);
        }
    }

    /// A hop's state is not to be sent any more.
    pub(super) fn remove(&mut self, now: Millis, hop: &HopId, out: &mut Vec<HopEffect>) -> Option<Forward> {
        let forward = self.forwards.remove(hop)?;
        if let Some(timer) = forward.timer {
            self.timers.remove(&(timer, hop.clone()));
        }
        if let Some(hops) = self.sent_as.get_mut(&forward.id) {
            hops.retain(|other| other != hop);
            if hops.is_empty() {
                self.sent_as.remove(&forward.id);
            }
        }
        if let Some(peer) = self.peers.get_mut(&forward.dest) {
            peer.waiting.remove(&forward.order);
            peer.flying.remove(&forward.order);
            if peer.link.is_none() && peer.waiting.is_empty() {
                self.peers.remove(&forward.dest);
            }
        }
        self.pump(now, &forward.dest, out);
        Some(forward)
    }

    /// The held hop that was sent under this id, if one is on its way.
    pub(super) fn held_as(&self, id: &HopId) -> Option<HopId> {
        self.sent_as.get(id)?.first().cloned()
    }

    pub(super) fn tick(&mut self, now: Millis, out: &mut Vec<HopEffect>) {
        while let Some((at, hop)) = self.timers.first().cloned() {
            if at > now {
                break;
            }
            self.timers.pop_first();
            let Some(forward) = self.forwards.get_mut(&hop) else { continue };
            forward.timer = None;
            let (dest, order) = (forward.dest.clone(), forward.order);
            let peer = self.peers.entry(dest.clone()).or_default();
            match &peer.link {
                Some(link) if peer.flying.contains_key(&order) => {
                    out.push(HopEffect::Send {
                        to: link.clone(),
                        message: Message::State(forward.state.clone()),
                    });
                    self.arm(now, &hop);
                }
                Some(_) => {
                    peer.waiting.insert(order, hop);
                    self.pump(now, &dest, out);
                }
                None => {
                    peer.waiting.insert(order, hop.clone());
                    self.knock(now, &hop, out);
                }
            }
        }
    }

    pub(super) fn alarm_at(&self) -> Option<Millis> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Sends what waits for a peer, as far as the window allows.
    fn pump(&mut self, now: Millis, dest: &Dest, out: &mut Vec<HopEffect>) {
        loop {
            let Some(peer) = self.peers.get_mut(dest) else { return };
            let Some(link) = peer.link.clone() else { return };
            if peer.flying.len() >= self.window {
                return;
            }
            let Some((order, hop)) = peer.waiting.pop_first() else { return };
            let Some(forward) = self.forwards.get(&hop) else { continue };
            peer.flying.insert(order, hop.clone());
            out.push(HopEffect::Send { to: link, message: Message::State(forward.state.clone()) });
            self.arm(now, &hop);
        }
    }

    /// Sends to an agent that is not connected, so that it is dialled. A coordinator cannot be dialled.
    fn knock(&mut self, now: Millis, hop: &HopId, out: &mut Vec<HopEffect>) {
        let Some(Forward { dest: Dest::Agent(address), state, .. }) = self.forwards.get(hop) else { return };
        out.push(HopEffect::Send {
            to: Link::Agent(address.clone()),
            message: Message::State(state.clone()),
        });
        self.arm(now, hop);
    }

    fn arm(&mut self, now: Millis, hop: &HopId) {
        let Some(forward) = self.forwards.get_mut(hop) else { return };
        if let Some(timer) = forward.timer.take() {
            self.timers.remove(&(timer, hop.clone()));
        }
        let at = now.saturating_add(forward.wait);
        forward.timer = Some(at);
        forward.wait = forward.wait.saturating_mul(2).min(self.resend_max);
        self.timers.insert((at, hop.clone()));
    }

    fn is_from(&self, hop: &HopId, from: &Link) -> bool {
        self.forwards.get(hop).is_some_and(|forward| match &forward.dest {
            Dest::Agent(address) => matches!(from, Link::Agent(from) if from == address),
            dest => self.peers.get(dest).is_some_and(|peer| peer.link.as_ref() == Some(from)),
        })
    }

    fn hops_to(&self, dest: &Dest) -> Vec<HopId> {
        self.peers.get(dest).map(|peer| peer.waiting.values().cloned().collect()).unwrap_or_default()
    }
}
