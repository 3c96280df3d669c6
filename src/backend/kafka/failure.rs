//! What librdkafka says, as our errors.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use crate::backend::BackendError;

/// The last thing that a client said about its connections: why nothing is answered.
#[derive(Debug, Clone)]
pub(super) struct LastWord {
    service: String,
    said: Arc<Mutex<Option<(Code, String)>>>,
}

impl LastWord {
    pub(super) fn new(service: String) -> Self {
        LastWord { service, said: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Code, String)>> {
        // A plain value: it is whole whatever happened to its last holder.
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn heard(&self, code: Code, reason: &str) {
        *self.lock() = Some((code, reason.to_owned()));
    }

    /// A broker has answered.
    pub(super) fn forget(&self) {
        *self.lock() = None;
    }

    /// Nothing was answered in time.
    pub(super) fn silence(&self, action: &str, then: &str) -> BackendError {
        let said = self.lock().clone();
        let (code, why) = match &said {
            Some((code, why)) => (*code, why.as_str()),
            None => (Code::OperationTimedOut, "no answer in time"),
        };
        self.error(action, code, &format!("{why}{then}"))
    }

    /// What a call of librdkafka answered.
    pub(super) fn failed(&self, action: &str, error: &KafkaError) -> BackendError {
        match error.rdkafka_error_code() {
            Some(code) if is_silence(code) => self.silence(action, ""),
            Some(code) => self.error(action, code, &error.to_string()),
            None => self.error(action, Code::Fail, &error.to_string()),
        }
    }

    /// What a broker answered.
    pub(super) fn answered(&self, action: &str, code: Code) -> BackendError {
        if is_silence(code) { self.silence(action, "") } else { self.error(action, code, &code.to_string()) }
    }

    fn error(&self, action: &str, code: Code, why: &str) -> BackendError {
        let (service, action) = (self.service.clone(), action.to_owned());
        match hint(code) {
            Some(hint) => BackendError::Refused { service, action, reason: format!("{why}; {hint}") },
            None => BackendError::Unavailable { service, action, reason: why.to_owned() },
        }
    }
}

/// librdkafka has waited; what for is in the last word.
fn is_silence(code: Code) -> bool {
    matches!(
        code,
        Code::OperationTimedOut
            | Code::BrokerTransportFailure
            | Code::AllBrokersDown
            | Code::RequestTimedOut
            | Code::MessageTimedOut
            | Code::TimedOutQueue
            | Code::WaitingForCoordinator
    )
}

/// What to do about a refusal; `None` for what may pass by itself.
pub(super) fn hint(code: Code) -> Option<&'static str> {
    Some(match code {
        Code::Authentication | Code::SaslAuthenticationFailed => {
            "check user, password, SASL mechanism, and whether the broker's port speaks SASL"
        }
        Code::UnsupportedSASLMechanism | Code::IllegalSASLState => {
            "choose a SASL mechanism that the broker offers"
        }
        Code::SSL => "check that the broker's port speaks TLS and that the certificate file is the right one",
        Code::TopicAuthorizationFailed => "give the user READ, WRITE and CREATE on the topic",
        Code::GroupAuthorizationFailed => "give the user READ on the group",
        Code::ClusterAuthorizationFailed => "give the user IDEMPOTENT_WRITE and CREATE on the cluster",
        Code::MessageSizeTooLarge | Code::InvalidMessageSize => {
            "send less, or raise max.message.bytes of the topic"
        }
        Code::InvalidReplicationFactor => {
            "set KAFKA_REPLICATION_FACTOR to no more than the number of brokers"
        }
        Code::InvalidPartitions => "set KAFKA_TOPIC_PARTITIONS to what the cluster allows",
        Code::InvalidTopic => "topics are letters, digits, dots, dashes and underscores, at most 249",
        Code::PolicyViolation => "the cluster's policy forbids it; ask its administrator",
        Code::InvalidRecord | Code::InvalidMessage => "the broker takes no such record",
        _ => return None,
    })
}

/// Hears what a client says beside its answers.
#[derive(Debug, Clone)]
pub(super) struct Listener(pub(super) LastWord);

impl ClientContext for Listener {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        heard(&self.0, &error, reason);
    }
}

pub(super) fn heard(last: &LastWord, error: &KafkaError, reason: &str) {
    tracing::debug!(%error, reason, "kafka client");
    // "All brokers are down" follows the reason of each, and says less.
    match error.rdkafka_error_code() {
        Some(Code::AllBrokersDown) | None => {}
        Some(code) => last.heard(code, reason),
    }
}

/// librdkafka repeats itself for as long as a broker is away; what matters is said where it changes something.
pub(super) fn log(level: RDKafkaLogLevel, facility: &str, message: &str) {
    match level {
        RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical => {
            tracing::error!(facility, message, "kafka client");
        }
        _ => tracing::debug!(facility, message, "kafka client"),
    }
}
