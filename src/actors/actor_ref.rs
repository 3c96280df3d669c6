//! Handles: how messages are sent to an actor, and how it is told to end.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use actix::{Actor, Handler, Message};

use super::{
    ask::{Ask, Deliver, TellWait, post},
    error::TellError,
    letter::{Expiry, Letter},
    mailbox::{AnyMailbox, Lane, Mailbox, signal},
    supervisor::Exit,
};

/// A handle to a supervised actor. Cheap to clone, and usable from any thread and any runtime. It stays valid across
/// restarts; after the actor's end every message is refused with the reason.
pub struct ActorRef<A: Actor> {
    mailbox: Arc<Mailbox<A>>,
}

impl<A: Actor> Clone for ActorRef<A> {
    fn clone(&self) -> Self {
        ActorRef { mailbox: Arc::clone(&self.mailbox) }
    }
}

impl<A: Actor> PartialEq for ActorRef<A> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.mailbox, &other.mailbox)
    }
}

impl<A: Actor> Eq for ActorRef<A> {}

impl<A: Actor> fmt::Debug for ActorRef<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ActorRef").field(&self.name()).finish()
    }
}

impl<A: Actor> ActorRef<A> {
    pub(crate) fn new(mailbox: Arc<Mailbox<A>>) -> Self {
        ActorRef { mailbox }
    }

    pub(crate) fn any(&self) -> Arc<dyn AnyMailbox> {
        Arc::clone(&self.mailbox) as Arc<dyn AnyMailbox>
    }

    /// The name it was spawned under.
    pub fn name(&self) -> &Arc<str> {
        &self.mailbox.about().name
    }

    /// Which arbiter runs it.
    pub fn arbiter(&self) -> usize {
        self.mailbox.about().arbiter
    }

    /// Messages that wait, in both lanes.
    pub fn depth(&self) -> usize {
        self.mailbox.depth()
    }

    /// Whether it takes messages: it has neither ended nor begun to drain. It may be between two incarnations.
    pub fn is_open(&self) -> bool {
        self.mailbox.is_open()
    }

    /// Sends a message and does not wait. `Err(Full)` or `Err(Closed)` gives the message back: nothing is dropped
    /// silently. `Ok` says that it is queued; if the actor ends before it comes to it, it is not handled.
    pub fn tell<M>(&self, message: M) -> Result<(), TellError<M>>
    where
        A: Handler<M>,
        M: Message + Send + 'static,
        M::Result: Send,
    {
        post(&*self.mailbox, Letter { message, reply: None, expiry: None }, Lane::Normal)
    }

    /// As [`ActorRef::tell`], through the control lane: it is handled before everything in the mailbox, also when
    /// that is full. The lane holds 256 messages.
    pub fn control<M>(&self, message: M) -> Result<(), TellError<M>>
    where
        A: Handler<M>,
        M: Message + Send + 'static,
        M::Result: Send,
    {
        post(&*self.mailbox, Letter { message, reply: None, expiry: None }, Lane::Control)
    }

    /// As [`ActorRef::tell`]; the message is not handled when the actor comes to it later than `within` from now.
    pub fn tell_within<M>(&self, message: M, within: Duration) -> Result<(), TellError<M>>
    where
        A: Handler<M>,
        M: Message + Send + 'static,
        M::Result: Send,
    {
        let deadline = self.mailbox.about().core.clock().elapsed().saturating_add(within);
        let expiry = Some(Expiry::new(deadline));
        post(&*self.mailbox, Letter { message, reply: None, expiry }, Lane::Normal)
    }

    /// Sends a message, and waits while the mailbox is full: those who wait are served in order.
    pub fn tell_wait<M>(&self, message: M) -> TellWait<M>
    where
        A: Handler<M>,
        M: Message + Send + Unpin + 'static,
        M::Result: Send,
    {
        TellWait::new(self.deliver(), message)
    }

    /// Sends a message and waits for the answer; waits for room first when the mailbox is full. It is sent when the
    /// future is first polled. Dropping the future withdraws the message if its handling has not begun.
    pub fn ask<M>(&self, message: M) -> Ask<M>
    where
        A: Handler<M>,
        M: Message + Send + 'static,
        M::Result: Send,
    {
        Ask::new(self.deliver(), message)
    }

    /// A handle that knows only one of the messages.
    pub fn recipient<M>(&self) -> Recipient<M>
    where
        A: Handler<M>,
        M: Message + Send + 'static,
        M::Result: Send,
    {
        Recipient { to: self.deliver() }
    }

    fn deliver<M>(&self) -> Arc<dyn Deliver<M>>
    where
        A: Handler<M>,
        M: Message + Send + 'static,
        M::Result: Send,
    {
        Arc::clone(&self.mailbox) as Arc<dyn Deliver<M>>
    }

    /// Ends the actor after the message at hand; what waits is refused. `stopping` and `stopped` are called.
    pub fn stop(&self) {
        self.mailbox.order(signal::STOP);
    }

    /// Takes no new messages, handles those that wait, calls the drain hook, and ends.
    pub fn drain(&self) {
        self.mailbox.order(signal::DRAIN);
    }

    /// Ends the actor at its next suspension point, also in the middle of an asynchronous handler. A handler that
    /// blocks its thread cannot be ended.
    pub fn kill(&self) {
        self.mailbox.order(signal::KILL);
    }

    /// Waits until the actor has ended for good.
    pub fn ended(&self) -> Ended {
        Ended::new(self.any())
    }
}

/// A handle to whichever actor takes messages of type `M`.
pub struct Recipient<M: Message + 'static> {
    to: Arc<dyn Deliver<M>>,
}

impl<M: Message + 'static> Clone for Recipient<M> {
    fn clone(&self) -> Self {
        Recipient { to: Arc::clone(&self.to) }
    }
}

impl<M: Message + 'static> fmt::Debug for Recipient<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Recipient").field(&self.to.about().name).finish()
    }
}

impl<M: Message + 'static> Recipient<M> {
    /// As [`ActorRef::name`].
    pub fn name(&self) -> &Arc<str> {
        &self.to.about().name
    }

    /// As [`ActorRef::is_open`].
    pub fn is_open(&self) -> bool {
        self.to.is_open()
    }

    /// As [`ActorRef::tell`].
    pub fn tell(&self, message: M) -> Result<(), TellError<M>> {
        post(&*self.to, Letter { message, reply: None, expiry: None }, Lane::Normal)
    }

    /// As [`ActorRef::control`].
    pub fn control(&self, message: M) -> Result<(), TellError<M>> {
        post(&*self.to, Letter { message, reply: None, expiry: None }, Lane::Control)
    }

    /// As [`ActorRef::tell_wait`].
    pub fn tell_wait(&self, message: M) -> TellWait<M> {
        TellWait::new(Arc::clone(&self.to), message)
    }

    /// As [`ActorRef::ask`].
    pub fn ask(&self, message: M) -> Ask<M> {
        Ask::new(Arc::clone(&self.to), message)
    }
}

/// See [`ActorRef::ended`].
#[must_use = "futures do nothing unless awaited"]
pub struct Ended {
    mailbox: Arc<dyn AnyMailbox>,
    ticket: Option<u64>,
}

impl Ended {
    pub(crate) fn new(mailbox: Arc<dyn AnyMailbox>) -> Self {
        Ended { mailbox, ticket: None }
    }
}

impl Future for Ended {
    type Output = Exit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Exit> {
        let this = &mut *self;
        this.mailbox.poll_ended(&mut this.ticket, cx)
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.mailbox.forget(ticket);
        }
    }
}
