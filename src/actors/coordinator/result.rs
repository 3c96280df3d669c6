//! How what was folded becomes a report.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::actor::Task;
use crate::chain::combine;
use crate::chain::job::{Combine, JobSpec, Step, Target};
use crate::chain::message::EndReason;
use crate::chain::report::JobReport;
use crate::chain::run::{Goal, RunOutcome, RunRecord, Settled};
use crate::chain::state::{HopReport, NodeId, PlanNode, Tally};
use crate::chain::value::Value;
use crate::core::task::LifecycleStatus;
use crate::node::{self, NodeError, StepRunner};

/// How long a result waits for a node to be put together on: longer than a failover takes.
const FOLD_PATIENCE: Duration = Duration::from_secs(60);
/// The same for a partial result, which is worth less.
const PARTIAL_PATIENCE: Duration = Duration::from_secs(10);
/// Waits between the nodes that are asked.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// The report of a job that did not begin.
pub(super) fn refused(job: &JobSpec, reason: &str, cancelled: bool) -> JobReport {
    let status = if cancelled { LifecycleStatus::Cancelled } else { LifecycleStatus::Failed };
    let mut report = JobReport::new(&job.id, status);
    report.error = Some(reason.to_owned());
    report
}

/// How many units there are, where that is known before the end.
pub(super) fn units_total(job: &JobSpec, goal: &Goal) -> Option<u64> {
    match (goal, &job.target) {
        (Goal::Slots(slots), _) => Some(slots.len().into()),
        (Goal::Sequence, Target::OrderedKeys(keys)) => Some(keys.len() as u64),
        (Goal::Sequence, _) => None,
    }
}

/// Says how far the job came.
pub(super) fn how_far(report: &mut JobReport, record: &RunRecord, units: u64, tally: Tally) {
    let total = units_total(&record.spec, &record.goal);
    report.units.done = total.map_or(units, |total| units.min(total));
    report.units.total = total.unwrap_or(units);
    report.keys = tally.into();
    report.plan.epoch = record.plan_number(record.epoch);
}

/// The report of a job that is over.
pub(super) async fn report(
    task: &Task,
    record: RunRecord,
    outcome: RunOutcome,
    addresses: &BTreeMap<NodeId, String>,
) -> JobReport {
    let status = match outcome.status {
        EndReason::Finished => LifecycleStatus::Finished,
        EndReason::Failed => LifecycleStatus::Failed,
        EndReason::Cancelled => LifecycleStatus::Cancelled,
    };
    let mut report = JobReport::new(&record.spec.id, status);
    report.partial = outcome.partial || status != LifecycleStatus::Finished;
    report.error = match (&outcome.reason, &outcome.unconfirmed[..]) {
        (reason, []) => reason.clone(),
        (reason, _) if status == LifecycleStatus::Finished => reason.clone(),
        (reason, agents) => {
            let reason = reason.as_deref().map(|reason| format!("{reason}; ")).unwrap_or_default();
            let agents = agents.join(", ");
            Some(format!("{reason}not confirmed by {agents}: a call under way there may still take effect"))
        }
    };
    how_far(&mut report, &record, outcome.units, outcome.tally);
    let name = |node: &NodeId| addresses.get(node).unwrap_or(node).clone();
    for hop in &record.settled.reports {
        let hop = HopReport { epoch: record.plan_number(hop.epoch), ..hop.clone() };
        report.add_hop(&hop, name(&hop.node));
    }
    for error in &record.settled.errors {
        report.add_error(error, name(&error.node));
    }
    let patience = if report.partial { PARTIAL_PATIENCE } else { FOLD_PATIENCE };
    let nodes: Vec<(&NodeId, &String)> = addresses.iter().collect();
    match fold(task, &record, &nodes, patience).await {
        Ok(value) => report.result = value.to_json(),
        Err(reason) => {
            // Where the job is done, its result is not: that must not pass for a result.
            if status == LifecycleStatus::Finished {
                report.status = LifecycleStatus::Failed;
            }
            report.partial = true;
            report.error.get_or_insert(reason);
        }
    }
    report
}

/// Why there is no value yet, or will be none.
struct Unfolded {
    reason: String,
    permanent: bool,
}

impl From<NodeError> for Unfolded {
    fn from(error: NodeError) -> Self {
        Unfolded { permanent: !error.is_transient(), reason: error.to_string() }
    }
}

/// One value from all that came back. A job whose units are all done does not fail because the node that happens to be
/// asked to put them together has just gone: another one is asked, for as long as a failover may take.
async fn fold(
    task: &Task,
    record: &RunRecord,
    nodes: &[(&NodeId, &String)],
    patience: Duration,
) -> Result<Value, String> {
    let began = Instant::now();
    let (mut turn, mut wait) = (0, RETRY_MIN);
    loop {
        match fold_on(task, record, nodes.get(turn % nodes.len().max(1))).await {
            Ok(value) => return Ok(value),
            Err(unfolded) if unfolded.permanent || began.elapsed() >= patience => {
                return Err(unfolded.reason);
            }
            Err(unfolded) => {
                tracing::warn!(job = %task.job.id, error = %unfolded.reason, "folding the result on another node");
                tokio::time::sleep(wait).await;
                (turn, wait) = (turn + 1, (wait * 2).min(RETRY_MAX));
            }
        }
    }
}

/// The same, on this node where a node is needed.
async fn fold_on(
    task: &Task,
    record: &RunRecord,
    node: Option<&(&NodeId, &String)>,
) -> Result<Value, Unfolded> {
    let job = &record.spec;
    let wrong = |reason: String| Unfolded { reason, permanent: true };
    let mut runner = None;
    let mut acc = record.settled.acc.clone();
    for delta in deltas(&record.settled) {
        acc = match &job.combine {
            Combine::Merge => ready(&mut runner, task, node).await?.merge(acc, delta).await?,
            combine => combine::fold(combine, acc, delta).map_err(|error| wrong(error.to_string()))?,
        };
    }
    let acc = combine::finish(&job.combine, acc);
    if let (Step::Builtin(builtin), Value::Nil) = (&job.step, &acc) {
        return Ok(builtin.of_nothing());
    }
    if !matches!(job.step, Step::Lua(_) | Step::Native(_)) {
        return Ok(acc); // only these can bring a `finish` of their own
    }
    Ok(ready(&mut runner, task, node).await?.finish(acc).await?)
}

fn deltas(settled: &Settled) -> impl Iterator<Item = Value> + '_ {
    settled.parts.iter().flat_map(|part| part.accs.iter().cloned())
}

/// A runner on any node: what it runs touches no key.
async fn ready<'a>(
    runner: &'a mut Option<StepRunner>,
    task: &Task,
    node: Option<&(&NodeId, &String)>,
) -> Result<&'a mut StepRunner, Unfolded> {
    let none = || Unfolded { reason: "no node of the cluster is known".into(), permanent: false };
    if runner.is_none() {
        let options = &task.options;
        let (id, redis) = match node {
            Some((id, redis)) => ((*id).clone(), (*redis).clone()),
            // After a restart in the middle of the end.
            None => {
                let view = node::discover(&options.seeds, &options.access).await?;
                let node = view.nodes.into_iter().next().ok_or_else(none)?;
                (node.id, node.redis)
            }
        };
        let node = PlanNode { id, redis, agent: None };
        *runner = Some(StepRunner::open(&node, &task.job, &options.access, &options.natives).await?);
    }
    runner.as_mut().ok_or_else(none) // it has just been set
}
