//! What can go wrong between us and a cache node.

use std::time::Duration;

use redis::{ErrorKind, RedisError, ServerErrorKind};

/// Why a node could not be asked, or a job's step could not be run on it. Never holds a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The node is away, busy, loading, full or did not answer in time: a later attempt may succeed.
    #[error("redis at {node} is not available while trying to {action}: {reason}")]
    Unavailable {
        /// The node's address.
        node: String,
        /// What was tried.
        action: String,
        /// What the client or the server said.
        reason: String,
    },
    /// The node was asked and has not answered: what it was asked may have been done, or may be done yet.
    #[error("redis at {node} was asked to {action} and has not answered: {reason}")]
    Lost {
        /// The node's address.
        node: String,
        /// What was tried.
        action: String,
        /// What the client said.
        reason: String,
    },
    /// The node answered and refused: wrong password, no permission, a command that it does not have.
    #[error("redis at {node} refused to {action}: {reason}")]
    Refused {
        /// The node's address.
        node: String,
        /// What was tried.
        action: String,
        /// What the server said, and what to do.
        reason: String,
    },
    /// An answer that makes no sense.
    #[error("redis at {node} answered {action} with something unreadable: {reason}")]
    Unreadable {
        /// The node's address.
        node: String,
        /// What was tried.
        action: String,
        /// What is wrong with the answer.
        reason: String,
    },
    /// The job cannot be run as it is: its text does not compile, it names an unknown native job, …
    #[error("job {job}: {reason}")]
    Job {
        /// The job's id.
        job: String,
        /// What is wrong with it, with the line of the user's own text where it is about one.
        reason: String,
    },
    /// An address or URL that cannot be used.
    #[error("redis address {address:?} cannot be used: {reason}")]
    Address {
        /// The address, without its password.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No seed could be asked.
    #[error("no redis answered; {}", .0.join("; "))]
    NoSeed(Vec<String>),
}

impl NodeError {
    /// Whether the same attempt may succeed later: the connection broke, the node is loading, busy or full.
    pub fn is_transient(&self) -> bool {
        matches!(self, NodeError::Unavailable { .. } | NodeError::Lost { .. } | NodeError::NoSeed(_))
    }

    /// Whether a script holds the node, so that it answers nothing else.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self, NodeError::Unavailable { reason, .. } if reason.starts_with("BUSY "))
    }

    /// Whether there is no server at this address: nothing that was asked there is under way any more.
    pub(crate) fn says_nobody_listens(&self) -> bool {
        matches!(self, NodeError::Unavailable { reason, .. } if reason.contains("Connection refused"))
    }

    /// A call that was given up after this long.
    pub(crate) fn lost(node: &str, action: &str, limit: Duration) -> Self {
        let reason = format!("no answer within {limit:?}");
        NodeError::Lost { node: node.to_owned(), action: action.to_owned(), reason }
    }

    /// Reads what the client library said.
    pub(crate) fn from_redis(node: &str, action: impl Into<String>, error: &RedisError) -> Self {
        let (node, action, reason) = (node.to_owned(), action.into(), words(error));
        match verdict(error) {
            Verdict::Later => NodeError::Unavailable { node, action, reason },
            Verdict::Never(hint) => NodeError::Refused { node, action, reason: format!("{reason}{hint}") },
        }
    }

    pub(crate) fn unreadable(node: &str, action: impl Into<String>, reason: impl Into<String>) -> Self {
        NodeError::Unreadable { node: node.to_owned(), action: action.into(), reason: reason.into() }
    }

    pub(crate) fn job(job: &str, reason: impl Into<String>) -> Self {
        NodeError::Job { job: job.to_owned(), reason: reason.into() }
    }
}

enum Verdict {
    Later,
    Never(&'static str),
}

fn verdict(error: &RedisError) -> Verdict {
    if error.kind() == ErrorKind::AuthenticationFailed {
        return Verdict::Never(CHECK_PASSWORD);
    }
    if let ErrorKind::Server(kind) = error.kind() {
        return match kind {
            ServerErrorKind::BusyLoading
            | ServerErrorKind::TryAgain
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown
            | ServerErrorKind::ReadOnly
            | ServerErrorKind::Moved
            | ServerErrorKind::Ask => Verdict::Later,
            _ => of_code(error.code().unwrap_or_default()),
        };
    }
    match error.code() {
        Some(code) => of_code(code),
        None => Verdict::Later,
    }
}

/// What a server's error code means for a later attempt.
fn of_code(code: &str) -> Verdict {
    match code {
        "BUSY" | "OOM" | "MISCONF" | "NOREPLICAS" | "UNBLOCKED" => Verdict::Later,
        "NOAUTH" | "WRONGPASS" => Verdict::Never(CHECK_PASSWORD),
        "NOPERM" => Verdict::Never(" (give the user these permissions, or use another user in the url)"),
        _ => Verdict::Never(""),
    }
}

const CHECK_PASSWORD: &str = " (check the user and password in the redis url)";

/// The server's own words where there are some.
pub(crate) fn words(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(code), None) => code.to_owned(),
        _ if error.is_timeout() => "no answer in time".to_owned(),
        _ => error.to_string(),
    }
}

/// A failure inside a script that is the node's and not the key's: no permission, no memory, not a primary, …
/// Redis 7.0 says "The user executing the script can't …", later versions "ACL failure in script: …".
pub(crate) fn node_trouble(node: &str, action: &str, text: &str) -> Option<NodeError> {
    let text = match text.strip_prefix("user_script:") {
        Some(rest) => rest.split_once(": ").map_or(rest, |(_, message)| message),
        None => text,
    };
    let (node, action) = (node.to_owned(), action.to_owned());
    if text.contains("ACL failure in script") || text.contains("The user executing the script can't") {
        let reason = format!("{text} (give the user these permissions, or use another user in the url)");
        return Some(NodeError::Refused { node, action, reason });
    }
    const LATER: [&str; 8] = [
        "OOM ",
        "READONLY ",
        "MISCONF ",
        "NOREPLICAS ",
        "CLUSTERDOWN ",
        "MASTERDOWN ",
        "LOADING ",
        "TRYAGAIN ",
    ];
    let reason = text.to_owned();
    LATER.iter().any(|code| text.starts_with(code)).then_some(NodeError::Unavailable { node, action, reason })
}
