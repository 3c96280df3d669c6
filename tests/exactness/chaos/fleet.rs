//! The processes of ours: an agent beside each of the first masters, and a coordinator.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::timeline::Timeline;
use crate::PATIENCE;
use crate::proxy::Proxy;
use crate::support::{Process, RedisCluster, free_port};

/// By then a job is in the middle of its work.
const CANCEL_AFTER: Duration = Duration::from_millis(800);

pub(super) struct Fleet<'a> {
    timeline: &'a Timeline,
    agents: Vec<Agent>,
    coordinator: Process,
    data: TempDir,
}

struct Agent {
    process: Process,
    arguments: Vec<String>,
    /// How everybody else reaches it.
    proxy: Proxy,
}

impl Agent {
    fn restart(&mut self) {
        self.process = Process::skald(&self.arguments.iter().map(String::as_str).collect::<Vec<_>>());
    }
}

impl<'a> Fleet<'a> {
    pub(super) fn start(cluster: &RedisCluster, timeline: &'a Timeline) -> Self {
        let data = tempfile::tempdir().unwrap();
        let agents = cluster.masters().iter().enumerate().map(|(number, node)| {
            let listen = format!("127.0.0.1:{}", free_port());
            let proxy = Proxy::start(free_port(), listen.clone());
            let folder = data.path().join(format!("agent-{number}"));
            let arguments: Vec<String> = [
                ["--log", "info"].map(String::from).to_vec(),
                vec!["agent".into(), "--redis".into(), node.url(), "--listen".into(), listen],
                vec!["--advertise".into(), proxy.address.clone(), "--data".into(), text(&folder)],
            ]
            .concat();
            let mut process = Process::skald(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
            process.ready(PATIENCE);
            Agent { process, arguments, proxy }
        });
        let agents = agents.collect();
        let coordinator = coordinate(&data.path().join("dev"));
        Fleet { timeline, agents, coordinator, data }
    }

    pub(super) fn api(&mut self) -> String {
        self.coordinator.ready_value(PATIENCE, "api")
    }

    /// Makes trouble until the job is over, and answers its report. Everybody is well then. Where `cancel` says so, the
    /// job is cancelled in the middle of it.
    pub(super) fn trouble(&mut self, seed: u64, over: &AtomicBool, id: &str, mut cancel: bool) -> Value {
        let mut rng = fastrand::Rng::with_seed(seed);
        let began = Instant::now();
        let mut next = Duration::from_millis(rng.u64(200..1_500));
        let report = loop {
            if let Some(report) = self.report(id) {
                break report;
            }
            assert!(began.elapsed() < PATIENCE, "job {id} hangs");
            assert!(!over.load(Ordering::Relaxed), "the servers' trouble has failed");
            if cancel && began.elapsed() >= CANCEL_AFTER {
                let api = self.api();
                cancel = Process::run(PATIENCE, &["job", "cancel", id, "--api", &api]).code != Some(0);
                if !cancel {
                    self.timeline.fault("job cancelled", id);
                }
            }
            if began.elapsed() >= next {
                self.one_fault(&mut rng);
                next = began.elapsed() + Duration::from_millis(rng.u64(200..2_500));
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        self.timeline.say(format!("job {id} is over: {}", report["status"]));
        report
    }

    /// Kills everybody and starts them again.
    pub(super) fn restart(&mut self) {
        self.timeline.say("everybody is started again".to_owned());
        self.coordinator.kill_hard();
        for agent in &mut self.agents {
            agent.process.kill_hard();
            agent.restart();
            agent.process.ready(PATIENCE);
        }
        self.coordinator = coordinate(&self.data.path().join("dev"));
        self.coordinator.ready(PATIENCE);
    }

    fn one_fault(&mut self, rng: &mut fastrand::Rng) {
        let number = rng.usize(..self.agents.len());
        let pause = Duration::from_millis(rng.u64(0..1_500));
        let agent = &mut self.agents[number];
        let name = format!("agent {number} for {pause:?}");
        match rng.u8(..10) {
            0..4 => {
                self.timeline.fault("agent killed", &name);
                agent.process.kill_hard();
                std::thread::sleep(pause);
                agent.restart();
            }
            4..6 => {
                self.timeline.fault("agent frozen", &name);
                agent.process.freeze();
                std::thread::sleep(pause);
                agent.process.thaw();
            }
            6..9 => {
                self.timeline.fault("link cut", &name);
                agent.proxy.cut();
                std::thread::sleep(pause);
                agent.proxy.heal();
            }
            _ => {
                self.timeline.fault("coordinator killed", &format!("for {pause:?}"));
                self.coordinator.kill_hard();
                std::thread::sleep(pause);
                self.coordinator = coordinate(&self.data.path().join("dev"));
                self.coordinator.ready(PATIENCE);
            }
        }
    }

    fn report(&mut self, id: &str) -> Option<Value> {
        let api = self.api();
        let shown =
            ureq::get(format!("{api}/api/tasks/{id}")).call().ok()?.body_mut().read_to_string().ok()?;
        let task: Value = serde_json::from_str(&shown).ok()?;
        let over = ["Finished", "Failed", "Cancelled"].contains(&task["lifecycleStatus"].as_str()?);
        if !over {
            return None;
        }
        let shown = Process::run(PATIENCE, &["job", "status", id, "--api", &api, "--json"]);
        Some(
            serde_json::from_str(&shown.stdout)
                .unwrap_or_else(|_| panic!("{} {}", shown.stdout, shown.stderr)),
        )
    }
}

fn coordinate(data: &Path) -> Process {
    Process::skald(&["--log", "warn", "dev", "--listen", "127.0.0.1:0", "--data", &text(data)])
}

fn text(path: &Path) -> String {
    PathBuf::from(path).display().to_string()
}
