//! The agent's side of the hand-off, as a state machine: inputs in, effects out, no clock, no socket, no disk.
//!
//! ```text
//!            Received             Persisted          (node free)            Ran              Acked
//!  (sender) ─────────> Persisting ─────────> Queued ─────────> Running ─────────> Forwarding ─────> done
//!                       Persist     Ack                Run      │  ▲    Send                 Note(Done)
//!                                                    Checkpoint └──┘ Note(Held)
//! ```
//! A hop is acknowledged when its record is durable, never before. That one fsync is all that a hop costs, because
//! **the state that goes on is not made durable before it is sent.** Until the receiver acknowledges it, the durable
//! copy is the received state, or a later checkpoint of it. After a crash the hop runs again from there and sends what
//! may be a *different* state under the *same* [`HopId`]; a receiver that holds or has done that hop acknowledges and
//! keeps its own. So per hop exactly one state goes on, the first one that its receiver made durable:
//! - **reads:** units that only the dropped state had done are open in the one that went on, and are run again there or
//!   under the next plan. Their deltas were never folded anywhere but in the dropped state.
//! - **writes with markers:** the same, and running such a unit again finds its marker, writes nothing and returns the
//!   recorded delta. For a walk the marker must record the next key too, so that a second run goes the same way.
//! - **the two may go to different receivers** (a slot has moved in between, or the second run has failed): then two
//!   states of one chain are on their way. The coordinator folds one state for a chain and refuses the other.
//!
//! The same holds for a hop that goes on to another node of the same agent: one lazy record ([`Record::Moved`]) ends
//! the one and holds the other. It needs no fsync: if it is lost, the first is still held.
//! Losing a state altogether (an agent's disk is gone, a done hop was forgotten) is never a wrong result either: what no
//! folded ledger marks is open and is planned again.
//!
//! **Order of records.** The outbox is a log: a record is durable only with all records before it, lazy ones included.
//!
//! **Full agents.** A hop `h` of a chain is refused as busy from `capacity + h` held hops on. Agents that are full of
//! states for each other therefore cannot wait in a circle: take the blocked state with the highest next hop `h`; all
//! that its receiver holds has lower hops, so when the last of these was taken the receiver held less than
//! `capacity + h - 1`, and it has room. Every chain ends, so everything moves.
//!
//! **An outbox that fails** has no input here: an agent that cannot write stops and starts again from what is durable.

mod done;
mod forward;
mod jobs;
mod queue;
mod record;

use std::collections::BTreeMap;
use std::sync::Arc;

use self::done::{Done, Retained, RetainedHop};
use self::forward::{Dest, Forward, Forwards};
use self::jobs::Jobs;
use self::queue::RunQueue;
pub use self::record::Record;
use super::message::{
    Ack, Attach, ChainId, End, EndReason, Message, Progress, Recalled, Refuse, RefuseReason,
};
use super::state::{HopId, JobState, KeyError, NodeId};
use crate::core::task::Millis;

/// One end of a connection, as the machine sees it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Link {
    /// A connection that this agent dials: the other agent's advertised address.
    Agent(String),
    /// A connection that somebody else has dialled: the actor's number for it, never used twice in one process life.
    Conn(u64),
}

/// What happens to an agent.
#[derive(Debug, Clone)]
pub enum HopInput {
    /// A message other than `Hello`, `Ping` and `Pong` has arrived; `bytes` is the size of its body, uncompressed.
    Received {
        /// From where.
        from: Link,
        /// What.
        message: Message,
        /// How large, in bytes.
        bytes: u64,
    },
    /// All records up to and with this ticket's are durable.
    Persisted {
        /// The ticket of a [`HopEffect::Persist`].
        up_to: u64,
    },
    /// A running hop has come this far.
    Checkpoint {
        /// The hop.
        hop: HopId,
        /// Its state now.
        state: Arc<JobState>,
    },
    /// A hop's own work is done: `state.position` is the next hop (or `state.failed` is set).
    Ran {
        /// The hop.
        hop: HopId,
        /// Its state as it goes on.
        state: Arc<JobState>,
    },
    /// A hop that was told to abort has stopped: no effect of it follows.
    Stopped {
        /// The hop.
        hop: HopId,
    },
    /// A state that the machine gave to `Send` cannot be sent (it is over the job's or the frame's limit).
    Unsendable {
        /// The id of the state that was to be sent.
        hop: HopId,
        /// Why.
        reason: String,
    },
    /// A dialled connection is up, its `Hello`s exchanged.
    Connected {
        /// Which.
        link: Link,
    },
    /// A connection is gone.
    Lost {
        /// Which.
        link: Link,
    },
    /// [`HopMachine::alarm_at`] has come.
    Tick,
}

