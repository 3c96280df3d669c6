//! The `skald` binary.

fn main() -> std::process::ExitCode {
    skalds::cli::main(skalds::cli::Own::default())
}
