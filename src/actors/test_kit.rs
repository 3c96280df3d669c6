//! A system for tests: time stands still until it is moved, one thread runs all actors, chance is repeatable.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use actix::{Actor, Context, Handler, Message, dev::MessageResponse};
use tokio::sync::Notify;

use super::{
    actor_ref::{ActorRef, Recipient},
    clock::Manual,
    error::ActorError,
    spec::Spec,
    system::{ActorSystem, SystemBuilder},
};
use crate::core::task::Millis;

/// When the clock of a test kit starts: 2023-11-14 22:13:20 UTC.
pub const START_MILLIS: Millis = 1_700_000_000_000;
/// How long a test waits, in real time, for a system that does not come to rest.
const PATIENCE: Duration = Duration::from_secs(30);
/// The most messages that a probe keeps.
const MAX_PROBED: usize = 100_000;

/// A system whose time a test moves by hand.
///
/// All actors run on one arbiter, so the order of events is the same in each run. [`advance`](Self::advance) fires
/// the timers that are due, one after the other, and lets the system come to rest after each: it is at rest when the
/// arbiter has nothing to run and no blocking job is left. What waits for the outside (a socket, another runtime)
/// counts as rest.
///
/// Its waiting panics after 30 real seconds with what did not come: it is for tests.
pub struct TestKit {
    system: ActorSystem,
    clock: Arc<Manual>,
    idle: Arc<Idle>,
}

#[derive(Default)]
struct Idle {
    /// The arbiter has run our ping and has not been idle since.
    pinged: AtomicBool,
    told: Notify,
}

impl fmt::Debug for TestKit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestKit").field("system", &self.system).field("now", &self.clock.now()).finish()
    }
}

impl TestKit {
    /// A system with one arbiter, seed 0, and a clock that stands at [`START_MILLIS`].
    pub fn new() -> Result<Self, ActorError> {
        TestKit::with(SystemBuilder::default().seed(0))
    }

    /// With limits or a seed of the test's own. The number of arbiters is one whatever the builder says.
    pub fn with(builder: SystemBuilder) -> Result<Self, ActorError> {
        let clock = Manual::new(START_MILLIS);
        let idle = Arc::<Idle>::default();
        let told = Arc::clone(&idle);
        let on_idle = Arc::new(move || {
            if told.pinged.swap(false, Ordering::AcqRel) {
                told.told.notify_one();
            }
        });
        let system = builder.arbiters(1).by_hand(Arc::clone(&clock), on_idle).start()?;
        Ok(TestKit { system, clock, idle })
    }

    /// The system under test.
    pub fn system(&self) -> &ActorSystem {
        &self.system
    }

    /// Waits until the system is at rest.
    pub async fn settle(&self) {
        let settled = async {
            loop {
                let before = self.system.core().blocking.load();
                self.rest().await;
                let after = self.system.core().blocking.load();
                if after.0 == 0 && before == after {
                    return;
                }
                self.system.core().blocking.emptied().await;
            }
        };
        if tokio::time::timeout(PATIENCE, settled).await.is_err() {
            panic!("the system did not come to rest within {PATIENCE:?}");
        }
    }

    /// The arbiter has run all there was, twice: what the first round made ready is run by the second.
    async fn rest(&self) {
        for _ in 0..2 {
            let idle = Arc::clone(&self.idle);
            self.system.core().arbiter(0).spawn_fn(move || idle.pinged.store(true, Ordering::Release));
            self.idle.told.notified().await;
        }
    }

    /// Moves time: fires each timer that is due within `duration`, in order, and lets the system come to rest after
    /// each; then time stands `duration` later than before.
    pub async fn advance(&self, duration: Duration) {
        self.settle().await;
        let target = self.clock.now().saturating_add(duration);
        while self.clock.fire_next(target) {
            self.settle().await;
        }
    }

