//! The ready-made worker class `Command`: any program as a task.
//!
//! | attachment | |
//! | --- | --- |
//! | `argv` | the program and its arguments |
//! | `env` | variables beside those that it inherits |
//! | `cwd` | its working directory |
//! | anything else | the program's own business |
//!
//! All attachments are on its standard input, as one line of JSON. What it prints goes into the log, line by line; the end
//! of its standard error is kept with a failure. Exit code 0 is `Finished`, anything else a failed attempt. When the
//! task is to stop, its process group gets SIGTERM, and SIGKILL before the grace period is over; while it is paused the
//! group is stopped (SIGSTOP). What is left of the group when the program ends is killed.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader};
use tokio::process::Child;

use super::{Outcome, TaskWorker, WorkerContext, WorkerError};

/// The class's name.
pub const CLASS: &str = "Command";
/// A longer line is cut here, in bytes.
const MAX_LINE: usize = 8_192;
/// How many lines of standard error are kept for a failure, and how many bytes of them.
const KEPT_LINES: usize = 20;
const KEPT_BYTES: usize = 2_048;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Command {
    argv: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    cwd: Option<PathBuf>,
}

#[async_trait]
impl TaskWorker for Command {
    async fn run(&self, ctx: &WorkerContext) -> Result<Outcome, WorkerError> {
        let Some((program, arguments)) = self.argv.split_first() else {
            return Err(WorkerError::permanent(
                "attachment `argv` is empty: the first element is the program",
            ));
        };
        let mut command = tokio::process::Command::new(program);
        command
            .args(arguments)
            .envs(&self.env)
            .env("SKALDS_TASK_ID", ctx.task_id())
            .env("SKALDS_ATTEMPT", ctx.attempt().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        if let Some(cwd) = &self.cwd {
            command.current_dir(cwd);
        }
        let child = command.spawn().map_err(|error| {
            WorkerError::new(format!("program {program:?} could not be started: {error}"))
        })?;
        Running::new(child)?.attend(ctx).await
    }
}

/// A program that runs. Its group does not outlive this.
struct Running {
    child: Child,
    group: Group,
    last_lines: LastLines,
}

impl Running {
    fn new(child: Child) -> Result<Self, WorkerError> {
        let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let Some(id) = id else {
            return Err(WorkerError::new("the program has ended before it could be watched"));
        };
        Ok(Running { child, group: Group(id), last_lines: LastLines::default() })
    }

