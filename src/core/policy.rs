//! When a failed attempt is tried again, and when a task is dead.

use super::task::{Millis, Task};

/// How often and how fast a task is tried again.
#[derive(Debug, Clone, PartialEq)]
pub struct Retry {
    /// Attempts in all when the task does not say; negative is without limit. (`TASK_WORKER_RETRY` counts retries:
    /// see [`Retry::with_retries`].)
    pub max_attempts: i64,
    /// The wait after the first failed attempt.
    pub first: Millis,
    /// What each further wait is multiplied by.
    pub factor: f64,
    /// No wait is longer.
    pub cap: Millis,
    /// Each wait is spread by up to this share in both directions (0 to 1), so that tasks which failed together do
    /// not all come back together.
    pub jitter: f64,
}

impl Default for Retry {
    fn default() -> Self {
        Retry { max_attempts: -1, first: 1_000, factor: 2.0, cap: 300_000, jitter: 0.2 }
    }
}

/// What a failed attempt leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterFailure {
    /// Again, not before this time.
    RetryAt(Millis),
    /// Never again: the attempts are used up.
    OutOfAttempts {
        /// How many there were.
        attempts: u32,
    },
    /// Never again: the next attempt would start after the deadline.
    OutOfTime,
}

impl Retry {
    /// The default policy with `retries` tries after the first attempt; negative is for ever, as the Python package's
    /// `TASK_WORKER_RETRY` has it.
    pub fn with_retries(retries: i64) -> Self {
        Retry { max_attempts: if retries < 0 { -1 } else { retries.saturating_add(1) }, ..Retry::default() }
    }

    /// The wait after attempt number `attempt` (from 1). `rng` decides the jitter.
    pub fn delay(&self, attempt: u32, rng: &mut fastrand::Rng) -> Millis {
        let steps = f64::from(attempt.saturating_sub(1).min(1_000));
        let wait = (self.first.max(0) as f64 * self.factor.max(1.0).powf(steps)).min(self.cap.max(0) as f64);
        let spread = 1.0 + self.jitter.clamp(0.0, 1.0) * (2.0 * rng.f64() - 1.0);
        (wait * spread).min(self.cap.max(0) as f64) as Millis
    }

    /// Decides about a task whose current attempt has failed.
    pub fn after_failure(&self, task: &Task, now: Millis, rng: &mut fastrand::Rng) -> AfterFailure {
        let attempts = task.skalds.attempt;
        let allowed = task.skalds.max_attempts.unwrap_or(self.max_attempts);
        if allowed >= 0 && i64::from(attempts) >= allowed {
            return AfterFailure::OutOfAttempts { attempts };
        }
        let at = now.saturating_add(self.delay(attempts.max(1), rng));
        if task.deadline_date_time > 0 && at >= task.deadline_date_time {
            return AfterFailure::OutOfTime;
        }
        AfterFailure::RetryAt(at)
    }
}

/// A generator that draws the same numbers for the same attempt of the same task: what decides a task's jitter
/// everywhere alike, without state.
pub(crate) fn rng_of(task: &Task) -> fastrand::Rng {
    // FNV-1a: short, and the same on every machine and in every version.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in task.id.bytes().chain(task.skalds.attempt.to_le_bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    fastrand::Rng::with_seed(hash)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn waits_double_up_to_the_cap() {
        let retry = Retry { jitter: 0.0, ..Retry::default() };
        let mut rng = fastrand::Rng::with_seed(1);
        let waits: Vec<_> = (1..=10).map(|attempt| retry.delay(attempt, &mut rng)).collect();
        assert_eq!(waits, [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000, 300_000]);
        assert_eq!(retry.delay(u32::MAX, &mut rng), 300_000);
    }

    #[test]
    fn minus_one_retries_for_ever_and_zero_never() {
        let mut task = Task::new("t", "C", 0);
        task.deadline_date_time = 0;
        let mut rng = fastrand::Rng::with_seed(1);
        task.skalds.attempt = u32::MAX;
        assert!(matches!(
            Retry::with_retries(-1).after_failure(&task, 5, &mut rng),
            AfterFailure::RetryAt(at) if at > 5
        ));
        task.skalds.attempt = 1;
        assert_eq!(
            Retry::with_retries(0).after_failure(&task, 5, &mut rng),
            AfterFailure::OutOfAttempts { attempts: 1 }
        );
        assert!(matches!(Retry::with_retries(1).after_failure(&task, 5, &mut rng), AfterFailure::RetryAt(_)));
        task.skalds.max_attempts = Some(1); // the task's own word counts
        assert_eq!(
            Retry::with_retries(-1).after_failure(&task, 5, &mut rng),
            AfterFailure::OutOfAttempts { attempts: 1 }
        );
    }

    #[test]
    fn no_attempt_is_planned_past_the_deadline() {
        let mut task = Task::new("t", "C", 0);
        task.skalds.attempt = 1;
        task.deadline_date_time = 500;
        let mut rng = rng_of(&task);
        assert_eq!(Retry::default().after_failure(&task, 0, &mut rng), AfterFailure::OutOfTime);
    }

    proptest! {
        #[test]
        fn jitter_stays_within_its_share(attempt in 1u32..40, seed: u64, jitter in 0.0..1.0f64) {
            let retry = Retry { jitter, ..Retry::default() };
            let plain = Retry { jitter: 0.0, ..retry.clone() };
            let middle = plain.delay(attempt, &mut fastrand::Rng::with_seed(seed)) as f64;
            let wait = retry.delay(attempt, &mut fastrand::Rng::with_seed(seed)) as f64;
            prop_assert!(wait >= (middle * (1.0 - jitter)).floor() && wait <= (middle * (1.0 + jitter)).ceil());
            prop_assert!(wait <= retry.cap as f64);
        }
    }
}
