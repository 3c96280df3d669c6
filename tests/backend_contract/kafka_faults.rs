//! What goes wrong between a process and Kafka: brokers that die, hang, forget and refuse; processes that die, come
//! and go.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdkafka::mocking::MockCluster;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use skalds::backend::kafka::{KafkaEvents, KafkaOptions, KafkaTls, MAX_EVENT};
use skalds::backend::{BackendError, Delivery, Event, EventQueue, EventSubscription};
use skalds::config::secret::Secret;

use crate::events::{event, next};
use crate::kafka::{open, options};
use crate::support::{Broker, KafkaServer, Process, wait_until_async};

const SOON: Duration = Duration::from_secs(60);

/// Waits half a second for the broker instead of three.
fn hasty(server: &KafkaServer) -> KafkaOptions {
    let half = Duration::from_millis(500);
    KafkaOptions { ack_wait: half, request_wait: 3 * half, ..options(server) }
}

fn number(event: &Event) -> usize {
    std::str::from_utf8(&event.value).unwrap().parse().unwrap()
}

async fn all_acknowledged(events: &KafkaEvents) {
    wait_until_async(SOON, "all events to be acknowledged", || async { events.unacknowledged() == 0 }).await;
}

/// Stands in a log where the reader was told that it missed something.
const LAGGED: &[u8] = b"lagged";

/// What readers have handled, in the order in which they did.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Entries>>);

/// A key and the number that its event carried.
type Entries = Vec<(Vec<u8>, usize)>;

