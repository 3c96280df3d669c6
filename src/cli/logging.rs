//! Logs, always on standard error.

use std::io::IsTerminal;

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

#[derive(Debug, Args)]
#[command(next_help_heading = "Logging")]
pub(crate) struct LogArgs {
    /// What is logged: error, warn, info, debug or trace. RUST_LOG, when set, says it per module instead
    #[arg(long = "log", value_name = "LEVEL", env = "LOG_LEVEL", default_value = "info", global = true)]
    #[arg(value_parser = level, hide_env_values = true)]
    level: tracing::Level,
    /// How a line of the log looks
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text", global = true)]
    log_format: LogFormat,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

impl LogArgs {
    /// Everything that is logged from here on goes to standard error.
    pub(crate) fn init(&self) {
        // What the HTTP server says of its threads is of no use to those who run it.
        let quiet = format!("{},actix_server=warn", self.level);
        let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(quiet));
        let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
        match self.log_format {
            LogFormat::Text => builder.with_ansi(colored()).init(),
            LogFormat::Json => builder.json().init(),
        }
    }
}

fn colored() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// A level in our spelling or in the Python package's (its `LOG_LEVEL` is shared).
fn level(text: &str) -> Result<tracing::Level, String> {
    Ok(match text.to_ascii_lowercase().as_str() {
        "error" | "critical" => tracing::Level::ERROR,
        "warn" | "warning" => tracing::Level::WARN,
        "info" | "success" => tracing::Level::INFO,
        "debug" => tracing::Level::DEBUG,
        "trace" => tracing::Level::TRACE,
        _ => return Err("expected error, warn, info, debug or trace".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn levels_of_the_python_package_are_understood() {
        assert_eq!(super::level("WARNING"), Ok(tracing::Level::WARN));
        assert_eq!(super::level("Critical"), Ok(tracing::Level::ERROR));
        assert!(super::level("loud").is_err());
    }
}
