//! What a user submits, and what is refused before it becomes a task.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::names::{NameError, check_name};
use super::schedule::{ScheduleError, next_tick};
use super::task::{DEFAULT_DEADLINE, Extra, LifecycleStatus, Millis, Task, TaskMode};

/// The largest attachments, in bytes of JSON. Together with checkpoint and result they fit into what storage takes.
pub const MAX_ATTACHMENTS: usize = 512 << 10;
/// The largest checkpoint, in bytes of JSON.
pub const MAX_CHECKPOINT: usize = 256 << 10;
/// The largest result, in bytes of JSON.
pub const MAX_RESULT: usize = 192 << 10;
/// The longest name or description, in bytes.
pub const MAX_TEXT: usize = 4_096;
/// The most dependencies of one task.
pub const MAX_DEPENDENCIES: usize = 256;
/// The highest priority.
pub const MAX_PRIORITY: u8 = 10;

/// A task to be made. JSON uses these names in camelCase; readers accept snake_case too.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct NewTask {
    /// Unique; a new UUID when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The worker class that runs it.
    #[serde(alias = "class_name")]
    pub class_name: String,
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Where it comes from; `api` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Tasks that must be `Finished` first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dependencies: Vec<String>,
    /// 0 (lowest) to 10.
    pub priority: u8,
    /// The worker's own parameters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attachments: Option<Map<String, Value>>,
    /// When it fails if it has not ended; 0 is never, absent is seven days after it may start.
    #[serde(skip_serializing_if = "Option::is_none", alias = "deadline_date_time")]
    pub deadline_date_time: Option<Millis>,
    /// Attempts allowed; negative is without limit, absent is the system's default.
    #[serde(skip_serializing_if = "Option::is_none", alias = "max_attempts")]
    pub max_attempts: Option<i64>,
    /// Not started before this time.
    #[serde(skip_serializing_if = "Option::is_none", alias = "not_before")]
    pub not_before: Option<Millis>,
    /// Started at each tick of this cron expression (UTC).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
}

/// Why a submission is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidTask {
    /// An id or a class name that cannot be used.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A schedule that cannot be used.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// A value out of its range.
    #[error("{field} is {value}, expected {expected}")]
    OutOfRange {
        /// Which.
        field: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        expected: String,
    },
    /// It waits for itself.
    #[error("task {0:?} depends on itself")]
    DependsOnItself(String),
}

impl NewTask {
    /// A task of this class, to be started as soon as possible.
    pub fn new(class_name: impl Into<String>) -> Self {
        NewTask { class_name: class_name.into(), ..NewTask::default() }
    }

    /// With this id.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// With one more attachment.
    pub fn attach(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.attachments.get_or_insert_default().insert(name.into(), value.into());
        self
    }

    /// Checks it and makes the document. `id` is used where the submission names none.
    pub fn into_task(self, id: impl FnOnce() -> String, now: Millis) -> Result<Task, InvalidTask> {
        let id = self.id.unwrap_or_else(id);
        check_name("task id", &id)?;
        check_name("class name", &self.class_name)?;
        for dependency in &self.dependencies {
            check_name("dependency", dependency)?;
            if *dependency == id {
                return Err(InvalidTask::DependsOnItself(id));
            }
        }
        at_most("number of dependencies", self.dependencies.len(), MAX_DEPENDENCIES)?;
        at_most("priority", usize::from(self.priority), usize::from(MAX_PRIORITY))?;
        for (field, text) in
            [("name", &self.name), ("description", &self.description), ("source", &self.source)]
        {
            at_most_bytes(field, text.as_ref().map_or(0, String::len), MAX_TEXT)?;
        }
        check_attachments(self.attachments.as_ref())?;
        let not_before = match &self.cron {
            Some(cron) => Some(next_tick(cron, self.not_before.unwrap_or(now).max(now))?),
            None => self.not_before,
        };
        let deadline = match self.deadline_date_time {
            Some(deadline) if deadline != 0 && deadline <= not_before.unwrap_or(now).max(now) => {
                return Err(InvalidTask::OutOfRange {
                    field: "deadlineDateTime",
                    value: deadline.to_string(),
                    expected: "0 (never) or milliseconds after the task may start".into(),
                });
            }
            Some(deadline) => deadline,
            None => not_before.unwrap_or(now).max(now).saturating_add(DEFAULT_DEADLINE),
        };
        if self.max_attempts == Some(0) {
            return Err(InvalidTask::OutOfRange {
                field: "maxAttempts",
                value: "0".into(),
                expected: "at least 1, or negative for no limit".into(),
            });
        }
        Ok(Task {
            source: self.source.unwrap_or_else(|| "api".into()),
            name: self.name,
            description: self.description,
            dependencies: (!self.dependencies.is_empty()).then_some(self.dependencies),
            mode: TaskMode::Passive,
            deadline_date_time: deadline,
            lifecycle_status: LifecycleStatus::Created,
            priority: self.priority,
            attachments: self.attachments,
            skalds: Extra {
                max_attempts: self.max_attempts,
                not_before,
                cron: self.cron,
                ..Extra::default()
            },
            ..Task::new(id, self.class_name, now)
        })
    }
}

