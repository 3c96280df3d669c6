//! What coordinators ask for, and what time brings.

use std::sync::Arc;

use super::forward::Dest;
use super::intake::progress_of;
use super::{HopEffect, HopMachine, Link, Pending, Phase, Record, of_job};
use crate::chain::message::{Attach, ChainId, End, EndReason, Message, Recalled, RefuseReason};
use crate::chain::state::{HopId, JobState};
use crate::core::task::Millis;

impl HopMachine {
    pub(super) fn attach(&mut self, now: Millis, from: Link, attach: Attach, out: &mut Vec<HopEffect>) {
        let Link::Conn(conn) = from else { return };
        let Attach { job, epoch, incarnation } = attach;
        let Some(news) = self.jobs.fence(now, &job, epoch, incarnation) else {
            if self.jobs.get(&job).is_some_and(|job| job.ended.is_some()) {
                self.reply_ended(&job, from, out);
            }
            return;
        };
        let entry = self.jobs.entry(now, &job);
        let moved = entry.conn.replace(conn) != Some(conn);
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
        if moved {
            self.forwards.up(now, Dest::Coordinator(job.clone()), Link::Conn(conn), out);
        }
        self.report(&job, conn, out);
    }

    pub(super) fn recall(&mut self, now: Millis, from: Link, chain: ChainId, out: &mut Vec<HopEffect>) {
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

    pub(super) fn end(&mut self, now: Millis, from: Option<Link>, end: End, out: &mut Vec<HopEffect>) {
        let End { job, incarnation, why } = end;
        let retryable = why != EndReason::Cancelled;
        let entry = self.jobs.entry(now, &job);
        if retryable && incarnation < entry.incarnation {
            return; // of a coordinator that another one has followed
        }
        entry.incarnation = entry.incarnation.max(incarnation);
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
    pub(super) fn reply_ended(&mut self, job: &str, to: Link, out: &mut Vec<HopEffect>) {
        if let Some(ended) = self.jobs.get_mut(job).and_then(|job| job.ended.as_mut())
            && !ended.reply_to.contains(&to)
        {
            ended.reply_to.push(to);
        }
        self.answer_end(job, out);
    }

    pub(super) fn answer_end(&mut self, job: &str, out: &mut Vec<HopEffect>) {
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

    pub(super) fn lost(&mut self, now: Millis, link: Link) {
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

    pub(super) fn tick(&mut self, now: Millis, out: &mut Vec<HopEffect>) {
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
            let incarnation = self.jobs.entry(now, &job).incarnation;
            self.end(now, None, End { job, incarnation, why: EndReason::Failed }, out);
        }
    }

    /// Tells a coordinator what is held of its job.
    pub(super) fn report(&self, job: &str, conn: u64, out: &mut Vec<HopEffect>) {
        for hop in of_job(&self.held, job) {
            if let Some(held) = self.held.get(hop).filter(|held| held.phase != Phase::Parked) {
                out.push(HopEffect::Send { to: Link::Conn(conn), message: progress_of(hop, &held.state) });
            }
        }
    }

    pub(super) fn arm_progress(&mut self, now: Millis) {
        if self.held.is_empty() {
            self.progress_at = None;
        } else if self.progress_at.is_none() {
            self.progress_at = Some(now.saturating_add(self.config.progress_every.max(1)));
        }
    }

    /// Keeps a hop without running or sending it.
    pub(super) fn park(
        &mut self,
        now: Millis,
        hop: &HopId,
        sent: Option<Arc<JobState>>,
        out: &mut Vec<HopEffect>,
    ) {
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
    pub(super) fn drop_hop(
        &mut self,
        now: Millis,
        hop: &HopId,
        reason: RefuseReason,
        out: &mut Vec<HopEffect>,
    ) {
        self.stop(now, hop, out);
        let Some(held) = self.unhold(hop) else { return };
        for to in held.ack_to {
            out.push(HopEffect::Send { to, message: Message::refuse(hop.clone(), reason) });
        }
    }

    /// A hop is not to be run or sent any more.
    pub(super) fn stop(&mut self, now: Millis, hop: &HopId, out: &mut Vec<HopEffect>) {
        self.queue.remove(hop);
        self.forwards.remove(now, hop, out);
        let running = self.held.get(hop).is_some_and(|held| held.phase == Phase::Running);
        if running && self.queue.is_running(hop) {
            out.push(HopEffect::Abort { hop: hop.clone() });
        }
    }

    pub(super) fn forget_job(&mut self, job: &str) {
        self.held.retain(|hop, _| hop.job != job);
        self.retained.remove_below(job, u32::MAX);
        self.done.remove_job(job);
    }
}
