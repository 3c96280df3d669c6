//! What the subcommands that serve the API have in common.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;

use crate::actors::controller::SystemController;
use crate::actors::skald::SkaldBuilder;
use crate::actors::{ActorSystem, TaskError};
use crate::config::workers_file::{self, WorkerEntry};
use crate::core::submission::NewTask;
use crate::web::{self, ApiServer};

use super::exit::Failure;

/// Where the API listens.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "The API")]
pub(crate) struct ListenArgs {
    /// Where the API listens; port 0 chooses one. SYSTEM_CONTROLLER_HOST and SYSTEM_CONTROLLER_PORT say it too
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Listen on addresses that other machines reach. Nothing is authenticated or encrypted yet: whoever reaches the
    /// port can run any program that a task may name
    #[arg(long, env = "SKALD_ALLOW_REMOTE")]
    allow_remote: bool,
}

impl ListenArgs {
    /// Serves the API of a controller.
    pub(crate) fn serve(
        &self,
        system: &ActorSystem,
        controller: &SystemController,
    ) -> Result<ApiServer, Failure> {
        let listen = match &self.listen {
            Some(listen) => listen.clone(),
            None => from_environment(|name| std::env::var(name).ok()),
        };
        let addresses = own_addresses(&listen, self.allow_remote, "run any program that a task may name")?;
        web::serve(&addresses[..], system.clone(), controller.clone())
            .map_err(|error| Failure::failed(format!("cannot listen on {listen}: {error}")))
    }
}

/// What `host:port` means; addresses that other machines reach only when that is wanted.
pub(crate) fn own_addresses(
    listen: &str,
    allow_remote: bool,
    danger: &str,
) -> Result<Vec<SocketAddr>, Failure> {
    let addresses = listen
        .to_socket_addrs()
        .map_err(|error| Failure::usage(format!("cannot listen on {listen:?}, write host:port: {error}")))?;
    let addresses: Vec<SocketAddr> = addresses.collect();
    match addresses.iter().find(|address| !address.ip().is_loopback() && !allow_remote) {
        Some(remote) => Err(Failure::usage(format!(
            "{remote} can be reached from other machines, and nothing is authenticated yet: whoever reaches it could \
             {danger}; listen on 127.0.0.1, or say --allow-remote"
        ))),
        None => Ok(addresses),
    }
}

/// The Python package listens everywhere unless told otherwise; here nothing is reachable that was not asked to be.
fn from_environment(lookup: impl Fn(&str) -> Option<String>) -> String {
    let set = |name, default: &str| {
        lookup(name).filter(|value| !value.is_empty()).unwrap_or_else(|| default.into())
    };
    format!("{}:{}", set("SYSTEM_CONTROLLER_HOST", "127.0.0.1"), set("SYSTEM_CONTROLLER_PORT", "8000"))
}

/// The workers file of a command line: its name and what it lists.
pub(crate) struct WorkersFile {
    name: String,
    workers: Vec<(String, WorkerEntry)>,
}

impl WorkersFile {
    /// Reads it.
    pub(crate) fn read(file: &Path) -> Result<Self, Failure> {
        let name = file.display().to_string();
        let text = std::fs::read_to_string(file)
            .map_err(|error| Failure::usage(format!("cannot read the workers file {name}: {error}")))?;
        let workers = workers_file::parse(&name, &text).map_err(Failure::usage)?;
        Ok(WorkersFile { name, workers })
    }

    /// Refuses a file with a class that the only Skald there is does not have.
    pub(crate) fn check(&self, skald: &SkaldBuilder) -> Result<(), Failure> {
        skald.check_classes(&self.workers).map_err(|error| Failure::usage(format!("{}: {error}", self.name)))
    }

    /// Submits the tasks that are not there yet.
    pub(crate) async fn submit(self, controller: &SystemController) -> Result<(), Failure> {
        for (id, worker) in self.workers {
            let task = NewTask {
                id: Some(id.clone()),
                name: worker.name,
                description: worker.description,
                source: Some("YAML".to_owned()),
                attachments: worker.attachments,
                ..NewTask::new(worker.class_name)
            };
            match controller.submit(task).await {
                Ok(_) => {}
                Err(TaskError::Taken(_)) => {
                    tracing::info!(task = id, "this task of the workers file is there already")
                }
                Err(error) => return Err(Failure::failed(format!("{}: {id}: {error}", self.name))),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::from_environment;

    #[test]
    fn the_address_is_loopback_unless_the_environment_says_otherwise() {
        assert_eq!(from_environment(|_| None), "127.0.0.1:8000");
        let set = |name: &str| (name == "SYSTEM_CONTROLLER_PORT").then(|| "9".to_owned());
        assert_eq!(from_environment(set), "127.0.0.1:9");
        assert_eq!(from_environment(|_| Some("x".into())), "x:x");
    }
}