/// What the actor has to do, in this order.
#[derive(Debug, Clone, PartialEq)]
pub enum HopEffect {
    /// Append to the outbox and make durable, then answer [`HopInput::Persisted`]. Records become durable in the
    /// order in which they were given, lazy ones included.
    Persist {
        /// Ascending.
        ticket: u64,
        /// What.
        record: Record,
    },
    /// Append to the outbox; it becomes durable with whatever is persisted next, or after a while.
    Note {
        /// What.
        record: Record,
    },
    /// Send if the link is up, else drop: the machine sends again when it comes up.
    Send {
        /// Over which connection. A `Link::Agent` that is not connected is to be dialled, once for each such effect
        /// and unless it is being dialled already: they come at the pace of the machine's own backoff.
        to: Link,
        /// What.
        message: Message,
    },
    /// Start the work of a hop, from this state on.
    Run {
        /// Which.
        hop: HopId,
        /// From where.
        state: Arc<JobState>,
    },
    /// Stop the work of a hop as soon as possible, then answer [`HopInput::Stopped`] (or `Ran`).
    Abort {
        /// Which.
        hop: HopId,
    },
}

/// An agent's bounds and times.
#[derive(Debug, Clone)]
pub struct HopConfig {
    /// This agent's advertised address.
    pub address: String,
    /// Hops run at a time on one node.
    pub per_node: usize,
    /// Hops held (queued, running, not yet acknowledged) before first hops are refused as busy; a later hop `h` is
    /// refused from `capacity + h` on.
    pub capacity: usize,
    /// Bytes held before first hops are refused as busy.
    pub capacity_bytes: u64,
    /// Forwards that are under way to one peer without an acknowledgement.
    pub window: usize,
    /// The first wait before an unacknowledged forward is sent again; it doubles up to `resend_max`.
    pub resend_min: Millis,
    /// The longest wait.
    pub resend_max: Millis,
    /// A hop of priority `p` waits as if it had come `p` times this earlier.
    pub ageing: Millis,
    /// How often an attached coordinator hears of every chain that is held.
    pub progress_every: Millis,
    /// Ids of done hops that are kept to acknowledge duplicates.
    pub keep_done: usize,
    /// Ended jobs that are remembered.
    pub keep_ended: usize,
    /// A job whose coordinator has not been attached for this long is ended here.
    pub orphan_after: Millis,
    /// A defect for the simulation to find.
    #[cfg(test)]
    pub(crate) ack_before_persist: bool,
}

impl HopConfig {
    /// The defaults for an agent at this address.
    pub fn new(address: impl Into<String>) -> Self {
        HopConfig {
            address: address.into(),
            per_node: 1,
            capacity: 1_024,
            capacity_bytes: 256 << 20,
            window: 64,
            resend_min: 500,
            resend_max: 10_000,
            ageing: 5_000,
            progress_every: 1_000,
            keep_done: 65_536,
            keep_ended: 65_536,
            orphan_after: 7 * 24 * 3_600_000,
            #[cfg(test)]
            ack_before_persist: false,
        }
    }
}

/// The agent's state machine.
#[derive(Debug)]
pub struct HopMachine {
    config: HopConfig,
    held: BTreeMap<HopId, Held>,
    /// Acknowledged by a receiver that has not passed them on yet.
    retained: Retained,
    done: Done,
    jobs: Jobs,
    queue: RunQueue,
    forwards: Forwards,
    /// What waits for a ticket to be durable.
    pending: BTreeMap<u64, Pending>,
    tickets: u64,
    bytes: u64,
    /// When progress is due; armed while anything is held.
    progress_at: Option<Millis>,
}

/// A hop that is in this agent's care.
#[derive(Debug)]
struct Held {
    /// As received, or as of the last checkpoint: what a crash would go on from, or a little newer.
    state: Arc<JobState>,
    bytes: u64,
    phase: Phase,
    /// A record of it is durable, so that it may be acknowledged.
    durable: bool,
    /// Who waits for that.
    ack_to: Vec<Link>,
    /// Who handed it over, and under which id: hears when it has been passed on.
    origin: Option<(Link, HopId)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Its record is not durable yet.
    Persisting,
    /// Waits for its node.
    Queued,
    /// Its work is under way.
    Running,
    /// Its work is done; the next one has not acknowledged it yet.
    Forwarding,
    /// Recalled: kept for the coordinator, not run any more.
    Parked,
}

#[derive(Debug)]
enum Pending {
    Hop(HopId),
    Ended(String),
}

