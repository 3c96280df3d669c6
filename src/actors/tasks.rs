//! How a stored task is changed: read, ask the one transition table, compare and set, again when somebody was faster.

use std::sync::Arc;

use super::clock::Clock;
use super::notice::{Notice, Notices};
use crate::backend::{BackendError, DiskStorage, Stored};
use crate::core::lifecycle::{Change, Refused, apply};
use crate::core::order::Untold;
use crate::core::policy::Retry;
use crate::core::submission::InvalidTask;
use crate::core::task::{Millis, Task};

/// How often a change is tried against others that change the same task at the same time.
const MAX_ROUNDS: usize = 64;

/// Why a task was not made, found or changed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// No such task.
    #[error("there is no task {0:?}")]
    Missing(String),
    /// The id is in use.
    #[error("there is already a task {0:?}; choose another id, or requeue that one")]
    Taken(String),
    /// The submission cannot be used.
    #[error(transparent)]
    Invalid(#[from] InvalidTask),
    /// The lifecycle has no such transition.
    #[error("task {id:?}: {refused}")]
    Refused {
        /// The task.
        id: String,
        /// Why.
        refused: Refused,
    },
    /// Others changed the task each time; nothing was written.
    #[error("task {0:?} is changed by others all the time; try again")]
    Contended(String),
    /// Storage, events or cache did not do their part.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// What became of a change.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // it lives for a moment, and the task is what everyone wants
pub(crate) enum Changed {
    /// Written: this is the document now.
    Done(Task),
    /// Refused by the lifecycle of this document.
    Refused(Refused, Task),
    /// There is no such task any more.
    Missing,
}

/// The stored tasks, with the rules. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Tasks {
    pub(crate) storage: Arc<dyn DiskStorage>,
    pub(crate) notices: Arc<Notices>,
    pub(crate) retry: Arc<Retry>,
    pub(crate) clock: Clock,
    /// Changes count only in this term of leadership; `None`: they are an operator's or a holder's, of no term.
    pub(crate) term: Option<u64>,
}

impl Tasks {
    /// The same, for changes that a leader decides.
    pub(crate) fn in_term(&self, term: u64) -> Self {
        Tasks { term: Some(term), ..self.clone() }
    }

    async fn replace(&self, next: &Task, seen: &Task) -> Result<Stored, BackendError> {
        match self.term {
            Some(term) => self.storage.replace_in_term(next, seen, term).await,
            None => self.storage.replace(next, seen).await,
        }
    }

    /// Changes the task with this id.
    pub(crate) async fn change(&self, id: &str, change: &Change) -> Result<Task, TaskError> {
        let Some(task) = self.storage.get(id).await? else { return Err(TaskError::Missing(id.into())) };
        self.change_from(task, change).await.and_then(|changed| changed.into_result(id))
    }

    /// As [`Tasks::change`], beginning with a document that was read before.
    pub(crate) async fn change_from(&self, task: Task, change: &Change) -> Result<Changed, TaskError> {
        self.change_all(task, std::slice::from_ref(change)).await
    }

    /// Several changes in one write: all or none.
    pub(crate) async fn change_all(&self, task: Task, changes: &[Change]) -> Result<Changed, TaskError> {
        self.change_marked(task, changes, |_, _| None).await
    }

    /// As [`Tasks::change_all`], and with the order that goes with it as a mark in the same write. `mark` is given the
    /// document before the changes, and now.
    pub(crate) async fn change_marked(
        &self,
        mut task: Task,
        changes: &[Change],
        mark: impl Fn(&Task, Millis) -> Option<Untold>,
    ) -> Result<Changed, TaskError> {
        for _ in 0..MAX_ROUNDS {
            let now = self.clock.now_millis();
            let mut next = task.clone();
            for change in changes {
                match apply(&next, change, now, &self.retry) {
                    Ok(changed) => next = changed,
                    Err(refused) => return Ok(Changed::Refused(refused, task)),
                }
            }
            // Who wants what is so already changes nothing.
            let before = std::mem::replace(&mut next.update_date_time, task.update_date_time);
            if next == task {
                return Ok(Changed::Done(task));
            }
            next.update_date_time = before;
            if let Some(untold) = mark(&task, now) {
                next.skalds.untold = Some(untold); // instead of an older one, which it outranks
            }
            match self.replace(&next, &task).await? {
                Stored::Done => {
                    next.skalds.revision = task.skalds.revision.saturating_add(1); // as the adapter has written it
                    self.notices.post(Notice::task(&next));
                    return Ok(Changed::Done(next));
                }
                Stored::Stale(current) => task = current,
                Stored::Missing => return Ok(Changed::Missing),
            }
        }
        Err(TaskError::Contended(task.id))
    }
}

impl Tasks {
    /// Removes the mark of an order that was sent, or that need not be sent any more. Says what the task is now; `None`
    /// when it is gone.
    pub(crate) async fn told(&self, mut task: Task) -> Result<Option<Task>, TaskError> {
        let untold = task.skalds.untold.clone();
        for _ in 0..MAX_ROUNDS {
            if task.skalds.untold.is_none() || task.skalds.untold != untold {
                return Ok(Some(task)); // somebody else removed it, or there is a newer one
            }
            let mut next = task.clone();
            next.skalds.untold = None;
            match self.replace(&next, &task).await? {
                Stored::Done => {
                    next.skalds.revision = task.skalds.revision.saturating_add(1);
                    self.notices.post(Notice::task(&next));
                    return Ok(Some(next));
                }
                Stored::Stale(current) => task = current,
                Stored::Missing => return Ok(None),
            }
        }
        Err(TaskError::Contended(task.id))
    }
}

impl Changed {
    pub(crate) fn into_result(self, id: &str) -> Result<Task, TaskError> {
        match self {
            Changed::Done(task) => Ok(task),
            Changed::Refused(refused, _) => Err(TaskError::Refused { id: id.into(), refused }),
            Changed::Missing => Err(TaskError::Missing(id.into())),
        }
    }
}
