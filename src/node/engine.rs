//! A job's script on one node: loaded, called within its budget, its answers read.

use std::time::{Duration, Instant};

use redis::{Cmd, RedisError};

use super::access::RedisAccess;
use super::cluster::{Info, micros};
use super::connection::{NodeConnection, text_of};
use super::error::{NodeError, node_trouble, words};
use super::pacing::Pace;
use super::reply::{pack, unpack_all};
use super::script::{Script, returns_early};
use crate::chain::glob::{Glob, GlobShape, to_lua_parts};
use crate::chain::job::{Access, JobSpec, OnError, Step, Target};
use crate::chain::value::Value;

/// How long a marker lives: longer than any task may take (`core::task::DEFAULT_DEADLINE` is seven days).
const MARKER_LIFE: Duration = Duration::from_secs(10 * 24 * 3600);

/// What the calls of a hop took.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Calls {
    pub(crate) count: u64,
    pub(crate) micros: u64,
    pub(crate) longest: u64,
}

/// The loaded script and the node that it runs on.
pub(crate) struct Engine {
    pub(crate) node: NodeConnection,
    pub(crate) pace: Pace,
    pub(crate) calls: Calls,
    /// Whether the server runs in cluster mode.
    pub(crate) cluster: bool,
    /// Its replication id now.
    pub(crate) replication_id: String,
    /// Whether a SCAN cursor holds the slot in its low 14 bits, so that a scan can start in a slot (Redis 7.4 and
    /// Valkey 8 and later; undocumented, so what it shows is checked).
    pub(crate) slot_cursors: bool,
    /// The server's time less ours, where calls must not be late.
    clock: Option<ServerClock>,
    job: String,
    script: Script,
    sha: String,
    evalsha: &'static str,
    /// ARGV 3 to 5, 8 to 11 of the loop.
    access: &'static str,
    stop: &'static str,
    may_expire: &'static str,
    matcher: (&'static str, Vec<u8>),
}

impl Engine {
    /// Connects, learns what the server can do and loads the script.
    pub(crate) async fn open(address: &str, job: &JobSpec, access: &RedisAccess) -> Result<Self, NodeError> {
        let node = NodeConnection::open(address, access).await?;
        let info = node.text(&redis::cmd("INFO"), "read INFO").await?;
        let info = Info::new(&info);
        // A call that reads does no harm however late it is.
        let clock = if job.access == Access::Read { None } else { ServerClock::of(&node).await? };
        let modern = info.get("redis_version").is_some_and(|version| !version.starts_with(['4', '5', '6']));
        let read = job.access == Access::Read;
        let database = info.get(&format!("db{}", access.database));
        let mut engine = Engine {
            node,
            pace: Pace::new(job.limits.max_block_micros),
            calls: Calls::default(),
            cluster: info.get("cluster_enabled") == Some("1"),
            replication_id: info.get("master_replid").unwrap_or_default().to_owned(),
            slot_cursors: holds_slot_cursors(&info),
            clock,
            job: job.id.clone(),
            script: Script::new(job, modern),
            sha: String::new(),
            // A job that says it only reads is held to it: its units may be run twice.
            evalsha: if read && modern { "EVALSHA_RO" } else { "EVALSHA" },
            access: match job.access {
                Access::Read => "r",
                Access::Write => "w",
                Access::IdempotentWrite => "i",
            },
            stop: if job.on_error == OnError::Stop { "1" } else { "0" },
            // Without any key that has a TTL now, none can have expired before the job began.
            may_expire: if database.is_some_and(|counts| !counts.contains("expires=0,")) { "1" } else { "0" },
            matcher: matcher(&job.target),
        };
        if !matches!(job.step, Step::Raw(_)) {
            engine.load().await?;
        }
        Ok(engine)
    }

