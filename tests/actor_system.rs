//! What the actor system promises, seen from outside.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use actix::prelude::*;
use skalds::actors::{
    ActorError, ActorSystem, Drain, Escalation, Exit, Place, Restart, Scope, Spec, Stage, SystemEvent,
};

const LONG: Duration = Duration::from_secs(20);

fn system(arbiters: usize) -> ActorSystem {
    ActorSystem::builder().arbiters(arbiters).seed(1).start().unwrap()
}

fn texts(names: &[Arc<str>]) -> Vec<&str> {
    names.iter().map(AsRef::as_ref).collect()
}

/// Waits for a condition, with a deadline.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < LONG, "{what} did not come about");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
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

/// Blocks the arbiter until the gate opens: what a test needs to fill a mailbox.
#[derive(Message)]
#[rtype(result = "()")]
struct Hold(Arc<Gate>);

#[derive(Default)]
struct Gate {
    entered: AtomicBool,
    open: AtomicBool,
}

impl Gate {
    fn wait(&self) {
        self.entered.store(true, Ordering::SeqCst);
        let begin = Instant::now();
        while !self.open.load(Ordering::SeqCst) && begin.elapsed() < LONG {
            std::thread::yield_now();
        }
    }
    fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
    }
    async fn entered(&self) {
        until("the gate's actor", || self.entered.load(Ordering::SeqCst)).await;
    }
}

