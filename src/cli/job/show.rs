//! A job's report for people.

use std::collections::BTreeSet;

use crate::chain::report::JobReport;
use crate::core::task::LifecycleStatus;
use serde_json::Value;

use crate::cli::exit::{Exit, Failure};
use crate::cli::output;
use crate::cli::table::{bytes, count, printable, table};

/// How many rows of a table of results are shown.
const MAX_ROWS: usize = 50;
/// Who ran a hop without an agent, by [`crate::chain::report::HopLine::agent`].
const DIRECT: &str = "direct";

/// How a job's end is told to a shell.
pub(super) fn exit(report: &JobReport) -> Exit {
    match (report.status, report.partial) {
        (LifecycleStatus::Finished, false) => Exit::Finished,
        (LifecycleStatus::Finished, true) => Exit::Partial,
        (LifecycleStatus::Cancelled, _) => Exit::Cancelled,
        _ => Exit::Failed,
    }
}

/// Prints the result, then what each hop did, then what went wrong.
pub(super) fn report(report: &JobReport) -> Result<(), Failure> {
    output::line(lines(report).join("\n"))
}

fn lines(report: &JobReport) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(warning(report));
    lines.extend(result(&report.result));
    lines.push(String::new());
    if !report.hops.is_empty() {
        lines.extend([hops(report).to_string(), String::new()]);
    }
    lines.push(summary(report));
    let notes: BTreeSet<&String> = report.hops.iter().flat_map(|hop| &hop.notes).collect();
    lines.extend(notes.into_iter().map(|note| format!("note: {}", printable(note))));
    let mut failed = 0;
    for error in &report.errors {
        failed += u64::from(!error.key.is_empty());
        let about = if error.key.is_empty() { String::new() } else { format!("{}: ", printable(&error.key)) };
        lines.push(format!("  {about}{} (node {})", printable(&error.reason), error.node));
    }
    if let more @ 1.. = report.keys.errors.saturating_sub(failed) {
        lines.push(format!("  … and {} more", count(more)));
    }
    lines.extend(report.error.as_ref().map(|error| format!("error: {}", printable(error))));
    lines
}

/// What has to be known before the result is read.
fn warning(report: &JobReport) -> Option<String> {
    let word = match report.status {
        LifecycleStatus::Finished if !report.partial => return None,
        LifecycleStatus::Finished => {
            return Some("PARTIAL: the result below does not cover everything".into());
        }
        LifecycleStatus::Cancelled => "CANCELLED",
        _ => "FAILED",
    };
    Some(match &report.result {
        Value::Null => word.to_owned(),
        _ => format!("{word}: the result below holds only what had come back"),
    })
}

fn result(value: &Value) -> Vec<String> {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let mut rows: Vec<(&String, &Value)> = fields.iter().collect();
            // The largest first; what is no number keeps its order.
            rows.sort_by(|a, b| number(b.1).total_cmp(&number(a.1)));
            let mut shown = table(&["VALUE", "RESULT"]);
            for (name, value) in rows.iter().take(MAX_ROWS) {
                let name = if name.is_empty() { "(none)".to_owned() } else { printable(name) };
                shown.add_row([name, plain(value)]);
            }
            let mut lines = vec![shown.to_string()];
            if let more @ 1.. = rows.len().saturating_sub(MAX_ROWS) {
                lines.push(format!("… and {more} more rows; --json has them all"));
            }
            lines
        }
        value => vec![plain(value)],
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NEG_INFINITY)
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => "no result".to_owned(),
        Value::String(text) => printable(text),
        Value::Number(number) => match number.as_u64() {
            Some(whole) => count(whole),
            None => number.to_string(),
        },
        other => other.to_string(),
    }
}

