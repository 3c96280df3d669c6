//! The environment variables of the Python package, with its names and its defaults.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::secret::Secret;
use crate::core::names::check_name;
use crate::core::placement::DispatchStrategy;

/// Everything that the environment says.
#[derive(Debug, Clone, PartialEq)]
pub struct Environment {
    /// About a Skald.
    pub skald: SkaldSettings,
    /// About the log.
    pub log: LogSettings,
    /// About cache memory.
    pub redis: RedisSettings,
    /// About events.
    pub kafka: KafkaSettings,
    /// About storage.
    pub mongo: MongoSettings,
    /// About the controller.
    pub controller: ControllerSettings,
}

/// `SKALD_*`, `YAML_FILE`, `TASK_WORKER_RETRY`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkaldSettings {
    /// `SKALD_ID`; `skalds-` and five hex digits when absent.
    pub id: String,
    /// `SKALD_ENV`.
    pub env: SkaldEnv,
    /// `SKALD_MODE`.
    pub mode: SkaldMode,
    /// `YAML_FILE`; `None` when absent or empty.
    pub yaml_file: Option<String>,
    /// `TASK_WORKER_RETRY`: tries after the first attempt, -1 for ever.
    pub task_worker_retry: i64,
}

/// `LOG_*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    /// `LOG_LEVEL`.
    pub level: LogLevel,
    /// `LOG_PATH`: a folder.
    pub path: String,
    /// `LOG_RETENTION`.
    pub retention: Duration,
    /// `LOG_ROTATION_MB`.
    pub rotation_mb: u64,
    /// `LOG_SPLIT_WITH_WORKER_ID`: a file per task.
    pub split_with_worker_id: bool,
}

/// `REDIS_*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisSettings {
    /// `REDIS_HOST`; `None` when set to nothing: an edge Skald then does without.
    pub host: Option<String>,
    /// `REDIS_PORT`.
    pub port: u16,
    /// `REDIS_PASSWORD`.
    pub password: Secret,
    /// `REDIS_SYNC_PERIOD`: how often a Skald says what it runs.
    pub sync_period: Duration,
    /// `REDIS_KEY_TTL`: how long the keys live that are not heartbeats.
    pub key_ttl: Duration,
}

/// `KAFKA_*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaSettings {
    /// `KAFKA_HOST`; `None` when set to nothing: an edge Skald then does without.
    pub host: Option<String>,
    /// `KAFKA_PORT`.
    pub port: u16,
    /// `KAFKA_USERNAME`; empty is none.
    pub username: String,
    /// `KAFKA_PASSWORD`.
    pub password: Secret,
    /// `KAFKA_TOPIC_PARTITIONS`.
    pub topic_partitions: u16,
    /// `KAFKA_REPLICATION_FACTOR`.
    pub replication_factor: u16,
}

/// `MONGO_HOST`, `DB_NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MongoSettings {
    /// `MONGO_HOST`: a URL, which may hold a password.
    pub url: Secret,
    /// `DB_NAME`.
    pub database: String,
}

/// `SYSTEM_CONTROLLER_*`, `MONITOR_*`, `DISPATCHER_*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerSettings {
    /// `SYSTEM_CONTROLLER_MODE`.
    pub mode: ControllerMode,
    /// `SYSTEM_CONTROLLER_HOST`.
    pub host: String,
    /// `SYSTEM_CONTROLLER_PORT`.
    pub port: u16,
    /// `MONITOR_SKALD_INTERVAL`.
    pub skald_interval: Duration,
    /// `MONITOR_TASK_INTERVAL`.
    pub task_interval: Duration,
    /// `MONITOR_HEARTBEAT_TIMEOUT`.
    pub heartbeat_timeout: Duration,
    /// `DISPATCHER_INTERVAL`.
    pub dispatcher_interval: Duration,
    /// `DISPATCHER_STRATEGY`.
    pub strategy: DispatchStrategy,
}

/// A variable that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {value:?}, expected {expected}")]
pub struct BadVariable {
    /// Which.
    pub name: &'static str,
    /// What it says.
    pub value: String,
    /// What it may say.
    pub expected: String,
}

/// All variables that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadEnvironment(pub Vec<BadVariable>);

impl fmt::Display for BadEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the environment cannot be used: ")?;
        for (index, bad) in self.0.iter().enumerate() {
            write!(f, "{}{bad}", if index > 0 { "; " } else { "" })?;
        }
        Ok(())
    }
}

impl std::error::Error for BadEnvironment {}

