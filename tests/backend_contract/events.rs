//! What every `EventQueue` must do.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use skalds::backend::embedded::{EmbeddedEvents, EventLimits};
use skalds::backend::{BackendError, Delivery, Event, EventQueue, EventSubscription};

/// A queue, and what the cases must know about where they run.
pub(crate) struct Subject<'a> {
    pub(crate) queue: &'a dyn EventQueue,
    /// Stands in the names of groups and topics: they outlive a test on a broker.
    pub(crate) run: String,
    /// A new group begins exactly at the end. One of the brokers gives it the last event from before, too.
    pub(crate) end_is_exact: bool,
}

impl Subject<'_> {
    pub(crate) fn name(&self, name: &str) -> String {
        format!("{name}-{}", self.run)
    }

    fn event(&self, topic: &str, key: &str, value: &str) -> Event {
        event(&self.name(topic), key, value)
    }

    async fn subscribe(&self, group: &str, topics: &[&str]) -> Box<dyn EventSubscription> {
        let topics: Vec<String> = topics.iter().map(|topic| self.name(topic)).collect();
        let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
        self.queue.subscribe(&self.name(group), &topics).await.unwrap()
    }

    async fn publish(&self, events: &[Event]) {
        self.queue.publish(events).await.unwrap();
    }
}

pub(crate) fn event(topic: &str, key: &str, value: &str) -> Event {
    Event { topic: topic.into(), key: key.into(), value: value.into() }
}

/// The next event. A test that waits for one that never comes fails here.
pub(crate) async fn next(subscription: &mut Box<dyn EventSubscription>) -> Event {
    let delivery = tokio::time::timeout(Duration::from_secs(60), subscription.next());
    match delivery.await.expect("an event comes").unwrap().unwrap() {
        Delivery::Event(event) => event,
        Delivery::Lagged { missed } => panic!("{missed} events were missed"),
    }
}

/// The values of each key of each topic, in their order.
fn by_key(events: &[Event]) -> BTreeMap<(&str, &[u8]), Vec<&[u8]>> {
    let mut values: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for event in events {
        values.entry((event.topic.as_str(), &event.key[..])).or_default().push(&event.value[..]);
    }
    values
}

async fn each_group_sees_every_event_of_its_topics_and_each_key_in_order(on: &Subject<'_>) {
    on.publish(&[on.event("a", "k", "before anybody listened")]).await;
    let mut one = on.subscribe("one", &["a", "b"]).await;
    let mut two = on.subscribe("two", &["b"]).await;
    let events: Vec<Event> = (0..200)
        .map(|n| on.event(if n % 2 == 0 { "a" } else { "b" }, &format!("k{}", n % 7), &n.to_string()))
        .collect();
    for some in events.chunks(30) {
        on.publish(some).await;
    }
    let mut seen = Vec::new();
    while seen.len() < events.len() {
        let event = next(&mut one).await;
        let early = event.value == b"before anybody listened";
        assert!(!(early && on.end_is_exact), "a new group sees what was published before it");
        if !early {
            seen.push(event);
        }
    }
    assert_eq!(by_key(&seen), by_key(&events));
    let of_b: Vec<Event> = events.iter().filter(|event| event.topic == on.name("b")).cloned().collect();
    seen.clear();
    while seen.len() < of_b.len() {
        seen.push(next(&mut two).await);
    }
    assert_eq!(by_key(&seen), by_key(&of_b));
    assert!(two.next().now_or_never().is_none(), "nothing comes twice");
}

async fn what_was_not_handled_comes_again(on: &Subject<'_>) {
    let mut first = on.subscribe("again", &["c"]).await;
    for n in 0..5 {
        on.publish(&[on.event("c", "k", &n.to_string())]).await;
    }
    assert_eq!(next(&mut first).await.value, b"0");
    first.handled().await.unwrap();
    assert_eq!(next(&mut first).await.value, b"1");
    assert_eq!(next(&mut first).await.value, b"2");
    drop(first);
    // Nobody is subscribed now; the group is still there.
    on.publish(&[on.event("c", "k", "5")]).await;
    let mut heir = on.subscribe("again", &["c"]).await;
    for n in 1..6 {
        assert_eq!(next(&mut heir).await.value, n.to_string().into_bytes());
    }
}