impl HopMachine {
    /// A machine that takes up what an outbox holds (nothing: a fresh one).
    pub fn recover(
        config: HopConfig,
        records: impl IntoIterator<Item = Record>,
        now: Millis,
        out: &mut Vec<HopEffect>,
    ) -> Self {
        let mut machine = HopMachine {
            held: BTreeMap::new(),
            retained: Retained::new(config.capacity),
            done: Done::new(config.keep_done),
            jobs: Jobs::new(config.keep_ended),
            queue: RunQueue::new(config.per_node, config.ageing),
            forwards: Forwards::new(config.window, config.resend_min, config.resend_max),
            pending: BTreeMap::new(),
            tickets: 0,
            bytes: 0,
            progress_at: None,
            config,
        };
        for record in records {
            machine.replay(now, record);
        }
        for (hop, held) in &mut machine.held {
            machine.jobs.entry(now, &hop.job);
            if machine.jobs.refusal(hop).is_some() {
                held.phase = Phase::Parked;
            }
        }
        let hops: Vec<HopId> = machine.held.keys().cloned().collect();
        for hop in hops {
            machine.enqueue(now, &hop, out);
        }
        machine.arm_progress(now);
        machine
    }

    /// One input; appends what has to be done.
    pub fn handle(&mut self, now: Millis, input: HopInput, out: &mut Vec<HopEffect>) {
        match input {
            HopInput::Received { from, message, bytes } => match message {
                Message::State(state) => self.receive(now, from, state, bytes, out),
                Message::Ack(ack) => self.acknowledged(now, &from, ack, out),
                Message::Refuse(refuse) => self.refused(now, &from, refuse, out),
                Message::Attach(attach) => self.attach(now, from, attach, out),
                Message::Recall(chain) => self.recall(now, from, chain, out),
                Message::End(end) => self.end(now, Some(from), end, out),
                // `Hello`, `Ping` and `Pong` are the link's; the rest is what agents say.
                Message::Hello(_)
                | Message::Ping { .. }
                | Message::Pong { .. }
                | Message::Progress(_)
                | Message::Recalled(_)
                | Message::Ended { .. } => {}
            },
            HopInput::Persisted { up_to } => self.persisted(now, up_to, out),
            HopInput::Checkpoint { hop, state } => self.checkpoint(hop, state, out),
            HopInput::Ran { hop, state } => self.ran(now, hop, state, out),
            HopInput::Stopped { hop } => self.stopped(now, &hop, out),
            HopInput::Unsendable { hop, reason } => self.unsendable(now, &hop, &reason, out),
            HopInput::Connected { link: Link::Agent(address) } => {
                self.forwards.up(now, Dest::Agent(address.clone()), Link::Agent(address), out);
            }
            HopInput::Connected { link: Link::Conn(_) } => {}
            HopInput::Lost { link } => self.lost(now, link),
            HopInput::Tick => self.tick(now, out),
        }
        self.arm_progress(now);
    }

    /// When [`HopInput::Tick`] is wanted.
    pub fn alarm_at(&self) -> Option<Millis> {
        self.forwards.alarm_at().into_iter().chain(self.progress_at).min()
    }

    /// All that the outbox must hold now: what a new segment starts with when older ones are removed.
    pub fn snapshot(&self) -> Vec<Record> {
        let mut records = Vec::new();
        self.jobs.snapshot(&mut records);
        records.extend(self.done.iter().map(|hop| Record::Done { hop: hop.clone() }));
        records.extend(
            self.held.iter().map(|(hop, held)| Record::Held { hop: hop.clone(), state: held.state.clone() }),
        );
        records.extend(
            self.retained
                .iter()
                .map(|(hop, retained)| Record::Retained { hop: hop.clone(), state: retained.state.clone() }),
        );
        records
    }

    /// Hops that wait for their node, and hops under way.
    pub fn load(&self) -> (u32, u32) {
        let (waiting, running) = self.queue.load();
        (waiting.try_into().unwrap_or(u32::MAX), running.try_into().unwrap_or(u32::MAX))
    }

    /// Hops that this agent must not lose: waiting, under way, or not acknowledged by the next one.
    pub fn pending(&self) -> usize {
        self.held.len()
    }

