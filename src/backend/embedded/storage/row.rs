//! A task as a row: the document, and beside it the columns that are asked for.

use crate::backend::BackendError;
use crate::backend::document::{self, status_name};
use crate::core::task::{Millis, Task};

/// Between the fields of the search text: no word that somebody looks for holds it.
const SEPARATOR: char = '\u{1f}';

/// What is written for one task.
pub(super) struct Row {
    pub(super) id: String,
    pub(super) revision: i64,
    pub(super) status: &'static str,
    pub(super) class: String,
    pub(super) executor: Option<String>,
    pub(super) priority: u8,
    pub(super) created: Millis,
    /// Not before this time; the smallest number when any time is right.
    pub(super) due: Millis,
    pub(super) search: String,
    pub(super) document: String,
    /// Since when an order waits to be sent.
    pub(super) untold: Option<Millis>,
}

impl Row {
    /// # Errors
    /// `Full` when the document is larger than [`crate::backend::MAX_DOCUMENT`].
    pub(super) fn of(task: &Task) -> Result<Row, BackendError> {
        let document = document::to_json(task)?;
        let due = task.skalds.next_attempt_at.max(task.skalds.not_before);
        let texts = [Some(&task.id), Some(&task.class_name), task.name.as_ref(), task.description.as_ref()];
        let search = texts.into_iter().flatten().fold(String::new(), |mut all, text| {
            all.push_str(&fold(text));
            all.push(SEPARATOR);
            all
        });
        Ok(Row {
            id: task.id.clone(),
            revision: signed(task.skalds.revision),
            status: status_name(task.lifecycle_status),
            class: task.class_name.clone(),
            executor: task.executor.clone(),
            priority: task.priority,
            created: task.create_date_time,
            due: due.unwrap_or(Millis::MIN),
            search,
            document,
            untold: task.skalds.untold.as_ref().map(|untold| untold.at),
        })
    }
}

/// A revision as SQLite stores it. No task is changed 2^63 times.
pub(super) fn signed(revision: u64) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}

/// Text without its case, letter by letter, so that a part of a text folds to a part of the folded text.
pub(super) fn fold(text: &str) -> String {
    text.chars().flat_map(char::to_lowercase).collect()
}

/// Reads a document back. `what` names it in the error.
pub(super) fn task_of(document: &str, what: impl FnOnce() -> String) -> Result<Task, BackendError> {
    serde_json::from_str(document)
        .map_err(|error| BackendError::Corrupt { what: what(), reason: error.to_string() })
}
