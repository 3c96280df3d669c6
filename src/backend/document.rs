//! What every storage agrees on about a task's document: its size, and how its status is written.

use super::{BackendError, MAX_DOCUMENT};
use crate::core::task::{LifecycleStatus, Task};

/// A page of documents ends early when they pass this.
pub(crate) const PAGE_BYTES: usize = 32 << 20;

/// The document as JSON.
///
/// # Errors
/// `Full` when it is larger than [`MAX_DOCUMENT`].
pub(crate) fn to_json(task: &Task) -> Result<String, BackendError> {
    let document = serde_json::to_string(task).map_err(|error| BackendError::Corrupt {
        what: format!("task {:?}", task.id),
        reason: format!("it cannot be written as JSON: {error}"),
    })?;
    if document.len() > MAX_DOCUMENT {
        return Err(BackendError::Full {
            what: format!("the document of task {:?} ({} bytes)", task.id, document.len()),
            limit: format!("{MAX_DOCUMENT} bytes"),
            hint: "keep large attachments, checkpoints and results elsewhere and store their address".into(),
        });
    }
    Ok(document)
}

const STATUSES: [LifecycleStatus; 7] = [
    LifecycleStatus::Created,
    LifecycleStatus::Assigning,
    LifecycleStatus::Running,
    LifecycleStatus::Paused,
    LifecycleStatus::Finished,
    LifecycleStatus::Failed,
    LifecycleStatus::Cancelled,
];

/// The wire's name.
pub(crate) fn status_name(status: LifecycleStatus) -> &'static str {
    match status {
        LifecycleStatus::Created => "Created",
        LifecycleStatus::Assigning => "Assigning",
        LifecycleStatus::Running => "Running",
        LifecycleStatus::Paused => "Paused",
        LifecycleStatus::Finished => "Finished",
        LifecycleStatus::Failed => "Failed",
        LifecycleStatus::Cancelled => "Cancelled",
    }
}

pub(crate) fn status_of(name: &str) -> Option<LifecycleStatus> {
    STATUSES.into_iter().find(|status| status_name(*status) == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_names_are_those_of_the_wire() {
        for status in STATUSES {
            assert_eq!(serde_json::to_value(status).unwrap(), status_name(status));
            assert_eq!(status_of(status_name(status)), Some(status));
        }
    }

    #[test]
    fn the_document_is_bounded_and_the_bound_is_named() {
        let mut task = Task::new("big", "Copy", 0);
        task.description = Some("x".repeat(MAX_DOCUMENT));
        let error = to_json(&task).err().unwrap().to_string();
        assert!(error.contains("\"big\"") && error.contains("1048576 bytes"), "{error}");
    }
}