/// Values that are one of a few words, whatever their case.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$variant_doc])* $variant),+ }

        impl $name {
            const WORDS: &'static [(&'static str, $name)] = &[$(($word, $name::$variant)),+];

            /// Its word in the environment.
            pub fn word(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }
        }
    };
}

words!(
    /// Where it runs.
    SkaldEnv {
        /// On a developer's machine.
        Dev = "DEV",
        /// For real.
        Production = "PRODUCTION",
    }
);
words!(
    /// What a Skald runs.
    SkaldMode {
        /// What a controller assigns to it.
        Node = "node",
        /// What its YAML file lists.
        Edge = "edge",
        /// The first worker of its YAML file, and nothing else.
        SingleProcess = "single_process",
    }
);
words!(
    /// What a controller does.
    ControllerMode {
        /// It answers the API.
        Controller = "CONTROLLER",
        /// It also watches Skalds and tasks.
        Monitor = "MONITOR",
        /// It also assigns tasks.
        Dispatcher = "DISPATCHER",
    }
);
words!(
    /// How much is logged.
    LogLevel {
        /// Everything.
        Trace = "TRACE",
        /// For finding faults.
        Debug = "DEBUG",
        /// What happens.
        Info = "INFO",
        /// The Python logger's word for good news; the same as `INFO` here.
        Success = "SUCCESS",
        /// What may become a fault.
        Warning = "WARNING",
        /// Faults.
        Error = "ERROR",
        /// Faults that end it; the same as `ERROR` here.
        Critical = "CRITICAL",
    }
);

const STRATEGIES: &[(&str, DispatchStrategy)] = &[
    ("LEAST_TASKS", DispatchStrategy::LeastTasks),
    ("ROUND_ROBIN", DispatchStrategy::RoundRobin),
    ("RANDOM", DispatchStrategy::Random),
];

impl Environment {
    /// Reads the variables through `lookup` (`std::env::var`, a map in a test). All that is wrong is told at once.
    pub fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, BadEnvironment> {
        let mut read = Reader { lookup, bad: Vec::new() };
        let environment = Environment {
            skald: SkaldSettings {
                id: read.name("SKALD_ID").unwrap_or_else(made_up_id),
                env: read.word("SKALD_ENV", SkaldEnv::WORDS, SkaldEnv::Dev),
                mode: read.word("SKALD_MODE", SkaldMode::WORDS, SkaldMode::Node),
                yaml_file: read.set("YAML_FILE"),
                task_worker_retry: read.number("TASK_WORKER_RETRY", -1, -1, i64::MAX),
            },
            log: LogSettings {
                level: read.word("LOG_LEVEL", LogLevel::WORDS, LogLevel::Info),
                path: read.text("LOG_PATH", "logs"),
                retention: read.period("LOG_RETENTION", "3 days"),
                rotation_mb: read.number("LOG_ROTATION_MB", 10, 1, 1 << 20),
                split_with_worker_id: read.flag("LOG_SPLIT_WITH_WORKER_ID", false),
            },
            redis: RedisSettings {
                host: read.host("REDIS_HOST"),
                port: read.number("REDIS_PORT", 6379, 1, u16::MAX),
                password: Secret::new(read.text("REDIS_PASSWORD", "")),
                sync_period: read.seconds("REDIS_SYNC_PERIOD", 3),
                key_ttl: read.seconds("REDIS_KEY_TTL", 3600),
            },
            kafka: KafkaSettings {
                host: read.host("KAFKA_HOST"),
                port: read.number("KAFKA_PORT", 9092, 1, u16::MAX),
                username: read.text("KAFKA_USERNAME", ""),
                password: Secret::new(read.text("KAFKA_PASSWORD", "")),
                topic_partitions: read.number("KAFKA_TOPIC_PARTITIONS", 6, 1, 10_000),
                replication_factor: read.number("KAFKA_REPLICATION_FACTOR", 3, 1, 100),
            },
            mongo: MongoSettings {
                url: Secret::new(read.text("MONGO_HOST", "mongodb://root:root@localhost:27017/")),
                database: read.text("DB_NAME", "skalds"),
            },
            controller: ControllerSettings {
                mode: read.word("SYSTEM_CONTROLLER_MODE", ControllerMode::WORDS, ControllerMode::Controller),
                host: read.text("SYSTEM_CONTROLLER_HOST", "0.0.0.0"),
                port: read.number("SYSTEM_CONTROLLER_PORT", 8000, 0, u16::MAX),
                skald_interval: read.seconds("MONITOR_SKALD_INTERVAL", 5),
                task_interval: read.seconds("MONITOR_TASK_INTERVAL", 3),
                heartbeat_timeout: read.seconds("MONITOR_HEARTBEAT_TIMEOUT", 5),
                dispatcher_interval: read.seconds("DISPATCHER_INTERVAL", 5),
                strategy: read.word("DISPATCHER_STRATEGY", STRATEGIES, DispatchStrategy::LeastTasks),
            },
        };
        if read.bad.is_empty() { Ok(environment) } else { Err(BadEnvironment(read.bad)) }
    }
}

