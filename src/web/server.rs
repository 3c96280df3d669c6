//! The API on a port of its own.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::time::Duration;

use actix_web::dev::ServerHandle;
use actix_web::{App, HttpServer, middleware};
use tokio::task::JoinHandle;

use crate::actors::ActorSystem;
use crate::actors::controller::SystemController;

/// Threads that serve requests: they wait for storage most of the time.
const WORKERS: usize = 2;
/// Connections at a time and thread; more wait to be accepted.
const MAX_CONNECTIONS: usize = 1_024;
/// How long a client may take to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long requests under way may take once the server is to stop.
const STOP_TIMEOUT: u64 = 5;

/// A running server. Dropping it does not stop it.
#[derive(Debug)]
pub struct ApiServer {
    address: SocketAddr,
    handle: ServerHandle,
    served: JoinHandle<io::Result<()>>,
}

/// Serves the API at `address` (`127.0.0.1:8000`; port 0 chooses one), on threads of its own. Must be called on a tokio
/// or actix runtime.
///
/// Nothing is authenticated yet: whoever reaches the port can do everything.
///
/// # Errors
/// When the address cannot be bound.
pub fn serve(
    address: impl ToSocketAddrs,
    system: ActorSystem,
    controller: SystemController,
) -> io::Result<ApiServer> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let server = HttpServer::new(move || {
        let (system, controller) = (system.clone(), controller.clone());
        App::new()
            .wrap(middleware::Compress::default())
            .configure(|config| super::configure(config, system, controller))
    })
    .workers(WORKERS)
    .max_connections(MAX_CONNECTIONS)
    .client_request_timeout(HEAD_TIMEOUT)
    .shutdown_timeout(STOP_TIMEOUT)
    .disable_signals()
    .listen(listener)?
    .run();
    Ok(ApiServer { address, handle: server.handle(), served: tokio::spawn(server) })
}

impl ApiServer {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no new connections, lets requests under way end (at most five seconds), and returns when that is done.
    pub async fn stop(self) {
        self.handle.stop(true).await;
        match self.served.await {
            Ok(Err(error)) => tracing::warn!(%error, "the API server ended with an error"),
            Err(error) => tracing::warn!(%error, "the API server ended with a panic"),
            Ok(Ok(())) => {}
        }
    }
}
