//! Everything that is an actor, and the system that owns them.

mod actor_ref;
mod ask;
mod blocking;
mod clock;
mod error;
mod feed;
mod letter;
mod mailbox;
mod metrics;
mod notice;
// Public for `benches/hop.rs` alone, and no promise to anybody else.
#[doc(hidden)]
pub mod link;
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
pub use ask::{Ask, TellWait};
pub use clock::{Clock, Interval, Sleep, Tick};
pub use error::{ActorError, TellError};
pub use notice::TaskChange;
pub use shutdown::ShutdownReport;
pub use spec::{Drain, Escalation, Place, Restart, Scope, Spec, Stage};
pub use supervisor::Exit;
pub use system::{ActorSystem, FailedActor, MAX_NAME, SystemBuilder, SystemEvent};
pub use tasks::TaskError;
pub use test_kit::TestKit;
