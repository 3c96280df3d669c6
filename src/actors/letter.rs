//! One message on its way: what it carries besides itself, and how it is handled on the actor's side.

use std::{
    any::Any,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use actix::{Actor, Handler, Message, MessageResult, dev::MessageResponse};
use tokio::sync::oneshot;

use super::{
    error::{ActorError, panic_text},
    mailbox::About,
};

/// Where an answer goes.
///
/// The error is in a box, so that an answer, which is moved several times, is not as long as the longest error.
pub(crate) type Reply<M> = oneshot::Sender<Result<<M as Message>::Result, Box<ActorError>>>;

/// A message with its deadline and the place for its answer.
pub(crate) struct Letter<M: Message> {
    pub(crate) message: M,
    pub(crate) reply: Option<Reply<M>>,
    pub(crate) expiry: Option<Arc<Expiry>>,
}

/// A deadline that both sides see, so that each message with one is either run or expired, and never both.
pub(crate) struct Expiry {
    /// In the system's [`Clock::elapsed`](super::Clock::elapsed).
    pub(crate) deadline: Duration,
    state: AtomicU8,
}

const WAITING: u8 = 0;
const STARTED: u8 = 1;
const EXPIRED: u8 = 2;

impl Expiry {
    pub(crate) fn new(deadline: Duration) -> Arc<Self> {
        Arc::new(Expiry { deadline, state: AtomicU8::new(WAITING) })
    }

    /// The sender's deadline has passed: `true` when the message will never be handled.
    pub(crate) fn give_up(&self) -> bool {
        match self.state.compare_exchange(WAITING, EXPIRED, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(found) => found == EXPIRED,
        }
    }

    /// The actor is about to handle it: `false` when it is too late for that.
    fn start(&self, now: Duration) -> bool {
        let to = if now < self.deadline { STARTED } else { EXPIRED };
        self.state.compare_exchange(WAITING, to, Ordering::AcqRel, Ordering::Acquire).is_ok() && to == STARTED
    }
}

/// What became of a letter that was opened.
pub(crate) enum Opened {
    /// Handled, and answered if an answer was wanted.
    Done,
    /// Too late, or nobody waits for the answer any more: not handled.
    Skipped,
    /// The handler returned a future; the answer comes when it ends.
    Pending(PendingReply),
    /// The handler panicked. The sender has been told.
    Panicked(Box<dyn Any + Send>),
}

/// Makes the message that an actor gets at the end of its drain.
pub(crate) type DrainHook<A> = fn() -> Box<dyn Envelope<A>>;

/// A letter whose message type is forgotten.
pub(crate) trait Envelope<A: Actor>: Send + 'static {
    /// Handles the message.
    fn open(self: Box<Self>, actor: &mut A, ctx: &mut A::Context, about: &About) -> Opened;
    /// Tells the sender, if it waits, that the message is not handled.
    fn refuse(self: Box<Self>, why: ActorError);
}

