//! The life of tasks, through the public API: one process, embedded backends, several Skalds where it takes them.

#[cfg(unix)]
mod command;
mod fleet;
mod house;
mod lifecycle;
#[cfg(all(unix, feature = "mongo"))]
mod orders;
mod python;
#[cfg(feature = "redis")]
mod redis;
mod schedule;
#[cfg(any(feature = "redis", feature = "mongo"))]
#[path = "../support/mod.rs"]
mod support;
mod workers;
mod yaml;
