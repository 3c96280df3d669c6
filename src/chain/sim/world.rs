//! The simulated world: a clock, processes that crash, disks that lose what was not synced, and a network that loses,
//! doubles, delays and reorders.

mod agents;
mod checks;
mod coordinator;
mod network;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

use super::cluster::Cluster;
use super::{JobKind, Plan};
use crate::chain::hop::{HopConfig, HopInput, HopMachine, Record};
use crate::chain::message::Message;
use crate::chain::run::{Goal, RunConfig, RunInput, RunMachine, RunOutcome, RunRecord};
use crate::chain::state::{HopId, JobState};
use crate::core::task::Millis;

/// The coordinator's number among the parties; agents come before it.
const COORDINATOR: usize = 3;
const AGENTS: usize = 3;
/// No crash, break or move happens after this.
const CALM: Millis = 2_000;
/// A run that is not over by then is stuck.
const STUCK: Millis = 120_000;

#[derive(Debug)]
enum Event {
    Deliver { conn: u64, to: usize, life: u32, message: Message },
    Dialled { from: usize, life: u32, to: usize },
    Synced { party: usize, life: u32, ticket: u64, upto: usize },
    Alarm { party: usize, life: u32 },
    Work { agent: usize, life: u32, hop: HopId },
    Planned { life: u32, input: Box<RunInput> },
    Crash { party: usize, gone: bool },
    Restart { party: usize },
    DeclareLost { agent: usize, life: Option<u32> },
    HeardAgain { agent: usize },
    BreakConn,
    Move { unit: u16, to: Option<usize> },
    FailOver { node: usize },
    Cancel,
}

struct Conn {
    from: usize,
    to: usize,
    open: bool,
}

#[derive(Default)]
struct Party {
    life: u32,
    up: bool,
    gone: bool,
    /// Connections that it has dialled, by whom it reaches.
    dialled: BTreeMap<usize, u64>,
    dialling: BTreeSet<usize>,
    alarm: Option<Millis>,
}

struct Agent {
    machine: Option<HopMachine>,
    log: Vec<Record>,
    synced: usize,
    running: BTreeMap<HopId, Work>,
}

struct Work {
    state: JobState,
    aborted: bool,
    since_checkpoint: u32,
}

pub(super) struct World {
    plan: Plan,
    rng: fastrand::Rng,
    now: Millis,
    events: BinaryHeap<Reverse<(Millis, u64)>>,
    bodies: BTreeMap<u64, Event>,
    next_event: u64,
    conns: BTreeMap<u64, Conn>,
    next_conn: u64,
    parties: Vec<Party>,
    agents: Vec<Agent>,
    run: Option<RunMachine>,
    /// What the coordinator has on disk, and what it is writing.
    disk: Option<Arc<RunRecord>>,
    writing: Option<(u64, Arc<RunRecord>)>,
    cluster: Cluster,
    crashes_left: u32,
    verifying: bool,
    cancel_asked: bool,
    pub(super) outcome: Option<RunOutcome>,
    pub(super) trace: Option<Vec<String>>,
    pub(super) violation: Option<String>,
    pub(super) handled: u64,
}

impl World {
    pub(super) fn new(plan: Plan, mut rng: fastrand::Rng, trace: bool) -> Self {
        let mut cluster = Cluster::new(plan.kind, plan.spec.clone(), plan.units, AGENTS, &mut rng);
        cluster.poison = plan.poison;
        let agent = || Agent { machine: None, log: Vec::new(), synced: 0, running: BTreeMap::new() };
        World {
            now: 0,
            events: BinaryHeap::new(),
            bodies: BTreeMap::new(),
            next_event: 0,
            conns: BTreeMap::new(),
            next_conn: 0,
            parties: (0..=AGENTS).map(|_| Party::default()).collect(),
            agents: (0..AGENTS).map(|_| agent()).collect(),
            run: None,
            disk: None,
            writing: None,
            cluster,
            crashes_left: plan.crashes,
            verifying: false,
            cancel_asked: false,
            outcome: None,
            trace: trace.then(Vec::new),
            violation: None,
            handled: 0,
            plan,
            rng,
        }
    }

    /// Runs the job to its end, and on for a while.
    pub(super) fn run(&mut self) -> Result<(), String> {
        for party in 0..=AGENTS {
            self.restart(party);
        }
        self.schedule_chaos();
        let mut until = STUCK;
        while let Some(Reverse((at, number))) = self.events.pop() {
            if at > until {
                break;
            }
            self.now = at;
            self.handled += 1;
            if self.handled > 200_000 {
                return Err("events without end".into());
            }
            let event = self.bodies.remove(&number).unwrap();
            if let Some(trace) = &mut self.trace {
                trace.push(format!("{at:>6} {event:.300?}"));
            }
            self.happen(event);
            if let Some(violation) = &self.violation {
                return Err(violation.clone());
            }
            if self.outcome.is_some() && until == STUCK {
                until = self.now + 500; // nothing may happen after the end
            }
        }
        let Some(outcome) = self.outcome.clone() else {
            return Err(format!("the run is stuck: {:?}", self.run.as_ref().map(|run| run.record())));
        };
        self.check(&outcome)
    }

