//! Golden bytes, round trips, and what hostile bytes can do.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::*;
use crate::chain::job::{Access, Combine, JobSpec, Limits, Step, Target};
use crate::chain::message::*;
use crate::chain::slots::{SLOTS, SlotSet};
use crate::chain::state::{Hop, HopId, HopReport, KeyError, Part, PlanNode, Sequence, Tally};
use crate::chain::value::Value;

const CAP: usize = 4 << 20;

fn spec() -> JobSpec {
    let target = Target::Pattern(b"order:*".to_vec());
    let mut spec = JobSpec::new("job-1", target, Step::Native("step".into()), Combine::Sum, Access::Read);
    // Named one by one: the golden bytes do not change with a default.
    spec.limits = Limits {
        max_block_micros: 2_000,
        max_state_bytes: 4 << 20,
        max_replans: 20,
        node_timeout_millis: 10_000,
        retain: 1,
    };
    spec
}

fn state() -> JobState {
    JobState {
        job: Arc::new(spec()),
        chain: 1,
        epoch: 2,
        nodes: vec![PlanNode { id: "n1".into(), redis: "h:7000".into(), agent: Some("h:7400".into()) }],
        route: vec![Hop { node: 0, slots: SlotSet::range(0, 9) }],
        position: 0,
        parts: vec![Part {
            node: "n1".into(),
            replication_id: "r1".into(),
            slots: SlotSet::range(0, 4),
            acc: Value::Map(BTreeMap::from([(b"paid".to_vec(), Value::Int(300))])),
        }],
        sequence: Sequence::default(),
        acc: Value::Nil,
        tally: Tally { visited: 7, matched: 6, errors: 1 },
        errors: vec![KeyError { key: b"\xff".to_vec(), node: "n1".into(), reason: "wrong type".into() }],
        open: BTreeMap::from([(5, "it moves".to_owned())]),
        failed: None,
        reports: vec![HopReport { node: "n1".into(), units: 5, ..HopReport::default() }],
    }
}

fn chain() -> ChainId {
    ChainId { job: "job-1".into(), epoch: 2, chain: 1 }
}

fn hop() -> HopId {
    HopId { job: "job-1".into(), chain: 1, epoch: 2, hop: 3 }
}

fn every_message() -> Vec<(&'static str, Message)> {
    let refuse = |reason| Message::refuse(hop(), reason);
    vec![
        (
            "hello",
            Message::Hello(Hello {
                protocol: PROTOCOL,
                role: Role::Agent,
                name: "h:7400".into(),
                incarnation: 9,
                token: Some(b"secret".to_vec()),
            }),
        ),
        ("state", Message::State(Arc::new(state()))),
        ("ack", Message::Ack(Ack { hops: vec![hop()], forwarded: vec![HopId { hop: 2, ..hop() }] })),
        ("refuse stale", refuse(RefuseReason::StaleEpoch { current: 4 })),
        ("refuse ended", refuse(RefuseReason::Ended)),
        ("refuse busy", refuse(RefuseReason::Busy)),
        ("refuse large", refuse(RefuseReason::TooLarge { limit: 4 << 20 })),
        ("attach", Message::Attach(Attach { job: "job-1".into(), epoch: 2, incarnation: 3 })),
        (
            "progress",
            Message::Progress(Progress {
                chain: chain(),
                position: 3,
                node: "n1".into(),
                tally: Tally { visited: 300, matched: 6, errors: 0 },
                units_done: 16_384,
            }),
        ),
        ("recall", Message::Recall(chain())),
        ("recalled nothing", Message::Recalled(Recalled { chain: chain(), state: None })),
        ("recalled", Message::Recalled(Recalled { chain: chain(), state: Some(Arc::new(state())) })),
        ("end", Message::End(End { job: "job-1".into(), incarnation: 3, why: EndReason::Cancelled })),
        ("ended", Message::Ended { job: "job-1".into() }),
        ("ping", Message::Ping { at: 1_700_000_000_000 }),
        ("pong", Message::Pong { at: -1, queue: 2, active: 300 }),
    ]
}

