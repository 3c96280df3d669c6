//! `skald task`: tasks through a controller's API.

mod create;
mod show;
mod view;

use crate::core::task::Task;
use clap::Subcommand;
use serde_json::{Value, json};

use self::view::TaskView;
use super::api::{Api, ApiArgs, query, segment};
use super::exit::{Exit, Failure};
use super::output;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    api: ApiArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create a task; its id is printed
    Create(create::CreateArgs),
    /// List tasks, newest first
    List(ListArgs),
    /// Show one task with everything known about it
    Show(ShowArgs),
    /// Cancel tasks, for good
    Cancel(CancelArgs),
    /// Change a task's attachments; a running worker gets them at once
    #[command(after_help = UPDATE)]
    Update(UpdateArgs),
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Only tasks in this status: Created, Assigning, Running, Paused, Finished, Failed or Cancelled
    #[arg(long, value_name = "STATUS")]
    status: Option<String>,
    /// Only tasks of this worker class
    #[arg(long, value_name = "CLASS")]
    class: Option<String>,
    /// Only tasks of this Skald
    #[arg(long, value_name = "SKALD")]
    executor: Option<String>,
    /// Only tasks whose id contains this
    #[arg(long, value_name = "TEXT")]
    id: Option<String>,
    /// Which page
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    page: u64,
    /// Tasks a page, at most 100
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=100))]
    page_size: u64,
    /// Print the API's JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// The task's id
    id: String,
    /// Print the API's JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct CancelArgs {
    /// The tasks' ids
    #[arg(required = true)]
    ids: Vec<String>,
}

const UPDATE: &str = "\
With --attach alone the attachments that it does not name stay as they are. They are read, changed and written back: what
somebody else changes in between is lost. With --attachments they are replaced, and --attach is set on top.";

#[derive(Debug, clap::Args)]
struct UpdateArgs {
    /// The task's id
    id: String,
    /// Replace all attachments: a JSON object, @FILE that holds one, or - for standard input
    #[arg(long, value_name = "JSON|@FILE|-")]
    attachments: Option<String>,
    /// Set one attachment, keep the others; VALUE is JSON where it can be, else text. May be given several times
    #[arg(short, long = "attach", value_name = "NAME=VALUE", value_parser = create::attachment)]
    attach: Vec<(String, Value)>,
}

pub(crate) fn run(args: Args) -> Result<Exit, Failure> {
    let api = Api::new(&args.api);
    match args.command {
        Command::Create(args) => create::run(&api, args),
        Command::List(args) => list(&api, args),
        Command::Show(args) => {
            let body = api.get(&path(&args.id))?;
            if args.json {
                output::json(&body)?;
            } else {
                output::line(show::describe(&TaskView::read(&body)?).trim_end())?;
            }
            Ok(Exit::Finished)
        }
        Command::Cancel(args) => cancel(&api, &args.ids),
        Command::Update(args) => update(&api, args),
    }
}

/// Tasks that are here, as `skald task list` shows those of a controller.
pub(crate) fn table_of(tasks: &[Task]) -> Result<String, Failure> {
    let views = tasks
        .iter()
        .map(|task| TaskView::read(&serde_json::to_value(task).map_err(Failure::failed)?))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(show::list(&views, jiff::Timestamp::now().as_millisecond()))
}

/// The API's path of one task.
fn path(id: &str) -> String {
    format!("/api/tasks/{}", segment(id))
}

fn list(api: &Api, args: ListArgs) -> Result<Exit, Failure> {
    let query = query(&[
        ("page", Some(args.page.to_string())),
        ("pageSize", Some(args.page_size.to_string())),
        ("lifecycleStatus", args.status),
        ("className", args.class),
        ("executor", args.executor),
        ("id", args.id),
    ]);
    let body = api.get(&format!("/api/tasks/{query}"))?;
    if args.json {
        output::json(&body)?;
        return Ok(Exit::Finished);
    }
    let items = body.get("items").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let tasks = items.iter().map(TaskView::read).collect::<Result<Vec<_>, _>>()?;
    let total = body.get("total").and_then(Value::as_u64).unwrap_or(0);
    if tasks.is_empty() {
        eprintln!("no tasks");
        return Ok(Exit::Finished);
    }
    output::line(show::list(&tasks, jiff::Timestamp::now().as_millisecond()))?;
    let shown = (args.page - 1).saturating_mul(args.page_size) + tasks.len() as u64;
    if shown < total {
        eprintln!("{shown} of {total} tasks; more with --page {}", args.page + 1);
    }
    Ok(Exit::Finished)
}

/// Tries all of them, and names those that could not be cancelled.
fn cancel(api: &Api, ids: &[String]) -> Result<Exit, Failure> {
    let mut failed = 0;
    for id in ids {
        match api.put(&format!("{}/status", path(id)), &json!({"lifecycleStatus": "Cancelled"})) {
            Ok(_) => output::line(id)?,
            Err(failure) => {
                failed += 1;
                eprintln!("skald: cannot cancel task {id}: {failure}");
            }
        }
    }
    if failed > 0 { Ok(Exit::Failed) } else { Ok(Exit::Finished) }
}

fn update(api: &Api, args: UpdateArgs) -> Result<Exit, Failure> {
    let path = path(&args.id);
    let mut attachments = match &args.attachments {
        Some(text) => create::parse_object(text)?,
        None if args.attach.is_empty() => {
            return Err(Failure::usage("name the new attachments with --attachments or --attach"));
        }
        None => TaskView::read(&api.get(&path)?)?.attachments.unwrap_or_default(),
    };
    attachments.extend(args.attach);
    api.put(&format!("{path}/attachments"), &json!({ "attachments": attachments }))?;
    output::line(&args.id)?;
    Ok(Exit::Finished)
}
