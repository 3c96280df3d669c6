//! Calls that are never answered: the key that they die of is found, named and passed over, and all others are done once.

use std::collections::BTreeMap;
use std::sync::Mutex;

use async_trait::async_trait;
use skalds::chain::job::{Access, Combine, JobSpec, OnError, Step, Target};
use skalds::chain::slots::SlotSet;
use skalds::chain::state::JobState;
use skalds::chain::value::Value;
use skalds::node::{
    Advance, ChainJob, Command, NativeJobs, NodeError, RedisAccess, StepContext, StepError, StepRunner,
};

use crate::drive::*;
use crate::support::Version;

/// Raises every key, or reads it, and gets no answer whenever a key named `poison…` is among them.
#[derive(Default)]
struct Dies {
    writes: bool,
    lost: Mutex<BTreeMap<Vec<u8>, u32>>,
}

#[async_trait]
impl ChainJob for Dies {
    fn name(&self) -> &str {
        "dies"
    }

    async fn step(&self, context: &mut StepContext<'_>, keys: &[Vec<u8>]) -> Result<Value, StepError> {
        if let Some(poison) = keys.iter().find(|key| key.windows(6).any(|part| part == b"poison")) {
            *self.lost.lock().unwrap().entry(poison.clone()).or_default() += 1;
            let (node, action, reason) = ("n".to_owned(), "a".to_owned(), "r".to_owned());
            return Err(NodeError::Lost { node, action, reason }.into());
        }
        if self.writes {
            keys.iter().for_each(|key| context.write(Command::new("INCRBY").arg(key).arg("1")));
        }
        let before = match context.acc() {
            Some(Value::Int(count)) => *count,
            _ => 0,
        };
        Ok(Value::Int(before + keys.len() as i64))
    }
}

