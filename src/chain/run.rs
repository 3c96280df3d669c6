//! The coordinator's side of one job, as a state machine: inputs in, effects out, no clock, no socket, no disk.
//!
//! ```text
//!  start ──> NeedPlan ──> Planned ──> chains on their way ──> returned | recalled ──> folded
//!               ▲                                                                       │
//!               └────────── units are open: epoch + 1 ──────────────────────────────────┤
//!                                                                                       ▼ nothing is open
//!                                    Finished <── all agents say Ended <── End <── ending (durable)
//! ```
//! **Exactly once.** A chain is live from its plan until its last state is folded, or until it is given up. Each live
//! chain is folded at most once, into a record in which it is not live any more; the slots of live chains are disjoint
//! from each other and from what is folded. So each unit is folded once, whatever the agents do, and however often
//! they say it. The record is durable before a return is acknowledged, and a plan before its states are sent.
//!
//! **Epochs** number the plans. Chains of several epochs may be live: what a lost agent or a moving slot has left open
//! is planned again while the others go on. Agents are told the lowest live epoch (the fence) and drop what is below.
//!
//! **A chain is given up** when an agent on the rest of its route is lost, or when nobody has reported it for
//! `hop_timeout`: its agents are asked for the newest state that they hold (`Recall`), which makes them stop it. The
//! best answer is folded, and a later return of the chain is refused. If nobody has anything, its units are open again.
//!
//! **Giving up.** A plan that is made with no chain on its way and settles no unit is idle; each one is followed by a
//! longer wait; after `max_replans` of them the job fails and names what is open and why.
//!
//! **The end** is made durable, then told to all agents that may know of the job, and is over when they have said
//! `Ended`: durably, with nothing running. For an agent that is lost, or does not answer for `end_timeout`, the outcome
//! names it as unconfirmed.
//!
//! **After a restart** [`RunMachine::recover`] attaches again; agents deliver what they hold. States that were planned
//! but perhaps never sent are sent again, and agents that have them acknowledge them.

mod record;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use self::record::SettleError;
pub use self::record::{Goal, LiveChain, MAX_REPORTS, PartKey, RunOutcome, RunRecord, Settled, SettledPart};
use super::job::{Access, JobSpec, Target};
use super::message::{Attach, ChainId, End, EndReason, Message, Recalled, Refuse, RefuseReason};
use super::slots::SlotSet;
use super::state::{HopId, JobState, KeyError, Sequence};
use super::value::Value;
use crate::core::task::Millis;

/// What happens to a run.
#[derive(Debug, Clone)]
pub enum RunInput {
    /// The answer to [`RunEffect::NeedPlan`].
    Planned {
        /// The epoch that was asked for.
        epoch: u32,
        /// The chains, numbered from 0; no two share a slot.
        chains: Vec<JobState>,
        /// Slots that no chain covers, and why.
        uncovered: BTreeMap<u16, String>,
    },
    /// No plan could be made.
    PlanFailed {
        /// The epoch that was asked for.
        epoch: u32,
        /// Why.
        reason: String,
        /// Trying again is of no use.
        permanent: bool,
    },
    /// A message of an agent (by its address) about this job.
    Received {
        /// The agent.
        from: String,
        /// What.
        message: Message,
    },
    /// The record of this ticket, and all before, is durable.
    Persisted {
        /// The ticket of a [`RunEffect::Persist`].
        ticket: u64,
    },
    /// A connection to an agent is up, or one that was said to be lost is heard of again.
    Connected {
        /// The agent.
        agent: String,
    },
    /// An agent has not been heard of for too long, or cannot be reached.
    AgentLost {
        /// The agent.
        agent: String,
    },
    /// The answer to [`RunEffect::Verify`]; may also come unasked.
    Verified {
        /// Primaries that were replaced by a failover since: what ran under them is open again.
        gone: Vec<PartKey>,
    },
    /// An operator wants the job to end.
    Cancel,
    /// [`RunMachine::alarm_at`] has come.
    Tick,
}

