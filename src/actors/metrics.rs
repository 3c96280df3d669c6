//! What is counted, per label: an actor's name, or the one that its `Spec` gives to many actors.
//!
//! Counters are plain atomics that the actor's side adds to. The depth of mailboxes is not kept at all: it is read
//! from the mailboxes when somebody scrapes. At most [`MAX_LABELS`] labels are kept; later ones share `other`.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};

use super::registry::Core;

/// The most labels with counters of their own.
pub(crate) const MAX_LABELS: usize = 256;
const OTHER: &str = "other";

/// Upper bounds of the handler-time buckets in nanoseconds: 1 µs, four times more each, to about 17 s.
const BOUNDS: [u64; 13] = {
    let mut bounds = [1_000; 13];
    let mut at = 1;
    while at < bounds.len() {
        bounds[at] = bounds[at - 1] * 4;
        at += 1;
    }
    bounds
};

/// The counters of one label.
#[derive(Default)]
pub(crate) struct LabelMetrics {
    /// Of actors that have ended; the others count their own.
    messages: AtomicU64,
    panics: AtomicU64,
    restarts: AtomicU64,
    expired: AtomicU64,
    refused: AtomicU64,
    buckets: [AtomicU64; BOUNDS.len() + 1],
    nanos: AtomicU64,
}

impl LabelMetrics {
    /// An actor has ended that handled so many messages.
    pub(crate) fn handled(&self, messages: u64) {
        self.messages.fetch_add(messages, Relaxed);
    }

    pub(crate) fn panicked(&self) {
        self.panics.fetch_add(1, Relaxed);
    }

    pub(crate) fn restarted(&self) {
        self.restarts.fetch_add(1, Relaxed);
    }

    pub(crate) fn expired(&self) {
        self.expired.fetch_add(1, Relaxed);
    }

    pub(crate) fn refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    pub(crate) fn handled_in(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BOUNDS.partition_point(|bound| *bound < nanos);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.nanos.fetch_add(nanos, Relaxed);
    }
}

/// What the actors of one label add up to while they live.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tally {
    pub(crate) waiting: u64,
    pub(crate) handled: u64,
}

/// The registry that the system owns, and the labels in it.
pub(crate) struct Metrics {
    registry: Mutex<Registry>,
    labels: Arc<Mutex<BTreeMap<Arc<str>, Arc<LabelMetrics>>>>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Metrics { registry: Mutex::default(), labels: Arc::default() }
    }

    /// Registers what is read from the system when somebody scrapes.
    pub(crate) fn observe(&self, core: Weak<Core>) {
        let actors = ActorCollector { labels: Arc::clone(&self.labels), core };
        lock(&self.registry).register_collector(Box::new(actors));
    }

    pub(crate) fn label(&self, label: &str) -> Arc<LabelMetrics> {
        let mut labels = lock(&self.labels);
        let label = if labels.len() < MAX_LABELS || labels.contains_key(label) { label } else { OTHER };
        if let Some(found) = labels.get(label) {
            return Arc::clone(found);
        }
        Arc::clone(labels.entry(Arc::from(label)).or_default())
    }

    pub(crate) fn with_registry<R>(&self, change: impl FnOnce(&mut Registry) -> R) -> R {
        change(&mut lock(&self.registry))
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        if prometheus_client::encoding::text::encode(&mut text, &lock(&self.registry)).is_err() {
            // cannot happen: writing to a String does not fail, and our collector returns the writer's errors only
            tracing::error!("the metrics could not be written as text");
        }
        text
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

struct ActorCollector {
    labels: Arc<Mutex<BTreeMap<Arc<str>, Arc<LabelMetrics>>>>,
    core: Weak<Core>,
}

impl fmt::Debug for ActorCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ActorCollector")
    }
}

type Count = fn(&LabelMetrics) -> &AtomicU64;

impl Collector for ActorCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let labels: Vec<_> =
            lock(&self.labels).iter().map(|(name, of)| (Arc::clone(name), Arc::clone(of))).collect();
        let Some(core) = self.core.upgrade() else { return Ok(()) };
        let (actors, alive) = core.tally();
        let of = |metrics: &Arc<LabelMetrics>| alive.get(&Arc::as_ptr(metrics)).copied().unwrap_or_default();

        let mut metric =
            encoder.encode_descriptor("actor_messages", "Messages handled", None, MetricType::Counter)?;
        for (label, metrics) in &labels {
            let value = metrics.messages.load(Relaxed) + of(metrics).handled;
            ConstCounter::new(value).encode(metric.encode_family(&[("actor", label.as_ref())])?)?;
        }
        let counters: [(&str, &str, Count); 4] = [
            ("actor_panics", "Panics caught", |m| &m.panics),
            ("actor_restarts", "Restarts after a panic", |m| &m.restarts),
            ("actor_expired", "Messages not handled: late, or nobody waited any more", |m| &m.expired),
            ("actor_refused", "Messages refused: mailbox full", |m| &m.refused),
        ];
        for (name, help, count) in counters {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (label, metrics) in &labels {
                let value = ConstCounter::new(count(metrics).load(Relaxed));
                value.encode(metric.encode_family(&[("actor", label.as_ref())])?)?;
            }
        }
        let mut metric = encoder.encode_descriptor(
            "actor_handler_seconds",
            "Time in handlers until the answer, of one message in 64 and of every asynchronous one",
            None,
            MetricType::Histogram,
        )?;
        for (label, metrics) in &labels {
            let mut buckets = [(f64::MAX, 0); BOUNDS.len() + 1];
            for (at, bucket) in metrics.buckets.iter().enumerate() {
                let bound = BOUNDS.get(at).map_or(f64::MAX, |nanos| *nanos as f64 / 1e9);
                buckets[at] = (bound, bucket.load(Relaxed));
            }
            let count = buckets.iter().map(|(_, count)| count).sum();
            let sum = metrics.nanos.load(Relaxed) as f64 / 1e9;
            metric
                .encode_family(&[("actor", label.as_ref())])?
                .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        let mut metric = encoder.encode_descriptor(
            "actor_mailbox_depth",
            "Messages that wait, over all actors of the label",
            None,
            MetricType::Gauge,
        )?;
        for (label, metrics) in &labels {
            ConstGauge::new(of(metrics).waiting)
                .encode(metric.encode_family(&[("actor", label.as_ref())])?)?;
        }
        let metric = encoder.encode_descriptor("actors", "Actors alive", None, MetricType::Gauge)?;
        ConstGauge::new(actors).encode(metric)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_bounded() {
        let metrics = Metrics::new();
        for each in 0..2 * MAX_LABELS {
            metrics.label(&each.to_string()).handled(1);
        }
        assert!(lock(&metrics.labels).len() <= MAX_LABELS + 1);
        let other = metrics.label("one more");
        assert_eq!(other.messages.load(Relaxed), MAX_LABELS as u64);
    }

    #[test]
    fn a_time_falls_into_the_first_bucket_that_holds_it() {
        let metrics = LabelMetrics::default();
        metrics.handled_in(Duration::from_nanos(1_000));
        metrics.handled_in(Duration::from_nanos(1_001));
        metrics.handled_in(Duration::from_secs(3_600));
        let counts: Vec<_> = metrics.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect();
        assert_eq!((counts[0], counts[1], counts[BOUNDS.len()]), (1, 1, 1));
    }
}
