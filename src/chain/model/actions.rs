//! What can happen next, and what then happens.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::canon::intern;
use super::effects::{plan, run_unit};
use super::explore::Model;
use super::world::{AGENTS, Agent, Bounds, COORDINATOR, Coordinator, Faults, World, address};
use crate::chain::hop::{HopInput, HopMachine};
use crate::chain::job::{Access, Combine, JobSpec, Step, Target};
use crate::chain::run::{Goal, RunInput, RunMachine, RunRecord};
use crate::chain::state::{HopId, JobState};

/// A connection, by who has dialled and who is reached.
type Ends = (usize, usize);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// The message in this place arrives; `keep`: and once more later.
    Deliver { conn: Ends, back: bool, place: usize, keep: bool },
    /// The first message is lost.
    Lose { conn: Ends, back: bool },
    /// A dial comes through, if the other is up.
    Dialled(usize, usize),
    Cut(usize, usize),
    /// The oldest wait for an agent's disk is over.
    Synced(usize),
    /// The coordinator's record is written.
    Written,
    Planned,
    /// A unit of a running hop is run, or refused.
    Unit { agent: usize, hop: HopId, refuse: bool },
    /// A hop that was told to abort stops.
    Stopped { agent: usize, hop: HopId },
    Alarm { party: usize, early: bool },
    /// `kept` of what was not durable has become so after all.
    Crash { party: usize, kept: usize },
    Restart(usize),
    /// The coordinator is told that an agent is lost.
    Lost(usize),
    /// An agent that was said to be lost is heard of.
    Heard(usize),
    Cancel,
}

/// The model: a job within its bounds.
pub(super) struct Job {
    pub(super) bounds: Bounds,
    spec: Arc<JobSpec>,
    /// One of each agent and coordinator there has been: worlds share them.
    agents: RefCell<HashMap<u64, Arc<Agent>>>,
    coordinators: RefCell<HashMap<u64, Arc<Coordinator>>>,
}

impl Job {
    pub(super) fn new(bounds: Bounds) -> Self {
        let target = Target::Pattern(b"*".to_vec());
        let mut spec = JobSpec::new("j", target, Step::Native("s".into()), Combine::Sum, Access::Read);
        spec.limits.retain = bounds.retain;
        spec.limits.max_replans = 2;
        let (agents, coordinators) = Default::default();
        Job { bounds, spec: Arc::new(spec), agents, coordinators }
    }