    fn replay(&mut self, now: Millis, record: Record) {
        match record {
            Record::Held { hop, state } => self.replay_held(hop, state),
            Record::Moved { from, hop, state } => {
                self.held.remove(&from);
                self.done.insert(from);
                self.replay_held(hop, state);
            }
            Record::Retained { hop, state } => {
                if self.jobs.refusal(&hop).is_none() {
                    self.held.remove(&hop);
                    let id = state.hop_id();
                    if let Some(oldest) = self.retained.insert(hop, RetainedHop { id, state }) {
                        self.done.insert(oldest);
                    }
                }
            }
            Record::Done { hop } => {
                self.held.remove(&hop);
                self.retained.remove(&hop);
                self.done.insert(hop);
            }
            Record::Fence { job, epoch, incarnation } => {
                if self.jobs.fence(now, &job, epoch, incarnation).is_some() {
                    let hops: Vec<HopId> =
                        of_job(&self.held, &job).filter(|hop| hop.epoch < epoch).cloned().collect();
                    for hop in hops {
                        self.held.remove(&hop);
                    }
                    self.retained.remove_below(&job, epoch);
                }
            }
            Record::Recalled { chain } => drop(self.jobs.recall(now, &chain)),
            Record::Ended { job, incarnation, retryable } => {
                self.jobs.end(now, &job, retryable);
                let entry = self.jobs.entry(now, &job);
                entry.incarnation = entry.incarnation.max(incarnation);
                if let Some(ended) = &mut entry.ended {
                    ended.durable = true;
                }
                self.forget_job(&job);
            }
        }
    }

    fn replay_held(&mut self, hop: HopId, state: Arc<JobState>) {
        let refused = self.jobs.refusal(&hop).is_some_and(|reason| {
            reason == RefuseReason::Ended || self.jobs.get(&hop.job).is_some_and(|job| hop.epoch < job.fence)
        });
        if !refused {
            self.done.remove(&hop);
            let held = Held {
                state,
                bytes: 0,
                phase: Phase::Queued,
                durable: true,
                ack_to: Vec::new(),
                origin: None,
            };
            self.held.insert(hop, held);
        }
    }

    fn receive(
        &mut self,
        now: Millis,
        from: Link,
        state: Arc<JobState>,
        bytes: u64,
        out: &mut Vec<HopEffect>,
    ) {
        let hop = state.hop_id();
        if let Some(reason) = self.jobs.refusal(&hop) {
            return out.push(HopEffect::Send { to: from, message: Message::refuse(hop, reason) });
        }
        if self.done.contains(&hop) || self.retained.contains(&hop) {
            return out.push(HopEffect::Send { to: from, message: Message::ack(vec![hop]) });
        }
        if let Some(held) = self.held.get_mut(&hop) {
            held.origin = Some((from.clone(), hop.clone()));
            if held.durable {
                return out.push(HopEffect::Send { to: from, message: Message::ack(vec![hop]) });
            }
            // Either its record is on its way to the disk, or it was moved here lazily by this agent itself and
            // somebody else now wants to forget it: then it must become durable first.
            let record = Record::Held { hop: hop.clone(), state: held.state.clone() };
            let persisting = held.phase == Phase::Persisting || !held.ack_to.is_empty();
            if !held.ack_to.contains(&from) {
                held.ack_to.push(from);
            }
            if !persisting {
                self.persist(Pending::Hop(hop), record, out);
            }
            return;
        }
        let room = self.config.capacity.saturating_add(hop.hop as usize);
        let first_and_full = hop.hop == 0 && self.bytes.saturating_add(bytes) > self.config.capacity_bytes;
        if self.held.len() >= room || (first_and_full && !self.held.is_empty()) {
            let message = Message::refuse(hop, RefuseReason::Busy);
            return out.push(HopEffect::Send { to: from, message });
        }
        self.jobs.entry(now, &hop.job);
        let held = Held {
            state: state.clone(),
            bytes,
            phase: Phase::Persisting,
            durable: false,
            ack_to: vec![from.clone()],
            origin: Some((from, hop.clone())),
        };
        self.hold(hop.clone(), held);
        self.persist(Pending::Hop(hop.clone()), Record::Held { hop: hop.clone(), state }, out);
        #[cfg(test)]
        if self.config.ack_before_persist {
            let up_to = self.tickets;
            self.persisted(now, up_to, out);
        }
    }

    fn persisted(&mut self, now: Millis, up_to: u64, out: &mut Vec<HopEffect>) {
        let later = self.pending.split_off(&up_to.saturating_add(1));
        let durable = std::mem::replace(&mut self.pending, later);
        let mut acks: BTreeMap<Link, Vec<HopId>> = BTreeMap::new();
        let mut ready = Vec::new();
        for pending in durable.into_values() {
            match pending {
                Pending::Hop(hop) => {
                    let Some(held) = self.held.get_mut(&hop) else { continue };
                    held.durable = true;
                    for link in std::mem::take(&mut held.ack_to) {
                        acks.entry(link).or_default().push(hop.clone());
                    }
                    if held.phase == Phase::Persisting {
                        ready.push(hop);
                    }
                }
                Pending::Ended(job) => {
                    if let Some(ended) = self.jobs.get_mut(&job).and_then(|job| job.ended.as_mut()) {
                        ended.durable = true;
                    }
                    self.answer_end(&job, out);
                }
            }
        }
        out.extend(acks.into_iter().map(|(to, hops)| HopEffect::Send { to, message: Message::ack(hops) }));
        for hop in ready {
            self.enqueue(now, &hop, out);
        }
    }

