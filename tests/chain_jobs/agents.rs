//! `skald agent` processes beside the nodes of a cluster.

use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::{Process, RedisCluster, RedisServer, free_port, wait_until};

const READY: Duration = Duration::from_secs(30);

/// One agent, and what it takes to start it again as it was.
pub(crate) struct Agent {
    pub(crate) process: Process,
    pub(crate) address: String,
    redis: String,
    data: PathBuf,
}

impl Agent {
    /// A number that it shows to who scrapes it.
    pub(crate) fn metric(&mut self, name: &str) -> f64 {
        let url = self.process.ready_value(READY, "metrics");
        let text = ureq::get(&url).call().unwrap().body_mut().read_to_string().unwrap();
        let line =
            text.lines().find(|line| line.starts_with(&format!("{name}{{agent=\"{}\"}} ", self.address)));
        let value = line.unwrap_or_else(|| panic!("no {name} in\n{text}")).rsplit(' ').next();
        value.unwrap().parse().unwrap()
    }

    pub(crate) fn restart(&mut self) {
        self.process = start(&self.redis, &self.address, &self.data);
    }
}

/// One agent beside each master.
pub(crate) struct Agents {
    pub(crate) all: Vec<Agent>,
    _data: TempDir,
}

impl Agents {
    pub(crate) fn beside(cluster: &RedisCluster) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut all = Vec::new();
        for (number, node) in cluster.masters().iter().enumerate() {
            let (redis, data) = (node.url(), folder.path().join(number.to_string()));
            let address = format!("127.0.0.1:{}", free_port());
            all.push(Agent { process: start(&redis, &address, &data), address, redis, data });
        }
        for (node, agent) in cluster.masters().iter().zip(&all) {
            wait_until(READY, "the agent is known at its node", || knows(node, &agent.address));
        }
        Agents { all, _data: folder }
    }
}

pub(crate) fn knows(node: &RedisServer, address: &str) -> bool {
    node.query::<String>(&["CLIENT", "LIST"]).contains(&format!("name=skald-agent:{address} "))
}

fn start(redis: &str, address: &str, data: &std::path::Path) -> Process {
    let data = data.to_str().unwrap();
    let serve = ["--listen", address, "--metrics", "127.0.0.1:0"];
    let mut process =
        Process::skald(&[&["--log", "info", "agent", "--redis", redis, "--data", data][..], &serve].concat());
    assert_eq!(process.ready_value(READY, "listen"), address);
    process
}
