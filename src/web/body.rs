//! What requests and answers look like. Field names are the Python controller's.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::error::ApiError;
use crate::actors::controller::TaskHeartbeat;
use crate::backend::{TaskOrder, TaskQuery};
use crate::core::task::{LifecycleStatus, Task};

/// The most tasks on one page.
const MAX_PAGE_SIZE: u64 = 100;

const STATUSES: [LifecycleStatus; 7] = [
    LifecycleStatus::Created,
    LifecycleStatus::Assigning,
    LifecycleStatus::Running,
    LifecycleStatus::Paused,
    LifecycleStatus::Finished,
    LifecycleStatus::Failed,
    LifecycleStatus::Cancelled,
];

/// A task in an answer: the document, and what its worker last said.
#[derive(Debug, Serialize)]
pub(crate) struct TaskBody {
    #[serde(flatten)]
    task: Task,
    /// 0–199 while it runs, 200 finished, -1 failed, -2 cancelled; 0 as well when nothing is known.
    heartbeat: i32,
    /// What it complains of while it goes on.
    error: Option<String>,
    /// What it failed with.
    exception: Option<String>,
}

impl TaskBody {
    pub(crate) fn new(mut task: Task, shown: TaskHeartbeat) -> Self {
        // Clients of the Python controller expect an object.
        task.attachments.get_or_insert_default();
        let exception = shown.exception.or_else(|| task.skalds.last_error.clone());
        TaskBody { task, heartbeat: shown.heartbeat.unwrap_or(0), error: shown.error, exception }
    }
}

/// A page of tasks.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TaskPageBody {
    pub(crate) items: Vec<TaskBody>,
    pub(crate) total: u64,
    pub(crate) page: u64,
    pub(crate) page_size: u64,
}

/// Something was done.
#[derive(Debug, Serialize)]
pub(crate) struct Done {
    success: bool,
    message: String,
    data: Value,
}

impl Done {
    pub(crate) fn new(message: impl Into<String>, data: Value) -> Self {
        Done { success: true, message: message.into(), data }
    }
}

/// Which tasks, which page. Filters by status, class and id are met by a part of the word, whatever its case.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct TaskFilter {
    page: Option<u64>,
    page_size: Option<u64>,
    lifecycle_status: Option<String>,
    class_name: Option<String>,
    executor: Option<String>,
    /// A part of the id, name, description or class.
    id: Option<String>,
}

impl TaskFilter {
    /// The page that was asked for, from 1, and its size.
    pub(crate) fn page(&self) -> Result<(u64, u64), ApiError> {
        let page = self.page.unwrap_or(1);
        let size = self.page_size.unwrap_or(20);
        if page < 1 {
            return Err(ApiError::invalid(&["query", "page"], "expected at least 1"));
        }
        if !(1..=MAX_PAGE_SIZE).contains(&size) {
            return Err(ApiError::invalid(&["query", "pageSize"], format!("expected 1 to {MAX_PAGE_SIZE}")));
        }
        Ok((page, size))
    }

    /// Whether the classes that exist are needed to make the query.
    pub(crate) fn names_a_class(&self) -> bool {
        given(&self.class_name).is_some()
    }

    /// The query; `None` when no task can match. `classes` are those that exist.
    pub(crate) fn query(&self, classes: &[String]) -> Result<Option<TaskQuery>, ApiError> {
        let (page, size) = self.page()?;
        let mut query = TaskQuery {
            executor: given(&self.executor).map(str::to_owned),
            text: given(&self.id).map(str::to_owned),
            order: TaskOrder::Newest,
            offset: (page - 1).saturating_mul(size),
            limit: size,
            ..TaskQuery::default()
        };
        if let Some(part) = given(&self.lifecycle_status) {
            query.statuses =
                STATUSES.into_iter().filter(|status| contains(&format!("{status:?}"), part)).collect();
            if query.statuses.is_empty() {
                return Ok(None);
            }
        }
        if let Some(part) = given(&self.class_name) {
            query.class_names = classes.iter().filter(|class| contains(class, part)).cloned().collect();
            if query.class_names.is_empty() {
                return Ok(None);
            }
        }
        Ok(Some(query))
    }
}

/// An empty filter is none: forms send them.
fn given(filter: &Option<String>) -> Option<&str> {
    filter.as_deref().filter(|text| !text.is_empty())
}

fn contains(text: &str, part: &str) -> bool {
    text.to_lowercase().contains(&part.to_lowercase())
}