    /// A hop's record is durable, or as good as: what is to be done with it next?
    fn enqueue(&mut self, now: Millis, hop: &HopId, out: &mut Vec<HopEffect>) {
        let Some(held) = self.held.get_mut(hop) else { return };
        if held.phase == Phase::Parked {
            return;
        }
        let Some(node) = held.state.due_node().map(|node| node.id.clone()) else {
            // Nothing to be run: a state that is for the coordinator.
            let state = held.state.clone();
            return self.forward(now, hop, state, out);
        };
        held.phase = Phase::Queued;
        self.queue.push(now, hop.clone(), node.clone(), held.state.job.priority);
        self.start(&node, out);
    }

    /// Starts what may run on a node.
    fn start(&mut self, node: &NodeId, out: &mut Vec<HopEffect>) {
        while let Some(hop) = self.queue.start(node) {
            let Some(held) = self.held.get_mut(&hop) else {
                self.queue.stopped(&hop);
                continue;
            };
            held.phase = Phase::Running;
            out.push(HopEffect::Run { hop, state: held.state.clone() });
        }
    }

    fn checkpoint(&mut self, hop: HopId, state: Arc<JobState>, out: &mut Vec<HopEffect>) {
        let Some(held) = self.held.get_mut(&hop) else { return };
        if held.phase != Phase::Running {
            return;
        }
        held.state = state.clone();
        let progress = progress_of(&hop, &state);
        out.push(HopEffect::Note { record: Record::Held { hop: hop.clone(), state } });
        if let Some(conn) = self.jobs.get(&hop.job).and_then(|job| job.conn) {
            out.push(HopEffect::Send { to: Link::Conn(conn), message: progress });
        }
    }

    fn ran(&mut self, now: Millis, hop: HopId, mut state: Arc<JobState>, out: &mut Vec<HopEffect>) {
        let running = self.held.get(&hop).is_some_and(|held| held.phase == Phase::Running);
        if !running {
            return self.stopped(now, &hop, out);
        }
        let freed = self.queue.stopped(&hop);
        if state.failed.is_none() && state.position <= hop.hop {
            fail(&mut state, "the hop has ended without going on".into());
        }
        if state.failed.is_some() {
            // A failed chain skips the rest of its route; the id of that hand-off must not be one of a hop.
            Arc::make_mut(&mut state).position = state.route.len() as u32;
        }
        let own = state.due_node().is_some_and(|node| match &node.agent {
            None => true,
            Some(address) => *address == self.config.address,
        });
        if own {
            self.move_on(now, hop, state, out);
        } else {
            self.forward(now, &hop, state, out);
        }
        if let Some(node) = freed {
            self.start(&node, out);
        }
    }

    /// The next hop is this agent's own: one record does both, so nothing has to be durable in between.
    fn move_on(&mut self, now: Millis, from: HopId, state: Arc<JobState>, out: &mut Vec<HopEffect>) {
        let hop = state.hop_id();
        let Some(held) = self.unhold(&from) else { return };
        self.done.insert(from.clone());
        out.push(HopEffect::Note { record: Record::Moved { from, hop: hop.clone(), state: state.clone() } });
        if self.held.contains_key(&hop) || self.done.contains(&hop) {
            return; // it was here already: this one is what a crash has made run twice
        }
        let held = Held { state, phase: Phase::Queued, durable: false, ack_to: Vec::new(), ..held };
        self.hold(hop.clone(), held);
        self.enqueue(now, &hop, out);
    }

    fn forward(&mut self, now: Millis, hop: &HopId, state: Arc<JobState>, out: &mut Vec<HopEffect>) {
        let Some(held) = self.held.get_mut(hop) else { return };
        held.phase = Phase::Forwarding;
        let agent = state.due_node().and_then(|node| node.agent.clone());
        let dest = agent.map_or_else(|| Dest::Coordinator(hop.job.clone()), Dest::Agent);
        self.forwards.add(now, hop.clone(), dest, state, out);
    }