    /// An actor that keeps what it is sent. `answer` gives the answer to each message.
    pub fn probe<M>(
        &self,
        name: &str,
        answer: impl Fn(&M) -> M::Result + Send + Sync + 'static,
    ) -> Result<Probe<M>, ActorError>
    where
        M: Message + Send + Unpin + 'static,
        M::Result: Send,
    {
        let seen = Arc::<Mutex<VecDeque<M>>>::default();
        let answer: Answers<M> = Arc::new(answer);
        let kept = Arc::clone(&seen);
        let actor = self.system.spawn(
            Spec::new(name, move || ProbeActor { seen: Arc::clone(&kept), answer: Arc::clone(&answer) })
                .mailbox(MAX_PROBED),
        )?;
        Ok(Probe { actor, seen })
    }

    /// Runs a test's future on this thread, for tests without a runtime of their own.
    pub fn block_on<F: Future>(&self, future: F) -> Result<F::Output, ActorError> {
        self.system.block_on(future)
    }
}

/// What a probe was sent; see [`TestKit::probe`].
pub struct Probe<M: Message + Send + Unpin + 'static>
where
    M::Result: Send,
{
    actor: ActorRef<ProbeActor<M>>,
    seen: Arc<Mutex<VecDeque<M>>>,
}

impl<M: Message + Send + Unpin + 'static> fmt::Debug for Probe<M>
where
    M::Result: Send,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probe").field("actor", &self.actor).field("seen", &lock(&self.seen).len()).finish()
    }
}

impl<M: Message + Send + Unpin + 'static> Probe<M>
where
    M::Result: Send,
{
    /// What to give to the actor under test.
    pub fn recipient(&self) -> Recipient<M> {
        self.actor.recipient()
    }

    /// The oldest message not taken yet.
    pub fn take(&self) -> Option<M> {
        lock(&self.seen).pop_front()
    }

    /// All messages not taken yet, oldest first.
    pub fn take_all(&self) -> Vec<M> {
        lock(&self.seen).drain(..).collect()
    }

    /// How many messages are not taken yet.
    pub fn count(&self) -> usize {
        lock(&self.seen).len()
    }

    /// Lets the system come to rest and takes the oldest message; panics when there is none.
    pub async fn expect(&self, kit: &TestKit) -> M {
        kit.settle().await;
        match self.take() {
            Some(message) => message,
            None => panic!("probe {} got no message", self.actor.name()),
        }
    }

    /// Lets the system come to rest; panics when there is a message.
    pub async fn expect_none(&self, kit: &TestKit)
    where
        M: fmt::Debug,
    {
        kit.settle().await;
        if let Some(message) = self.take() {
            panic!("probe {} got {message:?}", self.actor.name());
        }
    }
}

type Answers<M> = Arc<dyn Fn(&M) -> <M as Message>::Result + Send + Sync>;

/// The actor behind a [`Probe`].
struct ProbeActor<M: Message> {
    seen: Arc<Mutex<VecDeque<M>>>,
    answer: Answers<M>,
}

impl<M: Message + Unpin + 'static> Actor for ProbeActor<M> {
    type Context = Context<Self>;
}

impl<M: Message + Send + Unpin + 'static> Handler<M> for ProbeActor<M>
where
    M::Result: Send,
{
    type Result = Answer<M>;

    fn handle(&mut self, message: M, _: &mut Context<Self>) -> Answer<M> {
        let answer = (self.answer)(&message);
        let mut seen = lock(&self.seen);
        assert!(seen.len() < MAX_PROBED, "the probe is full: take its messages");
        seen.push_back(message);
        Answer(answer)
    }
}

/// An answer of any type, given at once.
struct Answer<M: Message>(M::Result);

impl<A: Actor, M: Message> MessageResponse<A, M> for Answer<M> {
    fn handle(self, _: &mut A::Context, tx: Option<actix::dev::OneshotSender<M::Result>>) {
        if let Some(tx) = tx {
            let _ = tx.send(self.0); // the asker may be gone
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
