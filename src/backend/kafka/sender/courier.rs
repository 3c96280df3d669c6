//! What cannot be done while a publisher waits, on a thread of its own: topics are made, what failed is sent again, a client
//! that cannot go on is replaced, the file is emptied.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::producer::{Producer, PurgeConfig};

use super::{Shared, State, connect};
use crate::backend::kafka::topics;

/// How often it is tried again what just failed, and how often a broker that does not acknowledge is looked after.
const AGAIN: Duration = Duration::from_millis(500);
const MOST_STUCK: Duration = Duration::from_secs(60);
/// How long it is waited for the reports about what was taken back.
const TAKE_BACK: Duration = Duration::from_millis(500);
/// Before what was taken back is sent again.
const PAUSE: Duration = Duration::from_millis(50);

impl Shared {
    /// Does what cannot be done while a publisher waits: makes topics, sends again, empties the file.
    pub(super) fn courier(&self) {
        let mut looked = Instant::now();
        loop {
            let mut state = self.lock();
            if state.stop {
                return;
            }
            if std::mem::take(&mut state.file_is_done) {
                drop(state);
                self.tidy_file();
                continue;
            }
            if state.outbox.broken {
                drop(state);
                self.start_again();
                continue;
            }
            let stalled = state.outbox.age(Instant::now()) > AGAIN && looked.elapsed() > AGAIN;
            if state.outbox.is_waiting() || stalled {
                let wanted = state.outbox.topics();
                let known = wanted.iter().all(|topic| state.topics.contains_key(topic));
                self.complain(&mut state);
                if !known || stalled {
                    drop(state);
                    looked = Instant::now();
                    let ensured = topics::ensure(self.client().client(), &wanted, &self.options, &self.last);
                    state = self.lock();
                    match ensured {
                        Ok(found) => {
                            state.topics.extend(found);
                            self.give_up_on_client(&mut state);
                        }
                        Err(error) => tracing::debug!(%error, "events wait"),
                    }
                }
                if wanted.iter().all(|topic| state.topics.contains_key(topic)) && !state.outbox.broken {
                    self.send(&mut state);
                }
            }
            let idle = state.outbox.is_empty();
            let pause = if idle { Duration::from_secs(3_600) } else { AGAIN };
            // Nothing is lost when this wakes early or late: the loop looks at everything again.
            drop(self.work.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// The broker answers: a client that was not acknowledged for long will not be.
    fn give_up_on_client(&self, state: &mut State) {
        if !state.outbox.is_waiting() && state.begun.elapsed() > state.stuck && !state.outbox.is_empty() {
            tracing::warn!(
                waiting = state.outbox.len(),
                "kafka answers and does not acknowledge; sending again"
            );
            state.stuck = (state.stuck * 2).min(MOST_STUCK);
            (state.fatal, state.outbox.broken) = (true, true);
        }
    }

    fn complain(&self, state: &mut State) {
        if !state.complained && state.outbox.age(Instant::now()) > self.options.ack_wait {
            state.complained = true;
            let error = self.last.silence("publish", "");
            tracing::warn!(%error, waiting = state.outbox.len(), "events wait for kafka");
        }
    }

    /// Takes everything back from the client, which has failed with something, and lets it be sent again in order.
    fn start_again(&self) {
        let client = self.client();
        client.purge(PurgeConfig::default().queue().inflight());
        let end = Instant::now() + TAKE_BACK;
        while client.in_flight_count() > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        let fatal = std::mem::take(&mut self.lock().fatal) || client.in_flight_count() > 0;
        if fatal {
            // A report that still comes is one about a former round.
            self.reconnect();
        }
        let mut state = self.lock();
        state.outbox.take_back();
        state.begun = Instant::now();
        // Whatever it was, the topics are looked at before anything is sent again.
        state.topics.clear();
        drop(state);
        std::thread::sleep(PAUSE);
    }

    fn reconnect(&self) {
        match connect(&self.options, &self.last, &self.listener) {
            Ok(new) => *self.client.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new),
            Err(error) => tracing::error!(%error, "a new producer cannot be made; trying with the old one"),
        }
    }
}
