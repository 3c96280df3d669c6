//! What a job answers when nothing goes wrong, in direct mode and over agents.

use serde_json::{Value, json};

use crate::agents::Agents;
use crate::support::{Process, RedisServer, Version, wait_until};
use crate::{PATIENCE, finished, orders, three_masters, words};

/// Keys of every kind that a glob or a codec could stumble over, all in `odd:*`.
fn odd_keys() -> Vec<Vec<u8>> {
    let plain = [
        "odd:a b",
        "odd:line\nbreak",
        "odd:\"quoted\"",
        "odd:'q'",
        "odd:{tag}x",
        "odd:ümlaut",
        "odd:*?[x]",
        "odd:",
    ];
    let mut keys: Vec<Vec<u8>> = plain.iter().map(|key| key.as_bytes().to_vec()).collect();
    keys.extend([b"odd:\0nul".to_vec(), b"odd:\xff\xfe\x80".to_vec(), b"odd:\r\n$5\r\n".to_vec()]);
    keys
}

#[test]
fn counts_equal_the_truth_with_and_without_agents() {
    let cluster = three_masters();
    let (commands, truth) = orders(20_000);
    cluster.load(commands);
    cluster.load((0..2_000).map(|number| words(&["SET", &format!("other:{number}"), "x"])));
    let count_by = ["count-by", "status", "--match", "order:*"];

    let direct = finished(&cluster.url(), &count_by);
    assert_eq!(direct["result"], truth);
    assert_eq!(direct["keys"], json!({"visited": 22_000, "matched": 20_000, "errors": 0}));
    assert!(direct["hops"].as_array().unwrap().iter().all(|hop| hop["agent"] == "direct"));

    let mut agents = Agents::beside(&cluster);
    let over_agents =
        finished(&cluster.url(), &[&count_by[..], &["--agents", "require", "--chains", "1"]].concat());
    assert_eq!(over_agents["result"], truth);
    assert_eq!(over_agents["plan"]["chains"][0].as_array().unwrap().len(), 3, "{over_agents:#}");
    let mut ran: Vec<&Value> =
        over_agents["hops"].as_array().unwrap().iter().map(|hop| &hop["agent"]).collect();
    ran.sort_by_key(|agent| agent.to_string());
    let mut addresses: Vec<&str> = agents.all.iter().map(|agent| agent.address.as_str()).collect();
    addresses.sort_unstable();
    assert_eq!(ran, addresses, "each node's own agent ran its hop");
    for hop in over_agents["hops"].as_array().unwrap() {
        assert!(hop["stateBytes"].as_u64().unwrap() > 0 && hop["keys"].as_u64().unwrap() > 5_000, "{hop}");
    }
    let mut handed_on = 0.0;
    for agent in &mut agents.all {
        handed_on += agent.metric("network_hop_latency_count");
        assert_eq!(agent.metric("agent_forward_failures_total"), 0.0);
        assert_eq!(agent.metric("agent_queue_size") + agent.metric("agent_active_jobs"), 0.0);
    }
    // From agent to agent to agent; the end of the job may come before the coordinator's own acknowledgement.
    assert!((2.0..=3.0).contains(&handed_on), "{handed_on} hops were handed on");
    let url = cluster.url();
    let printed = Process::run(PATIENCE, &[&["job", "run", "--redis", &url], &count_by[..]].concat());
    assert!(printed.stdout.contains("AGENT"), "{}", printed.stdout);
    for agent in &agents.all {
        assert!(printed.stdout.contains(&agent.address), "{}", printed.stdout);
    }
}

#[test]
fn every_built_in_does_what_it_says() {
    let cluster = three_masters();
    let (commands, _) = orders(3_000);
    cluster.load(commands);
    let url = cluster.url();
    assert_eq!(finished(&url, &["count", "--match", "*"])["result"], 3_000);
    assert_eq!(finished(&url, &["sum", "total", "--match", "order:*"])["result"], 3_000 * 2_999 / 2);
    let expired = finished(&url, &["expire", "1day", "--match", "order:1*", "--jitter", "10%"]);
    assert_eq!(expired["result"], 1_111);
    for node in cluster.masters() {
        let ttl: i64 = match node.try_query(&["TTL", "order:1"]) {
            Ok(ttl) => ttl,
            Err(_) => continue, // another node's key
        };
        assert!((86_000..=86_400 * 11 / 10).contains(&ttl), "{ttl}");
    }
    assert_eq!(
        finished(&url, &["expire", "2days", "--match", "*", "--only-if", "none"])["result"],
        3_000 - 1_111
    );
    assert_eq!(finished(&url, &["unlink", "--match", "order:2*"])["result"], 1_111);
    assert_eq!(cluster.key_count(), 3_000 - 1_111);
}