fn frame_of(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    let sizes = encode(message, &mut bytes).unwrap();
    assert_eq!(bytes.len(), HEADER + sizes.sent);
    bytes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of version 1. When one of these changes, so does what agents of different releases say to each other:
/// raise [`VERSION`], unless no release has said the old ones.
#[test]
fn golden_bytes() {
    let messages = every_message();
    let lines = messages.iter().map(|(name, message)| format!("{name}: {}\n", hex(&frame_of(message))));
    let found: String = lines.collect();
    let golden = include_str!("golden.txt");
    assert!(golden == found, "the frames are now (golden.txt)\n{found}");
    for (name, message) in messages {
        let bytes = frame_of(&message);
        assert_eq!(decode(&bytes, CAP).unwrap(), Some((message, bytes.len())), "{name}");
    }
}

#[test]
fn frames_are_taken_one_by_one_as_bytes_arrive() {
    let (first, second) = (Message::Ping { at: 1 }, Message::State(Arc::new(state())));
    let mut bytes = frame_of(&first);
    let boundary = bytes.len();
    encode(&second, &mut bytes).unwrap();
    for end in 0..boundary {
        assert_eq!(decode(&bytes[..end], CAP).unwrap(), None, "{end}");
    }
    assert_eq!(decode(&bytes, CAP).unwrap(), Some((first, boundary)));
    for end in boundary..bytes.len() {
        assert_eq!(decode(&bytes[boundary..end], CAP).unwrap(), None, "{end}");
    }
    assert_eq!(decode(&bytes[boundary..], CAP).unwrap(), Some((second, bytes.len() - boundary)));
}

#[test]
fn what_this_version_does_not_know_is_refused_by_name() {
    let good = frame_of(&Message::Ping { at: 1 });
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        decode(&bytes, CAP).unwrap_err()
    };
    assert_eq!(with(0, b'X'), FrameError::Magic(*b"XKLD"));
    assert_eq!(with(4, 2), FrameError::Version(2));
    assert_eq!(with(5, 200), FrameError::Kind(200));
    assert_eq!(with(6, 2), FrameError::Flags(2));
    assert_eq!(with(7, 7), FrameError::Codec(7));
    assert!(matches!(with(12, !good[12]), FrameError::Checksum { .. }));
    assert_eq!(decode(b"GET / HTTP", CAP).unwrap_err(), FrameError::Magic(*b"GET "));
    // A version that is not known is said so before the rest of its frame is waited for.
    assert_eq!(
        with(4, 2).to_string(),
        "frame version 2 is not supported, only 1; upgrade the older of the two sides"
    );
}

/// A frame around any body, with a right checksum.
fn framed(kind: u8, flags: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend([VERSION, kind, flags, CODEC_BINCODE]);
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(crc32c::crc32c(body).to_le_bytes());
    bytes.extend(body);
    bytes
}

