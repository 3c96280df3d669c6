//! How to reach Kafka, and how much may wait for it.

use std::path::PathBuf;
use std::time::Duration;

use rdkafka::config::{ClientConfig, RDKafkaLogLevel};

use crate::backend::BackendError;
use crate::config::env::KafkaSettings;
use crate::config::secret::Secret;

/// The largest event: topic, key and value together.
pub const MAX_EVENT: usize = 1 << 20;

/// How a user proves who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SaslMechanism {
    /// The password itself: only over TLS or on networks that you trust.
    #[default]
    Plain,
    /// SCRAM with SHA-256.
    ScramSha256,
    /// SCRAM with SHA-512.
    ScramSha512,
}

impl SaslMechanism {
    fn name(self) -> &'static str {
        match self {
            SaslMechanism::Plain => "PLAIN",
            SaslMechanism::ScramSha256 => "SCRAM-SHA-256",
            SaslMechanism::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

/// TLS to the brokers, whose certificates are always checked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KafkaTls {
    /// A PEM file with the authorities to believe; `None`: those of the system.
    pub ca_file: Option<PathBuf>,
}

/// What [`super::KafkaEvents`] is opened with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaOptions {
    /// `HOST:PORT`, several separated by commas; some of a cluster's brokers are enough.
    pub brokers: String,
    /// Empty: no authentication.
    pub username: String,
    /// Its password.
    pub password: Secret,
    /// How the password is shown.
    pub mechanism: SaslMechanism,
    /// `None`: plain TCP.
    pub tls: Option<KafkaTls>,
    /// The partitions of a topic that this process creates.
    pub partitions: u16,
    /// The replicas of a topic that this process creates.
    pub replication: u16,
    /// Events that wait to be sent; and, for each group, events that wait to be read.
    pub events: usize,
    /// Bytes that wait to be sent; and, for each group, bytes that wait to be read.
    pub bytes: usize,
    /// A folder for events that the broker has not acknowledged in time. `None`: they are kept in memory only.
    pub outbox: Option<PathBuf>,
    /// How long a publication waits for the broker.
    pub ack_wait: Duration,
    /// How long one request to a broker may take.
    pub request_wait: Duration,
    /// How long a subscription may wait for its group's positions: a group that is new to the broker has to be joined.
    pub join_wait: Duration,
    /// How long partitions that go to another process wait for what a reader has in hand.
    pub hand_over: Duration,
    /// How long a broker may hold an empty fetch. Kafka answers as soon as something is there; others only when the
    /// time is over.
    pub fetch_wait: Duration,
}

impl KafkaOptions {
    /// The defaults: no authentication, 6 partitions, 3 replicas, 10,000 events and 16 MiB, no folder, waits of 3 s for
    /// an acknowledgement, 5 s for a request, 20 s for a group, 2 s for what is in hand, and fetches of 10 ms.
    pub fn new(brokers: impl Into<String>) -> Self {
        KafkaOptions {
            brokers: brokers.into(),
            username: String::new(),
            password: Secret::default(),
            mechanism: SaslMechanism::default(),
            tls: None,
            partitions: 6,
            replication: 3,
            events: 10_000,
            bytes: 16 << 20,
            outbox: None,
            ack_wait: Duration::from_secs(3),
            request_wait: Duration::from_secs(5),
            join_wait: Duration::from_secs(20),
            hand_over: Duration::from_secs(2),
            fetch_wait: Duration::from_millis(10),
        }
    }

    /// What `KAFKA_*` says; `None` when `KAFKA_HOST` is set to nothing.
    pub fn from_settings(settings: &KafkaSettings) -> Option<Self> {
        let host = settings.host.as_ref()?;
        Some(KafkaOptions::new(format!("{host}:{}", settings.port)).with_settings(settings))
    }

    /// Everything that `KAFKA_*` says but where the brokers are.
    pub fn with_settings(self, settings: &KafkaSettings) -> Self {
        KafkaOptions {
            username: settings.username.clone(),
            password: settings.password.clone(),
            partitions: settings.topic_partitions,
            replication: settings.replication_factor,
            ..self
        }
    }

    /// How errors name the service.
    pub(super) fn service(&self) -> String {
        format!("kafka at {}", self.brokers)
    }

