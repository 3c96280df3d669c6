//! Everything that can happen to a job, within bounds: the two machines that run in production, unchanged, with three
//! agents and a coordinator, explored breadth first. `docs/exactness.md` says what holds and how much was explored.
//!
//! **Where time is.** Each party has a clock of its own, which goes on only when its alarm rings, and then to that
//! alarm: nobody compares clocks, and no message has a time in it. Alarms ring when nothing else can happen, in any
//! order among the parties; while something is still under way only as a fault (`early`), of which there are a few. So
//! a timeout is always possible, and never assumed to be long enough. All waits are of one length or two, and a
//! fingerprint has how far off a timer is, not when it is.
//!
//! **What is left out of fingerprints** cannot change what happens next: tickets and versions (only which of them are
//! durable, being written, or later), places in orders (their order is in), counters and reports.
//!
//! **Outboxes.** What is synced is replaced by its snapshot; that a machine comes back the same from both is checked
//! each time. A crash keeps what is synced and any part of the rest, in order, as a log does.
//!
//! **The network.** A connection keeps its order, unless a message (not an `End`) overtakes as a fault; others are in no order to it.
//! With a party go its connections, and what is on their way: that it arrived before is another way through the model.
//! `Progress` is always lost (it may be): it delays giving up, and narrows which chains a lost agent may hold, so that
//! without it more is given up. Both ends notice the end of a connection at once.
//!
//! **The work.** One hop runs at a time on a node. A unit is one action; between two units of a hop is a checkpoint. The
//! job reads: what a writing step leaves in a slot is the slot's, and `chain::sim` has it, as it has walks, ordered
//! keys, failovers and agents that never come back.
//!
//! **Why an explorer of our own.** `stateright` was looked at: its *eventually* does not see runs that go round for ever
//! (so it says itself), while the question here is asked of the whole graph: can every state still come to an end, with
//! no further fault? And it would bring nineteen packages, five of them beside another version of the same, which
//! `deny.toml` refuses.

mod actions;
mod canon;
mod checks;
mod effects;
mod explore;
mod happen;
#[cfg(test)]
mod tests;
mod world;

pub(in crate::chain) use self::canon::Canon;
