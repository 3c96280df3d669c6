//! Which of several controllers leads: dispatches, judges, fires schedules, sends what was not told.
//!
//! A lease in cache memory says who, so that a dead leader is missed within seconds. A number in storage, the *term*, says
//! whose decisions count: a new leader begins a term before it does anything, and storage refuses what is written in an
//! older one. So the lease may be lost or given twice (a cache that comes back empty, a leader that was frozen): two may
//! believe that they lead for a moment, and only one of them changes anything.

use super::task::Millis;

/// How long the lease lives after its last renewal.
pub const LEASE_TTL: Millis = 3_000;
/// How often the leader renews it.
pub const RENEW_EVERY: Millis = 1_000;
/// How often the others look whether it is free: within `LEASE_TTL` and this time a dead leader has a successor.
pub const LOOK_EVERY: Millis = 500;
/// The leader stops before its lease ends: what it has just begun is then over when another one may begin.
pub const MARGIN: Millis = 500;
/// When no leader was seen for this long, something is wrong.
pub const LEADERLESS_AFTER: Millis = 10_000;

/// Who wants to lead: what stands in the lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// It also dispatches. One that only watches leads while there is none that does.
    pub dispatches: bool,
    /// Of this life of the controller.
    pub id: String,
}

impl Claim {
    /// What is written.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mode = if self.dispatches { DISPATCHER } else { MONITOR };
        format!("{mode} {}", self.id).into_bytes()
    }

    /// Reads it; `None` when it is something else.
    pub fn parse(bytes: &[u8]) -> Option<Claim> {
        let (mode, id) = std::str::from_utf8(bytes).ok()?.split_once(' ')?;
        let dispatches = match mode {
            DISPATCHER => true,
            MONITOR => false,
            _ => return None,
        };
        Some(Claim { dispatches, id: id.to_owned() })
    }

    /// Whether this one takes the lease from whoever holds it: its own, and a mere watcher's.
    pub fn replaces(&self, holder: &[u8]) -> bool {
        match Claim::parse(holder) {
            Some(holder) => self.id == holder.id || (self.dispatches && !holder.dispatches),
            None => false,
        }
    }
}

const DISPATCHER: &str = "DISPATCHER";
const MONITOR: &str = "MONITOR";

/// The right to lead, for a while. Times are the leader's own, monotonic, and go on while it is frozen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Term {
    /// Its number in storage.
    pub number: u64,
    /// Nothing is begun from this time on, unless the lease is renewed before.
    pub until: Millis,
}

impl Term {
    /// A term whose lease was asked for at `asked` and given some time after.
    pub fn new(number: u64, asked: Millis) -> Self {
        Term { number, until: asked.saturating_add(LEASE_TTL - MARGIN) }
    }

    /// Whether something may still be begun.
    pub fn holds(&self, now: Millis) -> bool {
        now < self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(dispatches: bool, id: &str) -> Claim {
        Claim { dispatches, id: id.into() }
    }

    #[test]
    fn a_claim_survives_its_bytes_and_nothing_else_is_one() {
        for claim in [claim(true, "a"), claim(false, "with a space")] {
            assert_eq!(Claim::parse(&claim.to_bytes()), Some(claim));
        }
        for bytes in [&b""[..], b"DISPATCHER", b"dispatcher a", b"\xff a", b"7"] {
            assert_eq!(Claim::parse(bytes), None);
        }
    }

    #[test]
    fn a_dispatcher_takes_over_from_a_watcher_and_from_nobody_else() {
        let (dispatcher, watcher) = (claim(true, "d"), claim(false, "w"));
        assert!(dispatcher.replaces(&watcher.to_bytes()));
        assert!(!watcher.replaces(&dispatcher.to_bytes()));
        assert!(!dispatcher.replaces(&claim(true, "other").to_bytes()));
        assert!(!watcher.replaces(&claim(false, "other").to_bytes()));
        assert!(dispatcher.replaces(&dispatcher.to_bytes()), "it was away, and nobody came");
        assert!(!dispatcher.replaces(b"something else"));
    }

    #[test]
    fn a_leader_stops_before_its_lease_can_be_anothers() {
        let term = Term::new(1, 10_000);
        assert!(term.holds(10_000) && term.holds(12_499));
        assert!(!term.holds(12_500), "and the lease lives until 13,000 at least");
        // Renewed in time even if each round trip takes a second.
        assert!(term.holds(10_000 + RENEW_EVERY + 1_000));
    }
}
