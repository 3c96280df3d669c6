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
use tokio::sync::oneshot;

use super::{
    clock::Sleep,
    error::{ActorError, TellError},
    letter::{Expiry, Letter},
    mailbox::{AnyMailbox, CONTROL_CAPACITY, Lane, Mailbox, Refusal, Turn, signal},
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
        let letter = Box::new(Letter { message, reply: None, expiry: None });
        TellWait { posting: Posting::new(self.deliver()), letter: Some(letter) }
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
        let letter = Box::new(Letter { message, reply: None, expiry: None });
        TellWait { posting: Posting::new(Arc::clone(&self.to)), letter: Some(letter) }
    }

    /// As [`ActorRef::ask`].
    pub fn ask(&self, message: M) -> Ask<M> {
        Ask::new(Arc::clone(&self.to), message)
    }
}

/// A mailbox that takes letters of one message type.
pub(crate) trait Deliver<M: Message + 'static>: AnyMailbox {
    fn post(
        &self,
        letter: Box<Letter<M>>,
        lane: Lane,
        granted: bool,
    ) -> Result<(), (Box<Letter<M>>, Refusal)>;
}

impl<A, M> Deliver<M> for Mailbox<A>
where
    A: Actor + Handler<M>,
    M: Message + Send + 'static,
    M::Result: Send,
{
    fn post(
        &self,
        letter: Box<Letter<M>>,
        lane: Lane,
        granted: bool,
    ) -> Result<(), (Box<Letter<M>>, Refusal)> {
        self.push(letter, lane, granted)
    }
}

fn post<M: Message + 'static>(
    to: &(impl Deliver<M> + ?Sized),
    letter: Letter<M>,
    lane: Lane,
) -> Result<(), TellError<M>> {
    to.post(Box::new(letter), lane, false).map_err(|(letter, why)| TellError {
        message: letter.message,
        error: error_of(why, to.about(), lane),
    })
}

fn error_of(why: Refusal, about: &super::mailbox::About, lane: Lane) -> ActorError {
    match why {
        Refusal::Closed(error) => error,
        Refusal::Full => ActorError::Full {
            actor: Arc::clone(&about.name),
            capacity: if lane == Lane::Normal { about.capacity } else { CONTROL_CAPACITY },
        },
    }
}

/// A sender that waits for room when there is none.
struct Posting<M: Message + 'static> {
    to: Arc<dyn Deliver<M>>,
    turn: Turn,
    waited: bool,
}

impl<M: Message + 'static> Posting<M> {
    fn new(to: Arc<dyn Deliver<M>>) -> Self {
        Posting { to, turn: Turn::default(), waited: false }
    }

    /// Posts the letter, now or when there is room. On an error the letter is back in its place.
    fn poll_post(
        &mut self,
        letter: &mut Option<Box<Letter<M>>>,
        lane: Lane,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), ActorError>> {
        let Some(mut unsent) = letter.take() else { return Poll::Ready(Ok(())) };
        if !self.waited {
            match self.to.post(unsent, lane, false) {
                Ok(()) => return Poll::Ready(Ok(())),
                Err((back, Refusal::Full)) if lane == Lane::Normal => {
                    self.waited = true;
                    unsent = back;
                }
                Err((back, why)) => {
                    *letter = Some(back);
                    return Poll::Ready(Err(error_of(why, self.to.about(), lane)));
                }
            }
        }
        let refused = match self.to.poll_turn(&mut self.turn, cx) {
            Poll::Pending => {
                *letter = Some(unsent);
                return Poll::Pending;
            }
            Poll::Ready(Ok(())) => {
                self.turn = Turn::default(); // the promise is used up by the post, whatever comes of it
                match self.to.post(unsent, lane, true) {
                    Ok(()) => return Poll::Ready(Ok(())),
                    Err((back, why)) => {
                        unsent = back;
                        why
                    }
                }
            }
            Poll::Ready(Err(why)) => why,
        };
        *letter = Some(unsent);
        Poll::Ready(Err(error_of(refused, self.to.about(), lane)))
    }
}

impl<M: Message + 'static> Drop for Posting<M> {
    fn drop(&mut self) {
        if self.waited {
            self.to.leave(&mut self.turn);
        }
    }
}

/// See [`ActorRef::tell_wait`].
#[must_use = "the message is not sent unless this is awaited"]
pub struct TellWait<M: Message + 'static> {
    posting: Posting<M>,
    letter: Option<Box<Letter<M>>>,
}

impl<M: Message + 'static> Future for TellWait<M> {
    type Output = Result<(), TellError<M>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let result = std::task::ready!(this.posting.poll_post(&mut this.letter, Lane::Normal, cx));
        Poll::Ready(match (result, this.letter.take()) {
            (Err(error), Some(letter)) => Err(TellError { message: letter.message, error }),
            // A failed post leaves the letter in its place, so the second half of this pattern does not occur.
            (Ok(()), _) | (Err(_), None) => Ok(()),
        })
    }
}

/// See [`ActorRef::ask`].
#[must_use = "the message is not sent unless this is awaited"]
pub struct Ask<M: Message + 'static> {
    posting: Posting<M>,
    letter: Option<Box<Letter<M>>>,
    answer: oneshot::Receiver<Result<M::Result, ActorError>>,
    lane: Lane,
    deadline: Option<(Arc<Expiry>, Sleep)>,
}

impl<M: Message + 'static> Ask<M> {
    fn new(to: Arc<dyn Deliver<M>>, message: M) -> Self {
        let (reply, answer) = oneshot::channel();
        let letter = Some(Box::new(Letter { message, reply: Some(reply), expiry: None }));
        Ask { posting: Posting::new(to), letter, answer, lane: Lane::Normal, deadline: None }
    }

    /// Gives up after this long from now. The error says what became of the message: `Expired`, it was not handled
    /// and never will be; `Timeout`, it was being handled.
    pub fn deadline(mut self, within: Duration) -> Self {
        let clock = self.posting.to.about().core.clock();
        let expiry = Expiry::new(clock.elapsed().saturating_add(within));
        if let Some(letter) = &mut self.letter {
            letter.expiry = Some(Arc::clone(&expiry));
        }
        self.deadline = Some((expiry, clock.sleep(within)));
        self
    }

    /// Through the control lane: before everything in the mailbox, also when that is full.
    pub fn control(mut self) -> Self {
        self.lane = Lane::Control;
        self
    }
}

impl<M: Message + 'static> Future for Ask<M> {
    type Output = Result<M::Result, ActorError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let posted = match this.letter {
            None => Poll::Ready(Ok(())),
            Some(_) => this.posting.poll_post(&mut this.letter, this.lane, cx),
        };
        match posted {
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) => {
                if let Poll::Ready(answer) = Pin::new(&mut this.answer).poll(cx) {
                    // Every letter is answered or refused, except when its arbiter dies with the process.
                    return Poll::Ready(answer.unwrap_or_else(|_| {
                        Err(ActorError::NoReply { actor: Arc::clone(&this.posting.to.about().name) })
                    }));
                }
            }
            Poll::Pending => {}
        }
        let Some((expiry, sleep)) = &mut this.deadline else { return Poll::Pending };
        std::task::ready!(Pin::new(sleep).poll(cx));
        let actor = Arc::clone(&this.posting.to.about().name);
        Poll::Ready(Err(if expiry.give_up() {
            ActorError::Expired { actor }
        } else {
            ActorError::Timeout { actor }
        }))
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
