//! The test kit: time that is moved by hand, probes, and chance that repeats itself.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use actix::prelude::*;
use skalds::actors::{
    ActorError, Clock, Exit, Recipient, Restart, Scope, Spec, TestKit, Tick, test_kit::START_MILLIS,
};

const HOUR: Duration = Duration::from_secs(3_600);
const SECOND: Duration = Duration::from_secs(1);

/// Says when it woke up.
#[derive(Message, Debug, PartialEq)]
#[rtype(result = "()")]
struct Woke(&'static str, i64);

/// Sleeps for different times, and ticks.
struct Sleeper {
    clock: Clock,
    to: Recipient<Woke>,
}

impl Sleeper {
    fn say(&self, what: &'static str) {
        self.to.tell(Woke(what, self.clock.now_millis() - START_MILLIS)).expect("the probe has room");
    }
}

impl Actor for Sleeper {
    type Context = Context<Self>;
    fn started(&mut self, ctx: &mut Context<Self>) {
        for (what, after) in [("last", 30), ("first", 10), ("second", 20)] {
            let sleep = self.clock.sleep(after * SECOND).into_actor(self);
            ctx.spawn(sleep.map(move |(), this, _| this.say(what)));
        }
        ctx.add_stream(self.clock.interval(25 * SECOND));
    }
}

impl StreamHandler<Tick> for Sleeper {
    fn handle(&mut self, _: Tick, _: &mut Context<Self>) {
        self.say("tick");
    }
}

#[tokio::test]
async fn timers_fire_in_order_and_at_their_own_time() {
    let kit = TestKit::new().unwrap();
    let probe = kit.probe::<Woke>("probe", |_| ()).unwrap();
    let to = probe.recipient();
    let spec = Spec::with_scope("sleeper", move |scope: Scope<Sleeper>| Sleeper {
        clock: scope.system.clock(),
        to: to.clone(),
    });
    kit.system().spawn(spec).unwrap();
    probe.expect_none(&kit).await;
    let begin = Instant::now();
    kit.advance(9_999 * SECOND / 1_000).await;
    probe.expect_none(&kit).await;
    kit.advance(SECOND).await;
    assert_eq!(probe.expect(&kit).await, Woke("first", 10_000));
    kit.advance(HOUR).await;
    let woke = probe.take_all();
    assert_eq!(woke[..3], [Woke("second", 20_000), Woke("tick", 25_000), Woke("last", 30_000)]);
    assert!(woke[3..].iter().enumerate().all(|(n, woke)| *woke == Woke("tick", 50_000 + n as i64 * 25_000)));
    assert_eq!(woke.len(), 3 + 143, "each tick of the hour, none twice");
    assert!(begin.elapsed() < Duration::from_secs(20), "an hour passes in no time");
}

#[tokio::test]
async fn a_late_reader_of_an_interval_gets_one_tick() {
    let kit = TestKit::new().unwrap();
    let mut interval = kit.system().clock().interval(SECOND);
    kit.advance(10 * SECOND + SECOND / 2).await;
    interval.tick().await;
    let next = Instant::now();
    let mut tick = Box::pin(interval.tick());
    assert!(futures_util::poll!(&mut tick).is_pending(), "the nine others are left out");
    kit.advance(SECOND).await;
    tick.await;
    assert!(next.elapsed() < Duration::from_secs(20));
}

/// Panics when told to.
struct Fragile;

impl Actor for Fragile {
    type Context = Context<Self>;
}

#[derive(Message)]
#[rtype(result = "u32")]
struct Burst(bool);

impl Handler<Burst> for Fragile {
    type Result = u32;
    fn handle(&mut self, Burst(burst): Burst, _: &mut Context<Self>) -> u32 {
        assert!(!burst, "boom");
        1
    }
}

#[tokio::test]
async fn backoff_and_the_restart_window_follow_the_clock() {
    let kit = TestKit::new().unwrap();
    let restart = Restart::at_most(3, 60 * SECOND).backoff(SECOND, 3 * SECOND);
    let fragile = kit.system().spawn(Spec::new("fragile", || Fragile).restart(restart)).unwrap();
    // The wait doubles up to its bound: 1, 2, 3 seconds.
    for wait in [1, 2, 3] {
        fragile.ask(Burst(true)).await.unwrap_err();
        let mut asked = Box::pin(fragile.ask(Burst(false)));
        kit.advance(wait * SECOND - SECOND / 1_000).await;
        assert!(futures_util::poll!(&mut asked).is_pending(), "still waits after {wait} s less one ms");
        kit.advance(SECOND / 1_000).await;
        assert_eq!(asked.await, Ok(1));
    }
    // An hour later all is forgotten; the fourth panic within a minute is the last.
    kit.advance(HOUR).await;
    for _ in 0..3 {
        fragile.ask(Burst(true)).await.unwrap_err();
        kit.advance(3 * SECOND).await;
        assert_eq!(fragile.ask(Burst(false)).await, Ok(1));
    }
    fragile.ask(Burst(true)).await.unwrap_err();
    assert_eq!(fragile.ended().await, Exit::Failed { text: "boom".into(), restarts: 6 });
}

#[tokio::test]
async fn a_deadline_follows_the_clock() {
    let kit = TestKit::new().unwrap();
    let restart = Restart::default().backoff(HOUR, HOUR);
    let fragile = kit.system().spawn(Spec::new("fragile", || Fragile).restart(restart)).unwrap();
    fragile.ask(Burst(true)).await.unwrap_err();
    let mut asked = Box::pin(fragile.ask(Burst(false)).deadline(60 * SECOND));
    assert!(futures_util::poll!(&mut asked).is_pending());
    kit.advance(59 * SECOND).await;
    assert!(futures_util::poll!(&mut asked).is_pending());
    kit.advance(SECOND).await;
    assert_eq!(asked.await, Err(ActorError::Expired { actor: "fragile".into() }));
}

/// Runs blocking code and passes its result on.
struct Thinker {
    system: skalds::actors::ActorSystem,
    to: Recipient<Woke>,
}

impl Actor for Thinker {
    type Context = Context<Self>;
    fn started(&mut self, ctx: &mut Context<Self>) {
        let (system, to) = (self.system.clone(), self.to.clone());
        let think = async move {
            let thought = system.run_blocking(|| (0..1_000_000_u32).map(std::hint::black_box).max()).await;
            to.ask(Woke("thought", i64::from(thought.is_ok()))).await.expect("the probe answers");
        };
        ctx.spawn(think.into_actor(self));
    }
}

#[tokio::test]
async fn rest_includes_blocking_code() {
    let kit = TestKit::new().unwrap();
    let probe = kit.probe::<Woke>("probe", |_| ()).unwrap();
    let to = probe.recipient();
    let spec = Spec::with_scope("thinker", move |scope: Scope<Thinker>| Thinker {
        system: scope.system,
        to: to.clone(),
    });
    kit.system().spawn(spec).unwrap();
    assert_eq!(probe.expect(&kit).await, Woke("thought", 1));
}

#[test]
fn chance_repeats_itself() {
    let draw = || {
        let kit = TestKit::new().unwrap();
        let seeds = Arc::new(Mutex::new(Vec::new()));
        for name in ["a", "b"] {
            let kept = Arc::clone(&seeds);
            let spec = Spec::with_scope(name, move |scope: Scope<Fragile>| {
                kept.lock().unwrap().push(scope.seed);
                Fragile
            });
            let restart = Restart::default().backoff(Duration::ZERO, Duration::ZERO);
            let actor = kit.system().spawn(spec.restart(restart)).unwrap();
            kit.block_on(async {
                actor.ask(Burst(true)).await.unwrap_err();
                actor.ask(Burst(false)).await.unwrap();
            })
            .unwrap();
        }
        let mut seeds = seeds.lock().unwrap().clone();
        seeds.push(kit.system().rng_seed());
        seeds.push(kit.system().rng_seed());
        seeds
    };
    let seeds = draw();
    assert_eq!(seeds, draw());
    let mut different = seeds.clone();
    different.sort_unstable();
    different.dedup();
    assert_eq!(different.len(), 6, "{seeds:?}");
}
