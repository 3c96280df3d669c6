//! Results, on standard output.

use std::fmt::Display;
use std::io::{ErrorKind, Write};

use serde_json::Value;

use super::exit::Failure;

/// Prints one line. A reader that has gone (`skald … | head`) is no failure: it has what it wanted.
pub(crate) fn line(text: impl Display) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints a JSON document for a program, indented for a person who looks over its shoulder.
pub(crate) fn json(document: &Value) -> Result<(), Failure> {
    line(format_args!("{document:#}"))
}

/// Says that a long-running subcommand serves: `ready NAME key=value …`, the line that scripts and tests wait for.
pub(crate) fn ready(name: &str, facts: &[(&str, &dyn Display)]) -> Result<(), Failure> {
    let facts: String = facts.iter().map(|(key, value)| format!(" {key}={value}")).collect();
    line(format_args!("ready {name}{facts}"))
}
