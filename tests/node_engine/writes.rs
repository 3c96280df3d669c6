//! Writes happen once: replayed units, moving slots, interrupted big slots, a restarted server.

use skalds::chain::job::{Access, Builtin, Combine, JobSpec, Target};
use skalds::chain::slots::SlotSet;
use skalds::chain::value::Value;
use skalds::node::{Advance, NativeJobs, RedisAccess, StepRunner};

use crate::drive::*;
use crate::support::{RedisServer, Version, slot_of};

const INCR: &str = "function each(key, acc) redis.call('INCR', key) return (acc or 0) + 1 end";

/// Calls of at most a fifth of a millisecond, so that there are many.
fn in_small_bites(mut job: JobSpec) -> JobSpec {
    job.limits.max_block_micros = 200;
    job
}

fn values_are(place: &Place, prefix: &str, count: usize, value: i64) {
    for server in place.servers() {
        let keys: Vec<String> = server.query(&["KEYS", &format!("{prefix}*")]);
        let mut connection = server.connection();
        for key in &keys {
            let got: i64 = redis::cmd("GET").arg(key).query(&mut connection).unwrap();
            assert_eq!(got, value, "{key}");
        }
    }
    let total: usize = place
        .servers()
        .iter()
        .map(|server| server.query::<Vec<String>>(&["KEYS", &format!("{prefix}*")]).len())
        .sum();
    assert_eq!(total, count, "{}", place.name());
}

#[test]
fn a_unit_run_twice_has_one_effect_and_the_same_delta() {
    for place in Place::each(&[Version::V8, Version::V7_0, Version::Valkey9, Version::Valkey8], &[]) {
        place.load(strings("user:", 3_000));
        place.load(strings("{many}user:", 3_000));
        runtime().block_on(async {
            let view = view(&place).await;
            let fresh = chain(lua(pattern("*user:*"), INCR, Access::Write), &view, &SlotSet::empty());
            for _ in 0..3 {
                let mut state = fresh.clone();
                run_chain(&mut state, &NativeJobs::new()).await.unwrap();
                assert_eq!((result(&state), state.tally.matched), (Value::Int(6_000), 6_000));
            }
            // Markers are not keys, for this job and for others.
            let count = run(&place, builtin(pattern("*"), Builtin::Count)).await;
            assert_eq!((result(&count), count.tally.visited), (Value::Int(6_000), 6_000));
            // Another job does it again; one without markers every time.
            let mut other = lua(pattern("*user:*"), INCR, Access::Write);
            other.id = "job-2".into();
            run(&place, other).await;
            let mut unmarked = lua(pattern("*user:*"), INCR, Access::IdempotentWrite);
            unmarked.id = "job-3".into();
            run(&place, unmarked.clone()).await;
            run(&place, unmarked).await;
        });
        values_are(&place, "user:", 3_000, 4);
        values_are(&place, "{many}user:", 3_000, 4);
    }
}

#[test]
fn a_big_slot_that_was_interrupted_goes_on_where_it_was() {
    for version in [Version::V8, Version::V7_0] {
        let place = Place::cluster(version);
        place.load(strings("{many}:", 20_000));
        runtime().block_on(async {
            let view = view(&place).await;
            let mut fresh =
                chain(in_small_bites(lua(pattern("*"), INCR, Access::Write)), &view, &SlotSet::empty());
            let slot = slot_of(b"{many}") as u16;
            let owner = view.nodes.iter().position(|node| node.slots.contains(slot)).unwrap();
            fresh.route.retain(|hop| usize::from(hop.node) == owner);
            fresh.route[0].slots = SlotSet::range(slot, slot);
            let node = fresh.due_node().cloned().unwrap();
            let access = RedisAccess::default();
            let natives = NativeJobs::new();
            for advances in [12, 30] {
                let mut state = fresh.clone();
                let mut runner = StepRunner::open(&node, &state.job, &access, &natives).await.unwrap();
                for _ in 0..advances {
                    assert_eq!(runner.advance(&mut state).await.unwrap(), Advance::Working { units: 0 });
                }
                assert_eq!(
                    (state.tally.matched, state.ledger().len()),
                    (0, 0),
                    "a unit counts when it is whole"
                );
            }
            let mut state = fresh.clone();
            run_chain(&mut state, &natives).await.unwrap();
            assert_eq!((result(&state), state.tally.matched), (Value::Int(20_000), 20_000));
        });
        values_are(&place, "{many}:", 20_000, 1);
    }
}

