//! Listed keys, in any order and in strict order, and walks.

use skalds::chain::job::{Access, Builtin, Combine, OnError, Target};
use skalds::chain::value::Value;
use skalds::node::NativeJobs;

use crate::drive::*;
use crate::support::Version;

fn places() -> impl Iterator<Item = Place> {
    Place::each(&[Version::V8, Version::V7_0, Version::Valkey9], &[Version::V8])
}

fn keys(prefix: &str, count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|n| format!("{prefix}{n}").into_bytes()).collect()
}

#[test]
fn listed_keys_are_handled_once_wherever_they_are() {
    for place in places() {
        place.load(orders(2_000));
        place.load(
            (0..3_000).map(|n| command(&[b"HSET", format!("{{one}}:{n}").as_bytes(), b"status", b"x"])),
        );
        let mut listed = keys("order:", 3_000); // a third of them is missing
        listed.extend(keys("{one}:", 3_000));
        listed.push(b"order:0".to_vec());
        runtime().block_on(async {
            let by = Builtin::CountBy { field: "status".into() };
            let state = run(&place, builtin(Target::Keys(listed), by)).await;
            assert_eq!(result(&state), map(&[("new", 667), ("paid", 667), ("sent", 666), ("x", 3_000)]));
            assert_eq!((state.tally.visited, state.tally.matched), (6_000, 5_000));
        });
    }
}

#[test]
fn a_strict_order_is_kept_from_node_to_node() {
    for place in places() {
        place.load(
            (0..150).map(|n| command(&[b"SET", format!("k:{n}").as_bytes(), n.to_string().as_bytes()])),
        );
        let mut listed = keys("k:", 150);
        listed.insert(70, b"k:missing".to_vec());
        // Depends on the order: every key's number is one more than the last one's.
        let text = "
            function each(key, acc)
              local n = tonumber(redis.call('GET', key))
              if n ~= (acc and acc.last + 1 or 0) then error('out of order at ' .. n) end
              return {last = n, sum = (acc and acc.sum or 0) + n}
            end";
        runtime().block_on(async {
            let mut job = lua(Target::OrderedKeys(listed), text, Access::Read);
            job.combine = Combine::Merge;
            let state = run(&place, job).await;
            assert!(state.failed.is_none(), "{:?}", state.failed);
            assert_eq!(state.acc, map(&[("last", 149), ("sum", 11_175)]));
            assert!(state.sequence.complete && state.sequence.done == 151);
            assert_eq!((state.tally.visited, state.tally.matched), (151, 150));
            if let Place::Cluster(_) = place {
                assert!(state.route.len() > 3 && state.position as usize == state.route.len());
            }
        });
    }
}

const WALK: &str = "
    function each(key, acc)
      return (acc or 0) + tonumber(redis.call('HGET', key, 'value'))
    end
    function next(key, acc)
      return redis.call('HGET', key, 'next')
    end";

fn linked(place: &Place, count: usize) {
    place.load((0..count).map(|n| {
        let (key, next) = (format!("node:{n}"), format!("node:{}", n + 1));
        match n + 1 == count {
            true => command(&[b"HSET", key.as_bytes(), b"value", b"1"]),
            false => command(&[b"HSET", key.as_bytes(), b"value", b"1", b"next", next.as_bytes()]),
        }
    }));
}

#[test]
fn a_walk_follows_its_keys_from_node_to_node() {
    for place in places() {
        linked(&place, 80);
        runtime().block_on(async {
            let state = run(&place, lua(Target::Walk(b"node:0".to_vec()), WALK, Access::Read)).await;
            assert_eq!((state.acc.clone(), state.sequence.done), (Value::Int(80), 80));
            assert!(state.sequence.complete && state.failed.is_none());
            let hops = state.reports.len();
            assert!(if let Place::Cluster(_) = place { hops > 20 } else { hops == 1 }, "{hops} hops");
            assert_eq!(state.reports.iter().map(|report| report.units).sum::<u64>(), 80);
        });
    }
}

