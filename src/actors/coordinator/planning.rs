//! How a look at the cluster becomes chains.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use super::JobOptions;
use crate::chain::job::{AgentPolicy, JobSpec, MovingSlots, Target};
use crate::chain::plan::{Explanation, Link, Load, NodeFacts, Place, Plan, PlanError, PlanInput, plan};
use crate::chain::run::{Goal, PartKey};
use crate::chain::slots::{SlotSet, slot_of};
use crate::chain::state::{JobState, NodeId, PlanNode, Sequence};
use crate::chain::value::Value;
use crate::node::{self, ClusterView, NodeError, NodeView};

/// What is to be planned.
pub(super) struct Ask {
    pub(super) epoch: u32,
    pub(super) open: SlotSet,
    pub(super) sequence: Sequence,
    pub(super) acc: Value,
    pub(super) lost: BTreeSet<String>,
}

/// Why there is no plan.
pub(super) struct NoPlan {
    pub(super) reason: String,
    pub(super) permanent: bool,
}

/// A plan, as the rules of the run want it.
pub(super) struct Planned {
    pub(super) chains: Vec<JobState>,
    pub(super) uncovered: BTreeMap<u16, String>,
    pub(super) explanation: Arc<Explanation>,
    /// Where the nodes listen.
    pub(super) addresses: Vec<(NodeId, String)>,
}

/// Looks at the cluster and plans what is open.
pub(super) async fn make(job: &Arc<JobSpec>, options: &JobOptions, ask: Ask) -> Result<Planned, NoPlan> {
    let view = node::discover(&options.seeds, &options.access).await.map_err(NoPlan::from)?;
    if job.moving == MovingSlots::Stable && moving(&view) > 0 {
        let reason = format!("{} slots are moving, and the job is to wait until none is", moving(&view));
        return Err(NoPlan { reason, permanent: false });
    }
    let Ask { epoch, open, sequence, acc, lost } = ask;
    let input = input(job, &view, epoch, open, &sequence, lost);
    let began = Instant::now();
    let plan = plan(job, &input)?;
    if let Some(metrics) = &options.metrics {
        metrics.planned(&input, began.elapsed());
    }
    let away = "no node serves the slot; bring its primary back, or check 'cluster slots'".to_owned();
    Ok(Planned {
        chains: plan.states(job, &sequence, &acc),
        uncovered: plan.uncovered.iter().map(|slot| (slot, away.clone())).collect(),
        explanation: Arc::new(plan.explain()),
        addresses: view.nodes.into_iter().map(|node| (node.id, node.redis)).collect(),
    })
}

/// Plans a job without running it.
///
/// # Errors
/// When the cluster cannot be looked at, or there is no plan for the job; the text says why.
pub async fn explain(job: &JobSpec, options: &JobOptions) -> Result<(Plan, Explanation), String> {
    let view = node::discover(&options.seeds, &options.access).await.map_err(|error| error.to_string())?;
    let open = match goal(job, view.cluster) {
        Goal::Slots(slots) => slots,
        Goal::Sequence => SlotSet::empty(),
    };
    let sequence = start_of(job);
    let input = input(job, &view, 1, open, &sequence, BTreeSet::new());
    let plan = plan(job, &input).map_err(|error| error.to_string())?;
    let explanation = plan.explain();
    Ok((plan, explanation))
}

/// What has to be done for the job to be finished.
pub(super) fn goal(job: &JobSpec, cluster: bool) -> Goal {
    match &job.target {
        _ if job.is_sequential() => Goal::Sequence,
        Target::Keys(keys) => Goal::Slots(keys.iter().map(|key| slot_of(key)).collect()),
        Target::Pattern(_) if cluster => Goal::Slots(SlotSet::full()),
        // Without cluster mode there are no slots to be done one by one: a unit is a page.
        _ => Goal::Sequence,
    }
}

/// Where a sequential job starts.
pub(super) fn start_of(job: &JobSpec) -> Sequence {
    match &job.target {
        Target::Walk(key) => Sequence { next_key: Some(key.clone()), ..Sequence::default() },
        _ => Sequence::default(),
    }
}

/// Which of `parts` ran under primaries that are no longer there: a replica promoted since has another replication id.
pub(super) async fn gone(options: &JobOptions, parts: Vec<PartKey>) -> Result<Vec<PartKey>, NodeError> {
    let view = node::discover(&options.seeds, &options.access).await?;
    let alive: BTreeSet<&str> = view.nodes.iter().map(|node| node.replication_id.as_str()).collect();
    Ok(parts.into_iter().filter(|part| !alive.contains(part.replication_id.as_str())).collect())
}

fn moving(view: &ClusterView) -> u32 {
    let mut slots = SlotSet::empty();
    view.nodes.iter().for_each(|node| slots.union_with(&node.moving));
    slots.len()
}

fn input(
    job: &JobSpec,
    view: &ClusterView,
    epoch: u32,
    open: SlotSet,
    sequence: &Sequence,
    lost: BTreeSet<String>,
) -> PlanInput {
    // What the coordinator has measured is its own way to each node.
    let to_node = |(at, node): (usize, &NodeView)| {
        let micros = u32::try_from(node.ping_micros).unwrap_or(u32::MAX);
        u16::try_from(at).ok().map(|to| Link { from: None, to, micros })
    };
    PlanInput {
        links: view.nodes.iter().enumerate().filter_map(to_node).collect(),
        nodes: view.nodes.iter().enumerate().map(|(at, node)| facts(job, at, node)).collect(),
        cluster: view.cluster,
        open,
        sequence: sequence.clone(),
        epoch,
        lost,
        ..PlanInput::default()
    }
}

fn facts(job: &JobSpec, at: usize, node: &NodeView) -> NodeFacts {
    NodeFacts {
        node: PlanNode { id: node.id.clone(), redis: node.redis.clone(), agent: agent_of(job, at, node) },
        place: Place { zone: node.zone.clone(), rack: node.rack.clone().or_else(|| host_of(&node.redis)) },
        slots: node.slots.clone(),
        keys: node.keys,
        load: Load {
            memory: share(node.memory_bytes, node.memory_limit_bytes),
            ops_per_sec: node.ops_per_second as f64,
            ..Load::default()
        },
        keys_per_second: None,
    }
}

/// Where an agent does not say in which rack it is: those on one host share one.
fn host_of(address: &str) -> Option<String> {
    address.rsplit_once(':').map(|(host, _)| host.to_owned())
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn agent_of(job: &JobSpec, at: usize, node: &NodeView) -> Option<String> {
    match &job.agents {
        AgentPolicy::Off => None,
        AgentPolicy::Auto | AgentPolicy::Require => node.agent.clone(),
        AgentPolicy::At(agents) => match &node.agent {
            Some(beside) if agents.contains(beside) => Some(beside.clone()),
            // Where nobody says who stands where, the work is spread.
            _ => agents.get(at % agents.len().max(1)).cloned(),
        },
    }
}

impl From<NodeError> for NoPlan {
    fn from(error: NodeError) -> Self {
        NoPlan { reason: error.to_string(), permanent: !error.is_transient() }
    }
}

impl From<PlanError> for NoPlan {
    fn from(error: PlanError) -> Self {
        let permanent = matches!(error, PlanError::TooManyNodes(_) | PlanError::NoAgent { .. });
        NoPlan { reason: error.to_string(), permanent }
    }
}
