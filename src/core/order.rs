//! Orders that are stored with the change that calls for them, until they have been sent.
//!
//! Most orders need no such mark: an assignment and a cancel are repeated while the task stands where it does, and Skalds
//! of this package look into storage for what they were not told. A Skald of the Python package knows only what it is
//! told. Whoever stores a change of its task and then crashes, or finds the events away, leaves a mark that says what is
//! still to be told; a monitor sends it.

use serde::{Deserialize, Serialize};

use super::names;
use super::task::{LifecycleStatus, Millis, Task};

/// What a holder is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Order {
    /// The attachments are other ones.
    Update,
    /// The task was taken from it.
    Stop,
}

/// An order that was stored, and of which nobody knows yet whether it was sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Untold {
    /// What.
    pub order: Order,
    /// To whom: who held the task when it was changed.
    pub recipient: String,
    /// When it was changed.
    pub at: Millis,
}

/// A task that was taken from a Skald is kept from others for this time, until that Skald has been told.
pub const TELL_FIRST: Millis = 10_000;

impl Order {
    /// Where it is said.
    pub fn topic(self) -> &'static str {
        match self {
            Order::Update => names::TASK_UPDATE_ATTACHMENT,
            Order::Stop => names::TASK_CANCEL,
        }
    }

    /// The mark for a change of `task`, as it was before; `None` when nobody holds it.
    pub fn mark(self, task: &Task, at: Millis) -> Option<Untold> {
        let recipient = task.executor.clone().filter(|_| is_held(task.lifecycle_status))?;
        Some(Untold { order: self, recipient, at })
    }
}

impl Untold {
    /// Whether sending it still does what was meant. `holder_reads_storage`: whoever holds the task now is of this package.
    ///
    /// New attachments are read by whoever starts the task later. An order to stop names a task, and a Python Skald that
    /// has got the task meanwhile would take it for its own.
    pub fn is_due(&self, task: &Task, holder_reads_storage: bool) -> bool {
        let held = task.executor.is_some() && is_held(task.lifecycle_status);
        match self.order {
            Order::Update => held && task.executor.as_ref() == Some(&self.recipient),
            Order::Stop => !held || holder_reads_storage,
        }
    }

    /// Whether the task must wait for this to be sent before somebody else gets it. `looked`: a monitor has sent what was
    /// left over from before.
    pub fn comes_first(&self, now: Millis, looked: bool) -> bool {
        self.order == Order::Stop && (!looked || now < self.at.saturating_add(TELL_FIRST))
    }
}

fn is_held(status: LifecycleStatus) -> bool {
    matches!(status, LifecycleStatus::Assigning | LifecycleStatus::Running | LifecycleStatus::Paused)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(executor: &str) -> Task {
        let mut task = Task::new("t", "C", 0);
        task.lifecycle_status = LifecycleStatus::Running;
        task.executor = Some(executor.into());
        task
    }

    #[test]
    fn an_order_is_for_whoever_held_the_task() {
        let untold = Order::Update.mark(&held("py"), 5).unwrap();
        assert_eq!((untold.recipient.as_str(), untold.at), ("py", 5));
        assert_eq!(Order::Stop.mark(&Task::new("t", "C", 0), 5), None);
        let mut over = held("py");
        over.lifecycle_status = LifecycleStatus::Finished; // its executor stays there
        assert_eq!(Order::Update.mark(&over, 5), None);
    }

    #[test]
    fn what_would_hit_another_run_is_not_sent() {
        let update = Order::Update.mark(&held("py"), 5).unwrap();
        assert!(update.is_due(&held("py"), false));
        assert!(!update.is_due(&held("other"), false) && !update.is_due(&Task::new("t", "C", 0), false));
        let stop = Order::Stop.mark(&held("py"), 5).unwrap();
        assert!(stop.is_due(&Task::new("t", "C", 0), false));
        assert!(!stop.is_due(&held("py"), false) && !stop.is_due(&held("other"), false));
        assert!(stop.is_due(&held("ours"), true));
    }

    #[test]
    fn a_task_waits_for_its_former_holder_to_be_told_but_not_for_ever() {
        let stop = Order::Stop.mark(&held("py"), 5).unwrap();
        assert!(stop.comes_first(5, true) && stop.comes_first(10_004, true));
        assert!(!stop.comes_first(10_005, true) && stop.comes_first(99_999, false));
        assert!(!Order::Update.mark(&held("py"), 5).unwrap().comes_first(5, false));
    }
}
