//! Worker classes that the tests share.

use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use skalds::actors::skald::SkaldBuilder;
use skalds::actors::worker::{
    BlockingContext, BlockingTaskWorker, Outcome, TaskWorker, WorkerContext, WorkerError,
};

/// All of them.
pub(crate) fn all(builder: SkaldBuilder) -> SkaldBuilder {
    builder
        .register::<Echo>("Echo")
        .register::<Wait>("Wait")
        .register::<Deaf>("Deaf")
        .register::<Stubborn>("Stubborn")
        .register::<Fail>("Fail")
        .register::<Panic>("Panic")
        .register::<Listen>("Listen")
        .register::<Hear>("Hear")
        .register_blocking::<Block>("Block")
}

/// Ends at once, with what it was given.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Echo {
    the_word: Value,
}

#[async_trait]
impl TaskWorker for Echo {
    async fn run(&self, _: &WorkerContext) -> Result<Outcome, WorkerError> {
        Outcome::with(&self.the_word)
    }
}

/// Waits until it is to stop, and holds still where it is asked to.
#[derive(Deserialize)]
pub(crate) struct Wait;

#[async_trait]
impl TaskWorker for Wait {
    async fn run(&self, ctx: &WorkerContext) -> Result<Outcome, WorkerError> {
        while !ctx.is_cancelled() {
            ctx.paused().await;
            tokio::select! {
                _ = ctx.cancelled() => {}
                () = tokio::time::sleep(Duration::from_millis(5)) => {}
            }
        }
        Ok(Outcome::Stopped)
    }
}

/// Does not look whether it is to stop, but lets others run.
#[derive(Deserialize)]
pub(crate) struct Deaf;

#[async_trait]
impl TaskWorker for Deaf {
    async fn run(&self, _: &WorkerContext) -> Result<Outcome, WorkerError> {
        std::future::pending().await
    }
}

/// Blocks its arbiter, as no worker should.
#[derive(Deserialize)]
pub(crate) struct Stubborn {
    millis: u64,
}

#[async_trait]
impl TaskWorker for Stubborn {
    async fn run(&self, _: &WorkerContext) -> Result<Outcome, WorkerError> {
        std::thread::sleep(Duration::from_millis(self.millis));
        Ok(Outcome::done())
    }
}

/// Fails until this attempt.
#[derive(Deserialize)]
pub(crate) struct Fail {
    #[serde(default)]
    until: Option<u32>,
    #[serde(default)]
    permanent: bool,
}

#[async_trait]
impl TaskWorker for Fail {
    async fn run(&self, ctx: &WorkerContext) -> Result<Outcome, WorkerError> {
        if self.until.is_some_and(|until| ctx.attempt() >= until) {
            return Outcome::with(&ctx.attempt());
        }
        let text = format!("attempt {} did not work", ctx.attempt());
        Err(if self.permanent { WorkerError::permanent(text) } else { WorkerError::new(text) })
    }
}

/// Panics where it is told to.
#[derive(Deserialize)]
pub(crate) struct Panic {
    place: String,
}

#[async_trait]
impl TaskWorker for Panic {
    async fn before(&mut self, _: &WorkerContext) -> Result<(), WorkerError> {
        assert!(self.place != "before", "fell over in before");
        Ok(())
    }

    async fn run(&self, _: &WorkerContext) -> Result<Outcome, WorkerError> {
        tokio::task::yield_now().await;
        assert!(self.place != "run", "fell over in run");
        Ok(Outcome::done())
    }

    async fn release(&mut self, _: &WorkerContext) {
        assert!(self.place != "release", "fell over in release");
    }
}

/// Takes updates through the hook; shows them as progress.
#[derive(Deserialize)]
pub(crate) struct Listen;

#[async_trait]
impl TaskWorker for Listen {
    async fn run(&self, ctx: &WorkerContext) -> Result<Outcome, WorkerError> {
        ctx.cancelled().await;
        Ok(Outcome::Stopped)
    }

    async fn update(&self, ctx: &WorkerContext, attachments: &Map<String, Value>) -> Result<(), WorkerError> {
        if attachments["frame"] == json!("bad") {
            return Err(WorkerError::new("not that one"));
        }
        ctx.progress(0.5, attachments["frame"].to_string());
        Ok(())
    }
}

/// Takes updates in `run`, and ends when it is told to.
#[derive(Deserialize)]
pub(crate) struct Hear;

#[async_trait]
impl TaskWorker for Hear {
    async fn run(&self, ctx: &WorkerContext) -> Result<Outcome, WorkerError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Settings {
            the_end: bool,
        }
        let mut updates = ctx.updates();
        while let Some(attachments) = updates.next().await {
            let settings: Settings = ctx.attachments_as()?;
            if settings.the_end {
                return Outcome::with(&*attachments);
            }
        }
        Ok(Outcome::Stopped)
    }

    async fn update(&self, _: &WorkerContext, _: &Map<String, Value>) -> Result<(), WorkerError> {
        panic!("not called for a worker that listens itself");
    }
}

/// Blocks a thread of its own.
#[derive(Deserialize)]
pub(crate) struct Block {
    #[serde(default)]
    ignore_cancel: bool,
    #[serde(default)]
    panic: bool,
    #[serde(default)]
    rounds: Option<u32>,
}

impl BlockingTaskWorker for Block {
    fn run(&mut self, ctx: &BlockingContext) -> Result<Outcome, WorkerError> {
        assert!(!self.panic, "a thread fell over");
        let done: u32 = ctx.last_checkpoint()?.unwrap_or(0);
        for round in done.. {
            if self.rounds.is_some_and(|rounds| round >= rounds) {
                return Outcome::with(&round);
            }
            if self.ignore_cancel {
                std::thread::sleep(Duration::from_millis(10));
            } else if ctx.wait(Duration::from_millis(1)) {
                return Ok(Outcome::Stopped);
            }
            ctx.progress(0.1, format!("round {round}"));
            ctx.checkpoint(&(round + 1))?;
        }
        Ok(Outcome::done())
    }
}
