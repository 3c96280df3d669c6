//! Keeps one connection to one address.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::connection::Connection;
use super::{CloseReason, LinkEvent, LinkOptions, Owner};

/// Connects to an address, and again whenever the connection is lost, until it is dropped.
pub struct Dialer {
    address: String,
    task: JoinHandle<()>,
}

impl Dialer {
    pub(super) fn start(owner: Arc<Owner>, address: String) -> Self {
        let task = tokio::spawn(keep_dialling(owner, address.clone()));
        Dialer { address, task }
    }

    /// The address.
    pub fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for Dialer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn keep_dialling(owner: Arc<Owner>, address: String) {
    let mut rng = fastrand::Rng::new();
    let mut failures = 0;
    while !owner.events.is_closed() {
        let started = Instant::now();
        let reason = match dial(&address, owner.options.hello_timeout).await {
            Ok(stream) => {
                Connection::new(Arc::clone(&owner), address.clone(), Some(started)).run(stream).await
            }
            Err(reason) => Some(reason),
        };
        // A connection that ends as soon as it is up is a failure as well.
        failures = if started.elapsed() > owner.options.redial_max { 0 } else { failures + 1 };
        if let Some(reason) = reason {
            tracing::debug!(%address, %reason, failures, "an agent cannot be reached");
            // Left out when the owner is slow: the next attempt says it again.
            let _ = owner.events.try_send(LinkEvent::Unreachable { address: address.clone(), reason });
        }
        tokio::select! {
            () = tokio::time::sleep(pause(&owner.options, failures, rng.f64())) => {}
            () = owner.events.closed() => return,
        }
    }
}

async fn dial(address: &str, limit: Duration) -> Result<TcpStream, CloseReason> {
    let stream =
        timeout(limit, TcpStream::connect(address)).await.map_err(|_| CloseReason::HelloTimeout(limit))??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// How long to wait after the `failures`-th failure in a row; `chance` is 0 to 1.
fn pause(options: &LinkOptions, failures: u32, chance: f64) -> Duration {
    let doubled = options.redial_min.saturating_mul(1 << failures.saturating_sub(1).min(20));
    doubled.min(options.redial_max).mul_f64(1.0 - chance / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_to_its_bound_and_varies_by_half() {
        let options = LinkOptions::default();
        let millis = |failures, chance| pause(&options, failures, chance).as_millis();
        assert_eq!([0, 1, 2, 3, 8, 99].map(|failures| millis(failures, 0.0)), [50, 50, 100, 200, 5000, 5000]);
        assert_eq!((millis(1, 1.0), millis(99, 1.0)), (25, 2500));
    }
}
