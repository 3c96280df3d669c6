//! Addresses as users write them.

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion};

use crate::backend::BackendError;
use crate::config::secret::Secret;

/// Reads one or several URLs, separated by commas. No error repeats the text: it may hold a password.
pub(super) fn parse(urls: &str, password: &Secret) -> Result<Vec<ConnectionInfo>, BackendError> {
    let all: Vec<ConnectionInfo> = urls
        .split(',')
        .map(str::trim)
        .filter(|url| !url.is_empty())
        .map(|url| parse_one(url, password))
        .collect::<Result<_, _>>()?;
    if all.is_empty() { Err(refused("no address is given".into())) } else { Ok(all) }
}

fn parse_one(url: &str, password: &Secret) -> Result<ConnectionInfo, BackendError> {
    let info = url.into_connection_info().map_err(|error| refused(error.to_string()))?;
    match info.addr() {
        // The older protocol: every server speaks it, and answers have one form.
        address if address.is_supported() => {
            let mut settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP2);
            if settings.password().is_none() && !password.is_empty() {
                settings = settings.set_password(password.expose());
            }
            Ok(info.set_redis_settings(settings))
        }
        _ => Err(BackendError::Unsupported {
            service: format!("redis at {}", info.addr()),
            action: "connect".into(),
            missing: "TLS".into(),
            hint: "use redis:// on a network that you trust".into(),
        }),
    }
}

fn refused(reason: String) -> BackendError {
    BackendError::Refused {
        service: "redis".into(),
        action: "connect".into(),
        reason: format!(
            "{reason}; an address is redis://[user:password@]host:port[/database], with special characters of the \
             password percent-encoded, and several are separated by commas"
        ),
    }
}

/// `host:port`, which names a server in messages and in the cluster's map.
pub(super) fn address(info: &ConnectionInfo) -> String {
    match info.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            format!("{host}:{port}")
        }
        other => other.to_string(),
    }
}

/// The same user, password and database at another address: how a cluster's other nodes are reached.
pub(super) fn at(info: &ConnectionInfo, host: &str, port: u16) -> ConnectionInfo {
    let address = match info.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
            host: host.into(),
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => ConnectionAddr::Tcp(host.into(), port),
    };
    info.clone().set_addr(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_passwords_are_not_repeated() {
        let none = Secret::default();
        let nodes =
            parse("redis://user:se%2Ccret@one:7000/2, redis://two:7001", &Secret::new("other")).unwrap();
        assert_eq!(nodes.iter().map(address).collect::<Vec<_>>(), ["one:7000", "two:7001"]);
        assert_eq!(nodes[0].redis_settings().password(), Some("se,cret"));
        assert_eq!(nodes[1].redis_settings().password(), Some("other"));
        assert_eq!(address(&at(&nodes[0], "three", 1)), "three:1");
        for wrong in
            ["", "redis://user:se,cret@one", "one:7000", "http://:secret@one", "redis://:secret@one/x"]
        {
            let error = parse(wrong, &none).unwrap_err().to_string();
            assert!(
                error.contains("redis://[user:password@]host:port") && !error.contains("cret"),
                "{error}"
            );
        }
        assert!(parse("rediss://:secret@one", &none).unwrap_err().to_string().contains("TLS"));
    }
}
