//! The task model and its rules, as plain data and functions.
//!
//! Nothing here is async, reads a clock, draws a random number, does I/O or logs: `now` (milliseconds since the
//! Unix epoch) and seeds are arguments.

pub mod attachments;
mod change;
pub mod event;
pub mod judge;
pub mod leadership;
pub mod lease;
pub mod lifecycle;
pub mod names;
pub mod order;
pub mod placement;
pub mod policy;
pub mod schedule;
pub mod submission;
pub mod task;
