//! The Skald: the actor that runs tasks.
//!
//! | mode | which tasks |
//! | --- | --- |
//! | node | those that a controller assigns to it |
//! | edge | those that its YAML file lists; they are run at start, and again when the file's Skald restarts |
//! | single process | the first of its YAML file: again and again (`isPersistent: true`), or once |
//!
//! A Skald runs a task only if the task's executor is the Skald itself, the class is registered, and its compare-and-set
//! to `Running` succeeds. Each running task is an actor of its own. What the Skald holds it holds under a lease: once the
//! task has changed hands, nothing that it says of it counts.

mod actor;
mod beats;
mod builder;
mod core;
mod drain;
mod intake;
mod own;
mod reload;
mod sweep;
mod table;

use std::fmt;
use std::sync::Arc;

pub use builder::{SkaldBuilder, SkaldError};
pub use reload::{ReloadError, Reloaded};

use self::actor::SkaldActor;
use self::core::SkaldCore;
use crate::core::task::Task;

use super::actor_ref::ActorRef;
use super::supervisor::Exit;

/// A handle to a running Skald. Cheap to clone; dropping it does not end the Skald.
#[derive(Clone)]
pub struct Skald {
    core: Arc<SkaldCore>,
    actor: ActorRef<SkaldActor>,
}

impl fmt::Debug for Skald {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Skald").field("id", &self.id()).field("tasks", &self.task_ids()).finish()
    }
}

impl Skald {
    /// How a Skald is set up.
    pub fn builder() -> SkaldBuilder {
        SkaldBuilder::default()
    }

    /// Its id: the executor of its tasks.
    pub fn id(&self) -> &str {
        &self.core.id
    }

    /// The tasks that it holds now, sorted.
    pub fn task_ids(&self) -> Vec<String> {
        self.core.table.ids()
    }

    /// Waits until it listens for events and has told the fleet that it is there.
    pub async fn ready(&self) {
        self.core.ready().await;
    }

    /// Ends it in order: takes nothing new, lets what runs finish within the drain time, stops the rest and hands it back
    /// (each such task is `Created` again), and says goodbye. Also part of the system's own shutdown.
    pub async fn drain(&self) -> Exit {
        self.actor.drain();
        self.actor.ended().await
    }

    /// Waits until it has ended: by a drain, with the system, or, as a single process whose task is not persistent, with
    /// that task.
    pub async fn ended(&self) -> Exit {
        self.actor.ended().await
    }

    /// How the task of a single process has ended, once it has.
    pub fn outcome(&self) -> Option<Task> {
        self.core.outcome()
    }
}