    /// Refuses what cannot work, before anything is tried.
    pub(super) fn check(&self) -> Result<(), BackendError> {
        if let Some(reason) = self.wrong() {
            let action = "use these options".into();
            return Err(BackendError::Refused { service: self.service(), action, reason });
        }
        Ok(())
    }

    fn wrong(&self) -> Option<String> {
        if self.brokers.is_empty() {
            return Some("no broker is named; name at least one as HOST:PORT".into());
        }
        if let Some(bad) = self.brokers.split(',').find(|broker| !is_address(broker.trim())) {
            return Some(format!("{bad:?} is not HOST:PORT"));
        }
        match (self.username.is_empty(), self.password.is_empty()) {
            (false, true) => return Some(format!("user {:?} has no password", self.username)),
            (true, false) => return Some("a password is given without a user".into()),
            _ => {}
        }
        if let Some(file) = self.tls.as_ref().and_then(|tls| tls.ca_file.as_ref())
            && let Err(error) = std::fs::File::open(file)
        {
            return Some(format!("the certificate file {} cannot be read: {error}", file.display()));
        }
        let counts = [self.partitions as usize, self.replication as usize, self.events, self.bytes];
        counts.contains(&0).then(|| "partitions, replicas and bounds are at least 1".into())
    }

    /// What producers, consumers and administration have in common.
    pub(super) fn client(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        let protocol = match (self.username.is_empty(), &self.tls) {
            (true, None) => "plaintext",
            (true, Some(_)) => "ssl",
            (false, None) => "sasl_plaintext",
            (false, Some(_)) => "sasl_ssl",
        };
        config
            .set("bootstrap.servers", &self.brokers)
            .set("client.id", "skalds")
            .set("security.protocol", protocol)
            .set("socket.keepalive.enable", "true")
            .set("socket.timeout.ms", "10000")
            .set("socket.connection.setup.timeout.ms", "5000")
            .set("reconnect.backoff.ms", "100")
            .set("reconnect.backoff.max.ms", "1000")
            .set_log_level(RDKafkaLogLevel::Info);
        if !self.username.is_empty() {
            config
                .set("sasl.mechanism", self.mechanism.name())
                .set("sasl.username", &self.username)
                .set("sasl.password", self.password.expose());
        }
        if let Some(file) = self.tls.as_ref().and_then(|tls| tls.ca_file.as_ref()) {
            config.set("ssl.ca.location", file.to_string_lossy());
        }
        config
    }

    pub(super) fn producer(&self) -> ClientConfig {
        let mut config = self.client();
        config
            .set("enable.idempotence", "true")
            .set("acks", "all")
            // Where the Java and the Python client put a key.
            .set("partitioner", "murmur2_random")
            // The events of one call travel together; nobody waits longer for that than this.
            .set("linger.ms", "1")
            // Never given up here: what is not acknowledged is our outbox's to decide.
            .set("message.timeout.ms", "0")
            .set("request.timeout.ms", "5000")
            .set("topic.metadata.propagation.max.ms", "3000")
            // The outbox has its bound; this is one that is never reached first.
            .set("queue.buffering.max.messages", (self.events * 2).to_string())
            .set("queue.buffering.max.kbytes", (self.bytes * 2 / 1024 + MAX_EVENT / 512).to_string())
            .set("message.max.bytes", (MAX_EVENT * 2).to_string());
        config
    }

    pub(super) fn consumer(&self, group: &str) -> ClientConfig {
        let mut config = self.client();
        config
            .set("group.id", group)
            // Partitions that stay with a process are not taken from it when another one comes.
            .set("partition.assignment.strategy", "cooperative-sticky")
            .set("enable.auto.offset.store", "false")
            .set("enable.auto.commit", "true")
            .set("auto.commit.interval.ms", "1000")
            // Where a group starts is decided before: this is for positions that the broker no longer has.
            .set("auto.offset.reset", "earliest")
            .set("session.timeout.ms", "6000")
            .set("heartbeat.interval.ms", "1000")
            // Time to stop fetching before a broker that was away is met again; see `group`.
            .set("reconnect.backoff.ms", "300")
            .set("fetch.wait.max.ms", self.fetch_wait.as_millis().max(1).to_string())
            .set("queued.min.messages", self.events.min(1_000).to_string())
            .set("queued.max.messages.kbytes", (self.bytes / 1024).max(1).to_string())
            .set("allow.auto.create.topics", "false");
        config
    }
}