impl Handler<Hold> for Counter {
    type Result = ();
    fn handle(&mut self, Hold(gate): Hold, _: &mut Context<Self>) {
        gate.wait();
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

#[tokio::test]
async fn dropping_the_last_handle_ends_the_actors() {
    let system = system(2);
    let counter = system.spawn(Spec::new("counter", Counter::default)).unwrap();
    let scoped = system
        .spawn(Spec::with_scope("keeper", |scope: Scope<Keeper>| Keeper { _system: scope.system }))
        .unwrap();
    counter.ask(Add(1)).await.unwrap();
    drop(system);
    assert_eq!(counter.ended().await, Exit::Killed);
    assert_eq!(scoped.ended().await, Exit::Killed, "the handle from a scope does not keep the system");
    assert!(matches!(counter.ask(Add(1)).await, Err(ActorError::Closed { .. })));
}

struct Keeper {
    _system: ActorSystem,
}

impl Actor for Keeper {
    type Context = Context<Self>;
}

#[tokio::test]
async fn actors_are_found_by_name_and_type() {
    let system = ActorSystem::builder().arbiters(1).max_actors(2).start().unwrap();
    let counter = system.spawn(Spec::new("counter", Counter::default)).unwrap();
    assert_eq!(system.find::<Counter>("counter").unwrap(), counter);
    let other = system.find::<Logger>("counter").unwrap_err();
    assert!(matches!(other, ActorError::OtherType { .. }));
    let text = other.to_string();
    assert!(text.contains("Counter") && text.contains("Logger"), "{text}");
    assert_eq!(system.find::<Counter>("nobody"), Err(ActorError::NotFound { name: "nobody".into() }));
    let taken = system.spawn(Spec::new("counter", Counter::default)).unwrap_err();
    assert_eq!(taken, ActorError::NameTaken { name: "counter".into() });
    for bad in ["", "a\nb", &"x".repeat(257)] {
        let refused = system.spawn(Spec::new(bad, Counter::default)).unwrap_err();
        assert!(matches!(refused, ActorError::InvalidName { .. }), "{bad:?}: {refused}");
    }
    system.spawn(Spec::new("second", Counter::default)).unwrap();
    let third = system.spawn(Spec::new("third", Counter::default)).unwrap_err();
    assert_eq!(third, ActorError::TooManyActors { max: 2 });

    counter.stop();
    assert_eq!(counter.ended().await, Exit::Stopped);
    let again = system.spawn(Spec::new("counter", Counter::default)).unwrap();
    assert_eq!(again.ask(Add(4)).await, Ok(4), "the name is free again");
    assert!(
        matches!(counter.tell(Add(1)).unwrap_err().error, ActorError::Closed { .. }),
        "the old one stays ended"
    );
    assert_eq!(texts(&system.names()), ["counter", "second"]);
    system.shutdown(LONG).await;
    assert_eq!(system.spawn(Spec::new("late", Counter::default)), Err(ActorError::ShuttingDown));
}

#[tokio::test]
async fn places_are_respected() {
    let system = system(3);
    let first = system.spawn(Spec::new("first", Counter::default).place(Place::Arbiter(4))).unwrap();
    assert_eq!(first.arbiter(), 1, "modulo the number of arbiters");
    let beside =
        system.spawn(Spec::new("beside", Counter::default).place(Place::Beside("first".into()))).unwrap();
    assert_eq!(beside.arbiter(), 1);
    let mut spread: Vec<_> = (0..4)
        .map(|n| system.spawn(Spec::new(format!("{n}"), Counter::default)).unwrap().arbiter())
        .collect();
    spread.sort_unstable();
    assert_eq!(spread, [0, 0, 2, 2], "the least loaded first");
    system.shutdown(LONG).await;
}

/// Records what it is told; can be slow without blocking.
struct Logger(Arc<Mutex<Vec<u32>>>);

impl Actor for Logger {
    type Context = Context<Self>;
}

#[derive(Message)]
#[rtype(result = "()")]
struct Log(u32);

impl Handler<Log> for Logger {
    type Result = ();
    fn handle(&mut self, Log(n): Log, _: &mut Context<Self>) {
        self.0.lock().unwrap().push(n);
    }
}

/// Answers when the receiver is told to.
#[derive(Message)]
#[rtype(result = "u32")]
struct Slow(u32, tokio::sync::oneshot::Receiver<()>);

impl Handler<Slow> for Logger {
    type Result = ResponseActFuture<Self, u32>;
    fn handle(&mut self, Slow(n, told): Slow, _: &mut Context<Self>) -> Self::Result {
        Box::pin(
            async move {
                told.await.expect("the test tells");
                n
            }
            .into_actor(self)
            .map(|n, this, _| {
                this.0.lock().unwrap().push(n);
                n
            }),
        )
    }
}

#[tokio::test]
async fn a_message_is_expired_or_timed_out_and_never_both() {
    let system = system(1);
    let log = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&log);
    let logger = system.spawn(Spec::new("logger", move || Logger(Arc::clone(&kept)))).unwrap();
    let holder = system.spawn(Spec::new("holder", Counter::default)).unwrap();
    let short = Duration::from_millis(20);

    // The arbiter is blocked: the message waits in the queue, and is never run.
    let gate = Arc::new(Gate::default());
    holder.tell(Hold(Arc::clone(&gate))).unwrap();
    gate.entered().await;
    logger.tell_within(Log(1), Duration::ZERO).unwrap();
    let asked = logger.ask(Log(2)).deadline(short).await;
    assert_eq!(asked, Err(ActorError::Expired { actor: "logger".into() }));
    gate.open();
    logger.ask(Log(3)).await.unwrap();
    assert_eq!(*log.lock().unwrap(), [3]);

    // It is being handled when the deadline passes.
    let (tell, told) = tokio::sync::oneshot::channel();
    let asked = logger.ask(Slow(4, told)).deadline(short).await;
    assert_eq!(asked, Err(ActorError::Timeout { actor: "logger".into() }));
    tell.send(()).unwrap();
    until("the slow message", || *log.lock().unwrap() == [3, 4]).await;

    // An ask that nobody waits for any more is not run.
    let gate = Arc::new(Gate::default());
    holder.tell(Hold(Arc::clone(&gate))).unwrap();
    gate.entered().await;
    let gone = tokio::time::timeout(short, logger.ask(Log(5))).await;
    assert!(gone.is_err());
    gate.open();
    logger.ask(Log(6)).await.unwrap();
    assert_eq!(*log.lock().unwrap(), [3, 4, 6]);
    let text = system.metrics_text();
    assert!(text.contains("actor_expired_total{actor=\"logger\"} 3"), "{text}");
    system.shutdown(LONG).await;
}

#[tokio::test]
async fn senders_wait_for_room_in_order_and_a_full_mailbox_is_no_dead_end() {
    let system = system(1);
    let log = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&log);
    let logger = system.spawn(Spec::new("logger", move || Logger(Arc::clone(&kept))).mailbox(2)).unwrap();
    let holder = system.spawn(Spec::new("holder", Counter::default)).unwrap();
    let gate = Arc::new(Gate::default());
    holder.tell(Hold(Arc::clone(&gate))).unwrap();
    gate.entered().await;
    logger.tell(Log(0)).unwrap();
    logger.tell(Log(1)).unwrap();
    let full = logger.tell(Log(99)).unwrap_err();
    assert_eq!(full.error, ActorError::Full { actor: "logger".into(), capacity: 2 });

