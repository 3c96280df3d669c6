//! What a call of ours costs beside plain actix: `ask` against `Addr::send`, `tell` against `Addr::try_send`, within
//! one arbiter and across two, with 1 and with 64 calls in flight. Goal: at most 1.1 times.
//!
//! Both sides run on the same threads, in turn; the ratio is the middle of the ratios of neighbouring rounds:
//! `cargo bench --bench actor_call`.

use std::{
    pin::Pin,
    time::{Duration, Instant},
};

use actix::prelude::*;
use futures_util::{StreamExt, stream};
use skalds::actors::{ActorRef, ActorSystem, Place, Spec};

const ROUNDS: usize = 201;
const ASKS: u64 = 3_000;
const TELLS: u64 = 10_000;
/// Tells between two asks that wait for them; below the mailboxes' bound.
const BURST: u64 = 1_000;
const MAILBOX: usize = 1_024;
const GOAL: f64 = 1.1;

struct Counter(u64);

impl Actor for Counter {
    type Context = Context<Self>;
    fn started(&mut self, ctx: &mut Context<Self>) {
        ctx.set_mailbox_capacity(MAILBOX);
    }
}

#[derive(Message)]
#[rtype(u64)]
struct Add(u64);

impl Handler<Add> for Counter {
    type Result = u64;
    fn handle(&mut self, Add(n): Add, _: &mut Context<Self>) -> u64 {
        self.0 = self.0.wrapping_add(n);
        self.0
    }
}

type Job<R> = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = R>>> + Send>;

/// Runs a future on its arbiter.
struct Bench;

impl Actor for Bench {
    type Context = Context<Self>;
}

#[derive(Message)]
#[rtype(result = "R")]
struct Run<R: 'static>(Job<R>);

impl<R: 'static> Handler<Run<R>> for Bench {
    type Result = ResponseFuture<R>;
    fn handle(&mut self, Run(job): Run<R>, _: &mut Context<Self>) -> ResponseFuture<R> {
        job()
    }
}

async fn on<R, F>(bench: &ActorRef<Bench>, job: impl FnOnce() -> F + Send + 'static) -> R
where
    R: Send + 'static,
    F: Future<Output = R> + 'static,
{
    bench.ask(Run(Box::new(move || Box::pin(job())))).await.expect("the bench's own actor answers")
}

/// Nanoseconds a call.
fn per_call(begin: Instant, calls: u64) -> f64 {
    begin.elapsed().as_nanos() as f64 / calls as f64
}

async fn ask_plain(to: Addr<Counter>, in_flight: usize) -> f64 {
    let begin = Instant::now();
    if in_flight == 1 {
        for n in 0..ASKS {
            to.send(Add(n)).await.expect("alive");
        }
    } else {
        let asks = stream::iter(0..ASKS).map(|n| to.send(Add(n))).buffer_unordered(in_flight);
        asks.for_each(|answer| async move { assert!(answer.is_ok()) }).await;
    }
    per_call(begin, ASKS)
}

async fn ask_ours(to: ActorRef<Counter>, in_flight: usize) -> f64 {
    let begin = Instant::now();
    if in_flight == 1 {
        for n in 0..ASKS {
            to.ask(Add(n)).await.expect("alive");
        }
    } else {
        let asks = stream::iter(0..ASKS).map(|n| to.ask(Add(n))).buffer_unordered(in_flight);
        asks.for_each(|answer| async move { assert!(answer.is_ok()) }).await;
    }
    per_call(begin, ASKS)
}

async fn tell_plain(to: Addr<Counter>) -> f64 {
    let begin = Instant::now();
    for n in 1..=TELLS {
        to.try_send(Add(n)).expect("there is room");
        if n % BURST == 0 {
            to.send(Add(n)).await.expect("alive");
        }
    }
    per_call(begin, TELLS)
}

async fn tell_ours(to: ActorRef<Counter>) -> f64 {
    let begin = Instant::now();
    for n in 1..=TELLS {
        to.tell(Add(n)).expect("there is room");
        if n % BURST == 0 {
            to.ask(Add(n)).await.expect("alive");
        }
    }
    per_call(begin, TELLS)
}

fn middle(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// Runs the calls whose name contains `only`; says whether all met the goal.
async fn run(system: &ActorSystem, only: &str) -> bool {
    let spawn = |at: usize| {
        system
            .spawn(Spec::new(format!("bench-{at}"), || Bench).place(Place::Arbiter(at)))
            .expect("a new system has room")
    };
    let home = spawn(0);
    let callers = [("same arbiter", home.clone()), ("across arbiters", spawn(1))];
    let plain = on(&home, || async { Counter(0).start() }).await;
    let ours = system
        .spawn(Spec::new("counter", || Counter(0)).mailbox(MAILBOX).place(Place::Arbiter(0)))
        .expect("a new system has room");
    let mut met = true;
    println!("{:32} {:>10} {:>10} {:>7}", "call", "actix ns", "ours ns", "ratio");
    for (place, caller) in callers {
        for (call, in_flight) in [("ask, 1 in flight", 1), ("ask, 64 in flight", 64), ("tell", 0)] {
            let name = format!("{place}, {call}");
            if !only.is_empty() && !name.contains(only) {
                continue;
            }
            let (mut theirs, mut own) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                let (to, with) = (plain.clone(), ours.clone());
                if in_flight == 0 {
                    theirs.push(on(&caller, move || tell_plain(to)).await);
                    own.push(on(&caller, move || tell_ours(with)).await);
                } else {
                    theirs.push(on(&caller, move || ask_plain(to, in_flight)).await);
                    own.push(on(&caller, move || ask_ours(with, in_flight)).await);
                }
            }
            // Rounds side by side, so that what else the machine does falls on both.
            let ratio = middle(own.iter().zip(&theirs).map(|(own, theirs)| own / theirs).collect());
            let (theirs, own) = (middle(theirs), middle(own));
            met &= ratio <= GOAL;
            println!("{name:32} {theirs:>10.0} {own:>10.0} {ratio:>7.2}");
        }
    }
    met
}

fn main() {
    let system = ActorSystem::builder().arbiters(2).start().expect("the system starts");
    // cargo passes `--bench`; what is not an option is a filter.
    let only = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    let met = system.block_on(run(&system, &only)).expect("a plain thread");
    let report = system.block_on(system.shutdown(Duration::from_secs(5))).expect("a plain thread");
    assert!(report.is_clean(), "{report:?}");
    println!("goal (at most {GOAL} times plain actix): {}", if met { "met" } else { "MISSED" });
}
