//! What can be wanted of a task, and why it may be refused. The rules are in [`super::lifecycle`].

use serde_json::{Map, Value};

use super::task::{LifecycleStatus, Millis, Progress};

/// A change that somebody wants.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// The controller has chosen a Skald.
    Assign {
        /// Its id.
        executor: String,
    },
    /// The chosen Skald starts a worker.
    Start {
        /// Its id.
        executor: String,
        /// The task's when the Skald read it.
        incarnation: u64,
        /// Whether its work may go on without the worker: then only a worker can end it.
        outside: bool,
    },
    /// The worker says how far it is, or stores what it will go on from.
    Note {
        /// The holder's.
        incarnation: u64,
        /// `None` leaves it as it is.
        progress: Option<Progress>,
        /// `None` leaves it as it is.
        checkpoint: Option<Value>,
    },
    /// The worker holds still, as it was asked to.
    Suspend {
        /// The holder's.
        incarnation: u64,
    },
    /// The worker goes on, as it was asked to.
    Continue {
        /// The holder's.
        incarnation: u64,
    },
    /// The worker ended well.
    Finish {
        /// The holder's.
        incarnation: u64,
        /// What it returned.
        result: Option<Value>,
    },
    /// The worker ended with an error, or could not be made.
    Fail {
        /// The holder's.
        incarnation: u64,
        /// What it said.
        error: String,
        /// Whether trying again may help.
        retry: bool,
    },
    /// The holder gives the task back without an outcome: it drains, or does not start it. (A worker that has stopped
    /// because the task is to be cancelled ends it with `Finish`.)
    Release {
        /// The holder's.
        incarnation: u64,
    },
    /// The controller takes the task from a holder that is gone.
    Lost {
        /// The holder's.
        incarnation: u64,
        /// How it was found out.
        reason: String,
    },
    /// The deadline has passed.
    Expire,
    /// It can never start: a task that it depends on has failed or was cancelled.
    Abandon {
        /// Why.
        error: String,
    },
    /// An operator wants it held.
    Pause,
    /// An operator wants it to go on.
    Resume,
    /// An operator wants it ended.
    Cancel,
    /// An operator wants it from the start, or at once instead of at its next attempt.
    Requeue,
    /// An operator gives it other attachments, all of them.
    SetAttachments(Option<Map<String, Value>>),
}

/// A change without its particulars: the rows of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // each is the `Change` of the same name
pub enum ChangeKind {
    Assign,
    Start,
    Note,
    Suspend,
    Continue,
    Finish,
    Fail,
    Release,
    Lost,
    Expire,
    Abandon,
    Pause,
    Resume,
    Cancel,
    Requeue,
    SetAttachments,
}

/// Why a change was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The table has no such transition.
    #[error("{change:?} is not possible: the task is {status:?}")]
    NotAllowed {
        /// What was wanted.
        change: ChangeKind,
        /// Where the task stands.
        status: LifecycleStatus,
    },
    /// Somebody else holds the task by now.
    #[error("{change:?} is refused: it speaks for incarnation {given} of the task, which is at {current}")]
    Stale {
        /// What was wanted.
        change: ChangeKind,
        /// The incarnation that was named.
        given: u64,
        /// The task's.
        current: u64,
    },
    /// Another Skald was chosen.
    #[error("{given} cannot start the task: it is assigned to {executor:?}")]
    OtherExecutor {
        /// Who wanted it.
        given: String,
        /// Who was chosen.
        executor: Option<String>,
    },
    /// An operator asked for something else in between.
    #[error("{change:?} is refused: the task is to be {wanted}")]
    Overruled {
        /// What was wanted.
        change: ChangeKind,
        /// `cancelled`, `paused` or `resumed`.
        wanted: &'static str,
    },
    /// It is too early.
    #[error("{change:?} is refused: not before {until} (milliseconds since the Unix epoch)")]
    TooEarly {
        /// What was wanted.
        change: ChangeKind,
        /// When it may be.
        until: Millis,
    },
}

impl Change {
    /// Its row in the table.
    pub fn kind(&self) -> ChangeKind {
        match self {
            Change::Assign { .. } => ChangeKind::Assign,
            Change::Start { .. } => ChangeKind::Start,
            Change::Note { .. } => ChangeKind::Note,
            Change::Suspend { .. } => ChangeKind::Suspend,
            Change::Continue { .. } => ChangeKind::Continue,
            Change::Finish { .. } => ChangeKind::Finish,
            Change::Fail { .. } => ChangeKind::Fail,
            Change::Release { .. } => ChangeKind::Release,
            Change::Lost { .. } => ChangeKind::Lost,
            Change::Expire => ChangeKind::Expire,
            Change::Abandon { .. } => ChangeKind::Abandon,
            Change::Pause => ChangeKind::Pause,
            Change::Resume => ChangeKind::Resume,
            Change::Cancel => ChangeKind::Cancel,
            Change::Requeue => ChangeKind::Requeue,
            Change::SetAttachments(_) => ChangeKind::SetAttachments,
        }
    }

    /// The incarnation that the holder named, for changes that only a holder makes (or that are about one).
    pub(super) fn incarnation(&self) -> Option<u64> {
        match self {
            Change::Start { incarnation, .. }
            | Change::Note { incarnation, .. }
            | Change::Suspend { incarnation }
            | Change::Continue { incarnation }
            | Change::Finish { incarnation, .. }
            | Change::Fail { incarnation, .. }
            | Change::Release { incarnation }
            | Change::Lost { incarnation, .. } => Some(*incarnation),
            _ => None,
        }
    }
}