/// Refuses attachments that are too large.
pub fn check_attachments(attachments: Option<&Map<String, Value>>) -> Result<(), InvalidTask> {
    attachments.map_or(Ok(()), |attachments| check_size("attachments", attachments, MAX_ATTACHMENTS))
}

/// Refuses a document of more than `limit` bytes of JSON.
pub fn check_size(field: &'static str, document: &impl Serialize, limit: usize) -> Result<(), InvalidTask> {
    let mut count = ByteCount(0);
    // cannot fail: the writer never refuses, and what is counted here are JSON values. A failure would count as 0.
    let _ = serde_json::to_writer(&mut count, document);
    at_most_bytes(field, count.0, limit)
}

struct ByteCount(usize);

impl std::io::Write for ByteCount {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn at_most(field: &'static str, value: usize, limit: usize) -> Result<(), InvalidTask> {
    if value <= limit {
        return Ok(());
    }
    Err(InvalidTask::OutOfRange { field, value: value.to_string(), expected: format!("0 to {limit}") })
}

fn at_most_bytes(field: &'static str, value: usize, limit: usize) -> Result<(), InvalidTask> {
    if value <= limit {
        return Ok(());
    }
    let (value, expected) = (format!("{value} bytes long"), format!("at most {limit}"));
    Err(InvalidTask::OutOfRange { field, value, expected })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Millis = 1_767_225_600_000;

    fn make(task: NewTask) -> Result<Task, InvalidTask> {
        task.into_task(|| "made-up".into(), NOW)
    }

    #[test]
    fn a_bare_submission_gets_the_defaults() {
        let task = make(NewTask::new("MyWorker")).unwrap();
        assert_eq!(task, Task { source: "api".into(), ..Task::new("made-up", "MyWorker", NOW) });
    }

    #[test]
    fn both_spellings_are_read_and_strangers_refused() {
        let camel: NewTask =
            serde_json::from_str(r#"{"className":"C","maxAttempts":2,"attachments":{"a":1}}"#).unwrap();
        let snake: NewTask =
            serde_json::from_str(r#"{"class_name":"C","max_attempts":2,"attachments":{"a":1}}"#).unwrap();
        assert_eq!(camel, snake);
        assert_eq!(camel, NewTask { max_attempts: Some(2), ..NewTask::new("C").attach("a", 1) });
        let error = serde_json::from_str::<NewTask>(r#"{"className":"C","priorty":2}"#).unwrap_err();
        assert!(error.to_string().contains("unknown field `priorty`"), "{error}");
    }

    #[test]
    fn bad_submissions_are_refused_by_field() {
        let class = || NewTask::new("C");
        for (bad, says) in [
            (NewTask::default(), "class name is empty"),
            (class().id("a\nb"), "task id"),
            (NewTask { priority: 11, ..class() }, "priority is 11, expected 0 to 10"),
            (NewTask { cron: Some("nope".into()), ..class() }, "cron expression \"nope\""),
            (NewTask { deadline_date_time: Some(NOW), ..class() }, "deadlineDateTime"),
            (NewTask { max_attempts: Some(0), ..class() }, "maxAttempts is 0"),
            (NewTask { dependencies: vec!["x".into()], ..class().id("x") }, "depends on itself"),
            (class().attach("a", "x".repeat(MAX_ATTACHMENTS)), "attachments is 524296 bytes long"),
            (NewTask { name: Some("x".repeat(5_000)), ..class() }, "name is 5000 bytes long"),
        ] {
            let error = make(bad).unwrap_err().to_string();
            assert!(error.contains(says), "{error:?} should say {says:?}");
        }
    }

    #[test]
    fn a_schedule_waits_for_its_first_tick() {
        let task = make(NewTask { cron: Some("0 * * * *".into()), ..NewTask::new("C") }).unwrap();
        assert_eq!(task.skalds.not_before, Some(NOW + 3_600_000));
        assert_eq!(task.deadline_date_time, NOW + 3_600_000 + DEFAULT_DEADLINE);
    }

    #[test]
    fn the_document_has_the_fields_of_the_wire_in_their_order() {
        let mut task =
            make(NewTask::new("MyWorker").id("task_1").attach("rtspUrl", "rtsp://a").attach("fixFrame", 30))
                .unwrap();
        assert_eq!(
            serde_json::to_string(&task).unwrap(),
            r#"{"id":"task_1","className":"MyWorker","source":"api","name":null,"description":null,"executor":null,"dependencies":null,"mode":"Passive","isPersistent":true,"createDateTime":1767225600000,"updateDateTime":1767225600000,"deadlineDateTime":1767830400000,"lifecycleStatus":"Created","priority":0,"attachments":{"rtspUrl":"rtsp://a","fixFrame":30}}"#
        );
        task.skalds.attempt = 1;
        assert!(serde_json::to_string(&task).unwrap().ends_with(r#","skalds":{"attempt":1}}"#));
        let snake = r#"{"id":"t","class_name":"C","source":"YAML","is_persistent":false,"create_date_time":1,"update_date_time":2,"deadline_date_time":3,"lifecycle_status":"Running"}"#;
        let task: Task = serde_json::from_str(snake).unwrap();
        assert_eq!((task.class_name.as_str(), task.is_persistent, task.deadline_date_time), ("C", false, 3));
    }
}
