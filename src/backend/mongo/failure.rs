//! What can go wrong, in the words of the traits.

use mongodb::error::{Error, ErrorKind, WriteFailure};

use crate::backend::BackendError;

/// The server's number for an id that is taken.
pub(super) const DUPLICATE_KEY: i32 = 11000;

/// What a failure means for whoever asked.
enum Means {
    Away,
    Refused(&'static str),
    TooLarge,
    DiskFull,
}

/// A driver's or a server's error.
pub(super) fn explain(error: &Error, service: &str, action: &str) -> BackendError {
    let (service, action) = (service.to_owned(), action.to_owned());
    let reason = words(error);
    match meaning(error) {
        Means::Away => BackendError::Unavailable { service, action, reason },
        Means::Refused("") => BackendError::Refused { service, action, reason },
        Means::Refused(hint) => {
            BackendError::Refused { service, action, reason: format!("{reason}; {hint}") }
        }
        Means::TooLarge => BackendError::Full {
            what: format!("a document for {service}"),
            limit: "what the server takes (16 MiB)".into(),
            hint: format!("make what others keep in it smaller ({reason})"),
        },
        Means::DiskFull => BackendError::Full {
            what: service,
            limit: "its disk".into(),
            hint: format!("free some space ({reason})"),
        },
    }
}

/// No answer in time. What was sent may have been done all the same.
pub(super) fn late(limit: std::time::Duration, service: &str, action: &str) -> BackendError {
    BackendError::Unavailable {
        service: service.into(),
        action: action.into(),
        reason: format!("no answer within {limit:?}; whether a write was done is not known"),
    }
}

pub(super) fn is_duplicate(error: &Error) -> bool {
    matches!(&*error.kind, ErrorKind::Write(WriteFailure::WriteError(error)) if error.code == DUPLICATE_KEY)
}

fn meaning(error: &Error) -> Means {
    match &*error.kind {
        ErrorKind::Authentication { .. } => {
            Means::Refused("check the user, the password and the authSource of the address")
        }
        ErrorKind::InvalidArgument { .. }
        | ErrorKind::InvalidTlsConfig { .. }
        | ErrorKind::IncompatibleServer { .. } => Means::Refused(""),
        ErrorKind::Command(error) => of_code(error.code),
        ErrorKind::Write(WriteFailure::WriteError(error)) => of_code(error.code),
        // It was written, but nobody knows whether most members have it.
        ErrorKind::Write(WriteFailure::WriteConcernError(_)) => Means::Away,
        ErrorKind::InsertMany(error) => {
            match error.write_errors.iter().flatten().find(|error| error.code != DUPLICATE_KEY) {
                Some(error) => of_code(error.code),
                None => Means::Away,
            }
        }
        _ => Means::Away,
    }
}

/// The server's error numbers that are worth telling apart.
fn of_code(code: i32) -> Means {
    match code {
        // No host, timeouts, shutdown, elections, write conflicts, write concerns: later it may work.
        6 | 7 | 24 | 50 | 63 | 64 | 79 | 89 | 91 | 100 | 112 | 133 | 134 | 189 | 202 | 262 | 317 | 358
        | 9001 | 10058 | 10107 | 11600 | 11602 | 13388 | 13435 | 13436 => Means::Away,
        10334 | 17419 | 17420 => Means::TooLarge,
        14031 => Means::DiskFull,
        13 | 18 | 8000 => Means::Refused(
            "check the user and the password of the address, and give the user the role readWrite on the database",
        ),
        85 | 86 => Means::Refused("drop the index of that name, and start again: it is made as it must be"),
        DUPLICATE_KEY => Means::Refused("several documents have one id: remove all but one of each"),
        _ => Means::Refused(""),
    }
}

/// What the driver or the server said, without the driver's wrapping.
fn words(error: &Error) -> String {
    match &*error.kind {
        ErrorKind::Command(error) => format!("{} ({})", error.message, named(&error.code_name, error.code)),
        ErrorKind::Write(WriteFailure::WriteError(error)) => format!("{} ({})", error.message, error.code),
        ErrorKind::Write(WriteFailure::WriteConcernError(error)) => {
            format!("{} ({})", error.message, named(&error.code_name, error.code))
        }
        ErrorKind::InsertMany(error) => {
            let write = error.write_errors.iter().flatten().find(|error| error.code != DUPLICATE_KEY);
            match (write, &error.write_concern_error) {
                (Some(error), _) => format!("{} ({})", error.message, error.code),
                (None, Some(error)) => format!("{} ({})", error.message, error.code),
                (None, None) => "the server did not say why".into(),
            }
        }
        kind => kind.to_string(),
    }
}

fn named(name: &str, code: i32) -> String {
    if name.is_empty() { code.to_string() } else { name.to_owned() }
}
