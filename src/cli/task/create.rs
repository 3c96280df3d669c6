//! `skald task create`, and attachments on the command line.

use std::io::Read;
use std::time::Duration;

use crate::core::task::Millis;
use serde_json::{Map, Value, json};

use super::path;
use super::view::TaskView;
use crate::cli::api::Api;
use crate::cli::exit::{Exit, Failure, exit_of};
use crate::cli::output;

/// How often `--wait` looks.
const POLL: Duration = Duration::from_millis(200);

#[derive(Debug, clap::Args)]
pub(super) struct CreateArgs {
    /// The worker class that runs it
    class: String,
    /// Its id; made up when absent
    #[arg(long)]
    id: Option<String>,
    /// A name, for people
    #[arg(long)]
    name: Option<String>,
    /// A description, for people
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    #[command(flatten)]
    attachments: AttachmentArgs,
    /// 0 (lowest) to 10
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=10))]
    priority: u8,
    /// A task that must be Finished first; may be given several times
    #[arg(long = "after", value_name = "ID")]
    dependencies: Vec<String>,
    /// Attempts allowed; negative is without limit, absent is the controller's default
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    max_attempts: Option<i64>,
    /// Not started before: a time (2026-01-31T08:00:00Z) or a span from now (90s, 2h)
    #[arg(long, value_name = "WHEN", value_parser = point_in_time)]
    not_before: Option<Millis>,
    /// Fails when it has not ended by then: a time, a span from now, or never
    #[arg(long, value_name = "WHEN", value_parser = deadline)]
    deadline: Option<Millis>,
    /// Start it at each tick of this cron expression, in UTC
    #[arg(long, value_name = "EXPRESSION")]
    cron: Option<String>,
    /// Wait until it has ended; the exit code is the task's
    #[arg(long)]
    wait: bool,
    /// Print the task as the API's JSON instead of its id
    #[arg(long)]
    json: bool,
}

/// Attachments, the worker's own parameters.
#[derive(Debug, clap::Args)]
pub(super) struct AttachmentArgs {
    /// All attachments: a JSON object, @FILE that holds one, or - for standard input
    #[arg(long, value_name = "JSON|@FILE|-")]
    attachments: Option<String>,
    /// One attachment; VALUE is JSON where it can be, else text. May be given several times
    #[arg(short, long = "attach", value_name = "NAME=VALUE", value_parser = attachment)]
    attach: Vec<(String, Value)>,
}

impl AttachmentArgs {
    /// What was given, `None` when nothing was.
    pub(super) fn read(self) -> Result<Option<Map<String, Value>>, Failure> {
        if self.attachments.is_none() && self.attach.is_empty() {
            return Ok(None);
        }
        let mut all = match self.attachments {
            Some(text) => parse_object(&text)?,
            None => Map::new(),
        };
        all.extend(self.attach);
        Ok(Some(all))
    }
}

pub(super) fn parse_object(source: &str) -> Result<Map<String, Value>, Failure> {
    let cannot =
        |what: &str, error: &dyn std::fmt::Display| Failure::usage(format!("cannot read {what}: {error}"));
    let text = match (source, source.strip_prefix('@')) {
        ("-", _) => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map_err(|error| cannot("standard input", &error))?;
            text
        }
        (_, Some(file)) => std::fs::read_to_string(file).map_err(|error| cannot(file, &error))?,
        _ => source.to_owned(),
    };
    serde_json::from_str(&text)
        .map_err(|error| Failure::usage(format!("the attachments are not a JSON object: {error}")))
}

/// `NAME=VALUE`.
pub(super) fn attachment(text: &str) -> Result<(String, Value), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    if name.is_empty() {
        return Err("expected a name before the =".to_owned());
    }
    Ok((name.to_owned(), serde_json::from_str(value).unwrap_or_else(|_| Value::from(value))))
}

