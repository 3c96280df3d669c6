//! One slot done key by key: one too big for a call, one with many listed keys, or one of a step in Rust.
//!
//! Its keys are applied in ascending order. A writing job's marker holds the last key applied and the delta so far,
//! so the rest can be done after a crash, and by another node: an order of keys means the same everywhere, a cursor
//! does not. A reading job keeps what it has so far in memory and loses it with the connection.

use std::collections::BTreeSet;

use super::care::{Care, set_aside};
use super::error::NodeError;
use super::ledger::{Gain, Marker};
use super::native::StepError;
use super::native_step::Written;
use super::reply::Fields;
use super::site::Site;
use crate::chain::glob::Glob;
use crate::chain::job::{Access, Target};
use crate::chain::slots::{SLOTS, slot_of, tag_of};
use crate::chain::state::{JobState, MAX_ERRORS};
use crate::chain::value::Value;

/// How many bytes of keys are held at a time; a slot with more is gone through several times.
const MOST_BYTES: usize = 32 << 20;
/// What a key costs beside its bytes.
const KEY_OVERHEAD: usize = 48;
/// Bounds of one SCAN page.
const PAGE: std::ops::RangeInclusive<u64> = 32..=1_000;
/// The most keys that are sent with one call.
const MOST_KEYS: u64 = 2_000;

pub(crate) struct Unit {
    pub(crate) slot: u16,
    state: State,
    /// Keys to be applied, ascending.
    keys: BTreeSet<Vec<u8>>,
    key_bytes: usize,
    /// There are more beyond the last one.
    more: bool,
    /// The last key applied or set aside.
    last: Option<Vec<u8>>,
    /// What the marker says of the last key; empty: nothing.
    marked: Vec<u8>,
    /// Keys set aside that the marker does not count yet.
    unmarked: u64,
    care: Care,
    /// The marker as it is stored; empty: none.
    marker: Vec<u8>,
    /// Listed keys may not exist.
    must_check: bool,
    gain: Gain,
    delta: Value,
    /// Keys that do not match, seen in the first pass.
    strangers: u64,
    passes: u32,
}

enum State {
    /// The keys are being listed.
    Listing { cursor: Cursor, seen: u64 },
    /// The keys are known.
    Applying,
    /// Done; or the slot cannot be done here, and why.
    Settled(Result<(), String>),
}

#[derive(Clone, Copy)]
enum Cursor {
    /// The server's SCAN cursors hold the slot.
    At(u64),
    /// They do not: the slot is listed in one call.
    Whole,
}

/// What one step of a unit came to.
pub(crate) enum UnitStep {
    /// There is more.
    More,
    /// It is settled.
    Finished,
}

impl Unit {
    fn new(slot: u16, state: State, keys: Vec<Vec<u8>>) -> Self {
        Unit {
            slot,
            state,
            keys: keys.into_iter().collect(),
            key_bytes: 0,
            more: false,
            last: None,
            marked: Vec::new(),
            unmarked: 0,
            care: Care::default(),
            marker: Vec::new(),
            must_check: false,
            gain: Gain::default(),
            delta: Value::Nil,
            strangers: 0,
            passes: 0,
        }
    }

    /// A slot whose keys are listed first.
    pub(crate) fn unknown(site: &Site, slot: u16) -> Self {
        let cursor = if site.engine.slot_cursors { Cursor::At(slot.into()) } else { Cursor::Whole };
        Unit::new(slot, State::Listing { cursor, seen: 0 }, Vec::new())
    }

    /// Keys that the user listed.
    pub(crate) fn listed(slot: u16, keys: Vec<Vec<u8>>) -> Self {
        Unit { must_check: true, ..Unit::new(slot, State::Applying, keys) }
    }