/// What the actor has to do, in this order.
#[derive(Debug, Clone, PartialEq)]
pub enum RunEffect {
    /// Make the record durable (it replaces the one before), then answer [`RunInput::Persisted`].
    Persist {
        /// Ascending. At most one is under way.
        ticket: u64,
        /// What.
        record: Arc<RunRecord>,
    },
    /// Look at the cluster and plan what is open; answer [`RunInput::Planned`] or [`RunInput::PlanFailed`].
    NeedPlan {
        /// The new chains' epoch.
        epoch: u32,
        /// The open slots ([`Goal::Slots`]).
        open: SlotSet,
        /// Where a sequential job goes on, and with what.
        sequence: Sequence,
        /// See `sequence`.
        acc: Value,
        /// Agents that are not there: plan around them.
        lost: BTreeSet<String>,
    },
    /// Compare the replication ids with those of the primaries now; answer [`RunInput::Verified`].
    Verify {
        /// Under which the job has written.
        parts: Vec<PartKey>,
    },
    /// Send to an agent if it is connected, else dial it and drop the message: the machine sends again when it is.
    Send {
        /// The agent's address; [`RunConfig::direct`] is the one in this process.
        to: String,
        /// What.
        message: Message,
    },
    /// It is over, durably: the result is in the record.
    Finished {
        /// How.
        outcome: RunOutcome,
    },
}

/// A run's times.
#[derive(Debug, Clone)]
pub struct RunConfig {
    /// The incarnation of the job's task: raised whenever another coordinator takes it over.
    pub incarnation: u64,
    /// What stands for the agent in the coordinator's own process ([`PlanNode::agent`](super::state::PlanNode) is
    /// `None`).
    pub direct: String,
    /// A chain that nobody has reported for this long is recalled.
    pub hop_timeout: Millis,
    /// How long agents are waited for when a chain is recalled.
    pub recall_timeout: Millis,
    /// How long agents are waited for when the job has failed or is cancelled.
    pub end_timeout: Millis,
    /// How long agents are waited for when all is done, and nothing can run any more.
    pub finish_timeout: Millis,
    /// How long after a plan the next one is made while chains of earlier ones are still on their way, so that what
    /// they leave open is gathered.
    pub regroup: Millis,
    /// The first wait before an unanswered message is sent again; doubles up to `resend_max`.
    pub resend_min: Millis,
    /// The longest wait.
    pub resend_max: Millis,
    /// The wait after a first plan that settled nothing; doubles up to `replan_max`.
    pub replan_min: Millis,
    /// The longest wait.
    pub replan_max: Millis,
}

impl Default for RunConfig {
    fn default() -> Self {
        RunConfig {
            incarnation: 0,
            direct: "direct".into(),
            hop_timeout: 30_000,
            recall_timeout: 3_000,
            end_timeout: 10_000,
            finish_timeout: 1_000,
            regroup: 1_000,
            resend_min: 500,
            resend_max: 10_000,
            replan_min: 50,
            replan_max: 5_000,
        }
    }
}

/// The coordinator's state machine for one job.
#[derive(Debug)]
pub struct RunMachine {
    config: RunConfig,
    record: Arc<RunRecord>,
    /// Raised by every change of the record.
    version: u64,
    /// The version that is durable, and the fence as of then.
    durable: u64,
    fence: u32,
    /// The version that is being made durable, and its fence.
    persisting: Option<(u64, u32)>,
    /// The version that somebody waits for.
    urgent: u64,
    /// What is done when a version is durable, in order.
    after: VecDeque<(u64, RunEffect)>,
    /// What is known of live chains, by epoch and number.
    watches: BTreeMap<(u32, u16), Watch>,
    /// Agents that are planned around, and when they are tried again.
    lost: BTreeSet<String>,
    knock: Backoff,
    /// A plan has been asked for, or a comparison of the primaries.
    planning: bool,
    verifying: bool,
    verified: bool,
    /// When the last plan came in, and when the last chain ended or a plan failed.
    planned_at: Millis,
    idle_since: Millis,
    plan_trouble: Option<String>,
    ending: Option<Ending>,
    alarm: Option<Millis>,
}

/// What is known of a live chain.
#[derive(Debug)]
struct Watch {
    /// The version that has it: nothing is sent before that is durable.
    since: u64,
    /// When somebody last spoke of it.
    heard_at: Millis,
    /// When it is sent, or its agents attached to, again.
    nudge: Backoff,
    /// The highest hop that an agent has reported to hold.
    position: u32,
    units: u64,
    recall: Option<Recall>,
}

/// A chain that is being given up.
#[derive(Debug)]
struct Recall {
    /// Who has not answered.
    waiting: BTreeSet<String>,
    best: Option<Arc<JobState>>,
    until: Millis,
    again: Backoff,
}

/// The end that is being told.
#[derive(Debug)]
struct Ending {
    version: u64,
    waiting: BTreeSet<String>,
    confirmed: BTreeSet<String>,
    until: Millis,
    again: Backoff,
}

/// When something is done again.
#[derive(Debug, Clone, Copy)]
struct Backoff {
    at: Millis,
    wait: Millis,
}

