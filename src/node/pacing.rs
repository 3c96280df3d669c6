//! How much one call may do: follows what calls have taken.

use std::time::Duration;

/// What part of the limit a script is given: its start, its answer and the clock's grain need the rest.
const SHARE: f64 = 0.8;
/// A guess before anything was measured: microseconds for a key.
const FIRST_GUESS: f64 = 4.0;
/// Scripts are never told to do less than this many keys, or they would not get on.
const FEWEST_KEYS: f64 = 4.0;
/// Nor more, whatever the speed: what a call gathers must stay small.
const MOST_KEYS: f64 = 10_000.0;

/// The budgets of the next call.
#[derive(Debug, Clone)]
pub(crate) struct Pace {
    limit_micros: f64,
    time_micros: f64,
    micros_per_key: f64,
}

impl Pace {
    pub(crate) fn new(max_block_micros: u32) -> Self {
        let limit_micros = f64::from(max_block_micros.max(1));
        Pace { limit_micros, time_micros: limit_micros * SHARE / 2.0, micros_per_key: FIRST_GUESS }
    }

    /// The script's own time limit, where it has a clock.
    pub(crate) fn time_micros(&self) -> u64 {
        self.time_micros as u64
    }

    /// The script's limit in keys, where it has none.
    pub(crate) fn keys(&self) -> u64 {
        (self.limit_micros * SHARE / self.micros_per_key).clamp(FEWEST_KEYS, MOST_KEYS) as u64
    }

    /// Learns from a call. A call past the limit makes the next one shorter at once, others make it longer slowly.
    pub(crate) fn learn(&mut self, took: Duration, keys: u64) {
        let took = took.as_secs_f64() * 1e6;
        if keys > 0 {
            let per_key = took / keys as f64;
            // Slow calls are believed sooner than fast ones, and few keys say little.
            let weight =
                if per_key > self.micros_per_key { 0.5 } else { 0.1 } * (keys as f64 / 16.0).min(1.0);
            self.micros_per_key += (per_key - self.micros_per_key) * weight;
        }
        let most = self.limit_micros * SHARE;
        let changed = if took > self.limit_micros { self.time_micros * 0.85 } else { self.time_micros * 1.1 };
        self.time_micros = changed.clamp(most / 4.0, most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_finds_the_pace_of_a_slow_step_and_of_a_fast_one() {
        for micros_per_key in [0.8, 5.0, 150.0] {
            let mut pace = Pace::new(2_000);
            let mut took = 0.0;
            for _ in 0..100 {
                let keys = pace.keys();
                took = keys as f64 * micros_per_key;
                pace.learn(Duration::from_secs_f64(took / 1e6), keys);
            }
            assert!((1_000.0..=2_000.0).contains(&took), "{micros_per_key} µs a key: calls of {took} µs");
        }
    }

    #[test]
    fn calls_past_the_limit_shorten_the_next_but_not_to_nothing() {
        let mut pace = Pace::new(2_000);
        for _ in 0..100 {
            pace.learn(Duration::from_millis(9), 100);
        }
        assert_eq!(pace.time_micros(), 400);
        for _ in 0..100 {
            pace.learn(Duration::from_micros(900), 100);
        }
        assert_eq!(pace.time_micros(), 1_600);
    }
}
