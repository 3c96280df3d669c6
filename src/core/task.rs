//! The task: one document, the same in MongoDB, in the embedded storage, in the API and for a Python peer.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::order::Untold;

/// Milliseconds since the Unix epoch.
pub type Millis = i64;

/// How long a task may take unless it says otherwise: seven days, as the Python package has it.
pub const DEFAULT_DEADLINE: Millis = 7 * 24 * 3_600_000;

/// Where a task stands. The only transitions are those of `core::lifecycle`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LifecycleStatus {
    /// Waits for its time, its dependencies, its next attempt or a Skald.
    Created,
    /// A Skald has been chosen and told.
    Assigning,
    /// A worker runs it.
    Running,
    /// Held by an operator; a worker keeps its place.
    Paused,
    /// Ended well.
    Finished,
    /// Ended with an error, and no attempt is left. (While one is left the task is `Created`.)
    Failed,
    /// Ended by an operator, for good: only an operator's explicit requeue starts it again.
    Cancelled,
}

/// Who starts a task. Names and meaning are the Python package's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum TaskMode {
    /// Started by the Skald that owns it (an edge Skald's YAML); never dispatched.
    Active,
    /// Dispatched by a controller.
    #[default]
    Passive,
    /// The single task of a `single_process` Skald.
    PassiveProcess,
}

/// A task document. JSON and BSON use these names in camelCase; readers accept snake_case too.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Task {
    /// Unique; also the Kafka key of every event about it.
    pub id: String,
    /// The worker class that runs it.
    #[serde(alias = "class_name")]
    pub class_name: String,
    /// Where it came from, free text (`YAML`, `api`, …).
    pub source: String,
    /// For people.
    #[serde(default)]
    pub name: Option<String>,
    /// For people.
    #[serde(default)]
    pub description: Option<String>,
    /// The id of the Skald that runs it or has been chosen to.
    #[serde(default)]
    pub executor: Option<String>,
    /// Ids of tasks that must be `Finished` before this one starts.
    #[serde(default)]
    pub dependencies: Option<Vec<String>>,
    /// Who starts it.
    #[serde(default)]
    pub mode: TaskMode,
    /// In `single_process`: restart after the end (true) or exit with it (false).
    #[serde(default = "yes", alias = "is_persistent")]
    pub is_persistent: bool,
    /// When it was made.
    #[serde(alias = "create_date_time")]
    pub create_date_time: Millis,
    /// When it last changed.
    #[serde(alias = "update_date_time")]
    pub update_date_time: Millis,
    /// When it fails if it has not ended; 0 is never.
    #[serde(alias = "deadline_date_time")]
    pub deadline_date_time: Millis,
    /// Where it stands.
    #[serde(alias = "lifecycle_status")]
    pub lifecycle_status: LifecycleStatus,
    /// 0 (lowest) to 10.
    #[serde(default)]
    pub priority: u8,
    /// The worker's own parameters: an object, or nothing.
    #[serde(default)]
    pub attachments: Option<Map<String, Value>>,
    /// What only this implementation keeps; Python ignores it.
    #[serde(default, skip_serializing_if = "Extra::is_empty")]
    pub skalds: Extra,
}

/// Our own fields, all under the sub-document `skalds`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Extra {
    /// How many times a worker has been started for it.
    #[serde(skip_serializing_if = "is_zero")]
    pub attempt: u32,
    /// Raised whenever the task changes hands; a write by an older holder is refused.
    #[serde(skip_serializing_if = "is_zero")]
    pub incarnation: u64,
    /// Raised by every stored change; what a compare-and-set names beside the incarnation.
    #[serde(skip_serializing_if = "is_zero")]
    pub revision: u64,
    /// Attempts allowed; negative is without limit. Absent: the system's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<i64>,
    /// A `Created` task is not started before this time: its next attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_attempt_at: Option<Millis>,
    /// A `Created` task is not started before this time: its schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Millis>,
    /// A five- or six-field cron expression: when it ends, it is created again for the next tick.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// What the last failed attempt said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// `Failed` for good: no attempt is left.
    #[serde(skip_serializing_if = "is_false")]
    pub dead: bool,
    /// An operator wants it cancelled; stored before anybody is told, so that it cannot be lost.
    #[serde(skip_serializing_if = "is_false")]
    pub cancel_requested: bool,
    /// Its work may go on without its worker (agents run a chain job's hops): after a cancel it is not `Cancelled` before a
    /// worker has ended that work.
    #[serde(skip_serializing_if = "is_false")]
    pub outside: bool,
    /// An operator wants it paused.
    #[serde(skip_serializing_if = "is_false")]
    pub pause_requested: bool,
    /// Raised by every update of the attachments.
    #[serde(skip_serializing_if = "is_zero")]
    pub attachments_version: u64,
    /// What the worker last said of how far it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// An order to its holder that may not have been sent yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub untold: Option<Untold>,
    /// What the worker stored to go on from after a restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Value>,
    /// What the worker returned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
}

/// How far a worker is.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Progress {
    /// 0 to 1.
    pub value: f64,
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The stage of multi-stage work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
}

impl Extra {
    fn is_empty(&self) -> bool {
        *self == Extra::default()
    }
}

impl Task {
    /// A passive task that may start now and must end within [`DEFAULT_DEADLINE`].
    pub fn new(id: impl Into<String>, class_name: impl Into<String>, now: Millis) -> Self {
        Task {
            id: id.into(),
            class_name: class_name.into(),
            source: "skalds".into(),
            name: None,
            description: None,
            executor: None,
            dependencies: None,
            mode: TaskMode::Passive,
            is_persistent: true,
            create_date_time: now,
            update_date_time: now,
            deadline_date_time: now.saturating_add(DEFAULT_DEADLINE),
            lifecycle_status: LifecycleStatus::Created,
            priority: 0,
            attachments: None,
            skalds: Extra::default(),
        }
    }
}

fn yes() -> bool {
    true
}

fn is_false(value: &bool) -> bool {
    !*value
}

fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
