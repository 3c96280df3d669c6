//! The runner: works off one node's share of a job, one bounded call at a time.

use std::sync::Arc;

use super::access::RedisAccess;
use super::connection::NodeConnection;
use super::error::NodeError;
use super::native::NativeJobs;
use crate::chain::job::JobSpec;
use crate::chain::state::{JobState, PlanNode};
use crate::chain::value::Value;

/// What an [`StepRunner::advance`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advance {
    /// There is more to do on this node.
    Working {
        /// Units that were committed into the state.
        units: u32,
    },
    /// This node's share is done, or what is left of it cannot be done now: the state's position has moved on.
    HopDone,
}

/// Runs a job's step on one node.
pub struct StepRunner {
    job: Arc<JobSpec>,
    node: NodeConnection,
}

impl StepRunner {
    /// Connects to the node and loads the step there.
    ///
    /// # Errors
    /// When the node cannot be reached, refuses, or the job cannot be run on it.
    pub async fn open(
        node: &PlanNode,
        job: &Arc<JobSpec>,
        access: &RedisAccess,
        _natives: &NativeJobs,
    ) -> Result<Self, NodeError> {
        Ok(StepRunner { job: job.clone(), node: NodeConnection::open(&node.redis, access).await? })
    }

    /// Makes at most one bounded call and folds what it did into `state`: units, delta, counters, errors and the hop's
    /// report change together. When the hop is done the state's position moves on (and a walk's route grows).
    ///
    /// # Errors
    /// When the node fails; `state` is then as it was. After a transient one ([`NodeError::is_transient`]) open a new
    /// runner and go on with the same state.
    pub async fn advance(&mut self, _state: &mut JobState) -> Result<Advance, NodeError> {
        Err(NodeError::job(&self.job.id, format!("steps cannot be run at {} yet", self.node.address)))
    }

    /// The job's own `merge(a, b)`, run on this node (Lua) or here (native).
    ///
    /// # Errors
    /// When the node fails or `merge` does.
    pub async fn merge(&mut self, _a: Value, _b: Value) -> Result<Value, NodeError> {
        Err(NodeError::job(&self.job.id, "merge cannot be run yet"))
    }

    /// The job's own `finish(acc)`; a job without one: `acc` as it is.
    ///
    /// # Errors
    /// When the node fails or `finish` does.
    pub async fn finish(&mut self, acc: Value) -> Result<Value, NodeError> {
        Ok(acc)
    }
}

/// Checks a job against a node before it is submitted: a script must compile (the error names the user's own line)
/// and define what its target and combiner need; a native job must be registered.
///
/// # Errors
/// [`NodeError::Job`] when the job cannot be run; otherwise what the node said.
pub async fn check(
    redis: &str,
    job: &JobSpec,
    access: &RedisAccess,
    natives: &NativeJobs,
) -> Result<(), NodeError> {
    if let crate::chain::job::Step::Native(name) = &job.step
        && natives.get(name).is_none()
    {
        let known: Vec<_> = natives.names().collect();
        return Err(NodeError::job(
            &job.id,
            format!("no native job {name:?} is registered; known: {known:?}"),
        ));
    }
    NodeConnection::open(redis, access).await.map(|_| ())
}