    fn happen(&self, world: &mut World, action: &Action) {
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

    fn restart(&self, world: &mut World, party: usize) {
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

    fn seal(&self, world: &mut World, before: Option<&World>) {
        for (agent, new) in world.agents.iter_mut().enumerate() {
            if before.is_none_or(|before| !Arc::ptr_eq(&before.agents[agent], new)) {
                let sealed = new.clone().seal(agent);
                *new = self.agents.borrow_mut().entry(sealed.fingerprint).or_insert(sealed).clone();
            }
        }
        if before.is_none_or(|before| !Arc::ptr_eq(&before.coordinator, &world.coordinator)) {
            let sealed = world.coordinator.clone().seal();
            world.coordinator =
                self.coordinators.borrow_mut().entry(sealed.fingerprint).or_insert(sealed).clone();
        }
    }
}

impl Model for Job {
    type State = World;
    type Action = Action;

    fn start(&self) -> World {
        let agent = Agent {
            now: 0,
            machine: None,
            log: Vec::new(),
            synced: 0,
            syncs: Vec::new(),
            running: BTreeMap::new(),
            fingerprint: 0,
        };
        let coordinator = Coordinator {
            now: 0,
            machine: None,
            disk: None,
            writing: None,
            asked: None,
            told: BTreeSet::new(),
            fingerprint: 0,
        };
        let mut world = World {
            agents: std::array::from_fn(|_| Arc::new(agent.clone())),
            coordinator: Arc::new(coordinator),
            conns: BTreeMap::new(),
            dialling: BTreeSet::new(),
            dials: BTreeMap::new(),
            left: self.bounds.faults,
            crashes: 0,
            outcome: None,
            violation: None,
        };
        (0..=COORDINATOR).for_each(|party| self.restart(&mut world, party));
        for from in 0..=COORDINATOR {
            for to in (0..AGENTS).filter(|to| *to != from) {
                world.connect(&self.bounds, from, to);
            }
        }
        self.seal(&mut world, None);
        world
    }

    fn actions(&self, world: &World) -> Vec<Action> {
        let left = world.left;
        let mut actions = Vec::new();
        for (conn, of) in &world.conns {
            for (back, packets) in [(false, &of.there), (true, &of.back)] {
                for place in 0..packets.len() {
                    if place == 0 || left.overtake > 0 {
                        actions.push(Action::Deliver { conn: *conn, back, place, keep: false });
                    }
                }
                if !packets.is_empty() && left.double > 0 {
                    actions.push(Action::Deliver { conn: *conn, back, place: 0, keep: true });
                }
                if !packets.is_empty() && left.lose > 0 {
                    actions.push(Action::Lose { conn: *conn, back });
                }
            }
        }
        actions.extend(world.dialling.iter().map(|(from, to)| Action::Dialled(*from, *to)));
        for (agent, of) in world.agents.iter().enumerate() {
            if !of.syncs.is_empty() {
                actions.push(Action::Synced(agent));
            }
            for (hop, work) in &of.running {
                actions.push(Action::Unit { agent, hop: hop.clone(), refuse: false });
                if left.refuse > 0 {
                    actions.push(Action::Unit { agent, hop: hop.clone(), refuse: true });
                }
                if work.aborted {
                    actions.push(Action::Stopped { agent, hop: hop.clone() });
                }
            }
        }
        if world.coordinator.writing.is_some() {
            actions.push(Action::Written);
        }
        if world.coordinator.asked.is_some() {
            actions.push(Action::Planned);
        }
        // Alarms ring when nothing else is under way: everything else takes no time.
        let quiet = actions.is_empty();
        for party in 0..=COORDINATOR {
            let alarm = match party {
                COORDINATOR => world.coordinator.machine.as_ref().and_then(RunMachine::alarm_at),
                agent => world.agents[agent].machine.as_ref().and_then(HopMachine::alarm_at),
            };
            if alarm.is_some() && (quiet || left.early > 0) {
                actions.push(Action::Alarm { party, early: !quiet });
            }
            if !world.is_up(party) {
                actions.push(Action::Restart(party));
            }
        }
        self.faults(world, left, &mut actions);
        actions
    }

    fn next(&self, before: &World, action: &Action) -> World {
        let mut world = before.clone();
        self.happen(&mut world, action);
        self.seal(&mut world, Some(before));
        world
    }

    fn is_fault(&self, world: &World, action: &Action) -> bool {
        match action {
            Action::Deliver { place, keep, .. } => *keep || *place > 0,
            Action::Unit { refuse, .. } => *refuse,
            Action::Alarm { early, .. } => *early,
            Action::Lost(agent) => world.is_up(*agent),
            Action::Lose { .. } | Action::Cut(..) | Action::Crash { .. } | Action::Cancel => true,
            _ => false,
        }
    }

    fn fingerprint(&self, world: &World) -> u64 {
        world.fingerprint()
    }

    fn check(&self, world: &World) -> Result<(), String> {
        self.check_world(world)
    }

    fn is_over(&self, world: &World) -> bool {
        world.outcome.is_some()
    }
}

impl Job {
    fn faults(&self, world: &World, left: Faults, actions: &mut Vec<Action>) {
        for (agent, of) in world.agents.iter().enumerate() {
            if of.machine.is_some() && left.agent_crash > 0 {
                let unsynced = of.log.len() - of.synced;
                actions.extend((0..=unsynced).map(|kept| Action::Crash { party: agent, kept }));
            }
            if world.coordinator.machine.is_some() {
                let told = world.coordinator.told.contains(&agent);
                if !told && (of.machine.is_none() || left.false_alarm > 0) {
                    actions.push(Action::Lost(agent));
                }
                if told && world.conns.contains_key(&(COORDINATOR, agent)) {
                    actions.push(Action::Heard(agent));
                }
            }
        }
        if world.coordinator.machine.is_some() {
            if left.coordinator_crash > 0 {
                let unsynced = usize::from(world.coordinator.writing.is_some());
                actions.extend((0..=unsynced).map(|kept| Action::Crash { party: COORDINATOR, kept }));
            }
            if left.cancel > 0 {
                actions.push(Action::Cancel);
            }
        }
        if left.cut > 0 {
            actions.extend(world.conns.keys().map(|(from, to)| Action::Cut(*from, *to)));
        }
    }
}
