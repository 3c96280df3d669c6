//! Worker classes by name: which a Skald can run, and how one is made from attachments.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::blocking::Blocking;
use super::{BlockingTaskWorker, TaskWorker, WorkerError};
use crate::core::attachments;

type Make = dyn Fn(&Map<String, Value>) -> Result<Box<dyn TaskWorker>, WorkerError> + Send + Sync;

/// The worker classes of a Skald.
#[derive(Clone, Default)]
pub struct WorkerClasses {
    classes: BTreeMap<String, Arc<Make>>,
    outside: BTreeSet<String>,
}

impl fmt::Debug for WorkerClasses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

impl WorkerClasses {
    /// A class whose workers are read from the attachments: the fields of `W` are the attachments, by alias or by name.
    pub fn register<W: TaskWorker + DeserializeOwned>(&mut self, name: impl Into<String>) -> &mut Self {
        self.register_with(name, read::<W>)
    }

    /// A class whose workers are made by a function.
    pub fn register_with<W: TaskWorker>(
        &mut self,
        name: impl Into<String>,
        make: impl Fn(&Map<String, Value>) -> Result<W, WorkerError> + Send + Sync + 'static,
    ) -> &mut Self {
        let make = move |attachments: &Map<String, Value>| -> Result<Box<dyn TaskWorker>, WorkerError> {
            Ok(Box::new(make(attachments)?))
        };
        self.classes.insert(name.into(), Arc::new(make));
        self
    }

    /// As [`register`](Self::register), for work that blocks its thread: each worker has one of its own.
    pub fn register_blocking<W: BlockingTaskWorker + DeserializeOwned>(
        &mut self,
        name: impl Into<String>,
    ) -> &mut Self {
        self.register_with(name, |attachments| Ok(Blocking::new(read::<W>(attachments)?)))
    }

    /// As [`register_with`](Self::register_with), for work that blocks its thread.
    pub fn register_blocking_with<W: BlockingTaskWorker>(
        &mut self,
        name: impl Into<String>,
        make: impl Fn(&Map<String, Value>) -> Result<W, WorkerError> + Send + Sync + 'static,
    ) -> &mut Self {
        self.register_with(name, move |attachments| Ok(Blocking::new(make(attachments)?)))
    }

    /// The work of this class's tasks may go on without their workers: a cancelled one is given to a worker again, which ends
    /// what is under way and answers [`Outcome::Stopped`](super::Outcome::Stopped).
    pub fn set_works_outside(&mut self, name: impl Into<String>) -> &mut Self {
        self.outside.insert(name.into());
        self
    }

    pub(crate) fn works_outside(&self, name: &str) -> bool {
        self.outside.contains(name)
    }

    /// All names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.classes.keys().map(String::as_str)
    }

    /// Whether it has a class of this name.
    pub fn has(&self, name: &str) -> bool {
        self.classes.contains_key(name)
    }

    /// Makes a worker. Attachments that do not fit fail for good; a panic of the class's own function is caught.
    pub(crate) fn make(
        &self,
        name: &str,
        attachments: &Map<String, Value>,
    ) -> Result<Box<dyn TaskWorker>, WorkerError> {
        let Some(make) = self.classes.get(name) else {
            return Err(WorkerError::new(format!("worker class {name:?} is not registered here")));
        };
        let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| make(attachments)));
        made.unwrap_or_else(|payload| {
            let text = crate::actors::error::panic_text(&*payload);
            Err(WorkerError::new(format!("the worker panicked while it was made: {text}")))
        })
    }
}

fn read<W: DeserializeOwned>(attachments: &Map<String, Value>) -> Result<W, WorkerError> {
    attachments::read(Some(attachments)).map_err(|error| WorkerError::permanent(error.to_string()))
}
