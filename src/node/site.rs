//! A job at work on a node: what every kind of hop needs.

use std::sync::Arc;

use super::engine::Engine;
use super::error::NodeError;
use super::ledger::{Gain, Place};
use super::native::ChainJob;
use super::reply::Fields;
use crate::chain::combine::fold_into;
use crate::chain::job::{Combine, JobSpec, OnError};
use crate::chain::state::JobState;
use crate::chain::value::Value;

/// How many deltas a call merges: each runs the job's own code.
const MERGED_AT_ONCE: usize = 32;

pub(crate) struct Site {
    pub(crate) job: Arc<JobSpec>,
    pub(crate) place: Place,
    pub(crate) engine: Engine,
    /// The step, where it is one of Rust.
    pub(crate) native: Option<Arc<dyn ChainJob>>,
    /// Keys and pages that were set aside.
    pub(crate) aside: usize,
}

impl Site {
    /// Folds deltas into an accumulator. On an error of the node it is what it was; on one of the job, which ends
    /// the job, some may have been folded.
    pub(crate) async fn fold(&mut self, acc: &mut Value, deltas: Vec<Value>) -> Result<(), NodeError> {
        if self.job.combine != Combine::Merge {
            return deltas.into_iter().try_for_each(|delta| {
                fold_into(&self.job.combine, acc, delta)
                    .map_err(|error| NodeError::job(&self.job.id, error.to_string()))
            });
        }
        let mut merged = acc.clone();
        let mut deltas = deltas.into_iter().filter(|delta| *delta != Value::Nil).peekable();
        while deltas.peek().is_some() {
            let some = std::iter::once(merged).chain(deltas.by_ref().take(MERGED_AT_ONCE));
            merged = self.merge(some.filter(|value| *value != Value::Nil).collect()).await?;
        }
        *acc = merged;
        Ok(())
    }

    /// Makes one value of several by the job's own `merge`.
    pub(crate) async fn merge(&mut self, values: Vec<Value>) -> Result<Value, NodeError> {
        let mut values = values.into_iter();
        match (&self.native, values.len()) {
            (_, 0 | 1) => Ok(values.next().unwrap_or_default()),
            (Some(native), _) => {
                let first = values.next().unwrap_or_default();
                values
                    .try_fold(first, |merged, value| native.merge(merged, value))
                    .map_err(|reason| NodeError::job(&self.job.id, reason))
            }
            (None, _) => self.engine.protected("merge", values.as_slice()).await,
        }
    }

    /// Reads counters and failures.
    pub(crate) fn gain(&self, fields: &mut Fields) -> Result<Gain, NodeError> {
        let unreadable = |reason| self.engine.unreadable(reason);
        let mut gain = Gain::counters(fields).map_err(unreadable)?;
        for mut row in fields.rows().map_err(unreadable)? {
            let key = row.bytes().map_err(unreadable)?;
            let text = row.text().map_err(unreadable)?;
            gain.failures.push((key, self.engine.key_failure(&text)?));
        }
        Ok(gain)
    }

    /// Why the script did not take a slot: the slot's own reason, or an error where it is the node's.
    pub(crate) fn refusal(&self, text: String) -> Result<String, NodeError> {
        self.engine.key_failure(&text).map(|_| {
            if text.contains("non local key") {
                "the slot is moving or has moved away".to_owned()
            } else {
                text
            }
        })
    }

    /// Whether a failing key ends the job.
    pub(crate) fn stops_at_failures(&self) -> bool {
        self.job.on_error == OnError::Stop
    }

    /// Adds the calls made since the last time to the hop's report.
    pub(crate) fn report_calls(&mut self, state: &mut JobState, micros: u64) {
        let calls = std::mem::take(&mut self.engine.calls);
        let report = self.place.report(state);
        report.micros += micros;
        report.calls += calls.count;
        report.engine_micros += calls.micros;
        report.max_block_micros = report.max_block_micros.max(calls.longest);
    }
}
