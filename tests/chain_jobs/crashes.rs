//! Processes that die in the middle of a job.

use std::time::Duration;

use serde_json::Value;

use crate::agents::Agents;
use crate::support::{Process, RedisServer, holds_for, wait_until};
use crate::{PATIENCE, SLOW_COUNT, orders, report, three_masters};

#[test]
fn an_agent_that_is_killed_goes_on_from_its_checkpoint() {
    let cluster = three_masters();
    let (commands, truth) = orders(30_000);
    cluster.load(commands);
    let mut agents = Agents::beside(&cluster);
    let url = cluster.url();
    let arguments = [
        "--log",
        "warn",
        "job",
        "run",
        "--redis",
        &url,
        "--json",
        "--lua",
        SLOW_COUNT,
        "--arg",
        "spin=20000",
        "--match",
        "order:*",
        "--agents",
        "require",
        "--chains",
        "1",
    ];
    let before: Vec<u64> = cluster.masters().iter().map(RedisServer::script_calls).collect();
    let job = Process::skald(&arguments);
    // Whichever node the chain has come to: its agent is in the middle of its hop.
    let busy = || {
        let under_way = |(node, before): (&RedisServer, &u64)| node.script_calls() >= before + 40;
        cluster.masters().iter().zip(&before).position(under_way)
    };
    wait_until(PATIENCE, "a node is in the middle of its hop", || busy().is_some());
    let victim = busy().unwrap();
    agents.all[victim].process.kill_hard();
    agents.all[victim].restart();
    let ended = job.wait(PATIENCE);
    let report: Value = report(&ended);
    assert_eq!(ended.code, Some(0), "{report:#} {}", ended.stderr);
    assert_eq!(report["result"], truth);
    assert_eq!(report["keys"]["matched"], 30_000, "no unit is lost or folded twice: {report:#}");
    assert_eq!(report["units"]["done"], 16_384);
}

#[test]
fn an_agent_that_does_not_come_back_is_planned_around() {
    let cluster = three_masters();
    let (commands, truth) = orders(30_000);
    cluster.load(commands);
    let mut agents = Agents::beside(&cluster);
    let url = cluster.url();
    let arguments = [
        "--log",
        "warn",
        "job",
        "run",
        "--redis",
        &url,
        "--json",
        "--lua",
        SLOW_COUNT,
        "--arg",
        "spin=100000",
        "--match",
        "order:*",
        "--chains",
        "3",
    ];
    let before = cluster.masters()[1].script_calls();
    let job = Process::skald(&arguments);
    let node = &cluster.masters()[1];
    wait_until(PATIENCE, "the node is in the middle of its hop", || node.script_calls() >= before + 40);
    agents.all[1].process.kill_hard();
    let ended = job.wait(PATIENCE);
    let report: Value = report(&ended);
    assert_eq!(ended.code, Some(0), "{report:#} {}", ended.stderr);
    assert_eq!(report["result"], truth);
    assert_eq!(report["keys"]["matched"], 30_000, "{report:#}");
    assert!(report["plan"]["epoch"].as_u64().unwrap() >= 2, "{report:#}");
}

/// A controller, a Skald and its storage, which coordinates jobs that it is handed as tasks.
fn dev(data: &str) -> (Process, String) {
    let arguments = ["--log", "warn", "dev", "--listen", "127.0.0.1:0", "--data", data];
    let mut process = Process::skald(&arguments);
    let api = process.ready_value(PATIENCE, "api");
    (process, api)
}