    fn acknowledged(&mut self, now: Millis, from: &Link, ack: Ack, out: &mut Vec<HopEffect>) {
        for id in ack.hops {
            for (hop, forward) in self.forwards.take(now, &id, from, out) {
                let Some(held) = self.unhold(&hop) else { continue };
                let retains = forward.state.job.limits.retain >= 2;
                if retains && matches!(forward.dest, Dest::Agent(_)) {
                    self.retain(hop, forward, out);
                } else {
                    self.done(hop, out);
                }
                if let Some((to, id)) = held.origin.filter(|_| retains) {
                    let ack = Ack { hops: Vec::new(), forwarded: vec![id] };
                    out.push(HopEffect::Send { to, message: Message::Ack(ack) });
                }
            }
        }
        for id in ack.forwarded {
            if let Some(hop) = self.retained.sent_as(&id) {
                self.retained.remove(&hop);
                self.done(hop, out);
            }
        }
    }

    fn retain(&mut self, hop: HopId, forward: Forward, out: &mut Vec<HopEffect>) {
        out.push(HopEffect::Note {
            record: Record::Retained { hop: hop.clone(), state: forward.state.clone() },
        });
        let retained = RetainedHop { id: forward.id, state: forward.state };
        if let Some(oldest) = self.retained.insert(hop, retained) {
            self.done(oldest, out);
        }
    }

    fn done(&mut self, hop: HopId, out: &mut Vec<HopEffect>) {
        out.push(HopEffect::Note { record: Record::Done { hop: hop.clone() } });
        self.done.insert(hop);
    }

    fn refused(&mut self, now: Millis, from: &Link, refuse: Refuse, out: &mut Vec<HopEffect>) {
        match refuse.reason {
            RefuseReason::Busy => self.forwards.busy(now, &refuse.hop, from, out),
            RefuseReason::TooLarge { limit } => {
                let reason = format!("the job state is over the receiver's limit of {limit} bytes");
                for (hop, forward) in self.forwards.take(now, &refuse.hop, from, out) {
                    self.fail_forward(now, hop, forward, reason.clone(), out);
                }
            }
            RefuseReason::Ended | RefuseReason::StaleEpoch { .. } => {
                for (hop, forward) in self.forwards.take(now, &refuse.hop, from, out) {
                    if matches!(forward.dest, Dest::Agent(_)) && refuse.reason != RefuseReason::Ended {
                        // The chain has been recalled there: the coordinator will ask here too.
                        self.park(now, &hop, Some(forward.state), out);
                    } else {
                        self.unhold(&hop);
                        self.done(hop, out);
                    }
                }
            }
        }
    }

    fn unsendable(&mut self, now: Millis, id: &HopId, reason: &str, out: &mut Vec<HopEffect>) {
        let Some(hop) = self.forwards.held_as(id) else { return };
        if let Some(forward) = self.forwards.remove(now, &hop, out) {
            self.fail_forward(now, hop, forward, reason.to_owned(), out);
        }
    }

    /// A state that cannot go on as it is goes to the coordinator without what made it too large.
    fn fail_forward(
        &mut self,
        now: Millis,
        hop: HopId,
        forward: Forward,
        reason: String,
        out: &mut Vec<HopEffect>,
    ) {
        let mut state = forward.state;
        let already = state.failed.is_some() && state.parts.is_empty();
        fail(&mut state, reason);
        let inner = Arc::make_mut(&mut state);
        inner.position = inner.route.len() as u32;
        inner.parts = Vec::new();
        inner.acc = Default::default();
        inner.reports = Vec::new();
        if already {
            // Nothing is left to be taken off: the coordinator hears of it when it recalls the chain.
            self.park(now, &hop, Some(state), out);
        } else {
            self.forward(now, &hop, state, out);
        }
    }

    fn attach(&mut self, now: Millis, from: Link, attach: Attach, out: &mut Vec<HopEffect>) {
        let Link::Conn(conn) = from else { return };
        let Attach { job, epoch, incarnation } = attach;
        let Some(news) = self.jobs.fence(now, &job, epoch, incarnation) else {
            if self.jobs.get(&job).is_some_and(|job| job.ended.is_some()) {
                self.reply_ended(&job, from, out);
            }
            return;
        };
        let entry = self.jobs.entry(now, &job);
        entry.conn = Some(conn);
        let epoch = entry.fence;
        if news {
            out.push(HopEffect::Note { record: Record::Fence { job: job.clone(), epoch, incarnation } });
            let stale: Vec<HopId> =
                of_job(&self.held, &job).filter(|hop| hop.epoch < epoch).cloned().collect();
            for hop in stale {
                self.drop_hop(now, &hop, RefuseReason::StaleEpoch { current: epoch }, out);
            }
            self.retained.remove_below(&job, epoch);
        }
        self.forwards.up(now, Dest::Coordinator(job.clone()), Link::Conn(conn), out);
        self.report(&job, conn, out);
    }

