//! The task model and its rules, as plain data and functions.
//!
//! Nothing here is async, reads a clock, draws a random number, does I/O or logs: `now` (milliseconds since the
//! Unix epoch) and seeds are arguments.

pub mod task;
