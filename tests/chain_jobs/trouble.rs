//! What a job says when it cannot answer.

use serde_json::Value;

use crate::support::{Process, RedisServer, Version, free_port, wait_until};
use crate::{PATIENCE, report, run, three_masters, words};

/// A job that must fail, its report, and what it says.
fn failed(redis: &str, arguments: &[&str]) -> (Value, String) {
    let ended = run(redis, arguments);
    let report = report(&ended);
    assert_eq!((ended.code, &report["status"]), (Some(1), &"Failed".into()), "{report:#} {}", ended.stderr);
    assert_eq!(report["partial"], true);
    let said = report["error"].as_str().unwrap_or_default().to_owned();
    (report, said)
}

#[test]
fn a_value_of_the_wrong_type_is_named_and_ends_the_job_or_not() {
    let cluster = three_masters();
    cluster.load((0..100).map(|number| words(&["HSET", &format!("order:{number}"), "status", "open"])));
    cluster.load([words(&["SET", "order:string", "no hash"])]);
    let job = ["count-by", "status", "--match", "order:*"];
    let (stopped, said) = failed(&cluster.url(), &job);
    assert!(said.contains("order:string") && said.contains("WRONGTYPE"), "{said}");
    assert_eq!(stopped["errors"][0]["key"], "order:string", "{stopped:#}");

    let ended = run(&cluster.url(), &[&job[..], &["--on-error", "skip"]].concat());
    let skipped = report(&ended);
    assert_eq!((ended.code, &skipped["status"]), (Some(3), &"Finished".into()), "{skipped:#}");
    assert_eq!((&skipped["partial"], &skipped["keys"]["errors"]), (&true.into(), &1.into()));
    assert_eq!(skipped["result"]["open"], 100);
    assert_eq!(skipped["errors"][0]["key"], "order:string");
    assert!(
        cluster.masters().iter().any(|node| skipped["errors"][0]["node"] == node.address()),
        "{skipped:#}"
    );
}

