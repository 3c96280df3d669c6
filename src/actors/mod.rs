//! Everything that is an actor, and the system that owns them.
