//! How a sender waits: for room in a full mailbox, for an answer, and no longer than its deadline.

use std::{
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
    mailbox::{About, AnyMailbox, CONTROL_CAPACITY, InLine, Lane, Mailbox, Refusal},
};

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

pub(crate) fn post<M: Message + 'static>(
    to: &(impl Deliver<M> + ?Sized),
    letter: Letter<M>,
    lane: Lane,
) -> Result<(), TellError<M>> {
    to.post(Box::new(letter), lane, false).map_err(|(letter, why)| TellError {
        message: letter.message,
        error: *error_of(why, to.about(), lane),
    })
}

fn error_of(why: Refusal, about: &About, lane: Lane) -> Box<ActorError> {
    match why {
        Refusal::Closed(error) => error,
        Refusal::Full => Box::new(ActorError::Full {
            actor: Arc::clone(&about.name),
            capacity: if lane == Lane::Normal { about.capacity } else { CONTROL_CAPACITY },
        }),
    }
}

/// A sender that waits for room when there is none.
struct Posting<M: Message + 'static> {
    to: Arc<dyn Deliver<M>>,
    place: InLine,
    waited: bool,
}

impl<M: Message + 'static> Posting<M> {
    fn new(to: Arc<dyn Deliver<M>>) -> Self {
        Posting { to, place: InLine::default(), waited: false }
    }

    /// Posts the letter, now or when there is room. On an error the letter is back in its place.
    fn poll_post(
        &mut self,
        letter: &mut Option<Box<Letter<M>>>,
        lane: Lane,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Box<ActorError>>> {
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
        let refused = match self.to.poll_room(&mut self.place, cx) {
            Poll::Pending => {
                *letter = Some(unsent);
                return Poll::Pending;
            }
            Poll::Ready(Ok(())) => {
                self.place = InLine::default(); // the promise is used up by the post, whatever comes of it
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
            self.to.leave(&mut self.place);
        }
    }
}

/// See [`ActorRef::tell_wait`](super::ActorRef::tell_wait).
#[must_use = "the message is not sent unless this is awaited"]
pub struct TellWait<M: Message + 'static> {
    posting: Posting<M>,
    letter: Option<Box<Letter<M>>>,
}

impl<M: Message + 'static> TellWait<M> {
    pub(crate) fn new(to: Arc<dyn Deliver<M>>, message: M) -> Self {
        let letter = Some(Box::new(Letter { message, reply: None, expiry: None }));
        TellWait { posting: Posting::new(to), letter }
    }
}

impl<M: Message + 'static> Future for TellWait<M> {
    type Output = Result<(), TellError<M>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let result = std::task::ready!(this.posting.poll_post(&mut this.letter, Lane::Normal, cx));
        Poll::Ready(match (result, this.letter.take()) {
            (Err(error), Some(letter)) => Err(TellError { message: letter.message, error: *error }),
            // A failed post leaves the letter in its place, so the second half of this pattern does not occur.
            (Ok(()), _) | (Err(_), None) => Ok(()),
        })
    }
}

/// See [`ActorRef::ask`](super::ActorRef::ask).
#[must_use = "the message is not sent unless this is awaited"]
pub struct Ask<M: Message + 'static> {
    posting: Posting<M>,
    letter: Option<Box<Letter<M>>>,
    answer: oneshot::Receiver<Result<M::Result, Box<ActorError>>>,
    lane: Lane,
    /// In a box: few asks have one, and all are moved about.
    deadline: Option<Box<(Arc<Expiry>, Sleep)>>,
}

impl<M: Message + 'static> Ask<M> {
    pub(crate) fn new(to: Arc<dyn Deliver<M>>, message: M) -> Self {
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
        self.deadline = Some(Box::new((expiry, clock.sleep(within))));
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
            Poll::Ready(Err(error)) => return Poll::Ready(Err(*error)),
            Poll::Ready(Ok(())) => {
                if let Poll::Ready(answer) = Pin::new(&mut this.answer).poll(cx) {
                    return Poll::Ready(match answer {
                        Ok(answer) => answer.map_err(|error| *error),
                        // Every letter is answered or refused, except when its arbiter dies with the process.
                        Err(_) => {
                            Err(ActorError::NoReply { actor: Arc::clone(&this.posting.to.about().name) })
                        }
                    });
                }
            }
            Poll::Pending => {}
        }
        let Some(deadline) = &mut this.deadline else { return Poll::Pending };
        let (expiry, sleep) = &mut **deadline;
        std::task::ready!(Pin::new(sleep).poll(cx));
        let actor = Arc::clone(&this.posting.to.about().name);
        Poll::Ready(Err(if expiry.give_up() {
            ActorError::Expired { actor }
        } else {
            ActorError::Timeout { actor }
        }))
    }
}