#[test]
fn a_coordinator_that_is_killed_resumes_its_job() {
    let cluster = three_masters();
    let (commands, truth) = orders(30_000);
    cluster.load(commands);
    let agents = Agents::beside(&cluster);
    let data = tempfile::tempdir().unwrap();
    let data = data.path().to_str().unwrap();
    let (mut coordinator, api) = dev(data);
    let url = cluster.url();
    let submit = [
        "--log",
        "warn",
        "job",
        "run",
        "--submit",
        "--detach",
        "--json",
        "--api",
        &api,
        "--redis",
        &url,
        "--lua",
        SLOW_COUNT,
        "--arg",
        "spin=20000",
        "--match",
        "order:*",
        "--agents",
        "require",
        "--chains",
        "1",
        "--id",
        "slow-count",
    ];
    let before: Vec<u64> = cluster.masters().iter().map(RedisServer::script_calls).collect();
    let submitted = Process::run(PATIENCE, &submit);
    assert_eq!(submitted.code, Some(0), "{}", submitted.stderr);
    assert_eq!(report(&submitted), serde_json::json!({ "id": "slow-count" }));
    wait_until(PATIENCE, "a node is in the middle of its hop", || {
        cluster.masters().iter().zip(&before).any(|(node, before)| node.script_calls() >= before + 40)
    });
    coordinator.kill_hard();
    let (_coordinator, api) = dev(data);
    let status = || {
        let shown = Process::run(PATIENCE, &["job", "status", "slow-count", "--api", &api, "--json"]);
        serde_json::from_str::<Value>(&shown.stdout).unwrap_or(Value::Null)
    };
    wait_until(PATIENCE, "the job has its report", || status().get("units").is_some());
    let report = status();
    assert_eq!((&report["status"], &report["partial"]), (&"Finished".into(), &false.into()), "{report:#}");
    assert_eq!(report["result"], truth);
    assert_eq!(report["keys"]["matched"], 30_000, "no unit is lost or folded twice: {report:#}");
    let metrics = ureq::get(format!("{api}/metrics")).call().unwrap().body_mut().read_to_string().unwrap();
    for counted in [
        r#"job_status_total{status="Finished"} 1"#,
        "job_units_done_total 16384",
        "job_duration_seconds_count 1",
    ] {
        assert!(metrics.contains(counted), "{counted} is not in {metrics}");
    }
    drop(agents);
}

#[test]
fn ctrl_c_cancels_and_nothing_follows() {
    let cluster = three_masters();
    let (commands, _) = orders(30_000);
    cluster.load(commands);
    let mut agents = Agents::beside(&cluster);
    let url = cluster.url();
    let arguments = [
        "--log",
        "warn",
        "job",
        "run",
        "--redis",
        &url,
        "--json",
        "--lua",
        SLOW_COUNT,
        "--arg",
        "spin=1000000",
        "--match",
        "order:*",
        "--agents",
        "require",
    ];
    let job = Process::skald(&arguments);
    // Standard error is no terminal here: it gets a plain line every few seconds, also with --json.
    let told = || {
        let stderr = job.stderr();
        let (units, _) = stderr.lines().rev().find_map(|line| line.split_once("/16384 units, "))?;
        units.parse::<u64>().ok().filter(|units| *units > 0)
    };
    wait_until(PATIENCE, "the job tells of units", || told().is_some());
    let told = told().unwrap();
    job.interrupt();
    let ended = job.wait(PATIENCE);
    let report = report(&ended);
    assert_eq!(
        (ended.code, &report["status"]),
        (Some(130), &"Cancelled".into()),
        "{report:#} {}",
        ended.stderr
    );
    assert_eq!(report["partial"], true);
    // No chain had come back, and what they had told of is reported all the same.
    assert!((told..16_384).contains(&report["units"]["done"].as_u64().unwrap()), "{told}: {report:#}");
    assert_eq!(report["units"]["total"], 16_384);
    assert!((1..30_000).contains(&report["keys"]["visited"].as_u64().unwrap()), "{report:#}");
    // The agents have said that nothing of it follows: so the nodes are asked for nothing more, neither by agents that
    // live on nor by ones that start again with what is on their disks.
    let calls = || cluster.masters().iter().map(RedisServer::script_calls).collect::<Vec<_>>();
    let before = calls();
    let a_while = Duration::from_secs(2);
    holds_for(a_while, "agents that live on ask for nothing", || calls() == before);
    for agent in &mut agents.all {
        agent.process.kill_hard();
        agent.restart();
    }
    holds_for(a_while, "agents that were started again ask for nothing", || calls() == before);
}

