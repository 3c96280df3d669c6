//! Patterns: built-ins, odd keys, empty places, big slots.

use std::time::{Duration, Instant};

use skalds::chain::job::{Access, Builtin, Combine, ExpireIf, Step};
use skalds::chain::value::Value;

use crate::drive::*;
use crate::support::{RedisServer, Version, wait_until};

fn everywhere() -> impl Iterator<Item = Place> {
    Place::each(&[Version::V8, Version::V7_0, Version::Valkey9], &Version::ALL)
}

#[test]
fn built_ins_are_exact_on_every_version() {
    for place in everywhere() {
        let name = place.name();
        place.load(orders(6_000));
        place.load(strings("user:", 1_500));
        runtime().block_on(async {
            let counted = run(&place, builtin(pattern("order:*"), Builtin::Count)).await;
            assert_eq!(result(&counted), Value::Int(6_000), "{name}");
            assert_eq!((counted.tally.visited, counted.tally.matched), (7_500, 6_000), "{name}");
            assert_eq!(result(&run(&place, builtin(pattern("*"), Builtin::Count)).await), Value::Int(7_500));

            let by = Builtin::CountBy { field: "status".into() };
            let counted = run(&place, builtin(pattern("order:*"), by)).await;
            assert_eq!(result(&counted), map(&[("new", 2_000), ("paid", 2_000), ("sent", 2_000)]), "{name}");
            let calls: u64 = counted.reports.iter().map(|report| report.calls).sum();
            assert!(calls > 0 && counted.reports.iter().all(|report| report.max_block_micros > 0), "{name}");

            let sum = Builtin::Sum { field: "total".into() };
            assert_eq!(result(&run(&place, builtin(pattern("order:*"), sum)).await), Value::Int(17_997_000));

            let gone = run(&place, builtin(pattern("*:*7"), Builtin::Unlink)).await;
            assert_eq!(result(&gone), Value::Int(750), "{name}");
            assert_eq!(result(&run(&place, builtin(pattern("*"), Builtin::Count)).await), Value::Int(6_750));
        });
    }
}

#[test]
fn expire_knows_its_conditions_and_spreads() {
    for place in Place::each(&[Version::V7_0], &[Version::V8]) {
        place.load(strings("a:", 1_000));
        place.load((0..500).map(|n| command(&[b"EXPIRE", format!("a:{n}").as_bytes(), b"100"])));
        let expire = |seconds: u64, only_if, jitter_percent| {
            let builtin_step = Builtin::Expire { ttl_millis: seconds * 1_000, only_if, jitter_percent };
            builtin(pattern("a:*"), builtin_step)
        };
        runtime().block_on(async {
            for (job, set) in [
                (expire(50, ExpireIf::Greater, 0), 0),
                (expire(200, ExpireIf::Greater, 0), 500),
                (expire(150, ExpireIf::None, 0), 500),
                (expire(100, ExpireIf::Less, 0), 1_000),
                (expire(1_000, ExpireIf::Always, 50), 1_000),
            ] {
                let step = format!("{:?}", job.step);
                assert_eq!(result(&run(&place, job).await), Value::Int(set), "{step}");
            }
        });
        let mut seconds = std::collections::HashMap::new();
        for n in 0..1_000 {
            let left: i64 = place.query(&["PTTL", &format!("a:{n}")]);
            assert!((990_000..=1_500_000).contains(&left), "a:{n} lives {left} ms");
            *seconds.entry(left / 1_000).or_insert(0) += 1;
        }
        let most = seconds.values().max().unwrap();
        assert!(*most <= 10, "{most} of 1000 keys expire in one second of 500");
    }
}

