//! What the integration tests and the benches stand on: real Redis servers and clusters, Kafka brokers, MongoDB, the `skald`
//! binary as a process, free ports and waiting with a deadline.
//!
//! `mod support;` in a test, `#[path = "../tests/support/mod.rs"] mod support;` in a bench.
//!
//! Nothing started here outlives the test process: every child is killed when its owner is dropped (also while a
//! test panics), and by the kernel when the process dies otherwise.
#![allow(dead_code, unreachable_pub, unused_imports)] // every test crate includes this and uses a part of it

mod children;
mod cluster;
mod kafka;
mod load;
#[cfg(feature = "mongo")]
mod mongo;
mod ports;
mod process;
mod server;
mod wait;

pub use cluster::{RedisCluster, slot_of};
pub use kafka::{Broker, KafkaServer};
pub use load::{Command, load};
#[cfg(feature = "mongo")]
pub use mongo::{MongoDatabase, MongoServer};
pub use ports::free_port;
pub use process::{Finished, Process};
pub use server::{RedisServer, Version};
pub use wait::{holds_for, wait_for, wait_until, wait_until_async};
