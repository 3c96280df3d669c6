//! A hop over hash slots: patterns on a cluster, and listed keys in any order.
//!
//! Slots that fit a call are done in the engine, many to a call. Others are put aside and done key by key afterwards
//! (`unit.rs`). Steps in Rust run in the agent: the engine names the keys.

use std::collections::{BTreeMap, VecDeque};

use super::error::NodeError;
use super::foreign::note_foreign_keys;
use super::ledger::{Gain, Marker};
use super::reply::Fields;
use super::runner::{Onward, Turn};
use super::site::Site;
use super::unit::{Unit, UnitStep};
use crate::chain::job::{Access, Target};
use crate::chain::slots::{SlotSet, slot_of, tag_of};
use crate::chain::state::JobState;
use crate::chain::value::Value;

/// Bounds of one call's list of slots.
const FEWEST_SLOTS: f64 = 8.0;
const MOST_SLOTS: f64 = 4_096.0;
/// More listed keys of one slot than this are done in parts.
const GROUP_KEYS: usize = 256;
/// A Rust step of a reading job is given the keys of several slots at once, up to about this many.
const NATIVE_BATCH: usize = 256;

pub(crate) struct SlotHop {
    queue: VecDeque<u16>,
    /// Too big for one call, or begun by a call before.
    big: VecDeque<u16>,
    /// Units whose keys are known.
    ready: VecDeque<Unit>,
    /// Listed keys by slot.
    listed: Option<BTreeMap<u16, Vec<Vec<u8>>>>,
    /// How many keys the slots of this node have had so far, on average.
    keys_per_slot: f64,
    /// So many of `ready` are run alone: together one of them was on its way elsewhere, or got no answer.
    alone: usize,
    /// So many of `queue` are run alone: together they got no answer.
    queued_alone: usize,
    /// What the call under way is about.
    under_way: Option<UnderWay>,
}

#[derive(Clone, Copy)]
enum UnderWay {
    /// So many slots of `queue`.
    Queued(usize),
    /// The first of `ready`.
    Unit,
    /// So many of `ready`.
    Units(usize),
}

impl SlotHop {
    pub(crate) fn new(site: &Site, state: &JobState) -> Self {
        let due = state.due_slots();
        let listed = match &site.job.target {
            Target::Keys(keys) => {
                let mut by_slot: BTreeMap<u16, Vec<Vec<u8>>> = BTreeMap::new();
                for key in keys {
                    let slot = slot_of(key);
                    if due.contains(slot) {
                        by_slot.entry(slot).or_default().push(key.clone());
                    }
                }
                for keys in by_slot.values_mut() {
                    keys.sort_unstable();
                    keys.dedup();
                }
                Some(by_slot)
            }
            _ => None,
        };
        SlotHop {
            queue: due.iter().collect(),
            big: VecDeque::new(),
            ready: VecDeque::new(),
            listed,
            keys_per_slot: 8.0,
            alone: 0,
            queued_alone: 0,
            under_way: None,
        }
    }

    /// The last call was lost. Answers whether it is known what it was about: then that is done in smaller pieces from now
    /// on, else the hop has to begin again from its state.
    pub(crate) fn lost(&mut self, site: &mut Site) -> bool {
        match self.under_way.take() {
            None => return false,
            Some(UnderWay::Queued(1)) => {
                self.queued_alone = self.queued_alone.saturating_sub(1);
                if let Some(slot) = self.queue.pop_front() {
                    let unit = self.unit(site, slot).with_care();
                    self.ready.push_back(unit);
                }
            }
            Some(UnderWay::Queued(slots)) => self.queued_alone = slots,
            Some(UnderWay::Unit) => {
                if let Some(unit) = self.ready.front_mut() {
                    unit.lost(site);
                }
            }
            Some(UnderWay::Units(units)) => self.alone = units,
        }
        true
    }