impl Backoff {
    fn new(now: Millis, config: &RunConfig) -> Self {
        Backoff { at: now.saturating_add(config.resend_min), wait: config.resend_min }
    }

    /// Whether it is time; then the next time is later.
    fn is_due(&mut self, now: Millis, config: &RunConfig) -> bool {
        let due = now >= self.at;
        if due {
            self.wait = self.wait.saturating_mul(2).min(config.resend_max);
            self.at = now.saturating_add(self.wait);
        }
        due
    }
}

impl RunMachine {
    /// A new run: it persists its record and asks for a plan.
    pub fn start(
        config: RunConfig,
        spec: Arc<JobSpec>,
        goal: Goal,
        now: Millis,
        out: &mut Vec<RunEffect>,
    ) -> Self {
        let mut machine = Self::with_record(config, RunRecord::new(spec, goal), now);
        machine.version = 1;
        machine.urgent = 1;
        machine.step(now, out);
        machine
    }

    /// Goes on with a run after a restart or a takeover; `record` is what was persisted last.
    pub fn recover(config: RunConfig, record: RunRecord, now: Millis, out: &mut Vec<RunEffect>) -> Self {
        let mut machine = Self::with_record(config, record, now);
        if machine.record.over {
            let outcome = machine.record.ending.clone();
            out.extend(outcome.map(|outcome| RunEffect::Finished { outcome }));
        } else if machine.record.ending.is_some() {
            machine.tell_end(now);
            let message = machine.end_message();
            out.extend(
                machine
                    .record
                    .agents
                    .iter()
                    .map(|agent| RunEffect::Send { to: agent.clone(), message: message.clone() }),
            );
        } else {
            machine.attach_all(out);
            let live: Vec<LiveChain> = machine.record.live.clone();
            for chain in &live {
                machine.watch(now, chain);
                out.extend(first_send(chain));
            }
        }
        machine.step(now, out);
        machine
    }

    fn with_record(config: RunConfig, record: RunRecord, now: Millis) -> Self {
        RunMachine {
            fence: record.fence(),
            record: Arc::new(record),
            version: 0,
            durable: 0,
            persisting: None,
            urgent: 0,
            after: VecDeque::new(),
            watches: BTreeMap::new(),
            lost: BTreeSet::new(),
            knock: Backoff { at: now, wait: config.resend_max },
            planning: false,
            verifying: false,
            verified: false,
            planned_at: now,
            idle_since: now,
            plan_trouble: None,
            ending: None,
            alarm: None,
            config,
        }
    }

    /// One input; appends what has to be done.
    pub fn handle(&mut self, now: Millis, input: RunInput, out: &mut Vec<RunEffect>) {
        match input {
            RunInput::Received { from, message } => {
                self.lost.remove(&from);
                match message {
                    Message::Progress(progress) => {
                        // The most frequent input changes nothing that could be due earlier.
                        if let Some(watch) =
                            self.watches.get_mut(&(progress.chain.epoch, progress.chain.chain))
                        {
                            watch.heard_at = now;
                            watch.position = watch.position.max(progress.position);
                            watch.units = watch.units.max(progress.units_done);
                        }
                        return;
                    }
                    Message::State(state) => self.returned(now, from, &state, out),
                    Message::Ack(ack) => {
                        for hop in &ack.hops {
                            self.acknowledged(now, &from, hop);
                        }
                    }
                    Message::Refuse(refuse) => self.refused(now, &from, refuse),
                    Message::Recalled(recalled) => self.recalled(now, &from, recalled),
                    Message::Ended { .. } => self.agent_ended(from),
                    // The rest is the link's, or what coordinators say.
                    Message::Hello(_)
                    | Message::Ping { .. }
                    | Message::Pong { .. }
                    | Message::Attach(_)
                    | Message::Recall(_)
                    | Message::End(_) => {}
                }
            }
            RunInput::Planned { epoch, chains, uncovered } => self.planned(now, epoch, chains, uncovered),
            RunInput::PlanFailed { epoch, reason, permanent } => {
                if self.planning && epoch == self.record.epoch + 1 {
                    self.planning = false;
                    self.idle_since = now;
                    self.planned_at = now;
                    if permanent {
                        self.begin_end(now, EndReason::Failed, Some(reason));
                    } else {
                        self.plan_trouble = Some(reason);
                    }
                }
            }
            RunInput::Persisted { ticket } => self.persisted(ticket, out),
            RunInput::Connected { agent } => self.connected(&agent, out),
            RunInput::AgentLost { agent } => self.agent_lost(now, agent),
            RunInput::Verified { gone } => {
                self.verified = std::mem::take(&mut self.verifying);
                if self.record.ending.is_none()
                    && self.record.settled.parts.iter().any(|part| gone.contains(&part.key))
                {
                    let record = self.change();
                    record.reopen(&gone);
                    // It is no fault of the next plan that fewer units are done than before the last one.
                    record.units_at_plan = None;
                    self.idle_since = now;
                    self.verified = false;
                }
            }
            RunInput::Cancel => self.begin_end(now, EndReason::Cancelled, None),
            RunInput::Tick => {}
        }
        self.step(now, out);
    }

