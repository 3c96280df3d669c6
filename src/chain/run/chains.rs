//! Chains on their way: sent, reported, returned, given up.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::record::SettleError;
use super::{Backoff, LiveChain, RunEffect, RunMachine};
use crate::chain::job::Target;
use crate::chain::message::{ChainId, EndReason, Message, Recalled, Refuse, RefuseReason};
use crate::chain::state::{HopId, JobState, KeyError, Tally};
use crate::core::task::Millis;

/// What is known of a live chain.
#[derive(Debug, Clone)]
pub(super) struct Watch {
    /// The version that has it: nothing is sent before that is durable.
    pub(super) since: u64,
    /// When somebody last spoke of it.
    pub(super) heard_at: Millis,
    /// When it is sent, or its agents attached to, again.
    pub(super) nudge: Backoff,
    /// The highest hop that an agent has reported to hold.
    pub(super) position: u32,
    /// The most units that were reported as done, and the counters that came with them.
    pub(super) units: u64,
    pub(super) tally: Tally,
    pub(super) recall: Option<Recall>,
}

/// A chain that is being given up.
#[derive(Debug, Clone)]
pub(super) struct Recall {
    /// Who has not answered.
    pub(super) waiting: BTreeSet<String>,
    pub(super) best: Option<Arc<JobState>>,
    pub(super) until: Millis,
    pub(super) again: Backoff,
}

impl RunMachine {
    /// Chains on their way: what is due for them.
    pub(super) fn step_chains(&mut self, now: Millis, out: &mut Vec<RunEffect>) {
        let mut give_up = Vec::new();
        let mut ended = Vec::new();
        let attach = self.attach_message();
        for chain in &self.record.live {
            let key = (chain.epoch, chain.chain);
            let Some(watch) = self.watches.get_mut(&key) else { continue };
            let id = ChainId { job: self.record.spec.id.clone(), epoch: chain.epoch, chain: chain.chain };
            if let Some(recall) = &mut watch.recall {
                if recall.waiting.is_empty() || now >= recall.until {
                    ended.push(key);
                } else if recall.again.is_due(now, &self.config) {
                    out.extend(recall.waiting.iter().map(|agent| RunEffect::Send {
                        to: agent.clone(),
                        message: Message::Recall(id.clone()),
                    }));
                }
            } else if now >= watch.heard_at.saturating_add(self.config.hop_timeout) {
                give_up.push(key);
            } else if watch.since <= self.durable && watch.nudge.is_due(now, &self.config) {
                match first_send(chain) {
                    Some(effect) => {
                        // An agent that is full of what has been superseded learns so by the attach.
                        if let RunEffect::Send { to, .. } = &effect {
                            out.push(RunEffect::Send { to: to.clone(), message: attach.clone() });
                        }
                        out.push(effect);
                    }
                    // A chain that nobody speaks of may be held by an agent that has missed the attach.
                    None if now >= watch.heard_at.saturating_add(self.config.hop_timeout / 4) => {
                        let agents: BTreeSet<&String> = chain.agents.iter().collect();
                        out.extend(
                            agents
                                .into_iter()
                                .map(|agent| RunEffect::Send { to: agent.clone(), message: attach.clone() }),
                        );
                    }
                    None => {}
                }
            }
        }
        if !self.lost.is_empty() && self.knock.is_due(now, &self.config) {
            out.extend(
                self.lost.iter().map(|agent| RunEffect::Send { to: agent.clone(), message: attach.clone() }),
            );
        }
        for key in give_up {
            self.begin_recall(now, key);
        }
        for key in ended {
            self.give_up(now, key);
        }
    }

    pub(super) fn watch(&mut self, now: Millis, chain: &LiveChain) {
        let nudge = Backoff::new(now, &self.config);
        let watch = Watch {
            since: self.version,
            heard_at: now,
            nudge,
            position: 0,
            units: 0,
            tally: Tally::default(),
            recall: None,
        };
        self.watches.insert((chain.epoch, chain.chain), watch);
    }

