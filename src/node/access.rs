//! How to reach the nodes: user, password and timeouts, from `redis://` URLs.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo};

use super::error::NodeError;
use crate::config::secret::Secret;

/// How to reach the nodes of one cluster; the same for all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisAccess {
    /// The ACL user; `None` is the default user.
    pub username: Option<String>,
    /// Its password.
    pub password: Option<Secret>,
    /// The database on a server without cluster mode.
    pub database: i64,
    /// How long connecting and authenticating may take.
    pub connect_timeout: Duration,
    /// How long one call may take. Whole-node scripts are not held to it.
    pub call_timeout: Duration,
}

impl Default for RedisAccess {
    fn default() -> Self {
        RedisAccess {
            username: None,
            password: None,
            database: 0,
            connect_timeout: Duration::from_secs(3),
            call_timeout: Duration::from_secs(5),
        }
    }
}

impl RedisAccess {
    /// Reads `redis://[user[:password]@]host[:port][/database]` or `host:port`, and answers what is common to all
    /// URLs and the seeds as `host:port`. User, password and database are those of the first URL that has them.
    ///
    /// # Errors
    /// When there is no URL, one cannot be read, or one asks for TLS or a Unix socket. The message holds no password.
    pub fn from_urls<S: AsRef<str>>(urls: &[S]) -> Result<(RedisAccess, Vec<String>), NodeError> {
        let mut access = RedisAccess::default();
        let mut seeds = Vec::with_capacity(urls.len());
        for url in urls {
            let url = url.as_ref().trim();
            let refuse = |reason: &str| NodeError::Address {
                address: without_password(url),
                reason: reason.to_owned(),
            };
            let full = if url.contains("://") { url.to_owned() } else { format!("redis://{url}") };
            let info = full
                .as_str()
                .into_connection_info()
                .map_err(|_| refuse("write redis://user:password@host:port"))?;
            let ConnectionAddr::Tcp(host, port) = info.addr() else {
                return Err(refuse("only plain TCP is supported; write redis://user:password@host:port"));
            };
            seeds.push(join_address(host, *port));
            let settings = info.redis_settings();
            if access.password.is_none() && access.username.is_none() {
                access.username = settings.username().map(str::to_owned);
                access.password = settings.password().map(Secret::new);
            }
            if access.database == 0 {
                access.database = settings.db();
            }
        }
        if seeds.is_empty() {
            return Err(NodeError::Address { address: String::new(), reason: "no address was given".into() });
        }
        Ok((access, seeds))
    }

    /// Connects to one node (`host:port`) and authenticates, within the connect timeout.
    pub(crate) async fn connect(&self, address: &str) -> Result<MultiplexedConnection, NodeError> {
        let (host, port) = split_address(address)?;
        let mut settings = RedisConnectionInfo::default().set_db(self.database).set_skip_set_lib_name();
        if let Some(username) = &self.username {
            settings = settings.set_username(username);
        }
        if let Some(password) = &self.password {
            settings = settings.set_password(password.expose());
        }
        let failed = |error: &redis::RedisError| NodeError::from_redis(address, "connect", error);
        let info = ConnectionAddr::Tcp(host, port)
            .into_connection_info()
            .map_err(|error| failed(&error))?
            .set_redis_settings(settings);
        let client = Client::open(info).map_err(|error| failed(&error))?;
        // Calls are timed one by one (a whole-node script may take long), so the connection has no timeout of its own.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(None);
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        // A host that accepts and then says nothing is not covered by the library's connection timeout.
        match tokio::time::timeout(self.connect_timeout, connecting).await {
            Ok(connected) => connected.map_err(|error| failed(&error)),
            Err(_) => Err(NodeError::Unavailable {
                node: address.to_owned(),
                action: "connect".into(),
                reason: format!("no answer within {:?}", self.connect_timeout),
            }),
        }
    }
}

/// `host:port`, with brackets around an IPv6 address.
pub(crate) fn join_address(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

pub(crate) fn split_address(address: &str) -> Result<(String, u16), NodeError> {
    let refuse = || NodeError::Address { address: address.to_owned(), reason: "write host:port".to_owned() };
    let (host, port) = address.rsplit_once(':').ok_or_else(refuse)?;
    let port = port.parse().map_err(|_| refuse())?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if host.is_empty() {
        return Err(refuse());
    }
    Ok((host.to_owned(), port))
}

/// A URL as it may be shown.
fn without_password(url: &str) -> String {
    match (url.find("://").map_or(0, |at| at + 3), url.rfind('@')) {
        (start, Some(end)) if start <= end => format!("{}***{}", &url[..start], &url[end..]),
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read() {
        let (access, seeds) =
            RedisAccess::from_urls(&["redis://ann:s%40cret@cache-1:7000/3", "cache-2:7001", "redis://[::1]"])
                .unwrap();
        assert_eq!(seeds, ["cache-1:7000", "cache-2:7001", "[::1]:6379"]);
        assert_eq!(access.username.as_deref(), Some("ann"));
        assert_eq!(access.password, Some(Secret::new("s@cret")));
        assert_eq!(access.database, 3);
        assert_eq!(split_address("[::1]:6379").unwrap(), ("::1".to_owned(), 6379));
    }

    #[test]
    fn a_password_is_never_shown() {
        let (access, _) = RedisAccess::from_urls(&["redis://:hunter2@h:1"]).unwrap();
        assert!(!format!("{access:?}").contains("hunter2"));
        for url in
            ["redis://:hunter2@h:notaport", "rediss://u:hunter2@h:1", "redis://:hunter2@", "u:hunter2@h:x"]
        {
            let error = RedisAccess::from_urls(&[url]).unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
        assert!(RedisAccess::from_urls::<&str>(&[]).is_err());
    }
}