    /// When [`RunInput::Tick`] is wanted.
    pub fn alarm_at(&self) -> Option<Millis> {
        self.alarm
    }

    /// What is known and folded so far; may be ahead of what is durable.
    pub fn record(&self) -> &RunRecord {
        &self.record
    }

    /// Units done: those folded, and those that chains on their way have reported.
    pub fn units_done(&self) -> u64 {
        let settled = self.record.units_settled();
        match self.record.goal {
            Goal::Slots(_) => settled + self.watches.values().map(|watch| watch.units).sum::<u64>(),
            Goal::Sequence => self.watches.values().map(|watch| watch.units).fold(settled, u64::max),
        }
    }

    /// All that follows from how things stand.
    fn step(&mut self, now: Millis, out: &mut Vec<RunEffect>) {
        if self.record.ending.is_some() {
            self.step_ending(now, out);
        } else {
            self.step_chains(now, out);
            self.step_plan(now, out);
            if self.record.ending.is_some() {
                self.step_ending(now, out); // a run without agents has nobody to tell
            }
        }
        while self.after.front().is_some_and(|(version, _)| *version <= self.durable) {
            out.extend(self.after.pop_front().map(|(_, effect)| effect));
        }
        if self.persisting.is_none() && self.urgent > self.durable {
            self.persisting = Some((self.version, self.record.fence()));
            out.push(RunEffect::Persist { ticket: self.version, record: self.record.clone() });
        }
        self.alarm = self.next_alarm();
    }

    /// Chains on their way: what is due for them.
    fn step_chains(&mut self, now: Millis, out: &mut Vec<RunEffect>) {
        let mut give_up = Vec::new();
        let mut ended = Vec::new();
        let attach = self.attach_message();
        for chain in &self.record.live {
            let key = (chain.epoch, chain.chain);
            let Some(watch) = self.watches.get_mut(&key) else { continue };
            let id = ChainId { job: self.record.spec.id.clone(), epoch: chain.epoch, chain: chain.chain };
            if let Some(recall) = &mut watch.recall {
                if recall.waiting.is_empty() || now >= recall.until {
                    ended.push(key);
                } else if recall.again.is_due(now, &self.config) {
                    out.extend(recall.waiting.iter().map(|agent| RunEffect::Send {
                        to: agent.clone(),
                        message: Message::Recall(id.clone()),
                    }));
                }
            } else if now >= watch.heard_at.saturating_add(self.config.hop_timeout) {
                give_up.push(key);
            } else if watch.since <= self.durable && watch.nudge.is_due(now, &self.config) {
                match first_send(chain) {
                    Some(effect) => {
                        // An agent that is full of what has been superseded learns so by the attach.
                        if let RunEffect::Send { to, .. } = &effect {
                            out.push(RunEffect::Send { to: to.clone(), message: attach.clone() });
                        }
                        out.push(effect);
                    }
                    // A chain that nobody speaks of may be held by an agent that has missed the attach.
                    None if now >= watch.heard_at.saturating_add(self.config.hop_timeout / 4) => {
                        let agents: BTreeSet<&String> = chain.agents.iter().collect();
                        out.extend(
                            agents
                                .into_iter()
                                .map(|agent| RunEffect::Send { to: agent.clone(), message: attach.clone() }),
                        );
                    }
                    None => {}
                }
            }
        }
        if !self.lost.is_empty() && self.knock.is_due(now, &self.config) {
            out.extend(
                self.lost.iter().map(|agent| RunEffect::Send { to: agent.clone(), message: attach.clone() }),
            );
        }
        for key in give_up {
            self.begin_recall(now, key);
        }
        for key in ended {
            self.give_up(now, key);
        }
    }

