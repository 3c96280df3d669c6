//! The machine as the model checker tells its states apart: without what cannot change what it does next.

use super::{Backoff, RunEffect, RunMachine, RunRecord};
use crate::chain::model::Canon;
use crate::core::task::Millis;

impl RunMachine {
    /// A version counts only as durable, being written, or later. A time counts as how far off it is, and one that has
    /// come as come: all comparisons are of this kind.
    pub(in crate::chain) fn canon(&self, now: Millis, to: &mut Canon) {
        self.record.canon(to);
        let writing = self.persisting.map_or(self.durable, |(version, _)| version);
        let class = |version: u64| u8::from(version > self.durable) + u8::from(version > writing);
        let backoff = |again: &Backoff| ((again.at - now).max(0), again.wait);
        to.put(&(
            class(self.version),
            class(self.urgent),
            self.fence,
            self.persisting.map(|(_, fence)| fence),
        ));
        for (version, effect) in &self.after {
            to.put(&class(*version));
            match effect {
                RunEffect::Send { to: agent, message } => to.put(agent).message(message),
                other => to.put(&format!("{other:?}")),
            };
        }
        to.end();
        for (key, watch) in &self.watches {
            let silent = (watch.heard_at + self.config.hop_timeout - now).max(0);
            let soon = (watch.heard_at + self.config.hop_timeout / 4 - now).max(0);
            to.put(key).put(&(class(watch.since), silent, soon, backoff(&watch.nudge)));
            to.put(&(watch.position, watch.units, watch.recall.is_some()));
            if let Some(recall) = &watch.recall {
                to.put(&recall.waiting).put(&((recall.until - now).max(0), backoff(&recall.again)));
                if let Some(state) = &recall.best {
                    to.state(state);
                }
                to.end();
            }
        }
        to.end();
        let knock = (!self.lost.is_empty()).then(|| backoff(&self.knock));
        to.put(&self.lost).put(&knock).put(&(self.planning, self.verified, self.plan_trouble.is_some()));
        to.put(&self.verifying.as_ref().map(backoff));
        to.put(&(self.planned_at + self.config.regroup - now).max(0));
        to.put(&(self.idle_since + self.config.replan_max - now).max(0));
        if let Some(ending) = &self.ending {
            to.put(&class(ending.version)).put(&ending.waiting).put(&ending.confirmed);
            to.put(&((ending.until - now).max(0), backoff(&ending.again)));
        }
        to.due(self.alarm, now);
    }
}

impl RunRecord {
    /// Left out: what the model does not use or never changes (the job, reports, counters).
    pub(in crate::chain) fn canon(&self, to: &mut Canon) {
        to.put(&(self.epoch, self.units_at_plan, self.idle_plans, self.replans, self.over));
        for part in &self.settled.parts {
            to.put(&part.key).slots(&part.slots).put(&format!("{:?}", part.accs));
        }
        to.end();
        to.put(&self.settled.open).put(&self.settled.errors.len());
        for chain in &self.live {
            to.put(&(chain.epoch, chain.chain)).slots(&chain.slots).put(&chain.agents);
            if let Some(state) = &chain.unsent {
                to.state(state);
            }
            to.end();
        }
        to.end();
        to.put(&self.returned).put(&self.agents).put(&self.ending.as_ref().map(|end| format!("{end:?}")));
    }
}
