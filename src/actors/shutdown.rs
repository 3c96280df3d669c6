//! The order in which a system ends.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};

use super::{
    actor_ref::Ended,
    mailbox::{AnyMailbox, signal},
    registry::Core,
    spec::Stage,
    supervisor::Exit,
};

/// How many names a report holds.
const MAX_NAMES: usize = 1_000;
/// How long actors that were killed may take to notice; one that blocks its thread does not.
const KILL_GRACE: Duration = Duration::from_millis(500);

/// How a system ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Why, when nobody called `shutdown`: the actor that gave up, or `System::stop`.
    pub cause: Option<String>,
    /// Actors that handled all they had and ended in time.
    pub drained: usize,
    /// Actors that had not finished at the deadline and were ended; at most 1,000 names, sorted.
    pub late: Vec<Arc<str>>,
    /// How many these were.
    pub late_count: usize,
    /// Arbiter threads that a handler blocks and that could not be ended.
    pub stuck_arbiters: usize,
    /// Blocking jobs that still ran or waited at the deadline.
    pub blocking_left: usize,
}

impl ShutdownReport {
    /// Everything ended in time and in order.
    pub fn is_clean(&self) -> bool {
        self.late_count == 0 && self.stuck_arbiters == 0 && self.blocking_left == 0
    }
}

/// Ends the threads when the drain is over, also if it panicked: nobody may wait for ever.
struct EndThreads(Arc<Core>);

impl Drop for EndThreads {
    fn drop(&mut self) {
        self.0.stop.notify_one();
    }
}

impl Core {
    pub(crate) fn draft_mut<R>(&self, change: impl FnOnce(&mut ShutdownReport) -> R) -> R {
        change(&mut self.draft.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// Begins to shut down unless that has begun; the work is done on the system's own thread.
    pub(crate) fn begin_shutdown(self: &Arc<Self>, deadline: Duration, cause: Option<String>) {
        if !self.close() {
            return;
        }
        tracing::debug!(?deadline, cause, "the actor system shuts down");
        self.draft_mut(|draft| draft.cause = cause);
        let core = Arc::clone(self);
        self.home.spawn(async move {
            // The machine's clock, also in a test kit: a shutdown must not wait for a hand.
            let end = EndThreads(core);
            end.0.drain(Instant::now() + deadline).await;
        });
    }

    /// Without a drain: the last handle was dropped.
    pub(crate) fn stop_at_once(&self) {
        if self.close() {
            self.draft_mut(|draft| draft.cause = Some("the last handle was dropped".into()));
            self.stop.notify_one();
        }
    }

    async fn drain(&self, deadline: Instant) {
        let (mut drained, mut late) = (0, Vec::new());
        for stage in Stage::ALL {
            let actors = self.actors_of(Some(stage));
            for actor in &actors {
                actor.order(signal::DRAIN);
            }
            for actor in actors {
                match timeout_at(deadline, Ended::new(Arc::clone(&actor))).await {
                    Ok(Exit::Stopped) => drained += 1,
                    Ok(_) => {}
                    Err(_) => late.push(actor),
                }
            }
        }
        self.kill(&late).await;
        let blocking_left = self.drain_blocking(deadline).await;
        let mut names: Vec<_> = late.iter().map(|actor| Arc::clone(&actor.about().name)).collect();
        names.sort_unstable();
        let late_count = names.len();
        names.truncate(MAX_NAMES);
        if late_count > 0 {
            tracing::warn!(late_count, first = ?names.first(), "actors had not finished at the deadline");
        }
        self.draft_mut(|draft| {
            draft.drained = drained;
            draft.late = names;
            draft.late_count = late_count;
            draft.blocking_left = blocking_left;
        });
    }

    async fn kill(&self, late: &[Arc<dyn AnyMailbox>]) {
        for actor in late {
            actor.order(signal::KILL);
        }
        let patience = Instant::now() + KILL_GRACE;
        for actor in late {
            if timeout_at(patience, Ended::new(Arc::clone(actor))).await.is_err() {
                return; // its thread is blocked; the threads' end will say so
            }
        }
    }

    /// Waits for the blocking jobs; says how many are left.
    async fn drain_blocking(&self, deadline: Instant) -> usize {
        self.blocking.close(false);
        let emptied = timeout_at(deadline, self.blocking.emptied()).await;
        let left = if emptied.is_ok() { 0 } else { self.blocking.load().0 };
        self.blocking.close(true);
        left
    }
}
