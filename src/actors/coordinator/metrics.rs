//! What jobs are counted as, under the names of `docs/architecture.md`.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use crate::actors::ActorSystem;
use crate::chain::plan::PlanInput;
use crate::chain::report::JobReport;
use crate::core::task::LifecycleStatus;

/// Upper bounds of durations, seconds: a small job to a day's walk.
const SECONDS: [f64; 10] = [0.01, 0.05, 0.25, 1.0, 5.0, 30.0, 120.0, 600.0, 3_600.0, 86_400.0];
/// Upper bounds of the time that a hop's longest call held its node, seconds.
const BLOCK: [f64; 8] = [0.000_5, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25, 1.0];

/// Upper bounds of the time that planning takes once the cluster is known, seconds.
const PLANNING: [f64; 6] = [0.000_1, 0.001, 0.005, 0.02, 0.1, 1.0];

/// The counters of all jobs that one process coordinates; cheap to clone.
#[derive(Clone, Debug)]
pub struct JobMetrics(Arc<Families>);

#[derive(Debug)]
struct Families {
    duration: Histogram,
    stage: Family<Node, Histogram, fn() -> Histogram>,
    status: Family<Status, Counter>,
    keys: Counter,
    units: Counter,
    replans: Counter,
    block: Histogram,
    state: Family<Codec, Counter>,
    planning: Histogram,
    load: Family<NodeLoad, Gauge<f64, AtomicU64>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Node {
    node: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Status {
    status: StatusLabel,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct StatusLabel(LifecycleStatus);

impl EncodeLabelValue for StatusLabel {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> Result<(), std::fmt::Error> {
        write!(encoder, "{:?}", self.0)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Codec {
    codec: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NodeLoad {
    node: String,
    kind: &'static str,
}

impl JobMetrics {
    /// Adds the metrics to those of a system; once for each system.
    pub fn register(system: &ActorSystem) -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(SECONDS);
        let families = Families {
            duration: Histogram::new(SECONDS),
            stage: Family::new_with_constructor(histogram),
            status: Family::default(),
            keys: Counter::default(),
            units: Counter::default(),
            replans: Counter::default(),
            block: Histogram::new(BLOCK),
            state: Family::default(),
            planning: Histogram::new(PLANNING),
            load: Family::default(),
        };
        system.with_metrics(|registry| {
            let f = &families;
            registry.register("job_duration_seconds", "From a job's start to its report", f.duration.clone());
            registry.register("job_stage_duration_seconds", "A hop, by node", f.stage.clone());
            registry.register("job_status", "Jobs that are over, by how they ended", f.status.clone());
            registry.register("job_data_processed", "Keys looked at", f.keys.clone());
            registry.register(
                "job_units_done",
                "Units in the ledgers of jobs that are over",
                f.units.clone(),
            );
            registry.register("job_replans", "Plans after a job's first", f.replans.clone());
            registry.register("agent_engine_block_seconds", "The longest call of each hop", f.block.clone());
            registry.register("agent_state_bytes", "Job states when they left a hop", f.state.clone());
            registry.register(
                "chain_generation_latency",
                "Seconds to plan a job's chains once the cluster is known",
                f.planning.clone(),
            );
            registry.register(
                "cache_node_load",
                "What the last plan knew of a node: operations a second, share of its memory limit in use, keys",
                f.load.clone(),
            );
        });
        JobMetrics(Arc::new(families))
    }

    /// A plan was made from what is known of the nodes.
    pub(super) fn planned(&self, input: &PlanInput, took: Duration) {
        self.0.planning.observe(took.as_secs_f64());
        // Nodes that are gone would be shown for ever.
        self.0.load.clear();
        for node in &input.nodes {
            let kinds = [
                ("ops_per_second", node.load.ops_per_sec),
                ("memory", node.load.memory),
                ("keys", node.keys as f64),
            ];
            for (kind, value) in kinds {
                self.0.load.get_or_create(&NodeLoad { node: node.node.redis.clone(), kind }).set(value);
            }
        }
    }

    /// A job is over.
    pub(super) fn over(&self, report: &JobReport, took: Duration) {
        let f = &self.0;
        f.duration.observe(took.as_secs_f64());
        f.status.get_or_create(&Status { status: StatusLabel(report.status) }).inc();
        f.keys.inc_by(report.keys.visited);
        f.units.inc_by(report.units.done);
        f.replans.inc_by(u64::from(report.plan.epoch.saturating_sub(1)));
        for hop in &report.hops {
            f.stage.get_or_create(&Node { node: hop.node.clone() }).observe(hop.millis / 1_000.0);
            f.block.observe(hop.max_block_millis / 1_000.0);
            f.state.get_or_create(&Codec { codec: "raw" }).inc_by(hop.state_bytes);
            f.state.get_or_create(&Codec { codec: "lz4" }).inc_by(hop.state_bytes_compressed);
        }
    }
}