#[test]
fn a_lua_error_names_its_line_and_the_key() {
    let cluster = three_masters();
    cluster.load([words(&["SET", "key:1", "x"])]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("job.lua");
    let lua = |text: &str| {
        std::fs::write(&file, text).unwrap();
        failed(&cluster.url(), &["--lua", file.to_str().unwrap(), "--match", "*"])
    };
    let (_, said) = lua("-- fails\nfunction each(key, acc)\n  return acc.missing + 1\nend\n");
    assert!(said.contains("line 3") && said.contains("key:1"), "{said}");
    let (_, said) = lua("function each(key, acc)\n  return 1 +\nend\n");
    assert!(said.contains("line 3"), "a text that does not compile says where: {said}");
    let (_, said) = lua("local x = 1\n");
    assert!(said.contains("each"), "a text without its function says so: {said}");
}

#[test]
fn a_wrong_password_is_named_and_never_printed() {
    let server = RedisServer::start(Version::V8, &["--requirepass", "right-horse"]);
    let url = format!("redis://:wrong-battery@{}", server.address());
    let ended = run(&url, &["count", "--match", "*"]);
    let said = report(&ended)["error"].to_string();
    assert_eq!(ended.code, Some(1));
    assert!(said.contains("password") && said.contains(&server.address()), "{said}");
    assert!(!format!("{}{}", ended.stdout, ended.stderr).contains("wrong-battery"));
    let url = format!("redis://:right-horse@{}", server.address());
    assert_eq!(run(&url, &["count", "--match", "*"]).code, Some(0));
}

#[test]
fn a_node_that_refuses_connections_fails_the_job_with_its_address() {
    let nobody = format!("127.0.0.1:{}", free_port());
    let url = format!("redis://{nobody}");
    let (_, said) = failed(&url, &["count", "--match", "*", "--node-timeout", "1s"]);
    assert!(said.contains(&nobody), "{said}");
}

#[test]
fn a_node_that_dies_leaves_a_partial_result_that_says_so() {
    let mut cluster = three_masters();
    cluster.load((0..500).map(|number| words(&["SET", &format!("key:{number}"), "x"])));
    let dead = cluster.nodes[2].address();
    cluster.nodes[2].kill_hard();
    let (_, said) = failed(&cluster.url(), &["count", "--match", "*", "--node-timeout", "1s"]);
    assert!(said.contains(&dead) || said.contains("CLUSTERDOWN") || said.contains("slots"), "{said}");
}

/// Each reason why a node does not do its part is in the report, with the node and the units that stay open.
#[test]
fn the_reason_why_units_are_open_is_told() {
    const INCR: &str = "function each(key, acc) redis.call('INCR', key) return (acc or 0) + 1 end";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("incr.lua");
    std::fs::write(&file, INCR).unwrap();
    let incr = ["--lua", file.to_str().unwrap(), "--write", "--match", "key:*", "--agents", "off"];
    let brief = ["--node-timeout", "1s", "--max-replans", "1"];
    let keys = || (0..500).map(|number| words(&["SET", &format!("key:{number}"), "0"]));
    let told = |url: &str, node: &RedisServer, reason: &str| {
        let (report, said) = failed(url, &[&incr[..], &brief].concat());
        assert!(said.contains(reason) && said.contains(&node.address()), "{reason}: {said}");
        assert!(report["units"]["done"].as_u64() < Some(16_384), "{reason}: {report:#}");
    };

    let mut cluster = three_masters();
    cluster.load(keys());
    cluster.masters().iter().for_each(|node| {
        node.query::<()>(&["ACL", "SETUSER", "ann", "on", ">pw", "~*", "+@all", "-incr"]);
    });
    let limited = cluster.url().replace("redis://", "redis://ann:pw@");
    let node = cluster.owner_of(b"key:0");
    let (_, said) = failed(&limited, &[&incr[..], &brief].concat());
    assert!(said.contains("permissions") && said.contains("redis at 127.0.0.1:"), "NOPERM: {said}");
    node.freeze();
    told(&cluster.url(), node, "has not answered");
    node.thaw();
    cluster.nodes[1].kill_hard();
    let down = |node: &RedisServer| {
        node.try_query::<String>(&["CLUSTER", "INFO"]).is_ok_and(|info| info.contains("cluster_state:fail"))
    };
    wait_until(PATIENCE, "the cluster is down", || down(&cluster.nodes[0]) && down(&cluster.nodes[2]));
    let (_, said) = failed(&cluster.url(), &[&incr[..], &brief].concat());
    assert!(
        said.contains("CLUSTERDOWN") || said.contains(&cluster.nodes[1].address()),
        "CLUSTERDOWN: {said}"
    );

    let primary = RedisServer::start(Version::V8, &[]);
    crate::support::load(&primary, keys());
    let replica = RedisServer::start(Version::V8, &["--replicaof", "127.0.0.1", &primary.port().to_string()]);
    let linked = || replica.query::<String>(&["INFO", "replication"]).contains("master_link_status:up");
    wait_until(PATIENCE, "the replica follows", linked);
    told(&replica.url(), &replica, "READONLY");

    let slowly = ["--key-load-delay", "4000", "--loading-process-events-interval-bytes", "1024"];
    let mut loading = RedisServer::start(Version::V8, &[&["--save", "3600 1000000"][..], &slowly].concat());
    crate::support::load(&loading, (0..5_000).map(|number| words(&["SET", &format!("key:{number}"), "0"])));
    loading.query::<()>(&["SAVE"]);
    loading.kill_hard();
    loading.launch();
    wait_until(PATIENCE, "it loads", || loading.log().contains("Loading RDB"));
    told(&loading.url(), &loading, "LOADING");
}

#[test]
fn slots_that_nobody_serves_are_named() {
    let cluster = three_masters();
    cluster.load((0..500).map(|number| words(&["SET", &format!("key:{number}"), "x"])));
    for node in cluster.masters() {
        node.query::<()>(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    for node in cluster.masters() {
        // A slot that a node does not own cannot be deleted there; it still forgets who does.
        let _: redis::RedisResult<()> = node.try_query(&["CLUSTER", "DELSLOTS", "100"]);
    }
    let (report, said) = failed(&cluster.url(), &["count", "--match", "*", "--max-replans", "3"]);
    assert!(said.contains("100"), "the open slot is named: {said}");
    assert_eq!(report["units"]["done"], 16_383, "{report:#}");
}

#[test]
fn a_task_that_ends_without_a_report_is_still_one_object() {
    let server = RedisServer::start(Version::V8, &[]);
    let (data, redis) = (tempfile::tempdir().unwrap(), server.url());
    let data = data.path().to_str().unwrap();
    // No Skald: nobody ever begins the job.
    let start = ["controller", "--listen", "127.0.0.1:0", "--data", data, "--redis", &redis];
    let mut controller = Process::skald(&start);
    let api = controller.ready_value(PATIENCE, "api");
    let job = Process::skald(
        &[
            &["job", "run", "--submit", "--json", "--api", &api, "--redis", &redis, "--id", "waits"][..],
            &["count", "--match", "*"],
        ]
        .concat(),
    );
    let cancel = || Process::run(PATIENCE, &["job", "cancel", "waits", "--api", &api]).code == Some(0);
    wait_until(PATIENCE, "the job can be cancelled", cancel);
    let ended = job.wait(PATIENCE);
    let report = report(&ended);
    assert_eq!((ended.code, &report["status"]), (Some(130), &"Cancelled".into()), "{report:#}");
    assert_eq!((&report["id"], &report["partial"]), (&"waits".into(), &true.into()), "{report:#}");
    assert!(report["error"].as_str().unwrap().contains("was cancelled"), "{report:#}");
}

#[test]
fn nonsense_is_a_usage_error() {
    for arguments in
        [&["count"][..], &["frobnicate", "--match", "*"], &["count", "--match", "*", "--chains", "0"]]
    {
        let ended = run("redis://127.0.0.1:1", arguments);
        assert_eq!(ended.code, Some(2), "{arguments:?}: {}", ended.stderr);
        assert!(!ended.stderr.is_empty());
    }
    let ended = Process::run(PATIENCE, &["job", "run", "count", "--match", "*"]);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("--redis"), "{}", ended.stderr);
}
