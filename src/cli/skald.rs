//! What the subcommands that run a Skald have in common.

use std::time::Duration;

use skalds::actors::skald::{Skald, SkaldBuilder};
use skalds::actors::worker::command::{self, Command};
use skalds::config::env::Environment;
use skalds::core::policy::Retry;

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
    /// with `skald`.
    pub(crate) fn builder(&self) -> Result<SkaldBuilder, Failure> {
        let environment = environment()?;
        let builder = Skald::builder()
            .register::<Command>(command::CLASS)
            .capacity(self.capacity)
            .retry(self.retry())
            .sync_period(environment.redis.sync_period)
            .key_ttl(environment.redis.key_ttl);
        Ok(match &self.id {
            Some(id) => builder.id(id),
            None => builder,
        })
    }

    pub(crate) fn retry(&self) -> Retry {
        Retry::with_retries(self.retries)
    }
}

/// The variables of the Python package; all that is wrong with them is told at once.
pub(crate) fn environment() -> Result<Environment, Failure> {
    Environment::read(|name| std::env::var(name).ok()).map_err(Failure::usage)
}
