//! Topics exist before they are used, with the partitions and replicas that were asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::{Client, ClientContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use super::failure::{LastWord, Listener};
use super::options::KafkaOptions;
use crate::backend::BackendError;

/// How often it is looked whether a topic that was just made can be used.
const LOOK: Duration = Duration::from_millis(20);

/// The partitions of each topic.
pub(super) type Partitions = BTreeMap<String, i32>;

/// Makes the topics that are missing and answers how many partitions each has. Blocks: never called where others wait.
///
/// All topics are listed rather than asked for by name: asking for one by name makes some brokers create it, with a
/// number of partitions of their own.
pub(super) fn ensure<C: ClientContext>(
    client: &Client<C>,
    topics: &BTreeSet<String>,
    options: &KafkaOptions,
    last: &LastWord,
) -> Result<Partitions, BackendError> {
    let end = Instant::now() + options.request_wait;
    let mut made = false;
    loop {
        let left = end.saturating_duration_since(Instant::now()).max(LOOK);
        let metadata =
            client.fetch_metadata(None, left).map_err(|error| last.failed("list topics", &error))?;
        last.forget();
        let mut found = Partitions::new();
        for topic in metadata.topics() {
            let usable = topic.error().is_none() && !topic.partitions().is_empty();
            if usable && topics.contains(topic.name()) {
                found.insert(topic.name().to_owned(), topic.partitions().len() as i32);
            }
        }
        let missing: Vec<&str> =
            topics.iter().map(String::as_str).filter(|topic| !found.contains_key(*topic)).collect();
        if missing.is_empty() {
            return Ok(found);
        }
        if !made {
            create(&missing, options, last, left)?;
            made = true;
            continue;
        }
        if Instant::now() >= end {
            let action = format!("create the topics {}", missing.join(", "));
            return Err(last.silence(&action, ": they are created and do not appear"));
        }
        std::thread::sleep(LOOK);
    }
}

fn create(
    topics: &[&str],
    options: &KafkaOptions,
    last: &LastWord,
    wait: Duration,
) -> Result<(), BackendError> {
    let action = |topic: &str| {
        format!(
            "create the topic {topic} with {} partitions of {} replicas",
            options.partitions, options.replication
        )
    };
    let failed = |error: &KafkaError| last.failed(&action(&topics.join(", ")), error);
    let admin: AdminClient<Listener> =
        options.client().create_with_context(Listener(last.clone())).map_err(|error| failed(&error))?;
    let (partitions, replicas) = (i32::from(options.partitions), i32::from(options.replication));
    let replicas = || TopicReplication::Fixed(replicas);
    let wanted: Vec<NewTopic<'_>> =
        topics.iter().map(|topic| NewTopic::new(topic, partitions, replicas())).collect();
    let within = AdminOptions::new().request_timeout(Some(wait)).operation_timeout(Some(wait));
    let answers =
        block_on(admin.create_topics(&wanted, &within), &failed)?.map_err(|error| failed(&error))?;
    for answer in answers {
        match answer {
            Ok(_) | Err((_, Code::TopicAlreadyExists)) => {}
            Err((topic, code)) => {
                return Err(last.answered(&action(&topic), code));
            }
        }
    }
    Ok(())
}

/// The administration answers through a future that needs no reactor.
fn block_on<F: Future>(
    future: F,
    failed: &impl Fn(&KafkaError) -> BackendError,
) -> Result<F::Output, BackendError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .map_err(|error| failed(&KafkaError::AdminOpCreation(error.to_string())))?;
    Ok(runtime.block_on(future))
}
