//! What the machines ask for, done to the world, and every promise checked when it is given.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::canon::intern;
use super::world::{
    AGENTS, Agent, Bounds, COORDINATOR, Conn, Coordinator, Packet, Work, World, address, number,
};
use crate::chain::hop::{HopEffect, HopInput, Link, Record};
use crate::chain::message::{ChainId, Message};
use crate::chain::run::{RunEffect, RunInput};
use crate::chain::slots::SlotSet;
use crate::chain::state::{Hop, HopId, JobState, Part, PlanNode};
use crate::chain::value::Value;

impl World {
    pub(super) fn agent(&mut self, agent: usize) -> &mut Agent {
        Arc::make_mut(&mut self.agents[agent])
    }

    pub(super) fn coordinator(&mut self) -> &mut Coordinator {
        Arc::make_mut(&mut self.coordinator)
    }

    pub(super) fn hop_input(&mut self, bounds: &Bounds, agent: usize, input: HopInput) {
        let mut effects = Vec::new();
        let of = self.agent(agent);
        let now = of.now;
        let Some(machine) = &mut of.machine else { return };
        machine.handle(now, input, &mut effects);
        self.hop_effects(bounds, agent, effects);
    }

    pub(super) fn hop_effects(&mut self, bounds: &Bounds, agent: usize, effects: Vec<HopEffect>) {
        for effect in effects {
            match effect {
                HopEffect::Persist { ticket, record } => {
                    self.check_first(agent, &record);
                    let of = self.agent(agent);
                    of.log.push(record);
                    of.syncs.push((ticket, of.log.len()));
                }
                HopEffect::Note { record } => self.agent(agent).log.push(record),
                HopEffect::Send { to, message } => {
                    if bounds.check_promises {
                        self.check_promise(agent, &message);
                    }
                    match to {
                        Link::Conn(id) => self.answer(agent, id, message),
                        Link::Agent(address) => self.send(agent, number(&address), message),
                    }
                }
                HopEffect::Run { hop, state } => {
                    self.check_run(agent, &hop);
                    let work = Work { state: intern(state), aborted: false };
                    if self.agent(agent).running.insert(hop.clone(), work).is_some() {
                        self.violation = Some(format!("agent {agent} runs {hop:?} twice at a time"));
                    }
                }
                HopEffect::Abort { hop } => {
                    if let Some(work) = self.agent(agent).running.get_mut(&hop) {
                        work.aborted = true;
                    }
                }
            }
        }
    }

    pub(super) fn run_input(&mut self, input: RunInput) {
        let mut effects = Vec::new();
        let of = self.coordinator();
        let now = of.now;
        let Some(machine) = &mut of.machine else { return };
        machine.handle(now, input, &mut effects);
        self.run_effects(effects);
    }

    pub(super) fn run_effects(&mut self, effects: Vec<RunEffect>) {
        for effect in effects {
            match effect {
                RunEffect::Persist { ticket, record } => self.coordinator().writing = Some((ticket, record)),
                RunEffect::NeedPlan { epoch, open, lost, .. } => {
                    self.coordinator().asked = Some((epoch, open, lost));
                }
                RunEffect::Verify { .. } => self.violation = Some("a job that reads is verified".into()),
                RunEffect::Send { to, message } => {
                    self.check_folded(&message);
                    self.send(COORDINATOR, number(&to), message);
                }
                RunEffect::Finished { outcome } => self.outcome = Some(outcome),
            }
        }
    }

    /// Over the connection that `from` has dialled, or it dials.
    fn send(&mut self, from: usize, to: usize, message: Message) {
        match self.conns.get_mut(&(from, to)) {
            Some(conn) => Arc::make_mut(conn).there.extend(packet(message)),
            None if from == to => self.violation = Some(format!("agent {from} sends to itself")),
            None => drop(self.dialling.insert((from, to))),
        }
    }

    /// Over a connection that somebody else has dialled, if it is still there.
    fn answer(&mut self, from: usize, id: u64, message: Message) {
        let conn = self.conns.iter_mut().find(|((_, to), conn)| *to == from && conn.id == id);
        if let Some((_, conn)) = conn {
            Arc::make_mut(conn).back.extend(packet(message));
        }
    }

