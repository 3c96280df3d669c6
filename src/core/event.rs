//! What travels in events and beside heartbeats, in the Python package's spelling.
//!
//! Python writes some of these by alias (`taskIds`) and some by field name (`task_ids`): both are read, and the
//! alias is written, except where Python's readers know only the field name.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use super::task::Millis;

/// Something happened to tasks: the value of `task.assign`, `task.cancel` and `task.update.attachment`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskEvent {
    /// Of the event; by custom the task's.
    #[serde(default)]
    pub id: Option<String>,
    /// For people.
    #[serde(default)]
    pub title: Option<String>,
    /// Who sent it.
    #[serde(default)]
    pub initiator: Option<String>,
    /// Whom it is for.
    #[serde(default)]
    pub recipient: Option<String>,
    /// When it was made.
    #[serde(default, alias = "create_date_time")]
    pub create_date_time: Millis,
    /// When it last changed.
    #[serde(default, alias = "update_date_time")]
    pub update_date_time: Millis,
    /// The tasks.
    #[serde(alias = "task_ids")]
    pub task_ids: Vec<String>,
}

impl TaskEvent {
    /// An event about one task.
    pub fn about(task_id: &str, now: Millis) -> Self {
        TaskEvent {
            id: Some(task_id.to_owned()),
            create_date_time: now,
            update_date_time: now,
            task_ids: vec![task_id.to_owned()],
            ..TaskEvent::default()
        }
    }
}

/// New attachments for a running worker: the value of `taskworker.update`, whose key is the task id.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct UpdateTaskWorkerEvent {
    /// All of them, or nothing.
    #[serde(default)]
    pub attachments: Option<Map<String, Value>>,
}

/// What a Skald says of its tasks under [`super::names::skald_tasks`]. Python writes and reads field names here.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SkaldTasks {
    /// The tasks.
    #[serde(default)]
    pub tasks: Vec<SkaldTask>,
    /// Their ids.
    #[serde(default, alias = "existedTaskIds")]
    pub existed_task_ids: Vec<String>,
    /// When the list last changed.
    #[serde(default)]
    pub timestamp: Millis,
    /// How many tasks this Skald takes at most. Ours; Python's readers leave it alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u32>,
}

/// One task of [`SkaldTasks`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkaldTask {
    /// The task.
    pub id: String,
    /// Its worker class.
    #[serde(alias = "className")]
    pub class_name: String,
}

/// A message that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} is not readable: {reason}; it begins with {beginning:?}")]
pub struct Unreadable {
    what: &'static str,
    reason: String,
    beginning: String,
}

/// Reads one of these types. `what` names it in the error (`task.assign event`, …).
pub fn read<T: DeserializeOwned>(what: &'static str, bytes: &[u8]) -> Result<T, Unreadable> {
    serde_json::from_slice(bytes).map_err(|error| Unreadable {
        what,
        reason: error.to_string(),
        beginning: String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).into_owned(),
    })
}

/// Writes one of these types.
pub fn write<T: Serialize>(value: &T) -> Vec<u8> {
    // cannot fail: these types hold only strings, numbers and JSON values, and their map keys are strings.
    serde_json::to_vec(value).expect("plain data is JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    // Recorded from the Python package 0.3.8.
    const BY_ALIAS: &str = r#"{"id":"task_2","title":null,"initiator":null,"recipient":null,"createDateTime":1795967285145,"updateDateTime":1795967285145,"taskIds":["task_2"]}"#;
    const BY_NAME: &str = r#"{"id":null,"title":null,"initiator":null,"recipient":null,"create_date_time":1795967220873,"update_date_time":1795967220873,"task_ids":["task_1"]}"#;
    const WORKER_UPDATE: &str = r#"{"attachments":{"rtsp_url":"rtsp://NEW","fix_frame":41}}"#;
    const ALL_TASKS: &str = r#"{"tasks":[{"id":"task_1","class_name":"MyWorker"}],"existed_task_ids":["task_1"],"timestamp":1795967224128}"#;

    #[test]
    fn task_events_are_read_in_both_spellings_and_written_by_alias() {
        let event: TaskEvent = read("event", BY_ALIAS.as_bytes()).unwrap();
        assert_eq!(event, TaskEvent::about("task_2", 1_795_967_285_145));
        assert_eq!(write(&event), BY_ALIAS.as_bytes());

        let event: TaskEvent = read("event", BY_NAME.as_bytes()).unwrap();
        assert_eq!(
            event,
            TaskEvent { id: None, ..TaskEvent::about("task_1", 1_795_967_220_873) },
            "field names say the same"
        );
        assert_eq!(
            read::<TaskEvent>("event", br#"{"taskIds":["a","b"]}"#).unwrap().task_ids,
            ["a", "b"],
            "everything but the ids may be left out"
        );
    }

    #[test]
    fn worker_updates_and_task_lists_are_kept_as_they_are() {
        let update: UpdateTaskWorkerEvent = read("update", WORKER_UPDATE.as_bytes()).unwrap();
        assert_eq!(update.attachments.as_ref().unwrap()["fix_frame"], 41);
        assert_eq!(write(&update), WORKER_UPDATE.as_bytes());
        let none: UpdateTaskWorkerEvent = read("update", br#"{"attachments":null}"#).unwrap();
        assert_eq!(none.attachments, None);

        let list: SkaldTasks = read("list", ALL_TASKS.as_bytes()).unwrap();
        assert_eq!(list.tasks, [SkaldTask { id: "task_1".into(), class_name: "MyWorker".into() }]);
        assert_eq!(write(&list), ALL_TASKS.as_bytes());
        let camel =
            r#"{"tasks":[{"id":"t","className":"C"}],"existedTaskIds":["t"],"timestamp":1,"capacity":4}"#;
        let list: SkaldTasks = read("list", camel.as_bytes()).unwrap();
        assert_eq!((list.tasks[0].class_name.as_str(), list.capacity), ("C", Some(4)));
    }

    #[test]
    fn unreadable_messages_are_named() {
        for bad in
            [&b""[..], b"hello", b"{}", b"[]", br#"{"taskIds":"t"}"#, b"\xff\xfe", br#"{"taskIds":[1]}"#]
        {
            let error = read::<TaskEvent>("task.assign event", bad).expect_err("refused");
            assert!(error.to_string().starts_with("task.assign event is not readable: "), "{error}");
        }
        let long = format!("{}{}", "x".repeat(79), "é".repeat(1_000));
        assert!(read::<TaskEvent>("event", long.as_bytes()).unwrap_err().to_string().len() < 300);
    }
}