/// `PUT /api/tasks/{id}/status`.
#[derive(Debug, Deserialize)]
pub(crate) struct StatusBody {
    #[serde(rename = "lifecycleStatus", alias = "lifecycle_status")]
    pub(crate) lifecycle_status: String,
}

/// What an operator wants of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    Cancel,
    Requeue,
    Pause,
    Resume,
}

impl StatusBody {
    /// What is wanted of a task that stands at `now`. `Created` and `Cancelled` are the Python controller's (`Created`
    /// lets a paused task go on); `Paused` and `Running` are ours.
    pub(crate) fn wish(&self, now: LifecycleStatus) -> Result<Wish, ApiError> {
        Ok(match (self.lifecycle_status.as_str(), now) {
            ("Cancelled", _) => Wish::Cancel,
            ("Created", LifecycleStatus::Paused) | ("Running", _) => Wish::Resume,
            ("Created", _) => Wish::Requeue,
            ("Paused", _) => Wish::Pause,
            (other, _) => {
                let expected = "expected Created, Cancelled, Paused or Running";
                return Err(ApiError::invalid(
                    &["body", "lifecycleStatus"],
                    format!("{other:?}: {expected}"),
                ));
            }
        })
    }
}

/// `PUT /api/tasks/{id}/attachments`.
#[derive(Debug, Deserialize)]
pub(crate) struct AttachmentsBody {
    pub(crate) attachments: Map<String, Value>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn filter(pairs: Value) -> TaskFilter {
        serde_json::from_value(pairs).unwrap()
    }

    #[test]
    fn a_task_has_every_field_of_the_python_answer() {
        let mut task = Task::new("t", "C", 5);
        task.skalds.last_error = Some("boom".into());
        let body = serde_json::to_value(TaskBody::new(
            task,
            TaskHeartbeat { heartbeat: Some(7), ..Default::default() },
        ))
        .unwrap();
        for field in [
            "id",
            "className",
            "lifecycleStatus",
            "executor",
            "createDateTime",
            "updateDateTime",
            "mode",
            "attachments",
            "heartbeat",
            "error",
            "exception",
            "priority",
        ] {
            assert!(body.get(field).is_some(), "{field}");
        }
        assert_eq!((&body["attachments"], &body["heartbeat"]), (&json!({}), &json!(7)));
        assert_eq!((&body["exception"], &body["error"]), (&json!("boom"), &json!(null)));
    }

    #[test]
    fn filters_match_a_part_of_a_word() {
        let classes = ["Resize".to_owned(), "VideoWorker".into(), "AudioWorker".into()];
        let query =
            filter(json!({"lifecycleStatus": "cAn", "className": "worker", "page": 3, "pageSize": 10}));
        let query = query.query(&classes).unwrap().unwrap();
        assert_eq!(query.statuses, [LifecycleStatus::Cancelled]);
        assert_eq!(query.class_names, ["VideoWorker", "AudioWorker"]);
        assert_eq!((query.offset, query.limit), (20, 10));
        assert_eq!(filter(json!({"className": "nobody"})).query(&classes), Ok(None));
        assert_eq!(filter(json!({"lifecycleStatus": "Asleep"})).query(&classes), Ok(None));
        let all = filter(json!({"className": "", "lifecycleStatus": ""})).query(&classes).unwrap().unwrap();
        assert!(all.class_names.is_empty() && all.statuses.is_empty());
    }

    #[test]
    fn pages_have_bounds() {
        assert_eq!(filter(json!({})).page(), Ok((1, 20)));
        for wrong in [json!({"page": 0}), json!({"pageSize": 0}), json!({"pageSize": 101})] {
            assert!(matches!(filter(wrong).page(), Err(ApiError::Invalid { .. })));
        }
        let far = filter(json!({"page": u64::MAX})).query(&[]).unwrap().unwrap();
        assert_eq!(far.offset, u64::MAX);
    }

    #[test]
    fn a_status_is_a_wish() {
        let wish = |word: &str, now| StatusBody { lifecycle_status: word.into() }.wish(now);
        assert_eq!(wish("Cancelled", LifecycleStatus::Running), Ok(Wish::Cancel));
        assert_eq!(wish("Created", LifecycleStatus::Failed), Ok(Wish::Requeue));
        assert_eq!(wish("Created", LifecycleStatus::Paused), Ok(Wish::Resume));
        assert_eq!(wish("Paused", LifecycleStatus::Running), Ok(Wish::Pause));
        assert!(matches!(wish("Finished", LifecycleStatus::Running), Err(ApiError::Invalid { .. })));
    }
}