    /// Whether it is over, or what is open is to be planned.
    fn step_plan(&mut self, now: Millis, out: &mut Vec<RunEffect>) {
        if self.record.ending.is_some() {
            return;
        }
        if self.record.is_complete() {
            let writes = self.record.spec.access != Access::Read && !self.record.settled.parts.is_empty();
            if !writes || self.verified {
                self.begin_end(now, EndReason::Finished, None);
            } else if !self.verifying {
                self.verifying = true;
                let parts = self.record.settled.parts.iter().map(|part| part.key.clone()).collect();
                out.push(RunEffect::Verify { parts });
            }
            return;
        }
        if self.plan_at().is_none_or(|at| now < at) {
            return;
        }
        if self.record.live.is_empty() {
            let idle = self.idle_plans();
            if idle > self.record.spec.limits.max_replans {
                let reason = self.open_reason(idle);
                return self.begin_end(now, EndReason::Failed, Some(reason));
            }
            let units = self.record.units_settled();
            let record = self.change();
            record.idle_plans = idle;
            record.units_at_plan = Some(units);
        }
        self.planning = true;
        out.push(RunEffect::NeedPlan {
            epoch: self.record.epoch + 1,
            open: self.record.unassigned_slots(),
            sequence: self.record.settled.sequence.clone(),
            acc: self.record.settled.acc.clone(),
            lost: self.lost.clone(),
        });
    }

    /// When the next plan is due; `None` while there is nothing to be planned.
    fn plan_at(&self) -> Option<Millis> {
        let nothing = self.planning || self.verifying || self.record.is_complete();
        let alone = self.record.live.is_empty();
        match self.record.goal {
            _ if nothing => None,
            Goal::Sequence if !alone => None,
            Goal::Slots(_) if !alone => {
                let at = self.planned_at.saturating_add(self.config.regroup);
                (!self.record.unassigned_slots().is_empty()).then_some(at)
            }
            _ => {
                let idle = u32::from(self.idle_plans());
                let doubled = self.config.replan_min.saturating_mul(1 << idle.saturating_sub(1).min(30));
                let wait = if idle == 0 { 0 } else { doubled.min(self.config.replan_max) };
                Some(self.idle_since.saturating_add(wait))
            }
        }
    }

    /// How many plans in a row will have settled nothing when another one is made now.
    fn idle_plans(&self) -> u16 {
        let idle = self.record.units_at_plan.is_some_and(|units| units >= self.record.units_settled());
        if idle { self.record.idle_plans.saturating_add(1) } else { 0 }
    }

