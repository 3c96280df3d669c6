//! Cache memory on a real Redis or Valkey server, alone or as a cluster.

mod cache;
mod failure;
mod field_ttl;
mod keys;
mod link;
mod map;
mod router;
mod scripts;
mod subscription;
mod url;

use std::sync::Arc;
use std::time::Duration;

use self::cache::Shared;
pub use self::field_ttl::FieldTtlSupport;
use self::router::Router;
use super::BackendError;
use crate::config::secret::Secret;

/// How a [`RedisCache`] connects, and how long it waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisOptions {
    /// For addresses without one; empty is none. Better than in the address, which may be shown.
    pub password: Secret,
    /// For a connection to stand, its greeting and password included.
    pub connect_timeout: Duration,
    /// For one round trip, with all redirections of a cluster. A call that needs several (a long batch, a scan)
    /// has this time for each.
    pub call_timeout: Duration,
}

impl Default for RedisOptions {
    /// No password, two seconds, three seconds.
    fn default() -> Self {
        RedisOptions {
            password: Secret::default(),
            connect_timeout: Duration::from_secs(2),
            call_timeout: Duration::from_secs(3),
        }
    }
}

/// [`super::CacheMemory`] on Redis 6.2 or newer, or Valkey; on one server or on a cluster.
///
/// It finds out by itself whether the server belongs to a cluster, and what it can do (asked anew on every
/// connection, so a server may be updated meanwhile). A lost connection is made again by the next call that needs it;
/// until the server answers, calls fail at once or within [`RedisOptions::call_timeout`]. Reads and plain writes are
/// tried a second time when a connection breaks under them; pushes, swaps and publications are not.
///
/// # Time to live of hash fields
///
/// | server | a field and its TTL are set by |
/// | --- | --- |
/// | Redis 8, Valkey 9 | one `HSETEX` |
/// | Redis 7.4 | `HSET` and `HPEXPIRE` in one script |
/// | older | emulation, one script |
///
/// The emulation keeps the fields' ends in a sorted set beside the hash, `{tag}:skalds-ttl:KEY`, where `tag` puts it
/// into the hash's own slot, by the server's clock. A field that is over is left out of what this type reads and
/// removed by the next write; when every field has an end, both keys expire with the last one. Who reads the hash
/// with another client sees fields that are over for a while. Ask [`RedisCache::field_ttl_support`] what is used.
pub struct RedisCache {
    shared: Arc<Shared>,
}

impl RedisCache {
    /// Connects to `redis://[user:password@]host:port[/database]`, or to a cluster of which some nodes are named,
    /// separated by commas. Must be called on a tokio (or actix) runtime.
    ///
    /// # Errors
    /// `Refused` for an address that cannot be understood, a wrong password, or a server that will not serve;
    /// `Unavailable` when none of the servers answers.
    pub async fn connect(urls: &str) -> Result<Self, BackendError> {
        RedisCache::connect_with(urls, RedisOptions::default()).await
    }

    /// [`RedisCache::connect`] with a password of its own, or other limits.
    ///
    /// # Errors
    /// As there.
    pub async fn connect_with(urls: &str, options: RedisOptions) -> Result<Self, BackendError> {
        let router = Router::connect(url::parse(urls, &options.password)?, options).await?;
        Ok(RedisCache { shared: Arc::new(Shared { router }) })
    }

    /// Whether every server has a TTL per hash field of its own; if not, what is missing on which, for a message to
    /// the user.
    ///
    /// # Errors
    /// `Unavailable` when one of them does not answer.
    pub async fn field_ttl_support(&self) -> Result<FieldTtlSupport, BackendError> {
        self.shared.router.field_ttl_support().await
    }

    /// Whether the servers form a cluster.
    pub fn is_cluster(&self) -> bool {
        self.shared.router.is_cluster()
    }
}

impl std::fmt::Debug for RedisCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RedisCache").field(&self.shared.router.service()).finish()
    }
}