#[test]
fn keys_of_any_bytes_are_handled() {
    let keys: [&[u8]; 9] = [
        b"odd: spaces  and\ttabs",
        b"odd:new\nline\r\n",
        b"odd:'quotes\"",
        b"odd:nul\0inside",
        b"odd:\xff\xfe not utf-8",
        b"odd:{tag}x}",
        b"odd:%d[a]*?\\",
        b"odd:{}",
        b"odd:",
    ];
    for place in Place::each(&[Version::V8, Version::Valkey9], &[Version::V7_0]) {
        place.load(keys.iter().map(|key| command(&[b"SET", key, b"1"])));
        place.load([command(&[b"SET", b"", b"1"])]);
        let names = "function each(key, acc) acc = acc or {} acc[#acc + 1] = key return acc end";
        runtime().block_on(async {
            let mut job = lua(pattern("odd:*"), names, Access::Read);
            job.combine = Combine::Union { cap: 100 };
            let mut expected: Vec<Value> = keys.iter().map(|key| Value::Bytes(key.to_vec())).collect();
            expected.sort_by_key(|key| format!("{key:?}"));
            let Value::List(mut found) = result(&run(&place, job.clone()).await) else { panic!("no list") };
            found.sort_by_key(|key| format!("{key:?}"));
            assert_eq!(found, expected);

            for (glob, count) in [
                (&b"odd:nul\0*"[..], 1),
                (b"*\xff*", 1),
                (b"odd:[%']*", 2),
                (b"*\\\\", 1),
                (b"odd:?*n*e*", 2),
                (b"*", 10),
                (b"odd:", 1),
            ] {
                let target = skalds::chain::job::Target::Pattern(glob.to_vec());
                let counted = result(&run(&place, builtin(target, Builtin::Count)).await);
                assert_eq!(counted, Value::Int(count), "{}", glob.escape_ascii());
            }
            job.target = skalds::chain::job::Target::Keys(keys.iter().map(|key| key.to_vec()).collect());
            let Value::List(listed) = result(&run(&place, job).await) else { panic!("no list") };
            assert_eq!(listed.len(), keys.len());
        });
    }
}

#[test]
fn nothing_there_and_nothing_matching_are_no_errors() {
    for place in Place::each(&[Version::V8], &[Version::V8]) {
        runtime().block_on(async {
            for loaded in [false, true] {
                let by = Builtin::CountBy { field: "status".into() };
                let state = run(&place, builtin(pattern("nothing:*"), by)).await;
                assert_eq!(result(&state), Value::Nil);
                assert_eq!((state.tally.matched, state.tally.errors), (0, 0));
                assert!(state.due_node().is_none() && state.failed.is_none());
                if let Place::Cluster(_) = place {
                    assert_eq!(state.ledger().len(), 16_384);
                } else {
                    assert!(state.sequence.complete);
                }
                if !loaded {
                    place.load(strings("user:", 300));
                }
            }
        });
    }
}