/// The coordinator is gone, its agents go on, and somebody cancels: the job is `Cancelled` only when another coordinator has
/// ended what they do.
#[test]
fn a_job_that_is_cancelled_while_its_coordinator_is_away_is_ended_before_it_is_cancelled() {
    let cluster = three_masters();
    let (commands, _) = orders(30_000);
    cluster.load(commands);
    let agents = Agents::beside(&cluster);
    let data = tempfile::tempdir().unwrap();
    let data = data.path().to_str().unwrap();
    let (mut coordinator, api) = dev(data);
    let url = cluster.url();
    let before: Vec<u64> = cluster.masters().iter().map(RedisServer::script_calls).collect();
    // Work for minutes: it is not over by itself.
    let job = ["--lua", SLOW_COUNT, "--arg", "spin=1000000", "--match", "order:*", "--agents", "require"];
    let submit = ["job", "run", "--submit", "--detach", "--api", &api, "--redis", &url, "--id", "long"];
    assert_eq!(Process::run(PATIENCE, &[&submit[..], &job].concat()).code, Some(0));
    wait_until(PATIENCE, "agents are at work", || {
        cluster.masters().iter().zip(&before).any(|(node, before)| node.script_calls() >= before + 40)
    });
    coordinator.kill_hard();
    let (_coordinator, api) = dev(data);
    assert_eq!(Process::run(PATIENCE, &["job", "cancel", "long", "--api", &api]).code, Some(0));
    let report = || {
        let shown = Process::run(PATIENCE, &["job", "status", "long", "--api", &api, "--json"]);
        serde_json::from_str::<Value>(&shown.stdout).unwrap_or(Value::Null)
    };
    wait_until(PATIENCE, "the job has its report", || report().get("units").is_some());
    let report = report();
    assert_eq!((&report["status"], &report["partial"]), (&"Cancelled".into(), &true.into()), "{report:#}");
    let calls = || cluster.masters().iter().map(RedisServer::script_calls).collect::<Vec<_>>();
    let before = calls();
    holds_for(Duration::from_secs(2), "agents ask for nothing", || calls() == before);
    drop(agents);
}

/// The controller that took the job in dies; the node that coordinates it and the agents go on, and a controller that comes
/// back finds the job as it is.
#[test]
fn a_controller_that_is_killed_does_not_hold_up_a_job() {
    let cluster = three_masters();
    let (commands, truth) = orders(30_000);
    cluster.load(commands);
    let agents = Agents::beside(&cluster);
    let hot_state = RedisServer::start(crate::support::Version::V8, &[]);
    let data = tempfile::tempdir().unwrap();
    let (data, cache) = (data.path().to_str().unwrap(), hot_state.url());
    let shared = ["--data", data, "--redis", &cache];
    let controller = || {
        let fixed = ["--log", "warn", "controller", "--listen", "127.0.0.1:0"];
        let mut process = Process::skald(&[&fixed[..], &shared].concat());
        let api = process.ready_value(PATIENCE, "api");
        (process, api)
    };
    let (mut first, api) = controller();
    let mut node = Process::skald(&[&["--log", "warn", "node", "--id", "n1"][..], &shared].concat());
    node.ready(PATIENCE);
    let url = cluster.url();
    let before: Vec<u64> = cluster.masters().iter().map(RedisServer::script_calls).collect();
    let job = ["--lua", SLOW_COUNT, "--arg", "spin=20000", "--match", "order:*", "--agents", "require"];
    let submit = ["job", "run", "--submit", "--detach", "--api", &api, "--redis", &url, "--id", "counted"];
    assert_eq!(Process::run(PATIENCE, &[&submit[..], &job].concat()).code, Some(0));
    wait_until(PATIENCE, "agents are at work", || {
        cluster.masters().iter().zip(&before).any(|(node, before)| node.script_calls() >= before + 40)
    });
    first.kill_hard();
    let (_second, api) = controller();
    let report = || {
        let shown = Process::run(PATIENCE, &["job", "status", "counted", "--api", &api, "--json"]);
        serde_json::from_str::<Value>(&shown.stdout).unwrap_or(Value::Null)
    };
    wait_until(PATIENCE, "the job has its report", || report().get("units").is_some());
    let report = report();
    assert_eq!((&report["status"], &report["partial"]), (&"Finished".into(), &false.into()), "{report:#}");
    assert_eq!((&report["result"], &report["keys"]["matched"]), (&truth, &30_000.into()), "{report:#}");
    drop(agents);
}