#[test]
fn slots_that_move_wait_and_every_key_is_written_once() {
    for version in [Version::V8, Version::V7_0, Version::Valkey9, Version::Valkey8] {
        let place = Place::cluster(version);
        place.load(strings("user:", 4_000));
        let Place::Cluster(cluster) = &place else { unreachable!() };
        // All to one node: two nodes that raise their epochs at the same time may take a slot from each other.
        let to = 2;
        let owners = cluster.owners();
        let slots = (0..).map(|n| slot_of(format!("user:{n}").as_bytes()));
        let moving: Vec<usize> = slots.filter(|slot| owners[*slot] != to).take(12).collect();
        runtime().block_on(async {
            for slot in &moving {
                cluster.open_migration(*slot, to);
                cluster.migrate_keys(*slot, to, 1);
            }
            let before = view(&place).await;
            assert!(
                moving.iter().all(|slot| before.nodes.iter().any(|node| node.moving.contains(*slot as u16)))
            );
            let job = lua(pattern("user:*"), INCR, Access::Write);
            let mut first = chain(job.clone(), &before, &SlotSet::empty());
            run_chain(&mut first, &NativeJobs::new()).await.unwrap();
            assert_eq!(first.ledger().len(), 16_384 - 12);
            assert_eq!(first.open.len(), 12);
            assert!(first.open.values().all(|reason| reason.contains("moving")), "{:?}", first.open);

            for slot in &moving {
                while cluster.migrate_keys(*slot, to, 100) > 0 {}
                cluster.close_migration(*slot, to);
            }
            let after = view(&place).await;
            let mut rest = chain(job, &after, &first.ledger());
            rest.epoch = 2;
            run_chain(&mut rest, &NativeJobs::new()).await.unwrap();
            assert!(rest.open.is_empty(), "{:?}", rest.open);
            let mut ledger = first.ledger();
            assert!(!ledger.intersects(&rest.ledger()));
            ledger.union_with(&rest.ledger());
            assert_eq!(ledger.len(), 16_384);
            assert_eq!(first.tally.matched + rest.tally.matched, 4_000);
        });
        values_are(&place, "user:", 4_000, 1);
    }
}

#[test]
fn pages_of_a_single_server_are_written_once_though_the_state_is_lost() {
    let place = Place::single(Version::V8);
    place.load(strings("user:", 3_000));
    runtime().block_on(async {
        let view = view(&place).await;
        let job = in_small_bites(lua(pattern("user:*"), INCR, Access::Write));
        let fresh = chain(job, &view, &SlotSet::empty());
        for _ in 0..2 {
            let mut state = fresh.clone();
            run_chain(&mut state, &NativeJobs::new()).await.unwrap();
            assert_eq!((state.acc, state.tally.matched), (Value::Int(3_000), 3_000));
            assert!(state.sequence.complete && state.sequence.done > 2);
        }
    });
    values_are(&place, "user:", 3_000, 1);
}

#[test]
fn a_server_restarted_under_a_scan_is_scanned_again_or_refused() {
    let mut server = RedisServer::start(Version::V8, &["--appendonly", "yes"]);
    crate::support::load(&server, strings("user:", 3_000));
    for access in [Access::Read, Access::Write] {
        let text = if access == Access::Read { "function each(k, a) return (a or 0) + 1 end" } else { INCR };
        let seeds = [server.address()];
        runtime().block_on(async {
            let view = skalds::node::discover(&seeds, &RedisAccess::default()).await.unwrap();
            let job = in_small_bites(lua(pattern("user:*"), text, access));
            let mut state = chain(job, &view, &SlotSet::empty());
            let node = state.due_node().cloned().unwrap();
            let natives = NativeJobs::new();
            let mut runner =
                StepRunner::open(&node, &state.job, &RedisAccess::default(), &natives).await.unwrap();
            runner.advance(&mut state).await.unwrap();
            assert!(state.tally.matched > 0 && !state.sequence.complete);
            server.stop();
            let error = runner.advance(&mut state).await.unwrap_err();
            assert!(error.is_transient(), "{error}");
            server.restart();
            let rest = run_chain(&mut state, &natives).await;
            match access {
                Access::Read => {
                    rest.unwrap();
                    assert_eq!((state.acc, state.tally.visited), (Value::Int(3_000), 3_000));
                    assert!(state.reports[0].notes[0].contains("began again"), "{:?}", state.reports);
                }
                _ => {
                    let error = rest.unwrap_err();
                    assert!(!error.is_transient() && error.to_string().contains("restarted"), "{error}");
                }
            }
        });
    }
}

#[test]
fn a_reading_job_cannot_write() {
    for version in [Version::V8, Version::V7_0, Version::Valkey9, Version::Valkey8] {
        let place = Place::cluster(version);
        place.load(strings("user:", 10));
        runtime().block_on(async {
            let mut job = lua(Target::Keys(vec![b"user:1".to_vec()]), INCR, Access::Read);
            job.combine = Combine::Sum;
            let state = run(&place, job).await;
            let failed = state.failed.unwrap();
            assert_eq!(failed.key, b"user:1");
            assert!(
                failed.reason.starts_with("line 1: ERR Write commands are not allowed"),
                "{}",
                failed.reason
            );
            assert!(failed.reason.ends_with("(say --write if it is meant to)"), "{}", failed.reason);
        });
        values_are(&place, "user:", 10, 0);
    }
}
