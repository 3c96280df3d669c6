//! A hop of a strict order: listed keys one after the other, or a walk. The accumulator passes from key to key, in the
//! engine as long as the keys are here; then the chain follows the next key to its node.

use super::care::{Care, set_aside};
use super::cluster::{SlotRange, slot_table};
use super::error::NodeError;
use super::ledger::{Gain, Marker};
use super::native::StepError;
use super::native_step::Written;
use super::reply::{Fields, pack};
use super::runner::{Onward, Turn};
use super::site::Site;
use crate::chain::job::{Access, Target};
use crate::chain::slots::{key_tag, slot_of, tag_of};
use crate::chain::state::{JobState, NodeId};

/// How many steps a walk may take unless the job's argument `max_steps` says otherwise.
const MAX_STEPS: u64 = 100_000;

pub(crate) struct SequenceHop {
    /// Who owns what, as this node sees it; asked for at the start and after a refusal.
    table: Vec<SlotRange>,
    units: u64,
    care: Care,
}

/// What happened to the key at hand.
enum Here {
    Done,
    /// This node does not have it, and says why.
    Refused(String),
    /// It failed, and the job stops at failures.
    Stopped,
}

impl SequenceHop {
    pub(crate) async fn new(site: &Site) -> Result<Self, NodeError> {
        let table = if site.engine.cluster { slot_table(&site.engine.node).await? } else { Vec::new() };
        Ok(SequenceHop { table, units: 0, care: Care::default() })
    }

    /// The last call was lost: keys are done one by one from now on.
    pub(crate) fn lost(&mut self) {
        self.care.lost();
    }

    pub(crate) async fn advance(&mut self, site: &mut Site, state: &mut JobState) -> Result<Turn, NodeError> {
        let Some(key) = due_key(site, state)? else {
            state.sequence.complete = true;
            return Ok(Turn::Done(Onward::End));
        };
        if let Some(owner) = self.elsewhere(site, &key) {
            return Ok(self.follow(site, state, &key, owner));
        }
        if self.care.is_out() {
            self.care = Care::default();
            return self.set_aside(site, state, &key);
        }
        let before = state.sequence.done;
        let here = match (&site.native, &site.job.target) {
            (Some(_), _) => native(site, state, &key).await?,
            (None, Target::OrderedKeys(_)) => self.ordered(site, state).await?,
            (None, _) => walk(site, state, &key, self.care.alone()).await?,
        };
        self.care.answered();
        let units = state.sequence.done - before;
        self.units += units;
        match here {
            Here::Done => Ok(Turn::Working(u32::try_from(units).unwrap_or(u32::MAX))),
            Here::Stopped => Ok(Turn::Done(Onward::Stay)),
            Here::Refused(reason) => {
                let key = due_key(site, state)?.unwrap_or(key);
                self.table = slot_table(&site.engine.node).await?;
                match self.elsewhere(site, &key) {
                    Some(owner) => Ok(self.follow(site, state, &key, owner)),
                    None => {
                        site.place.leave_open(state, slot_of(&key), reason);
                        Ok(Turn::Done(Onward::End))
                    }
                }
            }
        }
    }

    /// The owner of a key, where it is another node.
    fn elsewhere(&self, site: &Site, key: &[u8]) -> Option<(NodeId, String)> {
        let slot = slot_of(key);
        let range = self.table.iter().find(|range| (range.first..=range.last).contains(&slot))?;
        range.nodes.first().filter(|(id, _)| *id != site.place.node).cloned()
    }

    fn follow(&self, site: &Site, state: &mut JobState, key: &[u8], owner: (NodeId, String)) -> Turn {
        // Two nodes that each say "the other one" would send the chain to and fro.
        let came_from = (state.position as usize)
            .checked_sub(1)
            .and_then(|at| state.route.get(at))
            .and_then(|hop| state.nodes.get(usize::from(hop.node)));
        if self.units == 0 && came_from.is_some_and(|node| node.id == owner.0) {
            let reason = format!("it says that {} has the slot, which sent the chain here", owner.1);
            site.place.leave_open(state, slot_of(key), reason);
            return Turn::Done(Onward::End);
        }
        Turn::Done(Onward::Node { id: owner.0, address: owner.1 })
    }