    /// Keys that the engine named, all that match of the `visited` that the slot has.
    pub(crate) fn named(slot: u16, visited: u64, keys: Vec<Vec<u8>>) -> Self {
        let state = if keys.is_empty() { State::Settled(Ok(())) } else { State::Applying };
        let strangers = visited.saturating_sub(keys.len() as u64);
        Unit { strangers, ..Unit::new(slot, state, keys) }
    }

    /// A slot that its marker says is done.
    pub(crate) fn done(slot: u16, marker: Marker) -> Self {
        let unit = Unit::new(slot, State::Settled(Ok(())), Vec::new());
        Unit { gain: marker.gain, delta: marker.delta, ..unit }
    }

    /// A slot that the node does not have, or not wholly.
    pub(crate) fn refused(slot: u16, reason: String) -> Self {
        Unit::new(slot, State::Settled(Err(reason)), Vec::new())
    }

    pub(crate) fn is_settled(&self) -> bool {
        matches!(self.state, State::Settled(_))
    }

    /// All its keys are known and none has been applied.
    pub(crate) fn is_whole(&self) -> bool {
        matches!(self.state, State::Applying) && !self.more && !self.must_check && self.last.is_none()
    }

    pub(crate) fn keys_left(&self) -> usize {
        self.keys.len()
    }

    /// Its keys are done one by one.
    pub(crate) fn with_care(mut self) -> Self {
        self.care.lost();
        self
    }

    /// A call about this unit was lost; after several, so is the key that they were about.
    pub(crate) fn lost(&mut self, site: &mut Site) {
        self.care.lost();
        if !self.care.is_out() {
            return;
        }
        self.care = Care::default();
        match (&self.state, self.keys.pop_first()) {
            (State::Applying, Some(key)) => self.set_aside(site, key),
            (State::Settled(_), _) => {}
            // No key is at fault: it stays open.
            (State::Applying, None) | (State::Listing { .. }, _) => {
                self.state = State::Settled(Err("calls about it get no answer".into()));
            }
        }
    }

    fn set_aside(&mut self, site: &mut Site, key: Vec<u8>) {
        site.aside += 1;
        self.key_bytes = self.key_bytes.saturating_sub(key.len() + KEY_OVERHEAD);
        self.gain.failures.truncate(MAX_ERRORS - 1);
        self.gain.failures.push((key.clone(), set_aside()));
        self.last = Some(key);
        if site.stops_at_failures() {
            self.gain.failed += 1;
            self.state = State::Settled(Ok(()));
        } else if site.job.access == Access::Write && site.native.is_none() {
            // The script counts them, so that the marker does too.
            self.unmarked += 1;
        } else {
            self.gain.visited += 1;
            self.gain.matched += 1;
            self.gain.failed += 1;
        }
    }

    pub(crate) fn take_delta(&mut self) -> Value {
        match self.state {
            State::Settled(Err(_)) => Value::Nil,
            _ => std::mem::take(&mut self.delta),
        }
    }

    /// What it added, or why it stays open.
    pub(crate) fn into_outcome(self) -> Result<Gain, String> {
        if let State::Settled(Err(reason)) = self.state {
            return Err(reason);
        }
        let mut gain = self.gain;
        gain.visited += self.strangers;
        Ok(gain)
    }

    fn settle(&mut self, outcome: Result<(), String>) -> UnitStep {
        self.state = State::Settled(outcome);
        UnitStep::Finished
    }

    /// One call's worth of listing or applying.
    pub(crate) async fn advance(
        &mut self,
        site: &mut Site,
        state: &mut JobState,
    ) -> Result<UnitStep, NodeError> {
        match self.state {
            State::Listing { cursor, seen } => self.list(site, state, cursor, seen).await,
            State::Applying => match &site.native {
                Some(_) => self.apply_native(site).await,
                None => self.apply(site).await,
            },
            State::Settled(_) => Ok(UnitStep::Finished),
        }
    }

