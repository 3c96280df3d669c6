//! The `skald` binary.

mod cli;

fn main() {}
