//! The system's threads: one of its own with an actix `System` on it, and the arbiters that run actors.

use std::{sync::Arc, time::Duration};

use actix_rt::{Arbiter, ArbiterHandle, System};
use futures_util::future::{Either, select};
use tokio::sync::oneshot;

use super::{error::ActorError, registry::Core};

/// Called by an arbiter whenever it has nothing to do.
pub(crate) type OnIdle = Arc<dyn Fn() + Send + Sync>;

/// How long an arbiter may take to end after it was told to; a handler that blocks holds it longer.
const GRACE: Duration = Duration::from_secs(1);

/// Starts the threads, makes the core on the system's own thread, and returns when all run.
pub(crate) fn start(
    arbiters: usize,
    on_idle: Option<OnIdle>,
    make: impl FnOnce(ArbiterHandle, tokio::runtime::Handle, Vec<ArbiterHandle>) -> Arc<Core> + Send + 'static,
) -> Result<Arc<Core>, ActorError> {
    let (ready, started) = std::sync::mpsc::channel();
    let failed = |what: &str, reason: String| ActorError::Start { what: what.into(), reason };
    std::thread::Builder::new()
        .name("skalds-system".into())
        .spawn(move || run(arbiters, on_idle, make, &ready))
        .map_err(|reason| failed("system thread", reason.to_string()))?;
    match started.recv() {
        Ok(result) => result.map_err(|reason| failed("arbiter threads", reason)),
        Err(_) => Err(failed("system thread", "it ended at once".into())),
    }
}

fn run(
    arbiters: usize,
    on_idle: Option<OnIdle>,
    make: impl FnOnce(ArbiterHandle, tokio::runtime::Handle, Vec<ArbiterHandle>) -> Arc<Core>,
    ready: &std::sync::mpsc::Sender<Result<Arc<Core>, String>>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(reason) => {
            let _ = ready.send(Err(reason.to_string())); // `start` waits for it
            return;
        }
    };
    let handle = runtime.handle().clone();
    let runner = System::with_tokio_rt(|| runtime);
    let stopped_from_inside = runner.stop_future();
    runner.block_on(async move {
        let mut threads = Vec::with_capacity(arbiters);
        for _ in 0..arbiters {
            match arbiter(on_idle.clone()) {
                Ok(thread) => threads.push(thread),
                Err(reason) => {
                    let _ = ready.send(Err(reason.to_string())); // `start` waits for it
                    end(threads).await;
                    return;
                }
            }
        }
        let handles = threads.iter().map(|thread| thread.arbiter.handle()).collect();
        let core = make(System::current().arbiter().clone(), handle, handles);
        let _ = ready.send(Ok(Arc::clone(&core))); // `start` waits for it

        let told = std::pin::pin!(core.stop.notified());
        if let Either::Right(_) = select(told, stopped_from_inside).await {
            core.close();
            core.draft_mut(|draft| {
                draft.cause.get_or_insert_with(|| "an actor called System::stop".into());
            });
        }
        let stuck = end(threads).await;
        core.blocking.close(true);
        let report = core.draft_mut(|draft| {
            draft.stuck_arbiters = stuck;
            draft.clone()
        });
        core.report.send_replace(Some(report));
    });
}

struct Thread {
    arbiter: Arbiter,
    /// Ends, with an error, when the arbiter lets go of its tasks.
    gone: oneshot::Receiver<()>,
}

fn arbiter(on_idle: Option<OnIdle>) -> std::io::Result<Thread> {
    let arbiter = Arbiter::try_with_tokio_rt(move || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all();
        if let Some(on_idle) = on_idle {
            builder.on_thread_park(move || on_idle());
        }
        builder.build()
    })?;
    let (alive, gone) = oneshot::channel::<()>();
    arbiter.spawn(async move {
        let _alive = alive;
        std::future::pending::<()>().await;
    });
    Ok(Thread { arbiter, gone })
}

/// Ends the arbiters and says how many did not: their threads are left to themselves.
async fn end(threads: Vec<Thread>) -> usize {
    for thread in &threads {
        thread.arbiter.stop();
    }
    let late = tokio::time::Instant::now() + GRACE;
    let mut stuck = 0;
    for Thread { arbiter, gone } in threads {
        match tokio::time::timeout_at(late, gone).await {
            // It has let go of its tasks and is about to end.
            Ok(_) => {
                if arbiter.join().is_err() {
                    tracing::error!("an arbiter thread panicked at its end");
                }
            }
            Err(_) => stuck += 1,
        }
    }
    if stuck > 0 {
        tracing::error!(stuck, "arbiter threads did not end: a handler blocks them");
    }
    stuck
}
