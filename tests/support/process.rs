//! The `skald` binary, and the examples, as processes.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::children;
use super::wait::wait_for;

/// What a process wrote to one stream so far.
type Captured = Arc<Mutex<Vec<u8>>>;

/// A running `skald` or example. Killed when dropped; when the test is panicking, what it wrote is shown.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    stdout: Captured,
    stderr: Captured,
    readers: Vec<JoinHandle<()>>,
}

/// A process that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Its exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// All that it wrote to standard output.
    pub stdout: String,
    /// All that it wrote to standard error.
    pub stderr: String,
}

impl Process {
    /// Starts `skald ARGUMENTS…`.
    pub fn skald(arguments: &[&str]) -> Self {
        Self::skald_with(arguments, &[])
    }

    /// [`Process::skald`] with further environment variables.
    pub fn skald_with(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::program("skald", env!("CARGO_BIN_EXE_skald"), arguments, environment)
    }

    /// Starts a built example, with environment variables.
    pub fn example(name: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        // This test is target/PROFILE/deps/NAME-HASH.
        let test = std::env::current_exe().unwrap();
        let program = test.parent().and_then(Path::parent).unwrap().join("examples").join(name);
        assert!(program.is_file(), "{} is not there: run `cargo build --examples`", program.display());
        Self::program(name, program.to_str().unwrap(), arguments, environment)
    }

    /// Starts one test of this binary as a process of its own.
    pub fn this_test(name: &str, environment: &[(&str, &str)]) -> Self {
        let program = std::env::current_exe().unwrap();
        Self::program(name, program.to_str().unwrap(), &[name, "--exact", "--nocapture"], environment)
    }

    fn program(name: &str, program: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut child = children::spawn(program, |command| {
            command
                .args(arguments)
                .envs(environment.iter().copied())
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
        });
        let (stdout, stderr) = (Captured::default(), Captured::default());
        let readers = vec![
            capture(child.stdout.take().expect("it is piped"), &stdout),
            capture(child.stderr.take().expect("it is piped"), &stderr),
        ];
        Process { name: [&[name], arguments].concat().join(" "), child, stdout, stderr, readers }
    }

    /// Runs `skald ARGUMENTS…` to its end.
    #[track_caller]
    pub fn run(deadline: Duration, arguments: &[&str]) -> Finished {
        Self::skald(arguments).wait(deadline)
    }

    /// Waits for the line with which a long-running subcommand says that it serves: `ready NAME key=value …` on
    /// standard output. Returns the whole line.
    #[track_caller]
    pub fn ready(&mut self, deadline: Duration) -> String {
        let what = format!("`{}` to be ready", self.name);
        wait_for(deadline, &what, || {
            let line = self.stdout().lines().find(|line| line.starts_with("ready ")).map(str::to_owned);
            let ended = self.child.try_wait().unwrap();
            assert!(line.is_some() || ended.is_none(), "it ended ({ended:?}) before it was ready");
            line
        })
    }

    /// The value of `key=…` in the line of [`Process::ready`].
    #[track_caller]
    pub fn ready_value(&mut self, deadline: Duration, key: &str) -> String {
        let line = self.ready(deadline);
        let value = line.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        value.unwrap_or_else(|| panic!("no {key}= in `{line}`")).to_owned()
    }

    /// What it wrote to standard output so far.
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stdout.lock().unwrap()).into_owned()
    }

    /// What it wrote to standard error so far.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr.lock().unwrap()).into_owned()
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// SIGKILL, by its process id; returns when it is gone.
    pub fn kill_hard(&mut self) {
        children::kill(&mut self.child);
    }

    /// SIGSTOP: it is there and does nothing.
    pub fn freeze(&self) {
        children::signal(&self.child, "STOP");
    }

    /// SIGCONT: ends [`Process::freeze`].
    pub fn thaw(&self) {
        children::signal(&self.child, "CONT");
    }

    /// SIGINT, as Ctrl-C.
    pub fn interrupt(&self) {
        children::signal(&self.child, "INT");
    }

    /// SIGTERM.
    pub fn terminate(&self) {
        children::signal(&self.child, "TERM");
    }

    /// Waits until it ends by itself.
    #[track_caller]
    pub fn wait(mut self, deadline: Duration) -> Finished {
        let what = format!("`{}` to end", self.name);
        let status: ExitStatus = wait_for(deadline, &what, || self.child.try_wait().unwrap());
        for reader in self.readers.drain(..) {
            reader.join().unwrap();
        }
        Finished { code: status.code(), stdout: self.stdout(), stderr: self.stderr() }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        children::kill(&mut self.child);
        if std::thread::panicking() {
            eprintln!("--- {}\n{}\n--- its standard error\n{}", self.name, self.stdout(), self.stderr());
        }
    }
}

fn capture(stream: impl Read + Send + 'static, into: &Captured) -> JoinHandle<()> {
    let into = Arc::clone(into);
    std::thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        let mut line = Vec::new();
        // Ends at the end of the stream, or when the process was killed in the middle of a line.
        while stream.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            into.lock().unwrap().append(&mut line);
        }
    })
}
