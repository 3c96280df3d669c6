//! What is open is planned, until nothing is or nothing helps.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::chains::first_send;
use super::{Backoff, Goal, LiveChain, RunEffect, RunMachine};
use crate::chain::job::Access;
use crate::chain::message::EndReason;
use crate::chain::state::JobState;
use crate::core::task::Millis;

impl RunMachine {
    /// Whether it is over, or what is open is to be planned.
    pub(super) fn step_plan(&mut self, now: Millis, out: &mut Vec<RunEffect>) {
        if self.record.ending.is_some() {
            return;
        }
        if self.record.is_complete() {
            let writes = self.record.spec.access != Access::Read && !self.record.settled.parts.is_empty();
            if !writes || self.verified {
                self.begin_end(now, EndReason::Finished, None);
            } else if self.verifying.as_mut().is_none_or(|again| again.is_due(now, &self.config)) {
                self.verifying.get_or_insert(Backoff::new(now, &self.config));
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
    pub(super) fn plan_at(&self) -> Option<Millis> {
        let nothing = self.planning || self.verifying.is_some() || self.record.is_complete();
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
    pub(super) fn idle_plans(&self) -> u16 {
        let idle = self.record.units_at_plan.is_some_and(|units| units >= self.record.units_settled());
        if idle { self.record.idle_plans.saturating_add(1) } else { 0 }
    }

    pub(super) fn open_reason(&self, idle: u16) -> String {
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

    pub(super) fn planned(
        &mut self,
        now: Millis,
        epoch: u32,
        chains: Vec<JobState>,
        uncovered: BTreeMap<u16, String>,
    ) {
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
        record.replans += u32::from(record.plan_number(epoch) > 1);
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
}