#[test]
fn expired_keys_that_still_lie_about_do_not_count() {
    for place in Place::each(&[Version::V8, Version::V7_0], &[]) {
        for server in place.servers() {
            server.query::<()>(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
        }
        place.load(orders(900));
        place.load((0..300).map(|n| command(&[b"PEXPIRE", format!("order:{n}").as_bytes(), b"1"])));
        // Asking for them would remove them; the node's own clock says when they are over.
        let expired_at = Instant::now() + Duration::from_millis(5);
        wait_until(Duration::from_secs(5), "the keys to expire", || Instant::now() > expired_at);
        runtime().block_on(async {
            let count = run(&place, builtin(pattern("order:*"), Builtin::Count)).await;
            assert_eq!(result(&count), Value::Int(600));
        });
    }
}

#[test]
fn a_slot_of_two_hundred_thousand_keys_among_small_ones_is_exact_and_short() {
    for version in [Version::V8, Version::Valkey9, Version::V7_0] {
        let place = Place::cluster(version);
        place.load(orders(5_000));
        const STATUS: [&str; 4] = ["new", "paid", "sent", "lost"];
        place.load((0..200_000).map(|n| {
            let key = format!("order:{{big}}:{n}");
            command(&[b"HSET", key.as_bytes(), b"status", STATUS[n % 4].as_bytes()])
        }));
        let owner = place.owner_of(b"{big}");
        watch_calls(owner);
        runtime().block_on(async {
            let by = Builtin::CountBy { field: "status".into() };
            let state = run(&place, builtin(pattern("order:*"), by)).await;
            let expected = [("lost", 50_000), ("new", 51_667), ("paid", 51_667), ("sent", 51_666)];
            assert_eq!(result(&state), map(&expected), "{version:?}");
            assert_eq!(state.tally.visited, 205_000);
            assert_eq!(state.ledger().len(), 16_384);
            let report = state.reports.iter().max_by_key(|report| report.keys).unwrap();
            if version == Version::V7_0 {
                assert!(report.notes.iter().any(|note| note.contains("in one call")), "{:?}", report.notes);
            } else {
                assert!(report.notes.is_empty(), "{:?}", report.notes);
            }
        });
        let held = calls(owner);
        let quartile = held[held.len() / 4];
        assert!(quartile <= 2_000, "{version:?}: {quartile} us");
    }
}

#[test]
fn a_slow_step_gets_short_calls() {
    // About a tenth of a millisecond for each key.
    let text =
        "function each(key, acc) local n = 0 for i = 1, 12000 do n = n + i end return (acc or 0) + 1 end";
    for place in Place::each(&[Version::V8, Version::V7_0], &[Version::V8]) {
        place.load(strings("user:", 2_000));
        place.load(strings("{one}:", 1_000));
        place.servers().into_iter().for_each(watch_calls);
        runtime().block_on(async {
            let state = run(&place, lua(pattern("*"), text, Access::Read)).await;
            assert_eq!(result(&state), Value::Int(3_000), "{}", place.name());
        });
        let mut held: Vec<i64> = place.servers().into_iter().flat_map(calls).collect();
        held.sort_unstable();
        // Others on the machine take their turns in the middle of some calls: the quick half says what was asked for.
        let quartile = held[held.len() / 4];
        assert!(quartile <= 2_500, "{}: {quartile} us", place.name());
    }
}

/// Commands inside a script are logged too, and are shorter than 50 µs.
fn watch_calls(server: &RedisServer) {
    server.query::<()>(&["CONFIG", "SET", "slowlog-max-len", "100000"]);
    server.query::<()>(&["CONFIG", "SET", "slowlog-log-slower-than", "50"]);
}

/// How long calls have held the node, in microseconds, ascending.
fn calls(server: &RedisServer) -> Vec<i64> {
    let log: Vec<Vec<redis::Value>> = server.query(&["SLOWLOG", "GET", "-1"]);
    let script = |entry: &Vec<redis::Value>| match (&entry[2], &entry[3]) {
        (redis::Value::Int(micros), redis::Value::Array(command)) => match &command[0] {
            redis::Value::BulkString(name) if name.starts_with(b"EVALSHA") => Some(*micros),
            _ => None,
        },
        _ => None,
    };
    let mut held: Vec<i64> = log.iter().filter_map(script).collect();
    held.sort_unstable();
    held
}

#[test]
fn whole_node_scripts_get_the_pattern_and_what_went_before() {
    let text = "
        local before = ARGV[2] ~= '' and cjson.decode(ARGV[2]) or {}
        local seen, cursor = {nodes = 1, before = before.nodes or 0}, '0'
        repeat
          local page = redis.call('SCAN', cursor, 'MATCH', ARGV[1], 'COUNT', 500)
          cursor = page[1]
          seen.keys = (seen.keys or 0) + #page[2]
        until cursor == '0'
        return cjson.encode(seen)";
    let place = Place::cluster(Version::V8);
    place.load(orders(900));
    place.load(strings("user:", 90));
    runtime().block_on(async {
        let mut job = builtin(pattern("order:*"), Builtin::Count);
        job.step = Step::Raw(text.to_owned());
        let state = run(&place, job).await;
        // Nodes before: none, then one, then two.
        assert_eq!(result(&state), map(&[("before", 3), ("keys", 900), ("nodes", 3)]));
        assert!(state.sequence.complete && state.sequence.done == 3);
        assert!(state.reports.iter().all(|report| report.notes[0].contains("not exact while slots move")));
    });
}
