//! What can happen next.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::explore::Model;
use super::world::{AGENTS, Agent, Bounds, COORDINATOR, Coordinator, Faults, World};
use crate::chain::hop::HopMachine;
use crate::chain::job::{Access, Combine, JobSpec, Step, Target};
use crate::chain::message::Message;
use crate::chain::run::RunMachine;
use crate::chain::state::HopId;

/// A connection, by who has dialled and who is reached.
pub(super) type Ends = (usize, usize);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// The message in this place arrives; `keep`: and once more later.
    Deliver {
        conn: Ends,
        back: bool,
        place: usize,
        keep: bool,
    },
    /// The first message is lost.
    Lose {
        conn: Ends,
        back: bool,
    },
    /// A dial comes through, if the other is up.
    Dialled(usize, usize),
    Cut(usize, usize),
    /// The oldest wait for an agent's disk is over.
    Synced(usize),
    /// The coordinator's record is written.
    Written,
    Planned,
    /// A unit of a running hop is run, or refused.
    Unit {
        agent: usize,
        hop: HopId,
        refuse: bool,
    },
    /// A hop that was told to abort stops.
    Stopped {
        agent: usize,
        hop: HopId,
    },
    Alarm {
        party: usize,
        early: bool,
    },
    /// `kept` of what was not durable has become so after all.
    Crash {
        party: usize,
        kept: usize,
    },
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
    pub(super) spec: Arc<JobSpec>,
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
                for (place, packet) in packets.iter().enumerate() {
                    // Within one connection nothing overtakes; an end that did would be taken back by the attach.
                    let may_overtake = left.overtake > 0 && !matches!(packet.message, Message::End(_));
                    if place == 0 || may_overtake {
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
