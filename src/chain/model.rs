//! Model checking.

mod actions;
mod canon;
mod checks;
mod effects;
mod explore;
mod world;

pub(in crate::chain) use self::canon::Canon;
#[cfg(test)]
mod tests;