    // Many more senders than room; every third gives up while it waits.
    let mut waiting = Vec::new();
    for n in 2..302 {
        let mut tell = Box::pin(logger.tell_wait(Log(n)));
        assert!(futures_util::poll!(&mut tell).is_pending());
        waiting.push((n, tell));
    }
    waiting.retain(|(n, _)| n % 3 != 0);
    let expected: Vec<u32> = [0, 1].into_iter().chain(waiting.iter().map(|(n, _)| *n)).collect();
    gate.open();
    for (_, tell) in waiting {
        tokio::time::timeout(LONG, tell).await.expect("room comes").unwrap();
    }
    until("the queue", || log.lock().unwrap().len() == expected.len()).await;
    assert_eq!(*log.lock().unwrap(), expected, "in the order in which they began to wait");

    // Those who wait for an actor that ends are told.
    let gate = Arc::new(Gate::default());
    holder.tell(Hold(Arc::clone(&gate))).unwrap();
    gate.entered().await;
    logger.tell(Log(0)).unwrap();
    logger.tell(Log(0)).unwrap();
    let mut late = Box::pin(logger.tell_wait(Log(7)));
    assert!(futures_util::poll!(&mut late).is_pending());
    logger.stop();
    gate.open();
    let refused = late.await.unwrap_err();
    assert_eq!(refused.error, ActorError::Closed { actor: "logger".into() });
    assert_eq!(refused.message.0, 7);
    system.shutdown(LONG).await;
}

/// Checks that each sender's messages come in order and counts them.
struct Ledger(Arc<Mutex<Vec<Vec<u32>>>>);

impl Actor for Ledger {
    type Context = Context<Self>;
}

#[derive(Message)]
#[rtype(result = "()")]
struct Entry(usize, u32);

