//! Tasks in one process, without any service: `cargo run --example embedded`.
//!
//! A controller takes tasks in and gives them to a Skald; both live here, with their storage in memory. One task is
//! updated while it runs, one fails twice before it works, one is cancelled.

use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use skalds::actors::ActorSystem;
use skalds::actors::controller::SystemController;
use skalds::actors::skald::Skald;
use skalds::actors::worker::{Outcome, TaskWorker, WorkerContext, WorkerError};
use skalds::backend::Backends;
use skalds::core::submission::NewTask;
use skalds::core::task::LifecycleStatus;

/// Looks at a camera, so many frames of it. The fields are the task's attachments.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Camera {
    rtsp_url: String,
    frames: u32,
}

#[async_trait]
impl TaskWorker for Camera {
    async fn run(&self, ctx: &WorkerContext) -> Result<Outcome, WorkerError> {
        if self.rtsp_url == "shaky" && ctx.attempt() < 3 {
            return Err(WorkerError::new(format!("attempt {}: no picture", ctx.attempt())));
        }
        let mut frame = 0;
        while !ctx.is_cancelled() {
            // Always what they are now, live updates included.
            let now: Camera = ctx.attachments_as()?;
            if frame >= now.frames {
                return Outcome::with(&frame);
            }
            frame += 1;
            ctx.progress(
                f64::from(frame) / f64::from(now.frames),
                format!("frame {frame} of {}", now.rtsp_url),
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(Outcome::Stopped)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let system = ActorSystem::start()?;
    let backends = Backends::in_memory()?; // `Backends::embedded("tasks.db")` keeps them
    let controller = SystemController::builder().backends(backends.clone()).start(&system)?;
    let skald = Skald::builder().id("here").backends(backends).register::<Camera>("Camera").start(&system)?;
    skald.ready().await;
    let mut changes = controller.subscribe();

    let camera = |id: &str, url: &str, frames: u32| {
        NewTask::new("Camera").id(id).attach("rtspUrl", url).attach("frames", frames)
    };
    controller.submit(camera("door", "rtsp://door", 1_000_000)).await?;
    controller.submit(camera("garden", "shaky", 5)).await?;
    controller.submit(camera("attic", "rtsp://attic", 1_000_000)).await?;

    let mut open = 3;
    while open > 0 {
        let Some(Ok(change)) = changes.next().await else { break };
        println!("{:8} {:?}, attempt {}", change.id, change.lifecycle_status, change.attempt);
        match (change.id.as_str(), change.lifecycle_status) {
            ("attic", LifecycleStatus::Running) => drop(controller.cancel("attic").await?),
            ("door", LifecycleStatus::Running) if change.progress.is_none() => {
                let fewer = serde_json::json!({"rtspUrl": "rtsp://door/2", "frames": 10});
                controller.update_attachments("door", fewer.as_object().cloned()).await?;
            }
            (_, LifecycleStatus::Finished | LifecycleStatus::Failed | LifecycleStatus::Cancelled) => {
                open -= 1
            }
            _ => {}
        }
    }
    let door = controller.get("door").await?;
    println!("door saw {} frames", door.skalds.result.unwrap_or_default());
    system.shutdown(Duration::from_secs(10)).await;
    Ok(())
}
