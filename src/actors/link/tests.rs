use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

use super::*;
use crate::chain::frame;
use crate::chain::message::{ChainId, Progress, Role};
use crate::chain::state::{HopId, Tally};

const PATIENCE: Duration = Duration::from_secs(10);

fn hello(name: &str) -> Hello {
    Hello { protocol: PROTOCOL, role: Role::Agent, name: name.into(), incarnation: 1, token: None }
}

/// Times short enough to wait for.
fn quick() -> LinkOptions {
    LinkOptions {
        hello_timeout: Duration::from_millis(300),
        ping_every: Duration::from_millis(100),
        idle_timeout: Duration::from_millis(400),
        redial_min: Duration::from_millis(10),
        redial_max: Duration::from_millis(50),
        ..LinkOptions::default()
    }
}

async fn next(events: &mut Receiver<LinkEvent>) -> LinkEvent {
    timeout(PATIENCE, events.recv()).await.expect("an event comes").expect("there are connections")
}

/// The next event that is not a pong or an unreachable address.
async fn next_event(events: &mut Receiver<LinkEvent>) -> LinkEvent {
    loop {
        match next(events).await {
            LinkEvent::Pong { .. } | LinkEvent::Unreachable { .. } => {}
            event => return event,
        }
    }
}

async fn connected(events: &mut Receiver<LinkEvent>) -> (Link, Hello) {
    match next_event(events).await {
        LinkEvent::Connected { link, hello } => (link, hello),
        other => panic!("not connected, but {other:?}"),
    }
}

async fn closed(events: &mut Receiver<LinkEvent>) -> CloseReason {
    loop {
        if let LinkEvent::Closed { reason, .. } = next_event(events).await {
            return reason;
        }
    }
}

async fn message(events: &mut Receiver<LinkEvent>) -> Message {
    match next_event(events).await {
        LinkEvent::Message { message, .. } => message,
        other => panic!("no message, but {other:?}"),
    }
}

fn hop(number: u32) -> HopId {
    HopId { job: "job".into(), chain: 0, epoch: 1, hop: number }
}

/// A message of about `bytes` bytes that cannot be compressed.
fn large(number: u64, bytes: usize) -> Message {
    let mut rng = fastrand::Rng::with_seed(number);
    let job = std::iter::repeat_with(|| rng.alphanumeric()).take(bytes).collect();
    Message::Progress(Progress {
        chain: ChainId { job, epoch: 1, chain: 0 },
        position: 0,
        node: "node".into(),
        tally: Tally::default(),
        units_done: number,
    })
}

fn number_of(message: &Message) -> u64 {
    match message {
        Message::Progress(progress) => progress.units_done,
        other => panic!("not a progress, but {other:?}"),
    }
}

struct Side {
    links: Links,
    events: Receiver<LinkEvent>,
}

fn side(name: &str, options: LinkOptions) -> Side {
    let (links, events) = Links::new(hello(name), options);
    Side { links, events }
}

/// A stream on which a hello has been said and read: from now on the test speaks as it likes.
async fn impostor(listener: &Listener) -> TcpStream {
    let mut stream = TcpStream::connect(listener.address()).await.expect("it listens");
    let mut bytes = Vec::new();
    frame::encode(&Message::Hello(hello("impostor")), &mut bytes).expect("it can be encoded");
    stream.write_all(&bytes).await.expect("it is read");
    let mut answer = [0; 16];
    stream.read_exact(&mut answer).await.expect("it says hello");
    stream
}

/// Reads until the other side closes.
async fn wait_for_end(mut stream: TcpStream) {
    let mut rest = Vec::new();
    // A reset is an end as well.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("the connection is closed");
}

