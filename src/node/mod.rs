//! Running a job's step on one cache node.
//!
//! A [`StepRunner`] works off one node's share of a job: it makes bounded calls of a script that runs inside the engine
//! and folds what they did into the job state. A user's Lua text runs there with all rights of the Redis user that the
//! agent connects as: it is run on the owner's own responsibility. [`discover`] finds out what there is to run on.

mod access;
mod cluster;
mod connection;
mod engine;
mod error;
mod ledger;
mod native;
mod native_step;
mod pacing;
mod page_hop;
mod raw_hop;
mod reply;
mod runner;
mod script;
mod sequence_hop;
mod site;
mod slot_hop;
mod unit;

pub use access::{Password, RedisAccess};
pub use cluster::{AGENT_NAME_PREFIX, ClusterView, NodeView, discover};
pub use error::NodeError;
pub use native::{ChainJob, Command, NativeJobs, Reply, StepContext, StepError};
pub use runner::{Advance, StepRunner, check};
