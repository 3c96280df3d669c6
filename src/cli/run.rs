//! `skald run`: the tasks of a workers file, run here.

use std::path::PathBuf;
use std::time::Duration;

use crate::actors::ActorSystem;
use crate::actors::skald::SkaldError;
use crate::backend::DiskStorage;
use crate::config::env::SkaldMode;
use crate::config::workers_file;
use crate::core::task::Task;

use super::backends::{self, CacheArgs};
use super::exit::{Exit, Failure, exit_of};
use super::mongo::MongoArgs;
use super::skald::{SHUTDOWN, SkaldArgs};
use super::{output, reload, stop, task};

/// How often `--until-done` looks.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A workers file:
  TaskWorkers:
    Backup:                     # the task's id
      className: Command        # runs a program; see the class's own attachments
      isPersistent: false
      attachments: { argv: [\"pg_dump\", \"shop\"] }")]
pub(crate) struct Args {
    /// The workers file. Entries that are added, changed and removed while it runs take effect within a second or two
    #[arg(value_name = "FILE", env = "YAML_FILE")]
    file: PathBuf,
    #[command(flatten)]
    skald: SkaldArgs,
    /// Run the first worker of the file and nothing else: again and again, or once when it is not persistent
    #[arg(long)]
    single_process: bool,
    /// End when every task of the file has ended, with the exit code of the worst
    #[arg(long, conflicts_with = "single_process")]
    until_done: bool,
    /// Keep tasks, their progress and checkpoints in this folder; else they are gone with the process
    #[arg(long, value_name = "FOLDER", help_heading = "Backends")]
    data: Option<PathBuf>,
    #[command(flatten)]
    cache: CacheArgs,
}

pub(crate) fn run(args: Args) -> Result<Exit, Failure> {
    let name = args.file.display().to_string();
    let text = std::fs::read_to_string(&args.file)
        .map_err(|error| Failure::usage(format!("cannot read the workers file {name}: {error}")))?;
    let workers = workers_file::parse(&name, &text).map_err(Failure::usage)?;
    let ids: Vec<String> = workers.iter().map(|(id, _)| id.clone()).collect();
    let system = ActorSystem::start().map_err(Failure::failed)?;
    let inside = system.clone();
    let ran = async move {
        let opened = backends::open(args.data.as_deref(), &args.cache, &MongoArgs::default()).await?;
        let mode = if args.single_process { SkaldMode::SingleProcess } else { SkaldMode::Edge };
        let storage = opened.backends.storage.clone();
        let builder = args
            .skald
            .builder(&inside, args.data.as_deref())?
            .mode(mode)
            .workers(workers)
            .backends(opened.backends.clone());
        let skald = builder.start(&inside).map_err(|error| match error {
            SkaldError::UnknownClass { .. } => Failure::usage(format!("{name}: {error}")),
            _ => Failure::failed(error),
        })?;
        skald.ready().await;
        output::ready("run", &[("skald", &skald.id()), ("tasks", &ids.len())])?;
        // With --until-done the tasks are those that there were at the start.
        let watched = async {
            match args.until_done {
                true => std::future::pending().await,
                false => reload::watch(&args.file, text, &skald).await,
            }
        };
        let ended = tokio::select! {
            signal = stop::requested() => {
                tracing::info!(%signal, "stopping");
                Ok(Exit::Finished)
            }
            exit = skald.ended() => match skald.outcome() {
                Some(task) => Ok(exit_of(task.lifecycle_status).unwrap_or(Exit::Failed)),
                None => Err(Failure::failed(format!("the skald has ended: {exit:?}"))),
            },
            never = watched => match never {},
            tasks = all_ended(&*storage, &ids), if args.until_done => tasks.and_then(|tasks| report(&tasks)),
        };
        inside.shutdown(SHUTDOWN).await;
        opened.close().await;
        ended
    };
    system.block_on(ran).map_err(Failure::failed)?
}

/// Waits until every task has ended.
async fn all_ended(storage: &dyn DiskStorage, ids: &[String]) -> Result<Vec<Task>, Failure> {
    let mut ended = Vec::with_capacity(ids.len());
    for id in ids {
        ended.push(loop {
            match storage.get(id).await.map_err(Failure::failed)? {
                Some(task) if exit_of(task.lifecycle_status).is_some() => break task,
                _ => tokio::time::sleep(LOOK).await,
            }
        });
    }
    Ok(ended)
}

/// Prints the tasks; the exit code is that of the worst.
fn report(tasks: &[Task]) -> Result<Exit, Failure> {
    output::line(task::table_of(tasks)?)?;
    let exits: Vec<Exit> = tasks.iter().filter_map(|task| exit_of(task.lifecycle_status)).collect();
    let worst = [Exit::Failed, Exit::Cancelled].into_iter().find(|exit| exits.contains(exit));
    Ok(worst.unwrap_or(Exit::Finished))
}