#[test]
fn keys_may_hold_any_byte() {
    let cluster = three_masters();
    let keys = odd_keys();
    cluster.load(keys.iter().map(|key| vec![b"SET".to_vec(), key.clone(), b"1".to_vec()]));
    assert_eq!(finished(&cluster.url(), &["count", "--match", "odd:*"])["result"], keys.len());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    let listed: Vec<&Vec<u8>> =
        keys.iter().filter(|key| !key.contains(&b'\n') && !key.contains(&b'\r')).collect();
    std::fs::write(
        &file,
        listed.iter().fold(Vec::new(), |text, key| [text, key.to_vec(), b"\n".to_vec()].concat()),
    )
    .unwrap();
    let counted = finished(&cluster.url(), &["count", "--keys-file", file.to_str().unwrap()]);
    assert_eq!(counted["result"], listed.len());
    assert_eq!(finished(&cluster.url(), &["unlink", "--match", "odd:*"])["result"], keys.len());
    assert_eq!(cluster.key_count(), 0);
}

#[test]
fn an_empty_cluster_and_a_pattern_that_matches_nothing_are_answers() {
    let cluster = three_masters();
    for job in [["count", "--match", "*"], ["count", "--match", "nobody:*"]] {
        let report = finished(&cluster.url(), &job);
        assert_eq!(report["keys"], json!({"visited": 0, "matched": 0, "errors": 0}));
        assert_eq!(report["units"], json!({"done": 16_384, "total": 16_384}));
        assert_eq!(report["result"], 0);
    }
    cluster.load([words(&["SET", "somebody", "1"])]);
    let report = finished(&cluster.url(), &["count-by", "status", "--match", "nobody:*"]);
    assert_eq!(report["keys"], json!({"visited": 1, "matched": 0, "errors": 0}), "{report:#}");
    assert_eq!(report["result"], json!({}));
}

#[test]
fn lists_walks_lua_and_raw_scripts_give_what_they_should() {
    let cluster = three_masters();
    cluster.load((0..300).map(|number| {
        words(&[
            "HSET",
            &format!("n:{number}"),
            "value",
            &number.to_string(),
            "next",
            &format!("n:{}", number + 1),
        ])
    }));
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let walk = write(
        "walk.lua",
        "function each(key, acc) return (acc or 0) + redis.call('HGET', key, 'value') end\n\
         function next(key, acc)\n\
           local follow = redis.call('HGET', key, 'next')\n\
           if follow ~= args.stop then return follow end\n\
         end\n\
         function finish(acc) return { total = acc } end\n",
    );
    let walked = finished(&cluster.url(), &["--lua", &walk, "--start", "n:10", "--arg", "stop=n:101"]);
    assert_eq!(walked["result"], json!({"total": (10..=100).sum::<u64>()}));
    assert!(walked["hops"].as_array().unwrap().len() > 3, "it moved to the keys: {walked:#}");

    let order = write(
        "order.lua",
        "function each(key, acc)\n  return (acc or '') .. string.sub(key, 3) .. ' '\nend\n",
    );
    let keys = write("keys", "n:5\nn:3\nn:299\nn:3\nn:0\n");
    let ordered = finished(&cluster.url(), &["--lua", &order, "--keys-file", &keys, "--ordered"]);
    assert_eq!(ordered["result"], "5 3 299 3 0 ");

    let raw = write(
        "raw.lua",
        "local n, cursor = 0, '0'\n\
         repeat\n\
           local page = redis.call('SCAN', cursor, 'MATCH', ARGV[1], 'COUNT', 100)\n\
           cursor = page[1]\n\
           n = n + #page[2]\n\
         until cursor == '0'\n\
         return n\n",
    );
    let counted = finished(&cluster.url(), &["--raw", &raw, "--yes-blocking", "--match", "n:*"]);
    assert_eq!(counted["result"], 300);
    let notes = counted["hops"][0]["notes"].to_string();
    assert!(notes.contains("exact"), "the report says what a raw script cannot promise: {notes}");
    let url = cluster.url();
    let raw = ["job", "run", "--redis", &url, "--raw", &raw, "--yes-blocking", "--match", "n:*"];
    let printed = Process::run(PATIENCE, &raw);
    assert_eq!(
        printed.stdout.matches("note: a whole-node script is not exact while slots move").count(),
        1,
        "{}",
        printed.stdout
    );
}