    async fn list(
        &mut self,
        site: &mut Site,
        state: &mut JobState,
        cursor: Cursor,
        seen: u64,
    ) -> Result<UnitStep, NodeError> {
        let count = site.engine.pace.keys().clamp(*PAGE.start(), *PAGE.end());
        let cursor_text = match cursor {
            Cursor::At(cursor) => cursor.to_string(),
            Cursor::Whole => String::new(),
        };
        let ran = site.engine.run("scan", |command| {
            command.arg(tag_of(self.slot)).arg(self.slot).arg(&cursor_text).arg(count);
        });
        let mut fields = Fields::new(ran.await?.values);
        let unreadable = |reason: String| site.engine.unreadable(reason);
        if fields.bytes().map_err(unreadable)? == b"refused" {
            let reason = site.refusal(fields.text().map_err(unreadable)?)?;
            return Ok(self.settle(Err(reason)));
        }
        let next: u64 = fields
            .text()
            .and_then(|text| text.parse().map_err(|_| format!("cursor {text:?}")))
            .map_err(unreadable)?;
        let keys = fields.all_bytes().map_err(unreadable)?;
        if let Some(marker) = fields.bytes_or_none().map_err(unreadable)?
            && marker != self.marker
            && self.resume(Marker::read(&marker).map_err(unreadable)?, marker)
        {
            return Ok(self.settle(Ok(())));
        }
        let held = fields.count().map_err(unreadable)?;
        let in_slot = keys.iter().filter(|key| slot_of(key) == self.slot).count() as u64;
        let seen = seen + in_slot;
        let listed = match cursor {
            Cursor::Whole => {
                let note = format!(
                    "slot {} was listed in one call ({held} keys): this server's SCAN cannot start in a slot",
                    self.slot
                );
                site.place.note(state, note);
                true
            }
            Cursor::At(_) => {
                let ended = next == 0 || next % u64::from(SLOTS) != u64::from(self.slot);
                // Whoever reads a cursor otherwise than we think has shown us little of the slot.
                let strange = !ended && in_slot < keys.len() as u64;
                if strange || (ended && seen < held / 2) {
                    site.engine.slot_cursors = false;
                    let unit = Unit::unknown(site, self.slot);
                    *self = Unit { must_check: self.must_check, ..unit };
                    return Ok(UnitStep::More);
                }
                ended
            }
        };
        let Target::Pattern(pattern) = &site.job.target else {
            return Err(site.engine.unreadable("only a pattern's keys are listed"));
        };
        self.care.answered();
        self.take_in(keys, &Glob::new(pattern));
        self.state = if listed { State::Applying } else { State::Listing { cursor: Cursor::At(next), seen } };
        // The server's KEYS and GETKEYSINSLOT name expired keys, SCAN does not.
        self.must_check |= matches!(cursor, Cursor::Whole);
        if listed {
            self.passes += 1;
        }
        Ok(UnitStep::More)
    }

    /// Keeps the keys that match and are still to be applied; when they get too many, the smallest ones.
    fn take_in(&mut self, keys: Vec<Vec<u8>>, glob: &Glob) {
        for key in keys {
            if slot_of(&key) != self.slot || key.starts_with(MARKER_PREFIX) {
                continue;
            }
            if !glob.matches(&key) {
                self.strangers += u64::from(self.passes == 0);
            } else if self.last.as_ref().is_none_or(|last| key > *last) {
                let bytes = key.len() + KEY_OVERHEAD;
                if self.keys.insert(key) {
                    self.key_bytes += bytes;
                }
                while self.key_bytes > MOST_BYTES
                    && let Some(largest) = self.keys.pop_last()
                {
                    self.key_bytes -= largest.len() + KEY_OVERHEAD;
                    self.more = true;
                }
            }
        }
    }

