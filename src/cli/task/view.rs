//! A task as an API shows it: ours with everything, a Python controller's with less.

use crate::core::task::{Extra, LifecycleStatus, Millis};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::cli::exit::Failure;

/// What is shown of a task. Only what every controller sends is required.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TaskView {
    pub(super) id: String,
    pub(super) class_name: String,
    pub(super) lifecycle_status: LifecycleStatus,
    #[serde(default)]
    pub(super) executor: Option<String>,
    #[serde(default)]
    pub(super) name: Option<String>,
    #[serde(default)]
    pub(super) description: Option<String>,
    #[serde(default)]
    pub(super) source: Option<String>,
    #[serde(default)]
    pub(super) dependencies: Option<Vec<String>>,
    #[serde(default)]
    pub(super) create_date_time: Millis,
    #[serde(default)]
    pub(super) update_date_time: Millis,
    #[serde(default)]
    pub(super) deadline_date_time: Millis,
    #[serde(default)]
    pub(super) priority: i64,
    #[serde(default)]
    pub(super) attachments: Option<Map<String, Value>>,
    #[serde(default)]
    pub(super) error: Option<String>,
    #[serde(default)]
    pub(super) exception: Option<String>,
    #[serde(default)]
    pub(super) skalds: Extra,
}

impl TaskView {
    pub(super) fn read(body: &Value) -> Result<Self, Failure> {
        TaskView::deserialize(body).map_err(|error| {
            Failure::failed(format!("the controller sent a task that cannot be read: {error}"))
        })
    }
}
