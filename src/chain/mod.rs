//! The rules of chain jobs, as plain data and functions.
//!
//! The words are those of `docs/architecture.md`: a **job** (what a user submits) is planned into **chains** of
//! **hops**; a hop works off **units** on one node; the **job state** travels along the chain and holds the
//! **ledger** (units done) and the **deltas** folded so far. Nothing here is async, reads a clock, does I/O or logs.

pub mod combine;
pub mod frame;
pub mod glob;
pub mod hop;
pub mod job;
pub mod message;
#[cfg(test)]
mod model;
pub mod plan;
pub mod report;
pub mod request;
pub mod run;
#[cfg(test)]
mod sim;
pub mod slots;
pub mod state;
pub mod value;
