//! Everything that is an actor, and the system that owns them.

// Public for `benches/hop.rs` alone, and no promise to anybody else.
#[doc(hidden)]
pub mod outbox;
