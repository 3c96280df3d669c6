//! From an address to a client.

use std::time::Duration;

use mongodb::Client;
use mongodb::options::{Acknowledgment, ClientOptions, ReadPreference, SelectionCriteria, WriteConcern};

use super::failure;
use crate::backend::BackendError;
use crate::config::env::MongoSettings;
use crate::config::secret::Secret;

/// Connections to a server, unless the address says `maxPoolSize`; callers beyond wait, at most for the limit of a call.
const CONNECTIONS: u32 = 64;
const SRV: &str = "mongodb+srv://";

/// How a [`super::MongoStorage`] connects, and how long it waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MongoOptions {
    /// `mongodb://[user:password@]host[:port][,host…]/[?option=value&…]`. Its options are the driver's (`tls=true`,
    /// `tlsCAFile=…`, `replicaSet=…`, `authSource=…`), except that writes are always for the majority and journaled, and
    /// that the primary is read.
    pub url: Secret,
    /// The database; `skalds` unless said otherwise.
    pub database: String,
    /// For a connection to stand.
    pub connect_timeout: Duration,
    /// For one round trip, with finding a server that takes writes and with one retry. A call that needs several (a page
    /// of many tasks) has this time for each.
    pub call_timeout: Duration,
}

impl MongoOptions {
    /// Two seconds to connect, five for a call.
    pub fn new(url: impl Into<String>) -> Self {
        MongoOptions {
            url: Secret::new(url),
            database: "skalds".into(),
            connect_timeout: Duration::from_secs(2),
            call_timeout: Duration::from_secs(5),
        }
    }
}

impl From<&MongoSettings> for MongoOptions {
    fn from(settings: &MongoSettings) -> Self {
        MongoOptions { database: settings.database.clone(), ..MongoOptions::new(settings.url.expose()) }
    }
}

/// The client, and how it is called in messages. Connects when it is used first.
pub(super) async fn client(options: &MongoOptions) -> Result<(Client, String), BackendError> {
    let url = options.url.expose();
    if url.starts_with(SRV) {
        return Err(BackendError::Unsupported {
            service: "mongodb".into(),
            action: "connect".into(),
            missing: "looking up mongodb+srv addresses".into(),
            hint: "name the hosts: mongodb://user:password@host1:27017,host2:27017/?tls=true&replicaSet=NAME"
                .into(),
        });
    }
    let mut parsed = ClientOptions::parse(url).await.map_err(|error| not_understood(url, &error))?;
    let hosts: Vec<String> = parsed.hosts.iter().map(ToString::to_string).collect();
    let service = format!("mongodb at {} (database {})", hosts.join(","), options.database);
    parsed.app_name.get_or_insert_with(|| "skalds".into());
    parsed.connect_timeout = Some(options.connect_timeout);
    // Before the limit of the call, so that the answer says what is wrong with each server.
    parsed.server_selection_timeout = Some(options.call_timeout * 3 / 4);
    parsed.max_pool_size.get_or_insert(CONNECTIONS);
    let concern = WriteConcern::builder()
        .w(Acknowledgment::Majority)
        .journal(true)
        .w_timeout(options.call_timeout)
        .build();
    parsed.write_concern = Some(concern);
    parsed.selection_criteria = Some(SelectionCriteria::ReadPreference(ReadPreference::Primary));
    let client =
        Client::with_options(parsed).map_err(|error| failure::explain(&error, &service, "connect"))?;
    Ok((client, service))
}

/// The driver's words may repeat a part of the address.
fn not_understood(url: &str, error: &mongodb::error::Error) -> BackendError {
    let said = error.to_string();
    let reason = match user_info(url) {
        Some(secret) if secret.split(':').any(|part| !part.is_empty() && said.contains(part)) => {
            "a part of it is not as it must be".into()
        }
        _ => said,
    };
    BackendError::Refused {
        service: "mongodb".into(),
        action: "connect".into(),
        reason: format!(
            "{reason}; an address is mongodb://[user:password@]host[:port][,host…]/, with special characters of the \
             password percent-encoded"
        ),
    }
}

/// What stands before the host, with an unescaped `/` or `@` in it, too.
fn user_info(url: &str) -> Option<&str> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.rfind('@').map(|at| &rest[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_that_is_wrong_is_refused_without_its_password() {
        for url in [
            "mongodb://root:hunter2/x@localhost:1/",
            "mongodb://root:hun@ter2@localhost:1/",
            "mongodb://root:hunter2%@localhost:1/",
            "mongodb://root:hunter2@localhost:one/",
            "root:hunter2@localhost",
            "http://root:hunter2@localhost/",
            "mongodb://root:hunter2@localhost/?tls=perhaps",
            "mongodb+srv://root:hunter2@cluster.example/",
            "",
        ] {
            let options = MongoOptions::new(url);
            assert!(!format!("{options:?}").contains("hunter2"));
            let error = client(&options).await.map(|_| ()).unwrap_err().to_string();
            assert!(!error.contains("hunter2") && !error.contains("ter2"), "{error}");
            assert!(error.contains("mongodb://"), "{error}");
        }
    }

    #[tokio::test]
    async fn messages_name_the_hosts_and_not_the_user() {
        let url = "mongodb://root:hunter2@one:1,two/?replicaSet=r&w=1&maxPoolSize=3";
        let (client, service) = client(&MongoOptions::new(url)).await.unwrap();
        assert_eq!(service, "mongodb at one:1,two:27017 (database skalds)");
        drop(client);
    }
}
