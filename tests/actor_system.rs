//! What the actor system promises, seen from outside.

use std::time::{Duration, Instant};

use actix::prelude::*;
use skalds::actors::{ActorError, ActorSystem, Spec};

const LONG: Duration = Duration::from_secs(20);

fn system(arbiters: usize) -> ActorSystem {
    ActorSystem::builder().arbiters(arbiters).seed(1).start().unwrap()
}

/// Counts, waits for a gate, panics when told to.
#[derive(Default)]
struct Counter {
    sum: u64,
}

impl Actor for Counter {
    type Context = Context<Self>;
}

#[derive(Message)]
#[rtype(u64)]
struct Add(u64);

impl Handler<Add> for Counter {
    type Result = u64;
    fn handle(&mut self, Add(n): Add, _: &mut Context<Self>) -> u64 {
        self.sum += n;
        self.sum
    }
}

#[derive(Message)]
#[rtype(result = "()")]
struct Burst(&'static str);

impl Handler<Burst> for Counter {
    type Result = ();
    fn handle(&mut self, Burst(text): Burst, _: &mut Context<Self>) {
        panic!("{text}: sum is {}", self.sum)
    }
}

#[test]
fn starts_in_a_plain_main() {
    let system = system(2);
    let counter = system.spawn(Spec::new("counter", Counter::default)).unwrap();
    let sum = system.block_on(async {
        counter.ask(Add(2)).await.unwrap();
        counter.ask(Add(3)).await.unwrap()
    });
    assert_eq!(sum.unwrap(), 5);
    let report = system.block_on(system.shutdown(LONG)).unwrap();
    assert!(report.is_clean());
    assert_eq!(report.drained, 1);
}

#[tokio::test]
async fn starts_inside_a_current_thread_tokio_runtime() {
    let begin = Instant::now();
    let system = system(2);
    assert!(begin.elapsed() < Duration::from_millis(500), "starting blocked for {:?}", begin.elapsed());
    let counter = system.spawn(Spec::new("counter", Counter::default)).unwrap();
    assert_eq!(counter.ask(Add(2)).await, Ok(2));
    assert!(system.shutdown(LONG).await.is_clean());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starts_inside_a_multi_thread_tokio_runtime() {
    let system = system(1);
    let counter = system.spawn(Spec::new("counter", Counter::default)).unwrap();
    let asked = tokio::spawn(async move { counter.ask(Add(2)).await });
    assert_eq!(asked.await.unwrap(), Ok(2));
    assert!(system.shutdown(LONG).await.is_clean());
}

#[actix::test]
async fn starts_inside_an_actix_system() {
    let system = system(1);
    let counter = system.spawn(Spec::new("counter", Counter::default)).unwrap();
    assert_eq!(counter.ask(Add(2)).await, Ok(2));
    assert!(system.shutdown(LONG).await.is_clean());
    // The actix system around us is another one, and lives on.
    assert_eq!(Counter::default().start().send(Add(1)).await.unwrap(), 1);
}

#[tokio::test]
async fn a_panic_ends_one_incarnation_and_keeps_its_text() {
    let system = system(1);
    let counter = system.spawn(Spec::new("counter", Counter::default)).unwrap();
    let neighbour = system.spawn(Spec::new("neighbour", Counter::default)).unwrap();
    counter.ask(Add(7)).await.unwrap();
    neighbour.ask(Add(1)).await.unwrap();
    let error = counter.ask(Burst("boom")).await.unwrap_err();
    assert_eq!(error, ActorError::Panicked { actor: "counter".into(), text: "boom: sum is 7".into() });
    assert_eq!(neighbour.ask(Add(1)).await, Ok(2), "a neighbour on the same arbiter lives on");
    assert_eq!(counter.ask(Add(1)).await, Ok(1), "made again by the factory");
    let text = system.metrics_text();
    assert!(text.contains("actor_panics_total{actor=\"counter\"} 1"), "{text}");
    assert!(text.contains("actor_restarts_total{actor=\"counter\"} 1"), "{text}");
    system.shutdown(LONG).await;
}
