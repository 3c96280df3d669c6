//! Who holds a task, and whether the holder is alive.
//!
//! A holder beats: its heartbeat key holds a number that changes and expires when nobody renews it. The judge asks
//! three things: is the key there, has its value changed, and is it still the same incarnation that holds the task. It
//! never compares clocks of different machines, and it does not ask for variety: the Python package calls a task
//! alive only while more than 3 different values stand among its last 5 samples, and its workers write random
//! numbers, so that a healthy task is declared dead now and then.

use super::task::{Millis, Task};

/// How often holders beat.
pub const HEARTBEAT_PERIOD: Millis = 3_000;
/// How long a heartbeat key lives after its last renewal.
pub const HEARTBEAT_TTL: Millis = HEARTBEAT_PERIOD + 5_000;
/// A Skald whose sign of life has not changed for this long is gone.
pub const SKALD_GONE_AFTER: Millis = 10_000;
/// A key that is not there is only missed when nothing has changed for this long, unless the controller is told
/// otherwise (`MONITOR_HEARTBEAT_TIMEOUT`): a cache that was emptied is filled again within one period.
pub const EXPIRED_AFTER: Millis = 5_000;
/// A task whose heartbeat is there but has not changed for this long is gone. Ten periods: a Python worker draws the
/// same one of 200 numbers twice in a row every few minutes, ten times in a row never.
pub const TASK_STUCK_AFTER: Millis = 10 * HEARTBEAT_PERIOD;

/// The right to run a task and to say what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The task.
    pub task_id: String,
    /// The Skald.
    pub executor: String,
    /// Of the task when it was handed over: writes under an older one are refused.
    pub incarnation: u64,
}

impl Lease {
    /// The lease that a task document speaks of, if anybody holds it.
    pub fn of(task: &Task) -> Option<Lease> {
        let executor = task.executor.clone()?;
        Some(Lease { task_id: task.id.clone(), executor, incarnation: task.skalds.incarnation })
    }
}

/// The value of a heartbeat key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Heartbeat {
    /// Alive: 0 to 199.
    Beat(u8),
    /// The work ended well: 200.
    Finished,
    /// It failed: -1.
    Failed,
    /// It was cancelled: -2.
    Cancelled,
}

/// Not a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("heartbeat {0:?} is none of 0 to 199 (alive), 200 (finished), -1 (failed), -2 (cancelled)")]
pub struct BadHeartbeat(String);

impl Heartbeat {
    /// Reads what stands under a heartbeat key.
    pub fn parse(bytes: &[u8]) -> Result<Self, BadHeartbeat> {
        let bad = || BadHeartbeat(String::from_utf8_lossy(&bytes[..bytes.len().min(32)]).into_owned());
        let text = std::str::from_utf8(bytes).map_err(|_| bad())?;
        match text.trim().parse::<i32>() {
            Ok(beat @ 0..=199) => Ok(Heartbeat::Beat(beat as u8)),
            Ok(200) => Ok(Heartbeat::Finished),
            Ok(-1) => Ok(Heartbeat::Failed),
            Ok(-2) => Ok(Heartbeat::Cancelled),
            _ => Err(bad()),
        }
    }

    /// The number on the wire.
    pub fn number(self) -> i32 {
        match self {
            Heartbeat::Beat(beat) => i32::from(beat),
            Heartbeat::Finished => 200,
            Heartbeat::Failed => -1,
            Heartbeat::Cancelled => -2,
        }
    }

    /// What is written under the key.
    pub fn to_bytes(self) -> Vec<u8> {
        self.number().to_string().into_bytes()
    }
}

/// The beat after this one: a counter, so that any two samples taken in between differ.
pub fn next_beat(beat: u8) -> u8 {
    (beat + 1) % 200
}

/// What a judge knows of one holder. Times are the judge's own, monotonic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watch {
    incarnation: u64,
    last: Option<Vec<u8>>,
    since: Millis,
}

/// How long a judge puts up with silence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// With a key that is not there any more.
    pub expired: Millis,
    /// With a key that is there and does not change.
    pub stuck: Millis,
}

/// What a judge finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    /// Nothing was seen of it yet.
    Waiting {
        /// For how long.
        since: Millis,
    },
    /// It changed lately.
    Alive,
    /// It was there, and its key has expired for too long.
    Expired,
    /// Its key is there, but has not changed for too long.
    Stuck {
        /// For how long.
        since: Millis,
    },
}

impl Watch {
    /// Starts to watch a holder.
    pub fn new(incarnation: u64, now: Millis) -> Self {
        Watch { incarnation, last: None, since: now }
    }

