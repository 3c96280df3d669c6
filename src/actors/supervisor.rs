//! One actor's life: made by its factory, run, caught when it panics, made again, given up.
//!
//! Each actor is one task on its arbiter. The task polls the actor's actix context inside `catch_unwind`, so a panic
//! in a handler, in `started`, in a timer or in any future of the context ends this incarnation and nothing else:
//! the arbiter, and its other actors, go on. (A `ResponseFuture` is spawned beside the context by actix; when it
//! panics, the asker gets `NoReply` and the actor lives.)
//!
//! After a panic `stopping` and `stopped` are not called, since the actor's state may be broken; `Drop` is. Queued
//! messages wait for the next incarnation.

use std::{
    collections::VecDeque,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use actix::{Actor, ActorContext, AsyncContext, dev::ContextFut};

use super::{
    actor_ref::ActorRef,
    clock::Sleep,
    error::{ActorError, panic_text},
    feed::{Feed, Incarnation},
    letter::DrainHook,
    mailbox::{AnyMailbox, Mailbox, signal},
    spec::{Escalation, Factory, OnExit, Restart, Scope},
    system::{ActorSystem, SystemEvent},
};

/// How an actor ended for good.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exit {
    /// It stopped itself, was asked to, or was drained.
    Stopped,
    /// It was ended without regard to what it was doing: by `kill`, a drain's deadline, or the end of the system.
    Killed,
    /// It panicked more often than its restarts allow.
    Failed {
        /// What the last panic said.
        text: Arc<str>,
        /// How many times it had been restarted in all.
        restarts: u64,
    },
}

impl Exit {
    /// What a message gets that came too late.
    pub(crate) fn refusal(&self, name: &Arc<str>) -> ActorError {
        match self {
            Exit::Failed { text, .. } => {
                ActorError::Panicked { actor: Arc::clone(name), text: Arc::clone(text) }
            }
            Exit::Stopped | Exit::Killed => ActorError::Closed { actor: Arc::clone(name) },
        }
    }
}

/// What the task keeps from the [`Spec`](super::Spec).
pub(crate) struct Orders<A: Actor<Context = actix::Context<A>>> {
    pub(crate) factory: Factory<A>,
    pub(crate) in_flight: usize,
    pub(crate) restart: Restart,
    pub(crate) escalation: Escalation,
    pub(crate) drain: Option<DrainHook<A>>,
    pub(crate) on_exit: Option<OnExit>,
}

impl<A: Actor<Context = actix::Context<A>>> Orders<A> {
    pub(crate) fn tell_exit(&mut self, actor: &str, exit: &Exit) {
        if let Some(told) = self.on_exit.take()
            && let Err(payload) = catch_unwind(AssertUnwindSafe(|| told(exit)))
        {
            tracing::error!(actor, panic = %panic_text(&*payload), "on_exit panicked");
        }
    }
}

/// The task of one actor.
pub(crate) struct Life<A: Actor<Context = actix::Context<A>>> {
    mailbox: Arc<Mailbox<A>>,
    orders: Orders<A>,
    current: Rc<Incarnation>,
    now: Now<A>,
    /// How many incarnations there were before this one.
    incarnation: u64,
    last_panic: Option<Arc<str>>,
    /// When it was restarted within the last `within`, oldest first; at most `max`.
    restarts: VecDeque<Duration>,
}

#[allow(clippy::large_enum_variant)] // nearly all actors are `Running` nearly all the time
enum Now<A: Actor<Context = actix::Context<A>>> {
    Birth,
    Running(ContextFut<A, actix::Context<A>>),
    BackingOff(Sleep),
    Over,
}

impl<A: Actor<Context = actix::Context<A>>> Life<A> {
    pub(crate) fn new(mailbox: Arc<Mailbox<A>>, orders: Orders<A>) -> Self {
        Life {
            mailbox,
            orders,
            current: Rc::default(),
            now: Now::Birth,
            incarnation: 0,
            last_panic: None,
            restarts: VecDeque::new(),
        }
    }

    fn birth(&mut self) -> Result<ContextFut<A, actix::Context<A>>, Arc<str>> {
        let about = self.mailbox.about();
        let scope = Scope {
            me: ActorRef::new(Arc::clone(&self.mailbox)),
            system: ActorSystem::inner(&about.core),
            incarnation: self.incarnation,
            seed: about.core.seed_of(&about.name, self.incarnation),
            last_panic: self.last_panic.clone(),
        };
        let factory = &self.orders.factory;
        let actor =
            catch_unwind(AssertUnwindSafe(|| factory(scope))).map_err(|payload| panic_text(&*payload))?;
        self.current = Rc::default();
        let mut ctx = actix::Context::new();
        ctx.spawn(Feed::new(
            Arc::clone(&self.mailbox),
            Rc::clone(&self.current),
            self.orders.in_flight,
            self.orders.drain,
        ));
        Ok(ctx.into_future(actor))
    }

