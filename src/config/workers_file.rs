//! The YAML file of an edge or single-process Skald.
//!
//! ```yaml
//! TaskWorkers:
//!   TaskWorker1:            # the task id
//!     className: MyWorker
//!     isPersistent: true
//!     attachments: { rtspUrl: "rtsp://…", fixFrame: 30 }
//! ```

use std::fmt;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::core::names::check_name;
use crate::core::submission::check_attachments;
use crate::core::task::{LifecycleStatus, Millis, Task, TaskMode};

/// One worker of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WorkerEntry {
    /// The worker class.
    #[serde(alias = "class_name")]
    pub class_name: String,
    /// `single_process`: run again after the end (like a Deployment) or exit with it (like a Job).
    #[serde(default = "yes", alias = "is_persistent")]
    pub is_persistent: bool,
    /// The worker's own parameters, by alias or by field name.
    #[serde(default)]
    pub attachments: Option<Map<String, Value>>,
    /// For people.
    #[serde(default)]
    pub name: Option<String>,
    /// For people.
    #[serde(default)]
    pub description: Option<String>,
}

/// A file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {reason}")]
pub struct BadWorkersFile {
    file: String,
    reason: String,
}

/// Reads the text of a workers file: task ids and workers, in the file's order. `file` names it in errors.
pub fn parse(file: &str, text: &str) -> Result<Vec<(String, WorkerEntry)>, BadWorkersFile> {
    let bad = |reason: String| BadWorkersFile { file: file.to_owned(), reason };
    let document: Option<Document> = serde_saphyr::from_str(text).map_err(|error| bad(error.to_string()))?;
    let workers = document.and_then(|document| document.workers).map(|entries| entries.0).unwrap_or_default();
    if workers.is_empty() {
        return Err(bad("there is no worker in it; expected `TaskWorkers:` with a task id per entry".into()));
    }
    for (id, worker) in &workers {
        check_name("task id", id).map_err(|error| bad(error.to_string()))?;
        check_name("className", &worker.class_name).map_err(|error| bad(format!("{id}: {error}")))?;
        check_attachments(worker.attachments.as_ref()).map_err(|error| bad(format!("{id}: {error}")))?;
    }
    Ok(workers)
}

impl WorkerEntry {
    /// The task that this worker stands for. It has no deadline, as the Python package has it.
    pub fn into_task(self, id: &str, mode: TaskMode, now: Millis) -> Task {
        Task {
            source: "YAML".into(),
            name: Some(self.name.unwrap_or_else(|| id.to_owned())),
            description: self.description,
            mode,
            is_persistent: self.is_persistent,
            deadline_date_time: 0,
            lifecycle_status: LifecycleStatus::Created,
            attachments: self.attachments,
            ..Task::new(id, self.class_name, now)
        }
    }
}

fn yes() -> bool {
    true
}

/// Other top-level keys are left alone: files keep anchors there.
#[derive(Deserialize)]
struct Document {
    #[serde(default, rename = "TaskWorkers", alias = "taskWorkers", alias = "task_workers")]
    workers: Option<Entries>,
}

struct Entries(Vec<(String, WorkerEntry)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of task ids to workers")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries: Vec<(String, WorkerEntry)> = Vec::new();
                while let Some((id, worker)) = map.next_entry::<String, WorkerEntry>()? {
                    if entries.iter().any(|(other, _)| *other == id) {
                        return Err(serde::de::Error::custom(format!("task id {id:?} is there twice")));
                    }
                    entries.push((id, worker));
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_python_packages_files_are_read() {
        let workers = parse(
            "w.yml",
            r#"
TaskWorkers:
  TaskWorker2:
    className: MyWorker
    isPersistent: false
    attachments: { rtspUrl: "rtsp://a", fixFrame: 30, nested: { list: [1, 2.5, true, null] } }
  TaskWorker1:
    class_name: Other
    attachments:
"#,
        )
        .unwrap();
        assert_eq!(workers.len(), 2);
        assert_eq!((workers[0].0.as_str(), workers[0].1.is_persistent), ("TaskWorker2", false));
        assert_eq!(
            serde_json::to_string(&workers[0].1.attachments).unwrap(),
            r#"{"rtspUrl":"rtsp://a","fixFrame":30,"nested":{"list":[1,2.5,true,null]}}"#
        );
        assert_eq!((workers[1].1.class_name.as_str(), workers[1].1.is_persistent), ("Other", true));
        let task = workers[0].1.clone().into_task("TaskWorker2", TaskMode::Active, 5);
        assert_eq!((task.source.as_str(), task.deadline_date_time, task.mode), ("YAML", 0, TaskMode::Active));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        for (text, says) in [
            ("", "there is no worker in it"),
            ("TaskWorkers:\n", "there is no worker in it"),
            ("TaskWorkers:\n  a:\n    className: C\n    clasName: D\n", "clasName"),
            ("TaskWorkers:\n  a:\n    isPersistent: true\n", "className"),
            ("TaskWorkers:\n  a:\n    className: C\n    isPersistent: sometimes\n", "line 4"),
            ("TaskWorkers:\n  a:\n    className: C\n    attachments: [1]\n", "line 4"),
            ("TaskWorkers: [\n", "line"),
            ("TaskWorkers:\n  a: { className: C }\n  a: { className: D }\n", "a"),
            ("TaskWorkers:\n  \"\": { className: C }\n", "task id is empty"),
            ("TaskWorkers: 7\n", "map"),
        ] {
            let error = parse("w.yml", text).expect_err(text).to_string();
            assert!(error.starts_with("w.yml: ") && error.contains(says), "{error:?} should say {says:?}");
        }
    }
}