    pub(super) fn connect(&mut self, bounds: &Bounds, from: usize, to: usize) {
        let dials = self.dials.entry((from, to)).or_default();
        *dials += 1;
        let id = *dials * 16 + (from * 4 + to) as u64;
        self.conns.insert((from, to), Arc::new(Conn { id, there: Vec::new(), back: Vec::new() }));
        if from == COORDINATOR {
            self.coordinator().told.remove(&to);
            self.run_input(RunInput::Connected { agent: address(to) });
        } else {
            self.hop_input(bounds, from, HopInput::Connected { link: Link::Agent(address(to)) });
        }
    }

    pub(super) fn cut(&mut self, bounds: &Bounds, from: usize, to: usize) {
        let Some(conn) = self.conns.remove(&(from, to)) else { return };
        if from != COORDINATOR {
            self.hop_input(bounds, from, HopInput::Lost { link: Link::Agent(address(to)) });
        }
        self.hop_input(bounds, to, HopInput::Lost { link: Link::Conn(conn.id) });
    }

    pub(super) fn deliver(
        &mut self,
        bounds: &Bounds,
        (from, to): (usize, usize),
        back: bool,
        packet: &Packet,
    ) {
        let message = packet.message.clone();
        if back && from == COORDINATOR {
            if matches!(message, Message::Ended { .. })
                && self.agents[to].machine.as_ref().is_some_and(|machine| machine.pending() > 0)
            {
                self.violation = Some(format!("agent {to} has said Ended and still holds something"));
            }
            return self.run_input(RunInput::Received { from: address(to), message });
        }
        let Some(conn) = self.conns.get(&(from, to)) else { return };
        let (party, link) = if back { (from, Link::Agent(address(to))) } else { (to, Link::Conn(conn.id)) };
        self.hop_input(bounds, party, HopInput::Received { from: link, message, bytes: 100 });
    }

    /// An acknowledgement lets the sender forget the hop: it must be on this agent's disk, synced.
    fn check_promise(&mut self, agent: usize, message: &Message) {
        let Message::Ack(ack) = message else { return };
        let disk = &self.agents[agent].log[..self.agents[agent].synced];
        let lost = ack.hops.iter().find(|hop| !disk.iter().any(|record| names(record, hop)));
        if let Some(hop) = lost {
            self.violation = Some(format!("agent {agent} acknowledges {hop:?}, which a crash would lose"));
        }
    }

    /// What is on the disk under a hop's name is the one state that goes on: a second one is never taken.
    fn check_first(&mut self, agent: usize, record: &Record) {
        let Record::Held { hop, state } = record else { return };
        let of = &self.agents[agent];
        let other = of.log[..of.synced].iter().any(|before| match before {
            Record::Held { hop: held, state: before } | Record::Moved { hop: held, state: before, .. } => {
                held == hop && before != state
            }
            Record::Done { hop: before } | Record::Retained { hop: before, .. } => before == hop,
            _ => false,
        });
        if other {
            self.violation = Some(format!("agent {agent} takes a second state of {hop:?}"));
        }
    }

    /// No hop is started that is behind its agent's fence, of a recalled chain, or of an ended job.
    fn check_run(&mut self, agent: usize, hop: &HopId) {
        if self.agents[agent].machine.as_ref().is_some_and(|machine| machine.is_fenced(hop)) {
            self.violation = Some(format!("agent {agent} runs {hop:?}, which is fenced off"));
        }
    }

    /// A return is acknowledged when its fold is on the disk.
    fn check_folded(&mut self, message: &Message) {
        let Message::Ack(ack) = message else { return };
        for hop in &ack.hops {
            let folded = self.coordinator.disk.as_ref().is_some_and(|record| {
                record.returned.contains(&(hop.epoch, hop.chain)) || hop.epoch < record.fence()
            });
            if !folded {
                self.violation = Some(format!("the coordinator acknowledges {hop:?} too early"));
            }
        }
    }
}

