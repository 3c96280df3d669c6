//! One Redis or Valkey server in a folder of its own, on a free port.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use super::children;
use super::ports::free_port;
use super::wait::wait_for;

const START: Duration = Duration::from_secs(20);

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Version {
    /// Redis 8.2.3.
    V8,
    /// Redis 7.4.1: the oldest with a TTL per hash field.
    V7_4,
    /// Redis 7.0.15.
    V7_0,
    /// Valkey 9.1.2.
    Valkey9,
}

impl Version {
    /// All of them, newest Redis first.
    pub const ALL: [Version; 4] = [Version::V8, Version::V7_4, Version::V7_0, Version::Valkey9];

    fn binary(self) -> PathBuf {
        binary(match self {
            Version::V8 => "REDIS_8_BIN",
            Version::V7_4 => "REDIS_7_4_BIN",
            Version::V7_0 => "REDIS_7_0_BIN",
            Version::Valkey9 => "VALKEY_9_BIN",
        })
    }
}

/// The first line of the answer to PING, without the client library: a refusal is an answer too.
fn ping(port: u16) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(START))?;
    stream.write_all(b"PING\r\n")?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    Ok(answer)
}

/// The program that `scripts/services env` names.
pub(super) fn binary(variable: &str) -> PathBuf {
    match std::env::var_os(variable) {
        Some(path) => path.into(),
        None => panic!("{variable} is not set: run scripts/test, which installs the servers and names them"),
    }
}

/// A running server, or one that was killed and can be started again. Killed when dropped.
#[derive(Debug)]
pub struct RedisServer {
    version: Version,
    port: u16,
    options: Vec<String>,
    folder: TempDir,
    child: Option<Child>,
}

impl RedisServer {
    /// Starts a server and waits until it answers. `options` are further command-line options, such as
    /// `["--requirepass", "secret"]`; nothing is persisted unless they say so.
    pub fn start(version: Version, options: &[&str]) -> Self {
        let mut server = Self::prepare(version, options);
        server.restart();
        server
    }

    /// Everything but the process.
    pub(super) fn prepare(version: Version, options: &[&str]) -> Self {
        RedisServer {
            version,
            port: free_port(),
            options: options.iter().map(|option| (*option).to_owned()).collect(),
            folder: tempfile::Builder::new().prefix("skalds-redis-").tempdir().unwrap(),
            child: None,
        }
    }

    pub(super) fn add_options(&mut self, options: &[&str]) {
        self.options.extend(options.iter().map(|option| (*option).to_owned()));
    }

    /// Starts the process and does not wait for it.
    pub(super) fn launch(&mut self) {
        let program = self.version.binary();
        let log = File::options().create(true).append(true).open(self.log_file()).unwrap();
        let port = self.port.to_string();
        self.child = Some(children::spawn(&program.to_string_lossy(), |command| {
            command
                .args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
                .args(["--enable-debug-command", "local", "--repl-diskless-sync-delay", "0"])
                .args(&self.options)
                .current_dir(self.folder.path())
                .stdin(Stdio::null())
                .stdout(log.try_clone().unwrap())
                .stderr(log);
        }));
    }

    /// Waits until it answers: with PONG, or by asking for the password.
    pub(super) fn wait_until_it_answers(&mut self) {
        let port = self.port;
        let child = self.child.as_mut().expect("it was launched");
        let log = self.folder.path().join("log");
        let answered = wait_for(START, &format!("the server on port {port}"), || {
            if let Some(status) = child.try_wait().unwrap() {
                return Some(Err(status));
            }
            let answer = ping(port).unwrap_or_default();
            (answer.starts_with("+PONG") || answer.starts_with("-NOAUTH")).then_some(Ok(()))
        });
        if let Err(status) = answered {
            let log = std::fs::read_to_string(log).unwrap_or_default();
            panic!("the server on port {port} ended with {status}; its log:\n{log}");
        }
    }

    /// Starts it again on the same port, in the same folder; stops it first when it runs.
    pub fn restart(&mut self) {
        self.kill_hard();
        self.launch();
        self.wait_until_it_answers();
    }

    /// SIGKILL, as a power failure would; returns when it is gone.
    pub fn kill_hard(&mut self) {
        if let Some(mut child) = self.child.take() {
            children::kill(&mut child);
        }
    }

    /// SIGTERM, so that it saves what it is configured to save; returns when it is gone.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            children::signal(&child, "TERM");
            wait_for(START, "the server to end", || child.try_wait().unwrap());
        }
    }

    /// SIGSTOP: it accepts connections and never answers, as a node that hangs.
    pub fn freeze(&self) {
        children::signal(self.child.as_ref().expect("it runs"), "STOP");
    }

    /// SIGCONT: ends [`RedisServer::freeze`].
    pub fn thaw(&self) {
        children::signal(self.child.as_ref().expect("it runs"), "CONT");
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `redis://127.0.0.1:PORT/`, with the password of `--requirepass` when there is one.
    pub fn url(&self) -> String {
        let password = self.options.iter().position(|option| option == "--requirepass");
        match password.and_then(|at| self.options.get(at + 1)) {
            Some(password) => format!("redis://:{password}@127.0.0.1:{}/", self.port),
            None => format!("redis://127.0.0.1:{}/", self.port),
        }
    }

    /// Its version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The folder that it runs in.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    fn log_file(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    /// A blocking connection.
    pub fn connection(&self) -> redis::Connection {
        redis::Client::open(self.url())
            .and_then(|client| client.get_connection_with_timeout(Duration::from_secs(10)))
            .unwrap_or_else(|error| panic!("cannot connect to {}: {error}", self.address()))
    }

    /// How many scripts it has been asked to run.
    pub fn script_calls(&self) -> u64 {
        let stats: String = self.query(&["INFO", "commandstats"]);
        let calls = |line: &str| line.split("calls=").nth(1)?.split(',').next()?.parse::<u64>().ok();
        stats.lines().filter(|line| line.starts_with("cmdstat_evalsha")).filter_map(calls).sum()
    }

    /// One command and its answer; panics when the server refuses it.
    #[track_caller]
    pub fn query<T: redis::FromRedisValue>(&self, command: &[&str]) -> T {
        match self.try_query(command) {
            Ok(answer) => answer,
            Err(error) => panic!("{} refused {command:?}: {error}", self.address()),
        }
    }

    /// One command and its answer, or the error.
    pub fn try_query<T: redis::FromRedisValue>(&self, command: &[&str]) -> redis::RedisResult<T> {
        let mut query = redis::Cmd::new();
        for argument in command {
            query.arg(*argument);
        }
        query.query(&mut self.connection())
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill_hard();
    }
}