    fn recall(&mut self, now: Millis, from: Link, chain: ChainId, out: &mut Vec<HopEffect>) {
        if self.jobs.get(&chain.job).is_some_and(|job| job.ended.is_some()) {
            return self.reply_ended(&chain.job, from, out);
        }
        if self.jobs.recall(now, &chain) {
            out.push(HopEffect::Note { record: Record::Recalled { chain: chain.clone() } });
        }
        let hops: Vec<HopId> =
            of_job(&self.held, &chain.job).filter(|hop| ChainId::of_hop(hop) == chain).cloned().collect();
        for hop in hops {
            let sent = self.forwards.remove(now, &hop, out).map(|forward| forward.state);
            self.park(now, &hop, sent, out);
        }
        let held = of_job(&self.held, &chain.job)
            .filter(|hop| ChainId::of_hop(hop) == chain)
            .filter_map(|hop| self.held.get(hop))
            .map(|held| &held.state);
        let state = held
            .chain(self.retained.of_chain(&chain))
            .max_by_key(|state| (state.position, state.units_done()))
            .cloned();
        out.push(HopEffect::Send { to: from, message: Message::Recalled(Recalled { chain, state }) });
    }

    fn end(&mut self, now: Millis, from: Option<Link>, end: End, out: &mut Vec<HopEffect>) {
        let End { job, why } = end;
        let retryable = why == EndReason::Failed;
        if self.jobs.end(now, &job, retryable) {
            let incarnation = self.jobs.entry(now, &job).incarnation;
            let record = Record::Ended { job: job.clone(), incarnation, retryable };
            self.persist(Pending::Ended(job.clone()), record, out);
            let hops: Vec<HopId> = of_job(&self.held, &job).cloned().collect();
            for hop in hops {
                self.drop_hop(now, &hop, RefuseReason::Ended, out);
            }
            self.forget_job(&job);
            self.forwards.down(now, &Dest::Coordinator(job.clone()));
            self.jobs.entry(now, &job).conn = None;
        }
        if let Some(from) = from {
            self.reply_ended(&job, from, out);
        }
    }

    /// Says that a job has ended as soon as it is true.
    fn reply_ended(&mut self, job: &str, to: Link, out: &mut Vec<HopEffect>) {
        if let Some(ended) = self.jobs.get_mut(job).and_then(|job| job.ended.as_mut())
            && !ended.reply_to.contains(&to)
        {
            ended.reply_to.push(to);
        }
        self.answer_end(job, out);
    }

    fn answer_end(&mut self, job: &str, out: &mut Vec<HopEffect>) {
        if self.queue.runs_job(job) {
            return;
        }
        let Some(ended) = self.jobs.get_mut(job).and_then(|job| job.ended.as_mut()) else { return };
        if ended.durable {
            let message = Message::Ended { job: job.to_owned() };
            let links = std::mem::take(&mut ended.reply_to);
            out.extend(links.into_iter().map(|to| HopEffect::Send { to, message: message.clone() }));
        }
    }

    /// Work has stopped, because it was told to or by itself.
    fn stopped(&mut self, now: Millis, hop: &HopId, out: &mut Vec<HopEffect>) {
        let Some(node) = self.queue.stopped(hop) else { return };
        if self.held.get(hop).is_some_and(|held| held.phase == Phase::Running) {
            self.enqueue(now, hop, out);
        }
        self.answer_end(&hop.job, out);
        self.start(&node, out);
    }

    fn lost(&mut self, now: Millis, link: Link) {
        match link {
            Link::Agent(address) => self.forwards.down(now, &Dest::Agent(address)),
            Link::Conn(conn) => {
                let jobs: Vec<String> = self
                    .jobs
                    .iter()
                    .filter(|(_, job)| job.conn == Some(conn))
                    .map(|(name, _)| name.clone())
                    .collect();
                for job in jobs {
                    self.forwards.down(now, &Dest::Coordinator(job.clone()));
                    let entry = self.jobs.entry(now, &job);
                    entry.conn = None;
                    entry.alone_since = now;
                    if of_job(&self.held, &job).next().is_none() {
                        self.jobs.forget(&job);
                    }
                }
            }
        }
    }

