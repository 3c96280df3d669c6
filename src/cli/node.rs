//! `skald node`: a Skald that runs what a controller assigns to it.

use std::path::PathBuf;

use crate::actors::ActorSystem;

use super::backends::{self, CacheArgs};
use super::exit::{Exit, Failure};
use super::mongo::MongoArgs;
use super::skald::{SHUTDOWN, SkaldArgs};
use super::{output, stop};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A node shares a MongoDB and a Redis with its controller, or, on the same machine, a folder and a Redis. With --kafka it hears
of an assignment at once, else by its next look into storage.")]
pub(crate) struct Args {
    #[command(flatten)]
    skald: SkaldArgs,
    /// The folder with the tasks, shared with the controller; with --mongo, the folder of this node's chain jobs
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
    let system = ActorSystem::start().map_err(Failure::failed)?;
    let inside = system.clone();
    let ran = async move {
        let opened = backends::open(args.data.as_deref(), &args.cache, &args.mongo).await?;
        // Under a made-up id nobody would come back to the jobs that are kept.
        let jobs = args.data.as_deref().filter(|_| args.skald.has_id());
        let builder = args.skald.builder(&inside, jobs)?.backends(opened.backends.clone());
        let skald = builder.start(&inside).map_err(Failure::failed)?;
        // It may take long until it is ready: a service may be away.
        let ready = async {
            skald.ready().await;
            output::ready("node", &[("skald", &skald.id())])?;
            std::future::pending::<Result<Exit, Failure>>().await
        };
        let ended = tokio::select! {
            signal = stop::requested() => {
                tracing::info!(%signal, "stopping");
                Ok(Exit::Finished)
            }
            exit = skald.ended() => Err(Failure::failed(format!("the skald has ended: {exit:?}"))),
            failed = ready => failed,
        };
        inside.shutdown(SHUTDOWN).await;
        opened.close().await;
        ended
    };
    system.block_on(ran).map_err(Failure::failed)?
}