/// Closes the queue.
async fn readers_of_one_group_share_and_keep_the_order_of_each_key(on: &Subject<'_>) {
    const KEYS: usize = 20;
    const EACH: usize = 25;
    let read = AtomicUsize::new(0);
    let mut readers = Vec::new();
    for _ in 0..3 {
        let mut reader = on.subscribe("shared", &["d"]).await;
        let read = &read;
        readers.push(async move {
            let mut last = HashMap::new();
            let mut own = 0;
            while let Some(delivery) = reader.next().await {
                let Delivery::Event(event) = delivery.unwrap() else { panic!("nothing is missed") };
                let n: usize = String::from_utf8(event.value).unwrap().parse().unwrap();
                if let Some(before) = last.insert(event.key.clone(), n) {
                    assert!(before < n, "{:?}: {before} before {n}", event.key);
                }
                own += 1;
                // Others run while this one is busy with the event.
                tokio::task::yield_now().await;
                reader.handled().await.unwrap();
                if read.fetch_add(1, Ordering::Relaxed) + 1 == KEYS * EACH {
                    on.queue.close().await.unwrap();
                }
            }
            own
        });
    }
    for n in 0..EACH {
        let all: Vec<Event> = (0..KEYS).map(|key| on.event("d", &key.to_string(), &n.to_string())).collect();
        on.publish(&all).await;
    }
    let all = tokio::time::timeout(Duration::from_secs(60), futures_util::future::join_all(readers));
    let shares: Vec<usize> = all.await.expect("all events come");
    assert_eq!(shares.iter().sum::<usize>(), KEYS * EACH);
    assert!(shares.iter().all(|share| *share > 0), "{shares:?}");
}

/// Closes the queue. What was sent is read by its reader, or by who opens the queue after it.
async fn after_close_what_was_sent_is_read_and_nothing_more_is_taken(
    on: &Subject<'_>,
    again: Option<&Subject<'_>>,
) {
    let mut reader = on.subscribe("closing", &["e"]).await;
    on.publish(&[on.event("e", "k", "last")]).await;
    assert!(on.queue.ping().await.is_ok());
    on.queue.close().await.unwrap();
    let refused = on.queue.publish(&[on.event("e", "k", "too late")]).await;
    assert!(matches!(refused, Err(BackendError::Closed(_))), "{refused:?}");
    assert!(on.queue.subscribe("new", &["e"]).await.is_err());
    assert!(on.queue.ping().await.is_err());
    match again {
        None => assert_eq!(next(&mut reader).await.value, b"last"),
        Some(again) => {
            let mut heir = again.subscribe("closing", &["e"]).await;
            assert_eq!(next(&mut heir).await.value, b"last");
        }
    }
    assert!(reader.next().await.is_none());
}

/// Everything that is promised of any queue. `again` is the first one, opened again.
pub(crate) async fn keeps_the_contract(
    first: &Subject<'_>,
    second: &Subject<'_>,
    again: Option<&Subject<'_>>,
) {
    each_group_sees_every_event_of_its_topics_and_each_key_in_order(first).await;
    what_was_not_handled_comes_again(first).await;
    after_close_what_was_sent_is_read_and_nothing_more_is_taken(first, again).await;
    readers_of_one_group_share_and_keep_the_order_of_each_key(second).await;
}

#[tokio::test]
async fn embedded_keeps_the_contract() {
    let (first, second) = (EmbeddedEvents::new(), EmbeddedEvents::new());
    let subject = |queue| Subject { queue, run: String::new(), end_is_exact: true };
    keeps_the_contract(&subject(&first), &subject(&second), None).await;
}

#[tokio::test]
async fn a_reader_that_lags_is_told_how_many_it_missed_and_goes_on() {
    let queue = EmbeddedEvents::with_limits(EventLimits { events: 10, ..EventLimits::default() });
    let mut reader = queue.subscribe("slow", &["t"]).await.unwrap();
    for n in 0..25 {
        queue.publish(&[event("t", "k", &n.to_string())]).await.unwrap();
    }
    assert_eq!(reader.next().await.unwrap().unwrap(), Delivery::Lagged { missed: 15 });
    for n in 15..25 {
        assert_eq!(next(&mut reader).await.value, n.to_string().into_bytes());
    }
    let huge = Event { topic: "t".into(), key: b"k".to_vec(), value: vec![0; 17 << 20] };
    let refused = queue.publish(&[huge]).await;
    assert!(matches!(refused, Err(BackendError::Full { .. })), "{refused:?}");
}

#[tokio::test]
async fn groups_are_bounded_and_one_that_was_forgotten_is_told() {
    let queue = EmbeddedEvents::with_limits(EventLimits { groups: 2, ..EventLimits::default() });
    let first = queue.subscribe("first", &["t"]).await.unwrap();
    let _second = queue.subscribe("second", &["t"]).await.unwrap();
    let refused = queue.subscribe("third", &["t"]).await;
    assert!(matches!(refused, Err(BackendError::Full { .. })));
    drop(first);
    let third = queue.subscribe("third", &["t"]).await.unwrap();
    drop(third);
    let mut again = queue.subscribe("first", &["t"]).await.unwrap();
    assert_eq!(again.next().await.unwrap().unwrap(), Delivery::Lagged { missed: 0 });
}

#[tokio::test]
async fn dropping_the_queue_ends_its_readers() {
    let queue = EmbeddedEvents::new();
    let mut reader = queue.subscribe("g", &["t"]).await.unwrap();
    let waiting = tokio::spawn(async move { reader.next().await.is_none() });
    tokio::task::yield_now().await;
    drop(queue);
    assert!(waiting.await.unwrap());
}
