//! A job's step on real nodes: every kind of target and step, on the versions that are promised.

mod support;

#[path = "node_engine/drive.rs"]
mod drive;
#[path = "node_engine/failures.rs"]
mod failures;
#[path = "node_engine/lost.rs"]
mod lost;
#[path = "node_engine/native.rs"]
mod native;
#[path = "node_engine/patterns.rs"]
mod patterns;
#[path = "node_engine/sequences.rs"]
mod sequences;
#[path = "node_engine/writes.rs"]
mod writes;
