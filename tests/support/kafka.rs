//! One Kafka broker in a folder of its own, on a free port.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use super::children;
use super::ports::free_port;
use super::server::binary;
use super::wait::wait_for;

const START: Duration = Duration::from_secs(20);

/// Which broker. They share no code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Broker {
    /// Keeps everything in memory; expires members of a group that died.
    Tansu,
    /// Keeps topics on disk; never expires a member.
    Noida,
}

impl Broker {
    /// Both.
    pub const ALL: [Broker; 2] = [Broker::Tansu, Broker::Noida];
}

/// A running broker, or one that was killed and can be started again. Killed when dropped.
#[derive(Debug)]
pub struct KafkaServer {
    broker: Broker,
    port: u16,
    folder: TempDir,
    child: Option<Child>,
}

impl KafkaServer {
    /// Starts a broker and waits until it answers.
    pub fn start(broker: Broker) -> Self {
        let folder = tempfile::Builder::new().prefix("skalds-kafka-").tempdir().unwrap();
        let mut server = KafkaServer { broker, port: free_port(), folder, child: None };
        server.restart();
        server
    }

    /// Starts it again on the same port, in the same folder; kills it first when it runs.
    pub fn restart(&mut self) {
        self.kill_hard();
        let log = File::options().create(true).append(true).open(self.folder.path().join("log")).unwrap();
        let port = self.port.to_string();
        let url = format!("tcp://{}", self.address());
        let (program, arguments): (_, Vec<&str>) = match self.broker {
            Broker::Tansu => (
                binary("TANSU_BIN"),
                vec![
                    "broker",
                    "--cluster-id",
                    "skalds",
                    "--listener-url",
                    &url,
                    "--advertised-listener-url",
                    &url,
                    "--storage-engine",
                    "memory://tansu/",
                ],
            ),
            Broker::Noida => (
                binary("NOIDA_DB_BIN"),
                vec![
                    "start",
                    "--only",
                    "kafka",
                    "--host",
                    "127.0.0.1",
                    "--kafka-port",
                    &port,
                    "--data-dir",
                    "data",
                ],
            ),
        };
        self.child = Some(children::spawn(&program.to_string_lossy(), |command| {
            command
                .args(arguments)
                .current_dir(self.folder.path())
                .stdin(Stdio::null())
                .stdout(log.try_clone().unwrap())
                .stderr(log);
        }));
        // The one broker's tool asks the other one too.
        let tool: PathBuf = binary("TANSU_BIN");
        let answers = || {
            let mut command = Command::new(&tool);
            command.args(["topic", "list", "--broker", &url]).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().unwrap().success().then_some(())
        };
        wait_for(START, &format!("{:?} on port {}", self.broker, self.port), answers);
    }

    /// SIGKILL, by its process id; returns when it is gone.
    pub fn kill_hard(&mut self) {
        if let Some(mut child) = self.child.take() {
            children::kill(&mut child);
        }
    }

    /// SIGSTOP: it accepts connections and never answers.
    pub fn freeze(&self) {
        children::signal(self.child.as_ref().expect("it runs"), "STOP");
    }

    /// SIGCONT: ends [`KafkaServer::freeze`].
    pub fn thaw(&self) {
        children::signal(self.child.as_ref().expect("it runs"), "CONT");
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl Drop for KafkaServer {
    fn drop(&mut self) {
        self.kill_hard();
    }
}