#[test]
fn claims_of_four_gibibytes_are_refused_before_anything_is_allocated() {
    // The body's length.
    let mut bytes = frame_of(&Message::Ping { at: 1 });
    bytes[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    let refused = FrameError::TooLong { length: u64::from(u32::MAX), limit: CAP as u64 };
    assert_eq!(decode(&bytes, CAP).unwrap_err(), refused);
    assert_eq!(decode(&bytes[..HEADER], CAP).unwrap_err(), refused);
    // The uncompressed length.
    let body = [&u32::MAX.to_le_bytes()[..], &[0x10, b'x']].concat();
    assert_eq!(decode(&framed(11, 1, &body), CAP).unwrap_err(), refused);
    // A string, and a list of hops, in the body: 0xfd is bincode's mark for a u64.
    let claim = [&[0xfd][..], &(4u64 << 30).to_le_bytes()].concat();
    for kind in [10, 3] {
        assert!(matches!(decode(&framed(kind, 0, &claim), CAP), Err(FrameError::Body { .. })));
    }
    // A cap above the hard one does not count.
    bytes[8..12].copy_from_slice(&(MAX_BODY as u32 + 1).to_le_bytes());
    assert!(matches!(decode(&bytes, usize::MAX), Err(FrameError::TooLong { .. })));
}

#[test]
fn claims_stay_in_proportion_to_the_body() {
    // 32 KiB of a body may claim 1 MiB and no more, however large the cap: strings of 900 KiB each are nested claims.
    let string = [&[0xfc][..], &(900u32 << 10).to_le_bytes()].concat();
    let one = decode(&framed(10, 0, &string), CAP).unwrap_err();
    assert!(matches!(&one, FrameError::Body { reason, .. } if reason.contains("UnexpectedEnd")), "{one}");
    let string = [&[0xfc][..], &(1_100u32 << 10).to_le_bytes()].concat();
    let one = decode(&framed(10, 0, &string), CAP).unwrap_err();
    assert!(matches!(&one, FrameError::Body { reason, .. } if reason.contains("LimitExceeded")), "{one}");
    // Sets of slots become 2 KiB from three bytes: a route of many is refused when it would grow past the claim.
    let hops: Vec<Hop> = (0..2_000).map(|_| Hop { node: 0, slots: SlotSet::range(0, 0) }).collect();
    let body = bincode::encode_to_vec(&hops, bincode::config::standard()).unwrap();
    assert!(body.len() < 0x4000);
    let frame = Frame { kind: 2, flags: 0, body: &body, max_body: CAP, consumed: 0 };
    assert!(frame.read::<Vec<Hop>>().is_err());
}

#[test]
fn left_over_bytes_are_an_error() {
    let body = [bincode::encode_to_vec(1i64, bincode::config::standard()).unwrap(), vec![0]].concat();
    assert_eq!(decode(&framed(11, 0, &body), CAP).unwrap_err(), FrameError::Trailing(1));
    let mut bytes = Vec::new();
    encode_state(&state(), &mut bytes).unwrap();
    assert_eq!(*decode_state(&bytes, CAP).unwrap(), state());
    bytes.push(0);
    assert_eq!(decode_state(&bytes, CAP).unwrap_err(), FrameError::Trailing(1));
    assert_eq!(decode_state(&bytes[..20], CAP).unwrap_err(), FrameError::Incomplete);
    assert_eq!(decode_record(&bytes[..bytes.len() - 1], CAP).unwrap_err(), FrameError::Kind(2));
}

#[test]
fn bodies_are_compressed_only_where_it_pays() {
    let sizes = |text: &str| encode(&Message::Ended { job: text.into() }, &mut Vec::new()).unwrap();
    assert_eq!(sizes(&"a".repeat(254)), EncodedSizes { raw: 257, sent: sizes(&"a".repeat(254)).sent });
    assert!(sizes(&"a".repeat(1_000)).sent < 50);
    let short = sizes(&"a".repeat(200));
    assert_eq!(short.raw, short.sent);
    let mut rng = fastrand::Rng::with_seed(1);
    let noise: String = (0..1_000).map(|_| rng.char('\u{1000}'..'\u{2fff}')).collect();
    let noise = sizes(&noise);
    assert_eq!(noise.raw, noise.sent);
}

#[test]
fn what_could_not_be_read_is_not_written() {
    let mut deep = state();
    for _ in 0..=MAX_DEPTH {
        deep.acc = Value::List(vec![std::mem::take(&mut deep.acc)]);
    }
    let mut out = vec![1, 2, 3];
    assert!(matches!(encode_state(&deep, &mut out), Err(FrameError::Encode(_))));
    let recalled = Message::Recalled(Recalled { chain: chain(), state: Some(Arc::new(deep)) });
    assert!(matches!(encode(&recalled, &mut out), Err(FrameError::Encode(_))));
    let long = Message::Ended { job: "x".repeat(MAX_BODY + 1) };
    assert!(matches!(encode(&long, &mut out), Err(FrameError::TooLong { .. })));
    assert_eq!(out, [1, 2, 3]);
}

#[test]
fn a_token_is_not_printed() {
    let (_, hello) = every_message().remove(0);
    let text = format!("{hello:?}");
    assert!(text.contains("h:7400") && !text.contains("115, 101") && !text.contains("secret"), "{text}");
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Nil),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int),
        (-1e300f64..1e300).prop_map(Value::Float),
        vec(any::<u8>(), 0..20).prop_map(Value::Bytes),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::List),
            btree_map(vec(any::<u8>(), 0..6), inner, 0..4).prop_map(Value::Map),
        ]
    })
}