/// `skalds-` and five hex digits, as the Python package names a Skald that has no name.
pub fn made_up_id() -> String {
    let id = uuid::Uuid::new_v4().simple().to_string();
    format!("skalds-{}", &id[..5])
}

struct Reader<L> {
    lookup: L,
    bad: Vec<BadVariable>,
}

impl<L: Fn(&str) -> Option<String>> Reader<L> {
    /// A variable's value; `None` when it is absent or empty.
    fn set(&self, name: &str) -> Option<String> {
        (self.lookup)(name).filter(|value| !value.is_empty())
    }

    fn text(&self, name: &str, default: &str) -> String {
        self.set(name).unwrap_or_else(|| default.to_owned())
    }

    fn host(&self, name: &str) -> Option<String> {
        match (self.lookup)(name) {
            None => Some("localhost".into()),
            Some(host) => Some(host).filter(|host| !host.trim().is_empty()),
        }
    }

    fn name(&mut self, name: &'static str) -> Option<String> {
        let value = self.set(name)?;
        if let Err(error) = check_name("it", &value) {
            self.refuse(name, &value, format!("a plain name ({error})"));
        }
        Some(value)
    }

    fn parse<T>(
        &mut self,
        name: &'static str,
        default: T,
        expected: impl FnOnce() -> String,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> T {
        let Some(value) = self.set(name) else { return default };
        match parse(value.trim()) {
            Some(parsed) => parsed,
            None => {
                self.refuse(name, &value, expected());
                default
            }
        }
    }

    fn refuse(&mut self, name: &'static str, value: &str, expected: String) {
        self.bad.push(BadVariable { name, value: value.chars().take(100).collect(), expected });
    }

    fn word<T: Copy>(&mut self, name: &'static str, words: &[(&str, T)], default: T) -> T {
        let expected = || words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
        self.parse(name, default, expected, |value| {
            words.iter().find(|(word, _)| word.eq_ignore_ascii_case(value)).map(|(_, word)| *word)
        })
    }

    fn number<T: FromStr + PartialOrd + fmt::Display + Copy>(
        &mut self,
        name: &'static str,
        default: T,
        least: T,
        most: T,
    ) -> T {
        let expected = || format!("a whole number from {least} to {most}");
        self.parse(name, default, expected, |value| {
            value.parse().ok().filter(|number| *number >= least && *number <= most)
        })
    }

    fn seconds(&mut self, name: &'static str, default: u64) -> Duration {
        Duration::from_secs(self.number(name, default, 1, 10 * 365 * 86_400))
    }

    fn period(&mut self, name: &'static str, default: &str) -> Duration {
        // cannot fail: the defaults in this file are periods.
        let default = humantime::parse_duration(default).expect("the default is a period");
        let expected = || "a period such as \"3 days\" or \"12h\"".to_owned();
        self.parse(name, default, expected, |value| humantime::parse_duration(value).ok())
    }

    fn flag(&mut self, name: &'static str, default: bool) -> bool {
        let words = [
            ("true", true),
            ("1", true),
            ("yes", true),
            ("y", true),
            ("false", false),
            ("0", false),
            ("no", false),
            ("n", false),
        ];
        self.word(name, &words, default)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Environment, BadEnvironment> {
        let variables: HashMap<_, _> = variables.iter().copied().collect();
        Environment::read(|name| variables.get(name).map(|value| (*value).to_owned()))
    }

    #[test]
    fn the_defaults_are_the_python_packages() {
        let environment = read(&[]).unwrap();
        let id = &environment.skald.id;
        assert!(id.len() == 12 && id.starts_with("skalds-"), "{id}");
        assert!(id[7..].chars().all(|digit| digit.is_ascii_hexdigit()));
        assert_eq!(environment.skald.mode, SkaldMode::Node);
        assert_eq!((environment.skald.yaml_file, environment.skald.task_worker_retry), (None, -1));
        assert_eq!(environment.log.retention, Duration::from_secs(3 * 86_400));
        assert_eq!((environment.log.path.as_str(), environment.log.rotation_mb), ("logs", 10));
        assert_eq!((environment.redis.host.as_deref(), environment.redis.port), (Some("localhost"), 6379));
        assert_eq!(environment.redis.sync_period, Duration::from_secs(3));
        assert_eq!(environment.redis.key_ttl, Duration::from_secs(3600));
        assert_eq!((environment.kafka.port, environment.kafka.topic_partitions), (9092, 6));
        assert_eq!(environment.kafka.replication_factor, 3);
        assert_eq!(environment.mongo.url.expose(), "mongodb://root:root@localhost:27017/");
        assert_eq!(environment.mongo.database, "skalds");
        assert_eq!(environment.controller.mode, ControllerMode::Controller);
        assert_eq!((environment.controller.host.as_str(), environment.controller.port), ("0.0.0.0", 8000));
        assert_eq!(environment.controller.skald_interval, Duration::from_secs(5));
        assert_eq!(environment.controller.task_interval, Duration::from_secs(3));
        assert_eq!(environment.controller.heartbeat_timeout, Duration::from_secs(5));
        assert_eq!(environment.controller.dispatcher_interval, Duration::from_secs(5));
        assert_eq!(environment.controller.strategy, DispatchStrategy::LeastTasks);
    }

    #[test]
    fn every_variable_is_read() {
        let environment = read(&[
            ("SKALD_ID", "a"),
            ("SKALD_ENV", "production"),
            ("SKALD_MODE", "Edge"),
            ("LOG_LEVEL", "success"),
            ("LOG_RETENTION", "12h"),
            ("LOG_SPLIT_WITH_WORKER_ID", "YES"),
            ("YAML_FILE", "w.yml"),
            ("REDIS_HOST", ""),
            ("REDIS_PORT", "7000"),
            ("REDIS_PASSWORD", "hunter2"),
            ("KAFKA_PASSWORD", "hunter2"),
            ("MONGO_HOST", "mongodb://u:hunter2@h/"),
            ("TASK_WORKER_RETRY", "4"),
            ("SYSTEM_CONTROLLER_MODE", "dispatcher"),
            ("DISPATCHER_STRATEGY", "ROUND_ROBIN"),
            ("MONITOR_TASK_INTERVAL", " 7 "),
        ])
        .unwrap();
        assert_eq!((environment.skald.id.as_str(), environment.skald.env), ("a", SkaldEnv::Production));
        assert_eq!((environment.skald.mode, environment.skald.task_worker_retry), (SkaldMode::Edge, 4));
        assert_eq!(environment.log.level, LogLevel::Success);
        assert_eq!(environment.log.retention, Duration::from_secs(12 * 3600));
        assert!(environment.log.split_with_worker_id);
        assert_eq!(environment.redis.host, None, "set to nothing is none, absent is localhost");
        assert_eq!(environment.redis.port, 7000);
        assert_eq!(environment.redis.password.expose(), "hunter2");
        assert_eq!(environment.controller.mode, ControllerMode::Dispatcher);
        assert_eq!(environment.controller.strategy, DispatchStrategy::RoundRobin);
        assert_eq!(environment.controller.task_interval, Duration::from_secs(7));
        assert!(!format!("{environment:?}").contains("hunter2"));
    }

    #[test]
    fn all_that_is_wrong_is_told_at_once() {
        let error = read(&[
            ("REDIS_PORT", "sixthousand"),
            ("SKALD_MODE", "cloud"),
            ("MONITOR_SKALD_INTERVAL", "0"),
            ("LOG_RETENTION", "3 fortnights"),
            ("SKALD_ID", "a\nb"),
            ("LOG_SPLIT_WITH_WORKER_ID", "maybe"),
        ])
        .unwrap_err();
        assert_eq!(error.0.len(), 6);
        let text = error.to_string();
        for says in [
            "REDIS_PORT is \"sixthousand\", expected a whole number from 1 to 65535",
            "SKALD_MODE is \"cloud\", expected node, edge, single_process",
            "MONITOR_SKALD_INTERVAL is \"0\", expected a whole number from 1 to ",
            "LOG_RETENTION is \"3 fortnights\", expected a period",
            "SKALD_ID is \"a\\nb\", expected a plain name",
        ] {
            assert!(text.contains(says), "{text:?} should say {says:?}");
        }
    }
}
