//! Waiting for a condition with a deadline.

use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(10);

/// Waits until `condition` holds; panics with `what` when `deadline` passes first.
#[track_caller]
pub fn wait_until(deadline: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(deadline, what, || condition().then_some(()));
}

/// Waits until `attempt` gives a value; panics with `what` when `deadline` passes first.
#[track_caller]
pub fn wait_for<T>(deadline: Duration, what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + deadline;
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(Instant::now() < end, "gave up after {deadline:?} waiting for {what}");
        std::thread::sleep(PAUSE);
    }
}

/// Looks again and again for as long as `time`; panics with `what` when `condition` does not hold.
#[track_caller]
pub fn holds_for(time: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::thread::sleep(PAUSE);
        assert!(condition(), "it did not stay so that {what}");
    }
}

/// [`wait_until`] inside a tokio runtime.
pub async fn wait_until_async<F, C>(deadline: Duration, what: &str, mut condition: F)
where
    F: FnMut() -> C,
    C: Future<Output = bool>,
{
    let end = Instant::now() + deadline;
    while !condition().await {
        assert!(Instant::now() < end, "gave up after {deadline:?} waiting for {what}");
        tokio::time::sleep(PAUSE).await;
    }
}
