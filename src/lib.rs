//! Skalds: an actor system for long-running tasks, and for batch jobs that move to the data of a Redis Cluster.

pub mod actors;
pub mod backend;
pub mod chain;
pub mod config;
pub mod core;
#[cfg(feature = "redis")]
pub mod node;
#[cfg(feature = "web")]
pub mod web;
