//! The coordinator's actor: store, planner, links.

use super::{AGENTS, COORDINATOR, Event, World, address, number};
use crate::chain::run::{PartKey, RunEffect, RunInput};

impl World {
    pub(super) fn run_input(&mut self, input: RunInput) {
        let mut effects = Vec::new();
        let Some(machine) = &mut self.run else { return };
        machine.handle(self.now, input, &mut effects);
        self.run_effects(effects);
    }

    pub(super) fn run_effects(&mut self, effects: Vec<RunEffect>) {
        for effect in effects {
            if self.dies_here(COORDINATOR) {
                return;
            }
            if let Some(trace) = &mut self.trace {
                trace.push(format!("{:>6}   coordinator: {effect:.300?}", self.now));
            }
            let life = self.parties[COORDINATOR].life;
            match effect {
                RunEffect::Persist { ticket, record } => {
                    assert!(self.writing.is_none(), "two writes at a time");
                    self.writing = Some((ticket, record));
                    let delay = self.rng.i64(1..20);
                    self.schedule(delay, Event::Synced { party: COORDINATOR, life, ticket, upto: 0 });
                }
                RunEffect::NeedPlan { epoch, open, sequence, acc, lost } => {
                    let there: Vec<String> =
                        (0..AGENTS).map(address).filter(|agent| !lost.contains(agent)).collect();
                    let input = if there.is_empty() || self.rng.u8(..20) == 0 {
                        let reason = "the cluster does not answer".to_owned();
                        RunInput::PlanFailed { epoch, reason, permanent: false }
                    } else {
                        let from = (sequence, acc);
                        let (chains, uncovered) =
                            self.cluster.plan(epoch, &open, from, &there, &mut self.rng);
                        RunInput::Planned { epoch, chains, uncovered }
                    };
                    let delay = self.rng.i64(1..10);
                    self.schedule(delay, Event::Planned { life, input: Box::new(input) });
                }
                RunEffect::Verify { parts } => {
                    self.verifying = true;
                    let gone: Vec<PartKey> = parts
                        .into_iter()
                        .filter(|key| {
                            let node: usize = key.node[1..].parse().unwrap();
                            self.cluster.replication_id(node) != key.replication_id
                        })
                        .collect();
                    self.verifying = gone.is_empty();
                    let input = Box::new(RunInput::Verified { gone });
                    self.schedule(1, Event::Planned { life, input });
                }
                RunEffect::Send { to, message } => {
                    self.check_folded(&message);
                    let to = number(&to);
                    match self.parties[COORDINATOR].dialled.get(&to) {
                        Some(conn) => self.send(COORDINATOR, *conn, message),
                        None => self.dial(COORDINATOR, to),
                    }
                }
                RunEffect::Finished { outcome } => {
                    if self.outcome.as_ref().is_some_and(|before| *before != outcome) {
                        self.violation = Some(format!("first {:?}, then {outcome:?}", self.outcome));
                    }
                    self.outcome = Some(outcome);
                }
            }
        }
        self.arm(COORDINATOR);
    }
}