/// Refuses names that no broker takes; not every broker does.
pub(super) fn check_topic(service: &str, topic: &str) -> Result<(), BackendError> {
    let good = |letter: u8| letter.is_ascii_alphanumeric() || b"._-".contains(&letter);
    if (1..=249).contains(&topic.len()) && topic.bytes().all(good) && topic != "." && topic != ".." {
        return Ok(());
    }
    Err(BackendError::Refused {
        service: service.into(),
        action: format!("use the topic {topic:?}"),
        reason: "topics are letters, digits, dots, dashes and underscores, at most 249".into(),
    })
}

/// `HOST:PORT`, `[IPV6]:PORT`.
fn is_address(broker: &str) -> bool {
    let Some((host, port)) = broker.rsplit_once(':') else { return false };
    let inside = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host_is_good = match inside {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && !host.contains([':', '/', '@', ' ']),
    };
    host_is_good && port.parse::<u16>().is_ok_and(|port| port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_work_is_refused_with_its_reason_and_without_the_password() {
        let good = KafkaOptions::new("127.0.0.1:9092, [::1]:9092,broker-1.example:1");
        assert_eq!(good.check(), Ok(()));
        let user = |name: &str, password: &str| KafkaOptions {
            username: name.into(),
            password: Secret::new(password),
            ..good.clone()
        };
        assert_eq!(user("me", "hunter2").check(), Ok(()));
        let missing = Some(KafkaTls { ca_file: Some("/nowhere/ca.pem".into()) });
        for (options, says) in [
            (KafkaOptions::new(""), "no broker is named"),
            (KafkaOptions::new("localhost"), "\"localhost\" is not HOST:PORT"),
            (KafkaOptions::new("a:1,b:99999"), "\"b:99999\" is not HOST:PORT"),
            (KafkaOptions::new("kafka://a:1"), "is not HOST:PORT"),
            (user("me", ""), "user \"me\" has no password"),
            (user("", "hunter2"), "a password is given without a user"),
            (KafkaOptions { tls: missing, ..good.clone() }, "/nowhere/ca.pem cannot be read"),
            (KafkaOptions { partitions: 0, ..good.clone() }, "at least 1"),
        ] {
            let error = options.check().unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains("hunter2"), "{error} should say {says}");
        }
        assert!(!format!("{:?}", user("me", "hunter2")).contains("hunter2"));
    }

    #[test]
    fn what_authentication_needs_is_built_in() {
        for mechanism in [SaslMechanism::Plain, SaslMechanism::ScramSha256, SaslMechanism::ScramSha512] {
            for tls in [None, Some(KafkaTls::default())] {
                let options = KafkaOptions {
                    username: "me".into(),
                    password: Secret::new("hunter2"),
                    mechanism,
                    tls,
                    ..KafkaOptions::new("127.0.0.1:9")
                };
                let made: Result<rdkafka::producer::BaseProducer, _> = options.producer().create();
                assert!(made.is_ok(), "{mechanism:?}: {:?}", made.err());
                let made: Result<rdkafka::consumer::BaseConsumer, _> = options.consumer("g").create();
                assert!(made.is_ok(), "{mechanism:?}: {:?}", made.err());
            }
        }
    }

    #[test]
    fn the_environment_says_where_and_who() {
        let read = |pairs: &'static [(&str, &str)]| {
            let lookup = |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
            crate::config::env::Environment::read(lookup).unwrap().kafka
        };
        let options = KafkaOptions::from_settings(&read(&[
            ("KAFKA_HOST", "k"),
            ("KAFKA_PORT", "1"),
            ("KAFKA_USERNAME", "me"),
            ("KAFKA_PASSWORD", "p"),
            ("KAFKA_REPLICATION_FACTOR", "1"),
        ]))
        .unwrap();
        assert_eq!((options.brokers.as_str(), options.username.as_str()), ("k:1", "me"));
        assert_eq!((options.partitions, options.replication), (6, 1));
        assert_eq!(KafkaOptions::from_settings(&read(&[("KAFKA_HOST", "")])), None);
    }
}
