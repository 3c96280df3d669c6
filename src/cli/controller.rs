//! `skald controller`: the API, the dispatcher and the monitor.

use std::path::PathBuf;

use crate::actors::ActorSystem;
use crate::actors::controller::SystemController;
use crate::config::env::ControllerMode;
use crate::core::policy::Retry;

use super::backends::{self, CacheArgs};
use super::exit::{Exit, Failure};
use super::mongo::MongoArgs;
use super::serve::ListenArgs;
use super::skald::{SHUTDOWN, environment};
use super::{output, stop};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A controller and its nodes share a MongoDB and a Redis, or, on one machine, a folder and a Redis. With --kafka, given to all,
events travel over Kafka. SYSTEM_CONTROLLER_MODE says what it does: CONTROLLER answers the API, MONITOR also watches,
DISPATCHER (the default here) also assigns tasks.")]
pub(crate) struct Args {
    #[command(flatten)]
    listen: ListenArgs,
    /// The folder with the tasks, shared with the nodes
    #[arg(long, value_name = "FOLDER", env = "SKALD_DATA", help_heading = "Backends")]
    data: Option<PathBuf>,
    #[command(flatten)]
    mongo: MongoArgs,
    #[command(flatten)]
    cache: CacheArgs,
}

pub(crate) fn run(args: Args) -> Result<Exit, Failure> {
    args.cache.required()?;
    backends::place_is_given(args.data.as_deref(), &args.mongo)?;
    let environment = environment()?;
    let mode = match std::env::var_os("SYSTEM_CONTROLLER_MODE") {
        Some(_) => environment.controller.mode,
        None => ControllerMode::Dispatcher,
    };
    let system = ActorSystem::start().map_err(Failure::failed)?;
    let inside = system.clone();
    let ran = async move {
        let opened = backends::open(args.data.as_deref(), &args.cache, &args.mongo).await?;
        let controller = SystemController::builder()
            .settings(&environment.controller)
            .mode(mode)
            .retry(Retry::with_retries(environment.skald.task_worker_retry))
            .backends(opened.backends.clone())
            .start(&inside)
            .map_err(Failure::failed)?;
        let server = args.listen.serve(&inside, &controller)?;
        let api = format!("http://{}", server.address());
        output::ready("controller", &[("api", &api), ("mode", &mode.word())])?;
        let signal = stop::requested().await;
        tracing::info!(%signal, "stopping");
        server.stop().await;
        inside.shutdown(SHUTDOWN).await;
        opened.close().await;
        Ok(Exit::Finished)
    };
    system.block_on(ran).map_err(Failure::failed)?
}