impl Log {
    fn read(&self, mut reader: Box<dyn EventSubscription>) -> tokio::task::JoinHandle<u64> {
        let log = self.0.clone();
        tokio::spawn(async move {
            let mut lagged = 0;
            while let Some(delivery) = reader.next().await {
                match delivery.unwrap() {
                    Delivery::Event(event) => {
                        let n = number(&event);
                        log.lock().unwrap().push((event.key, n));
                    }
                    Delivery::Lagged { .. } => {
                        log.lock().unwrap().push((LAGGED.into(), 0));
                        lagged += 1;
                    }
                }
                reader.handled().await.unwrap();
            }
            lagged
        })
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Every number of each key is there. A key counts up from 0; it may go back, which is an event that came again, and
    /// skips only after the reader was told that it missed something.
    fn assert_nothing_lost(&self, keys: usize, each: usize) {
        let log = self.0.lock().unwrap();
        let mut next: HashMap<&[u8], usize> = HashMap::new();
        let mut told = false;
        for (key, n) in log.iter() {
            if key == LAGGED {
                next.clear();
                told = true;
                continue;
            }
            let expected = next.entry(key).or_insert(if told { *n } else { 0 });
            assert!(*n <= *expected, "{key:?}: {n} when {expected} was to come: {log:?}");
            *expected = (*expected).max(n + 1);
        }
        let seen: HashSet<&(Vec<u8>, usize)> = log.iter().collect();
        for key in 0..keys {
            for n in 0..each {
                assert!(seen.contains(&(key.to_string().into_bytes(), n)), "{key}: no {n}");
            }
        }
    }

    async fn has_all(&self, keys: usize, each: usize) {
        wait_until_async(SOON, "all events to be read", || async {
            let log = self.0.lock().unwrap();
            (0..keys).all(|key| log.contains(&(key.to_string().into_bytes(), each - 1)))
        })
        .await;
        self.assert_nothing_lost(keys, each);
    }
}

/// The `n`th event of each key.
fn round(topic: &str, keys: usize, n: usize) -> Vec<Event> {
    (0..keys).map(|key| event(topic, &key.to_string(), &n.to_string())).collect()
}

#[tokio::test]
async fn what_is_published_while_the_broker_is_dead_is_sent_in_order_when_it_is_back() {
    for broker in Broker::ALL {
        let mut server = KafkaServer::start(broker);
        let events = KafkaEvents::open(hasty(&server)).unwrap();
        let log = Log::default();
        let reader = log.read(events.subscribe("g", &["t"]).await.unwrap());
        for n in 0..5 {
            events.publish(&round("t", 7, n)).await.unwrap();
        }
        log.has_all(7, 5).await;
        tokio::time::sleep(Duration::from_millis(1_500)).await; // positions are committed every second
        server.kill_hard();
        for n in 5..10 {
            let start = Instant::now();
            let kept = events.publish(&round("t", 7, n)).await;
            assert!(start.elapsed() < Duration::from_secs(2), "{broker:?}: {:?}", start.elapsed());
            let Err(BackendError::Unavailable { reason, .. }) = kept else { panic!("{broker:?}: {kept:?}") };
            assert!(reason.contains("kept in memory"), "{reason}");
        }
        assert!(matches!(events.ping().await, Err(BackendError::Unavailable { .. })));
        assert_eq!(events.unacknowledged(), 35);
        server.restart();
        all_acknowledged(&events).await;
        for n in 10..15 {
            events.publish(&round("t", 7, n)).await.unwrap();
        }
        log.has_all(7, 15).await;
        events.close().await.unwrap();
        let lagged = reader.await.unwrap();
        // Who forgets the topic forgets what stood in it: a reader has to know.
        assert_eq!(lagged > 0, broker == Broker::Tansu, "{broker:?}: lagged {lagged} times");
    }
}

#[tokio::test]
async fn a_broker_that_hangs_holds_nobody_up() {
    for broker in Broker::ALL {
        let server = KafkaServer::start(broker);
        let events = KafkaEvents::open(hasty(&server)).unwrap();
        let log = Log::default();
        let _reader = log.read(events.subscribe("g", &["t"]).await.unwrap());
        events.publish(&round("t", 3, 0)).await.unwrap();
        server.freeze();
        let start = Instant::now();
        assert!(matches!(events.publish(&round("t", 3, 1)).await, Err(BackendError::Unavailable { .. })));
        assert!(matches!(events.publish(&round("t", 3, 2)).await, Err(BackendError::Unavailable { .. })));
        assert!(matches!(events.ping().await, Err(BackendError::Unavailable { .. })));
        let refused = events.subscribe("other", &["t"]).await.err().unwrap();
        assert!(matches!(refused, BackendError::Unavailable { .. }), "{refused}");
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        server.thaw();
        all_acknowledged(&events).await;
        log.has_all(3, 3).await;
    }
}

/// The test starts itself as the process that is killed.
#[tokio::test]
async fn what_was_published_into_a_folder_survives_kill_9() {
    const CHILD: &str = "SKALDS_TEST_OUTBOX";
    if let Ok(place) = std::env::var(CHILD) {
        let (address, folder) = place.split_once(' ').unwrap();
        let outbox = Some(folder.into());
        let ack_wait = Duration::from_millis(300);
        let options = KafkaOptions { replication: 1, outbox, ack_wait, ..KafkaOptions::new(address) };
        let events = KafkaEvents::open(options).unwrap();
        for n in 0..20 {
            events.publish(&round("t", 5, n)).await.unwrap();
        }
        println!("\nready published"); // a line of its own, whatever the harness has written
        std::future::pending::<()>().await;
    }
    let mut server = KafkaServer::start(Broker::Noida);
    let events = open(&server);
    let log = Log::default();
    let _reader = log.read(events.subscribe("g", &["t"]).await.unwrap());
    server.kill_hard();
    let folder = tempfile::tempdir().unwrap();
    let place = format!("{} {}", server.address(), folder.path().display());
    let name = "kafka_faults::what_was_published_into_a_folder_survives_kill_9";
    let mut child = Process::this_test(name, &[(CHILD, &place)]);
    child.ready(SOON);
    child.kill_hard();
    server.restart();
    let outbox = Some(folder.path().to_owned());
    let heir = KafkaEvents::open(KafkaOptions { outbox: outbox.clone(), ..options(&server) }).unwrap();
    log.has_all(5, 20).await;
    all_acknowledged(&heir).await;
    heir.close().await.unwrap();
    drop(heir);
    let read = log.len();
    let after = KafkaEvents::open(KafkaOptions { outbox, ..options(&server) }).unwrap();
    assert_eq!(after.unacknowledged(), 0, "what was sent is not kept");
    after.publish(&round("t", 5, 20)).await.unwrap();
    log.has_all(5, 21).await;
    assert_eq!(log.len(), read + 5);
}

#[tokio::test]
async fn nothing_is_lost_or_skipped_when_processes_of_a_group_come_and_go() {
    for broker in Broker::ALL {
        const KEYS: usize = 12;
        let server = KafkaServer::start(broker);
        let publisher = open(&server);
        let log = Log::default();
        let first = open(&server);
        let one = log.read(first.subscribe("g", &["t"]).await.unwrap());
        let second = open(&server);
        let two = Log::default();
        let mut n = 0;
        let mut joined = None;
        // Goes on publishing until the second one has read something too.
        let start = Instant::now();
        while two.len() < 2 * KEYS {
            publisher.publish(&round("t", KEYS, n)).await.unwrap();
            n += 1;
            if n == 3 {
                let (both, own) = (log.clone(), two.clone());
                let mut reader = second.subscribe("g", &["t"]).await.unwrap();
                joined = Some(tokio::spawn(async move {
                    while let Some(delivery) = reader.next().await {
                        let Delivery::Event(event) = delivery.unwrap() else { panic!("nothing is missed") };
                        let entry = (event.key.clone(), number(&event));
                        both.0.lock().unwrap().push(entry.clone());
                        own.0.lock().unwrap().push(entry);
                        reader.handled().await.unwrap();
                    }
                }));
            }
            assert!(start.elapsed() < SOON, "{broker:?}: the second process gets nothing");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // The first one leaves; the second goes on with everything.
        first.close().await.unwrap();
        assert_eq!(one.await.unwrap(), 0, "nothing was missed");
        for _ in 0..10 {
            publisher.publish(&round("t", KEYS, n)).await.unwrap();
            n += 1;
        }
        log.has_all(KEYS, n).await;
        second.close().await.unwrap();
        joined.unwrap().await.unwrap();
    }
}

#[tokio::test]
async fn a_slow_reader_loses_nothing_and_its_queue_is_bounded() {
    let server = KafkaServer::start(Broker::Noida);
    let publisher = open(&server);
    let events = KafkaEvents::open(KafkaOptions { events: 40, ..options(&server) }).unwrap();
    let mut reader = events.subscribe("g", &["t"]).await.unwrap();
    for n in 0..100 {
        publisher.publish(&round("t", 10, n)).await.unwrap();
    }
    let mut furthest = HashMap::new();
    for read in 0..1_000 {
        let event = next(&mut reader).await;
        let so_far = furthest.entry(event.key.clone()).or_insert(0);
        assert_eq!(number(&event), *so_far, "{:?}", event.key);
        *so_far += 1;
        if read % 10 == 0 {
            reader.handled().await.unwrap();
        }
    }
    let refused = events.publish(&round("t", 41, 0)).await;
    assert!(matches!(refused, Err(BackendError::Full { .. })), "{refused:?}");
}

#[tokio::test]
async fn any_bytes_travel_and_what_is_too_large_is_refused_at_once() {
    for broker in Broker::ALL {
        let server = KafkaServer::start(broker);
        let events = open(&server);
        let mut reader = events.subscribe("g \u{fffd}\u{1f980}", &["t.x_-1"]).await.unwrap();
        let of = |key: &[u8], value: Vec<u8>| Event { topic: "t.x_-1".into(), key: key.to_vec(), value };
        for sent in [of(b"", vec![]), of(&[0, 255, 10], vec![0; 3]), of(&[7; 5_000], vec![255; 900_000])] {
            events.publish(std::slice::from_ref(&sent)).await.unwrap();
            assert_eq!(next(&mut reader).await, sent);
        }
        let huge = events.publish(&[of(b"k", vec![0; MAX_EVENT])]).await;
        assert!(matches!(huge, Err(BackendError::Full { .. })), "{huge:?}");
        let nameless = events.publish(&[event("no such\ntopic", "k", "v")]).await;
        assert!(nameless.is_err());
    }
}

#[tokio::test]
async fn what_a_broker_does_not_speak_is_said_and_passwords_are_not() {
    // The other one takes any user.
    let server = KafkaServer::start(Broker::Tansu);
    let user = KafkaOptions { username: "me".into(), password: Secret::new("hunter2"), ..hasty(&server) };
    let tls = KafkaOptions { tls: Some(KafkaTls::default()), ..hasty(&server) };
    let nobody = KafkaOptions { brokers: "127.0.0.1:1".into(), ..hasty(&server) };
    for (options, says) in [(user, "SASL"), (tls, ""), (nobody, "Connection refused")] {
        let start = Instant::now();
        let events = KafkaEvents::open(options).unwrap();
        let mut error = events.publish(&[event("t", "k", "v")]).await.unwrap_err().to_string();
        // The first word of a broken connection may come a little later.
        let end = Instant::now() + Duration::from_secs(5);
        while !error.contains(says) && Instant::now() < end {
            error = events.ping().await.unwrap_err().to_string();
        }
        assert!(error.contains(says) && error.contains("127.0.0.1"), "{error} should say {says}");
        assert!(!error.contains("hunter2"), "{error}");
        let refused = events.subscribe("g", &["t"]).await.err().unwrap().to_string();
        assert!(!refused.contains("hunter2"), "{refused}");
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    }
}

#[tokio::test]
async fn replicas_that_a_cluster_cannot_hold_are_refused_with_what_to_do() {
    let cluster = MockCluster::new(1).unwrap();
    let events = KafkaEvents::open(KafkaOptions::new(cluster.bootstrap_servers())).unwrap();
    match events.subscribe("g", &["t"]).await {
        Ok(_) => panic!("three replicas on one broker"),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

#[tokio::test]
async fn errors_of_a_broker_neither_lose_nor_reorder_what_is_published() {
    use RDKafkaRespErr::*;
    for (name, errors) in [
        ("passing", vec![RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION, RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT]),
        ("sequence", vec![RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER]),
        ("fenced", vec![RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH]),
        ("unknown", vec![RD_KAFKA_RESP_ERR_UNKNOWN_PRODUCER_ID]),
    ] {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("t", 4, 1).unwrap();
        let options = KafkaOptions { replication: 1, ..KafkaOptions::new(cluster.bootstrap_servers()) };
        let events = KafkaEvents::open(options.clone()).unwrap();
        let other = KafkaEvents::open(options).unwrap();
        let log = Log::default();
        let _reader = log.read(other.subscribe("g", &["t"]).await.unwrap());
        for n in 0..30 {
            if n == 10 {
                cluster.request_errors(RDKafkaApiKey::Produce, &errors);
            }
            events.publish(&round("t", 5, n)).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        log.has_all(5, 30).await;
    }
}