    pub(super) fn acknowledged(&mut self, now: Millis, from: &str, hop: &HopId) {
        let Some(index) = self.unsent(from, hop) else { return };
        self.change().live[index].unsent = None;
        if let Some(watch) = self.watches.get_mut(&(hop.epoch, hop.chain)) {
            watch.heard_at = now;
        }
    }

    /// The live chain whose first state has this id and went to this agent.
    pub(super) fn unsent(&self, agent: &str, hop: &HopId) -> Option<usize> {
        self.record.live.iter().position(|chain| {
            chain.agents.first().is_some_and(|first| first == agent)
                && chain.unsent.as_ref().is_some_and(|state| state.hop_id() == *hop)
        })
    }

    pub(super) fn refused(&mut self, now: Millis, from: &str, refuse: Refuse) {
        let Refuse { hop, reason } = refuse;
        if self.unsent(from, &hop).is_none() {
            return;
        }
        match reason {
            RefuseReason::Busy => {
                if let Some(watch) = self.watches.get_mut(&(hop.epoch, hop.chain)) {
                    watch.heard_at = now;
                }
            }
            RefuseReason::StaleEpoch { .. } => self.give_up(now, (hop.epoch, hop.chain)),
            RefuseReason::Ended => {
                let reason = format!("agent {from} knows this job as ended; a job's id is used once");
                self.begin_end(now, EndReason::Failed, Some(reason));
            }
            RefuseReason::TooLarge { limit } => {
                let reason = format!("the job state is over agent {from}'s limit of {limit} bytes");
                self.begin_end(now, EndReason::Failed, Some(reason));
            }
        }
    }

    /// A chain has come to its end.
    pub(super) fn returned(&mut self, now: Millis, from: String, state: &JobState, out: &mut Vec<RunEffect>) {
        let hop = state.hop_id();
        let key = (state.epoch, state.chain);
        if self.record.ending.is_some() {
            // Nothing is promised before the end is durable; the agent will ask again.
            if self.ending.as_ref().is_some_and(|ending| ending.version <= self.durable) {
                let message = Message::refuse(hop, RefuseReason::Ended);
                out.push(RunEffect::Send { to: from, message });
            }
            return;
        }
        if let Some(index) = self.live(key) {
            self.change().returned.insert(key);
            self.settle(now, key, index, state, &from);
        } else if !self.record.returned.contains(&key) {
            // The agent forgets it then, so that the chain was given up must be durable first.
            let message = Message::refuse(hop, RefuseReason::StaleEpoch { current: self.fence });
            return self.when_durable(RunEffect::Send { to: from, message });
        }
        self.when_durable(RunEffect::Send { to: from, message: Message::ack(vec![hop]) });
    }

    /// Folds the last state of a live chain.
    pub(super) fn settle(
        &mut self,
        now: Millis,
        key: (u32, u16),
        index: usize,
        state: &JobState,
        from: &str,
    ) {
        self.watches.remove(&key);
        self.idle_since = now;
        match self.change().settle(index, state) {
            Ok(()) => {}
            Err(SettleError::Nonsense(what)) => {
                let reason = format!("what {from} returned of chain {} of plan {} {what}", key.1, key.0);
                let error = KeyError { key: Vec::new(), node: String::new(), reason };
                self.change().settled.note_error(error);
            }
            Err(SettleError::Combine(error)) => {
                return self.begin_end(now, EndReason::Failed, Some(error.to_string()));
            }
        }
        if let Some(failed) = &state.failed {
            self.begin_end(now, EndReason::Failed, Some(failure_text(state, failed)));
        }
    }

    /// Asks for the newest state of a chain.
    pub(super) fn begin_recall(&mut self, now: Millis, key: (u32, u16)) {
        let Some(index) = self.live(key) else { return };
        let chain = &self.record.live[index];
        let Some(watch) = self.watches.get_mut(&key) else { return };
        let waiting = chain.agents.iter().filter(|agent| !self.lost.contains(*agent)).cloned().collect();
        watch.recall = Some(Recall {
            waiting,
            best: chain.unsent.clone(),
            until: now.saturating_add(self.config.recall_timeout),
            again: Backoff { at: now, wait: self.config.resend_min / 2 },
        });
    }

