//! Everything at once: jobs run one after the other while a seeded script moves slots, kills primaries, agents and the
//! coordinator, freezes and cuts off agents, and lets them come back.
//!
//! `SKALDS_CHAOS_SECONDS` says for how long (30 unless it is set), `SKALDS_CHAOS_SEED` repeats the choices of a run. What
//! happens when is still up to the processes; a failure prints the seed and what was done when.

mod fleet;
mod servers;
mod timeline;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use self::fleet::Fleet;
use self::servers::Servers;
use self::timeline::Timeline;
use crate::support::{Process, RedisCluster, Version, holds_for};
use crate::{INCREMENT, PATIENCE, values, zeros};

const KEYS: usize = 20_000;
/// What each key burns: a job takes some seconds.
const SPIN: &str = "spin=8000";

#[test]
fn jobs_are_exact_whatever_happens() {
    let setting = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seconds = setting("SKALDS_CHAOS_SECONDS").unwrap_or(30);
    let seed = setting("SKALDS_CHAOS_SEED").unwrap_or_else(|| fastrand::u64(..1_000_000));
    let timeline = Timeline::new(seed);
    let mut cluster = RedisCluster::start(Version::V8, 3, 1);
    cluster.load(zeros(KEYS));
    cluster.wait_until_ok();
    let mut fleet = Fleet::start(&cluster, &timeline);
    let url = cluster.url();
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut jobs, mut added) = (0, 0);
    while Instant::now() < end || jobs < 2 {
        jobs += 1;
        let writes = jobs % 2 == 1;
        // One writing job in three is cancelled.
        let cancel = jobs % 6 == 3;
        let id = format!("chaos-{jobs}");
        timeline.say(format!("job {id} {}", if writes { "adds one to every key" } else { "counts" }));
        submit(&fleet.api(), &url, &id, writes);
        let over = AtomicBool::new(false);
        let seeds = [seed ^ jobs, !seed ^ jobs];
        let report = std::thread::scope(|scope| {
            let servers = scope.spawn(|| Servers::new(&mut cluster, seeds[0], &timeline).trouble(&over));
            let processes = scope.spawn(|| fleet.trouble(seeds[1], &over, &id, cancel));
            let report = processes.join();
            over.store(true, Ordering::Relaxed);
            servers.join().expect("the servers' trouble ends");
            report.expect("the processes' trouble ends")
        });
        cluster.wait_until_ok();
        if report["status"] == "Cancelled" && cancel {
            nothing_follows(&cluster, &mut fleet, added, &report);
            cluster.load(zeros(KEYS));
            added = 0;
            continue;
        }
        added += i64::from(writes);
        check(&report);
        assert_eq!(
            values(&cluster, &cluster.nodes_with_slots()),
            [(added, KEYS)].into(),
            "after {id}: {report:#}"
        );
    }
    println!("{jobs} jobs exact, 0 lost, 0 doubled, 0 hung; {}", timeline.summary());
}

fn submit(api: &str, url: &str, id: &str, writes: bool) {
    let common = ["--log", "warn", "job", "run", "--submit", "--detach", "--redis", url, "--match", "user:*"];
    // Both ways of keeping states, in turn.
    let retain = if id.ends_with(['1', '2', '5', '6', '9']) { "1" } else { "2" };
    let asked = [
        "--id",
        id,
        "--api",
        api,
        "--max-replans",
        "1000",
        "--retain",
        retain,
        "--lua",
        INCREMENT,
        "--arg",
        SPIN,
    ];
    let kind: &[&str] = if writes { &["--write"] } else { &["--arg", "by=0"] };
    let submitted = Process::run(PATIENCE, &[&common[..], &asked, kind].concat());
    assert_eq!(submitted.code, Some(0), "{}", submitted.stderr);
}

/// After a job has been cancelled, no key changes any more, also when everybody is started again.
fn nothing_follows(cluster: &RedisCluster, fleet: &mut Fleet, added: i64, report: &Value) {
    assert_eq!(report["partial"], true, "{report:#}");
    let now = || values(cluster, &cluster.nodes_with_slots());
    let before = now();
    assert!(before.keys().all(|value| (added..=added + 1).contains(value)), "{before:?} {report:#}");
    assert_eq!(before.values().sum::<usize>(), KEYS, "{before:?} {report:#}");
    fleet.restart();
    // An agent that has not confirmed is told again as soon as it is there.
    let confirmed = !report["error"].to_string().contains("not confirmed");
    holds_for(Duration::from_secs(3), "a cancelled job writes nothing", || now() == before || !confirmed);
}

fn check(report: &Value) {
    assert_eq!((&report["status"], &report["partial"]), (&"Finished".into(), &false.into()), "{report:#}");
    assert_eq!(report["units"], json!({"done": 16_384, "total": 16_384}), "{report:#}");
    assert_eq!(report["result"], KEYS, "{report:#}");
    // A part that a failover has opened again is gone over twice, and both times are counted.
    assert!(report["keys"]["matched"].as_u64() >= Some(KEYS as u64), "{report:#}");
}
