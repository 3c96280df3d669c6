//! A job's report for people.

use serde_json::Value;
use skalds::chain::report::JobReport;
use skalds::core::task::LifecycleStatus;

use crate::cli::exit::{Exit, Failure};
use crate::cli::output;
use crate::cli::table::{bytes, count, printable, table};

/// How many rows of a table of results are shown.
const MAX_ROWS: usize = 50;

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
    if report.partial {
        output::line("PARTIAL: the result below does not cover everything")?;
    }
    result(&report.result)?;
    output::line("")?;
    if !report.hops.is_empty() {
        output::line(hops(report))?;
        output::line("")?;
    }
    output::line(summary(report))?;
    for error in &report.errors {
        let about = if error.key.is_empty() { String::new() } else { format!("{}: ", printable(&error.key)) };
        output::line(format_args!("  {about}{} (node {})", printable(&error.reason), error.node))?;
    }
    if let Some(error) = &report.error {
        output::line(format_args!("error: {}", printable(error)))?;
    }
    Ok(())
}

fn result(value: &Value) -> Result<(), Failure> {
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
            output::line(shown)?;
            match rows.len().saturating_sub(MAX_ROWS) {
                0 => Ok(()),
                more => output::line(format_args!("… and {more} more rows; --json has them all")),
            }
        }
        value => output::line(plain(value)),
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
    let mut shown = table(&["HOP", "NODE", "KEYS", "TIME", "IN REDIS", "LONGEST CALL", "STATE", "SENT AS"]);
    for hop in &report.hops {
        shown.add_row([
            format!("{}.{}", hop.chain, hop.order),
            hop.node.clone(),
            count(hop.keys),
            millis(hop.millis),
            millis(hop.engine_millis),
            millis(hop.max_block_millis),
            bytes(hop.state_bytes),
            bytes(hop.state_bytes_compressed),
        ]);
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