    async fn attend(mut self, ctx: &WorkerContext) -> Result<Outcome, WorkerError> {
        let input = format!("{}\n", serde_json::Value::Object((*ctx.attachments()).clone()));
        let stdin = self.child.stdin.take();
        let feed = async move {
            if let Some(mut stdin) = stdin {
                // A program that does not read its input closes it: no error.
                let _ = stdin.write_all(input.as_bytes()).await;
            }
        };
        let output = log_lines(self.child.stdout.take(), ctx, "stdout", None);
        let errors = log_lines(self.child.stderr.take(), ctx, "stderr", Some(&self.last_lines));
        let group = &self.group;
        let child = &mut self.child;
        let life = async {
            let status = watch(child, group, ctx).await;
            group.signal(Signal::KILL); // what it left behind would hold the pipes open
            status
        };
        let (status, (), (), ()) = tokio::join!(life, feed, output, errors);
        let status = status?;
        if status.success() {
            return Ok(Outcome::Finished(Some(json!({"exitCode": 0}))));
        }
        if ctx.is_cancelled() {
            return Ok(Outcome::Stopped);
        }
        Err(WorkerError::new(format!("{}{}", how(status), self.last_lines.text())))
    }
}

/// Waits for the end of the program, and passes orders on as signals.
async fn watch(child: &mut Child, group: &Group, ctx: &WorkerContext) -> std::io::Result<ExitStatus> {
    let pauses = pass_pauses(group, ctx);
    tokio::select! {
        biased;
        status = child.wait() => return status,
        _ = ctx.cancelled() => {}
        never = pauses => match never {},
    }
    group.signal(Signal::CONT); // a stopped program hears nothing
    group.signal(Signal::TERM);
    // What is left of the grace period is for the end to be noticed and stored.
    tokio::select! {
        biased;
        status = child.wait() => return status,
        () = ctx.held.clock().sleep(ctx.grace().mul_f64(0.8)) => {}
    }
    tracing::warn!(task = ctx.task_id(), "the program did not end on SIGTERM; it is killed");
    group.signal(Signal::KILL);
    child.wait().await
}

/// Stops the group while the task is paused.
async fn pass_pauses(group: &Group, ctx: &WorkerContext) -> std::convert::Infallible {
    let mut orders = ctx.held.orders();
    loop {
        // cannot fail: the context keeps the sender
        let _ = orders.wait_for(|orders| orders.pause).await;
        group.signal(Signal::STOP);
        ctx.paused().await; // reports it, and returns when it may go on
        group.signal(Signal::CONT);
        let _ = orders.wait_for(|orders| !orders.pause).await;
    }
}

/// A process group of our own making. When this is dropped, it is killed.
struct Group(Pid);

impl Group {
    fn signal(&self, signal: Signal) {
        // The group may be gone already.
        let _ = kill_process_group(self.0, signal);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// The last lines of standard error.
#[derive(Default)]
struct LastLines(Mutex<VecDeque<String>>);

impl LastLines {
    fn keep(&self, line: &str) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() >= KEPT_LINES {
            lines.pop_front();
        }
        lines.push_back(line.to_owned());
    }

    /// A colon and the lines, or nothing.
    fn text(&self) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = lines.iter().map(String::as_str).collect::<Vec<_>>().join("\n");
        let mut from = text.len().saturating_sub(KEPT_BYTES);
        while !text.is_char_boundary(from) {
            from += 1;
        }
        if text.is_empty() { text } else { format!(": {}", &text[from..]) }
    }
}

fn how(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => "ended for an unknown reason".into(),
    }
}

/// Logs what a program prints, a line at a time; the rest of a line that is too long is left out.
async fn log_lines(
    pipe: Option<impl AsyncRead + Unpin>,
    ctx: &WorkerContext,
    stream: &'static str,
    last_lines: Option<&LastLines>,
) {
    let Some(pipe) = pipe else { return };
    let mut pipe = BufReader::new(pipe);
    let mut line = Vec::new();
    let mut cut = false;
    loop {
        let (used, ended) = {
            let bytes = match pipe.fill_buf().await {
                Ok([]) => break,
                Ok(bytes) => bytes,
                Err(error) => {
                    tracing::warn!(task = ctx.task_id(), stream, %error, "a program's output cannot be read any more");
                    break;
                }
            };
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let part = &bytes[..end.unwrap_or(bytes.len())];
            let room = MAX_LINE - line.len();
            cut |= part.len() > room;
            line.extend_from_slice(&part[..part.len().min(room)]);
            (end.map_or(bytes.len(), |end| end + 1), end.is_some())
        };
        pipe.consume(used);
        if ended {
            log(&mut line, &mut cut, ctx, stream, last_lines);
        }
    }
    if !line.is_empty() {
        log(&mut line, &mut cut, ctx, stream, last_lines);
    }
}

fn log(
    line: &mut Vec<u8>,
    cut: &mut bool,
    ctx: &WorkerContext,
    stream: &'static str,
    last_lines: Option<&LastLines>,
) {
    let text = String::from_utf8_lossy(line);
    let text = text.trim_end_matches('\r');
    tracing::info!(task = ctx.task_id(), stream, cut = *cut, "{text}");
    if let Some(last_lines) = last_lines {
        last_lines.keep(text);
    }
    line.clear();
    *cut = false;
}
