//! Chain jobs stay exact while the cluster changes under them: slots that move, primaries that fail over, processes that
//! die at every step of the hand-off, and all of it together.
//!
//! Write jobs are `INCRBY key 1` over every key, checked key by key. `scripts/chaos` runs the chaos test for longer.

#[path = "../support/mod.rs"]
mod support;

mod chaos;
mod failover;
mod hand_off;
mod kinds;
mod loss;
mod movers;
mod moving;
mod proxy;

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use support::{Command, Process, RedisCluster};

/// No job of these tests takes longer, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

const INCREMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/exactness/increment.lua");

/// The job that writes: every `user:*` by one, and `spin` turns of a loop for each.
fn increment<'a>(spin: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["--lua", INCREMENT, "--write", "--match", "user:*", "--arg", spin][..], more].concat()
}

/// `skald job run …` as a process.
fn start(redis: &str, arguments: &[&str]) -> Process {
    let mut all = vec!["--log", "warn", "job", "run", "--redis", redis, "--json"];
    all.extend_from_slice(arguments);
    Process::skald(&all)
}

/// The report of a job that must finish with a full ledger.
fn finished(job: Process) -> Value {
    let ended = job.wait(PATIENCE);
    let report: Value = serde_json::from_str(&ended.stdout)
        .unwrap_or_else(|error| panic!("no JSON ({error}) but {:?}; stderr: {}", ended.stdout, ended.stderr));
    assert_eq!(ended.code, Some(0), "{report:#} {}", ended.stderr);
    assert_eq!((&report["status"], &report["partial"]), (&"Finished".into(), &false.into()), "{report:#}");
    assert_eq!(report["units"], serde_json::json!({"done": 16_384, "total": 16_384}), "{report:#}");
    report
}

/// `user:0` to `user:COUNT`, all zero.
fn zeros(count: usize) -> impl Iterator<Item = Command> {
    (0..count).map(|number| [b"SET".to_vec(), format!("user:{number}").into_bytes(), b"0".to_vec()].into())
}

/// How many `user:*` have each value, over `nodes`.
fn values(cluster: &RedisCluster, nodes: &[usize]) -> BTreeMap<i64, usize> {
    const COUNT: &str = "local counts, answer = {}, {}
        for _, key in ipairs(redis.call('KEYS', 'user:*')) do
          local value = redis.call('GET', key)
          counts[value] = (counts[value] or 0) + 1
        end
        for value, count in pairs(counts) do answer[#answer + 1] = {tonumber(value), count} end
        return answer";
    let mut all = BTreeMap::new();
    for node in nodes {
        for (value, count) in cluster.nodes[*node].query::<Vec<(i64, usize)>>(&["EVAL", COUNT, "0"]) {
            *all.entry(value).or_default() += count;
        }
    }
    all
}