    pub(super) fn recalled(&mut self, now: Millis, from: &str, recalled: Recalled) {
        let Recalled { chain, state } = recalled;
        let key = (chain.epoch, chain.chain);
        let Some(recall) = self.watches.get_mut(&key).and_then(|watch| watch.recall.as_mut()) else { return };
        if !recall.waiting.remove(from) {
            return;
        }
        let rank = |state: &JobState| (state.position, state.units_done());
        if let Some(state) = state.filter(|state| ChainId::of(state) == chain)
            && recall.best.as_ref().is_none_or(|best| rank(best) < rank(&state))
        {
            recall.best = Some(state);
        }
        if recall.waiting.is_empty() {
            self.give_up(now, key);
        }
    }

    /// Ends a live chain with what is known of it.
    pub(super) fn give_up(&mut self, now: Millis, key: (u32, u16)) {
        let Some(index) = self.live(key) else { return };
        let recall = self.watches.remove(&key).and_then(|watch| watch.recall);
        let (best, silent) = recall.map(|recall| (recall.best, recall.waiting)).unwrap_or_default();
        // Who has not answered is planned around until it is heard of again.
        self.lost.extend(silent);
        match best {
            Some(state) => self.settle(now, key, index, &state, "an agent"),
            None => {
                self.change().live.swap_remove(index);
                self.idle_since = now;
            }
        }
    }

    pub(super) fn agent_lost(&mut self, now: Millis, agent: String) {
        let mut affected = Vec::new();
        for chain in &self.record.live {
            let key = (chain.epoch, chain.chain);
            let Some(watch) = self.watches.get_mut(&key) else { continue };
            if let Some(recall) = &mut watch.recall {
                recall.waiting.remove(&agent); // whether that was the last one is seen in the next step
                continue;
            }
            // Hops before the highest reported one are done; of a walk nobody knows where it goes.
            let walk = matches!(self.record.spec.target, Target::Walk(_));
            let from = if walk { 0 } else { (watch.position as usize).min(chain.agents.len()) };
            if chain.agents[from..].contains(&agent) {
                affected.push(key);
            }
        }
        self.lost.insert(agent);
        for key in affected {
            self.begin_recall(now, key);
        }
    }

    /// A connection is up: whatever was sent while it was not is sent again.
    pub(super) fn connected(&mut self, agent: &str, out: &mut Vec<RunEffect>) {
        self.lost.remove(agent);
        let mut send = |message| out.push(RunEffect::Send { to: agent.to_owned(), message });
        if let Some(ending) = &self.ending {
            if ending.version <= self.durable && ending.waiting.contains(agent) {
                send(self.end_message());
            }
            return;
        }
        if self.record.over || !self.record.agents.contains(agent) {
            return;
        }
        send(self.attach_message());
        for chain in &self.record.live {
            let Some(watch) = self.watches.get(&(chain.epoch, chain.chain)) else { continue };
            if watch.since > self.durable {
                continue;
            }
            match &watch.recall {
                Some(recall) if recall.waiting.contains(agent) => {
                    let job = self.record.spec.id.clone();
                    send(Message::Recall(ChainId { job, epoch: chain.epoch, chain: chain.chain }));
                }
                Some(_) => {}
                None if chain.agents.first().is_some_and(|first| first == agent) => {
                    if let Some(state) = &chain.unsent {
                        send(Message::State(state.clone()));
                    }
                }
                None => {}
            }
        }
    }
}

/// What brings a planned chain to its first agent.
pub(super) fn first_send(chain: &LiveChain) -> Option<RunEffect> {
    let to = chain.agents.first()?.clone();
    let state = chain.unsent.clone()?;
    Some(RunEffect::Send { to, message: Message::State(state) })
}

/// Why a chain has failed: on which node, by its address, and at which key.
fn failure_text(state: &JobState, error: &KeyError) -> String {
    let mut text = error.reason.clone();
    if !error.key.is_empty() {
        text = format!("key \"{}\": {text}", error.key.escape_ascii());
    }
    if !error.node.is_empty() {
        let address = state.nodes.iter().find(|node| node.id == error.node).map(|node| &node.redis);
        let address = address.filter(|address| !address.is_empty());
        text = format!("node {}: {text}", address.unwrap_or(&error.node));
    }
    text
}
