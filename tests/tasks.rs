//! The life of tasks: from submission to their end, through the public API.

use std::time::Duration;

use serde::Deserialize;
use skalds::actors::ActorSystem;
use skalds::actors::skald::Skald;
use skalds::actors::worker::{Outcome, TaskWorker, WorkerContext, WorkerError};
use skalds::backend::Backends;
use skalds::core::task::{LifecycleStatus, Task};

#[derive(Deserialize)]
struct Echo {
    word: String,
}

#[async_trait::async_trait]
impl TaskWorker for Echo {
    async fn run(&self, _: &WorkerContext) -> Result<Outcome, WorkerError> {
        Outcome::with(&self.word)
    }
}

#[tokio::test]
async fn smoke() {
    let system = ActorSystem::start().unwrap();
    let backends = Backends::in_memory().unwrap();
    let skald =
        Skald::builder().id("a").backends(backends.clone()).register::<Echo>("Echo").start(&system).unwrap();
    skald.ready().await;
    let mut task = Task::new("t", "Echo", system.clock().now_millis());
    task.lifecycle_status = LifecycleStatus::Assigning;
    task.executor = Some("a".into());
    task.attachments = serde_json::json!({"word": "hi"}).as_object().cloned();
    backends.storage.insert(&task).await.unwrap();
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let task = backends.storage.get("t").await.unwrap().unwrap();
        if task.lifecycle_status == LifecycleStatus::Finished {
            assert_eq!(task.skalds.result, Some("hi".into()));
            skald.drain().await;
            return;
        }
    }
    panic!("{:?}", backends.storage.get("t").await);
}