    pub(super) fn replans(&self) -> u32 {
        self.disk.as_ref().map_or(0, |record| record.replans)
    }

    fn schedule_chaos(&mut self) {
        for _ in 0..self.plan.crashes {
            let party = self.rng.usize(..=AGENTS);
            self.at_random(Event::Crash { party, gone: false });
        }
        if self.plan.lose_agent {
            let party = self.rng.usize(..AGENTS);
            self.at_random(Event::Crash { party, gone: true });
        }
        for _ in 0..self.plan.breaks {
            self.at_random(Event::BreakConn);
        }
        if self.plan.false_alarms {
            let agent = self.rng.usize(..AGENTS);
            self.at_random(Event::DeclareLost { agent, life: None });
        }
        for _ in 0..self.plan.moves {
            let unit = self.rng.u16(..self.plan.units);
            let (at, takes) = (self.rng.i64(0..400), self.rng.i64(0..200));
            let to = self.rng.usize(..AGENTS);
            self.schedule(at, Event::Move { unit, to: None });
            self.schedule(at + takes, Event::Move { unit, to: Some(to) });
        }
        if self.plan.fail_over {
            let (at, node) = (self.rng.i64(0..300), self.rng.usize(..AGENTS));
            self.schedule(at, Event::FailOver { node });
        }
        if self.plan.cancel {
            let at = self.rng.i64(0..300);
            self.schedule(at, Event::Cancel);
        }
    }

    fn at_random(&mut self, event: Event) {
        // Most jobs are short: early is where it hurts.
        let at = if self.rng.bool() { self.rng.i64(0..150) } else { self.rng.i64(0..1_000) };
        self.schedule(at, event);
    }