    /// Passes over a key whose step gets no answer. A walk cannot: the step would have named the next key.
    fn set_aside(&self, site: &mut Site, state: &mut JobState, key: &[u8]) -> Result<Turn, NodeError> {
        if matches!(site.job.target, Target::Walk(_)) {
            let key = String::from_utf8_lossy(key);
            return Err(NodeError::job(&site.job.id, format!("the walk stands at {key:?}: {}", set_aside())));
        }
        site.aside += 1;
        let stops = site.stops_at_failures();
        let failures = vec![(key.to_vec(), set_aside())];
        let gain = Gain { visited: 1, matched: 1, failed: 1, failures };
        state.sequence.done += u64::from(!stops);
        site.place.count(state, u64::from(!stops), gain);
        Ok(if stops { Turn::Done(Onward::Stay) } else { Turn::Working(1) })
    }

    async fn ordered(&self, site: &mut Site, state: &mut JobState) -> Result<Here, NodeError> {
        let job = site.job.clone();
        let Target::OrderedKeys(keys) = &job.target else { return Ok(Here::Done) };
        let done = state.sequence.done;
        let fits = if self.care.alone() { 1 } else { (site.engine.pace.keys() / 4).max(1) as usize };
        let next = keys.iter().skip(done as usize).take(fits);
        let next: Vec<_> = next.take_while(|key| self.elsewhere(site, key).is_none()).collect();
        let acc = pack(&state.acc);
        let ran = site.engine.run("ordered", |command| {
            command.arg(&acc[..]).arg(done);
            for key in &next {
                command.arg(&key[..]).arg(tag_of(slot_of(key)));
            }
        });
        let ran = ran.await?;
        let mut fields = Fields::new(ran.values);
        let handled = fields.count().map_err(|reason| site.engine.unreadable(reason))?;
        let gain = site.gain(&mut fields)?;
        let why = fields.bytes_or_none().map_err(|reason| site.engine.unreadable(reason))?;
        // A unit costs about four commands.
        site.engine.pace.learn(ran.seen, ran.clock, 4 * handled);
        let outcome = outcome(site, handled, &gain, why)?;
        state.acc = fields.value();
        state.sequence.done += handled;
        site.place.count(state, handled, gain);
        Ok(outcome)
    }
}

/// The key whose turn it is; none at the end.
fn due_key(site: &Site, state: &JobState) -> Result<Option<Vec<u8>>, NodeError> {
    let sequence = &state.sequence;
    match &site.job.target {
        Target::OrderedKeys(keys) => {
            Ok(usize::try_from(sequence.done).ok().and_then(|done| keys.get(done)).cloned())
        }
        Target::Walk(start) => match &sequence.next_key {
            Some(key) if steps_left(site, state) == 0 => Err(NodeError::job(
                &site.job.id,
                format!(
                    "the walk has taken {} steps and stands at {:?}: it may be going in a circle; allow more with \
                     the argument max_steps",
                    sequence.done,
                    String::from_utf8_lossy(key)
                ),
            )),
            Some(key) => Ok(Some(key.clone())),
            None if sequence.done == 0 && !sequence.complete => Ok(Some(start.clone())),
            None => Ok(None),
        },
        _ => Ok(None),
    }
}

fn steps_left(site: &Site, state: &JobState) -> u64 {
    let most = site.job.args.get("max_steps").and_then(|text| text.parse().ok()).unwrap_or(MAX_STEPS);
    most.saturating_sub(state.sequence.done)
}

fn outcome(site: &Site, handled: u64, gain: &Gain, why: Option<Vec<u8>>) -> Result<Here, NodeError> {
    if let Some(why) = why {
        return Ok(Here::Refused(site.refusal(String::from_utf8_lossy(&why).into_owned())?));
    }
    if site.stops_at_failures() && gain.failed > 0 {
        return Ok(Here::Stopped);
    }
    if handled == 0 {
        return Err(site.engine.unreadable("no key was handled"));
    }
    Ok(Here::Done)
}