    /// Takes over what a marker says; answers whether the unit is done.
    fn resume(&mut self, marker: Marker, packed: Vec<u8>) -> bool {
        self.marker = packed;
        let failures = std::mem::take(&mut self.gain.failures);
        self.gain = Gain { failures, ..marker.gain };
        self.delta = marker.delta;
        self.marked = marker.last.unwrap_or_default();
        let last = self.marked.strip_prefix(b"=").map(<[u8]>::to_vec);
        if let Some(last) = &last {
            self.keys.retain(|key| key > last);
        }
        // What was set aside since then may be further on.
        self.last = self.last.take().max(last);
        marker.done
    }

    /// After some keys were applied: goes on, lists the next ones, or is done.
    fn after_keys(&mut self, site: &Site, applied: &[Vec<u8>]) -> UnitStep {
        self.care.answered();
        for key in applied {
            self.keys.remove(key);
            self.key_bytes = self.key_bytes.saturating_sub(key.len() + KEY_OVERHEAD);
        }
        if let Some(key) = applied.last() {
            self.last = Some(key.clone());
        }
        if site.stops_at_failures() && self.gain.failed > 0 {
            return self.settle(Ok(()));
        }
        if !self.keys.is_empty() {
            return UnitStep::More;
        }
        if self.more {
            self.more = false;
            let Unit { state: State::Listing { cursor, seen }, .. } = Unit::unknown(site, self.slot) else {
                return self.settle(Ok(()));
            };
            self.state = State::Listing { cursor, seen };
            return UnitStep::More;
        }
        self.settle(Ok(()))
    }

    /// Applies the next keys in the engine.
    async fn apply(&mut self, site: &mut Site) -> Result<UnitStep, NodeError> {
        let most = if self.care.alone() { 1 } else { (2 * site.engine.pace.keys()).min(MOST_KEYS) as usize };
        let keys: Vec<Vec<u8>> = self.keys.iter().take(most).cloned().collect();
        if keys.is_empty() && self.unmarked == 0 {
            return Ok(self.after_keys(site, &[]));
        }
        let last = keys.len() == self.keys.len() && !self.more;
        let ran = site.engine.run("part", |command| {
            command.arg(tag_of(self.slot)).arg(&self.marked).arg(u8::from(last)).arg(self.unmarked);
            command.arg(&keys);
        });
        let ran = ran.await?;
        let mut fields = Fields::new(ran.values);
        let unreadable = |reason: String| site.engine.unreadable(reason);
        match &fields.bytes().map_err(unreadable)?[..] {
            b"refused" => {
                let reason = site.refusal(fields.text().map_err(unreadable)?)?;
                Ok(self.settle(Err(reason)))
            }
            b"marker" => {
                let marker = Marker::from_fields(&mut fields).map_err(unreadable)?;
                let packed = marker.packed();
                if self.resume(marker, packed) {
                    Ok(self.settle(Ok(())))
                } else {
                    Ok(self.after_keys(site, &[]))
                }
            }
            _ => {
                let handled = (fields.count().map_err(unreadable)? as usize).min(keys.len());
                let mut gain = site.gain(&mut fields)?;
                let delta = fields.value();
                site.engine.pace.learn(ran.seen, ran.clock, handled as u64);
                if site.job.access == Access::Write {
                    if let Some(key) = keys[..handled].last() {
                        self.marked = [b"=", &key[..]].concat();
                    }
                    self.unmarked = 0;
                    // Counters and delta are the unit's so far: they went on from its marker.
                    gain.failures.splice(0..0, std::mem::take(&mut self.gain.failures));
                    self.gain = gain;
                    self.delta = delta;
                } else {
                    self.gain.add(gain);
                    site.fold(&mut self.delta, vec![delta]).await?;
                }
                if handled == 0 && !keys.is_empty() && self.gain.failed == 0 {
                    return Err(site.engine.unreadable("no key was handled"));
                }
                Ok(self.after_keys(site, &keys[..handled]))
            }
        }
    }

