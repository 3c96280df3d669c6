//! Running a job's step on one cache node.

mod access;
mod cluster;
mod connection;
mod error;
mod native;
mod reply;
mod runner;

pub use access::{Password, RedisAccess};
pub use cluster::{AGENT_NAME_PREFIX, ClusterView, NodeView, discover};
pub use error::NodeError;
pub use native::{ChainJob, Command, NativeJobs, Reply, StepContext, StepError};
pub use runner::{Advance, StepRunner, check};