async fn walk(site: &mut Site, state: &mut JobState, key: &[u8], alone: bool) -> Result<Here, NodeError> {
    let acc = pack(&state.acc);
    let (done, left) = (state.sequence.done, if alone { 1 } else { steps_left(site, state) });
    let ran = site.engine.run("walk", |command| {
        command.arg(&acc[..]).arg(done).arg(left).arg(key).arg(key_tag(key));
    });
    let ran = ran.await?;
    let mut fields = Fields::new(ran.values);
    let unreadable = |reason: String| site.engine.unreadable(reason);
    let steps = fields.count().map_err(unreadable)?;
    let gain = site.gain(&mut fields)?;
    let unreadable = |reason: String| site.engine.unreadable(reason);
    let why = fields.bytes_or_none().map_err(unreadable)?;
    let next = fields.bytes_or_none().map_err(unreadable)?;
    let outcome = outcome(site, steps, &gain, why)?;
    site.engine.pace.learn(ran.seen, ran.clock, 4 * steps);
    state.acc = fields.value();
    state.sequence.done += steps;
    state.sequence.next_key = next;
    site.place.count(state, steps, gain);
    Ok(outcome)
}

/// One key with a step in Rust.
async fn native(site: &mut Site, state: &mut JobState, key: &[u8]) -> Result<Here, NodeError> {
    let tag = tag_of(slot_of(key));
    let suffix = format!(":{}", state.sequence.done);
    let walks = matches!(site.job.target, Target::Walk(_));
    let mut gain = Gain { visited: 1, ..Gain::default() };
    let mut acc = state.acc.clone();
    let (marker, there) = match site.existing(tag, &suffix, &[key.to_vec()]).await? {
        Ok(found) => found,
        Err(reason) => return Ok(Here::Refused(reason)),
    };
    let read =
        |site: &Site, packed: &[u8]| Marker::read(packed).map_err(|reason| site.engine.unreadable(reason));
    // A walk's next key, where a run before this one has recorded it.
    let (mut recorded, mut packed) = (None, Vec::new());
    if let Some(found) = marker {
        let marker = read(site, &found)?;
        packed = found;
        (gain, acc, recorded) = (marker.gain, marker.delta, marker.last);
    } else if there.is_empty() {
        if walks {
            gain.fail(key, "there is no such key".into());
        }
    } else {
        gain.matched = 1;
        let stepped = match site.native_step(&there, Some(acc)).await {
            Ok(stepped) => stepped,
            Err(StepError::Elsewhere(reason)) => return Ok(Here::Refused(reason)),
            Err(error) => return Err(site.step_error(error)),
        };
        acc = stepped.value;
        stepped.failures.into_iter().for_each(|(key, reason)| gain.fail(&key, reason));
        let marker = Marker { done: true, last: None, gain: gain.clone(), delta: acc.clone() };
        packed = marker.packed();
        match site.native_write(tag, &suffix, b"", &packed, &stepped.writes).await? {
            Written::Done(wrong) => wrong.into_iter().for_each(|(key, reason)| gain.fail(&key, reason)),
            Written::Refused(reason) => return Ok(Here::Refused(reason)),
            Written::Already(found) => {
                let marker = read(site, &found)?;
                packed = found;
                (gain, acc, recorded) = (marker.gain, marker.delta, marker.last);
            }
        }
    }
    let stopped = site.stops_at_failures() && gain.failed > 0;
    let next = match recorded {
        Some(next) => Some(next).filter(|next| !next.is_empty()),
        None if walks && !stopped => {
            let next = match site.native_next(key, acc.clone()).await {
                Ok(next) => next,
                Err(StepError::Elsewhere(reason)) if site.job.access == Access::Read => {
                    return Ok(Here::Refused(reason));
                }
                Err(error) => return Err(site.step_error(error)),
            };
            // Before the walk goes on, so that a second run goes the same way.
            let last = Some(next.clone().unwrap_or_default());
            let marker = Marker { done: true, last, gain: gain.clone(), delta: acc.clone() };
            if site.job.access == Access::Write {
                match site.native_write(tag, &suffix, &packed, &marker.packed(), &[]).await? {
                    Written::Done(_) => next,
                    Written::Refused(reason) => return Ok(Here::Refused(reason)),
                    Written::Already(marker) => read(site, &marker)?.last.filter(|next| !next.is_empty()),
                }
            } else {
                next
            }
        }
        None => None,
    };
    state.acc = acc;
    if stopped {
        site.place.count(state, 0, gain);
        return Ok(Here::Stopped);
    }
    state.sequence.done += 1;
    state.sequence.next_key = next;
    site.place.count(state, 1, gain);
    Ok(Here::Done)
}