#[test]
fn a_write_job_that_was_interrupted_goes_on_under_its_id_and_leaves_nothing_behind() {
    let cluster = three_masters();
    cluster.load((0..9_000).map(|number| words(&["SET", &format!("user:{number}"), "0"])));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("incr.lua");
    let text = "function each(key, acc)
        local spin = 0
        for i = 1, 20000 do spin = spin + i end
        redis.call('INCR', key)
        return (acc or 0) + 1
      end";
    std::fs::write(&file, text).unwrap();
    let url = cluster.url();
    let job = ["--lua", file.to_str().unwrap(), "--write", "--match", "user:*", "--id", "incr-1"];
    let first =
        Process::skald(&[&["--log", "warn", "job", "run", "--redis", &url, "--json"], &job[..]].concat());
    let calls = || cluster.masters().iter().map(RedisServer::script_calls).sum::<u64>();
    wait_until(PATIENCE, "the job is under way", || calls() > 60);
    first.interrupt();
    let first = first.wait(PATIENCE);
    assert_eq!(first.code, Some(130), "{}", first.stderr);
    let left = cluster.key_count() - 9_000;
    assert!(left > 0, "units that are done have their markers");
    // What was done is not done again, and is counted.
    assert_eq!(finished(&url, &job)["result"], 9_000);
    let sum = folder.path().join("sum.lua");
    std::fs::write(&sum, "function each(key, acc) return (acc or 0) + redis.call('GET', key) end").unwrap();
    let sum = finished(&url, &["--lua", sum.to_str().unwrap(), "--match", "user:*"]);
    assert_eq!(sum["result"], 9_000, "each key was written once");
    assert_eq!(cluster.key_count(), 9_000, "a job that has finished leaves no markers");
}

/// Markers of walks, strict orders and pages are named after where the job came by.
#[test]
fn a_write_job_that_has_finished_leaves_no_marker_of_any_kind() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("raise.lua");
    let text = "function each(key, acc) redis.call('HINCRBY', key, 'raised', 1) return (acc or 0) + 1 end
        function next(key) return redis.call('HGET', key, 'next') end";
    std::fs::write(&file, text).unwrap();
    let keys = folder.path().join("keys");
    std::fs::write(&keys, (0..300).map(|number| format!("n:{number}\n")).collect::<String>()).unwrap();
    let raise = ["--lua", file.to_str().unwrap(), "--write"];
    let keys = keys.to_str().unwrap();
    let chain = || (0..300).map(|n| words(&["HSET", &format!("n:{n}"), "next", &format!("n:{}", n + 1)]));
    let cluster = three_masters();
    cluster.load(chain());
    let server = RedisServer::start(Version::V8, &[]);
    crate::support::load(&server, chain());
    for (number, target) in [
        &["--start", "n:0", "--on-error", "skip", "--id", "walk.1"][..],
        &["--keys-file", keys, "--ordered"],
        &["--keys-file", keys],
        &["--match", "n:*", "--id", "page_1"],
    ]
    .into_iter()
    .enumerate()
    {
        let arguments = [&raise[..], target].concat();
        // A walk ends at a key that does not exist, which is an error of that key.
        let run = |url: &str| {
            if number == 0 { crate::report(&crate::run(url, &arguments)) } else { finished(url, &arguments) }
        };
        assert_eq!(run(&cluster.url())["result"], 300, "{target:?}");
        assert_eq!(cluster.key_count(), 300, "{target:?}");
        assert_eq!(run(&server.url())["result"], 300, "{target:?}");
        assert_eq!(server.query::<u64>(&["DBSIZE"]), 300, "{target:?}");
    }
    let raised: String = server.query(&["HGET", "n:7", "raised"]);
    assert_eq!(raised, "4");
}

#[test]
fn a_single_server_is_walked_page_by_page() {
    for version in [Version::V8, Version::V7_0, Version::Valkey9, Version::Valkey8] {
        let server = RedisServer::start(version, &[]);
        let (commands, truth) = orders(5_000);
        crate::support::load(&server, commands);
        let report = finished(&server.url(), &["count-by", "status", "--match", "order:*"]);
        assert_eq!(report["result"], truth, "{version:?}");
    }
}

#[test]
fn a_slot_of_200_000_keys_among_small_ones_is_counted_exactly() {
    let cluster = three_masters();
    cluster.load((0..200_000).map(|number| words(&["SET", &format!("big:{{tag}}:{number}"), "1"])));
    cluster.load((0..5_000).map(|number| words(&["SET", &format!("big:{number}"), "1"])));
    let report = finished(&cluster.url(), &["count", "--match", "big:*"]);
    assert_eq!(report["result"], 205_000);
}