#[tokio::test]
async fn both_sides_say_hello_and_messages_go_both_ways_in_order() {
    let (mut agent, mut peer) = (side("agent", quick()), side("peer", quick()));
    let listener = agent.links.listen("127.0.0.1:0").await.expect("loopback is allowed");
    let dialer = peer.links.dial(listener.address().to_string());
    let (to_agent, said) = connected(&mut peer.events).await;
    assert_eq!((said, to_agent.dialled()), (hello("agent"), true));
    assert_eq!(to_agent.peer(), dialer.address());
    let (to_peer, said) = connected(&mut agent.events).await;
    assert_eq!((said, to_peer.dialled()), (hello("peer"), false));
    for number in 0..100 {
        to_agent.send(&large(number, 2000)).await.expect("it is up");
        to_peer.send(&large(number, 10)).await.expect("it is up");
    }
    for number in 0..100 {
        assert_eq!(message(&mut agent.events).await, large(number, 2000));
        assert_eq!(message(&mut peer.events).await, large(number, 10));
    }
    to_agent.close();
    assert!(matches!(closed(&mut peer.events).await, CloseReason::Closed));
    assert!(matches!(closed(&mut agent.events).await, CloseReason::ByPeer));
    let gone = to_peer.send(&large(0, 1)).await.expect_err("it is closed").to_string();
    assert!(gone.contains("is closed"), "{gone}");
}

#[tokio::test]
async fn what_is_sent_together_goes_out_in_one_write_and_one_acknowledgement() {
    let (mut left, mut right) = (side("left", LinkOptions::default()), side("right", LinkOptions::default()));
    let (a, b) = tokio::io::duplex(1 << 20);
    left.links.over(a, "right");
    right.links.over(b, "left");
    let (link, _) = connected(&mut left.events).await;
    connected(&mut right.events).await;
    while left.links.stats().writes.load(Ordering::Relaxed) < 2 {
        next(&mut left.events).await; // the pong: from now on nothing else is written
    }
    let writes = left.links.stats().writes.load(Ordering::Relaxed);
    let frames = left.links.stats().frames_out.load(Ordering::Relaxed);
    for number in 0..50 {
        link.try_send(&large(number.into(), 100)).expect("there is room");
        let forwarded = vec![hop(1000 + number)];
        link.try_send(&Message::Ack(crate::chain::message::Ack { hops: vec![hop(number)], forwarded }))
            .expect("there is room");
    }
    for number in 0..50 {
        assert_eq!(number_of(&message(&mut right.events).await), number);
    }
    let Message::Ack(ack) = message(&mut right.events).await else { panic!("no acknowledgement") };
    assert_eq!(ack.hops, (0..50).map(hop).collect::<Vec<_>>());
    assert_eq!(ack.forwarded, (1000..1050).map(hop).collect::<Vec<_>>());
    assert_eq!(left.links.stats().writes.load(Ordering::Relaxed) - writes, 1);
    assert_eq!(left.links.stats().frames_out.load(Ordering::Relaxed) - frames, 51);
}

#[tokio::test]
async fn a_slow_owner_makes_the_sender_wait_and_loses_nothing() {
    let options = || LinkOptions {
        send_bytes: 64 << 10,
        events: 4,
        idle_timeout: Duration::from_millis(300),
        ..quick()
    };
    let (mut slow, mut fast) = (side("slow", options()), side("fast", options()));
    let (a, b) = tokio::io::duplex(16 << 10);
    slow.links.over(a, "fast");
    fast.links.over(b, "slow");
    let (link, _) = connected(&mut fast.events).await;
    connected(&mut slow.events).await;
    let mut sent = 0;
    while timeout(Duration::from_millis(100), link.send(&large(sent, 1000))).await.is_ok() {
        sent += 1;
        assert!(sent < 1000, "nothing holds the sender back");
    }
    // Its own queue, the pipe, the reader's buffer, the owner's queue, and little else.
    assert!(sent < 350, "{sent} messages of 1 kB are on their way");
    assert!(matches!(link.try_send(&large(sent, 1000)), Err(LinkError::Full { bytes: 65_536.., .. })));
    // Silence that the owner itself has brought about is held against nobody.
    let still_waits = timeout(Duration::from_millis(700), link.send(&large(sent, 1000))).await;
    assert!(still_waits.is_err(), "{still_waits:?}");
    let waiting = tokio::spawn({
        let link = link.clone();
        async move { link.send(&large(sent, 1000)).await }
    });
    for number in 0..=sent {
        assert_eq!(number_of(&message(&mut slow.events).await), number);
    }
    waiting.await.expect("it does not panic").expect("it has got room");
}

