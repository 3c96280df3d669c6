//! `skald job`: chain jobs, run from here or handed to a controller.

mod run;
mod show;
mod spec;
mod watch;

use crate::chain::report::JobReport;
use clap::Subcommand;
use serde_json::{Value, json};

use super::api::{Api, ApiArgs, segment};
use super::exit::{Exit, Failure};
use super::output;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant)] // parsed once, and used at once
enum Command {
    /// Run a job over a Redis Cluster or a single Redis and print its result
    Run(run::RunArgs),
    /// Show how a job would be run: nodes, order, chains, expected time; runs nothing
    Plan(run::PlanArgs),
    /// Show a job that was handed to a controller
    Status(StatusArgs),
    /// Cancel a job that was handed to a controller; final once it says so
    Cancel(CancelArgs),
}

#[derive(Debug, clap::Args)]
struct StatusArgs {
    #[command(flatten)]
    api: ApiArgs,
    /// The job's id
    id: String,
    /// Print JSON: the job's report when it has one, else its task
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct CancelArgs {
    #[command(flatten)]
    api: ApiArgs,
    /// The job's id
    id: String,
}

pub(crate) fn run(args: Args) -> Result<Exit, Failure> {
    match args.command {
        Command::Run(args) => run::run(args),
        Command::Plan(args) => run::plan(args),
        Command::Status(args) => status(&args),
        Command::Cancel(args) => cancel(&args),
    }
}

fn status(args: &StatusArgs) -> Result<Exit, Failure> {
    let task = Api::new(&args.api).get(&task_path(&args.id))?;
    match report_of(&task) {
        Some(report) if args.json => output::json(&json!(report))?,
        Some(report) => show::report(&report)?,
        None if args.json => output::json(&task)?,
        None => output::line(watch::line_of(&task))?,
    }
    Ok(Exit::Finished)
}

fn cancel(args: &CancelArgs) -> Result<Exit, Failure> {
    let path = format!("{}/status", task_path(&args.id));
    Api::new(&args.api).put(&path, &json!({ "lifecycleStatus": "Cancelled" }))?;
    output::line(format_args!(
        "{} is being cancelled; `skald job status {}` shows when it is",
        args.id, args.id
    ))?;
    Ok(Exit::Finished)
}

fn task_path(id: &str) -> String {
    format!("/api/tasks/{}", segment(id))
}

/// The report of a job that is over: the task's result, or what it left where it did not finish.
fn report_of(task: &Value) -> Option<JobReport> {
    let ours = task.get("skalds")?;
    let report = ours.get("result").or_else(|| ours.get("checkpoint")?.get("data")?.get("report"))?;
    serde_json::from_value(report.clone()).ok()
}
