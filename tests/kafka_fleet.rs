//! A controller and a node as processes that share events over Kafka.

mod support;

use std::time::Duration;

use serde_json::Value;
use support::{Broker, KafkaServer, Process, RedisServer, Version, holds_for, wait_until};

const SOON: Duration = Duration::from_secs(60);
/// Longer than any test: nothing is found by looking again.
const NEVER: &str = "3600";

/// All periods are an hour.
const ONLY_EVENTS: [(&str, &str); 6] = [
    ("REDIS_SYNC_PERIOD", NEVER),
    ("MONITOR_SKALD_INTERVAL", NEVER),
    ("MONITOR_TASK_INTERVAL", NEVER),
    ("MONITOR_HEARTBEAT_TIMEOUT", NEVER),
    ("DISPATCHER_INTERVAL", NEVER),
    ("KAFKA_REPLICATION_FACTOR", "1"),
];

struct Fleet {
    controller: Process,
    node: Process,
    api: String,
}

impl Fleet {
    fn start(shared: &[&str]) -> Self {
        let arguments = [&["controller", "--listen", "127.0.0.1:0"], shared].concat();
        let mut controller = Process::skald_with(&arguments, &ONLY_EVENTS);
        let api = controller.ready_value(SOON, "api");
        let mut node = Process::skald_with(&[&["node", "--id", "one"], shared].concat(), &ONLY_EVENTS);
        node.ready(SOON);
        Fleet { controller, node, api }
    }

    fn task(&self, arguments: &[&str]) -> Value {
        let ended = Process::run(SOON, &[&["task", "--api", &self.api], arguments].concat());
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        serde_json::from_str(&ended.stdout).unwrap_or(Value::Null)
    }

    fn create(&self, id: &str) {
        self.task(&["create", "Command", "--id", id, "-a", r#"argv=["sleep","600"]"#]);
    }

    fn status(&self, id: &str) -> Value {
        self.task(&["show", id, "--json"])["lifecycleStatus"].clone()
    }

    fn becomes(&self, id: &str, status: &str) {
        wait_until(SOON, &format!("{id} to be {status}"), || self.status(id) == status);
    }

    fn stop(self) {
        self.node.terminate();
        self.controller.terminate();
        for process in [self.node, self.controller] {
            let ended = process.wait(SOON);
            assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        }
    }
}

#[test]
fn a_node_hears_of_assignments_and_cancels_over_kafka_alone() {
    let redis = RedisServer::start(Version::V8, &[]);
    for broker in Broker::ALL {
        let kafka = KafkaServer::start(broker);
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let (cache, brokers) = (format!("redis://{}/{}", redis.address(), broker as u8), kafka.address());
        let shared = ["--data", data.to_str().unwrap(), "--redis", &cache];
        let fleet = Fleet::start(&[&shared[..], &["--kafka", &brokers]].concat());
        fleet.create("heard");
        fleet.becomes("heard", "Running");
        fleet.task(&["cancel", "heard"]);
        fleet.becomes("heard", "Cancelled");
        fleet.stop();

        // The same without Kafka, to know that nothing else tells the node.
        let fleet = Fleet::start(&shared);
        fleet.create("unheard");
        fleet.becomes("unheard", "Assigning");
        holds_for(Duration::from_secs(2), "nobody tells the node", || fleet.status("unheard") == "Assigning");
    }
}