#[test]
fn a_walk_to_a_missing_key_says_so_and_one_in_a_circle_ends() {
    for place in Place::each(&[Version::V8], &[Version::V7_0]) {
        linked(&place, 20);
        runtime().block_on(async {
            place.query::<()>(&["HSET", "node:19", "next", "node:none}{}"]);
            let mut job = lua(Target::Walk(b"node:0".to_vec()), WALK, Access::Read);
            let state = run(&place, job.clone()).await;
            let failed = state.failed.unwrap();
            assert_eq!(
                (&failed.key[..], failed.reason.as_str()),
                (&b"node:none}{}"[..], "there is no such key")
            );
            assert_eq!(state.acc, Value::Int(20));
            job.on_error = OnError::Skip;
            let state = run(&place, job.clone()).await;
            assert_eq!((state.tally.errors, state.sequence.complete, state.acc), (1, true, Value::Int(20)));

            place.query::<()>(&["HSET", "node:19", "next", "node:0"]);
            job.args.insert("max_steps".into(), "1000".into());
            let view = view(&place).await;
            let mut state = chain(job, &view, &Default::default());
            let error = run_chain(&mut state, &NativeJobs::new()).await.unwrap_err();
            assert!(!error.is_transient());
            assert!(
                error.to_string().contains("1000 steps") && error.to_string().contains("max_steps"),
                "{error}"
            );
        });
    }
}

#[test]
fn writes_of_a_strict_order_are_applied_once_though_the_state_is_lost() {
    for place in places() {
        place.load(strings("w:", 60));
        let text = "function each(key, acc) return (acc or 0) + redis.call('INCR', key) end";
        runtime().block_on(async {
            let view = view(&place).await;
            let job = lua(Target::OrderedKeys(keys("w:", 60)), text, Access::Write);
            let fresh = chain(job, &view, &Default::default());
            for _ in 0..3 {
                let mut state = fresh.clone();
                run_chain(&mut state, &NativeJobs::new()).await.unwrap();
                assert_eq!((state.acc, state.tally.matched), (Value::Int(60), 60));
            }
            for n in 0..60 {
                assert_eq!(place.query::<i64>(&["GET", &format!("w:{n}")]), 1);
            }
        });
    }
}

#[test]
fn writes_of_a_walk_are_applied_once_though_the_state_is_lost() {
    for place in Place::each(&[Version::V8], &[Version::V8]) {
        linked(&place, 40);
        let text = format!(
            "{WALK}\nlocal read = each\nfunction each(key, acc) redis.call('HINCRBY', key, 'n', 1) return read(key, acc) end"
        );
        runtime().block_on(async {
            let view = view(&place).await;
            let job = lua(Target::Walk(b"node:0".to_vec()), &text, Access::Write);
            // One step to a call, then many, then one: the same steps find the same markers.
            for micros in [1, 2_000, 1] {
                let mut job = job.clone();
                job.limits.max_block_micros = micros;
                let mut state = chain(job, &view, &Default::default());
                run_chain(&mut state, &NativeJobs::new()).await.unwrap();
                assert_eq!((state.acc, state.sequence.done), (Value::Int(40), 40));
            }
            for n in 0..40 {
                assert_eq!(place.query::<i64>(&["HGET", &format!("node:{n}"), "n"]), 1);
            }
        });
    }
}

#[test]
fn a_walk_waits_at_a_moving_slot_and_goes_on_after_it() {
    let place = Place::cluster(Version::V8);
    linked(&place, 30);
    let Place::Cluster(cluster) = &place else { unreachable!() };
    let slot = crate::support::slot_of(b"node:17");
    let from = cluster.owners()[slot];
    let to = (from + 1) % 3;
    cluster.open_migration(slot, to);
    runtime().block_on(async {
        let job = lua(Target::Walk(b"node:0".to_vec()), WALK, Access::Read);
        let mut state = run(&place, job.clone()).await;
        assert_eq!((state.sequence.done, state.sequence.complete), (17, false));
        assert!(state.open.contains_key(&(slot as u16)), "{:?}", state.open);
        assert!(state.due_node().is_none() && state.failed.is_none());

        while cluster.migrate_keys(slot, to, 100) > 0 {}
        cluster.close_migration(slot, to);
        // The coordinator's part: plan the rest under the next epoch.
        let node = view(&place).await.owner(slot as u16).unwrap().id.clone();
        state.epoch += 1;
        state.position = 0;
        let index = state.nodes.iter().position(|known| known.id == node).unwrap();
        state.route = vec![skalds::chain::state::Hop { node: index as u16, slots: Default::default() }];
        run_chain(&mut state, &NativeJobs::new()).await.unwrap();
        assert_eq!((state.acc, state.sequence.done, state.sequence.complete), (Value::Int(30), 30, true));
    });
}
