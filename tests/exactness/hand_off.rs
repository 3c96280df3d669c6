//! Agents die at every step of the hand-off, and in the middle of a hop.

use crate::support::{Process, RedisCluster, Version, free_port, wait_until};
use crate::{PATIENCE, finished, increment, start, values, zeros};

const KEYS: usize = 100_000;

/// The points of `src/actors/agent/crash_point.rs`, and how many of the three agents of a chain certainly pass them: the
/// last one's acknowledgement comes from the coordinator, which may end the job first.
const POINTS: [(&str, usize); 6] = [
    ("before-persist", 3),
    ("after-persist", 3),
    ("running", 3),
    ("before-send", 3),
    ("after-send", 2),
    ("after-ack", 2),
];

/// An agent that dies once, and is then started again as it was.
struct Mortal {
    process: Process,
    arguments: Vec<String>,
    died: bool,
}

impl Mortal {
    fn start(redis: &str, data: &std::path::Path, point: &str) -> Self {
        let (listen, data) = (format!("127.0.0.1:{}", free_port()), data.display().to_string());
        let arguments: Vec<String> =
            ["--log", "warn", "agent", "--redis", redis, "--listen", &listen, "--data", &data]
                .map(String::from)
                .into();
        let mut process = run(&arguments, &[("SKALD_CRASH_AT", point)]);
        process.ready(PATIENCE);
        Mortal { process, arguments, died: false }
    }

    fn look_after(&mut self) {
        if !self.died && !self.process.is_running() {
            self.died = true;
            self.process = run(&self.arguments, &[]);
        }
    }
}

fn run(arguments: &[String], environment: &[(&str, &str)]) -> Process {
    Process::skald_with(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), environment)
}

#[test]
fn every_key_is_written_once_though_agents_die_at_every_step() {
    let cluster = RedisCluster::start(Version::V8, 3, 0);
    cluster.load(zeros(KEYS));
    for (round, (point, certain)) in POINTS.into_iter().enumerate() {
        let data = tempfile::tempdir().unwrap();
        let mut agents: Vec<Mortal> = (cluster.masters().iter().enumerate())
            .map(|(number, node)| Mortal::start(&node.url(), &data.path().join(number.to_string()), point))
            .collect();
        let known = |node: &crate::support::RedisServer| {
            node.query::<String>(&["CLIENT", "LIST"]).contains("name=skald-agent:")
        };
        wait_until(PATIENCE, "the agents are known", || cluster.masters().iter().all(known));
        let job = increment("spin=100", &["--agents", "require", "--chains", "1", "--id", point]);
        let mut job = start(&cluster.url(), &job);
        wait_until(PATIENCE, "the job to end", || {
            agents.iter_mut().for_each(Mortal::look_after);
            !job.is_running()
        });
        let report = finished(job);
        let died = agents.iter().filter(|agent| agent.died).count();
        assert!(died >= certain, "{died} agents died {point}: {report:#}");
        assert_eq!(report["result"], KEYS, "{point}: {report:#}");
        assert_eq!(values(&cluster, &[0, 1, 2]), [(round as i64 + 1, KEYS)].into(), "{point}: {report:#}");
        println!("{point}: {died} agents died, epoch {}", report["plan"]["epoch"]);
    }
}