    pub(crate) async fn advance(&mut self, site: &mut Site, state: &mut JobState) -> Result<Turn, NodeError> {
        if !self.ready.is_empty() {
            return self.advance_ready(site, state).await;
        }
        if !self.queue.is_empty() {
            return match (&self.listed, &site.native) {
                (None, None) => self.whole_slots(site, state).await,
                (None, Some(_)) => self.name_keys(site).await,
                (Some(_), _) => self.listed_slots(site, state).await,
            };
        }
        match self.big.pop_front() {
            Some(slot) => {
                let unit = self.unit(site, slot);
                self.ready.push_back(unit);
                Ok(Turn::Working(0))
            }
            None => {
                // Beside the point: a node that does not say, or a user who may not ask, does not fail the hop.
                if self.listed.is_none()
                    && let Err(error) = note_foreign_keys(site, state).await
                {
                    tracing::debug!(job = %site.job.id, %error, "keys of foreign slots are not looked for");
                }
                Ok(Turn::Done(Onward::Next))
            }
        }
    }

    fn unit(&mut self, site: &Site, slot: u16) -> Unit {
        match self.listed.as_mut().and_then(|listed| listed.remove(&slot)) {
            Some(keys) => Unit::listed(slot, keys),
            None => Unit::unknown(site, slot),
        }
    }

    /// Patterns: the engine's own loop over as many slots as its budget allows.
    async fn whole_slots(&mut self, site: &mut Site, state: &mut JobState) -> Result<Turn, NodeError> {
        let slots = self.next_slots(site);
        self.under_way = Some(UnderWay::Queued(slots.len()));
        let ran = site.engine.run("slots", |command| {
            for slot in &slots {
                command.arg(*slot).arg(tag_of(*slot));
            }
        });
        let ran = ran.await?;
        self.under_way = None;
        let (done, keys) = self.commit_batch(site, state, &slots, ran.values).await?;
        site.engine.pace.learn(ran.seen, ran.clock, keys + 2 * u64::from(done.len()));
        self.keys_per_slot += 0.3 * (keys as f64 / f64::from(done.len().max(1)) - self.keys_per_slot);
        Ok(Turn::Working(done.len()))
    }

    fn next_slots(&self, site: &Site) -> Vec<u16> {
        if self.queued_alone > 0 {
            return self.queue.iter().take(1).copied().collect();
        }
        // A few more than will fit: the script stops by itself.
        let fits = site.engine.pace.keys() as f64 * 1.3 / (self.keys_per_slot + 2.0);
        self.queue.iter().take(fits.clamp(FEWEST_SLOTS, MOST_SLOTS) as usize).copied().collect()
    }

    /// Listed keys, a group for each slot. Slots without a listed key have nothing to be done.
    async fn listed_slots(&mut self, site: &mut Site, state: &mut JobState) -> Result<Turn, NodeError> {
        let Some(listed) = &self.listed else { return Ok(Turn::Done(Onward::Next)) };
        let budget = site.engine.pace.keys() as usize;
        let (mut slots, mut empty, mut keys) = (Vec::new(), SlotSet::empty(), 0);
        while let Some(slot) = self.queue.front().copied() {
            let count = listed.get(&slot).map_or(0, Vec::len);
            if count == 0 {
                empty.insert(slot);
            } else if count > GROUP_KEYS.min(budget) || site.native.is_some() {
                self.big.push_back(slot);
            } else if keys > 0 && (keys + count > budget || self.queued_alone > 0) {
                break;
            } else {
                keys += count + 2;
                slots.push(slot);
            }
            self.queue.pop_front();
        }
        if !empty.is_empty() {
            site.place.part(state).slots.union_with(&empty);
        }
        if slots.is_empty() {
            return Ok(Turn::Working(empty.len()));
        }
        // What the call does not get to is put back in front by `commit_batch`.
        slots.iter().rev().for_each(|slot| self.queue.push_front(*slot));
        self.under_way = Some(UnderWay::Queued(slots.len()));
        let ran = site.engine.run("groups", |command| {
            for slot in &slots {
                let keys = &listed[slot];
                command.arg(tag_of(*slot)).arg(keys.len());
                command.arg(keys);
            }
        });
        let ran = ran.await?;
        self.under_way = None;
        let (done, keys) = self.commit_batch(site, state, &slots, ran.values).await?;
        site.engine.pace.learn(ran.seen, ran.clock, keys + 2 * u64::from(done.len()));
        Ok(Turn::Working(done.len() + empty.len()))
    }

