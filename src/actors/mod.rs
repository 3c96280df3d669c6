//! Everything that is an actor, and the system that owns them.
//!
//! ```
//! use actix::prelude::*;
//! use skalds::actors::{ActorSystem, Restart, Spec, Stage};
//! use std::time::Duration;
//!
//! #[derive(Default)]
//! struct Counter(u64);
//!
//! impl Actor for Counter {
//!     type Context = Context<Self>;
//! }
//!
//! #[derive(Message)]
//! #[rtype(u64)]
//! struct Add(u64);
//!
//! impl Handler<Add> for Counter {
//!     type Result = u64;
//!     fn handle(&mut self, Add(n): Add, _: &mut Context<Self>) -> u64 {
//!         self.0 += n;
//!         self.0
//!     }
//! }
//!
//! // Here in a plain `main`; inside a tokio or actix runtime, the same without `block_on`.
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let system = ActorSystem::start()?;
//! let counter = system.spawn(
//!     Spec::new("counter", Counter::default)
//!         .mailbox(1_024)
//!         .restart(Restart::at_most(5, Duration::from_secs(10)))
//!         .stage(Stage::Store),
//! )?;
//! let sum = system.block_on(async { counter.ask(Add(2)).deadline(Duration::from_secs(1)).await })??;
//! assert_eq!(sum, 2);
//! assert!(system.block_on(system.shutdown(Duration::from_secs(5)))?.is_clean());
//! # Ok(())
//! # }
//! ```
//!
//! # What the system adds to actix
//! | actix | here |
//! | --- | --- |
//! | a panic ends the actor, and the sender reads "mailbox closed" | [`ActorError::Panicked`] with the panic's text; the arbiter's other actors go on |
//! | `Supervisor` does not restart after a panic | made again by its factory, [`Restart`] limits how often, [`Escalation`] says what then |
//! | `do_send` ignores the bound and drops silently | [`ActorRef::tell`] gives the message back, [`ActorRef::tell_wait`] waits in line |
//! | one queue | [`ActorRef::control`] overtakes a full one; [`Ask::deadline`] is kept by both sides |
//! | `System::stop` drops what is queued | [`ActorSystem::shutdown`] drains stage by stage until a deadline, and names what was late |
//! | needs a running `System` | runs its own threads, starts anywhere, gives `Send` handles |
//!
//! A user's actor is a plain `actix::Actor` with `Context<Self>`; its handlers may return values, `ResponseFuture`,
//! `ResponseActFuture` or `AtomicResponse`, and it may use timers, streams and its own `ctx.address()` (whose messages
//! bypass this mailbox: prefer [`Scope::me`]).
//!
//! # How it works
//! ```text
//!   ActorRef ──▶ Mailbox ◀── Feed, a future of the actix context ◀── Life, one task on the arbiter
//!   any thread   two lanes   takes messages, calls handlers          polls the context in catch_unwind,
//!                one mutex                                           restarts, gives up, ends
//! ```
//! actix polls the futures of a context with the actor and the context at hand. So our mailbox needs no copy of actix's
//! and no relay in front of it: the `Feed` *is* one of those futures. And `Context::into_future` gives the whole actor
//! as one future, so one `catch_unwind` around its `poll` holds every panic of handlers, timers and spawned futures.
//! The price of a call stays that of plain actix (`benches/actor_call.rs`): the mutex is taken once by the sender and
//! once for a batch of messages by the actor; queues are rings, not lists; a handler that answers at once needs no
//! channel of its own; depth and message counts are read at scrape time; one message in 64 is timed.
//!
//! # How to choose
//! - **Arbiter** ([`Place`]): leave it at `Spread`. Use `Beside` for actors that ask each other often: an ask within
//!   one arbiter costs a fifth of one across two. A handler must not block: move such code to
//!   [`ActorSystem::run_blocking`]. Where users' code may block all the same, keep heartbeats and control on an arbiter
//!   of their own with `Arbiter(0)`.
//! - **Stage** ([`Stage`]): `Intake` for what takes work in, `Work` for what does it, `Flush` for what sends results
//!   out, `Store` for what must be written last. Stages drain in this order, and an actor may send to later stages
//!   until its own drain is over. What a handler *returns* as a future is waited for; what it only spawns is dropped
//!   with the actor, unless it finishes it in [`Drain`].
//! - **Restart** ([`Restart`]): the default (5 in 10 s) suits actors whose state is rebuilt by the factory. `never` for
//!   one-shot work whose owner decides (it hears of the end by [`Spec::on_exit`]). `StopSystem` only for what the
//!   process is useless without.
//! - **Bounds**: the mailbox's is the sender's back-pressure, [`Spec::in_flight`] is the actor's own.
//! - **Time and chance**: take them from [`Scope`]: then a [`TestKit`] moves the one and repeats the other.
//!
//! # Which file answers what
//! | file | question |
//! | --- | --- |
//! | `system` | how is a system started, and what can be asked of it? |
//! | `registry` | who is there, under which name, on which arbiter? |
//! | `threads` | which threads are there, and how do they start and end? |
//! | `spec` | how is an actor to be run? |
//! | `supervisor` | how does one actor live: made, caught, restarted, given up? |
//! | `mailbox`, `letter`, `feed` | where does a message wait, what does it carry, how does it reach a handler? |
//! | `actor_ref`, `ask` | how is an actor spoken to, and how does a sender wait? |
//! | `shutdown` | in which order does everything end? |
//! | `blocking` | where does blocking code run? |
//! | `clock`, `test_kit` | where does time come from, and how does a test move it? |
//! | `metrics`, `error` | what is counted, what can go wrong? |
//! | `worker`, `skald`, `tasks`, `notice` | what runs a task, who owns the workers, how is a task changed, who hears of it? |
//! | `link`, `outbox` | how do agents talk, and what do they keep on disk? |

mod actor_ref;
#[cfg(feature = "redis")]
mod agent;
mod ask;
mod blocking;
#[cfg(feature = "redis")]
mod chain_job;
mod clock;
pub mod controller;
#[cfg(feature = "redis")]
mod coordinator;
mod error;
mod feed;
// Public for `benches/hop.rs` alone, and no promise to anybody else; so are `link` and `outbox`.
#[doc(hidden)]
pub mod hop_outbox;
mod letter;
#[doc(hidden)]
pub mod link;
mod mailbox;
mod metrics;
mod notice;
#[doc(hidden)]
pub mod outbox;
mod registry;
mod shutdown;
pub mod skald;
mod spec;
mod supervisor;
mod system;
mod tasks;
pub mod test_kit;
mod threads;
pub mod worker;

pub use actor_ref::{ActorRef, Ended, Recipient};
#[cfg(feature = "redis")]
pub use agent::{AgentError, AgentMetrics, AgentOptions, NodeAgent};
pub use ask::{Ask, TellWait};
#[cfg(feature = "redis")]
pub use chain_job::{CHAIN_JOB, ChainJobs};
pub use clock::{Clock, Interval, Sleep, Tick};
#[cfg(feature = "redis")]
pub use coordinator::{
    JobMetrics, JobOptions, JobPhase, JobProgress, JobRun, JobStore, JobStoreError, explain,
};
pub use error::{ActorError, TellError};
pub use notice::TaskChange;
pub use shutdown::ShutdownReport;
pub use spec::{Drain, Escalation, Place, Restart, Scope, Spec, Stage};
pub use supervisor::Exit;
pub use system::{ActorSystem, FailedActor, MAX_NAME, SystemBuilder, SystemEvent};
pub use tasks::TaskError;
pub use test_kit::TestKit;
