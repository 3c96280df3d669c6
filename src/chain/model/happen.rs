//! What then happens.

use std::sync::Arc;

use super::actions::{Action, Ends, Job};
use super::canon::intern;
use super::effects::{plan, run_unit};
use super::world::{Bounds, COORDINATOR, World, address};
use crate::chain::hop::{HopInput, HopMachine};
use crate::chain::run::{Goal, RunInput, RunMachine, RunRecord};
use crate::chain::state::JobState;

impl Job {
    pub(super) fn happen(&self, world: &mut World, action: &Action) {
        let bounds = &self.bounds;
        match action {
            Action::Deliver { conn, back, place, keep } => {
                let of = Arc::make_mut(world.conns.get_mut(conn).unwrap());
                let packets = if *back { &mut of.back } else { &mut of.there };
                let packet = packets[*place].clone();
                if *keep {
                    world.left.double -= 1;
                } else {
                    packets.remove(*place);
                    world.left.overtake -= u8::from(*place > 0);
                }
                world.deliver(bounds, *conn, *back, &packet);
            }
            Action::Lose { conn, back } => {
                let of = Arc::make_mut(world.conns.get_mut(conn).unwrap());
                if *back { &mut of.back } else { &mut of.there }.remove(0);
                world.left.lose -= 1;
            }
            Action::Dialled(from, to) => {
                world.dialling.remove(&(*from, *to));
                if world.is_up(*to) && !world.conns.contains_key(&(*from, *to)) {
                    world.connect(bounds, *from, *to);
                }
            }
            Action::Cut(from, to) => {
                world.left.cut -= 1;
                world.cut(bounds, *from, *to);
            }
            Action::Synced(agent) => {
                let config = bounds.hop_config(*agent);
                let of = world.agent(*agent);
                let (ticket, upto) = of.syncs.remove(0);
                of.synced = upto;
                if let Err(what) = of.compact(&config) {
                    world.violation = Some(what);
                }
                world.hop_input(bounds, *agent, HopInput::Persisted { up_to: ticket });
            }
            Action::Written => {
                let of = world.coordinator();
                let (ticket, record) = of.writing.take().unwrap();
                of.disk = Some(record);
                world.run_input(RunInput::Persisted { ticket });
            }
            Action::Planned => {
                let asked = world.coordinator().asked.take().unwrap();
                world.run_input(plan(bounds, &self.spec, &asked));
            }
            Action::Unit { agent, hop, refuse } => {
                world.left.refuse -= u8::from(*refuse);
                let work = world.agent(*agent).running.get_mut(hop).unwrap();
                let mut state = JobState::clone(&work.state);
                let more = run_unit(&mut state, *refuse);
                let state = intern(Arc::new(state));
                let hop = hop.clone();
                if more {
                    work.state = state.clone();
                    world.hop_input(bounds, *agent, HopInput::Checkpoint { hop, state });
                } else {
                    world.agent(*agent).running.remove(&hop);
                    world.hop_input(bounds, *agent, HopInput::Ran { hop, state });
                }
            }
            Action::Stopped { agent, hop } => {
                world.agent(*agent).running.remove(hop);
                world.hop_input(bounds, *agent, HopInput::Stopped { hop: hop.clone() });
            }
            Action::Alarm { party, early } => {
                world.left.early -= u8::from(*early);
                if *party == COORDINATOR {
                    let of = world.coordinator();
                    of.now = of.machine.as_ref().and_then(RunMachine::alarm_at).unwrap().max(of.now);
                    world.run_input(RunInput::Tick);
                } else {
                    let of = world.agent(*party);
                    of.now = of.machine.as_ref().and_then(HopMachine::alarm_at).unwrap().max(of.now);
                    world.hop_input(bounds, *party, HopInput::Tick);
                }
            }
            Action::Crash { party, kept } => self.crash(world, *party, *kept),
            Action::Restart(party) => self.restart(world, *party),
            Action::Lost(agent) => {
                world.left.false_alarm -= u8::from(world.is_up(*agent));
                world.coordinator().told.insert(*agent);
                world.run_input(RunInput::AgentLost { agent: address(*agent) });
            }
            Action::Heard(agent) => {
                world.coordinator().told.remove(agent);
                world.run_input(RunInput::Connected { agent: address(*agent) });
            }
            Action::Cancel => {
                world.left.cancel -= 1;
                world.run_input(RunInput::Cancel);
            }
        }
    }

    fn crash(&self, world: &mut World, party: usize, kept: usize) {
        world.crashes += 1;
        if party == COORDINATOR {
            world.left.coordinator_crash -= 1;
            let of = world.coordinator();
            of.machine = None;
            of.asked = None;
            of.told.clear();
            if let Some((_, record)) = of.writing.take()
                && kept > 0
            {
                of.disk = Some(record);
            }
        } else {
            world.left.agent_crash -= 1;
            let of = world.agent(party);
            of.machine = None;
            of.running.clear();
            of.syncs.clear();
            of.log.truncate(of.synced + kept);
            of.synced = of.log.len();
            if let Err(what) = of.compact(&self.bounds.hop_config(party)) {
                world.violation = Some(what);
            }
        }
        world.dialling.retain(|(from, _)| *from != party);
        let conns: Vec<Ends> =
            world.conns.keys().filter(|(from, to)| *from == party || *to == party).copied().collect();
        for (from, to) in conns {
            world.cut(&self.bounds, from, to);
        }
    }

    pub(super) fn restart(&self, world: &mut World, party: usize) {
        if party == COORDINATOR {
            let mut effects = Vec::new();
            let of = world.coordinator();
            of.machine = Some(match &of.disk {
                Some(disk) => {
                    RunMachine::recover(Bounds::run_config(), RunRecord::clone(disk), of.now, &mut effects)
                }
                None => {
                    let goal = Goal::Slots((0..self.bounds.units).collect());
                    RunMachine::start(Bounds::run_config(), self.spec.clone(), goal, of.now, &mut effects)
                }
            });
            world.run_effects(effects);
        } else {
            let mut effects = Vec::new();
            let config = self.bounds.hop_config(party);
            let of = world.agent(party);
            of.machine = Some(HopMachine::recover(config, of.log.iter().cloned(), of.now, &mut effects));
            world.hop_effects(&self.bounds, party, effects);
        }
    }
}
