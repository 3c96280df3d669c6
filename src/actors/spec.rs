//! How an actor is to be run: its name, bounds, restarts, place and stage.

use std::{sync::Arc, time::Duration};

use actix::{Actor, Context, Handler, Message};

use super::{
    actor_ref::ActorRef,
    letter::{DrainHook, Letter},
    supervisor::Exit,
    system::ActorSystem,
};

/// When an actor's queue is drained at shutdown. An actor may send to actors of later stages until its own drain is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Stage {
    /// Takes work in from outside: consumers, listeners, dispatchers.
    Intake,
    /// Does the work.
    #[default]
    Work,
    /// Sends out what work produced: producers, outboxes.
    Flush,
    /// Keeps what must not be lost; ends last.
    Store,
}

impl Stage {
    /// In the order in which they are drained.
    pub(crate) const ALL: [Stage; 4] = [Stage::Intake, Stage::Work, Stage::Flush, Stage::Store];
}

/// Which arbiter thread runs an actor. All its incarnations run there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Place {
    /// The one with the fewest actors.
    #[default]
    Spread,
    /// This one, counted from 0, modulo the number of arbiters.
    Arbiter(usize),
    /// The same as this actor, by name; for actors that ask each other often (an ask within one arbiter costs a
    /// fifth of one across). When there is no such actor: as `Spread`.
    Beside(String),
}

/// Restart after a panic: how often, and how long to wait.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Restart {
    /// This many restarts …
    pub max: u32,
    /// … within this time; one more and the actor is given up (see [`Escalation`]).
    pub within: Duration,
    /// The wait before the first restart. It doubles with each restart within `within`.
    pub backoff: Duration,
    /// The longest wait.
    pub backoff_max: Duration,
}

impl Default for Restart {
    /// Five restarts in ten seconds, after 10 ms, 20 ms, … at most 5 s.
    fn default() -> Self {
        Restart {
            max: 5,
            within: Duration::from_secs(10),
            backoff: Duration::from_millis(10),
            backoff_max: Duration::from_secs(5),
        }
    }
}

impl Restart {
    /// The first panic is the last.
    pub fn never() -> Self {
        Restart { max: 0, ..Restart::default() }
    }

    /// At most `max` restarts within `within`.
    pub fn at_most(max: u32, within: Duration) -> Self {
        Restart { max, within, ..Restart::default() }
    }

    /// Waits `first`, then twice as long each time, at most `longest`.
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.backoff = first;
        self.backoff_max = longest;
        self
    }
}

/// What happens when an actor panics more often than its [`Restart`] allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Escalation {
    /// The actor is marked failed ([`ActorSystem::failed`]) and everything else goes on.
    #[default]
    MarkFailed,
    /// The whole system shuts down in order; its report names the actor and the panic.
    StopSystem,
}

/// The message that an actor gets at the end of its drain, when it asked for it with [`Spec::drain_hook`].
/// Everything queued has been handled; the actor ends when the answer is there, so the handler may return a future.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drain;

impl Message for Drain {
    type Result = ();
}

/// What a factory can know about the actor that it makes.
pub struct Scope<A: Actor<Context = Context<A>>> {
    /// The actor itself: unlike `ctx.address()`, this goes through the bounded, counted mailbox.
    pub me: ActorRef<A>,
    /// The system, for spawning, finding and time. This handle does not keep the system running.
    pub system: ActorSystem,
    /// 0 for the first, one more after each restart.
    pub incarnation: u64,
    /// For a random generator: depends on the system's seed, the name and the incarnation only.
    pub seed: u64,
    /// What the panic said that ended the incarnation before this one.
    pub last_panic: Option<Arc<str>>,
}

pub(crate) type Factory<A> = Box<dyn Fn(Scope<A>) -> A + Send>;
pub(crate) type OnExit = Box<dyn Fn(&Exit) + Send>;

/// What to spawn, and how.
pub struct Spec<A: Actor<Context = Context<A>>> {
    pub(crate) name: String,
    pub(crate) label: Option<String>,
    pub(crate) factory: Factory<A>,
    pub(crate) mailbox: usize,
    pub(crate) in_flight: usize,
    pub(crate) restart: Restart,
    pub(crate) escalation: Escalation,
    pub(crate) place: Place,
    pub(crate) stage: Stage,
    pub(crate) drain: Option<DrainHook<A>>,
    pub(crate) on_exit: Option<OnExit>,
}

impl<A: Actor<Context = Context<A>>> Spec<A> {
    /// An actor that `factory` makes, now and after each panic. The factory runs on the actor's own thread.
    pub fn new(name: impl Into<String>, factory: impl Fn() -> A + Send + 'static) -> Self {
        Spec::with_scope(name, move |_| factory())
    }

    /// As [`Spec::new`], with a factory that is told about itself, the system and the last panic.
    pub fn with_scope(name: impl Into<String>, factory: impl Fn(Scope<A>) -> A + Send + 'static) -> Self {
        Spec {
            name: name.into(),
            label: None,
            factory: Box::new(factory),
            mailbox: 256,
            in_flight: 256,
            restart: Restart::default(),
            escalation: Escalation::default(),
            place: Place::default(),
            stage: Stage::default(),
            drain: None,
            on_exit: None,
        }
    }

    /// How many messages may wait (256 unless said otherwise; 1 to 16,777,216). Control messages do not count.
    pub fn mailbox(mut self, messages: usize) -> Self {
        self.mailbox = messages.clamp(1, 1 << 24);
        self
    }

    /// How many messages may be handled at once when handlers return futures (256 unless said otherwise; 1 to 65,536).
    pub fn in_flight(mut self, messages: usize) -> Self {
        self.in_flight = messages.clamp(1, 1 << 16);
        self
    }

    /// How often it is restarted.
    pub fn restart(mut self, restart: Restart) -> Self {
        self.restart = restart;
        self
    }

    /// What happens when that is not enough.
    pub fn escalation(mut self, escalation: Escalation) -> Self {
        self.escalation = escalation;
        self
    }

    /// Which arbiter runs it.
    pub fn place(mut self, place: Place) -> Self {
        self.place = place;
        self
    }

    /// When it is drained.
    pub fn stage(mut self, stage: Stage) -> Self {
        self.stage = stage;
        self
    }

    /// The label under which its metrics are counted; the name unless said otherwise. Give the many actors of one
    /// kind one label.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// The actor gets [`Drain`] as its last message in a drain.
    pub fn drain_hook(mut self) -> Self
    where
        A: Handler<Drain>,
    {
        self.drain = Some(|| Box::new(Letter { message: Drain, reply: None, expiry: None }));
        self
    }

    /// Is called, on the actor's thread, when the actor has ended for good. It must not block.
    pub fn on_exit(mut self, told: impl Fn(&Exit) + Send + 'static) -> Self {
        self.on_exit = Some(Box::new(told));
        self
    }
}
