//! What can go wrong between actors, and what is handed back when it does.

use std::{fmt, sync::Arc};

/// Why a message was not handled, an actor not spawned or not found, or the system not started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ActorError {
    /// The mailbox holds as many messages as it may. Send later, wait for room (`tell_wait`, `ask`), or shed load.
    #[error("the mailbox of actor {actor} is full ({capacity} messages); wait for room or send less")]
    Full {
        /// The receiver.
        actor: Arc<str>,
        /// Its bound, in messages.
        capacity: usize,
    },
    /// The actor has ended, is draining, or gave up; the message was not handled.
    #[error("actor {actor} takes no messages any more: it has stopped or is stopping")]
    Closed {
        /// The receiver.
        actor: Arc<str>,
    },
    /// The actor panicked while it handled this message, or gave up before it came to it.
    #[error("actor {actor} panicked: {text}")]
    Panicked {
        /// The receiver.
        actor: Arc<str>,
        /// What the panic said.
        text: Arc<str>,
    },
    /// The deadline passed while the message still waited: it was not handled and will not be.
    #[error("actor {actor} did not come to the message before its deadline; it was not handled")]
    Expired {
        /// The receiver.
        actor: Arc<str>,
    },
    /// The deadline passed while the message was being handled: it may still have its effect.
    #[error("actor {actor} did not answer before the deadline; what was asked may still be done")]
    Timeout {
        /// The receiver.
        actor: Arc<str>,
    },
    /// The handler ended without an answer: a future that it returned panicked or was dropped.
    #[error(
        "actor {actor} handled the message but gave no answer (its answer's future panicked or was dropped)"
    )]
    NoReply {
        /// The receiver.
        actor: Arc<str>,
    },
    /// A name is empty, too long, or holds control characters.
    #[error("actor name {name:?} is not allowed: use 1 to {max} bytes without control characters")]
    InvalidName {
        /// What was asked for, cut to a printable length.
        name: String,
        /// The longest name, in bytes.
        max: usize,
    },
    /// Another actor of this system has the name. It is free again when that actor has ended.
    #[error("actor name {name} is taken; choose another or stop the actor that has it")]
    NameTaken {
        /// The name.
        name: Arc<str>,
    },
    /// No running actor has the name.
    #[error("there is no actor named {name}")]
    NotFound {
        /// The name.
        name: String,
    },
    /// The actor is there, but its type is not the one asked for.
    #[error("actor {name} is a {found}, not a {asked}")]
    OtherType {
        /// The name.
        name: Arc<str>,
        /// Its type.
        found: &'static str,
        /// The type that the caller named.
        asked: &'static str,
    },
    /// The system holds as many actors as it may.
    #[error("the system holds {max} actors, its limit; stop some or raise `max_actors`")]
    TooManyActors {
        /// The limit.
        max: usize,
    },
    /// The system is shutting down or has ended.
    #[error("the actor system is shutting down; nothing new can be started")]
    ShuttingDown,
    /// The operating system gave no thread or no event queue.
    #[error("the actor system could not start its {what}: {reason}")]
    Start {
        /// Which thread.
        what: String,
        /// What the operating system said.
        reason: String,
    },
    /// The blocking pool has as many jobs waiting as it may.
    #[error("the blocking pool is full ({capacity} jobs wait); try later or raise `blocking_queue`")]
    BlockingFull {
        /// The bound.
        capacity: usize,
    },
    /// The code given to `run_blocking` panicked.
    #[error("blocking code panicked: {text}")]
    BlockingPanicked {
        /// What the panic said.
        text: Arc<str>,
    },
}

/// A message that was not taken, with the reason, so that the sender can keep it.
#[derive(Clone, PartialEq, Eq)]
pub struct TellError<M> {
    /// The message, untouched.
    pub message: M,
    /// Why it was not taken.
    pub error: ActorError,
}

impl<M> fmt::Debug for TellError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TellError").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<M> fmt::Display for TellError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<M> std::error::Error for TellError<M> {}

impl<M> From<TellError<M>> for ActorError {
    fn from(refused: TellError<M>) -> Self {
        refused.error
    }
}

/// The text of a panic's payload: `panic!` gives a `&str` or a `String`, anything else has no text.
pub(crate) fn panic_text(payload: &(dyn std::any::Any + Send)) -> Arc<str> {
    if let Some(text) = payload.downcast_ref::<&'static str>() {
        Arc::from(*text)
    } else if let Some(text) = payload.downcast_ref::<String>() {
        Arc::from(text.as_str())
    } else {
        Arc::from("a panic without text")
    }
}
