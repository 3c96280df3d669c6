//! How much one call may do: follows what calls have taken.
//!
//! Where scripts have a clock they end by it. What the agent sees of a call's time also holds the network and other
//! processes' turns, so one long call says little: the quickest of the last few calls do.

use std::time::Duration;

/// What part of the limit a script is given: its start, its answer and the clock's grain need the rest.
const SHARE: f64 = 0.8;
/// A guess before anything was measured: microseconds for a key.
const FIRST_GUESS: f64 = 20.0;
/// Scripts are never told to do fewer keys than this, or they would not get on.
const FEWEST_KEYS: f64 = 4.0;
/// Nor more, whatever the speed: what a call gathers must stay small.
const MOST_KEYS: f64 = 10_000.0;
/// A call of fewer keys is mostly overhead and says nothing of a key's cost.
const TELLING_KEYS: u64 = 8;
/// How many calls are remembered.
const MEMORY: usize = 8;

/// The budgets of the next call.
#[derive(Debug, Clone)]
pub(crate) struct Pace {
    limit_micros: f64,
    time_micros: f64,
    micros_per_key: Recent,
    micros_seen: Recent,
}

/// The last few measurements.
#[derive(Debug, Clone, Default)]
struct Recent {
    values: [f64; MEMORY],
    count: usize,
}

impl Recent {
    fn add(&mut self, value: f64) {
        self.values[self.count % MEMORY] = value;
        self.count += 1;
    }

    /// The second smallest: the smallest may be a fluke.
    fn low(&self) -> Option<f64> {
        let mut known = self.values;
        let known = &mut known[..self.count.min(MEMORY)];
        known.sort_by(f64::total_cmp);
        known.get(1).or(known.first()).copied()
    }
}

impl Pace {
    pub(crate) fn new(max_block_micros: u32) -> Self {
        let limit_micros = f64::from(max_block_micros.max(1));
        Pace {
            limit_micros,
            time_micros: limit_micros * SHARE,
            micros_per_key: Recent::default(),
            micros_seen: Recent::default(),
        }
    }

    /// The script's time limit, where it has a clock.
    pub(crate) fn time_micros(&self) -> u64 {
        self.time_micros as u64
    }

    /// The script's limit in keys, where it has none; also the most that it takes in one piece.
    pub(crate) fn keys(&self) -> u64 {
        let micros_per_key = self.micros_per_key.low().unwrap_or(FIRST_GUESS).max(0.01);
        (self.time_micros / micros_per_key).clamp(FEWEST_KEYS, MOST_KEYS) as u64
    }

    /// Learns from a call: what the agent saw, and what the script's own clock said.
    pub(crate) fn learn(&mut self, seen: Duration, clock: Option<Duration>, keys: u64) {
        let micros = |duration: Duration| duration.as_secs_f64() * 1e6;
        if keys >= TELLING_KEYS {
            self.micros_per_key.add(micros(clock.unwrap_or(seen)) / keys as f64);
        }
        self.micros_seen.add(micros(seen));
        let most = self.limit_micros * SHARE;
        let slow = self.micros_seen.low().is_some_and(|low| low > self.limit_micros);
        self.time_micros = (self.time_micros * if slow { 0.9 } else { 1.05 }).clamp(most / 4.0, most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(micros: f64) -> Duration {
        Duration::from_secs_f64(micros / 1e6)
    }

    #[test]
    fn it_finds_the_pace_of_a_slow_step_and_of_a_fast_one() {
        for micros_per_key in [0.8, 5.0, 150.0] {
            let mut pace = Pace::new(2_000);
            let mut took = 0.0;
            for _ in 0..20 {
                let keys = pace.keys();
                took = keys as f64 * micros_per_key;
                pace.learn(micros(took), None, keys);
            }
            assert!((1_000.0..=2_000.0).contains(&took), "{micros_per_key} µs a key: calls of {took} µs");
        }
    }

    #[test]
    fn a_node_that_is_always_slow_gets_shorter_calls_and_one_slow_call_changes_nothing() {
        let mut pace = Pace::new(2_000);
        for call in 0..100 {
            let seen = if call % 3 == 0 { 1_500.0 } else { 9_000.0 };
            pace.learn(micros(seen), Some(micros(1_500.0)), 1_500);
        }
        assert_eq!((pace.time_micros(), pace.keys()), (1_600, 1_600));
        for _ in 0..100 {
            pace.learn(micros(9_000.0), Some(micros(1_500.0)), 1_500);
        }
        assert_eq!(pace.time_micros(), 400);
    }
}
