//! Where messages wait: two lanes, a bound, and what becomes of those that cannot be handled.
//!
//! Both lanes, the waiting senders and the phase stand under one mutex that is held for a push or a pop and never
//! while a user's code runs, so every answer is exact: what `tell` accepted is in the queue, what came too late is
//! refused with the reason, and no message falls between a queue that was emptied and one that was closed.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
};

use actix::Actor;

use super::{
    error::ActorError, letter::Envelope, metrics::LabelMetrics, registry::Core, spec::Stage, supervisor::Exit,
};

/// The most senders that wait for room in one mailbox; the next one is told `Full`.
const MAX_WAITERS: usize = 65_536;
/// How many control messages may wait. Stop, drain and kill are flags and need no room.
pub(crate) const CONTROL_CAPACITY: usize = 256;
/// How many messages the actor takes out of the mailbox under one lock.
const BATCH: usize = 32;

/// Which queue a message waits in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// In order, up to the mailbox's capacity.
    Normal,
    /// In order among themselves, before every message of the normal lane.
    Control,
}

/// Why a letter was not taken. The letter goes back to its sender.
#[derive(Debug, Clone)]
pub(crate) enum Refusal {
    Full,
    Closed(Box<ActorError>),
}

/// What the actor is told outside the queues, so that it can never be refused. Read once a message.
pub(crate) mod signal {
    /// Messages wait in the control lane.
    pub(crate) const CONTROL: u8 = 1;
    /// End after the message at hand.
    pub(crate) const STOP: u8 = 2;
    /// End when everything queued is handled.
    pub(crate) const DRAIN: u8 = 4;
    /// End now, also in the middle of an asynchronous handler.
    pub(crate) const KILL: u8 = 8;
}

/// What stays the same for an actor's whole life, restarts included.
pub(crate) struct About {
    pub(crate) name: Arc<str>,
    pub(crate) type_name: &'static str,
    pub(crate) metrics: Arc<LabelMetrics>,
    pub(crate) core: Arc<Core>,
    pub(crate) capacity: usize,
    pub(crate) arbiter: usize,
    pub(crate) stage: Stage,
}

/// One actor's mailbox. It outlives the actor's incarnations.
pub(crate) struct Mailbox<A: Actor> {
    about: About,
    state: Mutex<State<A>>,
    signals: AtomicU8,
    /// Messages that the actor has taken out and not handled yet; they still count against the bound.
    taken: AtomicUsize,
    /// The actor took all there was; the next push wakes it. Only set under the lock.
    parked: AtomicBool,
    /// Messages handled so far; the actor's task is the only writer.
    handled: AtomicU64,
    /// Wakes the actor's task. Set once, when the task first runs.
    waker: OnceLock<Waker>,
}

struct State<A: Actor> {
    normal: VecDeque<Box<dyn Envelope<A>>>,
    control: VecDeque<Box<dyn Envelope<A>>>,
    /// Senders that wait for room, by ticket, oldest first.
    waiters: VecDeque<(u64, Waker)>,
    next_ticket: u64,
    /// Places promised to senders that were woken and have not posted yet.
    granted: usize,
    phase: Phase,
    /// Those who wait for the end, by ticket.
    mourners: Vec<(u64, Waker)>,
}

enum Phase {
    Open,
    /// Takes control messages only.
    Draining,
    Ended(Exit),
}

