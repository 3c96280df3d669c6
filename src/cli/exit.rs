//! How a subcommand ends.

use std::process::ExitCode;

use crate::core::task::LifecycleStatus;

/// The exit codes of `skald`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// What was asked for was done.
    Finished,
    /// It was tried and failed.
    Failed,
    /// What was asked for makes no sense.
    Usage,
    /// A result, but not the whole one.
    Partial,
    /// Somebody cancelled it.
    Cancelled,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(match exit {
            Exit::Finished => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Partial => 3,
            Exit::Cancelled => 130, // as a shell reports Ctrl-C
        })
    }
}

/// Why a subcommand could not do what was asked. Its text is printed as it is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The command line or a file that it names makes no sense.
    #[error("{0}")]
    Usage(String),
    /// It was tried and failed.
    #[error("{0}")]
    Failed(String),
    /// Somebody cancelled it.
    #[error("{0}")]
    Cancelled(String),
}

impl Failure {
    pub(crate) fn usage(text: impl ToString) -> Self {
        Failure::Usage(text.to_string())
    }

    pub(crate) fn failed(text: impl ToString) -> Self {
        Failure::Failed(text.to_string())
    }

    pub(crate) fn exit(&self) -> Exit {
        match self {
            Failure::Usage(_) => Exit::Usage,
            Failure::Failed(_) => Exit::Failed,
            Failure::Cancelled(_) => Exit::Cancelled,
        }
    }
}

/// The exit code for a task that has ended; `None` while it has not.
pub(crate) fn exit_of(status: LifecycleStatus) -> Option<Exit> {
    match status {
        LifecycleStatus::Finished => Some(Exit::Finished),
        LifecycleStatus::Failed => Some(Exit::Failed),
        LifecycleStatus::Cancelled => Some(Exit::Cancelled),
        _ => None,
    }
}
