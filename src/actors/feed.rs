//! How our mailbox reaches an actix context: a future *of* that context.
//!
//! actix polls the futures of a context with the actor and the context at hand. So [`Feed`] is one of them: it takes
//! messages from the [`Mailbox`], control lane first, and calls the handlers. The user's actor keeps its plain
//! `Context<Self>`, and actix's own mailbox stays empty unless the actor hands out `ctx.address()`.

use std::{
    any::Any,
    cell::{Cell, RefCell},
    collections::VecDeque,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use actix::{Actor, ActorContext, ActorFuture, AsyncContext};
use futures_util::{Stream, stream::FuturesUnordered};

use super::{
    error::ActorError,
    letter::{DrainHook, Envelope, InFlight, Opened},
    mailbox::{AnyMailbox, Mailbox, signal},
};

/// Messages handled in one poll of an actor before its neighbours on the arbiter have their turn.
const BUDGET: u32 = 64;
/// One message in so many is timed: two readings of the clock cost as much as a fifth of an ask.
const TIMED: u32 = 64;

/// What the feed shares with the actor's task while one incarnation lives.
#[derive(Default)]
pub(crate) struct Incarnation {
    budget: Cell<u32>,
    /// The incarnation is over: nothing more is handled, whatever actix still polls.
    pub(crate) over: Cell<bool>,
    /// The panic that a handler ended with.
    pub(crate) panic: RefCell<Option<Arc<str>>>,
}

impl Incarnation {
    /// A new poll of the actor's task.
    pub(crate) fn polled(&self) {
        self.budget.set(BUDGET);
    }
}

pub(crate) struct Feed<A: Actor> {
    mailbox: Arc<Mailbox<A>>,
    incarnation: Rc<Incarnation>,
    batch: VecDeque<Box<dyn Envelope<A>>>,
    /// Handlers whose answer comes later. Made when the first one does.
    pending: Option<FuturesUnordered<InFlight>>,
    in_flight: usize,
    /// The last message of a drain, until it has been given.
    hook: Option<DrainHook<A>>,
    /// The drain is done; an actor that refuses to stop is ended by the drain's deadline.
    drained: bool,
    /// Messages until the next one that is timed.
    untimed: u32,
}

impl<A: Actor> Feed<A> {
    pub(crate) fn new(
        mailbox: Arc<Mailbox<A>>,
        incarnation: Rc<Incarnation>,
        in_flight: usize,
        hook: Option<DrainHook<A>>,
    ) -> Self {
        Feed {
            mailbox,
            incarnation,
            batch: VecDeque::new(),
            pending: None,
            in_flight,
            hook,
            drained: false,
            untimed: 0,
        }
    }

    fn pending(&self) -> usize {
        self.pending.as_ref().map_or(0, FuturesUnordered::len)
    }

    /// Passes on the answers that have come.
    fn forward(&mut self, cx: &mut Context<'_>) {
        if let Some(pending) = &mut self.pending {
            while let Poll::Ready(Some(took)) = Pin::new(&mut *pending).poll_next(cx) {
                self.mailbox.about().metrics.handled_in(took);
            }
        }
    }

    fn open(
        &mut self,
        letter: Box<dyn Envelope<A>>,
        actor: &mut A,
        ctx: &mut A::Context,
    ) -> Option<Box<dyn Any + Send>> {
        let about = self.mailbox.about();
        let since = if self.untimed == 0 {
            self.untimed = TIMED;
            Some(Instant::now())
        } else {
            None
        };
        self.untimed -= 1;
        match letter.open(actor, ctx, about) {
            Opened::Done => {
                if let Some(since) = since {
                    about.metrics.handled_in(since.elapsed());
                }
                self.mailbox.handled_one();
            }
            Opened::Skipped => about.metrics.expired(),
            Opened::Pending(reply) => {
                self.mailbox.handled_one();
                let since = since.unwrap_or_else(Instant::now);
                self.pending.get_or_insert_default().push(InFlight { reply, since });
            }
            Opened::Panicked(payload) => return Some(payload),
        }
        None
    }
}

impl<A> ActorFuture<A> for Feed<A>
where
    A: Actor,
    A::Context: AsyncContext<A>,
{
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, actor: &mut A, ctx: &mut A::Context, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.incarnation.over.get() {
            return Poll::Pending;
        }
        this.forward(cx);
        loop {
            if ctx.waiting() {
                return Poll::Pending;
            }
            let signals = this.mailbox.signals();
            if signals & signal::STOP != 0 {
                // Once an order: an actor may refuse in `stopping`, as with actix.
                this.mailbox.obeyed(signal::STOP);
                ctx.stop();
                return Poll::Pending;
            }
            if this.incarnation.budget.get() == 0 {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let letter = if signals & signal::CONTROL != 0
                && let Some(letter) = this.mailbox.pop_control()
            {
                letter
            } else if this.pending() >= this.in_flight {
                return Poll::Pending;
            } else if let Some(letter) = this.batch.pop_front() {
                this.mailbox.took_one();
                letter
            } else if !this.mailbox.is_parked()
                && let Some(letter) = this.mailbox.take(&mut this.batch)
            {
                letter
            } else if signals & signal::DRAIN == 0 || this.pending() > 0 || this.drained {
                return Poll::Pending;
            } else if let Some(letter) = this.mailbox.take(&mut this.batch) {
                letter // it came between the last look and the order to drain
            } else if let Some(hook) = this.hook.take() {
                hook()
            } else {
                this.drained = true;
                ctx.stop();
                return Poll::Pending;
            };
            this.incarnation.budget.set(this.incarnation.budget.get() - 1);
            if let Some(payload) = this.open(letter, actor, ctx) {
                // Up to the actor's task, which ends this incarnation.
                std::panic::resume_unwind(payload);
            }
            if this.pending() > 0 {
                this.forward(cx); // registers the new one
            }
        }
    }
}

impl<A: Actor> Drop for Feed<A> {
    fn drop(&mut self) {
        // The next incarnation handles what this one did not come to.
        self.mailbox.put_back(&mut self.batch);
        let actor = &self.mailbox.about().name;
        let panic = self.incarnation.panic.borrow();
        for mut late in self.pending.take().into_iter().flatten() {
            late.reply.as_mut().refuse(match &*panic {
                Some(text) => ActorError::Panicked { actor: Arc::clone(actor), text: Arc::clone(text) },
                None => ActorError::Closed { actor: Arc::clone(actor) },
            });
        }
    }
}
