//! What every adapter of the three backend traits must do, run against all of them.

mod cache;
mod cache_cases;
mod events;
mod kafka;
mod kafka_faults;
mod mongo;
mod mongo_trouble;
mod redis;
mod redis_cluster;
mod storage;
#[path = "../support/mod.rs"]
mod support;