/// A time, or a span from now.
fn point_in_time(text: &str) -> Result<Millis, String> {
    if let Ok(span) = humantime::parse_duration(text) {
        let span = Millis::try_from(span.as_millis()).map_err(|_| "too far away".to_owned())?;
        return Ok(jiff::Timestamp::now().as_millisecond().saturating_add(span));
    }
    text.parse::<jiff::Timestamp>()
        .map(jiff::Timestamp::as_millisecond)
        .map_err(|_| "expected a time such as 2026-01-31T08:00:00Z or a span such as 90s or 2h".to_owned())
}

/// A time, a span from now, or `never`, which a task writes as 0.
fn deadline(text: &str) -> Result<Millis, String> {
    if text == "never" { Ok(0) } else { point_in_time(text) }
}

pub(super) fn run(api: &Api, args: CreateArgs) -> Result<Exit, Failure> {
    let mut body = json!({"className": args.class, "priority": args.priority, "source": "skald"});
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            body[name] = value;
        }
    };
    set("id", args.id.map(Value::from));
    set("name", args.name.map(Value::from));
    set("description", args.description.map(Value::from));
    set("attachments", args.attachments.read()?.map(Value::from));
    set("dependencies", (!args.dependencies.is_empty()).then(|| Value::from(args.dependencies)));
    set("maxAttempts", args.max_attempts.map(Value::from));
    set("notBefore", args.not_before.map(Value::from));
    set("deadlineDateTime", args.deadline.map(Value::from));
    set("cron", args.cron.map(Value::from));
    let mut created = api.post("/api/tasks", &body)?;
    let id = TaskView::read(&created)?.id;
    let mut exit = Exit::Finished;
    if args.wait {
        (created, exit) = wait(api, &id)?;
    }
    if args.json {
        output::json(&created)?
    } else {
        output::line(&id)?
    };
    Ok(exit)
}

/// Looks until the task has ended.
fn wait(api: &Api, id: &str) -> Result<(Value, Exit), Failure> {
    loop {
        let body = api.get(&path(id))?;
        let task = TaskView::read(&body)?;
        if let Some(exit) = exit_of(task.lifecycle_status) {
            if exit == Exit::Failed {
                eprintln!(
                    "skald: task {id} failed: {}",
                    task.skalds.last_error.as_deref().unwrap_or("no reason given")
                );
            }
            return Ok((body, exit));
        }
        std::thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_json_where_it_can_be() {
        assert_eq!(attachment("n=30"), Ok(("n".into(), json!(30))));
        assert_eq!(attachment("url=rtsp://a?x=1"), Ok(("url".into(), json!("rtsp://a?x=1"))));
        assert_eq!(attachment("list=[1,\"a\"]"), Ok(("list".into(), json!([1, "a"]))));
        assert!(attachment("nothing").is_err() && attachment("=1").is_err());
    }

    #[test]
    fn single_attachments_win_over_the_object() {
        let args = AttachmentArgs {
            attachments: Some(r#"{"a": 1, "b": 2}"#.into()),
            attach: vec![("b".into(), json!(3))],
        };
        assert_eq!(Value::from(args.read().unwrap().unwrap()), json!({"a": 1, "b": 3}));
        let wrong = AttachmentArgs { attachments: Some("[1]".into()), attach: vec![] };
        assert!(matches!(wrong.read(), Err(Failure::Usage(_))));
        assert!(AttachmentArgs { attachments: None, attach: vec![] }.read().unwrap().is_none());
    }

    #[test]
    fn times_are_absolute_or_from_now() {
        assert_eq!(point_in_time("2026-01-01T00:00:00Z"), Ok(1_767_225_600_000));
        let now = jiff::Timestamp::now().as_millisecond();
        assert!((now + 5_400_000..now + 5_460_000).contains(&point_in_time("1h 30m").unwrap()));
        assert_eq!(deadline("never"), Ok(0));
        assert!(point_in_time("soon").is_err());
    }
}