    async fn load(&mut self) -> Result<(), NodeError> {
        match self.compile(&self.script.text).await? {
            Ok(sha) => {
                self.sha = sha;
                Ok(())
            }
            // Not the text's fault: a node that is loading, or has no primary.
            Err(error) if !words(&error).contains("user_script") => Err(self.script_error(LOAD, &error)),
            // Which part is at fault? Where the job's own is fine alone, it ends what follows it.
            Err(error) => match self.compile(self.script.own()).await? {
                Ok(_) => Err(returns_early(&self.job)),
                Err(own) => Err(self.script_error(LOAD, if words(&own).is_empty() { &error } else { &own })),
            },
        }
    }

    async fn compile(&self, text: &str) -> Result<Result<String, RedisError>, NodeError> {
        let mut command = redis::cmd("SCRIPT");
        command.arg("LOAD").arg(text);
        let answer = self.node.answer(&command, LOAD, self.node.call_timeout).await?;
        Ok(answer.map(|sha| text_of(&sha).unwrap_or_default()))
    }

    /// Compiles a whole-node script.
    pub(crate) async fn check_raw(&self, text: &str) -> Result<(), NodeError> {
        match self.compile(text).await? {
            Ok(_) => Ok(()),
            Err(error) => Err(self.script_error(LOAD, &error)),
        }
    }

    /// What the job's text defines: each, merge, finish, next.
    pub(crate) async fn defines(&mut self) -> Result<[bool; 4], NodeError> {
        let answer = self.run("defines", |_| {}).await?.values;
        let is = |index: usize| answer.get(index) == Some(&Value::Bool(true));
        Ok([is(0), is(1), is(2), is(3)])
    }

    /// Runs one mode of the loop; `rest` adds its arguments.
    pub(crate) async fn run(&mut self, mode: &str, rest: impl Fn(&mut Cmd)) -> Result<Ran, NodeError> {
        let mut loaded = false;
        loop {
            let mut command = Cmd::new();
            command.arg(self.evalsha).arg(&self.sha).arg(0);
            command.arg(mode).arg(&self.script.args[..]).arg(&self.job).arg(self.access).arg(self.stop);
            command.arg(self.pace.time_micros()).arg(self.pace.keys());
            command.arg(MARKER_LIFE.as_millis() as u64).arg(self.may_expire);
            command.arg(self.matcher.0).arg(&self.matcher.1[..]);
            let limit = self.node.call_timeout;
            command.arg(self.clock.map_or(0, |clock| clock.millis_in(limit)));
            rest(&mut command);
            let start = Instant::now();
            let answer = self.node.answer(&command, STEP, limit).await?;
            let took = start.elapsed();
            self.note(took);
            match answer {
                Ok(redis::Value::BulkString(packed)) => {
                    let mut values = unpack_all(&packed).map_err(|reason| self.unreadable(reason))?;
                    let clock = match values.pop() {
                        Some(Value::Float(micros)) => Duration::try_from_secs_f64(micros / 1e6).ok(),
                        Some(Value::Int(micros)) => Some(Duration::from_micros(micros.unsigned_abs())),
                        _ => None,
                    };
                    return Ok(Ran { values, seen: took, clock });
                }
                Ok(other) => return Err(self.unreadable(format!("{other:?}"))),
                // A restart or SCRIPT FLUSH has dropped it.
                Err(error) if error.code() == Some("NOSCRIPT") && !loaded => {
                    self.load().await?;
                    loaded = true;
                }
                Err(error) => return Err(self.script_error(STEP, &error)),
            }
        }
    }

    /// Runs `merge` or `finish`.
    pub(crate) async fn protected(&mut self, mode: &str, values: &[Value]) -> Result<Value, NodeError> {
        let packed: Vec<_> = values.iter().map(pack).collect();
        let ran = self
            .run(mode, |command| {
                command.arg(&packed);
            })
            .await?;
        let mut values = ran.values.into_iter();
        match (values.next(), values.next()) {
            (Some(Value::Bool(true)), Some(value)) => Ok(value),
            (Some(Value::Bool(false)), Some(Value::Bytes(text))) => {
                let reason = self.script.explain(&String::from_utf8_lossy(&text));
                Err(NodeError::job(&self.job, format!("{mode} failed: {reason}")))
            }
            other => Err(self.unreadable(format!("{other:?}"))),
        }
    }