    /// After a panic: the time to wait before the next incarnation, or `None` when it is given up.
    fn restart_in(&mut self) -> Option<Duration> {
        let Restart { max, within, backoff, backoff_max } = self.orders.restart;
        let now = self.mailbox.about().core.clock().elapsed();
        while self.restarts.front().is_some_and(|at| now.saturating_sub(*at) >= within) {
            self.restarts.pop_front();
        }
        if self.restarts.len() >= max as usize {
            return None;
        }
        let doublings = u32::try_from(self.restarts.len()).unwrap_or(u32::MAX).min(30);
        self.restarts.push_back(now);
        Some(backoff.saturating_mul(1 << doublings).min(backoff_max))
    }

    fn panicked(&mut self, text: Arc<str>) {
        let about = self.mailbox.about();
        about.metrics.panicked();
        tracing::error!(actor = %about.name, incarnation = self.incarnation, panic = %text, "actor panicked");
        about
            .core
            .publish(|| SystemEvent::Panicked { actor: Arc::clone(&about.name), text: Arc::clone(&text) });
        self.last_panic = Some(Arc::clone(&text));
        match self.restart_in() {
            Some(wait) => {
                let about = self.mailbox.about();
                self.now = Now::BackingOff(about.core.clock().sleep(wait));
            }
            None => self.end(Exit::Failed { text, restarts: self.incarnation }),
        }
    }

    fn end(&mut self, exit: Exit) {
        self.now = Now::Over;
        self.current.over.set(true);
        let about = self.mailbox.about();
        let core = &about.core;
        // First the registry, so that who sees the end can use the name again.
        core.ended(self.mailbox.as_ref(), &exit);
        self.mailbox.end(&exit);
        self.orders.tell_exit(&about.name, &exit);
        if let Exit::Failed { text, restarts } = &exit {
            tracing::error!(actor = %about.name, restarts, panic = %text, "actor given up");
            core.publish(|| SystemEvent::Escalated {
                actor: Arc::clone(&about.name),
                text: Arc::clone(text),
                restarts: *restarts,
            });
            if self.orders.escalation == Escalation::StopSystem {
                core.stop_because(format!("actor {} gave up: {text}", about.name));
            }
        }
    }

    /// Lets go of the incarnation; a user's `Drop` or `stopped` may panic too.
    fn drop_incarnation(&mut self) {
        self.current.over.set(true);
        let now = std::mem::replace(&mut self.now, Now::Over);
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(now))) {
            let about = self.mailbox.about();
            about.metrics.panicked();
            tracing::error!(actor = %about.name, panic = %panic_text(&*payload), "actor panicked while it was dropped");
        }
    }
}

impl<A: Actor<Context = actix::Context<A>>> Future for Life<A> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        this.mailbox.attach(cx.waker());
        loop {
            let signals = this.mailbox.signals();
            if signals & signal::KILL != 0 && !matches!(this.now, Now::Over) {
                this.drop_incarnation();
                this.end(Exit::Killed);
            }
            match &mut this.now {
                Now::Over => return Poll::Ready(()),
                Now::Birth => match this.birth() {
                    Ok(running) => this.now = Now::Running(running),
                    Err(text) => this.panicked(text),
                },
                Now::Running(running) => {
                    this.current.polled();
                    match catch_unwind(AssertUnwindSafe(|| Pin::new(&mut *running).poll(cx))) {
                        Ok(Poll::Pending) => return Poll::Pending,
                        Ok(Poll::Ready(())) => {
                            this.drop_incarnation();
                            this.end(Exit::Stopped);
                        }
                        Err(payload) => {
                            let text = panic_text(&*payload);
                            *this.current.panic.borrow_mut() = Some(Arc::clone(&text));
                            running.ctx().terminate();
                            this.drop_incarnation();
                            this.panicked(text);
                        }
                    }
                }
                Now::BackingOff(sleep) => {
                    let nothing_left = signals & signal::DRAIN != 0 && this.mailbox.is_empty();
                    if signals & signal::STOP != 0 || nothing_left {
                        this.end(Exit::Stopped);
                        continue;
                    }
                    std::task::ready!(Pin::new(sleep).poll(cx));
                    this.incarnation += 1;
                    let about = this.mailbox.about();
                    about.metrics.restarted();
                    about.core.publish(|| SystemEvent::Restarted {
                        actor: Arc::clone(&about.name),
                        incarnation: this.incarnation,
                    });
                    this.now = Now::Birth;
                }
            }
        }
    }
}

impl<A: Actor<Context = actix::Context<A>>> Drop for Life<A> {
    /// The arbiter ends under the actor.
    fn drop(&mut self) {
        if !matches!(self.now, Now::Over) {
            self.drop_incarnation();
            self.end(Exit::Killed);
        }
    }
}
