//! The end of a run: decided once, made durable, told, confirmed.

use std::collections::BTreeSet;

use super::{Backoff, RunEffect, RunMachine, RunOutcome};
use crate::chain::message::{End, EndReason, Message};
use crate::core::task::Millis;

/// The end that is being told.
#[derive(Debug, Clone)]
pub(super) struct Ending {
    pub(super) version: u64,
    pub(super) waiting: BTreeSet<String>,
    pub(super) confirmed: BTreeSet<String>,
    pub(super) until: Millis,
    pub(super) again: Backoff,
}

impl RunMachine {
    /// Decides on the end. The first decision stands.
    pub(super) fn begin_end(&mut self, now: Millis, status: EndReason, reason: Option<String>) {
        if self.record.ending.is_some() {
            return;
        }
        let partial = !self.record.is_complete() || self.record.settled.tally.errors > 0;
        let (units, tally) = (self.units_done(), self.tally());
        let record = self.change();
        record.ending = Some(RunOutcome { status, reason, partial, units, tally, unconfirmed: Vec::new() });
        record.live.clear();
        self.watches.clear();
        self.planning = false;
        self.tell_end(now);
        let message = self.end_message();
        for agent in self.record.agents.clone() {
            self.when_durable(RunEffect::Send { to: agent, message: message.clone() });
        }
        self.urgent = self.version;
    }

    /// From now on the agents are waited for.
    pub(super) fn tell_end(&mut self, now: Millis) {
        let well = self.record.ending.as_ref().is_some_and(|ending| ending.status == EndReason::Finished);
        let timeout = if well { self.config.finish_timeout } else { self.config.end_timeout };
        self.ending = Some(Ending {
            version: self.version,
            // Lost ones too: a lost agent may only be cut off, and still be running.
            waiting: self.record.agents.clone(),
            confirmed: BTreeSet::new(),
            until: now.saturating_add(timeout),
            again: Backoff::new(now, &self.config),
        });
    }

    pub(super) fn step_ending(&mut self, now: Millis, out: &mut Vec<RunEffect>) {
        let message = self.end_message();
        let Some(ending) = &mut self.ending else { return };
        if self.record.over || self.durable < ending.version {
            return;
        }
        if !ending.waiting.is_empty() && now < ending.until {
            if ending.again.is_due(now, &self.config) {
                out.extend(
                    ending
                        .waiting
                        .iter()
                        .map(|agent| RunEffect::Send { to: agent.clone(), message: message.clone() }),
                );
            }
            return;
        }
        let confirmed = std::mem::take(&mut ending.confirmed);
        let record = self.change();
        record.over = true;
        let unconfirmed = record.agents.difference(&confirmed).cloned().collect();
        let Some(outcome) = &mut record.ending else { return };
        outcome.unconfirmed = unconfirmed;
        let outcome = outcome.clone();
        self.when_durable(RunEffect::Finished { outcome });
    }

    pub(super) fn agent_ended(&mut self, agent: String) {
        if let Some(ending) = &mut self.ending {
            ending.waiting.remove(&agent);
            ending.confirmed.insert(agent);
        }
    }

    pub(super) fn end_message(&self) -> Message {
        let why = self.record.ending.as_ref().map_or(EndReason::Failed, |ending| ending.status);
        Message::End(End { job: self.record.spec.id.clone(), incarnation: self.config.incarnation, why })
    }
}