impl Handler<Entry> for Ledger {
    type Result = ();
    fn handle(&mut self, Entry(sender, n): Entry, _: &mut Context<Self>) {
        self.0.lock().unwrap()[sender].push(n);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_senders_on_many_threads_lose_nothing_and_none_waits_for_ever() {
    const SENDERS: usize = 16;
    const EACH: u32 = 2_000;
    let system = system(2);
    let log = Arc::new(Mutex::new(vec![Vec::new(); SENDERS]));
    let kept = Arc::clone(&log);
    let ledger = system.spawn(Spec::new("ledger", move || Ledger(Arc::clone(&kept))).mailbox(3)).unwrap();
    let senders: Vec<_> = (0..SENDERS)
        .map(|sender| {
            let ledger = ledger.clone();
            tokio::spawn(async move {
                let mut rng = fastrand::Rng::with_seed(sender as u64);
                let mut sent = Vec::new();
                for n in 0..EACH {
                    match rng.u8(0..4) {
                        0 => {
                            ledger.ask(Entry(sender, n)).await.unwrap();
                            sent.push(n);
                        }
                        // Some lose patience, some before they have begun to wait.
                        1 => {
                            let mut tell = Box::pin(ledger.tell_wait(Entry(sender, n)));
                            if let std::task::Poll::Ready(told) = futures_util::poll!(&mut tell) {
                                told.unwrap();
                                sent.push(n);
                            } else if rng.bool() {
                                tell.await.unwrap();
                                sent.push(n);
                            }
                        }
                        2 if ledger.tell(Entry(sender, n)).is_ok() => sent.push(n),
                        2 => tokio::task::yield_now().await,
                        _ => {
                            ledger.tell_wait(Entry(sender, n)).await.unwrap();
                            sent.push(n);
                        }
                    }
                }
                sent
            })
        })
        .collect();
    let mut sent = Vec::new();
    for sender in senders {
        sent.push(tokio::time::timeout(LONG, sender).await.expect("nobody waits for ever").unwrap());
    }
    assert!(system.shutdown(LONG).await.is_clean());
    assert_eq!(*log.lock().unwrap(), sent);
}

#[tokio::test]
async fn a_full_mailbox_takes_control_messages_and_handles_them_first() {
    let system = system(2);
    let log = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&log);
    let logger = system.spawn(Spec::new("logger", move || Logger(Arc::clone(&kept))).mailbox(2)).unwrap();
    let (tell, told) = tokio::sync::oneshot::channel();
    logger.tell(Wait(told)).unwrap();
    until("the logger to be busy", || logger.depth() == 0).await;
    logger.tell(Log(1)).unwrap();
    logger.tell(Log(2)).unwrap();
    let full = ActorError::Full { actor: "logger".into(), capacity: 2 };
    assert_eq!(logger.tell(Log(3)).unwrap_err().error, full);

    logger.control(Log(10)).unwrap();
    let mut asked = Box::pin(logger.ask(Log(11)).control());
    assert!(futures_util::poll!(&mut asked).is_pending());
    assert_eq!(logger.depth(), 4, "the ask did not wait for room");
    assert_eq!(logger.tell(Log(4)).unwrap_err().error, full, "it is as full as it was");
    assert!(log.lock().unwrap().is_empty());
    tell.send(()).unwrap();
    tokio::time::timeout(LONG, asked).await.expect("it is handled").unwrap();
    until("the others", || log.lock().unwrap().len() == 4).await;
    assert_eq!(*log.lock().unwrap(), [10, 11, 1, 2]);
    system.shutdown(LONG).await;
}

#[tokio::test]
async fn the_control_lane_is_bounded_too() {
    let system = system(1);
    let counter = system.spawn(Spec::new("counter", Counter::default)).unwrap();
    let gate = Arc::new(Gate::default());
    counter.tell(Hold(Arc::clone(&gate))).unwrap();
    gate.entered().await;
    let accepted = (0..1_000).filter(|_| counter.control(Add(1)).is_ok()).count();
    assert_eq!(accepted, 256);
    gate.open();
    assert_eq!(counter.ask(Add(0)).await, Ok(256));
    system.shutdown(LONG).await;
}

/// Panics wherever it is told to.
struct Fragile(&'static str);

impl Actor for Fragile {
    type Context = Context<Self>;
    fn started(&mut self, ctx: &mut Context<Self>) {
        match self.0 {
            "started" => panic!("in started"),
            "timer" => {
                ctx.run_later(Duration::from_millis(1), |_, _| panic!("in timer"));
            }
            "spawned" => {
                ctx.spawn(async { panic!("in spawned") }.into_actor(self));
            }
            "address" => ctx.address().try_send(Burst("in address")).expect("a new mailbox has room"),
            _ => {}
        }
    }
}

impl Drop for Fragile {
    fn drop(&mut self) {
        assert!(self.0 != "drop", "in drop");
    }
}

impl Handler<Burst> for Fragile {
    type Result = ();
    fn handle(&mut self, Burst(text): Burst, _: &mut Context<Self>) {
        panic!("{text}")
    }
}

#[tokio::test]
async fn a_panic_anywhere_in_an_actor_is_caught_with_its_text() {
    let system = system(1);
    let neighbour = system.spawn(Spec::new("neighbour", Counter::default)).unwrap();
    for place in ["started", "timer", "spawned", "address"] {
        let fragile =
            system.spawn(Spec::new(place, move || Fragile(place)).restart(Restart::never())).unwrap();
        let exit = fragile.ended().await;
        assert_eq!(exit, Exit::Failed { text: format!("in {place}").into(), restarts: 0 });
    }
    let spec = Spec::new("factory", || -> Counter { panic!("in factory") }).restart(Restart::never());
    let exit = system.spawn(spec).unwrap().ended().await;
    assert_eq!(exit, Exit::Failed { text: "in factory".into(), restarts: 0 });
    let clumsy = system.spawn(Spec::new("drop", || Fragile("drop"))).unwrap();
    clumsy.stop();
    assert_eq!(clumsy.ended().await, Exit::Stopped);
    assert_eq!(neighbour.ask(Add(1)).await, Ok(1));
    assert_eq!(system.failed().len(), 5);
    assert!(system.shutdown(LONG).await.is_clean());
}

/// Answers later, and panics instead of answering.
#[derive(Message)]
#[rtype(result = "()")]
struct LaterBurst {
    beside: bool,
}

impl Handler<LaterBurst> for Counter {
    type Result = Response<()>;
    fn handle(&mut self, LaterBurst { beside }: LaterBurst, ctx: &mut Context<Self>) -> Response<()> {
        let fail = async {
            tokio::task::yield_now().await;
            panic!("later")
        };
        if beside {
            return Response::fut(fail);
        }
        ctx.spawn(fail.into_actor(self));
        Response::fut(std::future::pending())
    }
}

#[tokio::test]
async fn answers_that_come_later_end_with_the_panic() {
    let system = system(1);
    let counter = system.spawn(Spec::new("counter", Counter::default)).unwrap();
    // actix runs a `ResponseFuture` beside the actor: the asker is told, the actor lives.
    counter.ask(Add(5)).await.unwrap();
    let beside = counter.ask(LaterBurst { beside: true }).await;
    assert_eq!(beside, Err(ActorError::NoReply { actor: "counter".into() }));
    assert_eq!(counter.ask(Add(0)).await, Ok(5));
    // A future of the actor ends it, and all its pending answers with it.
    let within = counter.ask(LaterBurst { beside: false }).await;
    assert_eq!(within, Err(ActorError::Panicked { actor: "counter".into(), text: "later".into() }));
    assert_eq!(counter.ask(Add(0)).await, Ok(0));
    system.shutdown(LONG).await;
}

#[tokio::test]
async fn queued_messages_survive_a_restart() {
    let system = system(1);
    let counter = system.spawn(Spec::new("counter", Counter::default)).unwrap();
    let gate = Arc::new(Gate::default());
    counter.tell(Hold(Arc::clone(&gate))).unwrap();
    gate.entered().await;
    for _ in 0..20 {
        counter.tell(Add(100)).unwrap();
    }
    counter.tell(Burst("in the middle")).unwrap();
    for _ in 0..60 {
        counter.tell(Add(1)).unwrap();
    }
    gate.open();
    assert_eq!(counter.ask(Add(0)).await, Ok(60), "a new incarnation went on behind the panic");
    system.shutdown(LONG).await;
}

#[tokio::test]
async fn more_panics_than_allowed_escalate() {
    let system = system(1);
    let mut events = system.events();
    let told = Arc::new(Mutex::new(None));
    let tell = Arc::clone(&told);
    let spec = Spec::with_scope("counter", |scope: Scope<Counter>| {
        assert_eq!(scope.last_panic.is_some(), scope.incarnation > 0);
        Counter { sum: scope.incarnation * 10 }
    });
    let quick = Duration::from_millis(1);
    let counter = system
        .spawn(
            spec.restart(Restart::at_most(2, LONG).backoff(quick, quick))
                .on_exit(move |exit| *tell.lock().unwrap() = Some(exit.clone())),
        )
        .unwrap();
    for n in 0..3 {
        assert_eq!(counter.ask(Add(0)).await, Ok(n * 10));
        counter.ask(Burst("boom")).await.unwrap_err();
    }
    let failed = Exit::Failed { text: "boom: sum is 20".into(), restarts: 2 };
    assert_eq!(counter.ended().await, failed);
    until("on_exit", || told.lock().unwrap().is_some()).await;
    assert_eq!(told.lock().unwrap().take(), Some(failed));
    let refused = counter.ask(Add(0)).await.unwrap_err();
    assert_eq!(refused.to_string(), "actor counter panicked: boom: sum is 20", "the reason is kept");
    let mut seen = Vec::new();
    while !matches!(seen.last(), Some(SystemEvent::Escalated { .. })) {
        seen.push(events.recv().await.unwrap());
    }
    assert_eq!(seen.iter().filter(|event| matches!(event, SystemEvent::Panicked { .. })).count(), 3);
    assert_eq!(seen.iter().filter(|event| matches!(event, SystemEvent::Restarted { .. })).count(), 2);
    assert_eq!(system.failed()[0].text.as_ref(), "boom: sum is 20");
    assert!(!system.is_closing(), "marked failed, and no more");
    system.spawn(Spec::new("counter", Counter::default)).unwrap();
    assert!(system.failed().is_empty(), "the name is in use again");
    system.shutdown(LONG).await;
}

#[tokio::test]
async fn an_escalation_can_stop_the_system() {
    let system = system(1);
    let spec = Spec::new("vital", Counter::default).restart(Restart::never());
    let vital = system.spawn(spec.escalation(Escalation::StopSystem)).unwrap();
    vital.tell(Burst("boom")).unwrap();
    let report = system.stopped().await;
    assert_eq!(report.cause.as_deref(), Some("actor vital gave up: boom: sum is 0"));
}

/// A store that writes asynchronously and is told when its drain ends.
struct Store {
    written: Arc<AtomicU64>,
    drained_at: Arc<AtomicU64>,
}

impl Actor for Store {
    type Context = Context<Self>;
    fn started(&mut self, ctx: &mut Context<Self>) {
        ctx.run_interval(Duration::from_millis(5), |_, _| {}); // does not keep it from ending
    }
}

#[derive(Message)]
#[rtype(result = "()")]
struct Write;

impl Handler<Write> for Store {
    type Result = ResponseActFuture<Self, ()>;
    fn handle(&mut self, _: Write, _: &mut Context<Self>) -> Self::Result {
        let write = async { tokio::time::sleep(Duration::from_millis(1)).await }.into_actor(self);
        Box::pin(write.map(|(), this, _| {
            this.written.fetch_add(1, Ordering::SeqCst);
        }))
    }
}

impl Handler<Drain> for Store {
    type Result = ResponseFuture<()>;
    fn handle(&mut self, _: Drain, _: &mut Context<Self>) -> Self::Result {
        let (written, drained_at) = (Arc::clone(&self.written), Arc::clone(&self.drained_at));
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            drained_at.store(written.load(Ordering::SeqCst), Ordering::SeqCst);
        })
    }
}

