//! The life of tasks, through the public API: one process, embedded backends, several Skalds where it takes them.

#[cfg(unix)]
mod command;
mod fleet;
mod house;
mod lifecycle;
mod python;
mod schedule;
mod workers;
mod yaml;
