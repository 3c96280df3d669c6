//! The only hop of a pattern job on a server without cluster mode: SCAN pages.
//!
//! A page counts once it is in the state, with the cursor after it. SCAN shows every key that is there throughout; it
//! may show one twice while the server shrinks its table, and then that key counts twice.

use std::time::Instant;

use super::care::{Care, set_aside};
use super::error::NodeError;
use super::ledger::{Gain, Marker};
use super::native_step::Written;
use super::reply::Fields;
use super::runner::{Onward, Turn};
use super::site::Site;
use super::unit::MARKER_PREFIX;
use crate::chain::glob::Glob;
use crate::chain::job::{Access, Target};
use crate::chain::state::{JobState, Sequence, Tally};
use crate::chain::value::Value;

/// Bounds of SCAN's COUNT.
const PAGE: std::ops::RangeInclusive<u64> = 8..=256;

pub(crate) async fn advance(
    site: &mut Site,
    state: &mut JobState,
    care: &mut Care,
) -> Result<Turn, NodeError> {
    if state.sequence.complete {
        return Ok(Turn::Done(Onward::Next));
    }
    if state.sequence.cursor != 0 && state.sequence.cursor_of != site.place.replication_id {
        start_again(site, state)?;
    }
    let (cursor, gain, delta) = match &site.native {
        _ if care.is_out() => {
            let (cursor, keys, mut gain) = page(site, state.sequence.cursor, *PAGE.start()).await?;
            site.aside += 1;
            keys.iter().for_each(|key| gain.fail(key, set_aside()));
            (cursor, gain, Value::Nil)
        }
        None => in_engine(site, state.sequence.cursor, care.alone()).await?,
        Some(_) => native(site, state.sequence.cursor, care.alone()).await?,
    };
    if care.is_out() {
        *care = Care::default();
    }
    care.answered();
    let mut acc = std::mem::take(&mut state.acc);
    let folded = site.fold(&mut acc, vec![delta]).await;
    state.acc = acc;
    folded?;
    let stopped = site.stops_at_failures() && gain.failed > 0;
    site.place.count(state, u64::from(!stopped), gain);
    if stopped {
        return Ok(Turn::Done(Onward::Stay));
    }
    state.sequence.cursor = cursor;
    state.sequence.cursor_of.clone_from(&site.place.replication_id);
    state.sequence.done += 1;
    state.sequence.complete = cursor == 0;
    Ok(if state.sequence.complete { Turn::Done(Onward::Next) } else { Turn::Working(1) })
}

/// Another server, or a restarted one, hashes its keys differently: the cursor means nothing to it.
fn start_again(site: &Site, state: &mut JobState) -> Result<(), NodeError> {
    if site.job.access == Access::Write {
        return Err(NodeError::job(
            &site.job.id,
            format!(
                "redis at {} was restarted or replaced after {} pages: which keys have been written cannot be \
                 told any more; on a cluster this job would go on",
                site.place.address, state.sequence.done
            ),
        ));
    }
    state.sequence = Sequence::default();
    state.acc = Value::Nil;
    state.tally = Tally::default();
    state.errors.clear();
    site.place.note(state, "the server was restarted or replaced: the scan began again".to_owned());
    Ok(())
}

async fn in_engine(site: &mut Site, cursor: u64, alone: bool) -> Result<(u64, Gain, Value), NodeError> {
    let count = if alone { *PAGE.start() } else { site.engine.pace.keys().clamp(*PAGE.start(), *PAGE.end()) };
    let ran = site.engine.run("pages", |command| {
        command.arg(cursor).arg(count).arg(u8::from(alone));
    });
    let ran = ran.await?;
    let mut fields = Fields::new(ran.values);
    let next = cursor_of(site, fields.text())?;
    let gain = site.gain(&mut fields)?;
    site.engine.pace.learn(ran.seen, ran.clock, gain.visited);
    Ok((next, gain, fields.value()))
}

/// One SCAN page: the next cursor, the keys that match, and what has been seen.
async fn page(site: &mut Site, cursor: u64, count: u64) -> Result<(u64, Vec<Vec<u8>>, Gain), NodeError> {
    let mut command = redis::cmd("SCAN");
    command.arg(cursor).arg("COUNT").arg(count);
    let start = Instant::now();
    let page = site.engine.node.call(&command, "read a SCAN page").await?;
    site.engine.note(start.elapsed());
    let (next, keys): (String, Vec<Vec<u8>>) =
        redis::from_redis_value(page).map_err(|error| site.engine.unreadable(error.to_string()))?;
    let next = cursor_of(site, Ok(next))?;
    let Target::Pattern(pattern) = &site.job.target else {
        return Err(site.engine.unreadable("only a pattern's keys are scanned"));
    };
    let glob = Glob::new(pattern);
    let mut gain = Gain::default();
    let mut matching = Vec::with_capacity(keys.len());
    for key in keys.into_iter().filter(|key| !key.starts_with(MARKER_PREFIX)) {
        gain.visited += 1;
        if glob.matches(&key) {
            matching.push(key);
        }
    }
    gain.matched = matching.len() as u64;
    Ok((next, matching, gain))
}

async fn native(site: &mut Site, cursor: u64, alone: bool) -> Result<(u64, Gain, Value), NodeError> {
    let tag = cursor.to_string();
    if site.job.access == Access::Write
        && let Ok((Some(marker), _)) = site.existing(&tag, "", &[]).await?
    {
        return recorded(site, &marker);
    }
    let (next, matching, mut gain) =
        page(site, cursor, if alone { *PAGE.start() } else { *PAGE.end() }).await?;
    if matching.is_empty() {
        return Ok((next, gain, Value::Nil));
    }
    let stepped = match site.native_step(&matching, None).await {
        Ok(stepped) => stepped,
        Err(error) => return Err(site.step_error(error)),
    };
    stepped.failures.into_iter().for_each(|(key, reason)| gain.fail(&key, reason));
    let marker = Marker {
        done: false,
        last: Some(next.to_string().into_bytes()),
        gain: gain.clone(),
        delta: stepped.value.clone(),
    };
    match site.native_write(&tag, "", b"", &marker.packed(), &stepped.writes).await? {
        Written::Done(wrong) => {
            wrong.into_iter().for_each(|(key, reason)| gain.fail(&key, reason));
            Ok((next, gain, stepped.value))
        }
        Written::Already(marker) => recorded(site, &marker),
        Written::Refused(reason) => Err(site.engine.unreadable(reason)),
    }
}

fn recorded(site: &Site, marker: &[u8]) -> Result<(u64, Gain, Value), NodeError> {
    let marker = Marker::read(marker).map_err(|reason| site.engine.unreadable(reason))?;
    let last = marker.last.unwrap_or_default();
    Ok((cursor_of(site, Ok(String::from_utf8_lossy(&last).into_owned()))?, marker.gain, marker.delta))
}

fn cursor_of(site: &Site, text: Result<String, String>) -> Result<u64, NodeError> {
    text.and_then(|text| text.parse().map_err(|_| format!("{text:?} where a cursor belongs")))
        .map_err(|reason| site.engine.unreadable(reason))
}