    /// Takes a sample in (`None`: there is no such key) and judges. Under another incarnation everything begins anew.
    pub fn observe(
        &mut self,
        incarnation: u64,
        sample: Option<&[u8]>,
        now: Millis,
        patience: Patience,
    ) -> Liveness {
        if incarnation != self.incarnation {
            *self = Watch::new(incarnation, now);
        }
        let quiet = now.saturating_sub(self.since);
        match (sample, &self.last) {
            (None, None) => Liveness::Waiting { since: quiet },
            (None, Some(_)) if quiet < patience.expired => Liveness::Alive,
            (None, Some(_)) => Liveness::Expired,
            (Some(sample), Some(last)) if sample == &last[..] => {
                if quiet >= patience.stuck {
                    Liveness::Stuck { since: quiet }
                } else {
                    Liveness::Alive
                }
            }
            (Some(sample), _) => {
                self.last = Some(sample.to_vec());
                self.since = now;
                Liveness::Alive
            }
        }
    }

    /// For how long nothing has changed.
    pub fn quiet_for(&self, now: Millis) -> Millis {
        now.saturating_sub(self.since)
    }

    /// The judge itself was blind (the cache was away): what it has not seen counts for nothing.
    pub fn pardon(&mut self, now: Millis) {
        self.last = None;
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn heartbeats_are_those_of_the_wire() {
        for (text, heartbeat) in [
            ("0", Heartbeat::Beat(0)),
            ("199", Heartbeat::Beat(199)),
            ("200", Heartbeat::Finished),
            ("-1", Heartbeat::Failed),
            ("-2", Heartbeat::Cancelled),
        ] {
            assert_eq!(Heartbeat::parse(text.as_bytes()), Ok(heartbeat));
            assert_eq!(heartbeat.to_bytes(), text.as_bytes());
        }
        for bad in ["", "201", "-3", "1.5", "abc", "99999999999"] {
            assert!(Heartbeat::parse(bad.as_bytes()).is_err(), "{bad:?}");
        }
        assert!(Heartbeat::parse(b"\xff").unwrap_err().to_string().contains("200 (finished)"));
    }

    #[test]
    fn the_counter_never_leaves_its_range_nor_stands_still() {
        let mut beat = 0;
        for _ in 0..1_000 {
            let next = next_beat(beat);
            assert!(next < 200 && next != beat);
            beat = next;
        }
    }

    #[test]
    fn a_holder_is_judged_by_ttl_change_and_incarnation() {
        let mut watch = Watch::new(1, 0);
        let mut at = |incarnation, sample: Option<&str>, now| {
            let patience = Patience { expired: 5_000, stuck: 10_000 };
            watch.observe(incarnation, sample.map(str::as_bytes), now, patience)
        };
        assert_eq!(at(1, None, 4_000), Liveness::Waiting { since: 4_000 });
        assert_eq!(at(1, Some("5"), 5_000), Liveness::Alive);
        assert_eq!(at(1, Some("5"), 14_999), Liveness::Alive);
        assert_eq!(at(1, Some("5"), 15_000), Liveness::Stuck { since: 10_000 });
        assert_eq!(at(1, Some("6"), 15_001), Liveness::Alive);
        assert_eq!(at(1, None, 20_000), Liveness::Alive, "a cache that was emptied is filled again soon");
        assert_eq!(at(1, None, 20_001), Liveness::Expired);
        // Another holder: the old one's silence is not its own.
        assert_eq!(at(2, None, 20_002), Liveness::Waiting { since: 0 });
        at(2, Some("1"), 20_003);
        watch.pardon(40_000);
        let patience = Patience { expired: 5_000, stuck: 10_000 };
        assert_eq!(watch.observe(2, None, 40_001, patience), Liveness::Waiting { since: 1 });
    }

    proptest! {
        /// A Python worker: a random number every 3 seconds, sampled at any moment. It must not be declared dead.
        #[test]
        fn a_healthy_python_worker_is_never_declared_dead(seed: u64, phase in 0i64..3_000) {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut watch = Watch::new(0, 0);
            let mut value = rng.u8(0..200);
            for sample in 0..2_000i64 {
                if (sample * 1_000 + phase) % HEARTBEAT_PERIOD < 1_000 {
                    value = rng.u8(0..200);
                }
                let bytes = Heartbeat::Beat(value).to_bytes();
                let patience = Patience { expired: EXPIRED_AFTER, stuck: TASK_STUCK_AFTER };
                let judged = watch.observe(0, Some(&bytes), sample * 1_000, patience);
                prop_assert_eq!(judged, Liveness::Alive);
            }
        }
    }
}