/// Progress is never needed, so it is always lost; what it changes is in the module's documentation.
fn packet(message: Message) -> Option<Arc<Packet>> {
    let message = match message {
        Message::Progress(_) => return None,
        Message::State(state) => Message::State(intern(state)),
        other => other,
    };
    Some(Packet::new(message))
}

fn names(record: &Record, hop: &HopId) -> bool {
    match record {
        Record::Held { hop: other, .. }
        | Record::Retained { hop: other, .. }
        | Record::Done { hop: other } => other == hop,
        Record::Moved { from, hop: other, .. } => from == hop || other == hop,
        Record::Fence { .. } | Record::Recalled { .. } | Record::Ended { .. } => false,
    }
}

/// Whether a record keeps a state of a chain.
pub(super) fn keeps(record: &Record, chain: &ChainId) -> bool {
    match record {
        Record::Held { hop, .. } | Record::Retained { hop, .. } | Record::Moved { hop, .. } => {
            ChainId::of_hop(hop) == *chain
        }
        _ => false,
    }
}

/// A unit's delta: one hexadecimal digit of a sum, so that a unit that is folded twice shows as a 2.
pub(super) fn delta(unit: u16) -> i64 {
    1 << (4 * unit)
}

/// Runs the next unit of the due hop, or has it refused. Says whether the hop has more; if not, it has gone on.
pub(super) fn run_unit(state: &mut JobState, refuse: bool) -> bool {
    let todo = |state: &JobState| {
        let due = state.due_slots();
        due.iter().filter(|unit| !state.open.contains_key(unit)).collect::<Vec<u16>>()
    };
    if let Some(unit) = todo(state).first().copied() {
        if refuse {
            state.open.insert(unit, "it moves".into());
        } else {
            let node = state.due_node().map(|node| node.id.clone()).unwrap();
            state.parts.push(Part {
                node,
                replication_id: "r".into(),
                slots: SlotSet::range(unit, unit),
                acc: Value::Int(delta(unit)),
            });
        }
    }
    let more = !todo(state).is_empty();
    state.position += u32::from(!more);
    more
}

/// The chains for what is open, over agents that are not lost.
pub(super) fn plan(bounds: &Bounds, job: &Arc<crate::chain::job::JobSpec>, input: &Asked) -> RunInput {
    let (epoch, open, lost) = input.clone();
    let there: Vec<String> = (0..AGENTS).map(address).filter(|agent| !lost.contains(agent)).collect();
    if there.is_empty() || epoch > bounds.plans {
        let permanent = epoch > bounds.plans;
        return RunInput::PlanFailed { epoch, reason: "the model plans no more".into(), permanent };
    }
    let beside = |node: usize| if lost.contains(&address(node)) { there[0].clone() } else { address(node) };
    let nodes: Vec<PlanNode> = (0..AGENTS)
        .map(|node| PlanNode { id: format!("n{node}"), redis: String::new(), agent: Some(beside(node)) })
        .collect();
    let mut hops = Vec::new();
    for node in 0..AGENTS {
        let slots: SlotSet = open.iter().filter(|unit| usize::from(*unit) % AGENTS == node).collect();
        if !slots.is_empty() {
            hops.push(Hop { node: node as u16, slots });
        }
    }
    let chains = (0..bounds.chains.min(hops.len()) as u16).map(|chain| {
        let route = hops.iter().skip(usize::from(chain)).step_by(bounds.chains).cloned().collect();
        JobState {
            job: job.clone(),
            chain,
            epoch,
            nodes: nodes.clone(),
            route,
            position: 0,
            parts: Vec::new(),
            sequence: Default::default(),
            acc: Value::Nil,
            tally: Default::default(),
            errors: Vec::new(),
            open: BTreeMap::new(),
            failed: None,
            reports: Vec::new(),
        }
    });
    RunInput::Planned { epoch, chains: chains.collect(), uncovered: BTreeMap::new() }
}

/// A plan that is wanted: its epoch, the open slots, and the agents that are lost.
pub(super) type Asked = (u32, SlotSet, std::collections::BTreeSet<String>);
