//! A service of one's own, on its own tokio runtime, with an actor system inside: each line that a client sends becomes a
//! task, and is answered with the task's result.
//!
//! ```text
//! cargo run --example inside_tokio_service [-- 127.0.0.1:7000]
//! printf '100\nmany\n' | nc 127.0.0.1 7000
//!     25 primes below 100
//!     no: invalid digit found in string
//! ```
//! The service owns its signals: on SIGTERM or Ctrl-C it takes no more clients, then drains the actors.

use std::time::Duration;

use serde::Deserialize;
use skalds::actors::ActorSystem;
use skalds::actors::controller::SystemController;
use skalds::actors::skald::Skald;
use skalds::actors::worker::{BlockingContext, BlockingTaskWorker, Outcome, WorkerError};
use skalds::backend::Backends;
use skalds::core::submission::NewTask;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};

/// Work that computes, on a thread of its own.
#[derive(Deserialize)]
struct Primes {
    below: u64,
}

impl BlockingTaskWorker for Primes {
    fn run(&mut self, ctx: &BlockingContext) -> Result<Outcome, WorkerError> {
        let mut primes: Vec<u64> = Vec::new();
        for number in 2..self.below {
            if ctx.is_cancelled() {
                return Ok(Outcome::Stopped);
            }
            if primes.iter().take_while(|prime| *prime * *prime <= number).all(|prime| number % prime != 0) {
                primes.push(number);
            }
        }
        Outcome::with(&primes.len())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7000".into());
    let system = ActorSystem::start()?;
    let backends = Backends::in_memory()?;
    let controller = SystemController::builder().backends(backends.clone()).start(&system)?;
    let skald = Skald::builder().backends(backends).register_blocking::<Primes>("Primes").start(&system)?;
    skald.ready().await;

    // What happens to tasks, whoever has made them.
    let mut changes = controller.subscribe();
    tokio::spawn(async move {
        while let Some(change) = changes.next().await {
            match change {
                Ok(change) => println!("{} is {:?}", change.id, change.lifecycle_status),
                Err(missed) => println!("{missed} changes went by unseen"),
            }
        }
    });

    let listener = TcpListener::bind(&address).await?;
    println!("listening on {}", listener.local_addr()?);
    let mut terminate = signal(SignalKind::terminate())?;
    loop {
        tokio::select! {
            client = listener.accept() => {
                let (client, controller) = (client?.0, controller.clone());
                tokio::spawn(async move {
                    if let Err(error) = serve(client, &controller).await {
                        eprintln!("a client went away: {error}");
                    }
                });
            }
            _ = terminate.recv() => break,
            _ = tokio::signal::ctrl_c() => break,
        }
    }
    let report = system.shutdown(Duration::from_secs(5)).await;
    println!("{} actors drained, {} late", report.drained, report.late_count);
    Ok(())
}

async fn serve(mut client: TcpStream, controller: &SystemController) -> std::io::Result<()> {
    let (reader, mut writer) = client.split();
    let mut lines = BufReader::new(reader).lines();
    while let Some(line) = lines.next_line().await? {
        let answer = primes_below(line.trim(), controller).await;
        let answer = answer.unwrap_or_else(|error| format!("no: {error}"));
        writer.write_all(format!("{answer}\n").as_bytes()).await?;
    }
    Ok(())
}

async fn primes_below(
    text: &str,
    controller: &SystemController,
) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    let below: u64 = text.parse()?;
    let task = controller.submit(NewTask::new("Primes").attach("below", below)).await?;
    let ended = tokio::time::timeout(Duration::from_secs(30), controller.ended(&task.id)).await??;
    match ended.skalds.result {
        Some(count) => Ok(format!("{count} primes below {below}")),
        None => Err(ended.skalds.last_error.unwrap_or_else(|| "it was cancelled".into()).into()),
    }
}
