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
    let arguments = ["--log", "info", "agent", "--redis", redis, "--listen", address, "--data", data];
    let mut process = Process::skald(&arguments);
    assert_eq!(process.ready_value(READY, "listen"), address);
    process
}