    fn open_reason(&self, idle: u16) -> String {
        let trouble = match &self.plan_trouble {
            Some(trouble) => format!("; the last plan failed: {trouble}"),
            None => String::new(),
        };
        let plans = if idle == 1 { "one plan".to_owned() } else { format!("{idle} plans in a row") };
        let Goal::Slots(_) = self.record.goal else {
            let done = self.record.settled.sequence.done;
            let why: Vec<&str> = self.record.settled.open.values().map(String::as_str).collect();
            return format!(
                "the job has not gone on from its unit {done} in {plans}: {}{trouble}",
                why.join("; ")
            );
        };
        let open = self.record.open_slots();
        let ranges = open.ranges();
        let names = ranges.iter().take(10).map(|(first, last)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        });
        let names: Vec<String> = names.collect();
        let more = if ranges.len() > 10 { ", …" } else { "" };
        let mut why: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (slot, reason) in self.record.settled.open.iter().filter(|(slot, _)| open.contains(**slot)) {
            why.entry(reason).or_default().push(slot.to_string());
        }
        let why: Vec<String> =
            why.into_iter().map(|(reason, slots)| format!("{reason} (slot {})", slots.join(", "))).collect();
        let why = if why.is_empty() { "nobody has said why".to_owned() } else { why.join("; ") };
        format!(
            "{} of the job's slots are still open after {plans} without progress: {}{more}: {why}{trouble}",
            open.len(),
            names.join(", ")
        )
    }

    fn planned(&mut self, now: Millis, epoch: u32, chains: Vec<JobState>, uncovered: BTreeMap<u16, String>) {
        if !self.planning || epoch != self.record.epoch + 1 || self.record.ending.is_some() {
            return;
        }
        self.planning = false;
        self.verified = false;
        self.planned_at = now;
        self.idle_since = now;
        self.plan_trouble = None;
        if let Err(defect) = self.record.check_plan(epoch, &chains) {
            return self.begin_end(
                now,
                EndReason::Failed,
                Some(format!("{defect} (a defect of the planner)")),
            );
        }
        let direct = self.config.direct.clone();
        let known = self.record.agents.clone();
        let record = self.change();
        record.epoch = epoch;
        record.replans += u32::from(epoch > 1);
        record.settled.open.extend(uncovered);
        record.settled.trim_open();
        for state in chains {
            record.add_live(Arc::new(state), &direct);
        }
        let fence = record.fence();
        record.returned.retain(|(epoch, _)| *epoch >= fence);
        let live: Vec<LiveChain> = record.live.iter().filter(|chain| chain.epoch == epoch).cloned().collect();
        let new: Vec<String> = record.agents.difference(&known).cloned().collect();
        for agent in new {
            let message = self.attach_message();
            self.when_durable(RunEffect::Send { to: agent, message });
        }
        for chain in &live {
            self.watch(now, chain);
            if let Some(effect) = first_send(chain) {
                self.when_durable(effect);
            }
        }
    }

    fn watch(&mut self, now: Millis, chain: &LiveChain) {
        let nudge = Backoff::new(now, &self.config);
        let watch = Watch { since: self.version, heard_at: now, nudge, position: 0, units: 0, recall: None };
        self.watches.insert((chain.epoch, chain.chain), watch);
    }

    fn acknowledged(&mut self, now: Millis, from: &str, hop: &HopId) {
        let Some(index) = self.unsent(from, hop) else { return };
        self.change().live[index].unsent = None;
        if let Some(watch) = self.watches.get_mut(&(hop.epoch, hop.chain)) {
            watch.heard_at = now;
        }
    }

    /// The live chain whose first state has this id and went to this agent.
    fn unsent(&self, agent: &str, hop: &HopId) -> Option<usize> {
        self.record.live.iter().position(|chain| {
            chain.agents.first().is_some_and(|first| first == agent)
                && chain.unsent.as_ref().is_some_and(|state| state.hop_id() == *hop)
        })
    }

    fn refused(&mut self, now: Millis, from: &str, refuse: Refuse) {
        let Refuse { hop, reason } = refuse;
        if self.unsent(from, &hop).is_none() {
            return;
        }
        match reason {
            RefuseReason::Busy => {
                if let Some(watch) = self.watches.get_mut(&(hop.epoch, hop.chain)) {
                    watch.heard_at = now;
                }
            }
            RefuseReason::StaleEpoch { .. } => self.give_up(now, (hop.epoch, hop.chain)),
            RefuseReason::Ended => {
                let reason = format!("agent {from} knows this job as ended; a job's id is used once");
                self.begin_end(now, EndReason::Failed, Some(reason));
            }
            RefuseReason::TooLarge { limit } => {
                let reason = format!("the job state is over agent {from}'s limit of {limit} bytes");
                self.begin_end(now, EndReason::Failed, Some(reason));
            }
        }
    }

    /// A chain has come to its end.
    fn returned(&mut self, now: Millis, from: String, state: &JobState, out: &mut Vec<RunEffect>) {
        let hop = state.hop_id();
        let key = (state.epoch, state.chain);
        if self.record.ending.is_some() {
            // Nothing is promised before the end is durable; the agent will ask again.
            if self.ending.as_ref().is_some_and(|ending| ending.version <= self.durable) {
                let message = Message::refuse(hop, RefuseReason::Ended);
                out.push(RunEffect::Send { to: from, message });
            }
            return;
        }
        if let Some(index) = self.live(key) {
            self.change().returned.insert(key);
            self.settle(now, key, index, state, &from);
        } else if !self.record.returned.contains(&key) {
            let message = Message::refuse(hop, RefuseReason::StaleEpoch { current: self.fence });
            return out.push(RunEffect::Send { to: from, message });
        }
        self.when_durable(RunEffect::Send { to: from, message: Message::ack(vec![hop]) });
    }

    /// Folds the last state of a live chain.
    fn settle(&mut self, now: Millis, key: (u32, u16), index: usize, state: &JobState, from: &str) {
        self.watches.remove(&key);
        self.idle_since = now;
        match self.change().settle(index, state) {
            Ok(()) => {}
            Err(SettleError::Nonsense(what)) => {
                let reason = format!("what {from} returned of chain {} of plan {} {what}", key.1, key.0);
                let error = KeyError { key: Vec::new(), node: String::new(), reason };
                self.change().settled.note_error(error);
            }
            Err(SettleError::Combine(error)) => {
                return self.begin_end(now, EndReason::Failed, Some(error.to_string()));
            }
        }
        if let Some(failed) = &state.failed {
            self.begin_end(now, EndReason::Failed, Some(failure_text(failed)));
        }
    }

    /// Asks for the newest state of a chain.
    fn begin_recall(&mut self, now: Millis, key: (u32, u16)) {
        let Some(index) = self.live(key) else { return };
        let chain = &self.record.live[index];
        let Some(watch) = self.watches.get_mut(&key) else { return };
        let waiting = chain.agents.iter().filter(|agent| !self.lost.contains(*agent)).cloned().collect();
        watch.recall = Some(Recall {
            waiting,
            best: chain.unsent.clone(),
            until: now.saturating_add(self.config.recall_timeout),
            again: Backoff { at: now, wait: self.config.resend_min / 2 },
        });
    }

    fn recalled(&mut self, now: Millis, from: &str, recalled: Recalled) {
        let Recalled { chain, state } = recalled;
        let key = (chain.epoch, chain.chain);
        let Some(recall) = self.watches.get_mut(&key).and_then(|watch| watch.recall.as_mut()) else { return };
        if !recall.waiting.remove(from) {
            return;
        }
        let rank = |state: &JobState| (state.position, state.units_done());
        if let Some(state) = state.filter(|state| ChainId::of(state) == chain)
            && recall.best.as_ref().is_none_or(|best| rank(best) < rank(&state))
        {
            recall.best = Some(state);
        }
        if recall.waiting.is_empty() {
            self.give_up(now, key);
        }
    }

    /// Ends a live chain with what is known of it.
    fn give_up(&mut self, now: Millis, key: (u32, u16)) {
        let Some(index) = self.live(key) else { return };
        let recall = self.watches.remove(&key).and_then(|watch| watch.recall);
        let (best, silent) = recall.map(|recall| (recall.best, recall.waiting)).unwrap_or_default();
        // Who has not answered is planned around until it is heard of again.
        self.lost.extend(silent);
        match best {
            Some(state) => self.settle(now, key, index, &state, "an agent"),
            None => {
                self.change().live.swap_remove(index);
                self.idle_since = now;
            }
        }
    }

    fn agent_lost(&mut self, now: Millis, agent: String) {
        let mut affected = Vec::new();
        for chain in &self.record.live {
            let key = (chain.epoch, chain.chain);
            let Some(watch) = self.watches.get_mut(&key) else { continue };
            if let Some(recall) = &mut watch.recall {
                recall.waiting.remove(&agent); // whether that was the last one is seen in the next step
                continue;
            }
            // Hops before the highest reported one are done; of a walk nobody knows where it goes.
            let walk = matches!(self.record.spec.target, Target::Walk(_));
            let from = if walk { 0 } else { (watch.position as usize).min(chain.agents.len()) };
            if chain.agents[from..].contains(&agent) {
                affected.push(key);
            }
        }
        self.lost.insert(agent);
        for key in affected {
            self.begin_recall(now, key);
        }
    }

    /// A connection is up: whatever was sent while it was not is sent again.
    fn connected(&mut self, agent: &str, out: &mut Vec<RunEffect>) {
        self.lost.remove(agent);
        let mut send = |message| out.push(RunEffect::Send { to: agent.to_owned(), message });
        if let Some(ending) = &self.ending {
            if ending.version <= self.durable && ending.waiting.contains(agent) {
                send(self.end_message());
            }
            return;
        }
        if self.record.over || !self.record.agents.contains(agent) {
            return;
        }
        send(self.attach_message());
        for chain in &self.record.live {
            let Some(watch) = self.watches.get(&(chain.epoch, chain.chain)) else { continue };
            if watch.since > self.durable {
                continue;
            }
            match &watch.recall {
                Some(recall) if recall.waiting.contains(agent) => {
                    let job = self.record.spec.id.clone();
                    send(Message::Recall(ChainId { job, epoch: chain.epoch, chain: chain.chain }));
                }
                Some(_) => {}
                None if chain.agents.first().is_some_and(|first| first == agent) => {
                    if let Some(state) = &chain.unsent {
                        send(Message::State(state.clone()));
                    }
                }
                None => {}
            }
        }
    }

    /// Decides on the end. The first decision stands.
    fn begin_end(&mut self, now: Millis, status: EndReason, reason: Option<String>) {
        if self.record.ending.is_some() {
            return;
        }
        let partial = !self.record.is_complete() || self.record.settled.tally.errors > 0;
        let record = self.change();
        record.ending = Some(RunOutcome { status, reason, partial, unconfirmed: Vec::new() });
        record.live.clear();
        self.watches.clear();
        self.planning = false;
        self.tell_end(now);
        let message = self.end_message();
        for agent in self.record.agents.clone() {
            self.when_durable(RunEffect::Send { to: agent, message: message.clone() });
        }
        self.urgent = self.version;
    }

    /// From now on the agents are waited for.
    fn tell_end(&mut self, now: Millis) {
        let well = self.record.ending.as_ref().is_some_and(|ending| ending.status == EndReason::Finished);
        let timeout = if well { self.config.finish_timeout } else { self.config.end_timeout };
        self.ending = Some(Ending {
            version: self.version,
            // Lost ones too: a lost agent may only be cut off, and still be running.
            waiting: self.record.agents.clone(),
            confirmed: BTreeSet::new(),
            until: now.saturating_add(timeout),
            again: Backoff::new(now, &self.config),
        });
    }

    fn agent_ended(&mut self, agent: String) {
        if let Some(ending) = &mut self.ending {
            ending.waiting.remove(&agent);
            ending.confirmed.insert(agent);
        }
    }

    fn step_ending(&mut self, now: Millis, out: &mut Vec<RunEffect>) {
        let message = self.end_message();
        let Some(ending) = &mut self.ending else { return };
        if self.record.over || self.durable < ending.version {
            return;
        }
        if !ending.waiting.is_empty() && now < ending.until {
            if ending.again.is_due(now, &self.config) {
                out.extend(
                    ending
                        .waiting
                        .iter()
                        .map(|agent| RunEffect::Send { to: agent.clone(), message: message.clone() }),
                );
            }
            return;
        }
        let confirmed = std::mem::take(&mut ending.confirmed);
        let record = self.change();
        record.over = true;
        let unconfirmed = record.agents.difference(&confirmed).cloned().collect();
        let Some(outcome) = &mut record.ending else { return };
        outcome.unconfirmed = unconfirmed;
        let outcome = outcome.clone();
        self.when_durable(RunEffect::Finished { outcome });
    }

    fn persisted(&mut self, ticket: u64, out: &mut Vec<RunEffect>) {
        let Some((version, fence)) = self.persisting.filter(|(version, _)| *version == ticket) else {
            return;
        };
        self.persisting = None;
        self.durable = version;
        if fence > self.fence {
            self.fence = fence;
            if self.record.ending.is_none() {
                self.attach_all(out);
            }
        }
    }

    fn attach_all(&self, out: &mut Vec<RunEffect>) {
        let agents = self.record.agents.difference(&self.lost);
        out.extend(agents.map(|agent| RunEffect::Send { to: agent.clone(), message: self.attach_message() }));
    }

    /// The fence in it is a durable one: what is below may be dropped.
    fn attach_message(&self) -> Message {
        Message::Attach(Attach {
            job: self.record.spec.id.clone(),
            epoch: self.fence,
            incarnation: self.config.incarnation,
        })
    }

    fn end_message(&self) -> Message {
        let why = self.record.ending.as_ref().map_or(EndReason::Failed, |ending| ending.status);
        Message::End(End { job: self.record.spec.id.clone(), why })
    }

    fn live(&self, key: (u32, u16)) -> Option<usize> {
        self.record.live.iter().position(|chain| (chain.epoch, chain.chain) == key)
    }

    /// The record, to be changed.
    fn change(&mut self) -> &mut RunRecord {
        self.version += 1;
        Arc::make_mut(&mut self.record)
    }

    /// Does something as soon as the record as it is now is durable.
    fn when_durable(&mut self, effect: RunEffect) {
        self.after.push_back((self.version, effect));
        self.urgent = self.version;
    }

    fn next_alarm(&self) -> Option<Millis> {
        if self.record.over {
            return None;
        }
        if let Some(ending) = &self.ending {
            return (ending.version <= self.durable).then(|| ending.until.min(ending.again.at));
        }
        let chains = self.watches.values().map(|watch| match &watch.recall {
            Some(recall) => recall.until.min(recall.again.at),
            None => {
                let silent = watch.heard_at.saturating_add(self.config.hop_timeout);
                if watch.since <= self.durable { silent.min(watch.nudge.at) } else { silent }
            }
        });
        let knock = (!self.lost.is_empty()).then_some(self.knock.at);
        chains.chain(self.plan_at()).chain(knock).min()
    }
}

/// What brings a planned chain to its first agent.
fn first_send(chain: &LiveChain) -> Option<RunEffect> {
    let to = chain.agents.first()?.clone();
    let state = chain.unsent.clone()?;
    Some(RunEffect::Send { to, message: Message::State(state) })
}

fn failure_text(error: &KeyError) -> String {
    let mut text = error.reason.clone();
    if !error.key.is_empty() {
        text = format!("key \"{}\": {text}", error.key.escape_ascii());
    }
    if !error.node.is_empty() {
        text = format!("node {}: {text}", error.node);
    }
    text
}
