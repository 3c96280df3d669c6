//! The agents' actors: outbox, links, running hops.

use std::sync::Arc;

use super::{Event, Work, World, address, number};
use crate::chain::hop::{HopEffect, HopInput, Link, Record};
use crate::chain::message::EndReason;
use crate::chain::state::{HopId, JobState};

impl World {
    pub(super) fn hop_input(&mut self, agent: usize, input: HopInput) {
        let mut effects = Vec::new();
        let Some(machine) = &mut self.agents[agent].machine else { return };
        machine.handle(self.now, input, &mut effects);
        self.hop_effects(agent, effects);
    }

    pub(super) fn hop_effects(&mut self, agent: usize, effects: Vec<HopEffect>) {
        for effect in effects {
            if self.dies_here(agent) {
                return;
            }
            if let Some(trace) = &mut self.trace {
                trace.push(format!("{:>6}   agent {agent}: {effect:.300?}", self.now));
            }
            let life = self.parties[agent].life;
            match effect {
                HopEffect::Persist { ticket, record } => {
                    self.agents[agent].log.push(record);
                    let (upto, delay) = (self.agents[agent].log.len(), self.rng.i64(1..15));
                    self.schedule(delay, Event::Synced { party: agent, life, ticket, upto });
                }
                HopEffect::Note { record } => {
                    if let Record::Done { hop } = &record {
                        self.check_copies(agent, hop);
                    }
                    self.agents[agent].log.push(record);
                }
                HopEffect::Send { to: Link::Conn(conn), message } => {
                    self.check_promise(agent, &message);
                    self.send(agent, conn, message);
                }
                HopEffect::Send { to: Link::Agent(address), message } => {
                    let to = number(&address);
                    match self.parties[agent].dialled.get(&to) {
                        Some(conn) => self.send(agent, *conn, message),
                        None => self.dial(agent, to),
                    }
                }
                HopEffect::Run { hop, state } => {
                    let work = Work { state: JobState::clone(&state), aborted: false, since_checkpoint: 0 };
                    if self.agents[agent].running.insert(hop.clone(), work).is_some() {
                        self.violation = Some(format!("agent {agent} runs {hop:?} twice at a time"));
                    }
                    self.go_on(agent, hop);
                }
                HopEffect::Abort { hop } => {
                    if let Some(work) = self.agents[agent].running.get_mut(&hop) {
                        work.aborted = true;
                    }
                }
            }
        }
        self.arm(agent);
        self.compact(agent);
    }

    /// The outbox starts a new segment now and then.
    pub(super) fn compact(&mut self, agent: usize) {
        let state = &mut self.agents[agent];
        if let Some(machine) = &state.machine
            && state.log.len() > 24
            && state.synced == state.log.len()
        {
            state.log = machine.snapshot();
            state.synced = state.log.len();
        }
    }

    pub(super) fn go_on(&mut self, agent: usize, hop: HopId) {
        let (delay, life) = (self.rng.i64(1..6), self.parties[agent].life);
        self.schedule(delay, Event::Work { agent, life, hop });
    }

    /// One unit of a running hop.
    pub(super) fn work(&mut self, agent: usize, hop: HopId) {
        let Some(work) = self.agents[agent].running.get_mut(&hop) else { return };
        // A unit that was under way when the abort came still happens.
        if work.aborted && self.rng.bool() {
            self.agents[agent].running.remove(&hop);
            return self.hop_input(agent, HopInput::Stopped { hop });
        }
        if let Some(outcome) = &self.outcome
            && outcome.status != EndReason::Finished
            && !outcome.unconfirmed.contains(&address(agent))
        {
            self.violation = Some(format!("agent {agent} runs a unit of {hop:?} after {outcome:?}"));
        }
        let more = self.cluster.run_next(&mut work.state);
        if !more {
            // cannot fail: it was there above
            let work = self.agents[agent].running.remove(&hop).unwrap();
            return self.hop_input(agent, HopInput::Ran { hop, state: Arc::new(work.state) });
        }
        work.since_checkpoint += 1;
        if work.since_checkpoint >= 2 && self.rng.bool() {
            work.since_checkpoint = 0;
            let state = Arc::new(work.state.clone());
            self.go_on(agent, hop.clone());
            return self.hop_input(agent, HopInput::Checkpoint { hop, state });
        }
        self.go_on(agent, hop);
    }
}
