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

#[cfg(test)]
mod canon;
mod chains;
mod effect;
mod end;
mod plan;
mod record;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use self::chains::{Watch, first_send};
pub use self::effect::{RunConfig, RunEffect, RunInput};
use self::end::Ending;
pub use self::record::{Goal, LiveChain, MAX_REPORTS, PartKey, RunOutcome, RunRecord, Settled, SettledPart};
use super::job::JobSpec;
use super::message::{Attach, EndReason, Message};
use super::state::Tally;
use crate::core::task::Millis;

/// The coordinator's state machine for one job.
#[derive(Debug, Clone)]
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
    /// A plan has been asked for.
    planning: bool,
    /// A comparison of the primaries has been asked for, and when it is asked for again.
    verifying: Option<Backoff>,
    verified: bool,
    /// When the last plan came in, and when the last chain ended or a plan failed.
    planned_at: Millis,
    idle_since: Millis,
    plan_trouble: Option<String>,
    ending: Option<Ending>,
    alarm: Option<Millis>,
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

    fn with_record(config: RunConfig, mut record: RunRecord, now: Millis) -> Self {
        record.begin(config.incarnation);
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
            verifying: None,
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
                            // A hop that began again after a crash tells less for a while.
                            if progress.units_done >= watch.units {
                                watch.units = progress.units_done;
                                watch.tally = progress.tally;
                            }
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
                self.verified = self.verifying.take().is_some();
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

    /// Units done: those folded, and those that chains on their way have reported; once the end has been decided on,
    /// those of then.
    pub fn units_done(&self) -> u64 {
        if let Some(ending) = &self.record.ending {
            return ending.units;
        }
        let settled = self.record.units_settled();
        let under_way = self.watches.values().map(|watch| watch.units);
        match &self.record.goal {
            Goal::Slots(slots) => (settled + under_way.sum::<u64>()).min(slots.len().into()),
            Goal::Sequence => under_way.fold(settled, u64::max),
        }
    }

    /// Counters over [`RunMachine::units_done`].
    pub fn tally(&self) -> Tally {
        if let Some(ending) = &self.record.ending {
            return ending.tally;
        }
        let mut tally = self.record.settled.tally;
        self.watches.values().for_each(|watch| tally.add(&watch.tally));
        tally
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
        let verify = self.verifying.map(|again| again.at);
        chains.chain(self.plan_at()).chain(knock).chain(verify).min()
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

    fn live(&self, key: (u32, u16)) -> Option<usize> {
        self.record.live.iter().position(|chain| (chain.epoch, chain.chain) == key)
    }
}

#[cfg(test)]
mod tests;