/// Passes each message on to the store.
struct Worker {
    store: skalds::actors::ActorRef<Store>,
}

impl Actor for Worker {
    type Context = Context<Self>;
}

impl Handler<Write> for Worker {
    type Result = ResponseFuture<()>;
    fn handle(&mut self, _: Write, _: &mut Context<Self>) -> Self::Result {
        let tell = self.store.tell_wait(Write);
        Box::pin(async move { tell.await.expect("the store is open until the workers are done") })
    }
}

impl Handler<Hold> for Worker {
    type Result = ();
    fn handle(&mut self, Hold(gate): Hold, _: &mut Context<Self>) {
        gate.wait();
    }
}

#[tokio::test]
async fn two_hundred_queued_writes_survive_a_drain() {
    let system = system(2);
    let written = Arc::new(AtomicU64::new(0));
    let drained_at = Arc::new(AtomicU64::new(u64::MAX));
    let (count, at) = (Arc::clone(&written), Arc::clone(&drained_at));
    let store = system
        .spawn(
            Spec::new("store", move || Store { written: Arc::clone(&count), drained_at: Arc::clone(&at) })
                .stage(Stage::Store)
                .mailbox(16)
                .in_flight(4)
                .drain_hook(),
        )
        .unwrap();
    let to = store.clone();
    let worker = system.spawn(Spec::new("worker", move || Worker { store: to.clone() })).unwrap();
    let gate = Arc::new(Gate::default());
    worker.tell(Hold(Arc::clone(&gate))).unwrap();
    gate.entered().await;
    for _ in 0..200 {
        worker.tell(Write).unwrap();
    }
    assert_eq!(worker.depth(), 200);
    let mut down = Box::pin(system.shutdown(LONG));
    assert!(futures_util::poll!(&mut down).is_pending());
    until("the drain", || !worker.is_open()).await;
    assert!(
        matches!(worker.tell(Write).unwrap_err().error, ActorError::Closed { .. }),
        "the intake is stopped"
    );
    assert!(store.is_open(), "later stages are still open");
    gate.open();
    let report = down.await;
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.drained, 2);
    assert_eq!(written.load(Ordering::SeqCst), 200);
    assert_eq!(drained_at.load(Ordering::SeqCst), 200, "the hook came last");
    assert_eq!(store.ended().await, Exit::Stopped);
}

