//! What every `EventQueue` must do.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use skalds::backend::embedded::{EmbeddedEvents, EventLimits};
use skalds::backend::{BackendError, Delivery, Event, EventQueue, EventSubscription};

fn event(topic: &str, key: &str, value: &str) -> Event {
    Event { topic: topic.into(), key: key.into(), value: value.into() }
}

async fn next(subscription: &mut Box<dyn EventSubscription>) -> Event {
    match subscription.next().await.unwrap().unwrap() {
        Delivery::Event(event) => event,
        Delivery::Lagged { missed } => panic!("{missed} events were missed"),
    }
}

async fn each_group_sees_every_event_of_its_topics_in_order(queue: &dyn EventQueue) {
    queue.publish(&[event("a", "k", "before anybody listened")]).await.unwrap();
    let mut one = queue.subscribe("one", &["a", "b"]).await.unwrap();
    let mut two = queue.subscribe("two", &["b"]).await.unwrap();
    let events: Vec<Event> = (0..200)
        .map(|n| event(if n % 2 == 0 { "a" } else { "b" }, &format!("k{}", n % 7), &n.to_string()))
        .collect();
    for some in events.chunks(30) {
        queue.publish(some).await.unwrap();
    }
    for expected in &events {
        assert_eq!(next(&mut one).await, *expected);
    }
    for expected in events.iter().filter(|event| event.topic == "b") {
        assert_eq!(next(&mut two).await, *expected);
    }
}

async fn what_was_not_handled_comes_again(queue: &dyn EventQueue) {
    let mut first = queue.subscribe("again", &["c"]).await.unwrap();
    for n in 0..5 {
        queue.publish(&[event("c", "k", &n.to_string())]).await.unwrap();
    }
    assert_eq!(next(&mut first).await.value, b"0");
    first.handled().await.unwrap();
    assert_eq!(next(&mut first).await.value, b"1");
    assert_eq!(next(&mut first).await.value, b"2");
    drop(first);
    // Nobody is subscribed now; the group is still there.
    queue.publish(&[event("c", "k", "5")]).await.unwrap();
    let mut heir = queue.subscribe("again", &["c"]).await.unwrap();
    for n in 1..6 {
        assert_eq!(next(&mut heir).await.value, n.to_string().into_bytes());
    }
}

/// Closes the queue.
async fn readers_of_one_group_share_and_keep_the_order_of_each_key(queue: &dyn EventQueue) {
    const KEYS: usize = 20;
    const EACH: usize = 25;
    let read = AtomicUsize::new(0);
    let mut readers = Vec::new();
    for _ in 0..3 {
        let mut reader = queue.subscribe("shared", &["d"]).await.unwrap();
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
                    queue.close().await.unwrap();
                }
            }
            own
        });
    }
    for n in 0..EACH {
        for key in 0..KEYS {
            queue.publish(&[event("d", &key.to_string(), &n.to_string())]).await.unwrap();
        }
    }
    let shares: Vec<usize> = futures_util::future::join_all(readers).await;
    assert_eq!(shares.iter().sum::<usize>(), KEYS * EACH);
    assert!(shares.iter().all(|share| *share > 0), "{shares:?}");
}

async fn after_close_what_was_sent_is_read_and_nothing_more_is_taken(queue: &dyn EventQueue) {
    let mut reader = queue.subscribe("closing", &["e"]).await.unwrap();
    queue.publish(&[event("e", "k", "last")]).await.unwrap();
    assert!(queue.ping().await.is_ok());
    queue.close().await.unwrap();
    let refused = queue.publish(&[event("e", "k", "too late")]).await;
    assert!(matches!(refused, Err(BackendError::Closed(_))), "{refused:?}");
    assert!(queue.subscribe("new", &["e"]).await.is_err());
    assert_eq!(next(&mut reader).await.value, b"last");
    assert!(reader.next().await.is_none());
}

#[tokio::test]
async fn embedded_keeps_the_contract() {
    let queue = EmbeddedEvents::new();
    each_group_sees_every_event_of_its_topics_in_order(&queue).await;
    what_was_not_handled_comes_again(&queue).await;
    after_close_what_was_sent_is_read_and_nothing_more_is_taken(&queue).await;
    readers_of_one_group_share_and_keep_the_order_of_each_key(&EmbeddedEvents::new()).await;
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
