//! `skald doctor`: what can be reached, which versions, what is missing.

#[cfg(feature = "kafka")]
mod kafka;
mod mongo;
mod redis;

use crate::config::env::Environment;
use serde::Serialize;
use serde_json::json;

use super::api::{Api, ApiArgs};
use super::exit::{Exit, Failure};
use super::mongo::MongoArgs;
use super::output;
use super::redis::RedisArgs;
use super::table::printable;

#[derive(Debug, clap::Args)]
#[command(after_help = "Ends with 1 when something that was asked for cannot be used.")]
pub(crate) struct Args {
    #[command(flatten)]
    redis: RedisArgs,
    #[cfg(feature = "kafka")]
    #[command(flatten)]
    kafka: super::kafka::KafkaArgs,
    #[command(flatten)]
    mongo: MongoArgs,
    #[command(flatten)]
    api: ApiArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// One thing that was looked at.
#[derive(Debug, PartialEq, Serialize)]
struct Finding {
    verdict: Verdict,
    /// What was looked at.
    what: String,
    /// What was found, and what to do about it.
    said: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    /// It can be used.
    Ok,
    /// It can be used, with something left out.
    Warn,
    /// It is not there; nobody asked for it.
    Absent,
    /// It cannot be used.
    Failed,
}

impl Finding {
    fn new(verdict: Verdict, what: impl Into<String>, said: impl Into<String>) -> Self {
        Finding { verdict, what: what.into(), said: said.into() }
    }
}

pub(crate) fn run(args: Args) -> Result<Exit, Failure> {
    let mut findings = vec![Finding::new(Verdict::Ok, "skald", env!("CARGO_PKG_VERSION"))];
    findings.extend(environment());
    findings.extend(redis::look(&args.redis)?);
    #[cfg(feature = "kafka")]
    findings.push(kafka::look(&args.kafka)?);
    findings.push(mongo::look(&args.mongo)?);
    findings.push(controller(&Api::new(&args.api), std::env::var_os("SKALD_API").is_some()));
    let failed = findings.iter().any(|finding| finding.verdict == Verdict::Failed);
    if args.json {
        output::json(&json!({ "ok": !failed, "findings": findings }))?;
    } else {
        for Finding { verdict, what, said } in &findings {
            let verdict = format!("{verdict:?}").to_lowercase();
            output::line(format_args!("{verdict:<7} {what:<11} {}", printable(said)))?;
        }
    }
    Ok(if failed { Exit::Failed } else { Exit::Finished })
}

/// The variables that the Python package shares with us.
fn environment() -> Vec<Finding> {
    let mut findings = match Environment::read(|name| std::env::var(name).ok()) {
        Ok(_) => vec![Finding::new(Verdict::Ok, "environment", "every variable that is set can be used")],
        Err(bad) => {
            bad.0.iter().map(|bad| Finding::new(Verdict::Failed, "environment", bad.to_string())).collect()
        }
    };
    if !cfg!(feature = "kafka") && std::env::var_os("KAFKA_HOST").is_some_and(|value| !value.is_empty()) {
        let said = "KAFKA_HOST is set, but this program was built without the feature kafka and ignores it";
        findings.push(Finding::new(Verdict::Warn, "environment", said));
    }
    findings
}

fn controller(api: &Api, asked_for: bool) -> Finding {
    match api.get("/api/system/health") {
        Ok(health) => {
            let status = health.get("status").and_then(|status| status.as_str()).unwrap_or("unknown");
            let verdict = if status == "healthy" { Verdict::Ok } else { Verdict::Failed };
            Finding::new(verdict, "controller", format!("{} says that it is {status}", api.address()))
        }
        Err(failure) => {
            let verdict = if asked_for { Verdict::Failed } else { Verdict::Absent };
            Finding::new(verdict, "controller", failure.to_string())
        }
    }
}