    /// Counts a call, for the hop's report.
    pub(crate) fn note(&mut self, took: Duration) {
        let micros = micros(took);
        self.calls.count += 1;
        self.calls.micros += micros;
        self.calls.longest = self.calls.longest.max(micros);
    }

    /// What runs a whole-node script: one that says it only reads is held to it.
    pub(crate) fn eval(&self) -> &'static str {
        if self.evalsha == "EVALSHA_RO" { "EVAL_RO" } else { "EVAL" }
    }

    pub(crate) fn unreadable(&self, reason: impl Into<String>) -> NodeError {
        NodeError::unreadable(&self.node.address, STEP, reason)
    }

    /// What a key's failure says, with the user's own line; an error of the whole node is raised instead.
    pub(crate) fn key_failure(&self, text: &str) -> Result<String, NodeError> {
        match node_trouble(&self.node.address, STEP, text) {
            Some(error) => Err(error),
            None => Ok(self.script.explain(text)),
        }
    }

    pub(crate) fn script_error(&self, action: &str, error: &RedisError) -> NodeError {
        let text = words(error);
        if let Some(error) = node_trouble(&self.node.address, action, &text) {
            return error;
        }
        // The server has run none of it, or somebody has ended it.
        if text.starts_with("LATE ") || text.contains("Script killed by user") {
            let (node, action) = (self.node.address.clone(), action.to_owned());
            return NodeError::Lost { node, action, reason: text };
        }
        if text.contains("user_script") {
            return NodeError::job(&self.job, self.script.explain(&text));
        }
        NodeError::from_redis(&self.node.address, action, error)
    }
}

/// A node's wall clock, as it was when we asked.
#[derive(Debug, Clone, Copy)]
struct ServerClock {
    millis: u64,
    asked: Instant,
}

impl ServerClock {
    /// None where the user may not ask.
    async fn of(node: &NodeConnection) -> Result<Option<Self>, NodeError> {
        let action = "read its clock";
        let time = match node.answer(&redis::cmd("TIME"), action, node.call_timeout).await? {
            Ok(time) => time,
            Err(error) => {
                tracing::warn!(node = %node.address, %error, "a call that is cut off may take effect late");
                return Ok(None);
            }
        };
        let asked = Instant::now();
        let (seconds, micros): (u64, u64) = redis::from_redis_value(time)
            .map_err(|error| NodeError::unreadable(&node.address, action, error.to_string()))?;
        Ok(Some(ServerClock { millis: seconds * 1_000 + micros / 1_000, asked }))
    }

    /// What it shows when this long has passed from now on, or a little more: the answer was under way for a while.
    fn millis_in(self, wait: Duration) -> u64 {
        self.millis + (self.asked.elapsed() + wait).as_millis() as u64
    }
}

/// What one call answered.
pub(crate) struct Ran {
    pub(crate) values: Vec<Value>,
    /// How long it took as the agent saw it.
    pub(crate) seen: Duration,
    /// How long by the script's own clock, where there is one.
    pub(crate) clock: Option<Duration>,
}

const LOAD: &str = "load the job's script";
const STEP: &str = "run the job's step";

fn holds_slot_cursors(info: &Info<'_>) -> bool {
    let (field, least) = match info.get("valkey_version") {
        Some(_) => ("valkey_version", (8, 0)),
        None => ("redis_version", (7, 4)),
    };
    let mut numbers =
        info.get(field).unwrap_or_default().split('.').map_while(|part| part.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= least
}

/// How a script tells the keys of a target from others.
fn matcher(target: &Target) -> (&'static str, Vec<u8>) {
    let Target::Pattern(pattern) = target else { return ("all", Vec::new()) };
    match Glob::new(pattern).shape() {
        GlobShape::All => ("all", Vec::new()),
        GlobShape::Literal(key) => ("literal", key),
        GlobShape::Prefix(prefix) => ("prefix", prefix),
        GlobShape::General => {
            let parts = to_lua_parts(pattern).into_iter().map(Value::Bytes).collect();
            ("parts", pack(&Value::List(parts)))
        }
    }
}
