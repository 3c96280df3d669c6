//! The world that is explored: three agents with their outboxes, a coordinator with its record, what is on its way
//! between them, and how many faults are left.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::canon::Canon;
use crate::chain::hop::{HopConfig, HopMachine, Record};
use crate::chain::message::Message;
use crate::chain::run::{RunConfig, RunMachine, RunOutcome, RunRecord};
use crate::chain::slots::SlotSet;
use crate::chain::state::{HopId, JobState};
use crate::core::task::Millis;

pub(super) const AGENTS: usize = 3;
/// The coordinator's number among the parties; agents come before it.
pub(super) const COORDINATOR: usize = 3;

/// How often each fault may still happen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Faults {
    /// An agent crashes, with or without what its disk had not synced, and starts again later.
    pub(super) agent_crash: u8,
    /// The coordinator does.
    pub(super) coordinator_crash: u8,
    /// A message is lost.
    pub(super) lose: u8,
    /// A message arrives twice.
    pub(super) double: u8,
    /// A message arrives before those that were sent before it over the same connection.
    pub(super) overtake: u8,
    /// A connection breaks, and with it goes what is on its way.
    pub(super) cut: u8,
    /// An alarm rings while something is still under way, as if that took very long.
    pub(super) early: u8,
    /// An agent that is there is said to be lost.
    pub(super) false_alarm: u8,
    /// A unit is refused by its node: its slot moves.
    pub(super) refuse: u8,
    /// An operator cancels the job.
    pub(super) cancel: u8,
}

/// What is explored.
#[derive(Debug, Clone)]
pub(super) struct Bounds {
    /// Units; unit `u` is on node `u % 3`, which agent `u % 3` stands beside.
    pub(super) units: u16,
    /// Chains that a plan has, if there are as many nodes.
    pub(super) chains: usize,
    /// How many hops back states are kept.
    pub(super) retain: u8,
    /// Hops that an agent takes before it is busy.
    pub(super) capacity: usize,
    /// Plans; the planner refuses to make another one, and the job fails.
    pub(super) plans: u32,
    pub(super) faults: Faults,
    /// The deliberate defect.
    pub(super) ack_before_persist: bool,
    /// Whether an acknowledgement is checked when it is given, or only what comes of it.
    pub(super) check_promises: bool,
}

#[derive(Clone)]
pub(super) struct World {
    pub(super) agents: [Arc<Agent>; AGENTS],
    pub(super) coordinator: Arc<Coordinator>,
    /// By who has dialled and who is reached.
    pub(super) conns: BTreeMap<(usize, usize), Arc<Conn>>,
    /// Who is about to dial whom.
    pub(super) dialling: BTreeSet<(usize, usize)>,
    /// Connections that there have been, so that no number is used twice.
    pub(super) dials: BTreeMap<(usize, usize), u64>,
    pub(super) left: Faults,
    /// Crashes so far.
    pub(super) crashes: u8,
    pub(super) outcome: Option<RunOutcome>,
    pub(super) violation: Option<String>,
}

#[derive(Clone)]
pub(super) struct Agent {
    /// Its own clock: nobody compares clocks.
    pub(super) now: Millis,
    /// `None`: it is down.
    pub(super) machine: Option<HopMachine>,
    /// Its outbox; see [`Agent::compact`].
    pub(super) log: Vec<Record>,
    /// How much of it a crash cannot take.
    pub(super) synced: usize,
    /// Tickets that are to be synced, and how much of the log that needs.
    pub(super) syncs: Vec<(u64, usize)>,
    pub(super) running: BTreeMap<HopId, Work>,
    pub(super) fingerprint: u64,
}

#[derive(Clone)]
pub(super) struct Work {
    pub(super) state: Arc<JobState>,
    pub(super) aborted: bool,
}

#[derive(Clone)]
pub(super) struct Coordinator {
    pub(super) now: Millis,
    pub(super) machine: Option<RunMachine>,
    pub(super) disk: Option<Arc<RunRecord>>,
    pub(super) writing: Option<(u64, Arc<RunRecord>)>,
    /// The plan that it waits for: its epoch, the open slots, and the agents that are lost.
    pub(super) asked: Option<(u32, SlotSet, BTreeSet<String>)>,
    /// Agents that it was told are lost.
    pub(super) told: BTreeSet<usize>,
    pub(super) fingerprint: u64,
}

#[derive(Clone)]
pub(super) struct Conn {
    pub(super) id: u64,
    /// From the one who has dialled, in order.
    pub(super) there: Vec<Arc<Packet>>,
    /// To it.
    pub(super) back: Vec<Arc<Packet>>,
}

pub(super) struct Packet {
    pub(super) message: Message,
    fingerprint: u64,
}

impl Packet {
    pub(super) fn new(message: Message) -> Arc<Self> {
        let mut to = Canon::new();
        to.message(&message);
        Arc::new(Packet { message, fingerprint: to.finish() })
    }
}