#[tokio::test]
async fn bytes_that_are_no_frames_close_the_connection_and_are_counted() {
    let mut agent = side("agent", quick());
    let listener = agent.links.listen("127.0.0.1:0").await.expect("loopback is allowed");
    let mut rng = fastrand::Rng::with_seed(1);
    for _ in 0..20 {
        let mut stream = TcpStream::connect(listener.address()).await.expect("it listens");
        let bytes: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(200).collect();
        stream.write_all(&bytes).await.expect("it is read");
        wait_for_end(stream).await;
    }
    assert_eq!(agent.links.stats().bad_frames.load(Ordering::Relaxed), 20);
    for _ in 0..20 {
        let mut stream = impostor(&listener).await;
        connected(&mut agent.events).await;
        // A good frame, damaged somewhere.
        let mut bytes = Vec::new();
        frame::encode(&large(1, 500), &mut bytes).expect("it can be encoded");
        let at = rng.usize(..bytes.len());
        bytes[at] ^= 1 << rng.u8(..8);
        stream.write_all(&bytes).await.expect("it is read");
        match closed(&mut agent.events).await {
            CloseReason::Frame(_) => {}
            // A length that has grown: the rest never comes.
            CloseReason::Idle(_) if (8..12).contains(&at) => {}
            other => panic!("byte {at}: {other:?}"),
        }
    }
    assert_eq!(agent.links.stats().connected.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_frame_that_claims_four_gigabytes_is_refused_by_its_length() {
    let mut agent = side("agent", quick());
    let listener = agent.links.listen("127.0.0.1:0").await.expect("loopback is allowed");
    let mut stream = impostor(&listener).await;
    connected(&mut agent.events).await;
    let mut bytes = Vec::new();
    frame::encode(&large(1, 500), &mut bytes).expect("it can be encoded");
    bytes[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    stream.write_all(&bytes).await.expect("it is read");
    match closed(&mut agent.events).await {
        CloseReason::Frame(FrameError::TooLong { length, .. }) => assert_eq!(length, u64::from(u32::MAX)),
        other => panic!("{other:?}"),
    }
    // Before anybody has said who is there, much less is taken.
    let mut stream = TcpStream::connect(listener.address()).await.expect("it listens");
    bytes[8..12].copy_from_slice(&1_000_000u32.to_le_bytes());
    stream.write_all(&bytes).await.expect("it is read");
    wait_for_end(stream).await;
    assert_eq!(agent.links.stats().bad_frames.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn half_a_frame_and_then_silence_ends_in_time() {
    let mut agent = side("agent", quick());
    let listener = agent.links.listen("127.0.0.1:0").await.expect("loopback is allowed");
    let mut half = Vec::new();
    frame::encode(&Message::Hello(hello("half")), &mut half).expect("it can be encoded");
    half.truncate(half.len() / 2);
    let started = Instant::now();
    let mut stream = TcpStream::connect(listener.address()).await.expect("it listens");
    stream.write_all(&half).await.expect("it is read");
    wait_for_end(stream).await;
    assert!(started.elapsed() >= quick().hello_timeout);

    let mut stream = impostor(&listener).await;
    connected(&mut agent.events).await;
    stream.write_all(&half).await.expect("it is read");
    assert!(matches!(closed(&mut agent.events).await, CloseReason::Idle(_)));
}

#[tokio::test]
async fn quiet_peers_stay_connected_and_tell_their_load() {
    let (mut left, mut right) = (side("left", quick()), side("right", quick()));
    right.links.load().queue.store(7, Ordering::Relaxed);
    right.links.load().active.store(2, Ordering::Relaxed);
    let (a, b) = tokio::io::duplex(4096);
    left.links.over(a, "right");
    right.links.over(b, "left");
    connected(&mut left.events).await;
    connected(&mut right.events).await;
    let started = Instant::now();
    while started.elapsed() < 2 * quick().idle_timeout {
        match next(&mut left.events).await {
            LinkEvent::Pong { queue: 7, active: 2, round_trip, .. } => assert!(round_trip < PATIENCE),
            other => panic!("{other:?}"),
        }
        next(&mut right.events).await;
    }
}

#[tokio::test]
async fn a_lost_peer_is_dialled_until_it_is_back() {
    let (agent, mut peer) = (side("agent", quick()), side("peer", quick()));
    let listener = agent.links.listen("127.0.0.1:0").await.expect("loopback is allowed");
    let address = listener.address().to_string();
    let _dialer = peer.links.dial(address.clone());
    let (first, _) = connected(&mut peer.events).await;
    drop(listener);
    assert!(matches!(closed(&mut peer.events).await, CloseReason::ByPeer | CloseReason::Io(_)));
    for _ in 0..2 {
        match next(&mut peer.events).await {
            LinkEvent::Unreachable { address: said, .. } => assert_eq!(said, address),
            other => panic!("{other:?}"),
        }
    }
    let _listener = agent.links.listen(&address).await.expect("the port is free again");
    let (second, _) = connected(&mut peer.events).await;
    assert!(second.id() > first.id());
    assert!(matches!(first.try_send(&large(0, 1)), Err(LinkError::Closed { .. })));
}

#[tokio::test]
async fn other_versions_and_unasked_messages_are_refused_by_name() {
    let (agent, mut peer) = (side("agent", quick()), side("peer", quick()));
    let listener = agent.links.listen("127.0.0.1:0").await.expect("loopback is allowed");
    let old = Hello { protocol: 0, ..hello("old") };
    for first in [Message::Hello(old), Message::ack(vec![hop(1)])] {
        let mut stream = TcpStream::connect(listener.address()).await.expect("it listens");
        let mut bytes = Vec::new();
        frame::encode(&first, &mut bytes).expect("it can be encoded");
        stream.write_all(&bytes).await.expect("it is read");
        wait_for_end(stream).await;
    }
    assert_eq!(agent.links.stats().bad_frames.load(Ordering::Relaxed), 2);

    // The dialling side hears of it.
    let impostor = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let _dialer = peer.links.dial(impostor.local_addr().expect("it is bound").to_string());
    let (mut stream, _) = impostor.accept().await.expect("it dials");
    let mut bytes = Vec::new();
    frame::encode(&Message::Hello(Hello { protocol: 9, ..hello("new") }), &mut bytes)
        .expect("it can be encoded");
    stream.write_all(&bytes).await.expect("it is read");
    match next(&mut peer.events).await {
        LinkEvent::Unreachable { reason, .. } => {
            let reason = reason.to_string();
            assert!(reason.contains("new speaks version 9"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn only_loopback_is_listened_on_unless_told() {
    let agent = side("agent", quick());
    let error = agent.links.listen("0.0.0.0:0").await.err().expect("it is refused").to_string();
    assert!(error.contains("0.0.0.0:0") && error.contains("allow_remote") && error.contains("authenticate"));
    let open = side("open", LinkOptions { allow_remote: true, ..quick() });
    assert!(open.links.listen("0.0.0.0:0").await.is_ok());
    let error = agent.links.listen("127.0.0.1:notaport").await.err().expect("it is none").to_string();
    assert!(error.contains("127.0.0.1:notaport"), "{error}");
}

#[tokio::test]
async fn connections_past_the_limit_are_closed_at_once() {
    let mut agent = side("agent", LinkOptions { max_connections: 2, ..quick() });
    let listener = agent.links.listen("127.0.0.1:0").await.expect("loopback is allowed");
    let first = impostor(&listener).await;
    let _second = impostor(&listener).await;
    connected(&mut agent.events).await;
    connected(&mut agent.events).await;
    wait_for_end(TcpStream::connect(listener.address()).await.expect("it listens")).await;
    assert_eq!(agent.links.stats().refused.load(Ordering::Relaxed), 1);
    drop(first);
    closed(&mut agent.events).await;
    let deadline = Instant::now() + PATIENCE;
    loop {
        // The place becomes free a moment after the owner has heard of the end.
        let mut stream = TcpStream::connect(listener.address()).await.expect("it listens");
        if stream.read_exact(&mut [0; 16]).await.is_ok() {
            break;
        }
        assert!(Instant::now() < deadline, "the place stays taken");
    }
}
