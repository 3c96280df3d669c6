//! `skald completions`.

use clap::{CommandFactory, ValueEnum};
use clap_complete::Shell;

use super::exit::{Exit, Failure};

#[derive(Debug, clap::Args)]
#[command(after_help = "For example: skald completions bash > /etc/bash_completion.d/skald")]
pub(crate) struct Args {
    /// For which shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints the script for the command line of `C`.
pub(crate) fn run<C: CommandFactory>(args: Args) -> Result<Exit, Failure> {
    debug_assert!(Shell::value_variants().contains(&args.shell));
    clap_complete::generate(args.shell, &mut C::command(), "skald", &mut std::io::stdout());
    Ok(Exit::Finished)
}