    /// Reads the answer of `slots` and `groups`, folds it into the state and takes the slots off the queue. Answers
    /// the slots done and the keys seen.
    async fn commit_batch(
        &mut self,
        site: &mut Site,
        state: &mut JobState,
        slots: &[u16],
        values: Vec<Value>,
    ) -> Result<(SlotSet, u64), NodeError> {
        let mut fields = Fields::new(values);
        let handled = fields.count().map_err(|reason| site.engine.unreadable(reason))? as usize;
        let gain = site.gain(&mut fields)?;
        let refused = self.refused(site, slots, &mut fields)?;
        let big = indices(slots, fields.list()).map_err(|reason| site.engine.unreadable(reason))?;
        let deltas = fields.list().map_err(|reason| site.engine.unreadable(reason))?;
        if handled == 0 && gain.failed == 0 {
            return Err(site.engine.unreadable("no slot was handled"));
        }

        let mut done: SlotSet = slots.iter().take(handled).copied().collect();
        for slot in refused.iter().map(|(slot, _)| slot).chain(&big) {
            done.remove(*slot);
        }
        let mut acc = std::mem::take(&mut site.place.part(state).acc);
        let folded = site.fold(&mut acc, deltas).await;
        let part = site.place.part(state);
        part.acc = acc;
        folded?;
        part.slots.union_with(&done);
        for slot in done.iter() {
            state.open.remove(&slot);
        }
        for (slot, reason) in refused {
            site.place.leave_open(state, slot, reason);
        }
        self.queue.drain(..handled.min(self.queue.len()));
        self.queued_alone = self.queued_alone.saturating_sub(handled);
        self.big.extend(big);
        let keys = gain.visited;
        site.place.count(state, done.len().into(), gain);
        Ok((done, keys))
    }

    fn refused(
        &self,
        site: &Site,
        slots: &[u16],
        fields: &mut Fields,
    ) -> Result<Vec<(u16, String)>, NodeError> {
        let unreadable = |reason| site.engine.unreadable(reason);
        let mut refused = Vec::new();
        for mut row in fields.rows().map_err(unreadable)? {
            let index = row.count().map_err(unreadable)? as usize;
            let text = row.text().map_err(unreadable)?;
            let slot = *slots.get(index).ok_or_else(|| site.engine.unreadable("no such slot"))?;
            refused.push((slot, site.refusal(text)?));
        }
        Ok(refused)
    }

