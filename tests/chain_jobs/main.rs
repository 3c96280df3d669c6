//! Chain jobs as a user runs them: the `skald` binary against real clusters, agents as processes, some of them killed.

#[path = "../support/mod.rs"]
mod support;

mod agents;
mod answers;
mod crashes;
mod hostile;
mod own;
mod trouble;

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use support::{Command, Finished, Process, RedisCluster};

/// No job of these tests takes longer, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// `skald job run …` against `redis`, to its end.
fn run(redis: &str, arguments: &[&str]) -> Finished {
    let mut all = vec!["--log", "warn", "job", "run", "--redis", redis, "--json"];
    all.extend_from_slice(arguments);
    Process::run(PATIENCE, &all)
}

/// The one JSON object on standard output.
fn report(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| {
        panic!("no JSON ({error}) but {:?}; stderr: {}", finished.stdout, finished.stderr)
    })
}

/// The report of a job that must have finished with a full ledger.
fn finished(redis: &str, arguments: &[&str]) -> Value {
    let run = run(redis, arguments);
    let report = report(&run);
    assert_eq!(run.code, Some(0), "{report:#} {}", run.stderr);
    assert_eq!((&report["status"], &report["partial"]), (&"Finished".into(), &false.into()), "{report:#}");
    assert_eq!(report["units"]["done"], report["units"]["total"], "{report:#}");
    report
}

/// Hashes `order:N` with a status each, and what a count by status must answer.
fn orders(count: u64) -> (Vec<Command>, Value) {
    const STATUSES: [&str; 3] = ["open", "paid", "shipped"];
    let mut truth: BTreeMap<&str, u64> = BTreeMap::new();
    let commands = (0..count).map(|number| {
        let status = STATUSES[(number * number % 7 % 3) as usize];
        *truth.entry(status).or_default() += 1;
        words(&["HSET", &format!("order:{number}"), "status", status, "total", &number.to_string()])
    });
    let commands = commands.collect();
    (commands, serde_json::to_value(truth).unwrap())
}

fn words(words: &[&str]) -> Command {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

/// A Lua step that takes its time with every key.
const SLOW_COUNT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/chain_jobs/slow_count.lua");

fn three_masters() -> RedisCluster {
    RedisCluster::start(support::Version::V8, 3, 0)
}
