//! Keys that a node holds although their slots are another's: leftovers of a move that was broken off, or of a server's
//! bug. A job goes by slots and never counts them; its report says that they are there.

use super::cluster::own_slots;
use super::error::NodeError;
use super::reply::Fields;
use super::site::Site;
use crate::chain::slots::SlotSet;
use crate::chain::state::JobState;

/// Ranges of slots that one call is given; it ends by its budget.
const RANGES_PER_CALL: usize = 512;

/// Notes how many there are on this node. Nothing is asked where the hop has seen as many keys as the node has.
pub(crate) async fn note_foreign_keys(site: &mut Site, state: &mut JobState) -> Result<(), NodeError> {
    let seen = site.place.report(state).keys;
    let held = site.engine.node.call(&redis::cmd("DBSIZE"), "read DBSIZE").await?;
    if !matches!(held, redis::Value::Int(held) if u64::try_from(held).is_ok_and(|held| held > seen)) {
        return Ok(());
    }
    let found = count(site, &foreign_slots(site).await?).await?;
    if found > 0 {
        let node = site.place.address.clone();
        site.place.note(
            state,
            format!("{node} also holds {found} keys of slots that it does not serve; they are not counted"),
        );
    }
    Ok(())
}

/// The slots that are not the node's, nor on their way to it.
async fn foreign_slots(site: &Site) -> Result<SlotSet, NodeError> {
    let (own, moving) = own_slots(&site.engine.node).await?;
    let mut foreign = SlotSet::full();
    foreign.subtract(&own);
    foreign.subtract(&moving);
    Ok(foreign)
}

async fn count(site: &mut Site, slots: &SlotSet) -> Result<u64, NodeError> {
    let mut ranges = slots.ranges();
    let mut found = 0;
    while let Some((first, _)) = ranges.first().copied() {
        let some = &ranges[..ranges.len().min(RANGES_PER_CALL)];
        let ran = site.engine.run("foreign", |command| {
            for (first, last) in some {
                command.arg(*first).arg(*last);
            }
        });
        let ran = ran.await?;
        let mut fields = Fields::new(ran.values);
        let mut number = || fields.count().map_err(|reason| site.engine.unreadable(reason));
        let (finished, next, keys) = (number()? as usize, number()?, number()?);
        found += keys;
        // Ranges that are done go; the one at hand goes on where the call has ended.
        let before = (ranges.len(), first);
        ranges.drain(..finished.min(ranges.len()));
        if let Some(range) = ranges.first_mut()
            && let Ok(next) = u16::try_from(next)
            && (range.0..=range.1).contains(&next)
        {
            range.0 = next;
        }
        if ranges.first().is_some_and(|range| (ranges.len(), range.0) == before) {
            return Err(site.engine.unreadable("no slot was looked at"));
        }
    }
    Ok(found)
}
