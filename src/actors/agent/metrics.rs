//! What an agent is counted as, under the names of `docs/architecture.md`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use crate::actors::ActorSystem;
use crate::chain::message::Message;
use crate::chain::state::HopId;

/// Upper bounds of the time from sending a state to its acknowledgement, seconds: a quick disk beside us to a busy agent.
const HAND_OFF: [f64; 9] = [0.000_25, 0.000_5, 0.001, 0.002_5, 0.01, 0.05, 0.25, 1.0, 10.0];
/// Forwards whose time is taken at once. The rules bound them by their window for each peer; beyond this many they are
/// sent all the same, and not timed.
const MAX_TIMED: usize = 4_096;

/// The metrics of all agents of one process; cheap to clone.
#[derive(Clone, Debug)]
pub struct AgentMetrics(Arc<Families>);

#[derive(Debug)]
struct Families {
    queue: Family<Label, Gauge>,
    active: Family<Label, Gauge>,
    outbox: Family<Label, Gauge>,
    failures: Family<Label, Counter>,
    latency: Family<Label, Histogram, fn() -> Histogram>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Label {
    agent: String,
}

impl AgentMetrics {
    /// Adds the metrics to those of a system; once for each system.
    pub fn register(system: &ActorSystem) -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(HAND_OFF);
        let families = Families {
            queue: Family::default(),
            active: Family::default(),
            outbox: Family::default(),
            failures: Family::default(),
            latency: Family::new_with_constructor(histogram),
        };
        system.with_metrics(|registry| {
            let f = &families;
            registry.register("agent_queue_size", "Hops that wait to be run", f.queue.clone());
            registry.register("agent_active_jobs", "Hops under way", f.active.clone());
            registry.register("agent_outbox_pending", "Records that wait for the disk", f.outbox.clone());
            registry.register(
                "agent_forward_failures",
                "States that were refused, could not be sent or had to be sent again",
                f.failures.clone(),
            );
            registry.register(
                "network_hop_latency",
                "Seconds from sending a state until the next agent has acknowledged it",
                f.latency.clone(),
            );
        });
        AgentMetrics(Arc::new(families))
    }

    pub(super) fn of(&self, agent: &str) -> Measures {
        let label = Label { agent: agent.to_owned() };
        Measures {
            queue: self.0.queue.get_or_create_owned(&label),
            active: self.0.active.get_or_create_owned(&label),
            outbox: self.0.outbox.get_or_create_owned(&label),
            failures: self.0.failures.get_or_create_owned(&label),
            latency: self.0.latency.get_or_create_owned(&label),
            sent: HashMap::new(),
        }
    }
}

/// One agent's own.
pub(super) struct Measures {
    queue: Gauge,
    active: Gauge,
    outbox: Gauge,
    failures: Counter,
    latency: Histogram,
    /// When a state was sent that nobody has answered yet.
    sent: HashMap<HopId, Instant>,
}

impl Measures {
    pub(super) fn load(&self, queue: u32, active: u32, outbox: usize) {
        self.queue.set(queue.into());
        self.active.set(active.into());
        self.outbox.set(i64::try_from(outbox).unwrap_or(i64::MAX));
    }

    /// A state goes out, perhaps once more.
    pub(super) fn sent(&mut self, hop: HopId) {
        if self.sent.contains_key(&hop) {
            self.failures.inc();
        } else if self.sent.len() < MAX_TIMED {
            self.sent.insert(hop, Instant::now());
        }
    }

    /// Answers end what was sent; a job's end ends what nobody will answer.
    pub(super) fn received(&mut self, message: &Message) {
        match message {
            Message::Ack(ack) => {
                for hop in &ack.hops {
                    if let Some(sent) = self.sent.remove(hop) {
                        self.latency.observe(sent.elapsed().as_secs_f64());
                    }
                }
            }
            Message::Refuse(refuse) => self.failed(&refuse.hop),
            Message::End(end) => self.sent.retain(|hop, _| hop.job != end.job),
            _ => {}
        }
    }

    /// It is not taken, or cannot be sent.
    pub(super) fn failed(&mut self, hop: &HopId) {
        self.sent.remove(hop);
        self.failures.inc();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::chain::message::{End, EndReason, RefuseReason};

    #[test]
    fn an_answer_is_timed_once_and_what_is_sent_again_is_a_failure() {
        let system = ActorSystem::start().expect("a system");
        let mut measures = AgentMetrics::register(&system).of("10.0.0.1:7400");
        let hop = |number| HopId { job: "j".into(), chain: 0, epoch: 1, hop: number };
        measures.load(3, 1, 7);
        measures.sent(hop(1));
        measures.sent(hop(1));
        measures.received(&Message::ack(vec![hop(1)]));
        measures.received(&Message::ack(vec![hop(1)]));
        measures.sent(hop(2));
        measures.received(&Message::refuse(hop(2), RefuseReason::Busy));
        measures.sent(hop(3));
        measures.received(&Message::End(End { job: "j".into(), incarnation: 1, why: EndReason::Finished }));
        assert!(measures.sent.is_empty());
        let text = system.metrics_text();
        for line in [
            "agent_queue_size{agent=\"10.0.0.1:7400\"} 3",
            "agent_active_jobs{agent=\"10.0.0.1:7400\"} 1",
            "agent_outbox_pending{agent=\"10.0.0.1:7400\"} 7",
            "agent_forward_failures_total{agent=\"10.0.0.1:7400\"} 2",
            "network_hop_latency_count{agent=\"10.0.0.1:7400\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        system.block_on(system.shutdown(Duration::from_secs(1))).expect("it is up");
    }
}
