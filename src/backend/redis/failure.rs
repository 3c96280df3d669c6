//! What can go wrong with a server, and the same in the words of the traits.

use redis::{ErrorKind, RedisError, ServerError, ServerErrorKind};

use crate::backend::BackendError;

/// Why a round trip brought no answers at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// There is no connection; nothing was sent.
    NotConnected(String),
    /// The connection broke; what was sent may have been done.
    Lost(String),
    /// No answer in time; what was sent may have been done.
    Late(String),
    /// The server does not let us in.
    Refused(String),
}

impl Failure {
    pub(super) fn into_error(self, service: &str, action: &str) -> BackendError {
        let (service, action) = (service.to_owned(), action.to_owned());
        match self {
            Failure::Refused(reason) => BackendError::Refused { service, action, reason },
            Failure::NotConnected(reason) | Failure::Lost(reason) | Failure::Late(reason) => {
                BackendError::Unavailable { service, action, reason }
            }
        }
    }

    /// Why a server did not answer a question about itself.
    pub(super) fn asking(error: &ServerError) -> Failure {
        match explain(error, "", "") {
            BackendError::Refused { reason, .. } => Failure::Refused(reason),
            _ => Failure::NotConnected(words(error)),
        }
    }

    /// Why a connection could not be made.
    pub(super) fn connecting(error: &RedisError) -> Failure {
        let text = error.to_string();
        let refused = match error.kind() {
            ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig => true,
            ErrorKind::Server(kind) => {
                !matches!(kind, ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown)
            }
            ErrorKind::Extension => true,
            _ => false,
        };
        if refused && !text.contains("max number of clients") {
            Failure::Refused(format!("{text}; check the user, the password and the database of the address"))
        } else {
            Failure::NotConnected(text)
        }
    }
}

/// The server's own words.
pub(super) fn words(error: &ServerError) -> String {
    match error.details() {
        Some(details) => format!("{} {details}", error.code()),
        None => error.code().to_owned(),
    }
}

/// A command's error.
pub(super) fn explain(error: &ServerError, service: &str, action: &str) -> BackendError {
    let (service, action, reason) = (service.to_owned(), action.to_owned(), words(error));
    match error.kind() {
        Some(
            ServerErrorKind::BusyLoading
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown
            | ServerErrorKind::TryAgain
            | ServerErrorKind::Moved
            | ServerErrorKind::Ask
            | ServerErrorKind::ReadOnly,
        ) => BackendError::Unavailable { service, action, reason },
        Some(ServerErrorKind::NoPerm) => BackendError::Refused {
            service,
            action,
            reason: format!("{reason}; give the user this permission (ACL SETUSER), or use another user"),
        },
        None if error.code() == "OOM" => BackendError::Full {
            what: service,
            limit: "its maxmemory".into(),
            hint: format!("raise it, or let keys expire sooner ({reason})"),
        },
        None if matches!(error.code(), "BUSY" | "NOREPLICAS") => {
            BackendError::Unavailable { service, action, reason }
        }
        None if error.code() == "NOAUTH" => BackendError::Refused {
            service,
            action,
            reason: format!("{reason} put the password into the address: redis://:password@host:port"),
        },
        _ => BackendError::Refused { service, action, reason },
    }
}
