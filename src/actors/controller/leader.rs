//! Leading: taking the lease, keeping it, and handing it on. The rules are in [`crate::core::leadership`].

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use actix::{Actor, AsyncContext, Context, Handler, ResponseFuture, WrapFuture};
use tokio::sync::watch;

use super::builder::Shared;
use crate::actors::spec::Drain;
use crate::actors::tasks::{TaskError, Tasks};
use crate::backend::BackendError;
use crate::config::env::ControllerMode;
use crate::core::leadership::{Claim, LEADERLESS_AFTER, LEASE_TTL, LOOK_EVERY, MARGIN, RENEW_EVERY, Term};
use crate::core::names::LEADER;
use crate::core::task::Millis;

/// How long the leader waits for cache memory before it asks storage whether it still leads.
const CACHE_WITHIN: Duration = Duration::from_millis(800);

fn millis(millis: Millis) -> Duration {
    Duration::from_millis(millis.unsigned_abs())
}

/// What a controller knows of who leads.
pub(super) struct Leadership {
    claim: Claim,
    term: watch::Sender<Option<Term>>,
    /// The latest term in which all held tasks have been looked at: before that nobody knows how full the Skalds are.
    swept: AtomicU64,
    /// When somebody was last seen to lead, in the system's elapsed time.
    seen: Mutex<Option<Millis>>,
    closing: AtomicBool,
}

impl Leadership {
    pub(super) fn new(mode: ControllerMode) -> Self {
        let id = uuid::Uuid::new_v4().simple().to_string();
        Leadership {
            claim: Claim { dispatches: mode == ControllerMode::Dispatcher, id },
            term: watch::Sender::new(None),
            swept: AtomicU64::new(0),
            seen: Mutex::default(),
            closing: AtomicBool::new(false),
        }
    }

    fn see(&self, now: Millis) {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }
}

impl Shared {
    fn elapsed(&self) -> Millis {
        Millis::try_from(self.tasks.clock.elapsed().as_millis()).unwrap_or(Millis::MAX)
    }

    /// The term in which this controller leads now, if it does.
    pub(super) fn term(&self) -> Option<u64> {
        let term = *self.leadership.term.borrow();
        term.filter(|term| term.holds(self.elapsed())).map(|term| term.number)
    }

    /// The stored tasks for the leader's own changes, which count only in this term; `None` when somebody else leads.
    pub(super) fn lead(&self) -> Option<Tasks> {
        self.term().map(|term| self.tasks.in_term(term))
    }

    /// Whether what these tasks are for may still be done: asked in front of everything that storage does not refuse.
    pub(super) fn still_leads(&self, tasks: &Tasks) -> bool {
        tasks.term.is_some() && tasks.term == self.term()
    }

    /// Whether somebody was seen to lead lately.
    pub(super) fn is_led(&self) -> bool {
        let seen = *self.leadership.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.is_some_and(|seen| self.elapsed() - seen < LEADERLESS_AFTER)
    }

    /// Waits until this controller leads.
    pub(super) async fn leads(&self) {
        let mut term = self.leadership.term.subscribe();
        loop {
            if self.term().is_some() {
                return;
            }
            if term.changed().await.is_err() {
                std::future::pending::<()>().await; // cannot happen: `self` keeps the sender
            }
        }
    }

    /// All held tasks were looked at in this term.
    pub(super) fn swept_in(&self, tasks: &Tasks) {
        let term = tasks.term.unwrap_or(0);
        if self.leadership.swept.fetch_max(term, Ordering::AcqRel) < term {
            self.dispatch.notify_one();
        }
    }

    /// Whether they were.
    pub(super) fn is_swept(&self, tasks: &Tasks) -> bool {
        tasks.term.is_some_and(|term| self.leadership.swept.load(Ordering::Acquire) >= term)
    }

    /// A failure of the leader's work. One that says that somebody else leads is obeyed at once.
    pub(super) fn failed(&self, error: &TaskError) {
        if let TaskError::Backend(BackendError::Superseded { term }) = error {
            self.step_down(*term, "another controller has begun a newer term");
        }
    }

    fn step_down(&self, number: u64, why: &str) {
        let stepped_down = self.leadership.term.send_if_modified(|term| {
            let mine = term.is_some_and(|term| term.number == number);
            if mine {
                *term = None;
            }
            mine
        });
        if stepped_down {
            tracing::warn!(term = number, why, "this controller leads no more");
        }
    }
}

pub(super) struct LeaderActor(pub(super) Arc<Shared>);

impl Actor for LeaderActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let shared = Arc::clone(&self.0);
        ctx.spawn(async move { shared.stand().await }.into_actor(self));
    }
}

impl Handler<Drain> for LeaderActor {
    type Result = ResponseFuture<()>;

    /// The dispatcher and the monitor have ended before: see [`crate::actors::Stage`].
    fn handle(&mut self, Drain: Drain, _: &mut Context<Self>) -> Self::Result {
        let shared = Arc::clone(&self.0);
        Box::pin(async move { shared.hand_over().await })
    }
}

