//! What a user writes to run tasks: a [`TaskWorker`], registered under its class name.
//!
//! ```
//! use serde::Deserialize;
//! use skalds::actors::worker::{Outcome, TaskWorker, WorkerContext, WorkerError};
//!
//! /// The attachments of a task of class `Countdown`; `fromNumber` and `from_number` both fit.
//! #[derive(Deserialize)]
//! #[serde(rename_all = "camelCase")]
//! struct Countdown {
//!     from_number: u32,
//! }
//!
//! #[async_trait::async_trait]
//! impl TaskWorker for Countdown {
//!     async fn run(&self, ctx: &WorkerContext) -> Result<Outcome, WorkerError> {
//!         for n in (1..=self.from_number).rev() {
//!             if ctx.is_cancelled() {
//!                 return Ok(Outcome::Stopped);
//!             }
//!             ctx.progress(1.0 - f64::from(n) / f64::from(self.from_number), format!("{n} left"));
//!         }
//!         Outcome::with(&"lift-off")
//!     }
//! }
//!
//! let mut classes = skalds::actors::worker::WorkerClasses::default();
//! classes.register::<Countdown>("Countdown");
//! ```

mod actor;
mod blocking;
mod class;
#[cfg(unix)]
pub mod command;
mod context;
mod held;
mod stage;

use std::fmt;

use async_trait::async_trait;
use serde::Serialize;
use serde_json::{Map, Value};

pub(crate) use actor::{WorkerActor, WorkerEnd};
pub use blocking::{BlockingContext, BlockingTaskWorker};
pub use class::WorkerClasses;
pub use context::{Updates, WorkerContext};
pub(crate) use held::{Complaints, Held};

/// The work of one task. It is made from the task's attachments when the task starts, and dropped when it ends.
///
/// `before`, `after`, `on_error` and `release` have the worker to themselves. While `run` goes on, `update` may be called
/// beside it, so both borrow the worker shared: what changes in `run` is a local variable, or behind a lock or a channel.
///
/// A panic in any of them fails this attempt of this task, with the panic's text; nothing else is touched.
#[async_trait]
pub trait TaskWorker: Send + Sync + 'static {
    /// Prepares the work: opens connections, loads models.
    async fn before(&mut self, ctx: &WorkerContext) -> Result<(), WorkerError> {
        let _ = ctx;
        Ok(())
    }

    /// The work. It should look at [`WorkerContext::cancelled`] now and then, or select on it: when it has not ended
    /// within the grace period after it was asked to stop, its future is dropped at its next `await`.
    async fn run(&self, ctx: &WorkerContext) -> Result<Outcome, WorkerError>;

    /// The attachments were changed while `run` goes on. Not called once `run` has asked for
    /// [`WorkerContext::updates`]. An error is logged and shown with the task, and the work goes on.
    async fn update(&self, ctx: &WorkerContext, attachments: &Map<String, Value>) -> Result<(), WorkerError> {
        let _ = (ctx, attachments);
        Ok(())
    }

    /// `run` has ended well. An error here fails the attempt.
    async fn after(&mut self, ctx: &WorkerContext, outcome: &Outcome) -> Result<(), WorkerError> {
        let _ = (ctx, outcome);
        Ok(())
    }

    /// `before`, `run` or `after` has failed. Not called after a panic or a stop.
    async fn on_error(&mut self, ctx: &WorkerContext, error: &WorkerError) {
        let _ = (ctx, error);
    }

    /// The last call, however the work has ended, except after a panic: gives back what `before` took. It has the grace
    /// period to do so.
    async fn release(&mut self, ctx: &WorkerContext) {
        let _ = ctx;
    }
}

/// How work ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It is done; the value is kept as the task's result.
    Finished(Option<Value>),
    /// It stopped before it was done, because it was asked to or wants to go on later: a cancelled task ends, any other
    /// goes back to the queue and starts again from its last checkpoint, without using an attempt up.
    Stopped,
}

impl Outcome {
    /// Done, without a result.
    pub fn done() -> Self {
        Outcome::Finished(None)
    }

    /// Done, with a result.
    pub fn with(result: &impl Serialize) -> Result<Self, WorkerError> {
        Ok(Outcome::Finished(Some(serde_json::to_value(result)?)))
    }
}

/// Why an attempt failed. Any error converts into it with `?`; its sources are kept in the text.
#[derive(Clone, PartialEq, Eq)]
pub struct WorkerError {
    text: String,
    permanent: bool,
}

impl WorkerError {
    /// Worth another attempt.
    pub fn new(text: impl Into<String>) -> Self {
        WorkerError { text: text.into(), permanent: false }
    }

    /// No attempt will do better: the task fails for good.
    pub fn permanent(text: impl Into<String>) -> Self {
        WorkerError { text: text.into(), permanent: true }
    }

    /// Whether another attempt is useless.
    pub fn is_permanent(&self) -> bool {
        self.permanent
    }

    /// What is kept with the task.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for WorkerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for WorkerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", if self.permanent { "permanent " } else { "" }, self.text)
    }
}

// `WorkerError` is not itself an `Error`, which is what makes this possible.
impl<E: std::error::Error> From<E> for WorkerError {
    fn from(error: E) -> Self {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            if !text.ends_with(&cause_text) {
                text.push_str(": ");
                text.push_str(&cause_text);
            }
            source = cause.source();
        }
        WorkerError::new(text)
    }
}

/// Why a worker is asked to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// An operator cancelled the task.
    Cancelled,
    /// The Skald is shutting down; the task goes back to the queue.
    Draining,
    /// The task's deadline has passed.
    DeadlinePassed,
    /// The task is held by somebody else now, or is gone. Nothing that this worker says counts any more.
    Lost,
}
