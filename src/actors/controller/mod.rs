//! The System Controller: it takes tasks in, gives them to Skalds, and watches over both.
//!
//! Everything is driven by events: a submission, a finished task, a Skald that comes, each starts a round of the
//! dispatcher at once. Behind the events go sweeps over storage, which find what an event should have told: a lost
//! message, a dead Skald, a deadline that has passed, a retry or a schedule that is due. All changes go through the one
//! lifecycle table.
//!
//! Several controllers may run side by side. All of them answer the API; one leads, and does the rest: see
//! [`crate::core::leadership`].

mod api;
mod board;
mod builder;
mod dispatcher;
mod fleet;
mod health;
mod leader;
mod monitor;
mod orders;
mod scale;
mod unrunnable;
mod wait;

pub use api::{SystemController, TaskChanges, TaskHeartbeat};
pub use builder::ControllerBuilder;
pub use fleet::SkaldInfo;
pub use health::{Health, ServiceHealth};
pub use scale::{ClassScale, MOST_CLASSES};
