//! `skald job run` and `skald job plan`.

use std::time::Duration;

use crate::actors::{ActorSystem, JobOptions, JobRun, explain};
use crate::chain::job::JobSpec;
use crate::chain::report::JobReport;
use crate::core::task::LifecycleStatus;
use serde_json::{Value, json};

use super::spec::JobArgs;
use super::watch::{self, Lines, Watch};
use super::{report_of, show, task_path};
use crate::cli::api::{Api, ApiArgs};
use crate::cli::exit::{Exit, Failure};
use crate::cli::output;
use crate::cli::redis::RedisArgs;

/// How long everything may take to end after the report.
const SHUTDOWN: Duration = Duration::from_secs(5);
/// How often a controller is asked how a job goes.
const ASK_EVERY: Duration = Duration::from_millis(500);

#[derive(Debug, clap::Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten)]
    redis: RedisArgs,
    #[command(flatten)]
    api: ApiArgs,
    /// The job's id; made up when left out. A write job that did not finish goes on under its id, and
    /// writes nothing twice
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// Hand the job to the controller at --api, as a task, and follow it there
    #[arg(long)]
    submit: bool,
    /// With --submit: print the id and do not wait
    #[arg(long, requires = "submit")]
    detach: bool,
    /// Print one JSON object; progress goes to standard error
    #[arg(long)]
    json: bool,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct PlanArgs {
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten)]
    redis: RedisArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn options(redis: &RedisArgs) -> Result<JobOptions, Failure> {
    let (access, seeds) = redis.access()?.ok_or_else(|| {
        Failure::usage("say where the cluster is: --redis redis://host:port (or REDIS_URL)")
    })?;
    let mut options = JobOptions::new(seeds, access);
    options.natives = crate::cli::own().jobs;
    Ok(options)
}

pub(super) fn plan(args: PlanArgs) -> Result<Exit, Failure> {
    let options = options(&args.redis)?;
    let job = args.job.into_spec("plan".into()).map_err(Failure::usage)?;
    let system = ActorSystem::start().map_err(Failure::failed)?;
    let explained = system.block_on(async move { explain(&job, &options).await }).map_err(Failure::failed)?;
    let (_, explanation) = explained.map_err(Failure::failed)?;
    if args.json {
        output::json(&json!(explanation))?
    } else {
        output::line(&explanation)?
    }
    Ok(Exit::Finished)
}

pub(super) fn run(args: RunArgs) -> Result<Exit, Failure> {
    let id = args.id.clone().unwrap_or_else(|| format!("job-{}", uuid::Uuid::now_v7().simple()));
    if args.submit {
        return submit(args, id);
    }
    let options = options(&args.redis)?;
    let job = args.job.into_spec(id).map_err(Failure::usage)?;
    let system = ActorSystem::start().map_err(Failure::failed)?;
    let (quiet, inside) = (args.quiet, system.clone());
    let report = system.block_on(async move {
        let report = follow(&inside, job, options, quiet).await;
        inside.shutdown(SHUTDOWN).await;
        report
    });
    finish(&report.map_err(Failure::failed)??, args.json)
}

fn finish(report: &JobReport, json: bool) -> Result<Exit, Failure> {
    if json {
        output::json(&json!(report))?
    } else {
        show::report(report)?
    }
    Ok(show::exit(report))
}

/// Runs the job in this process and shows how it goes. Ctrl-C cancels it; a second one leaves at once.
async fn follow(
    system: &ActorSystem,
    job: JobSpec,
    options: JobOptions,
    quiet: bool,
) -> Result<JobReport, Failure> {
    let mut run = JobRun::start(system, job, options).map_err(Failure::failed)?;
    let mut progress = run.progress();
    let mut watch = Watch::new(quiet);
    let mut cancelled = false;
    loop {
        tokio::select! {
            report = run.report() => {
                watch.end();
                return report.map_err(Failure::failed);
            }
            Ok(()) = progress.changed() => watch.show(&progress.borrow_and_update()),
            () = watch.wait() => watch.line(&progress.borrow()),
            Ok(()) = tokio::signal::ctrl_c() => {
                if cancelled {
                    return Err(Failure::Cancelled("left at once: what was under way may still end on the nodes".into()));
                }
                eprintln!("cancelling; press Ctrl-C again to leave at once");
                cancelled = true;
                run.cancel();
            }
        }
    }
}

