//! A workers file that changes while its Skald runs.

use std::collections::BTreeMap;

use super::builder::check_classes;
use super::core::SkaldCore;
use super::{Skald, SkaldError};
use crate::actors::tasks::{Changed, TaskError};
use crate::config::env::SkaldMode;
use crate::config::workers_file::WorkerEntry;
use crate::core::lifecycle::Change;
use crate::core::task::LifecycleStatus;

/// What another version of the file has changed; ids of tasks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reloaded {
    /// They are run from now on.
    pub added: Vec<String>,
    /// Their workers are given the new attachments; one that has ended is run again.
    pub changed: Vec<String>,
    /// They are cancelled.
    pub removed: Vec<String>,
}

/// Why another version of the file was not taken on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReloadError {
    /// As when the Skald was started. Nothing has changed.
    #[error(transparent)]
    Skald(#[from] SkaldError),
    /// A task cannot become another class's. Nothing has changed.
    #[error("{task}: its class changes from {from} to {to}; give it another id, or start the skald anew")]
    Class {
        /// The entry.
        task: String,
        /// What it is.
        from: String,
        /// What the file says.
        to: String,
    },
    /// A single process runs one task as long as it lives. Nothing has changed.
    #[error("a single process runs {task} as long as it lives; start another one for {first}")]
    SingleProcess {
        /// What it runs.
        task: String,
        /// The first entry of the file now.
        first: String,
    },
    /// A change was not stored. It is worth another try.
    #[error(transparent)]
    Task(#[from] TaskError),
}

impl Skald {
    /// Takes on another version of its workers file: entries that were added, changed and removed take effect. A file that
    /// cannot be used changes nothing.
    ///
    /// # Errors
    /// As [`ReloadError`] says.
    pub async fn reload(&self, workers: Vec<(String, WorkerEntry)>) -> Result<Reloaded, ReloadError> {
        self.core.reload(workers).await
    }
}

impl SkaldCore {
    async fn reload(&self, mut workers: Vec<(String, WorkerEntry)>) -> Result<Reloaded, ReloadError> {
        let old = self.own.listed();
        if self.mode == SkaldMode::SingleProcess {
            workers.truncate(1);
            if let (Some(task), Some((first, _))) = (old.keys().next(), workers.first())
                && task != first
            {
                let (task, first) = (task.clone(), first.clone());
                return Err(ReloadError::SingleProcess { task, first });
            }
        }
        if workers.is_empty() {
            return Err(SkaldError::NoWorkers { mode: self.mode.word() }.into());
        }
        check_classes(&self.classes, &workers)?;
        let new: BTreeMap<String, WorkerEntry> = workers.into_iter().collect();
        let reloaded = compare(&old, &new)?;
        for id in &reloaded.removed {
            match self.tasks.change(id, &Change::Cancel).await {
                Ok(_) | Err(TaskError::Missing(_) | TaskError::Refused { .. }) => {} // it has ended
                Err(error) => return Err(error.into()),
            }
        }
        for id in reloaded.changed.iter().chain(&reloaded.added) {
            self.take_on(id, &new[id]).await?;
        }
        self.own.replace(new, &reloaded.added);
        for id in &reloaded.changed {
            self.own.set_due(id, self.tasks.clock.now_millis());
        }
        self.sweep_now.notify_one();
        Ok(reloaded)
    }

    /// Brings a stored task in step with its entry; one that is not stored yet is made when it is started.
    async fn take_on(&self, id: &str, worker: &WorkerEntry) -> Result<(), TaskError> {
        let Some(task) = self.tasks.storage.get(id).await? else { return Ok(()) };
        let mut changes = Vec::new();
        if matches!(
            task.lifecycle_status,
            LifecycleStatus::Finished | LifecycleStatus::Failed | LifecycleStatus::Cancelled
        ) {
            changes.push(Change::Requeue);
        }
        if task.attachments != worker.attachments {
            changes.push(Change::SetAttachments(worker.attachments.clone()));
        }
        if changes.is_empty() {
            return Ok(());
        }
        match self.tasks.change_all(task, &changes).await? {
            Changed::Done(_) | Changed::Missing => Ok(()),
            Changed::Refused(refused, task) => Err(TaskError::Refused { id: task.id, refused }),
        }
    }
}

/// What has changed between two versions of a file.
fn compare(
    old: &BTreeMap<String, WorkerEntry>,
    new: &BTreeMap<String, WorkerEntry>,
) -> Result<Reloaded, ReloadError> {
    let mut reloaded = Reloaded::default();
    for (id, worker) in new {
        match old.get(id) {
            None => reloaded.added.push(id.clone()),
            Some(before) if before.class_name != worker.class_name => {
                let (from, to) = (before.class_name.clone(), worker.class_name.clone());
                return Err(ReloadError::Class { task: id.clone(), from, to });
            }
            Some(before) if before != worker => reloaded.changed.push(id.clone()),
            Some(_) => {}
        }
    }
    reloaded.removed = old.keys().filter(|id| !new.contains_key(*id)).cloned().collect();
    Ok(reloaded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(entries: &[(&str, &str, i64)]) -> BTreeMap<String, WorkerEntry> {
        let entry = |(id, class, n): &(&str, &str, i64)| {
            let json = serde_json::json!({"className": class, "attachments": {"n": n}});
            ((*id).to_owned(), serde_json::from_value(json).unwrap())
        };
        entries.iter().map(entry).collect()
    }

    #[test]
    fn versions_are_compared_entry_by_entry_and_classes_stay() {
        let old = file(&[("a", "A", 1), ("b", "A", 1), ("c", "A", 1)]);
        let reloaded = compare(&old, &file(&[("a", "A", 1), ("b", "A", 2), ("d", "B", 1)])).unwrap();
        let ids = |id: &str| vec![id.to_owned()];
        assert_eq!(reloaded, Reloaded { added: ids("d"), changed: ids("b"), removed: ids("c") });
        assert_eq!(compare(&old, &old).unwrap(), Reloaded::default());
        let refused = compare(&old, &file(&[("a", "B", 1)])).unwrap_err().to_string();
        assert!(refused.contains("a: its class changes from A to B"), "{refused}");
    }
}
