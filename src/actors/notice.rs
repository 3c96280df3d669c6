//! News between the processes of a fleet: "this task changed", "this Skald is there".
//!
//! They travel over a channel of cache memory, so that a controller acts within milliseconds. They are hints: storage
//! says what is so, and the sweeps find what a lost notice would have said. The Python package does not know them.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::backend::CacheMemory;
use crate::core::task::{LifecycleStatus, Millis, Progress, Task};

/// The channel.
pub(crate) const CHANNEL: &[u8] = b"skalds:notices";
/// How many notices wait to be sent; the oldest make room.
const MAX_WAITING: usize = 4_096;
/// How many are sent at once.
const BATCH: usize = 128;

/// One piece of news.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Notice {
    /// A task has changed.
    Task(TaskChange),
    /// A Skald has come, gone, or has room again.
    Skald {
        /// Its id.
        id: String,
    },
}

/// What has changed in a task: enough to show it, without its attachments, checkpoint and result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TaskChange {
    /// The task.
    pub id: String,
    /// Its worker class.
    pub class_name: String,
    /// Where it stands now.
    pub lifecycle_status: LifecycleStatus,
    /// Who holds it, or held it last.
    pub executor: Option<String>,
    /// When it changed.
    pub update_date_time: Millis,
    /// Orders the changes of one task.
    pub revision: u64,
    /// How many times a worker has been started for it.
    pub attempt: u32,
    /// How often it has changed hands.
    pub incarnation: u64,
    /// It is not started before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Millis>,
    /// How far the worker is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// What the last failed attempt said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

impl Notice {
    pub(crate) fn task(task: &Task) -> Self {
        Notice::Task(TaskChange {
            id: task.id.clone(),
            class_name: task.class_name.clone(),
            lifecycle_status: task.lifecycle_status,
            executor: task.executor.clone(),
            update_date_time: task.update_date_time,
            revision: task.skalds.revision,
            attempt: task.skalds.attempt,
            incarnation: task.skalds.incarnation,
            not_before: crate::core::lifecycle::not_before(task),
            progress: task.skalds.progress.clone(),
            last_error: task.skalds.last_error.clone(),
        })
    }
}

/// Notices that wait to be sent.
#[derive(Default)]
pub(crate) struct Notices {
    waiting: Mutex<VecDeque<Notice>>,
    posted: Notify,
}

impl Notices {
    /// Queues a notice; never waits. When too many wait the oldest is dropped: the sweep will find what it said.
    pub(crate) fn post(&self, notice: Notice) {
        let mut waiting = self.lock();
        if waiting.len() >= MAX_WAITING {
            waiting.pop_front();
        }
        waiting.push_back(notice);
        drop(waiting);
        self.posted.notify_one();
    }

    /// Sends notices as they come, for ever.
    pub(crate) async fn send_all(&self, cache: &dyn CacheMemory) {
        loop {
            self.posted.notified().await;
            while self.send_some(cache).await {}
        }
    }

    /// Sends what waits, one batch; says whether there was anything.
    pub(crate) async fn send_some(&self, cache: &dyn CacheMemory) -> bool {
        let batch: Vec<Vec<u8>> = {
            let mut waiting = self.lock();
            let count = waiting.len().min(BATCH);
            waiting.drain(..count).map(|notice| crate::core::event::write(&notice)).collect()
        };
        let sent = join_all(batch.iter().map(|notice| cache.publish(CHANNEL, notice))).await;
        if let Some(error) = sent.into_iter().find_map(Result::err) {
            tracing::debug!(%error, "a notice was not sent; sweeps will find what it said");
        }
        !batch.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Notice>> {
        // Nothing panics under this lock, so a poisoned queue is still whole.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
