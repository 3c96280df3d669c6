//! What must hold: every promise when it is made, the result at the end.

use std::collections::BTreeSet;

use super::{World, number};
use crate::chain::hop::Record;
use crate::chain::message::{EndReason, Message};
use crate::chain::run::{RunOutcome, RunRecord};
use crate::chain::sim::cluster::tokens_of;
use crate::chain::state::HopId;

impl World {
    pub(super) fn check(&self, outcome: &RunOutcome) -> Result<(), String> {
        let record = self.disk.as_ref().unwrap();
        let expected: &[EndReason] = match (self.cancel_asked, self.plan.poison) {
            (true, None) => &[EndReason::Cancelled, EndReason::Finished],
            (true, Some(_)) => &[EndReason::Cancelled, EndReason::Failed],
            (false, Some(_)) => &[EndReason::Failed],
            (false, None) => &[EndReason::Finished],
        };
        if !expected.contains(&outcome.status) {
            return Err(format!("unexpected end: {outcome:?}"));
        }
        if let Some(error) = record.settled.errors.first() {
            return Err(format!("a chain was refused: {}", error.reason));
        }
        if !(record.units_settled()..=u64::from(self.plan.units)).contains(&outcome.units) {
            return Err(format!("{} units done of {}", outcome.units, self.plan.units));
        }
        let mut tokens = tokens_of(&record.settled.acc);
        for part in &record.settled.parts {
            let folded: Vec<i64> = part.accs.iter().flat_map(tokens_of).collect();
            if folded.len() != part.slots.len() as usize {
                return Err(format!("the ledger and the values disagree: {part:?}"));
            }
            tokens.extend(folded);
        }
        if outcome.status == EndReason::Finished {
            if record.settled.tally.visited < u64::from(self.plan.units) {
                return Err(format!("tally {:?}", record.settled.tally));
            }
            return self.cluster.check(&tokens);
        }
        // There was time enough to tell everybody who is still there.
        if let Some(agent) = outcome.unconfirmed.iter().find(|agent| !self.parties[number(agent)].gone) {
            return Err(format!("{agent} is there and was not told of the end"));
        }
        let distinct: BTreeSet<&i64> = tokens.iter().collect();
        if distinct.len() != tokens.len() { Err(format!("folded twice: {tokens:?}")) } else { Ok(()) }
    }

    pub(super) fn check_stopped(&mut self, agent: usize, pending: usize) {
        if pending != 0 || !self.agents[agent].running.is_empty() {
            self.violation = Some(format!("agent {agent} said Ended and still holds {pending} hops"));
        }
    }

    /// When an agent forgets a hop, a later one of its chain is on somebody's disk, synced, or the chain is over.
    pub(super) fn check_copies(&mut self, agent: usize, done: &HopId) {
        let live = |record: &RunRecord| {
            record.live.iter().any(|chain| (chain.epoch, chain.chain) == (done.epoch, done.chain))
        };
        let known = self.run.as_ref().is_none_or(|run| live(run.record()));
        if !known || !self.disk.as_ref().is_some_and(|record| live(record)) {
            return;
        }
        let later = |hop: &HopId| (hop.epoch, hop.chain) == (done.epoch, done.chain) && hop.hop > done.hop;
        let copy = self.agents.iter().any(|agent| {
            agent.log[..agent.synced].iter().any(|record| match record {
                Record::Held { hop, .. } | Record::Moved { hop, .. } => later(hop),
                Record::Retained { hop, .. } | Record::Done { hop } => later(hop),
                Record::Fence { .. } | Record::Recalled { .. } | Record::Ended { .. } => false,
            })
        });
        if !copy {
            self.violation = Some(format!("agent {agent} forgets {done:?}, and nobody has it"));
        }
    }

    /// The same for the coordinator: a return is acknowledged when its fold is on the disk.
    pub(super) fn check_folded(&mut self, message: &Message) {
        let Message::Ack(ack) = message else { return };
        for hop in &ack.hops {
            let folded = self.disk.as_ref().is_some_and(|record| {
                record.returned.contains(&(hop.epoch, hop.chain)) || hop.epoch < record.fence()
            });
            if !folded {
                self.violation = Some(format!("the coordinator acknowledges {hop:?} too early"));
            }
        }
    }

    /// An acknowledgement lets the sender forget the hop: it must be on this agent's disk, synced.
    pub(super) fn check_promise(&mut self, agent: usize, message: &Message) {
        let Message::Ack(ack) = message else { return };
        let disk = &self.agents[agent].log[..self.agents[agent].synced];
        for hop in &ack.hops {
            let names = |record: &Record| match record {
                Record::Held { hop: other, .. }
                | Record::Retained { hop: other, .. }
                | Record::Done { hop: other } => other == hop,
                Record::Moved { from, hop: other, .. } => from == hop || other == hop,
                Record::Fence { .. } | Record::Recalled { .. } | Record::Ended { .. } => false,
            };
            if !disk.iter().any(names) {
                self.violation =
                    Some(format!("agent {agent} acknowledges {hop:?}, which a crash would lose"));
            }
        }
    }
}