#[tokio::test]
async fn what_misses_the_deadline_is_ended_and_named() {
    let system = system(2);
    let log = Arc::default();
    let slow =
        system.spawn(Spec::new("slow", move || Logger(Arc::clone(&log))).place(Place::Arbiter(0))).unwrap();
    let blocked = system.spawn(Spec::new("blocked", Counter::default).place(Place::Arbiter(1))).unwrap();
    let quick = system.spawn(Spec::new("quick", Counter::default).place(Place::Arbiter(0))).unwrap();
    let (_never, told) = tokio::sync::oneshot::channel();
    slow.tell(Slow(1, told)).unwrap();
    let gate = Arc::new(Gate::default());
    blocked.tell(Hold(Arc::clone(&gate))).unwrap();
    gate.entered().await;
    let begin = Instant::now();
    let report = system.shutdown(Duration::from_millis(100)).await;
    assert!(begin.elapsed() < Duration::from_secs(5), "a blocked thread does not hold the caller");
    assert_eq!(texts(&report.late), ["blocked", "slow"]);
    assert_eq!((report.drained, report.late_count, report.stuck_arbiters), (1, 2, 1));
    assert_eq!(slow.ended().await, Exit::Killed);
    assert_eq!(quick.ended().await, Exit::Stopped);
    gate.open();
    blocked.ended().await; // its thread ends when the handler does
}

