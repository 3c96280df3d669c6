//! The simulated world: a clock, processes that crash, disks that lose what was not synced, and a network that loses,
//! doubles, delays and reorders.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

use super::cluster::{Cluster, tokens_of};
use super::{JobKind, Plan};
use crate::chain::hop::{HopConfig, HopEffect, HopInput, HopMachine, Link, Record};
use crate::chain::message::{EndReason, Message};
use crate::chain::run::{Goal, PartKey, RunConfig, RunEffect, RunInput, RunMachine, RunOutcome, RunRecord};
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

    fn check(&self, outcome: &RunOutcome) -> Result<(), String> {
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

    // ---- processes ----

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

    // ---- network ----

    fn send(&mut self, from: usize, conn: u64, message: Message) {
        let Some(Conn { from: dialler, to, open: true }) = self.conns.get(&conn) else { return };
        let to = if from == *dialler { *to } else { *dialler };
        let life = self.parties[to].life;
        let copies = match self.rng.u8(..100) {
            roll if roll < self.plan.loss => 0,
            roll if roll < self.plan.loss + self.plan.doubling => 2,
            _ => 1,
        };
        for _ in 0..copies {
            let delay = if self.rng.u8(..20) == 0 { self.rng.i64(20..120) } else { self.rng.i64(1..10) };
            self.schedule(delay, Event::Deliver { conn, to, life, message: message.clone() });
        }
    }

    fn deliver(&mut self, conn: u64, to: usize, message: Message) {
        let dialler = self.conns[&conn].from;
        let peer = if dialler == to { self.conns[&conn].to } else { dialler };
        if to == COORDINATOR {
            if let Message::Ended { .. } = &message
                && let Some(machine) = &self.agents[peer].machine
            {
                self.check_stopped(peer, machine.pending());
            }
            self.run_input(RunInput::Received { from: address(peer), message });
        } else {
            let from = if dialler == to { Link::Agent(address(peer)) } else { Link::Conn(conn) };
            self.hop_input(to, HopInput::Received { from, message, bytes: 100 });
        }
    }

    fn check_stopped(&mut self, agent: usize, pending: usize) {
        if pending != 0 || !self.agents[agent].running.is_empty() {
            self.violation = Some(format!("agent {agent} said Ended and still holds {pending} hops"));
        }
    }

    /// When an agent forgets a hop, a later one of its chain is on somebody's disk, synced, or the chain is over.
    fn check_copies(&mut self, agent: usize, done: &HopId) {
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
    fn check_folded(&mut self, message: &Message) {
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
    fn check_promise(&mut self, agent: usize, message: &Message) {
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

    fn dial(&mut self, from: usize, to: usize) {
        if from != to && self.parties[from].dialling.insert(to) {
            let (delay, life) = (self.rng.i64(1..10), self.parties[from].life);
            self.schedule(delay, Event::Dialled { from, life, to });
        }
    }

    fn dialled(&mut self, from: usize, life: u32, to: usize) {
        if self.parties[from].life != life || !self.parties[from].up {
            return;
        }
        self.parties[from].dialling.remove(&to);
        if !self.parties[to].up || self.parties[from].dialled.contains_key(&to) {
            return;
        }
        self.next_conn += 1;
        let conn = self.next_conn;
        self.conns.insert(conn, Conn { from, to, open: true });
        self.parties[from].dialled.insert(to, conn);
        if from == COORDINATOR {
            self.run_input(RunInput::Connected { agent: address(to) });
        } else {
            self.hop_input(from, HopInput::Connected { link: Link::Agent(address(to)) });
        }
    }

    fn break_conn(&mut self, id: u64) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.open = false;
        let (from, to) = (conn.from, conn.to);
        self.parties[from].dialled.remove(&to);
        if from != COORDINATOR && self.parties[from].up {
            self.hop_input(from, HopInput::Lost { link: Link::Agent(address(to)) });
        }
        if self.parties[to].up {
            self.hop_input(to, HopInput::Lost { link: Link::Conn(id) });
        }
    }

    // ---- agents ----

    fn hop_input(&mut self, agent: usize, input: HopInput) {
        let mut effects = Vec::new();
        let Some(machine) = &mut self.agents[agent].machine else { return };
        machine.handle(self.now, input, &mut effects);
        self.hop_effects(agent, effects);
    }

    fn hop_effects(&mut self, agent: usize, effects: Vec<HopEffect>) {
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
    fn compact(&mut self, agent: usize) {
        let state = &mut self.agents[agent];
        if let Some(machine) = &state.machine
            && state.log.len() > 24
            && state.synced == state.log.len()
        {
            state.log = machine.snapshot();
            state.synced = state.log.len();
        }
    }

    fn go_on(&mut self, agent: usize, hop: HopId) {
        let (delay, life) = (self.rng.i64(1..6), self.parties[agent].life);
        self.schedule(delay, Event::Work { agent, life, hop });
    }

    /// One unit of a running hop.
    fn work(&mut self, agent: usize, hop: HopId) {
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

    // ---- coordinator ----

    fn run_input(&mut self, input: RunInput) {
        let mut effects = Vec::new();
        let Some(machine) = &mut self.run else { return };
        machine.handle(self.now, input, &mut effects);
        self.run_effects(effects);
    }

    fn run_effects(&mut self, effects: Vec<RunEffect>) {
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

fn address(agent: usize) -> String {
    format!("agent-{agent}")
}

fn number(address: &str) -> usize {
    address["agent-".len()..].parse().unwrap()
}
