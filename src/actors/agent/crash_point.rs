//! Points of the hand-off at which a test lets the process die: `SKALD_CRASH_AT=after-persist` ends it there, the first
//! time it comes by, as SIGKILL would. In builds with debug assertions only.

/// Dies here when this is the point that was asked for.
pub(super) fn crash_point(name: &str) {
    if cfg!(debug_assertions) && std::env::var_os("SKALD_CRASH_AT").is_some_and(|at| at == name) {
        std::process::abort();
    }
}