#[tokio::test]
async fn an_actor_can_be_killed_in_the_middle_of_a_handler() {
    let system = system(1);
    let log = Arc::default();
    let logger = system.spawn(Spec::new("logger", move || Logger(Arc::clone(&log)))).unwrap();
    let (_never, told) = tokio::sync::oneshot::channel();
    let mut asked = Box::pin(logger.ask(Wait(told)));
    assert!(futures_util::poll!(&mut asked).is_pending());
    until("the handler", || logger.depth() == 0).await;
    logger.control(Log(1)).unwrap();
    logger.kill();
    assert_eq!(logger.ended().await, Exit::Killed);
    assert_eq!(asked.await, Err(ActorError::Closed { actor: "logger".into() }));
    system.shutdown(LONG).await;
}

/// Is handled with nothing else in between.
#[derive(Message)]
#[rtype(result = "()")]
struct Wait(tokio::sync::oneshot::Receiver<()>);

impl Handler<Wait> for Logger {
    type Result = AtomicResponse<Self, ()>;
    fn handle(&mut self, Wait(told): Wait, _: &mut Context<Self>) -> Self::Result {
        AtomicResponse::new(Box::pin(async move { drop(told.await) }.into_actor(self)))
    }
}

/// Does not want to stop.
struct Stubborn;

impl Actor for Stubborn {
    type Context = Context<Self>;
    fn stopping(&mut self, _: &mut Context<Self>) -> Running {
        Running::Continue
    }
}

impl Handler<Add> for Stubborn {
    type Result = MessageResult<Add>;
    fn handle(&mut self, Add(n): Add, _: &mut Context<Self>) -> MessageResult<Add> {
        MessageResult(n)
    }
}

#[tokio::test]
async fn an_actor_that_refuses_to_stop_is_ended_by_the_deadline() {
    let system = system(1);
    let stubborn = system.spawn(Spec::new("stubborn", || Stubborn)).unwrap();
    stubborn.stop();
    assert_eq!(stubborn.ask(Add(3)).await, Ok(3), "it refused");
    let report = system.shutdown(Duration::from_millis(50)).await;
    assert_eq!(texts(&report.late), ["stubborn"]);
    assert_eq!(report.stuck_arbiters, 0);
}

#[tokio::test]
async fn concurrent_handlers_are_bounded() {
    let system = system(1);
    let log = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&log);
    let logger = system.spawn(Spec::new("logger", move || Logger(Arc::clone(&kept))).in_flight(2)).unwrap();
    let (tells, asks): (Vec<_>, Vec<_>) = (0..4)
        .map(|n| {
            let (tell, told) = tokio::sync::oneshot::channel();
            let logger = logger.clone();
            (tell, tokio::spawn(async move { logger.ask(Slow(n, told)).await }))
        })
        .unzip();
    until("two to wait", || logger.depth() == 2).await;
    logger.tell(Log(9)).unwrap();
    logger.control(Log(8)).unwrap();
    until("the control message", || *log.lock().unwrap() == [8]).await;
    assert_eq!(logger.depth(), 3, "the others wait for a free hand");
    tells.into_iter().for_each(|tell| tell.send(()).unwrap());
    for ask in asks {
        ask.await.unwrap().unwrap();
    }
    until("all", || log.lock().unwrap().len() == 6).await;
    system.shutdown(LONG).await;
}