impl<A, M> Envelope<A> for Letter<M>
where
    A: Actor + Handler<M>,
    M: Message + Send + 'static,
    M::Result: Send,
{
    fn open(self: Box<Self>, actor: &mut A, ctx: &mut A::Context, about: &About) -> Opened {
        let Letter { message, reply, expiry } = *self;
        if let Some(expiry) = expiry
            && !expiry.start(about.core.clock().elapsed())
        {
            answer(reply, Err(Box::new(ActorError::Expired { actor: Arc::clone(&about.name) })));
            return Opened::Skipped;
        }
        if reply.as_ref().is_some_and(oneshot::Sender::is_closed) {
            return Opened::Skipped;
        }
        let handled = catch_unwind(AssertUnwindSafe(|| {
            let response = actor.handle(message, ctx);
            let response = match at_once::<A, M>(response) {
                Ok(result) => return Handled::Now(result),
                Err(response) => response,
            };
            // The handler answers into a channel of ours, also when nobody asked: so it is known whether it is
            // done, a drain waits for it, and a panic's text reaches the sender.
            let (tx, mut rx) = oneshot::channel();
            response.handle(ctx, Some(tx));
            match rx.try_recv() {
                Ok(result) => Handled::Now(result),
                Err(oneshot::error::TryRecvError::Empty) => Handled::Later(rx),
                Err(oneshot::error::TryRecvError::Closed) => Handled::Never,
            }
        }));
        match handled {
            Ok(Handled::Now(result)) => answer(reply, Ok(result)),
            Ok(Handled::Later(rx)) => {
                return Opened::Pending(Box::pin(Pending::<M> { rx, reply, name: Arc::clone(&about.name) }));
            }
            Ok(Handled::Never) => {
                answer(reply, Err(Box::new(ActorError::NoReply { actor: Arc::clone(&about.name) })))
            }
            Err(payload) => {
                let text = panic_text(&*payload);
                answer(reply, Err(Box::new(ActorError::Panicked { actor: Arc::clone(&about.name), text })));
                return Opened::Panicked(payload);
            }
        }
        Opened::Done
    }

    fn refuse(self: Box<Self>, why: ActorError) {
        answer(self.reply, Err(Box::new(why)));
    }
}

enum Handled<R> {
    Now(R),
    Later(oneshot::Receiver<R>),
    Never,
}

/// The answer itself when the handler returned it, as most do, rather than a future or a wrapper of actix's. Saves
/// a channel for each message; the comparison of types is made when this is compiled.
fn at_once<A, M>(response: A::Result) -> Result<M::Result, A::Result>
where
    A: Actor + Handler<M>,
    M: Message + 'static,
{
    let mut response = Some(response);
    if let Some(same) = (&mut response as &mut dyn Any).downcast_mut::<Option<M::Result>>()
        && let Some(result) = same.take()
    {
        return Ok(result);
    }
    if let Some(wrapped) = (&mut response as &mut dyn Any).downcast_mut::<Option<MessageResult<M>>>()
        && let Some(MessageResult(result)) = wrapped.take()
    {
        return Ok(result);
    }
    match response {
        Some(response) => Err(response),
        None => unreachable!("both branches that take the response return it"),
    }
}

fn answer<R>(reply: Option<oneshot::Sender<R>>, result: R) {
    if let Some(reply) = reply {
        // The asker may be gone by now: then nobody wants the answer.
        let _ = reply.send(result);
    }
}

/// An answer that comes later.
pub(crate) type PendingReply = Pin<Box<dyn Forward>>;

/// Forwards an answer from the handler's future to the asker.
pub(crate) trait Forward {
    /// Ready when the handler's future has ended and the answer has been passed on.
    fn poll_forward(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()>;
    /// There will be no answer.
    fn refuse(self: Pin<&mut Self>, why: ActorError);
}

struct Pending<M: Message> {
    rx: oneshot::Receiver<M::Result>,
    reply: Option<Reply<M>>,
    name: Arc<str>,
}

impl<M: Message> Forward for Pending<M> {
    fn poll_forward(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let result = std::task::ready!(Pin::new(&mut self.rx).poll(cx));
        let result = result.map_err(|_| Box::new(ActorError::NoReply { actor: Arc::clone(&self.name) }));
        answer(self.reply.take(), result);
        Poll::Ready(())
    }

    fn refuse(mut self: Pin<&mut Self>, why: ActorError) {
        answer(self.reply.take(), Err(Box::new(why)));
    }
}

/// A pending answer in the set of an actor's pending answers.
pub(crate) struct InFlight {
    pub(crate) reply: PendingReply,
    pub(crate) since: Instant,
}

impl Future for InFlight {
    type Output = Duration;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Duration> {
        std::task::ready!(self.reply.as_mut().poll_forward(cx));
        Poll::Ready(self.since.elapsed())
    }
}