    fn tick(&mut self, now: Millis, out: &mut Vec<HopEffect>) {
        self.forwards.tick(now, out);
        if self.progress_at.is_none_or(|at| at > now) {
            return;
        }
        self.progress_at = None;
        let mut orphans = Vec::new();
        let mut last = None;
        let jobs: Vec<String> = self
            .held
            .keys()
            .filter(|hop| last.replace(&hop.job) != Some(&hop.job))
            .map(|hop| hop.job.clone())
            .collect();
        for job in jobs {
            let Some(entry) = self.jobs.get(&job) else { continue };
            match entry.conn {
                Some(conn) => self.report(&job, conn, out),
                None if now.saturating_sub(entry.alone_since) >= self.config.orphan_after => {
                    orphans.push(job)
                }
                None => {}
            }
        }
        for job in orphans {
            self.end(now, None, End { job, why: EndReason::Failed }, out);
        }
    }

    /// Tells a coordinator what is held of its job.
    fn report(&self, job: &str, conn: u64, out: &mut Vec<HopEffect>) {
        for hop in of_job(&self.held, job) {
            if let Some(held) = self.held.get(hop).filter(|held| held.phase != Phase::Parked) {
                out.push(HopEffect::Send { to: Link::Conn(conn), message: progress_of(hop, &held.state) });
            }
        }
    }

    fn arm_progress(&mut self, now: Millis) {
        if self.held.is_empty() {
            self.progress_at = None;
        } else if self.progress_at.is_none() {
            self.progress_at = Some(now.saturating_add(self.config.progress_every.max(1)));
        }
    }

    /// Keeps a hop without running or sending it.
    fn park(&mut self, now: Millis, hop: &HopId, sent: Option<Arc<JobState>>, out: &mut Vec<HopEffect>) {
        self.stop(now, hop, out);
        let current = hop.epoch.saturating_add(1);
        let Some(held) = self.held.get_mut(hop) else { return };
        held.phase = Phase::Parked;
        if let Some(sent) = sent {
            held.state = sent;
        }
        for to in std::mem::take(&mut held.ack_to) {
            let message = Message::refuse(hop.clone(), RefuseReason::StaleEpoch { current });
            out.push(HopEffect::Send { to, message });
        }
    }

    /// Drops a hop; what makes that durable is the caller's record.
    fn drop_hop(&mut self, now: Millis, hop: &HopId, reason: RefuseReason, out: &mut Vec<HopEffect>) {
        self.stop(now, hop, out);
        let Some(held) = self.unhold(hop) else { return };
        for to in held.ack_to {
            out.push(HopEffect::Send { to, message: Message::refuse(hop.clone(), reason) });
        }
    }

    /// A hop is not to be run or sent any more.
    fn stop(&mut self, now: Millis, hop: &HopId, out: &mut Vec<HopEffect>) {
        self.queue.remove(hop);
        self.forwards.remove(now, hop, out);
        let running = self.held.get(hop).is_some_and(|held| held.phase == Phase::Running);
        if running && self.queue.is_running(hop) {
            out.push(HopEffect::Abort { hop: hop.clone() });
        }
    }

    fn forget_job(&mut self, job: &str) {
        self.held.retain(|hop, _| hop.job != job);
        self.retained.remove_below(job, u32::MAX);
        self.done.remove_job(job);
    }

    fn hold(&mut self, hop: HopId, held: Held) {
        self.bytes = self.bytes.saturating_add(held.bytes);
        self.held.insert(hop, held);
    }

    fn unhold(&mut self, hop: &HopId) -> Option<Held> {
        let held = self.held.remove(hop)?;
        self.bytes = self.bytes.saturating_sub(held.bytes);
        Some(held)
    }

    fn persist(&mut self, pending: Pending, record: Record, out: &mut Vec<HopEffect>) {
        self.tickets += 1;
        self.pending.insert(self.tickets, pending);
        out.push(HopEffect::Persist { ticket: self.tickets, record });
    }
}

/// The hops of one job among those that are held.
fn of_job<'a>(held: &'a BTreeMap<HopId, Held>, job: &'a str) -> impl Iterator<Item = &'a HopId> {
    held.range(first_hop(job)..).map(|(hop, _)| hop).take_while(move |hop| hop.job == job)
}

/// Where a job's hops start in an ordered map.
fn first_hop(job: &str) -> HopId {
    HopId { job: job.to_owned(), chain: 0, epoch: 0, hop: 0 }
}

fn progress_of(hop: &HopId, state: &JobState) -> Message {
    Message::Progress(Progress {
        chain: ChainId::of_hop(hop),
        position: hop.hop,
        node: state.due_node().map(|node| node.id.clone()).unwrap_or_default(),
        tally: state.tally,
        units_done: state.units_done(),
    })
}

fn fail(state: &mut Arc<JobState>, reason: String) {
    let node = state.due_node().map(|node| node.id.clone()).unwrap_or_default();
    let state = Arc::make_mut(state);
    if state.failed.is_none() {
        state.failed = Some(KeyError { key: Vec::new(), node, reason });
    }
}