impl<A: Actor> Mailbox<A> {
    pub(crate) fn new(about: About) -> Self {
        let state = State {
            normal: VecDeque::new(),
            control: VecDeque::new(),
            waiters: VecDeque::new(),
            next_ticket: 0,
            granted: 0,
            phase: Phase::Open,
            mourners: Vec::new(),
        };
        Mailbox {
            about,
            state: Mutex::new(state),
            signals: AtomicU8::new(0),
            taken: AtomicUsize::new(0),
            parked: AtomicBool::new(false),
            handled: AtomicU64::new(0),
            waker: OnceLock::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<A>> {
        // Nothing of a user's runs under this lock, so a poisoned one still holds a whole state.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Puts a letter into a lane. `granted` says that its sender was promised the place.
    pub(crate) fn push<E: Envelope<A>>(
        &self,
        letter: Box<E>,
        lane: Lane,
        granted: bool,
    ) -> Result<(), (Box<E>, Refusal)> {
        let mut state = self.lock();
        if granted {
            state.granted = state.granted.saturating_sub(1);
        }
        match &state.phase {
            Phase::Open => {}
            Phase::Draining if lane == Lane::Control => {}
            Phase::Draining => {
                drop(state);
                return Err((letter, Refusal::Closed(self.closed())));
            }
            Phase::Ended(exit) => {
                let why = Box::new(exit.refusal(&self.about.name));
                drop(state);
                return Err((letter, Refusal::Closed(why)));
            }
        }
        match lane {
            Lane::Normal => {
                if state.depth(self.taken.load(Ordering::Relaxed)) >= self.about.capacity {
                    drop(state);
                    self.about.metrics.refused();
                    return Err((letter, Refusal::Full));
                }
                state.normal.push_back(letter);
            }
            Lane::Control => {
                if state.control.len() >= CONTROL_CAPACITY {
                    drop(state);
                    self.about.metrics.refused();
                    return Err((letter, Refusal::Full));
                }
                state.control.push_back(letter);
                self.signals.fetch_or(signal::CONTROL, Ordering::Relaxed);
            }
        }
        // An actor that waits for answers takes no normal messages, but it does take control messages.
        let wake = self.unpark() || lane == Lane::Control;
        drop(state);
        if wake {
            self.wake();
        }
        Ok(())
    }

    fn closed(&self) -> Box<ActorError> {
        Box::new(ActorError::Closed { actor: Arc::clone(&self.about.name) })
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
    }

    // What the actor's side uses.

    /// Sets the waker of the actor's task; only the first call has an effect.
    pub(crate) fn attach(&self, waker: &Waker) {
        self.waker.get_or_init(|| waker.clone());
    }

    pub(crate) fn signals(&self) -> u8 {
        self.signals.load(Ordering::Relaxed)
    }

    /// The order has been carried out.
    pub(crate) fn obeyed(&self, order: u8) {
        self.signals.fetch_and(!order, Ordering::Relaxed);
    }

    /// The next control message.
    pub(crate) fn pop_control(&self) -> Option<Box<dyn Envelope<A>>> {
        let mut state = self.lock();
        let letter = state.control.pop_front();
        if state.control.is_empty() {
            self.signals.fetch_and(!signal::CONTROL, Ordering::Relaxed);
        }
        letter
    }

    /// The next message of the normal lane; `batch`, which is empty, gets those behind it. The room that is left is
    /// promised to those who wait for it. When nothing more can come of looking again, the next push wakes the actor.
    pub(crate) fn take(&self, batch: &mut VecDeque<Box<dyn Envelope<A>>>) -> Option<Box<dyn Envelope<A>>> {
        let mut state = self.lock();
        let first = state.normal.pop_front();
        if state.normal.len() >= BATCH {
            batch.extend(state.normal.drain(..BATCH));
        } else if !state.normal.is_empty() {
            std::mem::swap(&mut state.normal, batch);
            // A flood's memory is given back once it is over.
            if state.normal.capacity() > 2 * BATCH {
                state.normal = VecDeque::new();
            }
        }
        self.taken.store(batch.len(), Ordering::Relaxed);
        let mut parked = state.normal.is_empty();
        if !state.waiters.is_empty() {
            let woken = state.grant(self.about.capacity, batch.len());
            // With senders in line the actor looks again after this batch, whose room is theirs. With an empty batch
            // all room is promised, and whoever was promised it will push, or pass it on.
            parked &= state.waiters.is_empty() || batch.is_empty();
            self.parked.store(parked, Ordering::Relaxed);
            drop(state);
            woken.into_iter().for_each(Waker::wake);
        } else {
            self.parked.store(parked, Ordering::Relaxed);
        }
        first
    }

    /// Another [`take`](Self::take) would find nothing.
    pub(crate) fn is_parked(&self) -> bool {
        self.parked.load(Ordering::Relaxed)
    }

    /// `true` when the actor must be woken.
    fn unpark(&self) -> bool {
        let parked = self.parked.load(Ordering::Relaxed);
        if parked {
            self.parked.store(false, Ordering::Relaxed); // under the lock: no other writer
        }
        parked
    }

    /// One message of the batch is being handled.
    pub(crate) fn took_one(&self) {
        let left = self.taken.load(Ordering::Relaxed).saturating_sub(1);
        self.taken.store(left, Ordering::Relaxed); // the actor's task is the only writer
    }

    /// One message was handled.
    pub(crate) fn handled_one(&self) {
        let before = self.handled.load(Ordering::Relaxed);
        self.handled.store(before + 1, Ordering::Relaxed); // the actor's task is the only writer
    }

    /// Puts back, at the front and in order, what an incarnation took and did not handle.
    pub(crate) fn put_back(&self, batch: &mut VecDeque<Box<dyn Envelope<A>>>) {
        let mut state = self.lock();
        while let Some(letter) = batch.pop_back() {
            state.normal.push_front(letter);
        }
        self.taken.store(0, Ordering::Relaxed);
    }

    /// Whether the normal lane is empty. The batch is the caller's own business.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().normal.is_empty()
    }

    /// Ends the mailbox: whatever waits is refused, and whoever waits for the end is told.
    pub(crate) fn end(&self, exit: &Exit) {
        let mut state = self.lock();
        if matches!(state.phase, Phase::Ended(_)) {
            return;
        }
        state.phase = Phase::Ended(exit.clone());
        let control = std::mem::take(&mut state.control);
        let normal = std::mem::take(&mut state.normal);
        let waiters = std::mem::take(&mut state.waiters);
        let mourners = std::mem::take(&mut state.mourners);
        drop(state);
        for letter in control.into_iter().chain(normal) {
            letter.refuse(exit.refusal(&self.about.name));
        }
        waiters.into_iter().chain(mourners).for_each(|(_, waker)| waker.wake());
    }
}

impl<A: Actor> State<A> {
    fn depth(&self, taken: usize) -> usize {
        self.normal.len() + taken + self.granted
    }

    /// Promises free places to those who have waited longest.
    fn grant(&mut self, capacity: usize, taken: usize) -> Vec<Waker> {
        let mut woken = Vec::new(); // allocates only when there is somebody
        while !self.waiters.is_empty() && self.depth(taken) < capacity {
            if let Some((_, waker)) = self.waiters.pop_front() {
                self.granted += 1;
                woken.push(waker);
            }
        }
        woken
    }
}

/// What a waiting sender has: a place in the line, or a promise.
#[derive(Debug, Default)]
pub(crate) struct InLine {
    ticket: Option<u64>,
}

/// What handles and the system need of a mailbox, whatever its actor's type.
pub(crate) trait AnyMailbox: std::any::Any + Send + Sync {
    fn about(&self) -> &About;
    /// Messages of both lanes that are not handled yet.
    fn depth(&self) -> usize;
    /// Messages handled so far.
    fn handled(&self) -> u64;
    fn is_open(&self) -> bool;
    /// Gives an order; see [`signal`].
    fn order(&self, order: u8);
    /// Waits in line until a place is promised; `Ready(Err)` when there will be none.
    fn poll_room(&self, place: &mut InLine, cx: &mut Context<'_>) -> Poll<Result<(), Refusal>>;
    /// Gives up a place in the line, or a promise.
    fn leave(&self, place: &mut InLine);
    /// Waits for the end; the ticket is the caller's place among those who do.
    fn poll_ended(&self, ticket: &mut Option<u64>, cx: &mut Context<'_>) -> Poll<Exit>;
    /// The caller waits no more.
    fn forget(&self, ticket: u64);
}

impl<A: Actor> AnyMailbox for Mailbox<A> {
    fn about(&self) -> &About {
        &self.about
    }

    fn depth(&self) -> usize {
        let state = self.lock();
        state.normal.len() + state.control.len() + self.taken.load(Ordering::Relaxed)
    }

    fn handled(&self) -> u64 {
        self.handled.load(Ordering::Relaxed)
    }

    fn is_open(&self) -> bool {
        matches!(self.lock().phase, Phase::Open)
    }

    fn order(&self, order: u8) {
        let mut state = self.lock();
        self.signals.fetch_or(order, Ordering::Relaxed);
        self.unpark();
        let mut woken = VecDeque::new();
        if order & signal::DRAIN != 0 && matches!(state.phase, Phase::Open) {
            state.phase = Phase::Draining;
            woken = std::mem::take(&mut state.waiters);
        }
        drop(state);
        woken.into_iter().for_each(|(_, waker)| waker.wake());
        self.wake();
    }

    fn poll_room(&self, place: &mut InLine, cx: &mut Context<'_>) -> Poll<Result<(), Refusal>> {
        let mut state = self.lock();
        match &state.phase {
            Phase::Open => {}
            Phase::Draining => return Poll::Ready(Err(Refusal::Closed(self.closed()))),
            Phase::Ended(exit) => {
                return Poll::Ready(Err(Refusal::Closed(Box::new(exit.refusal(&self.about.name)))));
            }
        }
        if let Some(ticket) = place.ticket {
            match state.waiters.binary_search_by_key(&ticket, |(ticket, _)| *ticket) {
                Ok(at) => {
                    state.waiters[at].1.clone_from(cx.waker());
                    return Poll::Pending;
                }
                // It was taken out of the line: the place is promised.
                Err(_) => return Poll::Ready(Ok(())),
            }
        }
        if state.waiters.is_empty() && state.depth(self.taken.load(Ordering::Relaxed)) < self.about.capacity {
            state.granted += 1;
            place.ticket = Some(u64::MAX);
            return Poll::Ready(Ok(()));
        }
        if state.waiters.len() >= MAX_WAITERS {
            return Poll::Ready(Err(Refusal::Full));
        }
        state.next_ticket += 1;
        place.ticket = Some(state.next_ticket);
        let ticket = state.next_ticket;
        state.waiters.push_back((ticket, cx.waker().clone()));
        // The actor may have freed the room while we looked: it looks again when it knows that somebody waits.
        let wake = self.unpark();
        drop(state);
        if wake {
            self.wake();
        }
        Poll::Pending
    }

    fn leave(&self, place: &mut InLine) {
        let Some(ticket) = place.ticket.take() else { return };
        let mut state = self.lock();
        match state.waiters.binary_search_by_key(&ticket, |(ticket, _)| *ticket) {
            Ok(at) => {
                state.waiters.remove(at);
            }
            Err(_) => {
                // A promise is passed on. After the end or in a drain nobody waits, and the count does not matter.
                state.granted = state.granted.saturating_sub(1);
                let woken = state.grant(self.about.capacity, self.taken.load(Ordering::Relaxed));
                drop(state);
                woken.into_iter().for_each(Waker::wake);
            }
        }
    }

    fn poll_ended(&self, ticket: &mut Option<u64>, cx: &mut Context<'_>) -> Poll<Exit> {
        let mut state = self.lock();
        if let Phase::Ended(exit) = &state.phase {
            return Poll::Ready(exit.clone());
        }
        if let Some((_, waker)) = state.mourners.iter_mut().find(|(each, _)| Some(*each) == *ticket) {
            waker.clone_from(cx.waker());
            return Poll::Pending;
        }
        state.next_ticket += 1;
        *ticket = Some(state.next_ticket);
        let mourner = (state.next_ticket, cx.waker().clone());
        state.mourners.push(mourner);
        Poll::Pending
    }

    fn forget(&self, ticket: u64) {
        self.lock().mourners.retain(|(each, _)| *each != ticket);
    }
}
