//! Tasks as text.

use std::fmt::Write;

use crate::core::task::{LifecycleStatus, Millis};

use super::view::TaskView;
use crate::cli::table::{age, printable, table, time};

/// A table with one line a task.
pub(super) fn list(tasks: &[TaskView], now: Millis) -> String {
    let mut table = table(&["ID", "CLASS", "STATUS", "SKALD", "PROGRESS", "AGE", "ERROR"]);
    for task in tasks {
        table.add_row([
            printable(&task.id),
            printable(&task.class_name),
            status(task),
            task.executor.as_deref().map(printable).unwrap_or_default(),
            task.skalds.progress.as_ref().map(|progress| percent(progress.value)).unwrap_or_default(),
            age(task.create_date_time, now),
            last_error(task).map(|error| shortened(&printable(error), 60)).unwrap_or_default(),
        ]);
    }
    table.trim_fmt()
}

/// All that is known of a task, a line for each thing that it has.
pub(super) fn describe(task: &TaskView) -> String {
    let extra = &task.skalds;
    let mut text = String::new();
    let mut line = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            // cannot fail: a String takes everything
            let _ = writeln!(text, "{name:<13} {}", printable(&value));
        }
    };
    line("id", Some(task.id.clone()));
    line("name", task.name.clone());
    line("description", task.description.clone());
    line("class", Some(task.class_name.clone()));
    line("status", Some(status(task)));
    line("skald", task.executor.clone());
    line("source", task.source.clone());
    line("priority", Some(task.priority.to_string()));
    line("created", Some(time(task.create_date_time)));
    line("changed", Some(time(task.update_date_time)));
    line("deadline", (task.deadline_date_time > 0).then(|| time(task.deadline_date_time)));
    line("not before", extra.not_before.map(time));
    line("schedule", extra.cron.clone());
    line("depends on", task.dependencies.as_ref().map(|ids| ids.join(", ")));
    line("attempt", (extra.attempt > 0).then(|| attempt(extra.attempt, extra.max_attempts)));
    line("next attempt", extra.next_attempt_at.map(time));
    line(
        "progress",
        extra.progress.as_ref().map(|progress| {
            let words = [Some(percent(progress.value)), progress.stage.clone(), progress.text.clone()];
            words.into_iter().flatten().collect::<Vec<_>>().join(" ")
        }),
    );
    line("error", last_error(task).map(str::to_owned));
    line("result", extra.result.as_ref().map(ToString::to_string));
    line(
        "attachments",
        task.attachments.as_ref().map(|map| serde_json::Value::Object(map.clone()).to_string()),
    );
    text
}

/// The status, and what an operator has asked for that has not happened yet.
fn status(task: &TaskView) -> String {
    let ended = super::super::exit::exit_of(task.lifecycle_status).is_some();
    let paused = task.lifecycle_status == LifecycleStatus::Paused;
    let wish = match (ended, task.skalds.cancel_requested, task.skalds.pause_requested) {
        (false, true, _) => " (cancelling)",
        (false, false, true) if !paused => " (pausing)",
        (false, false, false) if paused => " (resuming)",
        _ => "",
    };
    format!("{:?}{wish}", task.lifecycle_status)
}

fn last_error(task: &TaskView) -> Option<&str> {
    let said = [&task.exception, &task.error, &task.skalds.last_error];
    said.into_iter().flatten().map(String::as_str).find(|error| !error.is_empty())
}

fn attempt(number: u32, allowed: Option<i64>) -> String {
    match allowed {
        Some(allowed) if allowed >= 0 => format!("{number} of {allowed}"),
        _ => number.to_string(),
    }
}

fn percent(share: f64) -> String {
    format!("{:.0}%", share.clamp(0.0, 1.0) * 100.0)
}

fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn task(more: serde_json::Value) -> TaskView {
        let mut body =
            json!({"id": "t1", "className": "C", "lifecycleStatus": "Running", "createDateTime": 0});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        TaskView::read(&body).unwrap()
    }

    #[test]
    fn a_python_controllers_task_is_shown_with_what_it_has() {
        let python = task(json!({"executor": "a", "updateDateTime": 0, "mode": "Passive", "attachments": {},
            "heartbeat": 3, "error": null, "exception": "boom\n", "priority": 0}));
        let text = list(&[python], 61_000);
        assert_eq!(
            text,
            "ID  CLASS  STATUS   SKALD  PROGRESS  AGE  ERROR\nt1  C      Running  a                1m   boom\\n"
        );
    }

    #[test]
    fn what_an_operator_asked_for_stands_beside_the_status() {
        assert_eq!(status(&task(json!({"skalds": {"cancelRequested": true}}))), "Running (cancelling)");
        assert_eq!(status(&task(json!({"skalds": {"pauseRequested": true}}))), "Running (pausing)");
        let cancelled = json!({"lifecycleStatus": "Cancelled", "skalds": {"cancelRequested": true}});
        assert_eq!(status(&task(cancelled)), "Cancelled");
    }

    #[test]
    fn a_description_has_a_line_for_each_thing_that_is_there() {
        let shown =
            describe(&task(json!({"attachments": {"a": 1}, "skalds": {"attempt": 2, "maxAttempts": 3,
            "progress": {"value": 0.255, "text": "half"}, "result": [1]}})));
        assert!(shown.contains("attempt       2 of 3\n"), "{shown}");
        assert!(shown.contains("progress      26% half\n"), "{shown}");
        assert!(shown.contains("result        [1]\n"), "{shown}");
        assert!(shown.contains("attachments   {\"a\":1}\n"), "{shown}");
        assert!(!shown.contains("deadline"), "{shown}");
    }
}
