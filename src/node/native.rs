//! Jobs written in Rust, registered by name on every agent that runs them.
//!
//! The agent reads the keys' values over its own connection and applies the writes that a step asks for together with
//! the unit's marker in one script, so they are applied once. Between the reads and the writes other clients may
//! change a key: ask for writes that are right whatever happened meanwhile (INCRBY, EXPIRE, SADD, …).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use super::connection::NodeConnection;
use super::error::NodeError;
use crate::chain::value::Value;

/// A job's step in Rust.
///
/// Everything that it remembers from key to key is in the value that it returns: an instance serves many jobs at once.
#[async_trait]
pub trait ChainJob: Send + Sync {
    /// What a job spec calls it.
    fn name(&self) -> &str;

    /// Runs the step on some keys of one unit; all of them exist and match the job's target. Answers the delta: what
    /// these keys add to the accumulator. In jobs with a strict order (an ordered list, a walk) there is one key, the
    /// accumulator so far is [`StepContext::acc`], and the answer replaces it.
    ///
    /// # Errors
    /// An error ends the job, except those that [`StepContext::read`] returned, which are passed on with `?`. A key
    /// that cannot be handled is reported with [`StepContext::fail`] instead.
    async fn step(&self, context: &mut StepContext<'_>, keys: &[Vec<u8>]) -> Result<Value, StepError>;

    /// The key after this one, in a walk; called after [`ChainJob::step`], with the new accumulator.
    ///
    /// # Errors
    /// As [`ChainJob::step`].
    async fn next(&self, _context: &mut StepContext<'_>, _key: &[u8]) -> Result<Option<Vec<u8>>, StepError> {
        Ok(None)
    }

    /// Makes one value of two, where the job's combiner is `Merge`.
    ///
    /// # Errors
    /// What is wrong with the values; ends the job.
    fn merge(&self, _a: Value, _b: Value) -> Result<Value, String> {
        Err(format!("the native job {:?} has no merge; choose another combiner", self.name()))
    }

    /// Makes the result of the accumulator, at the very end.
    ///
    /// # Errors
    /// What is wrong with the value; ends the job.
    fn finish(&self, acc: Value) -> Result<Value, String> {
        Ok(acc)
    }
}

/// The native jobs that a process knows, by name.
#[derive(Clone, Default)]
pub struct NativeJobs(Arc<BTreeMap<String, Arc<dyn ChainJob>>>);

impl NativeJobs {
    /// None.
    pub fn new() -> Self {
        NativeJobs::default()
    }

    /// Adds a job; one of the same name is replaced.
    #[must_use]
    pub fn with(self, job: impl ChainJob + 'static) -> Self {
        let mut jobs = (*self.0).clone();
        jobs.insert(job.name().to_owned(), Arc::new(job));
        NativeJobs(Arc::new(jobs))
    }

    /// The job of this name.
    pub fn get(&self, name: &str) -> Option<Arc<dyn ChainJob>> {
        self.0.get(name).cloned()
    }

    /// All names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

impl fmt::Debug for NativeJobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

/// A Redis command: its name and its arguments, any bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    pub(crate) parts: Vec<Vec<u8>>,
}

impl Command {
    /// A command without arguments.
    pub fn new(name: &str) -> Self {
        Command { parts: vec![name.as_bytes().to_vec()] }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, argument: impl AsRef<[u8]>) -> Self {
        self.parts.push(argument.as_ref().to_vec());
        self
    }
}

/// What the server answered to one command: a value, or its error in its own words.
pub type Reply = Result<Value, String>;

/// Why a step could not be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// The node could not be asked.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A key is not, or not wholly, on this node: the unit stays open and is planned again.
    #[error("the slot is not wholly on this node: {0}")]
    Elsewhere(String),
    /// The job cannot go on.
    #[error("{0}")]
    Job(String),
}

/// What a step may do.
pub struct StepContext<'a> {
    pub(crate) node: &'a NodeConnection,
    pub(crate) args: &'a BTreeMap<String, String>,
    pub(crate) acc: Option<Value>,
    pub(crate) writes: Vec<Command>,
    pub(crate) failures: Vec<(Vec<u8>, String)>,
}

impl StepContext<'_> {
    /// The job's arguments.
    pub fn args(&self) -> &BTreeMap<String, String> {
        self.args
    }

    /// The accumulator so far, in jobs with a strict order.
    pub fn acc(&self) -> Option<&Value> {
        self.acc.as_ref()
    }

    /// Sends read commands in one write and answers one reply each, in order.
    ///
    /// # Errors
    /// When the node cannot be asked, or one of the keys is on its way to another node.
    pub async fn read(&mut self, commands: &[Command]) -> Result<Vec<Reply>, StepError> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipeline = redis::Pipeline::with_capacity(commands.len());
        for command in commands {
            pipeline.add_command(command.to_redis());
        }
        let answers = self.node.answers(&pipeline, commands.len(), "read keys").await?;
        answers
            .into_iter()
            .map(|answer| match answer {
                redis::Value::ServerError(error) => {
                    let error = redis::RedisError::from(error);
                    let words = super::error::words(&error);
                    if error.redirect_node().is_some() {
                        Err(StepError::Elsewhere(words))
                    } else {
                        Ok(Err(words))
                    }
                }
                answer => Ok(Ok(super::reply::from_resp(answer))),
            })
            .collect()
    }

    /// Asks for a write to a key of this unit. All writes of a step are applied together after it, once.
    pub fn write(&mut self, command: Command) {
        self.writes.push(command);
    }

    /// Reports a key that could not be handled; the job stops or goes on as its spec says.
    pub fn fail(&mut self, key: &[u8], reason: impl Into<String>) {
        self.failures.push((key.to_vec(), reason.into()));
    }
}

impl Command {
    pub(crate) fn to_redis(&self) -> redis::Cmd {
        let mut command = redis::Cmd::new();
        for part in &self.parts {
            command.arg(part.as_slice());
        }
        command
    }
}