fn any_slots() -> impl Strategy<Value = SlotSet> {
    prop_oneof![
        vec(0..SLOTS, 0..40).prop_map(|slots| slots.into_iter().collect()),
        (0..SLOTS, 0..SLOTS).prop_map(|(a, b)| SlotSet::range(a, b)),
        (1..50usize).prop_map(|step| (0..SLOTS).step_by(step).collect()),
    ]
}

prop_compose! {
    fn any_part()(
        node in ".{0,8}",
        replication_id in "[0-9a-f]{0,40}",
        slots in any_slots(),
        acc in any_value(),
    ) -> Part {
        Part { node, replication_id, slots, acc }
    }
}

prop_compose! {
    fn any_state()(
        id in "[a-z0-9-]{1,40}",
        keys in vec(vec(any::<u8>(), 0..10), 0..10),
        numbers in any::<(u16, u32, u32, u64, u64)>(),
        hops in vec((0u16..4, any_slots()), 0..4),
        parts in vec(any_part(), 0..4),
        acc in any_value(),
        next_key in proptest::option::of(vec(any::<u8>(), 0..10)),
        open in btree_map(0..SLOTS, ".{0,10}", 0..5),
        failed in any::<bool>(),
    ) -> JobState {
        let (chain, epoch, position, done, cursor) = numbers;
        let mut job = spec();
        job.id = id;
        job.target = Target::Keys(keys);
        job.limits = Limits { max_state_bytes: position, ..Limits::default() };
        let error = KeyError { key: vec![0, 255], node: "n".into(), reason: "r".into() };
        JobState {
            job: Arc::new(job), chain, epoch, position, parts, acc, open,
            route: hops.into_iter().map(|(node, slots)| Hop { node, slots }).collect(),
            sequence: Sequence { done, next_key, cursor, ..Sequence::default() },
            failed: failed.then(|| error.clone()),
            errors: vec![error],
            ..state()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn any_state_survives(state in any_state()) {
        let mut bytes = Vec::new();
        encode_state(&state, &mut bytes).unwrap();
        prop_assert_eq!(&*decode_state(&bytes, CAP).unwrap(), &state);
        let record = Record::Held { hop: state.hop_id(), state: Arc::new(state) };
        let mut bytes = Vec::new();
        encode_record(&record, &mut bytes).unwrap();
        prop_assert_eq!(decode_record(&bytes, CAP).unwrap(), record);
    }

    #[test]
    fn any_bytes_are_refused_or_read(bytes in vec(any::<u8>(), 0..600)) {
        let _ = decode(&bytes, CAP);
    }

    /// Behind a right header and checksum any body of any kind is refused or read, compressed or not.
    #[test]
    fn any_body_is_refused_or_read(kind in 0u8..14, flags in 0u8..2, body in vec(any::<u8>(), 0..600)) {
        let _ = decode(&framed(kind, flags, &body), CAP);
        let _ = decode_record(&framed(0x80, flags, &body), CAP);
    }

    /// A body that differs from a right one in a few places gets further than random bytes do.
    #[test]
    fn a_mutated_body_is_refused_or_read(
        state in any_state(),
        at in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut body = bincode::encode_to_vec(&state, bincode::config::standard()).unwrap();
        for (index, byte) in at {
            let index = index.index(body.len());
            body[index] = byte;
        }
        let _ = decode(&framed(2, 0, &body), CAP);
        let _ = decode(&framed(2, 0, &body[..cut.index(body.len())]), CAP);
        let mut packed = lz4_flex::block::compress_prepend_size(&body);
        let index = cut.index(packed.len());
        packed[index] ^= 0x55;
        let _ = decode(&framed(2, 1, &packed), CAP);
    }
}
