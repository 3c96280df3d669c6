//! Accepts connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

use super::connection::Connection;
use super::{LinkError, Owner, count};

/// The wait after an accept that failed for want of a resource (file descriptors, memory).
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections until it is dropped; those that are up end with it.
pub struct Listener {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Listener {
    pub(super) async fn bind(owner: Arc<Owner>, address: &str) -> Result<Self, LinkError> {
        let error = |error| LinkError::Listen { address: address.to_owned(), error };
        let addresses: Vec<SocketAddr> = lookup_host(address).await.map_err(error)?.collect();
        // A name may stand for several addresses, of which any may be taken.
        if !owner.options.allow_remote && addresses.iter().any(|address| !address.ip().is_loopback()) {
            return Err(LinkError::Remote { address: address.to_owned() });
        }
        let listener = TcpListener::bind(addresses.as_slice()).await.map_err(error)?;
        let local = listener.local_addr().map_err(error)?;
        let task = tokio::spawn(accept(owner, listener));
        Ok(Listener { address: local, task })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(owner: Arc<Owner>, listener: TcpListener) {
    let places = Arc::new(Semaphore::new(owner.options.max_connections));
    // Aborts what is in it when this task is aborted.
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            () = owner.events.closed() => return,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            count(&owner.stats.refused);
            tracing::warn!(%peer, limit = owner.options.max_connections, "too many connections, this one is closed");
            continue;
        };
        let owner = Arc::clone(&owner);
        connections.spawn(async move {
            serve(owner, stream, peer).await;
            drop(place);
        });
    }
}

async fn serve(owner: Arc<Owner>, stream: TcpStream, peer: SocketAddr) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%peer, %error, "a connection ended before it began");
        return;
    }
    // A connection that never came up is nobody's but the log's.
    let _ = Connection::new(owner, peer.to_string(), None).run(stream).await;
}