/// Hands the job to a controller as a task of class `ChainJob`.
fn submit(args: RunArgs, id: String) -> Result<Exit, Failure> {
    let (_, seeds) = args.redis.access()?.ok_or_else(|| {
        Failure::usage("say where the cluster is, as the Skald reaches it: --redis redis://host:port")
    })?;
    let job = args.job.into_spec(id.clone()).map_err(Failure::usage)?;
    let redis: Vec<String> = seeds.iter().map(|seed| format!("redis://{seed}")).collect();
    let api = Api::new(&args.api);
    let task = json!({
        "id": id, "className": "ChainJob", "source": "skald job run", "priority": job.priority,
        "attachments": { "redis": redis, "job": job },
    });
    api.post("/api/tasks", &task)?;
    if args.detach {
        match args.json {
            true => output::json(&json!({ "id": id }))?,
            false => output::line(&id)?,
        }
        return Ok(Exit::Finished);
    }
    let mut teller = Teller { quiet: args.quiet, lines: Lines::new(args.quiet), last: String::new() };
    loop {
        let task = api.get(&task_path(&id))?;
        let status = task.get("lifecycleStatus").and_then(Value::as_str).unwrap_or_default();
        if matches!(status, "Finished" | "Failed" | "Cancelled") {
            return match report_of(&task) {
                Some(report) => finish(&report, args.json),
                None if args.json => finish(&instead_of_report(&id, &task, status), true),
                None => Err(without_report(&task, status)),
            };
        }
        teller.tell(watch::line_of(&task));
        std::thread::sleep(ASK_EVERY);
    }
}

/// What is said of a task while it is waited for.
struct Teller {
    quiet: bool,
    /// Of a standard error that is no terminal; a terminal gets each line that says something new.
    lines: Option<Lines>,
    last: String,
}

impl Teller {
    fn tell(&mut self, line: String) {
        let due = match &mut self.lines {
            Some(lines) => lines.is_due(),
            None => !self.quiet && line != self.last,
        };
        if due {
            watch::tell(&line);
            self.last = line;
        }
    }
}

fn without_report(task: &Value, status: &str) -> Failure {
    let error = task.get("skalds").and_then(|skalds| skalds.get("lastError")).and_then(Value::as_str);
    let said = error.map(|error| format!(": {error}")).unwrap_or_default();
    match status {
        "Cancelled" => Failure::Cancelled(format!("the job was cancelled{said}")),
        "Finished" => Failure::failed("the task finished without a job's report"),
        _ => Failure::failed(format!("the job ended as {status}{said}")),
    }
}

/// What `--json` prints of a task that ended without a report: nothing of it is known to be done.
fn instead_of_report(id: &str, task: &Value, status: &str) -> JobReport {
    let status_of = if status == "Cancelled" { LifecycleStatus::Cancelled } else { LifecycleStatus::Failed };
    let mut report = JobReport::new(id, status_of);
    report.error = Some(without_report(task, status).to_string());
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_without_a_report_is_still_one_object_with_its_error() {
        let task = json!({ "skalds": { "lastError": "no seed answers" } });
        for (status, said, wanted, exit) in [
            ("Failed", "Failed", "the job ended as Failed: no seed answers", Exit::Failed),
            ("Cancelled", "Cancelled", "the job was cancelled: no seed answers", Exit::Cancelled),
            ("Finished", "Failed", "the task finished without a job's report", Exit::Failed),
        ] {
            let report = instead_of_report("j", &task, status);
            assert_eq!(show::exit(&report), exit);
            let printed = json!(report);
            assert_eq!((&printed["id"], &printed["status"]), (&json!("j"), &json!(said)));
            assert_eq!((&printed["error"], &printed["partial"]), (&json!(wanted), &json!(true)));
        }
    }
}