impl Shared {
    /// Leads whenever nobody else does; for ever.
    async fn stand(&self) {
        loop {
            let term = *self.leadership.term.borrow();
            let pause = match term {
                Some(term) if term.holds(self.elapsed()) => {
                    self.renew(term).await;
                    RENEW_EVERY
                }
                Some(term) => {
                    self.step_down(term.number, "the lease could not be renewed in time");
                    0
                }
                None => match self.take_over().await {
                    Ok(true) => RENEW_EVERY,
                    Ok(false) => LOOK_EVERY,
                    Err(error) => {
                        tracing::warn!(%error, "nobody knows who leads; looking again");
                        LOOK_EVERY
                    }
                },
            };
            self.tasks.clock.sleep(millis(pause)).await;
        }
    }

    /// Takes the lease if it is free, and begins a term. Says whether this controller leads.
    async fn take_over(&self) -> Result<bool, BackendError> {
        let mut asked = self.elapsed();
        if self.leadership.closing.load(Ordering::Acquire) || !self.take_lease().await? {
            return Ok(false);
        }
        let mut begin = self.backends.storage.begin_term();
        let number = loop {
            // Where storage takes long, the lease is kept meanwhile.
            tokio::select! {
                begun = &mut begin => break begun?,
                () = self.tasks.clock.sleep(millis(RENEW_EVERY)) => {
                    asked = self.elapsed();
                    if !self.keep_lease().await? {
                        return Ok(false);
                    }
                }
            }
        };
        if self.leadership.closing.load(Ordering::Acquire) {
            return Ok(false); // the lease expires by itself
        }
        let term = Term::new(number, asked);
        self.leadership.see(self.elapsed());
        // Nothing that was known in an earlier term counts: others have changed it meanwhile.
        self.board.clear();
        self.looked.store(false, Ordering::Release);
        self.leadership.term.send_replace(Some(term));
        tracing::info!(term = number, "this controller leads");
        self.judge_now.notify_one();
        self.dispatch.notify_one();
        Ok(true)
    }

    async fn take_lease(&self) -> Result<bool, BackendError> {
        let (cache, key, ttl) = (&self.backends.cache, LEADER.as_bytes(), millis(LEASE_TTL));
        let mine = self.leadership.claim.to_bytes();
        if cache.set_string_if_absent(key, &mine, ttl).await? {
            return Ok(true);
        }
        let Some(holder) = cache.get_string(key).await? else { return Ok(false) };
        if self.leadership.claim.replaces(&holder) {
            return cache.swap_string(key, &holder, &mine, ttl).await;
        }
        self.leadership.see(self.elapsed());
        Ok(false)
    }

    /// Renews the lease while it is this controller's. One that is gone (the cache was emptied) is taken again.
    async fn keep_lease(&self) -> Result<bool, BackendError> {
        let (cache, key, ttl) = (&self.backends.cache, LEADER.as_bytes(), millis(LEASE_TTL));
        let mine = self.leadership.claim.to_bytes();
        Ok(cache.swap_string(key, &mine, &mine, ttl).await?
            || cache.set_string_if_absent(key, &mine, ttl).await?)
    }

    /// Goes on leading, or stops when another one has the lease.
    async fn renew(&self, term: Term) {
        let asked = self.elapsed();
        let renewed = match within(CACHE_WITHIN, self.keep_lease()).await {
            Some(Ok(true)) => Some(asked),
            Some(Ok(false)) => return self.step_down(term.number, "another controller has the lease"),
            // Nobody can take the lease from a cache that is away, and whoever reaches it after all begins a term.
            Some(Err(_)) | None => {
                let asked = self.elapsed();
                match within(millis(RENEW_EVERY), self.backends.storage.latest_term()).await {
                    Some(Ok(latest)) if latest == term.number => Some(asked),
                    Some(Ok(_)) => {
                        return self.step_down(term.number, "another controller has begun a newer term");
                    }
                    Some(Err(_)) | None => None, // neither can be asked: it ends by itself
                }
            }
        };
        let Some(asked) = renewed else { return };
        self.leadership.see(self.elapsed());
        self.leadership.term.send_if_modified(|current| {
            // It may have been lost meanwhile, and one that has run out is not revived: another may have led since.
            if let Some(current) = current
                && current.number == term.number
                && current.holds(self.elapsed())
            {
                *current = Term::new(term.number, asked);
            }
            false // who waits for a term has one already
        });
    }

    /// Ends leading, and lets another one begin at once.
    async fn hand_over(&self) {
        self.leadership.closing.store(true, Ordering::Release);
        let Some(term) = self.leadership.term.send_replace(None) else { return };
        let mine = self.leadership.claim.to_bytes();
        // There is no "delete if it is mine"; what expires at once is as good.
        let free = self.backends.cache.swap_string(LEADER.as_bytes(), &mine, b"", Duration::from_millis(1));
        match within(millis(MARGIN), free).await {
            Some(Ok(_)) => tracing::info!(term = term.number, "this controller has handed the lead over"),
            Some(Err(error)) => {
                tracing::warn!(term = term.number, %error, "the lease was not given back; it expires by itself")
            }
            None => tracing::warn!(
                term = term.number,
                "the lease was not given back in time; it expires by itself"
            ),
        }
    }
}

async fn within<T>(limit: Duration, call: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, call).await.ok()
}
