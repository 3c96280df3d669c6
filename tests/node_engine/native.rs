//! Steps in Rust.

use async_trait::async_trait;
use skalds::chain::job::{Access, Combine, JobSpec, Step, Target};
use skalds::chain::slots::SlotSet;
use skalds::chain::value::Value;
use skalds::node::{ChainJob, Command, NativeJobs, StepContext, StepError};

use crate::drive::*;
use crate::support::{Version, slot_of};

/// Sums the field that the argument names.
struct Total;

#[async_trait]
impl ChainJob for Total {
    fn name(&self) -> &str {
        "total"
    }

    async fn step(&self, context: &mut StepContext<'_>, keys: &[Vec<u8>]) -> Result<Value, StepError> {
        let field = context.args()["field"].clone();
        let reads: Vec<_> = keys.iter().map(|key| Command::new("HGET").arg(key).arg(&field)).collect();
        let mut sum = match context.acc() {
            Some(Value::Int(sum)) => *sum,
            _ => 0,
        };
        for (key, reply) in keys.iter().zip(context.read(&reads).await?) {
            match reply {
                Ok(Value::Bytes(text)) => match String::from_utf8_lossy(&text).parse::<i64>() {
                    Ok(number) => sum += number,
                    Err(_) => context.fail(key, "no number"),
                },
                Ok(_) => {}
                Err(reason) => context.fail(key, reason),
            }
        }
        Ok(Value::Int(sum))
    }

    async fn next(&self, context: &mut StepContext<'_>, key: &[u8]) -> Result<Option<Vec<u8>>, StepError> {
        match context.read(&[Command::new("HGET").arg(key).arg("next")]).await?.pop() {
            Some(Ok(Value::Bytes(next))) => Ok(Some(next)),
            _ => Ok(None),
        }
    }

    fn finish(&self, acc: Value) -> Result<Value, String> {
        Ok(Value::List(vec![acc]))
    }
}

/// Raises a counter of each key.
struct Raise;

#[async_trait]
impl ChainJob for Raise {
    fn name(&self) -> &str {
        "raise"
    }

    async fn step(&self, context: &mut StepContext<'_>, keys: &[Vec<u8>]) -> Result<Value, StepError> {
        for key in keys {
            context.write(Command::new("INCRBY").arg(key).arg("1"));
        }
        let before = match context.acc() {
            Some(Value::Int(count)) => *count,
            _ => 0,
        };
        Ok(Value::Int(before + keys.len() as i64))
    }
}

fn natives() -> NativeJobs {
    NativeJobs::new().with(Total).with(Raise)
}

fn job(target: Target, name: &str, access: Access) -> JobSpec {
    let mut job = JobSpec::new("native-1", target, Step::Native(name.into()), Combine::Sum, access);
    job.args.insert("field".into(), "total".into());
    job
}

fn places() -> impl Iterator<Item = Place> {
    Place::each(&[Version::V8, Version::V7_0], &[Version::Valkey9])
}

#[test]
fn a_reading_step_sees_every_key_once() {
    for place in places() {
        place.load(orders(2_000));
        place.load(
            (0..8_000).map(|n| command(&[b"HSET", format!("order:{{b}}{n}").as_bytes(), b"total", b"1"])),
        );
        place.load([command(&[b"SET", b"order:text", b"1"])]);
        runtime().block_on(async {
            let mut sums = job(pattern("order:*"), "total", Access::Read);
            sums.on_error = skalds::chain::job::OnError::Skip;
            let state = run_with(&place, sums, &natives()).await;
            assert_eq!(result(&state), Value::Int(1_999_000 + 8_000));
            assert_eq!((state.tally.visited, state.tally.matched, state.tally.errors), (10_001, 10_001, 1));
            assert!(state.errors[0].reason.starts_with("WRONGTYPE"), "{:?}", state.errors);
            let listed = Target::Keys((0..500).map(|n| format!("order:{n}").into_bytes()).collect());
            let state = run_with(&place, job(listed, "total", Access::Read), &natives()).await;
            assert_eq!(result(&state), Value::Int(124_750));
        });
    }
}