/// Runs a chain as an agent does: after a lost call the same runner goes on over a new connection. Answers how many calls
/// were lost.
async fn run_on(state: &mut JobState, natives: &NativeJobs) -> Result<u32, NodeError> {
    let access = RedisAccess::default();
    let mut lost = 0;
    while let Some(node) = state.due_node().cloned() {
        let mut runner = StepRunner::open(&node, &state.job, &access, natives).await?;
        loop {
            match runner.advance(state).await {
                Ok(Advance::HopDone) => break,
                Ok(Advance::Working { .. }) => {}
                Err(NodeError::Lost { .. }) => {
                    lost += 1;
                    assert!(runner.reopen(&access).await?, "the next call is about less");
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(lost)
}

fn job(target: Target, writes: bool, on_error: OnError) -> JobSpec {
    let access = if writes { Access::Write } else { Access::Read };
    let mut job = JobSpec::new("dies-1", target, Step::Native("dies".into()), Combine::Sum, access);
    job.on_error = on_error;
    job
}

fn natives(writes: bool) -> NativeJobs {
    NativeJobs::new().with(Dies { writes, ..Dies::default() })
}

const POISON: [&[u8]; 2] = [b"user:poison", b"{b}user:poison"];

fn load(place: &Place) {
    place.load(strings("user:", 900));
    place.load(strings("{b}user:", 700));
    place.load(POISON.iter().map(|key| command(&[b"SET", key, b"0"])));
}

#[test]
fn a_key_that_no_call_survives_is_named_and_the_rest_is_done_once() {
    for place in Place::each(&[Version::V8, Version::V7_0], &[Version::V8]) {
        load(&place);
        let listed: Vec<Vec<u8>> = (0..900)
            .map(|n| format!("user:{n}").into_bytes())
            .chain((0..700).map(|n| format!("{{b}}user:{n}").into_bytes()))
            .chain(POISON.map(<[u8]>::to_vec))
            .collect();
        let mut raised = 0;
        for writes in [false, true] {
            let targets =
                [pattern("*user:*"), Target::Keys(listed.clone()), Target::OrderedKeys(listed.clone())];
            for (number, target) in targets.into_iter().enumerate() {
                let pages = number == 0 && matches!(place, Place::Single(_));
                let said = format!("{}, target {number}, writes {writes}", place.name());
                let mut job = job(target, writes, OnError::Skip);
                job.id = format!("dies-{number}");
                let state = runtime().block_on(async {
                    let view = view(&place).await;
                    let mut state = chain(job, &view, &SlotSet::empty());
                    let lost = run_on(&mut state, &natives(writes)).await.unwrap();
                    assert!((6..=16).contains(&lost), "{said}: {lost} calls were lost");
                    state
                });
                assert!(state.failed.is_none(), "{said}: {:?}", state.failed);
                assert_eq!(state.tally.visited, 1_602, "{said}");
                for poison in POISON {
                    let named = state.errors.iter().find(|error| error.key == poison);
                    let named = named.unwrap_or_else(|| panic!("{said}: {:?}", state.errors));
                    assert!(named.reason.contains("no answer"), "{said}: {named:?}");
                }
                if pages {
                    // Pages are the smallest pieces there: what shares one with such a key is named too.
                    let Value::Int(done) = result(&state) else { panic!("{said}: no number") };
                    assert_eq!(done as u64 + state.tally.errors, 1_602, "{said}");
                    assert!(state.tally.errors < 100, "{said}: {}", state.tally.errors);
                } else {
                    assert_eq!(
                        (state.tally.errors, result(&state)),
                        (2, Value::Int(1_600)),
                        "{said}: {:?}",
                        state.errors
                    );
                    raised += i64::from(writes);
                    assert_eq!(place.query::<i64>(&["GET", "user:0"]), raised, "{said}");
                    assert_eq!(place.query::<i64>(&["GET", "{b}user:699"]), raised, "{said}");
                }
                assert_eq!(place.query::<i64>(&["GET", "user:poison"]), 0, "{said}");
                if pages && writes {
                    // Not all of them were raised.
                    load(&place);
                }
            }
        }
    }
}

#[test]
fn a_job_that_stops_at_errors_stops_at_such_a_key() {
    for place in Place::each(&[Version::V8], &[Version::V8]) {
        load(&place);
        for target in [pattern("*user:*"), Target::OrderedKeys(vec![POISON[0].to_vec(), b"user:1".to_vec()])]
        {
            let pages = matches!((&target, &place), (Target::Pattern(_), Place::Single(_)));
            let state = runtime().block_on(async {
                let view = view(&place).await;
                let mut state = chain(job(target, false, OnError::Stop), &view, &SlotSet::empty());
                run_on(&mut state, &natives(false)).await.unwrap();
                state
            });
            let failed = state.failed.expect("it has failed");
            assert!(pages || POISON.contains(&&failed.key[..]), "{failed:?}");
            assert!(failed.reason.contains("no answer"), "{failed:?}");
        }
    }
}

/// A unit whose key was set aside counts it in its marker: run again from the state before, it answers the same.
#[test]
fn what_was_set_aside_stays_so_when_the_state_is_lost() {
    let place = Place::cluster(Version::V8);
    load(&place);
    runtime().block_on(async {
        let view = view(&place).await;
        let fresh = chain(job(pattern("*user:*"), true, OnError::Skip), &view, &SlotSet::empty());
        let mut tallies = Vec::new();
        for _ in 0..2 {
            let mut state = fresh.clone();
            run_on(&mut state, &natives(true)).await.unwrap();
            assert_eq!(result(&state), Value::Int(1_600));
            tallies.push((state.tally.visited, state.tally.matched, state.tally.errors));
        }
        assert_eq!(tallies, [(1_602, 1_602, 2); 2]);
    });
    assert_eq!(place.query::<i64>(&["GET", "user:7"]), 1);
    assert_eq!(place.query::<i64>(&["GET", "{b}user:7"]), 1);
}