fn hops(report: &JobReport) -> comfy_table::Table {
    // Direct mode needs no column that says so.
    let agents = report.hops.iter().any(|hop| hop.agent != DIRECT);
    let mut head = vec!["HOP", "NODE", "KEYS", "TIME", "IN REDIS", "LONGEST CALL", "STATE", "SENT AS"];
    if agents {
        head.push("AGENT");
    }
    let mut shown = table(&head);
    for hop in &report.hops {
        let mut row = vec![
            format!("{}.{}", hop.chain, hop.order),
            hop.node.clone(),
            count(hop.keys),
            millis(hop.millis),
            millis(hop.engine_millis),
            millis(hop.max_block_millis),
            bytes(hop.state_bytes),
            bytes(hop.state_bytes_compressed),
        ];
        if agents {
            row.push(printable(&hop.agent));
        }
        shown.add_row(row);
    }
    shown
}

fn millis(value: f64) -> String {
    if value < 1_000.0 { format!("{value:.1} ms") } else { format!("{:.2} s", value / 1_000.0) }
}

fn summary(report: &JobReport) -> String {
    let chains = match report.plan.chains.len() {
        1 => "1 chain".to_owned(),
        chains => format!("{chains} chains"),
    };
    format!(
        "{} {:?}: {} keys, {} matched, {} failed; {} of {} units; {chains}, epoch {}",
        report.id,
        report.status,
        count(report.keys.visited),
        count(report.keys.matched),
        count(report.keys.errors),
        count(report.units.done),
        count(report.units.total),
        report.plan.epoch,
    )
}

#[cfg(test)]
mod tests {
    use crate::chain::report::{ErrorLine, KeyCounts};
    use crate::chain::state::HopReport;
    use serde_json::json;

    use super::*;

    fn with_hops(agents: [&str; 2]) -> JobReport {
        let mut report = JobReport::new("j", LifecycleStatus::Finished);
        report.result = json!(3);
        for (order, agent) in (0..).zip(agents) {
            let notes = vec!["not exact\u{1b}".to_owned()];
            let hop = HopReport { agent: agent.into(), order, notes, ..HopReport::default() };
            report.add_hop(&hop, format!("h:{order}"));
        }
        report
    }

    fn shown(report: &JobReport) -> String {
        lines(report).join("\n")
    }

    #[test]
    fn a_note_is_shown_once_and_agents_where_there_are_any() {
        let direct = shown(&with_hops([DIRECT; 2]));
        assert!(direct.starts_with("3\n\nHOP") && !direct.contains("AGENT"), "{direct}");
        assert_eq!(direct.matches("note: not exact\\u{1b}").count(), 1, "{direct}");
        let mixed = shown(&with_hops([DIRECT, "h:17000"]));
        assert!(mixed.contains("AGENT") && mixed.contains(DIRECT) && mixed.contains("h:17000"), "{mixed}");
    }

    #[test]
    fn how_it_ended_comes_first() {
        for (status, partial, word) in [
            (LifecycleStatus::Finished, false, "3"),
            (LifecycleStatus::Finished, true, "PARTIAL: "),
            (LifecycleStatus::Failed, true, "FAILED: the result"),
            (LifecycleStatus::Cancelled, true, "CANCELLED: the result"),
        ] {
            let shown = shown(&JobReport { status, partial, ..with_hops([DIRECT; 2]) });
            assert!(shown.starts_with(word), "{shown}");
            assert_eq!(shown.matches("PARTIAL").count(), usize::from(word == "PARTIAL: "), "{shown}");
        }
    }

    #[test]
    fn failing_keys_that_are_not_listed_are_counted() {
        let mut report = with_hops([DIRECT; 2]);
        let line = |key: &str| ErrorLine { key: key.into(), node: "h:1".into(), reason: "WRONGTYPE".into() };
        report.errors = vec![line("a"), line("b"), line("")];
        report.keys = KeyCounts { errors: 2, ..KeyCounts::default() };
        assert!(!shown(&report).contains("more"));
        report.keys.errors = 1_203;
        assert!(shown(&report).ends_with("  WRONGTYPE (node h:1)\n  … and 1,201 more"), "{}", shown(&report));
    }
}
