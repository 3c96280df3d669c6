//! Whether a controller and the services under it are well.

use std::future::Future;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use super::builder::Shared;
use crate::backend::BackendError;
use crate::config::env::ControllerMode;

/// How long a service may take to answer.
const PING_WITHIN: Duration = Duration::from_secs(2);

/// The health of a controller.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Health {
    /// Everything answers, and the loops turn.
    pub ok: bool,
    /// Cache memory.
    pub cache: ServiceHealth,
    /// Events.
    pub events: ServiceHealth,
    /// Storage.
    pub storage: ServiceHealth,
    /// This controller leads: it dispatches and judges. The others answer the API, and take over within seconds.
    pub leads: bool,
    /// Some controller was seen to lead within the last 10 s. One in mode CONTROLLER does not look.
    pub led: bool,
    /// Skalds that show signs of life.
    pub skalds_online: usize,
    /// Time since this controller last looked at all held tasks; `None`: it never led, or has no monitor.
    pub last_sweep: Option<Duration>,
    /// Time since the dispatcher last ended a round; `None`: never, or this controller has no dispatcher.
    pub last_dispatch: Option<Duration>,
}

/// The health of one service.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceHealth {
    /// It answered.
    pub ok: bool,
    /// How fast.
    pub round_trip: Option<Duration>,
    /// Why it did not.
    pub error: Option<String>,
}

/// When the loops last turned, in the system's elapsed time.
#[derive(Default)]
pub(super) struct Pulse {
    sweep: Mutex<Option<Duration>>,
    dispatch: Mutex<Option<Duration>>,
}

impl Pulse {
    pub(super) fn swept(&self, now: Duration) {
        *self.sweep.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    pub(super) fn dispatched(&self, now: Duration) {
        *self.dispatch.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    fn ages(&self, now: Duration) -> (Option<Duration>, Option<Duration>) {
        let age = |at: &Mutex<Option<Duration>>| {
            at.lock().unwrap_or_else(PoisonError::into_inner).map(|at| now.saturating_sub(at))
        };
        (age(&self.sweep), age(&self.dispatch))
    }
}

async fn asked(ping: impl Future<Output = Result<Duration, BackendError>>) -> ServiceHealth {
    match tokio::time::timeout(PING_WITHIN, ping).await {
        Ok(Ok(round_trip)) => ServiceHealth { ok: true, round_trip: Some(round_trip), error: None },
        Ok(Err(error)) => ServiceHealth { ok: false, round_trip: None, error: Some(error.to_string()) },
        Err(_) => {
            let error = Some(format!("no answer within {} s", PING_WITHIN.as_secs()));
            ServiceHealth { ok: false, round_trip: None, error }
        }
    }
}

impl Shared {
    pub(super) async fn health(&self) -> Health {
        let backends = &self.backends;
        let (cache, events, storage) = tokio::join!(
            asked(backends.cache.ping()),
            asked(backends.events.ping()),
            asked(backends.storage.ping())
        );
        let (last_sweep, last_dispatch) = self.pulse.ages(self.tasks.clock.elapsed());
        let skalds_online = self.fleet.borrow().skalds.values().filter(|skald| skald.online).count();
        let turns = |last: Option<Duration>, interval: Duration| {
            last.is_some_and(|last| last <= interval * 5 + Duration::from_secs(5))
        };
        let (leads, led) = (self.term().is_some(), self.is_led());
        let monitors = !leads || turns(last_sweep, self.timing.task_interval);
        let dispatches = !leads
            || self.mode != ControllerMode::Dispatcher
            || turns(last_dispatch, self.timing.dispatcher_interval);
        let led_if_need_be = led || self.mode == ControllerMode::Controller;
        Health {
            ok: cache.ok && events.ok && storage.ok && led_if_need_be && monitors && dispatches,
            cache,
            events,
            storage,
            leads,
            led,
            skalds_online,
            last_sweep,
            last_dispatch,
        }
    }
}
