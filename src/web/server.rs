//! The API on a port of its own.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::time::Duration;

use actix_web::body::MessageBody;
use actix_web::dev::{ServerHandle, ServiceRequest, ServiceResponse};
use actix_web::http::header;
use actix_web::middleware::{Compress, Condition, Next, from_fn};
use actix_web::web::{Data, ServiceConfig};
use actix_web::{App, Error, HttpServer};
use tokio::task::JoinHandle;

use super::error::ApiError;
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
/// Nothing is authenticated yet: whoever reaches the port can do everything. On loopback, requests that call the server
/// by a name other than `localhost` are refused, so that no web page reaches it.
///
/// # Errors
/// When the address cannot be bound.
pub fn serve(
    address: impl ToSocketAddrs,
    system: ActorSystem,
    controller: SystemController,
) -> io::Result<ApiServer> {
    listen(address, move |config| super::configure(config, system.clone(), controller.clone()))
}

/// Serves `/metrics` alone, for a process without a controller, such as a node agent; otherwise as [`serve`].
///
/// # Errors
/// When the address cannot be bound.
pub fn serve_metrics(address: impl ToSocketAddrs, system: ActorSystem) -> io::Result<ApiServer> {
    listen(address, move |config| {
        config.app_data(Data::new(system.clone())).configure(super::system::metrics_route);
    })
}

fn listen(
    address: impl ToSocketAddrs,
    configure: impl Fn(&mut ServiceConfig) + Clone + Send + 'static,
) -> io::Result<ApiServer> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let local = address.ip().is_loopback();
    let server = HttpServer::new(move || {
        App::new()
            .wrap(Compress::default())
            .wrap(Condition::new(local, from_fn(refuse_foreign_names)))
            .configure(configure.clone())
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

/// A page in a browser can let its own name mean this machine and then call us as its own server; the name that it
/// calls betrays it. Who listens on loopback is called by address or as `localhost`.
async fn refuse_foreign_names(
    request: ServiceRequest,
    next: Next<impl MessageBody>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let named = request.headers().get(header::HOST).map(|host| host.to_str().unwrap_or("?").to_owned());
    match named {
        Some(host) if !is_own_name(&host) => Err(ApiError::Forbidden(format!(
            "this API is called by its address or as localhost, not as {host:?}"
        ))
        .into()),
        _ => next.call(request).await,
    }
}

fn is_own_name(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
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

#[cfg(test)]
mod tests {
    use super::is_own_name;

    #[test]
    fn addresses_and_localhost_are_own_names() {
        for own in ["localhost", "LocalHost:8000", "127.0.0.1", "127.0.0.1:8000", "[::1]:8000", "[::1]"] {
            assert!(is_own_name(own), "{own}");
        }
        for foreign in
            ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "", "?"]
        {
            assert!(!is_own_name(foreign), "{foreign}");
        }
    }
}
