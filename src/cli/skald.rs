//! What the subcommands that run a Skald have in common.

use std::path::Path;
use std::time::Duration;

use crate::actors::skald::{Skald, SkaldBuilder};
use crate::actors::worker::WorkerClasses;
use crate::actors::worker::command::{self, Command};
use crate::actors::{ActorSystem, ChainJobs, JobStore};
use crate::config::env::Environment;
use crate::config::secret::Secret;
use crate::core::policy::Retry;

use super::exit::Failure;

/// How long a system has to end: what runs may finish, what does not is handed back.
pub(crate) const SHUTDOWN: Duration = Duration::from_secs(30);

/// The Skald of this process.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "The Skald")]
pub(crate) struct SkaldArgs {
    /// Its id; two Skalds of a fleet must not share one. Made up when absent
    #[arg(long, value_name = "ID", env = "SKALD_ID")]
    id: Option<String>,
    /// Tasks that it runs at most
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    capacity: u32,
    /// Tries after a failed attempt where a task does not say; negative is without limit
    #[arg(long, value_name = "N", env = "TASK_WORKER_RETRY", default_value_t = -1, allow_negative_numbers = true)]
    retries: i64,
}

impl SkaldArgs {
    /// A builder with everything that the command line and the environment say of a Skald, and the classes that come
    /// with `skald`. The chain jobs that it coordinates are kept in `folder`; without one they end with the process.
    pub(crate) fn builder(
        &self,
        system: &ActorSystem,
        folder: Option<&Path>,
    ) -> Result<SkaldBuilder, Failure> {
        let environment = environment()?;
        let builder = Skald::builder()
            .classes(self.classes(system, folder)?)
            .capacity(self.capacity)
            .retry(self.retry())
            .sync_period(environment.redis.sync_period)
            .key_ttl(environment.redis.key_ttl);
        Ok(match &self.id {
            Some(id) => builder.id(id),
            None => builder,
        })
    }

    fn classes(&self, system: &ActorSystem, folder: Option<&Path>) -> Result<WorkerClasses, Failure> {
        let variable = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
        // Skalds that share a folder have their jobs apart.
        let jobs = folder.map(|folder| folder.join("jobs").join(self.id.as_deref().unwrap_or("default")));
        let store = jobs.as_ref().map(|jobs| JobStore::open(&jobs.join("records"))).transpose();
        let own = super::own();
        let mut classes = own.classes;
        classes.register::<Command>(command::CLASS);
        ChainJobs {
            system: system.clone(),
            store: store.map_err(Failure::failed)?,
            direct_dir: jobs.map(|jobs| jobs.join("direct")),
            natives: own.jobs,
            username: variable("REDIS_USERNAME"),
            password: variable("REDIS_PASSWORD").map(Secret::new),
        }
        .register(&mut classes);
        Ok(classes)
    }

    /// Whether the Skald will be known by the same id when it is started again.
    pub(crate) fn has_id(&self) -> bool {
        self.id.is_some()
    }

    pub(crate) fn retry(&self) -> Retry {
        Retry::with_retries(self.retries)
    }
}

/// The variables of the Python package; all that is wrong with them is told at once.
pub(crate) fn environment() -> Result<Environment, Failure> {
    Environment::read(|name| std::env::var(name).ok()).map_err(Failure::usage)
}
