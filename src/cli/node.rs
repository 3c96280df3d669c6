//! `skald node`: a Skald that runs what a controller assigns to it.

use std::path::PathBuf;

use crate::actors::ActorSystem;

use super::backends::{self, CacheArgs};
use super::exit::{Exit, Failure};
use super::skald::{SHUTDOWN, SkaldArgs};
use super::{output, stop};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A node shares a folder and a Redis with its controller, so they run on one machine; an adapter for MongoDB, which lets them
run on several, comes with a later version. With --kafka it hears of an assignment at once, else by its next look into the
folder.")]
pub(crate) struct Args {
    #[command(flatten)]
    skald: SkaldArgs,
    /// The folder with the tasks, shared with the controller
    #[arg(long, value_name = "FOLDER", env = "SKALD_DATA", help_heading = "Backends")]
    data: PathBuf,
    #[command(flatten)]
    cache: CacheArgs,
}

pub(crate) fn run(args: Args) -> Result<Exit, Failure> {
    args.cache.required()?;
    let system = ActorSystem::start().map_err(Failure::failed)?;
    let inside = system.clone();
    let ran = async move {
        let opened = backends::open(Some(&args.data), &args.cache).await?;
        // Under a made-up id nobody would come back to the jobs that are kept.
        let jobs = args.skald.has_id().then_some(args.data.as_path());
        let builder = args.skald.builder(&inside, jobs)?.backends(opened.backends.clone());
        let skald = builder.start(&inside).map_err(Failure::failed)?;
        skald.ready().await;
        output::ready("node", &[("skald", &skald.id())])?;
        let ended = tokio::select! {
            signal = stop::requested() => {
                tracing::info!(%signal, "stopping");
                Ok(Exit::Finished)
            }
            exit = skald.ended() => Err(Failure::failed(format!("the skald has ended: {exit:?}"))),
        };
        inside.shutdown(SHUTDOWN).await;
        opened.close().await;
        ended
    };
    system.block_on(ran).map_err(Failure::failed)?
}
