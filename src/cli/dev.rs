//! `skald dev`: everything in one process.

use std::path::PathBuf;

use crate::actors::ActorSystem;
use crate::actors::controller::SystemController;

use super::backends::{self, CacheArgs};
use super::exit::{Exit, Failure};
use super::mongo::MongoArgs;
use super::serve::{ListenArgs, WorkersFile};
use super::skald::{SHUTDOWN, SkaldArgs, environment};
use super::{output, stop};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Create the tasks of this workers file that are not there yet
    #[arg(long, value_name = "FILE")]
    workers: Option<PathBuf>,
    #[command(flatten)]
    listen: ListenArgs,
    #[command(flatten)]
    skald: SkaldArgs,
    /// Keep the tasks in this folder; they survive the process, however it ends
    #[arg(long, value_name = "FOLDER", default_value = ".skald", help_heading = "Backends")]
    data: PathBuf,
    /// Keep the tasks in memory: they are gone with the process
    #[arg(long, conflicts_with_all = ["data", "mongo"], help_heading = "Backends")]
    in_memory: bool,
    #[command(flatten)]
    mongo: MongoArgs,
    #[command(flatten)]
    cache: CacheArgs,
}

pub(crate) fn run(args: Args) -> Result<Exit, Failure> {
    let settings = environment()?.controller;
    let workers = args.workers.as_deref().map(WorkersFile::read).transpose()?;
    let system = ActorSystem::start().map_err(Failure::failed)?;
    let inside = system.clone();
    let ran = async move {
        let folder = (!args.in_memory).then_some(args.data.as_path());
        let opened = backends::open(folder, &args.cache, &args.mongo).await?;
        let builder = args.skald.builder(&inside, folder)?.backends(opened.backends.clone());
        if let Some(workers) = &workers {
            workers.check(&builder)?;
        }
        let controller = SystemController::builder()
            .strategy(settings.strategy)
            .intervals(settings.skald_interval, settings.task_interval, settings.dispatcher_interval)
            .retry(args.skald.retry())
            .backends(opened.backends.clone())
            .start(&inside)
            .map_err(Failure::failed)?;
        let skald = builder.start(&inside).map_err(Failure::failed)?;
        skald.ready().await;
        let server = args.listen.serve(&inside, &controller)?;
        if let Some(workers) = workers {
            workers.submit(&controller).await?;
        }
        let api = format!("http://{}", server.address());
        output::ready("dev", &[("api", &api), ("skald", &skald.id())])?;
        let ended = tokio::select! {
            signal = stop::requested() => {
                tracing::info!(%signal, "stopping");
                Ok(Exit::Finished)
            }
            exit = skald.ended() => Err(Failure::failed(format!("the skald has ended: {exit:?}"))),
        };
        server.stop().await;
        inside.shutdown(SHUTDOWN).await;
        opened.close().await;
        ended
    };
    system.block_on(ran).map_err(Failure::failed)?
}