#[tokio::test]
async fn blocking_code_runs_on_a_bounded_pool_and_its_panic_is_told() {
    let system = ActorSystem::builder().arbiters(1).blocking_threads(2).blocking_queue(1).start().unwrap();
    assert_eq!(system.run_blocking(|| 1 + 1).await, Ok(2));
    let panicked = system.run_blocking(|| panic!("bad {}", "luck")).await;
    assert_eq!(panicked, Err::<(), _>(ActorError::BlockingPanicked { text: "bad luck".into() }));
    let gate = Arc::new(Gate::default());
    let running = Arc::new(AtomicUsize::new(0));
    let job = || {
        let (gate, running) = (Arc::clone(&gate), Arc::clone(&running));
        move || {
            running.fetch_add(1, Ordering::SeqCst);
            gate.wait();
        }
    };
    let mut first = Box::pin(system.run_blocking(job()));
    assert!(futures_util::poll!(&mut first).is_pending());
    until("one to run", || running.load(Ordering::SeqCst) == 1).await;
    let mut second = Box::pin(system.run_blocking(job()));
    assert!(futures_util::poll!(&mut second).is_pending());
    until("two to run", || running.load(Ordering::SeqCst) == 2).await;
    let mut third = Box::pin(system.run_blocking(job()));
    assert!(futures_util::poll!(&mut third).is_pending());
    assert_eq!(system.run_blocking(|| ()).await, Err(ActorError::BlockingFull { capacity: 1 }));
    let report = system.shutdown(Duration::from_millis(50)).await;
    assert_eq!(report.blocking_left, 3);
    assert_eq!(third.await, Err(ActorError::ShuttingDown), "it never ran");
    gate.open();
    assert_eq!((first.await, second.await), (Ok(()), Ok(())));
}

#[tokio::test]
async fn an_actor_may_shut_the_system_down_or_pull_the_plug() {
    struct Quitter(ActorSystem);
    impl Actor for Quitter {
        type Context = Context<Self>;
    }
    impl Handler<Add> for Quitter {
        type Result = ResponseFuture<u64>;
        fn handle(&mut self, _: Add, _: &mut Context<Self>) -> ResponseFuture<u64> {
            let system = self.0.clone();
            Box::pin(async move {
                // Begun here, waited for elsewhere: an actor that waits for its own end would be late for it.
                assert!(futures_util::poll!(Box::pin(system.shutdown(LONG))).is_pending());
                7
            })
        }
    }
    impl Handler<Log> for Quitter {
        type Result = ();
        fn handle(&mut self, _: Log, _: &mut Context<Self>) {
            System::current().stop();
        }
    }
    let quitter = |system: &ActorSystem| {
        system.spawn(Spec::with_scope("quitter", |scope: Scope<Quitter>| Quitter(scope.system))).unwrap()
    };
    let first = system(1);
    assert_eq!(quitter(&first).ask(Add(1)).await, Ok(7));
    assert!(first.stopped().await.is_clean());

    let second = system(2);
    let other = second.spawn(Spec::new("other", Counter::default).place(Place::Arbiter(1))).unwrap();
    quitter(&second).tell(Log(1)).unwrap();
    assert_eq!(second.stopped().await.cause.as_deref(), Some("an actor called System::stop"));
    assert_eq!(other.ended().await, Exit::Killed);
    assert_eq!(second.spawn(Spec::new("late", Counter::default)), Err(ActorError::ShuttingDown));
}

#[tokio::test]
async fn metrics_are_told_by_label() {
    let system = system(1);
    system.with_metrics(|registry| {
        let mine = prometheus_client::metrics::counter::Counter::<u64>::default();
        registry.register("mine", "of the embedder", mine.clone());
        mine.inc();
    });
    let label = |n: u32| Spec::new(format!("worker-{n}"), Counter::default).label("worker").mailbox(1);
    let workers: Vec<_> = (0..3).map(|n| system.spawn(label(n)).unwrap()).collect();
    for worker in &workers {
        worker.ask(Add(1)).await.unwrap();
    }
    workers[0].stop();
    workers[0].ended().await;
    let gate = Arc::new(Gate::default());
    workers[1].tell(Hold(Arc::clone(&gate))).unwrap();
    gate.entered().await;
    workers[2].tell(Add(1)).unwrap();
    workers[2].tell(Add(1)).unwrap_err();
    let text = system.metrics_text();
    for line in [
        "actor_messages_total{actor=\"worker\"} 3",
        "actor_refused_total{actor=\"worker\"} 1",
        "actor_mailbox_depth{actor=\"worker\"} 1",
        "actor_handler_seconds_count{actor=\"worker\"} 3",
        "actors 2",
        "mine_total 1",
        "# EOF",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    gate.open();
    system.shutdown(LONG).await;
}
