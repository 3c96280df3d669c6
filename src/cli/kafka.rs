//! Which Kafka carries events, from the command line and the environment.

use std::path::PathBuf;

use crate::backend::kafka::{KafkaEvents, KafkaOptions, KafkaTls, SaslMechanism};
use crate::config::env::Environment;

use super::exit::Failure;

/// Where events travel, for processes that share them.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Backends")]
pub(crate) struct KafkaArgs {
    /// Send events over these Kafka brokers instead of inside this process; else KAFKA_HOST and KAFKA_PORT are used when
    /// KAFKA_HOST is set. KAFKA_USERNAME, KAFKA_PASSWORD, KAFKA_TOPIC_PARTITIONS and KAFKA_REPLICATION_FACTOR say the rest
    #[arg(long, value_name = "HOST:PORT[,…]")]
    kafka: Option<String>,
    /// Speak TLS to the brokers
    #[arg(long)]
    kafka_tls: bool,
    /// A PEM file with the authorities to believe, and TLS; else the system's are believed
    #[arg(long, value_name = "FILE")]
    kafka_ca: Option<PathBuf>,
    /// How KAFKA_PASSWORD is shown: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512
    #[arg(long, value_name = "MECHANISM", default_value = "PLAIN", value_parser = mechanism)]
    kafka_sasl: SaslMechanism,
    /// Keep events that Kafka has not acknowledged in this folder, which no other process may use; else in memory
    #[arg(long, value_name = "FOLDER")]
    kafka_outbox: Option<PathBuf>,
}

fn mechanism(text: &str) -> Result<SaslMechanism, String> {
    match text.to_ascii_uppercase().as_str() {
        "PLAIN" => Ok(SaslMechanism::Plain),
        "SCRAM-SHA-256" => Ok(SaslMechanism::ScramSha256),
        "SCRAM-SHA-512" => Ok(SaslMechanism::ScramSha512),
        _ => Err("it is PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512".into()),
    }
}

impl KafkaArgs {
    /// Opens what was named; `None` when nothing was.
    pub(crate) fn open(&self) -> Result<Option<KafkaEvents>, Failure> {
        self.options(|name| std::env::var(name).ok())?
            .map(|options| KafkaEvents::open(options).map_err(Failure::failed))
            .transpose()
    }

    fn options(&self, lookup: impl Fn(&str) -> Option<String>) -> Result<Option<KafkaOptions>, Failure> {
        let settings = Environment::read(&lookup).map_err(Failure::usage)?.kafka;
        let options = match &self.kafka {
            Some(brokers) => KafkaOptions::new(brokers).with_settings(&settings),
            // Its default is for the Python package: here, nobody asked for Kafka.
            None if lookup("KAFKA_HOST").is_none() => return self.unasked(),
            None => match KafkaOptions::from_settings(&settings) {
                Some(options) => options,
                None => return self.unasked(),
            },
        };
        let tls = self.kafka_tls || self.kafka_ca.is_some();
        Ok(Some(KafkaOptions {
            mechanism: self.kafka_sasl,
            tls: tls.then(|| KafkaTls { ca_file: self.kafka_ca.clone() }),
            outbox: self.kafka_outbox.clone(),
            ..options
        }))
    }

    fn unasked(&self) -> Result<Option<KafkaOptions>, Failure> {
        if self.kafka_tls || self.kafka_ca.is_some() || self.kafka_outbox.is_some() {
            return Err(Failure::usage(
                "name the brokers that the other options are about: --kafka (or KAFKA_HOST)",
            ));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(args: &KafkaArgs, pairs: &[(&str, &str)]) -> Result<Option<KafkaOptions>, Failure> {
        args.options(|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn brokers_are_named_by_the_option_or_by_the_environment() {
        let none = KafkaArgs::default();
        assert_eq!(options(&none, &[]).unwrap(), None);
        assert_eq!(options(&none, &[("KAFKA_HOST", "")]).unwrap(), None);
        let found = options(&none, &[("KAFKA_HOST", "k"), ("KAFKA_PORT", "7")]).unwrap().unwrap();
        assert_eq!((found.brokers.as_str(), &found.tls), ("k:7", &None));
        let named = KafkaArgs {
            kafka: Some("a:1,b:2".into()),
            kafka_ca: Some("ca.pem".into()),
            kafka_sasl: mechanism("scram-sha-512").unwrap(),
            ..KafkaArgs::default()
        };
        let environment = [("KAFKA_HOST", "k"), ("KAFKA_USERNAME", "me"), ("KAFKA_PASSWORD", "p")];
        let found = options(&named, &environment).unwrap().unwrap();
        assert_eq!((found.brokers.as_str(), found.username.as_str()), ("a:1,b:2", "me"));
        assert_eq!(found.mechanism, SaslMechanism::ScramSha512);
        assert_eq!(found.tls.unwrap().ca_file.unwrap().to_str(), Some("ca.pem"));
        let lonely = KafkaArgs { kafka_tls: true, ..KafkaArgs::default() };
        assert!(options(&lonely, &[]).unwrap_err().to_string().contains("--kafka"));
        assert!(options(&none, &[("KAFKA_PORT", "0"), ("KAFKA_HOST", "k")]).is_err());
        assert!(mechanism("GSSAPI").is_err());
    }
}
