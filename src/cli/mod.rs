//! The subcommands of `skald`, for its own binary and for yours.
//!
//! Worker classes and chain jobs written in Rust are part of a program, so a fleet that runs some has a `skald` of its
//! own: a `main` of one line that adds them to what comes with [`main`]. Agents, Skalds and `skald job run` then know them
//! under the same names.
//!
//! ```no_run
//! use skalds::cli::Own;
//!
//! fn main() -> std::process::ExitCode {
//!     let mut own = Own::default();
//!     // own.jobs = own.jobs.with(MyJob);
//!     // own.classes.register::<MyWorker>("MyWorker");
//!     skalds::cli::main(own)
//! }
//! ```
//!
//! Results go to standard output, logs and progress to standard error. Each subcommand is a module with its `Args` and
//! a `run` that answers an `Exit` or says what went wrong.

mod agent;
mod api;
mod backends;
mod completions;
mod controller;
mod dev;
mod doctor;
mod exit;
mod job;
#[cfg(feature = "kafka")]
mod kafka;
mod logging;
mod mongo;
mod node;
mod output;
mod redis;
mod reload;
mod run;
mod serve;
mod skald;
mod stop;
mod table;
mod task;

use std::process::ExitCode;
use std::sync::OnceLock;

use clap::{Parser, Subcommand};

use self::exit::{Exit, Failure};
use crate::actors::worker::WorkerClasses;
use crate::node::NativeJobs;

/// What a `skald` knows beside what comes with it.
#[derive(Debug, Clone, Default)]
pub struct Own {
    /// Chain jobs written in Rust (`--native NAME`).
    pub jobs: NativeJobs,
    /// Worker classes.
    pub classes: WorkerClasses,
}

/// Set once, before a subcommand runs.
static OWN: OnceLock<Own> = OnceLock::new();

fn own() -> Own {
    OWN.get().cloned().unwrap_or_default()
}

/// Runs tasks on a fleet of Skalds, and batch jobs that move to the data of a Redis Cluster
#[derive(Debug, Parser)]
#[command(
    name = "skald",
    version,
    max_term_width = 110,
    disable_help_subcommand = true,
    after_help = "Exit codes: 0 finished, 1 failed, 2 wrong usage, 3 finished in part, 130 cancelled."
)]
struct Cli {
    #[command(flatten)]
    log: logging::LogArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant)] // parsed once, and used at once
enum Command {
    /// Run chain jobs: batch work that moves to the data of a Redis Cluster
    Job(job::Args),
    /// Run an agent beside a cache node
    Agent(agent::Args),
    /// Run a controller and a Skald in one process, with durable storage and the API on loopback
    Dev(dev::Args),
    /// Run the tasks of a workers file, here and now
    Run(run::Args),
    /// Run a Skald that takes its tasks from a controller
    Node(node::Args),
    /// Run a controller: the API, the dispatcher and the monitor
    Controller(controller::Args),
    /// Create, list, show, cancel and update tasks through a controller
    Task(task::Args),
    /// Say what can be reached, in which versions, and what is missing
    Doctor(doctor::Args),
    /// Print a completion script for a shell
    Completions(completions::Args),
}

/// Runs what the command line asks for; the whole `main` of a program.
pub fn main(own: Own) -> ExitCode {
    OWN.get_or_init(|| own);
    // What the environment has counts more than what the file has.
    match dotenvy::dotenv() {
        Err(error) if !error.not_found() => {
            eprintln!("skald: the .env file cannot be used: {error}");
            return Exit::Usage.into();
        }
        _ => {}
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // cannot matter: nobody reads what cannot be printed
            let _ = error.print();
            return if error.use_stderr() { Exit::Usage } else { Exit::Finished }.into();
        }
    };
    cli.log.init();
    match run(cli.command) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            eprintln!("skald: {failure}");
            failure.exit().into()
        }
    }
}

fn run(command: Command) -> Result<Exit, Failure> {
    match command {
        Command::Job(args) => job::run(args),
        Command::Agent(args) => agent::run(args),
        Command::Dev(args) => dev::run(args),
        Command::Node(args) => node::run(args),
        Command::Controller(args) => controller::run(args),
        Command::Run(args) => run::run(args),
        Command::Task(args) => task::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Completions(args) => completions::run::<Cli>(args),
    }
}

/// A runtime for a subcommand that calls something asynchronous and waits for it.
fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::failed(format!("cannot start a runtime: {error}")))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Cli;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_argument_says_what_it_is_for() {
        fn check(command: &clap::Command) {
            assert!(command.get_about().is_some(), "{} has no help", command.get_name());
            for argument in command.get_arguments() {
                assert!(
                    argument.get_help().is_some(),
                    "{} {} has no help",
                    command.get_name(),
                    argument.get_id()
                );
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }
}