    /// Patterns with a step in Rust: which keys do the next slots have?
    async fn name_keys(&mut self, site: &mut Site) -> Result<Turn, NodeError> {
        let slots = self.next_slots(site);
        let ran = site.engine.run("keys", |command| {
            for slot in &slots {
                command.arg(*slot).arg(tag_of(*slot));
            }
        });
        let mut ran = ran.await?;
        let mut fields = Fields::new(std::mem::take(&mut ran.values));
        let unreadable = |reason: String| site.engine.unreadable(reason);
        let handled = fields.count().map_err(unreadable)? as usize;
        let refused = self.refused(site, &slots, &mut fields)?;
        let big = indices(&slots, fields.list()).map_err(unreadable)?;
        let slot_at =
            |index: u64| slots.get(index as usize).copied().ok_or_else(|| "no such slot".to_owned());
        let mut units: BTreeMap<u16, Unit> = BTreeMap::new();
        let mut seen = 0;
        for mut row in fields.rows().map_err(unreadable)? {
            let slot = row.count().and_then(slot_at).map_err(unreadable)?;
            let visited = row.count().map_err(unreadable)?;
            seen += visited;
            units.insert(slot, Unit::named(slot, visited, row.all_bytes().map_err(unreadable)?));
        }
        for mut row in fields.rows().map_err(unreadable)? {
            let slot = row.count().and_then(slot_at).map_err(unreadable)?;
            let packed = row.bytes().map_err(unreadable)?;
            let marker = Marker::read(&packed).map_err(unreadable)?;
            if marker.done {
                units.insert(slot, Unit::done(slot, marker));
            } else {
                self.big.push_back(slot);
            }
        }
        site.engine.pace.learn(ran.seen, ran.clock, seen + 2 * handled as u64);
        let begun: SlotSet = self.big.iter().copied().collect();
        for slot in slots.iter().take(handled) {
            if let Some((_, reason)) = refused.iter().find(|(refused, _)| refused == slot) {
                self.ready.push_back(Unit::refused(*slot, reason.clone()));
            } else if !big.contains(slot) && !begun.contains(*slot) {
                self.ready.push_back(units.remove(slot).unwrap_or_else(|| Unit::named(*slot, 0, Vec::new())));
            }
        }
        self.queue.drain(..handled.min(self.queue.len()));
        self.big.extend(big);
        Ok(Turn::Working(0))
    }

    /// Goes on with the units whose keys are known.
    async fn advance_ready(&mut self, site: &mut Site, state: &mut JobState) -> Result<Turn, NodeError> {
        let mut finished = Vec::new();
        // Those that need no step at all, all at once.
        while self.ready.front().is_some_and(Unit::is_settled) {
            finished.extend(self.ready.pop_front());
        }
        if finished.is_empty() {
            let together = self.ready.iter().scan(0, |keys, unit| {
                *keys += unit.keys_left();
                (unit.is_whole() && *keys <= NATIVE_BATCH).then_some(())
            });
            let together = together.count();
            if site.native.is_some() && site.job.access == Access::Read && together > 1 && self.alone == 0 {
                self.under_way = Some(UnderWay::Units(together));
                let units = &mut self.ready.make_contiguous()[..together];
                let stepped = Unit::step_together(site, units).await?;
                self.under_way = None;
                if !stepped {
                    self.alone = together;
                    return Ok(Turn::Working(0));
                }
                finished.extend(self.ready.drain(..together));
            } else if let Some(unit) = self.ready.front_mut() {
                self.under_way = Some(UnderWay::Unit);
                let step = unit.advance(site, state).await?;
                self.under_way = None;
                if let UnitStep::Finished = step {
                    self.alone = self.alone.saturating_sub(1);
                    finished.extend(self.ready.pop_front());
                }
            }
        }
        let mut acc = std::mem::take(&mut site.place.part(state).acc);
        let deltas = finished.iter_mut().map(Unit::take_delta).collect();
        let folded = site.fold(&mut acc, deltas).await;
        site.place.part(state).acc = acc;
        folded?;
        let mut units = 0;
        let mut gain = Gain::default();
        for unit in finished {
            let slot = unit.slot;
            match unit.into_outcome() {
                Ok(added) => {
                    // A key that ends the job ends its unit before its end.
                    let complete = added.failed == 0 || !site.stops_at_failures();
                    gain.add(added);
                    if complete {
                        site.place.part(state).slots.insert(slot);
                        state.open.remove(&slot);
                        units += 1;
                    }
                }
                Err(reason) => site.place.leave_open(state, slot, reason),
            }
        }
        site.place.count(state, units.into(), gain);
        Ok(Turn::Working(units))
    }
}

fn indices(slots: &[u16], list: Result<Vec<Value>, String>) -> Result<Vec<u16>, String> {
    list?
        .into_iter()
        .map(|index| match index {
            Value::Int(index) => usize::try_from(index).ok().and_then(|index| slots.get(index)).copied(),
            _ => None,
        })
        .collect::<Option<_>>()
        .ok_or_else(|| "no such slot".to_owned())
}