    /// Runs a step in Rust on all keys of some whole units at once. `false`: a key is on its way elsewhere, and
    /// nothing has been done.
    pub(crate) async fn step_together(site: &mut Site, units: &mut [Unit]) -> Result<bool, NodeError> {
        let keys: Vec<Vec<u8>> = units.iter().flat_map(|unit| unit.keys.iter().cloned()).collect();
        let stepped = match site.native_step(&keys, None).await {
            Ok(stepped) => stepped,
            Err(StepError::Elsewhere(_)) => return Ok(false),
            Err(error) => return Err(site.step_error(error)),
        };
        for unit in units.iter_mut() {
            let count = unit.keys.len() as u64;
            unit.gain.add(Gain { visited: count, matched: count, ..Gain::default() });
            unit.settle(Ok(()));
        }
        if let Some(first) = units.first_mut() {
            first.delta = stepped.value;
            stepped.failures.into_iter().for_each(|(key, reason)| first.gain.fail(&key, reason));
        }
        Ok(true)
    }

    /// Runs a step in Rust on the next keys and applies what it wants written.
    async fn apply_native(&mut self, site: &mut Site) -> Result<UnitStep, NodeError> {
        let most = if self.care.alone() { 1 } else { MOST_NATIVE_KEYS };
        let keys: Vec<Vec<u8>> = self.keys.iter().take(most).cloned().collect();
        let Some(last) = keys.last() else { return Ok(self.after_keys(site, &[])) };
        let all = keys.len() == self.keys.len() && !self.more;
        let tag = tag_of(self.slot);
        let mut existing = keys.clone();
        if self.must_check {
            match site.existing(tag, "", &keys).await? {
                Err(reason) => return Ok(self.settle(Err(reason))),
                Ok((Some(packed), _)) if packed != self.marker => {
                    let marker = Marker::read(&packed).map_err(|reason| site.engine.unreadable(reason))?;
                    let done = self.resume(marker, packed);
                    return Ok(if done { self.settle(Ok(())) } else { self.after_keys(site, &[]) });
                }
                Ok((_, there)) => existing = there,
            }
        }
        let mut gain = Gain { visited: keys.len() as u64, matched: existing.len() as u64, ..Gain::default() };
        let mut delta = self.delta.clone();
        let mut writes = Vec::new();
        if !existing.is_empty() {
            let stepped = match site.native_step(&existing, None).await {
                Ok(stepped) => stepped,
                Err(StepError::Elsewhere(reason)) => return Ok(self.settle(Err(reason))),
                Err(error) => return Err(site.step_error(error)),
            };
            site.fold(&mut delta, vec![stepped.value]).await?;
            stepped.failures.into_iter().for_each(|(key, reason)| gain.fail(&key, reason));
            writes = stepped.writes;
        }
        let mut total = self.gain.clone();
        total.add(gain);
        let marker = Marker {
            done: all,
            last: Some([b"=", &last[..]].concat()),
            gain: total.clone(),
            delta: delta.clone(),
        };
        let after = marker.packed();
        match site.native_write(tag, "", &self.marker, &after, &writes).await? {
            Written::Done(wrong) => {
                wrong.into_iter().for_each(|(key, reason)| total.fail(&key, reason));
                if site.job.access == Access::Write {
                    self.marker = after;
                }
                self.gain = total;
                self.delta = delta;
                Ok(self.after_keys(site, &keys))
            }
            Written::Refused(reason) => Ok(self.settle(Err(reason))),
            Written::Already(packed) => {
                let marker = Marker::read(&packed).map_err(|reason| site.engine.unreadable(reason))?;
                let done = self.resume(marker, packed);
                Ok(if done { self.settle(Ok(())) } else { self.after_keys(site, &[]) })
            }
        }
    }
}

/// What our own keys begin with.
pub(crate) const MARKER_PREFIX: &[u8] = b"skalds:unit:{";
/// The most keys that a step in Rust is given at once.
const MOST_NATIVE_KEYS: usize = 256;
