//! Topics and cache keys, exactly as the Python package has them, and which ids may stand in them.

/// A controller has chosen a Skald for tasks.
pub const TASK_ASSIGN: &str = "task.assign";
/// Tasks are to be cancelled.
pub const TASK_CANCEL: &str = "task.cancel";
/// The attachments of tasks have changed.
pub const TASK_UPDATE_ATTACHMENT: &str = "task.update.attachment";
/// New attachments for the worker of one task.
pub const TASK_WORKER_UPDATE: &str = "taskworker.update";
/// Free text, logged by whoever listens.
pub const TESTING: &str = "testing";

/// Hash: Skald id → milliseconds of its last sign of life, by its own clock.
pub const SKALDS: &str = "skalds:hash";
/// Hash: Skald id → `node` or `edge`.
pub const SKALD_MODES: &str = "skalds:mode:hash";

/// String: which controller leads; see [`super::leadership`]. Python knows no leader.
pub const LEADER: &str = "skalds:leader";

/// String: a Skald's changing number, 0 to 199.
pub fn skald_heartbeat(skald_id: &str) -> String {
    format!("skalds:{skald_id}:heartbeat")
}

/// List: the worker classes that a Skald runs.
pub fn skald_classes(skald_id: &str) -> String {
    format!("skalds:{skald_id}:allow-task-class-name")
}

/// String: JSON of the tasks that a Skald runs; see [`super::event::SkaldTasks`].
pub fn skald_tasks(skald_id: &str) -> String {
    format!("skalds:{skald_id}:all-task")
}

/// String: a task's heartbeat; see [`super::lease::Heartbeat`].
pub fn task_heartbeat(task_id: &str) -> String {
    format!("task:{task_id}:heartbeat")
}

/// String: what a task complains of while it goes on; empty when it does not.
pub fn task_error(task_id: &str) -> String {
    format!("task:{task_id}:has-error")
}

/// String: what a task failed with; empty when it did not.
pub fn task_exception(task_id: &str) -> String {
    format!("task:{task_id}:exception")
}

/// The longest id of a task or a Skald, and the longest class name, in bytes: an actor's name holds an id and more.
pub const MAX_NAME: usize = 200;

/// Why a name cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// Nothing there.
    #[error("{what} is empty")]
    Empty {
        /// What the name is for.
        what: &'static str,
    },
    /// Longer than [`MAX_NAME`].
    #[error("{what} has {length} bytes, at most {MAX_NAME} are allowed")]
    TooLong {
        /// What the name is for.
        what: &'static str,
        /// Its length in bytes.
        length: usize,
    },
    /// A control character or white space at an end.
    #[error("{what} {name:?} contains a control character, or a space at one of its ends")]
    Character {
        /// What the name is for.
        what: &'static str,
        /// The name.
        name: String,
    },
}

/// Refuses names that would not survive a key, a URL or a terminal. `what` says what it is for (`task id`, …).
pub fn check_name(what: &'static str, name: &str) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty { what });
    }
    if name.len() > MAX_NAME {
        return Err(NameError::TooLong { what, length: name.len() });
    }
    if name.chars().any(char::is_control) || name.trim() != name {
        return Err(NameError::Character { what, name: name.to_owned() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_seen_on_the_wire() {
        assert_eq!(skald_heartbeat("skald-a"), "skalds:skald-a:heartbeat");
        assert_eq!(skald_classes("skald-a"), "skalds:skald-a:allow-task-class-name");
        assert_eq!(skald_tasks("skald-a"), "skalds:skald-a:all-task");
        assert_eq!(task_heartbeat("task_1"), "task:task_1:heartbeat");
        assert_eq!(task_error("task_1"), "task:task_1:has-error");
        assert_eq!(task_exception("task_1"), "task:task_1:exception");
    }

    #[test]
    fn names_are_checked() {
        for good in
            ["a", "task_1", "Zeitüberschreitung", "[SP]skalds-1a2b3", "with space", &"x".repeat(MAX_NAME)]
        {
            assert_eq!(check_name("task id", good), Ok(()), "{good:?}");
        }
        assert_eq!(check_name("task id", ""), Err(NameError::Empty { what: "task id" }));
        assert_eq!(
            check_name("task id", &"x".repeat(MAX_NAME + 1)),
            Err(NameError::TooLong { what: "task id", length: MAX_NAME + 1 })
        );
        for bad in ["a\nb", "a\0", "\u{1b}[31m", " a", "a "] {
            assert!(matches!(check_name("task id", bad), Err(NameError::Character { .. })), "{bad:?}");
        }
    }
}
