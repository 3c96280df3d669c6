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

#[cfg(test)]
mod canon;
mod control;
mod done;
mod forward;
mod handover;
mod intake;
mod jobs;
mod queue;
mod record;

use std::collections::BTreeMap;
use std::sync::Arc;

use self::done::{Done, Retained};
use self::forward::{Dest, Forwards};
use self::jobs::Jobs;
use self::queue::RunQueue;
pub use self::record::Record;
use super::message::Message;
use super::state::{HopId, JobState};
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
#[derive(Debug, Clone)]
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
#[derive(Debug, Clone)]
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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

#[derive(Debug, Clone, Hash)]
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
}

/// The hops of one job among those that are held.
fn of_job<'a>(held: &'a BTreeMap<HopId, Held>, job: &'a str) -> impl Iterator<Item = &'a HopId> {
    held.range(first_hop(job)..).map(|(hop, _)| hop).take_while(move |hop| hop.job == job)
}

/// Where a job's hops start in an ordered map.
fn first_hop(job: &str) -> HopId {
    HopId { job: job.to_owned(), chain: 0, epoch: 0, hop: 0 }
}

#[cfg(test)]
mod tests;
