//! Running a job's step on one cache node.
//!
//! A [`StepRunner`] works off one node's share of a job: it makes bounded calls of a script that runs inside the engine
//! and folds what they did into the job state. [`discover`] finds out what there is to run on.
//!
//! # A job's own Lua text
//! It defines `each(key, acc)`, which answers the new accumulator (`nil` at first), and where they are needed
//! `merge(a, b)`, `finish(acc)` and `next(key, acc)`; `args` holds the job's arguments. A shebang line may stand on top.
//! Everything else it declares must be `local`. Values are what cmsgpack keeps: nil, booleans, numbers, strings of any
//! bytes and tables up to 14 levels deep; a table with the keys 1 to n is a list. A failing `each` must not have
//! changed `acc` before it failed. Keys that do not exist are not given to `each`; in a walk they are errors.
//!
//! The text runs inside the engine with all rights of the Redis user that the agent connects as: on its owner's own
//! responsibility. A job whose access is `Read` is held to it by the engine (Redis 7.0 and later).
//!
//! # What the Redis user needs
//! INFO, PING, TIME, DBSIZE, CLIENT LIST, CLUSTER NODES, SLOTS, GETKEYSINSLOT and COUNTKEYSINSLOT, SCAN, GET, EXISTS,
//! SCRIPT LOAD, EVALSHA and EVALSHA_RO, the commands of the step, and the keys `skalds:unit:*` beside the job's own
//! (SET on them for jobs that write). SCRIPT KILL, so that a step that never ends can be stopped.

mod access;
mod care;
mod cluster;
mod connection;
mod engine;
mod error;
mod foreign;
mod ledger;
mod markers;
mod native;
mod native_step;
mod pacing;
mod page_hop;
mod presence;
mod raw_hop;
mod reply;
mod runner;
mod script;
mod sequence_hop;
mod site;
mod slot_hop;
mod successor;
mod unit;

pub use access::RedisAccess;
pub(crate) use care::end_script;
pub use cluster::{ClusterView, NodeView, discover};
pub use error::NodeError;
pub use markers::forget_markers;
pub use native::{ChainJob, Command, NativeJobs, Reply, StepContext, StepError};
pub use presence::Presence;
pub use runner::{Advance, StepRunner, check};
pub(crate) use successor::successor;
