//! The ordered end of a Skald.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::core::SkaldCore;
use crate::actors::worker::StopReason;

impl SkaldCore {
    /// Takes nothing new, lets what runs finish for a while, stops the rest, hands back what is left, says goodbye.
    pub(super) async fn drain(self: Arc<Self>) {
        self.begin_drain();
        self.announce().await;
        // What was assigned and not started goes back at once; the sweep and the events do the same from now on.
        if let Err(error) = self.take_assigned().await {
            tracing::warn!(skald = self.id, %error, "assigned tasks were not handed back; the controller will find them");
        }
        if !self.empty_within(self.timing.drain).await {
            for held in self.table.that(|_| true) {
                held.stop(StopReason::Draining);
            }
            // A worker has the grace period, and its release has as long again.
            if !self.empty_within(self.timing.grace * 2 + Duration::from_secs(1)).await {
                let left = self.table.that(|_| true);
                let given_up = join_all(left.iter().map(|held| self.give_up(held)));
                tokio::select! {
                    _ = given_up => {}
                    // Storage is away: the controller will find that this Skald is gone.
                    () = self.tasks.clock.sleep(self.timing.grace + Duration::from_secs(5)) => {
                        tracing::error!(skald = self.id, tasks = self.table.len(), "tasks could not be handed back");
                    }
                }
            }
        }
        if let Err(error) = self.take_assigned().await {
            tracing::warn!(skald = self.id, %error, "assigned tasks were not handed back; the controller will find them");
        }
        self.say_goodbye().await;
    }

    async fn empty_within(&self, time: Duration) -> bool {
        tokio::select! {
            biased;
            () = self.empty() => true,
            () = self.tasks.clock.sleep(time) => false,
        }
    }
}