    fn schedule(&mut self, delay: Millis, event: Event) {
        self.next_event += 1;
        self.events.push(Reverse((self.now + delay, self.next_event)));
        self.bodies.insert(self.next_event, event);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Deliver { conn, to, life, message } => {
                let open = self.conns.get(&conn).is_some_and(|conn| conn.open);
                // Now and then the last words of a connection arrive after its end has been noticed.
                if self.parties[to].life == life && self.parties[to].up && (open || self.rng.u8(..4) == 0) {
                    self.deliver(conn, to, message);
                }
            }
            Event::Dialled { from, life, to } => self.dialled(from, life, to),
            Event::Synced { party, life, ticket, upto } => {
                if self.parties[party].life != life || !self.parties[party].up {
                    return;
                }
                if party == COORDINATOR {
                    if let Some((_, record)) = self.writing.take_if(|(writing, _)| *writing == ticket) {
                        self.disk = Some(record);
                    }
                    self.run_input(RunInput::Persisted { ticket });
                } else {
                    self.agents[party].synced = self.agents[party].synced.max(upto);
                    self.hop_input(party, HopInput::Persisted { up_to: ticket });
                }
            }
            Event::Alarm { party, life } => {
                if self.parties[party].life == life && self.parties[party].up {
                    self.parties[party].alarm = None;
                    if self.alarm_of(party).is_some_and(|at| at <= self.now) {
                        if party == COORDINATOR {
                            self.run_input(RunInput::Tick);
                        } else {
                            self.hop_input(party, HopInput::Tick);
                        }
                    } else {
                        self.arm(party);
                    }
                }
            }
            Event::Work { agent, life, hop } => {
                if self.parties[agent].life == life && self.parties[agent].up {
                    self.work(agent, hop);
                }
            }
            Event::Planned { life, input } => {
                if self.parties[COORDINATOR].life == life && self.parties[COORDINATOR].up {
                    self.run_input(*input);
                }
            }
            Event::Crash { party, gone } => self.crash(party, gone),
            Event::Restart { party } => self.restart(party),
            Event::DeclareLost { agent, life } => {
                let back = self.parties[agent].up && self.parties[agent].life != life.unwrap_or(0);
                if life.is_none() || !back {
                    self.run_input(RunInput::AgentLost { agent: address(agent) });
                    let after = self.rng.i64(1..500);
                    self.schedule(after, Event::HeardAgain { agent });
                }
            }
            Event::HeardAgain { agent } => {
                if self.parties[COORDINATOR].dialled.contains_key(&agent) {
                    self.run_input(RunInput::Connected { agent: address(agent) });
                }
            }
            Event::BreakConn => {
                let open: Vec<u64> =
                    self.conns.iter().filter(|(_, conn)| conn.open).map(|(id, _)| *id).collect();
                if !open.is_empty() {
                    let conn = open[self.rng.usize(..open.len())];
                    self.break_conn(conn);
                }
            }
            Event::Move { unit, to } => self.cluster.owner[usize::from(unit)] = to,
            Event::FailOver { node } => {
                // What is lost after the job has compared the primaries is no longer its business.
                if !self.verifying && self.outcome.is_none() {
                    self.cluster.fail_over(node, &mut self.rng);
                }
            }
            Event::Cancel => {
                self.cancel_asked = true;
                if self.parties[COORDINATOR].up {
                    self.run_input(RunInput::Cancel);
                } else {
                    self.schedule(50, Event::Cancel);
                }
            }
        }
    }

    fn restart(&mut self, party: usize) {
        let state = &mut self.parties[party];
        if state.up || state.gone {
            return;
        }
        state.up = true;
        state.life += 1;
        state.alarm = None;
        state.dialled.clear();
        state.dialling.clear();
        if party == COORDINATOR {
            let mut effects = Vec::new();
            let config = self.run_config();
            let machine = match &self.disk {
                Some(record) => RunMachine::recover(config, RunRecord::clone(record), self.now, &mut effects),
                None => {
                    let goal = match self.plan.kind {
                        JobKind::Slots => Goal::Slots((0..self.plan.units).collect()),
                        JobKind::Ordered | JobKind::Walk => Goal::Sequence,
                    };
                    RunMachine::start(config, self.plan.spec.clone(), goal, self.now, &mut effects)
                }
            };
            self.run = Some(machine);
            self.verifying = false;
            self.run_effects(effects);
            // A new coordinator finds out by itself who cannot be reached.
            for agent in (0..AGENTS).filter(|agent| !self.parties[*agent].up).collect::<Vec<_>>() {
                let life = self.parties[agent].life;
                self.schedule(400, Event::DeclareLost { agent, life: Some(life) });
            }
        } else {
            let mut effects = Vec::new();
            let records = self.agents[party].log.clone();
            let machine = HopMachine::recover(self.hop_config(party), records, self.now, &mut effects);
            self.agents[party].machine = Some(machine);
            self.hop_effects(party, effects);
        }
    }

    fn crash(&mut self, party: usize, gone: bool) {
        if !self.parties[party].up {
            return;
        }
        self.parties[party].up = false;
        self.parties[party].gone |= gone;
        let life = self.parties[party].life;
        let conns: Vec<u64> = self
            .conns
            .iter()
            .filter(|(_, conn)| conn.open && (conn.from == party || conn.to == party))
            .map(|(id, _)| *id)
            .collect();
        for conn in conns {
            self.break_conn(conn);
        }
        if party == COORDINATOR {
            self.run = None;
            // A write that was under way may have come through.
            if let Some((_, record)) = self.writing.take()
                && self.rng.bool()
            {
                self.disk = Some(record);
            }
        } else {
            let agent = &mut self.agents[party];
            agent.machine = None;
            agent.running.clear();
            let kept = self.rng.usize(agent.synced..=agent.log.len());
            agent.log.truncate(kept);
            agent.synced = kept;
            self.schedule(400, Event::DeclareLost { agent: party, life: Some(life) });
        }
        if !gone {
            let after = self.rng.i64(1..600);
            self.schedule(after, Event::Restart { party });
        }
    }

    /// Between any two effects the process may die.
    fn dies_here(&mut self, party: usize) -> bool {
        let dies = self.crashes_left > 0 && self.now < CALM && self.rng.u16(..150) == 0;
        if dies {
            self.crashes_left -= 1;
            self.crash(party, false);
        }
        dies
    }

    fn alarm_of(&self, party: usize) -> Option<Millis> {
        match party {
            COORDINATOR => self.run.as_ref().and_then(RunMachine::alarm_at),
            agent => self.agents[agent].machine.as_ref().and_then(HopMachine::alarm_at),
        }
    }

    fn arm(&mut self, party: usize) {
        let Some(at) = self.alarm_of(party) else { return };
        let at = at.max(self.now);
        let state = &mut self.parties[party];
        if state.alarm.is_none_or(|armed| at < armed) {
            state.alarm = Some(at);
            let life = state.life;
            self.schedule(at - self.now, Event::Alarm { party, life });
        }
    }

    fn hop_config(&self, agent: usize) -> HopConfig {
        HopConfig {
            capacity: self.plan.capacity,
            window: 2,
            resend_min: 20,
            resend_max: 200,
            ageing: 50,
            progress_every: 100,
            keep_done: 8,
            ack_before_persist: self.plan.ack_before_persist,
            ..HopConfig::new(address(agent))
        }
    }

    fn run_config(&self) -> RunConfig {
        RunConfig {
            incarnation: 1,
            direct: "direct".into(),
            hop_timeout: 1_500,
            recall_timeout: 300,
            end_timeout: 8_000,
            finish_timeout: 500,
            regroup: 60,
            resend_min: 20,
            resend_max: 200,
            replan_min: 5,
            replan_max: 200,
        }
    }
}

fn address(agent: usize) -> String {
    format!("agent-{agent}")
}

fn number(address: &str) -> usize {
    address["agent-".len()..].parse().unwrap()
}
