//! One MongoDB-compatible server in a folder of its own, on a free port, with authentication: user root, password root.

use std::fs::File;
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use super::children;
use super::ports::free_port;
use super::server::binary;
use super::wait::wait_for;

const START: Duration = Duration::from_secs(30);

/// A running server, or one that was killed and can be started again on what it had stored. Killed when dropped.
#[derive(Debug)]
pub struct MongoServer {
    port: u16,
    folder: TempDir,
    child: Option<Child>,
}

impl MongoServer {
    /// Starts a server and waits until it listens.
    pub fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("skalds-mongo-").tempdir().unwrap();
        let mut server = MongoServer { port: free_port(), folder, child: None };
        server.restart();
        server
    }

    /// Starts it again on the same port, on the same data; kills it first when it runs.
    pub fn restart(&mut self) {
        self.kill_hard();
        let program = binary("MONGO_BIN");
        let log = File::options().create(true).append(true).open(self.folder.path().join("log")).unwrap();
        let port = self.port.to_string();
        self.child = Some(children::spawn(&program.to_string_lossy(), |command| {
            command
                .args(["--host", "127.0.0.1", "--port", &port, "--storage-path", "data"])
                .args(["--cache-size", "256M"])
                .current_dir(self.folder.path())
                .stdin(Stdio::null())
                .stdout(log.try_clone().unwrap())
                .stderr(log);
        }));
        let child = self.child.as_mut().expect("it was just started");
        let listens = wait_for(START, &format!("the MongoDB server on port {port}"), || {
            if let Some(status) = child.try_wait().unwrap() {
                return Some(Err(status));
            }
            TcpStream::connect(("127.0.0.1", self.port)).is_ok().then_some(Ok(()))
        });
        if let Err(status) = listens {
            panic!("the MongoDB server on port {port} ended with {status}; its log:\n{}", self.log());
        }
    }

    /// SIGKILL; returns when it is gone.
    pub fn kill_hard(&mut self) {
        if let Some(mut child) = self.child.take() {
            children::kill(&mut child);
        }
    }

    /// SIGSTOP: it accepts connections and never answers.
    pub fn freeze(&self) {
        children::signal(self.child.as_ref().expect("it runs"), "STOP");
    }

    /// SIGCONT: ends [`MongoServer::freeze`].
    pub fn thaw(&self) {
        children::signal(self.child.as_ref().expect("it runs"), "CONT");
    }

    /// Its address, with user and password.
    pub fn url(&self) -> String {
        self.url_of("root:root")
    }

    /// Its address with `user:password`.
    pub fn url_of(&self, user: &str) -> String {
        format!("mongodb://{user}@127.0.0.1:{}/", self.port)
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for MongoServer {
    fn drop(&mut self) {
        self.kill_hard();
    }
}

/// A database of its own for a test: on the server that MONGO_HOST names (any MongoDB), where it is dropped afterwards, or
/// else on a server of its own.
#[derive(Debug)]
pub struct MongoDatabase {
    /// Its server's address.
    pub url: String,
    /// Its name.
    pub name: String,
    server: Option<MongoServer>,
}

impl MongoDatabase {
    /// A new and empty one.
    pub fn new() -> Self {
        let server = std::env::var_os("MONGO_HOST").is_none().then(MongoServer::start);
        let url = match &server {
            Some(server) => server.url(),
            None => std::env::var("MONGO_HOST").expect("MONGO_HOST is text"),
        };
        MongoDatabase { url, name: format!("skalds-test-{:016x}", fastrand::u64(..)), server }
    }
}

impl Drop for MongoDatabase {
    fn drop(&mut self) {
        if self.server.is_some() {
            return; // it is gone with its server
        }
        let (url, name) = (self.url.clone(), self.name.clone());
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime
                .block_on(async { mongodb::Client::with_uri_str(&url).await?.database(&name).drop().await })
        });
        if let Ok(Err(error)) = dropping.join() {
            eprintln!("the database {} is left behind: {error}", self.name);
        }
    }
}
