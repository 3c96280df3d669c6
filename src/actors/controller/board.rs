//! Who holds what, as far as this controller knows: what the dispatcher counts with.
//!
//! It is fed by the dispatcher's own assignments, by notices in any order, and by the monitor's sweeps. The revision of
//! the task decides which word is the latest.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::core::task::{LifecycleStatus, Task};

#[derive(Default)]
pub(crate) struct Board {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    tasks: HashMap<String, Entry>,
    counts: HashMap<String, u32>,
    round: u64,
}

struct Entry {
    /// `None`: nobody; kept for two rounds, so that an older word does not bring it back.
    holder: Option<String>,
    revision: u64,
    round: u64,
    /// The incarnation under which the heartbeat key was removed before the task was assigned.
    cleared: Option<u64>,
}

/// Whether somebody holds a task of this status.
pub(crate) fn is_held(status: LifecycleStatus) -> bool {
    matches!(status, LifecycleStatus::Assigning | LifecycleStatus::Running | LifecycleStatus::Paused)
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics under this lock, so a poisoned board is still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hears of a task. Says whether a place has become free.
    pub(crate) fn see(
        &self,
        id: &str,
        status: LifecycleStatus,
        executor: Option<&str>,
        revision: u64,
    ) -> bool {
        self.lock().see(id, executor.filter(|_| is_held(status)), revision)
    }

    pub(crate) fn see_task(&self, task: &Task) -> bool {
        self.see(&task.id, task.lifecycle_status, task.executor.as_deref(), task.skalds.revision)
    }

    /// How many tasks a Skald holds.
    pub(crate) fn count(&self, skald: &str) -> u32 {
        self.lock().counts.get(skald).copied().unwrap_or(0)
    }

    /// The heartbeat key of a task was removed before its holder was told.
    pub(crate) fn cleared(&self, task: &Task) {
        if let Some(entry) = self.lock().tasks.get_mut(&task.id) {
            entry.cleared = Some(task.skalds.incarnation);
        }
    }

    /// Whether the heartbeat key was removed when the task was assigned under this incarnation, by this controller.
    pub(crate) fn is_cleared(&self, id: &str, incarnation: u64) -> bool {
        self.lock().tasks.get(id).is_some_and(|entry| entry.cleared == Some(incarnation))
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        *self.lock() = State::default();
    }

    /// A sweep over all held tasks begins.
    pub(crate) fn begin_round(&self) {
        self.lock().round += 1;
    }

    /// The sweep has seen everything: what it did not see is held by nobody. Says whether a place has become free.
    pub(crate) fn end_round(&self) -> bool {
        let mut state = self.lock();
        let round = state.round;
        let unseen: Vec<String> = state
            .tasks
            .iter()
            .filter(|(_, entry)| entry.holder.is_some() && entry.round < round)
            .map(|(id, _)| id.clone())
            .collect();
        for id in &unseen {
            state.release(id);
        }
        state.tasks.retain(|_, entry| entry.holder.is_some() || entry.round + 2 > round);
        !unseen.is_empty()
    }
}

impl State {
    fn see(&mut self, id: &str, holder: Option<&str>, revision: u64) -> bool {
        let round = self.round;
        match self.tasks.get_mut(id) {
            Some(entry) if entry.revision > revision => return false,
            Some(entry) if entry.holder.as_deref() == holder => {
                entry.revision = revision;
                entry.round = round;
                return false;
            }
            _ => {}
        }
        let freed = self.release(id);
        if let Some(holder) = holder {
            *self.counts.entry(holder.to_owned()).or_default() += 1;
        }
        let entry = Entry { holder: holder.map(str::to_owned), revision, round, cleared: None };
        self.tasks.insert(id.to_owned(), entry);
        freed
    }

    fn release(&mut self, id: &str) -> bool {
        let Some(holder) = self.tasks.get_mut(id).and_then(|entry| entry.holder.take()) else { return false };
        if let Some(count) = self.counts.get_mut(&holder) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.counts.remove(&holder);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LifecycleStatus::{Assigning, Created, Finished, Running};

    #[test]
    fn the_latest_revision_counts_in_whatever_order_words_come() {
        let board = Board::default();
        assert!(!board.see("t", Assigning, Some("a"), 1));
        assert!(!board.see("t", Running, Some("a"), 2));
        assert_eq!(board.count("a"), 1);
        assert!(board.see("t", Finished, Some("a"), 3));
        assert!(!board.see("t", Running, Some("a"), 2), "late news");
        assert_eq!(board.count("a"), 0);
        assert!(!board.see("t", Assigning, Some("b"), 5));
        assert!(board.see("t", Created, None, 6));
        assert_eq!((board.count("a"), board.count("b")), (0, 0));
    }

    #[test]
    fn a_sweep_finds_what_no_notice_told() {
        let board = Board::default();
        board.see("gone", Running, Some("a"), 1);
        board.see("there", Running, Some("a"), 1);
        board.begin_round();
        board.see("there", Running, Some("a"), 1);
        board.see("new", Assigning, Some("a"), 1);
        assert!(board.end_round());
        assert_eq!(board.count("a"), 2);
        // A place that was freed before the sweep is not taken again by the sweep's old reading.
        board.begin_round();
        board.see("there", Finished, Some("a"), 9);
        board.see("there", Running, Some("a"), 1);
        board.see("new", Assigning, Some("a"), 1);
        board.end_round();
        assert_eq!(board.count("a"), 1);
    }
}