impl Agent {
    /// What is synced is replaced by the snapshot of what a machine makes of it: equal to it for all that follows, and
    /// without its history. That a snapshot is as good as the log is checked here each time, not assumed.
    pub(super) fn compact(&mut self, config: &HopConfig) -> Result<(), String> {
        let fresh = |records: &[Record]| {
            HopMachine::recover(config.clone(), records.iter().cloned(), self.now, &mut Vec::new())
        };
        let fingerprint = |machine: &HopMachine| {
            let mut to = Canon::new();
            machine.canon(self.now, &mut to);
            to.finish()
        };
        let before = fresh(&self.log[..self.synced]);
        let snapshot = before.snapshot();
        if fingerprint(&before) != fingerprint(&fresh(&snapshot)) {
            return Err(format!(
                "a snapshot says something else than its log: {:?}",
                &self.log[..self.synced]
            ));
        }
        let removed = self.synced;
        self.synced = snapshot.len();
        self.log.splice(..removed, snapshot);
        for (_, upto) in &mut self.syncs {
            *upto = *upto + self.synced - removed;
        }
        Ok(())
    }

    pub(super) fn seal(mut self: Arc<Self>, number: usize) -> Arc<Self> {
        let agent = Arc::make_mut(&mut self);
        let mut to = Canon::new();
        to.put(&number).put(&agent.machine.is_some());
        if let Some(machine) = &agent.machine {
            machine.canon(agent.now, &mut to);
        }
        for record in &agent.log {
            to.put(&std::mem::discriminant(record));
            match record {
                Record::Held { hop, state } | Record::Retained { hop, state } => to.put(hop).state(state),
                Record::Moved { from, hop, state } => to.put(from).put(hop).state(state),
                Record::Done { hop } => to.put(hop),
                other => to.put(&format!("{other:?}")),
            };
        }
        to.end();
        to.put(&agent.synced).put(&agent.syncs.iter().map(|(_, upto)| *upto).collect::<Vec<_>>());
        for (hop, work) in &agent.running {
            to.put(hop).put(&work.aborted).state(&work.state);
        }
        agent.fingerprint = to.finish();
        self
    }
}

impl Coordinator {
    pub(super) fn seal(mut self: Arc<Self>) -> Arc<Self> {
        let coordinator = Arc::make_mut(&mut self);
        let mut to = Canon::new();
        to.put(&coordinator.machine.is_some());
        if let Some(machine) = &coordinator.machine {
            machine.canon(coordinator.now, &mut to);
        }
        for record in [&coordinator.disk, &coordinator.writing.as_ref().map(|(_, record)| record.clone())] {
            record.iter().for_each(|record| record.canon(&mut to));
            to.end();
        }
        if let Some((epoch, open, lost)) = &coordinator.asked {
            to.put(epoch).slots(open).put(lost);
        }
        to.put(&coordinator.told);
        coordinator.fingerprint = to.finish();
        self
    }
}

impl World {
    pub(super) fn fingerprint(&self) -> u64 {
        let mut to = Canon::new();
        for agent in &self.agents {
            to.put(&agent.fingerprint);
        }
        to.put(&self.coordinator.fingerprint);
        for (ends, conn) in &self.conns {
            to.put(ends).put(&conn.id);
            for packets in [&conn.there, &conn.back] {
                for packet in packets {
                    to.put(&packet.fingerprint);
                }
                to.end();
            }
        }
        to.put(&self.dialling).put(&self.dials).put(&self.left).put(&self.crashes);
        to.put(&self.outcome.is_some()).put(&self.violation.is_some());
        to.finish()
    }

    pub(super) fn is_up(&self, party: usize) -> bool {
        match party {
            COORDINATOR => self.coordinator.machine.is_some(),
            agent => self.agents[agent].machine.is_some(),
        }
    }
}

impl Bounds {
    pub(super) fn hop_config(&self, agent: usize) -> HopConfig {
        HopConfig {
            capacity: self.capacity,
            resend_min: UNIT,
            resend_max: UNIT,
            progress_every: UNIT,
            orphan_after: Millis::MAX,
            ack_before_persist: self.ack_before_persist,
            ..HopConfig::new(address(agent))
        }
    }

    /// All times are a few units, so that "how far off" has few values; none of the rules depends on their size.
    pub(super) fn run_config() -> RunConfig {
        RunConfig {
            incarnation: 1,
            direct: "direct".into(),
            hop_timeout: 2 * UNIT,
            recall_timeout: 2 * UNIT,
            end_timeout: 2 * UNIT,
            finish_timeout: UNIT,
            regroup: UNIT,
            resend_min: UNIT,
            resend_max: UNIT,
            replan_min: UNIT,
            replan_max: UNIT,
        }
    }
}

/// Halved for the first wait of a recall, quartered for an agent that has missed the attach.
const UNIT: Millis = 4;

pub(super) fn address(agent: usize) -> String {
    format!("a{agent}")
}

pub(super) fn number(address: &str) -> usize {
    address[1..].parse().unwrap()
}
