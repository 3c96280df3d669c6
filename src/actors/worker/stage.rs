//! Work in several stages: each is tried again by itself, and is not done again once it is done.

use std::future::Future;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{WorkerContext, WorkerError};
use crate::core::policy::Retry;
use std::time::Duration;

impl WorkerContext {
    /// Runs one stage. When a former attempt has finished it, its stored result is returned and `work` is not called.
    /// Otherwise `work` is called up to `retries` times more after it has failed, with growing waits in between; its
    /// result is stored before this returns. Holds still first if the task is paused.
    ///
    /// # Errors
    /// What `work` said last, with the stage's name; at once when that is permanent, or when the worker is to stop.
    pub async fn stage<T, W, F>(&self, name: &str, retries: u32, mut work: W) -> Result<T, WorkerError>
    where
        T: Serialize + DeserializeOwned,
        W: FnMut() -> F,
        F: Future<Output = Result<T, WorkerError>>,
    {
        if let Some(done) = self.stored().await.stages.remove(name) {
            return serde_json::from_value(done).map_err(|error| {
                WorkerError::permanent(format!(
                    "the stored result of stage {name:?} is of another type: {error}"
                ))
            });
        }
        let waits = Retry { first: 100, cap: 30_000, ..Retry::default() };
        let mut rng = fastrand::Rng::with_seed(self.incarnation() ^ u64::from(self.attempt()));
        let mut tries = 0;
        loop {
            self.paused().await;
            if self.is_cancelled() {
                return Err(WorkerError::new(format!("stopped before stage {name:?}")));
            }
            self.report(0.0, None, Some(name.to_owned()));
            match work().await {
                Ok(result) => {
                    let value = serde_json::to_value(&result)?;
                    self.store(|checkpoint| {
                        checkpoint.stages.insert(name.to_owned(), value);
                    })
                    .await?;
                    return Ok(result);
                }
                Err(error) => {
                    tries += 1;
                    let text = format!("stage {name:?}, try {tries}: {error}");
                    if error.is_permanent() {
                        return Err(WorkerError::permanent(text));
                    }
                    if tries > retries {
                        return Err(WorkerError::new(text));
                    }
                    tracing::debug!(task = self.task_id(), stage = name, %error, "stage failed; trying it again");
                    let wait = waits.delay(tries, &mut rng);
                    tokio::select! {
                        () = self.held.clock().sleep(Duration::from_millis(wait.unsigned_abs())) => {}
                        _ = self.cancelled() => return Err(WorkerError::new(text)),
                    }
                }
            }
        }
    }
}