#[test]
fn writes_of_a_step_are_applied_once_though_the_state_is_lost() {
    for place in places() {
        place.load(strings("user:", 400));
        place.load(strings("{b}user:", 3_000));
        runtime().block_on(async {
            let view = view(&place).await;
            let fresh = chain(job(pattern("*user:*"), "raise", Access::Write), &view, &SlotSet::empty());
            for _ in 0..2 {
                let mut state = fresh.clone();
                run_chain(&mut state, &natives()).await.unwrap();
                assert_eq!((result(&state), state.tally.matched), (Value::Int(3_400), 3_400));
            }
            let listed: Vec<Vec<u8>> = (0..400).map(|n| format!("user:{n}").into_bytes()).collect();
            let mut ordered = job(Target::OrderedKeys(listed), "raise", Access::Write);
            ordered.id = "native-2".into();
            let fresh = chain(ordered, &view, &SlotSet::empty());
            for _ in 0..2 {
                let mut state = fresh.clone();
                run_chain(&mut state, &natives()).await.unwrap();
                assert_eq!((state.acc, state.sequence.done), (Value::Int(400), 400));
            }
        });
        for n in 0..400 {
            assert_eq!(place.query::<i64>(&["GET", &format!("user:{n}")]), 2);
        }
        for n in 0..3_000 {
            assert_eq!(place.query::<i64>(&["GET", &format!("{{b}}user:{n}")]), 1);
        }
    }
}

#[test]
fn a_walk_in_rust_follows_its_keys() {
    for place in places() {
        place.load((0..60).map(|n| {
            let (key, next) = (format!("node:{n}"), format!("node:{}", n + 1));
            command(&[
                b"HSET",
                key.as_bytes(),
                b"total",
                b"2",
                b"next",
                if n < 59 { next.as_bytes() } else { b"" },
            ])
        }));
        runtime().block_on(async {
            let walk = job(Target::Walk(b"node:0".to_vec()), "total", Access::Read);
            let state = run_with(&place, walk, &natives()).await;
            assert_eq!((state.acc, state.sequence.done), (Value::Int(120), 60));
            assert!(state.sequence.complete);
        });
    }
}

#[test]
fn a_slot_on_its_way_is_left_open() {
    let place = Place::cluster(Version::V8);
    place.load(orders(1_000));
    let Place::Cluster(cluster) = &place else { unreachable!() };
    let slot = slot_of(b"order:7");
    let to = (cluster.owners()[slot] + 1) % 3;
    cluster.open_migration(slot, to);
    cluster.migrate_keys(slot, to, 1);
    runtime().block_on(async {
        let state = run_with(&place, job(pattern("order:*"), "total", Access::Read), &natives()).await;
        assert_eq!(state.ledger().len(), 16_383);
        assert!(state.open.contains_key(&(slot as u16)));
        while cluster.migrate_keys(slot, to, 10) > 0 {}
        cluster.close_migration(slot, to);
        let after = view(&place).await;
        let mut rest = chain(job(pattern("order:*"), "total", Access::Read), &after, &state.ledger());
        run_chain(&mut rest, &natives()).await.unwrap();
        let sum = skalds::chain::combine::fold(&Combine::Sum, result(&state), result(&rest)).unwrap();
        assert_eq!(sum, Value::Int(499_500));
    });
}

#[test]
fn a_reading_job_whose_step_writes_is_refused() {
    let place = Place::single(Version::V8);
    place.load(strings("user:", 5));
    runtime().block_on(async {
        let view = view(&place).await;
        let mut state = chain(job(pattern("*"), "raise", Access::Read), &view, &SlotSet::empty());
        let error = run_chain(&mut state, &natives()).await.unwrap_err();
        assert!(error.to_string().contains("access is read"), "{error}");
        assert_eq!(place.query::<i64>(&["GET", "user:1"]), 0);
    });
}
