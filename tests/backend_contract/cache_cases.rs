//! What every `CacheMemory` must do.

use std::collections::BTreeSet;
use std::time::Duration;

use skalds::backend::{BackendError, CacheWrite, ListEnd};

use crate::cache::Bench;

const HOUR: Duration = Duration::from_secs(3_600);
const SOON: Duration = Duration::from_secs(1);

/// Key and field names may hold any byte.
const ODD: [&[u8]; 10] = [
    b"plain",
    b"with space and \"quotes\"",
    b"line\nbreak\r\n",
    b"nul\0byte",
    b"\xff\xfe\x80 no utf-8",
    b"{tag}odd",
    b"{}odd",
    b"a}odd{b",
    b"{odd",
    b"*odd?[x]\\",
];

pub(crate) async fn all(bench: &Bench) {
    strings_expire_at_their_own_time(bench).await;
    strings_come_in_the_order_asked_for(bench).await;
    only_one_sets_what_is_absent(bench).await;
    a_swap_needs_the_expected_value(bench).await;
    fields_expire_one_by_one(bench).await;
    a_field_written_again_has_its_new_life_only(bench).await;
    a_hash_ends_with_its_last_field(bench).await;
    names_hold_any_byte(bench).await;
    a_wrong_type_is_refused(bench).await;
    lists_have_two_ends(bench).await;
    lists_are_replaced_whole(bench).await;
    what_is_deleted_is_gone(bench).await;
    keys_are_found_by_pattern(bench).await;
    a_batch_writes_all_and_names_the_first_error(bench).await;
    any_duration_is_a_life(bench).await;
    channels_reach_their_readers(bench).await;
    a_slow_reader_is_told_what_it_missed(bench).await;
    values_may_be_big(bench).await;
    assert!(bench.cache.ping().await.unwrap() < Duration::from_secs(3));
}

fn ends_within(life: Option<Option<Duration>>, limit: Duration) {
    let left = life.expect("it is there").expect("it has an end");
    assert!(left <= limit && left > Duration::ZERO, "{left:?}");
}

async fn strings_expire_at_their_own_time(bench: &Bench) {
    let cache = &bench.cache;
    cache.set_string(b"s1", b"one", Some(SOON)).await.unwrap();
    cache.set_string(b"s2", b"two", Some(HOUR)).await.unwrap();
    cache.set_string(b"s3", b"", None).await.unwrap();
    assert_eq!(cache.get_string(b"s1").await.unwrap().unwrap(), b"one");
    ends_within(cache.time_to_live(b"s1").await.unwrap(), SOON);
    bench.until("a string to expire", || async { cache.get_string(b"s1").await.unwrap().is_none() }).await;
    assert_eq!(cache.time_to_live(b"s1").await.unwrap(), None);
    ends_within(cache.time_to_live(b"s2").await.unwrap(), HOUR);
    assert_eq!(cache.time_to_live(b"s3").await.unwrap(), Some(None));
    assert_eq!(cache.get_string(b"s3").await.unwrap().unwrap(), b"");
    // A write without a life takes the old one away.
    cache.set_string(b"s2", b"two", None).await.unwrap();
    assert_eq!(cache.time_to_live(b"s2").await.unwrap(), Some(None));
}

async fn strings_come_in_the_order_asked_for(bench: &Bench) {
    let cache = &bench.cache;
    cache.set_string(b"m1", b"1", None).await.unwrap();
    cache.set_string(b"m2", b"2", None).await.unwrap();
    cache.set_hash_field(b"m3", b"f", b"3", None).await.unwrap();
    let asked = [&b"m2"[..], b"none", b"m3", b"m1", b"m2"].map(<[u8]>::to_vec);
    let found = cache.get_strings(&asked).await.unwrap();
    assert_eq!(found, [Some(b"2".to_vec()), None, None, Some(b"1".to_vec()), Some(b"2".to_vec())]);
    assert!(cache.get_strings(&[]).await.unwrap().is_empty());
}

async fn only_one_sets_what_is_absent(bench: &Bench) {
    let cache = &bench.cache;
    let attempts = (0..8u8).map(|n| async move { cache.set_string_if_absent(b"lease", &[n], SOON).await });
    let won = futures_util::future::join_all(attempts).await;
    assert_eq!(won.into_iter().filter(|won| *won.as_ref().unwrap()).count(), 1);
    ends_within(cache.time_to_live(b"lease").await.unwrap(), SOON);
    bench
        .until("the lease to be free", || async {
            cache.set_string_if_absent(b"lease", b"next", HOUR).await.unwrap()
        })
        .await;
    assert_eq!(cache.get_string(b"lease").await.unwrap().unwrap(), b"next");
}

async fn a_swap_needs_the_expected_value(bench: &Bench) {
    let cache = &bench.cache;
    assert!(!cache.swap_string(b"swap", b"", b"x", HOUR).await.unwrap());
    cache.set_string(b"swap", b"mine\0\xff", Some(SOON)).await.unwrap();
    assert!(!cache.swap_string(b"swap", b"mine", b"yours", HOUR).await.unwrap());
    assert!(cache.swap_string(b"swap", b"mine\0\xff", b"mine too", HOUR).await.unwrap());
    assert_eq!(cache.get_string(b"swap").await.unwrap().unwrap(), b"mine too");
    let left = cache.time_to_live(b"swap").await.unwrap().unwrap().unwrap();
    assert!(left > SOON && left <= HOUR);
}

async fn fields_expire_one_by_one(bench: &Bench) {
    let cache = &bench.cache;
    cache.set_hash_field(b"h1", b"short", b"1", Some(SOON)).await.unwrap();
    cache.set_hash_field(b"h1", b"long", b"2", Some(HOUR)).await.unwrap();
    cache.set_hash_field(b"h1", b"ever", b"3", None).await.unwrap();
    ends_within(cache.hash_field_time_to_live(b"h1", b"short").await.unwrap(), SOON);
    ends_within(cache.hash_field_time_to_live(b"h1", b"long").await.unwrap(), HOUR);
    assert_eq!(cache.hash_field_time_to_live(b"h1", b"ever").await.unwrap(), Some(None));
    // A later write of another field changes no other field's life.
    cache.set_hash_field(b"h1", b"ever", b"4", None).await.unwrap();
    cache.set_hash_field(b"h1", b"more", b"5", Some(HOUR)).await.unwrap();
    ends_within(cache.hash_field_time_to_live(b"h1", b"short").await.unwrap(), SOON);
    bench
        .until("a field to expire", || async {
            cache.get_hash_field(b"h1", b"short").await.unwrap().is_none()
        })
        .await;
    assert_eq!(cache.hash_field_time_to_live(b"h1", b"short").await.unwrap(), None);
    let left: BTreeSet<_> = cache.get_all_hash(b"h1").await.unwrap().into_iter().collect();
    let expected = [("ever", "4"), ("long", "2"), ("more", "5")];
    assert_eq!(left, expected.map(|(field, value)| (field.into(), value.into())).into());
    assert!(!cache.delete_hash_field(b"h1", b"short").await.unwrap());
    ends_within(cache.hash_field_time_to_live(b"h1", b"long").await.unwrap(), HOUR);
    assert_eq!(cache.hash_field_time_to_live(b"none", b"f").await.unwrap(), None);
    assert_eq!(cache.time_to_live(b"h1").await.unwrap(), Some(None));
}

async fn a_field_written_again_has_its_new_life_only(bench: &Bench) {
    let cache = &bench.cache;
    for field in [b"a", b"b", b"c"] {
        cache.set_hash_field(b"h2", field, b"1", Some(SOON)).await.unwrap();
    }
    cache.set_hash_field(b"h2", b"a", b"2", Some(HOUR)).await.unwrap();
    cache.set_hash_field(b"h2", b"b", b"2", None).await.unwrap();
    bench
        .until("the third field to expire", || async {
            cache.get_hash_field(b"h2", b"c").await.unwrap().is_none()
        })
        .await;
    assert_eq!(cache.get_hash_field(b"h2", b"a").await.unwrap().unwrap(), b"2");
    ends_within(cache.hash_field_time_to_live(b"h2", b"a").await.unwrap(), HOUR);
    assert_eq!(cache.hash_field_time_to_live(b"h2", b"b").await.unwrap(), Some(None));
    // And back from everlasting to mortal.
    cache.set_hash_field(b"h2", b"b", b"3", Some(SOON)).await.unwrap();
    bench
        .until("it to expire after all", || async {
            cache.get_hash_field(b"h2", b"b").await.unwrap().is_none()
        })
        .await;
}

async fn a_hash_ends_with_its_last_field(bench: &Bench) {
    let cache = &bench.cache;
    cache.set_hash_field(b"h3", b"a", b"1", Some(SOON)).await.unwrap();
    cache.set_hash_field(b"h3", b"b", b"1", Some(SOON)).await.unwrap();
    bench.until("the hash to end", || async { cache.get_all_hash(b"h3").await.unwrap().is_empty() }).await;
    bench
        .until("its key to be free", || async {
            cache.set_string_if_absent(b"h3", b"s", HOUR).await.unwrap()
        })
        .await;
    assert!(cache.delete_key(b"h3").await.unwrap());
    cache.set_hash_field(b"h3", b"a", b"2", None).await.unwrap();
    assert!(cache.delete_hash_field(b"h3", b"a").await.unwrap());
    assert_eq!(cache.time_to_live(b"h3").await.unwrap(), None);
}

async fn names_hold_any_byte(bench: &Bench) {
    let cache = &bench.cache;
    for key in ODD {
        cache.set_string(&[key, b":s"].concat(), key, Some(HOUR)).await.unwrap();
        cache.push_list(&[key, b":l"].concat(), key, ListEnd::Tail, Some(HOUR)).await.unwrap();
        for field in ODD {
            cache.set_hash_field(&[key, b":h"].concat(), field, key, Some(HOUR)).await.unwrap();
        }
    }
    for key in ODD {
        assert_eq!(cache.get_string(&[key, b":s"].concat()).await.unwrap().unwrap(), key);
        assert_eq!(cache.get_list(&[key, b":l"].concat(), 0, -1).await.unwrap(), [key]);
        let hash = [key, b":h"].concat();
        let fields: BTreeSet<_> =
            cache.get_all_hash(&hash).await.unwrap().into_iter().map(|(field, _)| field).collect();
        assert_eq!(fields, ODD.iter().map(|field| field.to_vec()).collect());
        for field in ODD {
            assert_eq!(cache.get_hash_field(&hash, field).await.unwrap().unwrap(), key);
            ends_within(cache.hash_field_time_to_live(&hash, field).await.unwrap(), HOUR);
        }
    }
    let found: BTreeSet<_> = cache.keys(b"*odd*:h", 100).await.unwrap().into_iter().collect();
    let expected = ODD.iter().filter(|key| key.windows(3).any(|part| part == b"odd"));
    assert_eq!(found, expected.map(|key| [key, &b":h"[..]].concat()).collect());
    for key in ODD {
        for kind in [b":s", b":l", b":h"] {
            assert!(cache.delete_key(&[key, kind].concat()).await.unwrap());
        }
    }
}

async fn a_wrong_type_is_refused(bench: &Bench) {
    let cache = &bench.cache;
    cache.set_string(b"t-string", b"x", None).await.unwrap();
    cache.push_list(b"t-list", b"x", ListEnd::Head, None).await.unwrap();
    cache.set_hash_field(b"t-hash", b"f", b"x", Some(HOUR)).await.unwrap();
    let refused = |error: BackendError| {
        assert!(matches!(error, BackendError::Refused { .. }), "{error:?}");
        assert!(error.to_string().contains("WRONGTYPE"), "{error}");
    };
    refused(cache.get_string(b"t-list").await.unwrap_err());
    refused(cache.get_string(b"t-hash").await.unwrap_err());
    refused(cache.swap_string(b"t-hash", b"x", b"y", HOUR).await.unwrap_err());
    refused(cache.get_hash_field(b"t-string", b"f").await.unwrap_err());
    refused(cache.get_all_hash(b"t-list").await.unwrap_err());
    refused(cache.set_hash_field(b"t-string", b"f", b"x", Some(HOUR)).await.unwrap_err());
    refused(cache.set_hash_field(b"t-string", b"f", b"x", None).await.unwrap_err());
    refused(cache.hash_field_time_to_live(b"t-string", b"f").await.unwrap_err());
    refused(cache.delete_hash_field(b"t-string", b"f").await.unwrap_err());
    refused(cache.push_list(b"t-hash", b"x", ListEnd::Head, Some(HOUR)).await.unwrap_err());
    refused(cache.get_list(b"t-string", 0, -1).await.unwrap_err());
    // SET and the replacement of a list take the place of anything.
    cache.set_string(b"t-hash", b"y", None).await.unwrap();
    cache.replace_list(b"t-string", &[b"y".to_vec()], None).await.unwrap();
    assert_eq!(cache.get_string(b"t-hash").await.unwrap().unwrap(), b"y");
    assert_eq!(cache.get_list(b"t-string", 0, -1).await.unwrap(), [b"y"]);
}

async fn lists_have_two_ends(bench: &Bench) {
    let cache = &bench.cache;
    for (value, end) in [("b", ListEnd::Tail), ("c", ListEnd::Tail), ("a", ListEnd::Head)] {
        cache.push_list(b"l1", value.as_bytes(), end, None).await.unwrap();
    }
    let range = async |start, stop| {
        let found = cache.get_list(b"l1", start, stop).await.unwrap();
        String::from_utf8(found.concat()).unwrap()
    };
    for (start, stop, expected) in
        [(0, -1, "abc"), (1, 1, "b"), (-2, -1, "bc"), (-99, 0, "a"), (2, 99, "c"), (2, 1, ""), (5, 9, "")]
    {
        assert_eq!(range(start, stop).await, expected, "{start} {stop}");
    }
    assert_eq!(range(i64::MIN, i64::MAX).await, "abc");
    assert_eq!(cache.time_to_live(b"l1").await.unwrap(), Some(None));
    cache.push_list(b"l1", b"d", ListEnd::Tail, Some(HOUR)).await.unwrap();
    ends_within(cache.time_to_live(b"l1").await.unwrap(), HOUR);
    cache.push_list(b"l1", b"e", ListEnd::Tail, None).await.unwrap();
    ends_within(cache.time_to_live(b"l1").await.unwrap(), HOUR);
    cache.push_list(b"l1", b"f", ListEnd::Tail, Some(SOON)).await.unwrap();
    bench.until("the list to expire", || async { range(0, -1).await.is_empty() }).await;
}

async fn lists_are_replaced_whole(bench: &Bench) {
    let cache = &bench.cache;
    // More values than a script may put on its stack at once.
    let many: Vec<Vec<u8>> = (0..20_000).map(|n| format!("class-{n}").into_bytes()).collect();
    cache.replace_list(b"l2", &many, Some(HOUR)).await.unwrap();
    assert_eq!(cache.get_list(b"l2", 0, -1).await.unwrap(), many);
    ends_within(cache.time_to_live(b"l2").await.unwrap(), HOUR);
    cache.replace_list(b"l2", &many[..2], None).await.unwrap();
    assert_eq!(cache.get_list(b"l2", 0, -1).await.unwrap(), many[..2]);
    assert_eq!(cache.time_to_live(b"l2").await.unwrap(), Some(None));
    cache.replace_list(b"l2", &[], Some(HOUR)).await.unwrap();
    assert_eq!(cache.time_to_live(b"l2").await.unwrap(), None);
}

async fn what_is_deleted_is_gone(bench: &Bench) {
    let cache = &bench.cache;
    assert!(!cache.delete_key(b"d").await.unwrap());
    cache.set_hash_field(b"d", b"f", b"1", Some(SOON)).await.unwrap();
    assert!(cache.delete_key(b"d").await.unwrap());
    assert!(cache.get_all_hash(b"d").await.unwrap().is_empty());
    // The new field does not inherit the old one's end.
    cache.set_hash_field(b"d", b"f", b"2", None).await.unwrap();
    assert_eq!(cache.hash_field_time_to_live(b"d", b"f").await.unwrap(), Some(None));
    assert!(cache.delete_hash_field(b"d", b"f").await.unwrap());
    assert!(!cache.delete_hash_field(b"d", b"f").await.unwrap());
}

async fn keys_are_found_by_pattern(bench: &Bench) {
    let cache = &bench.cache;
    let name = |n: usize| format!("task:{n}:heartbeat").into_bytes();
    let writes: Vec<_> = (0..3_000)
        .map(|n| CacheWrite::SetString { key: name(n), value: b"1".to_vec(), ttl: Some(HOUR) })
        .collect();
    cache.write_batch(&writes).await.unwrap();
    let found: BTreeSet<_> = cache.keys(b"task:*:heartbeat", 10_000).await.unwrap().into_iter().collect();
    assert_eq!(found, (0..3_000).map(name).collect());
    assert_eq!(cache.keys(b"task:*:heartbeat", 100).await.unwrap().len(), 100);
    assert_eq!(cache.keys(b"task:1[0-4]:heartbea?", 100).await.unwrap().len(), 5);
    assert!(cache.keys(b"nothing*", 100).await.unwrap().is_empty());
}

async fn a_batch_writes_all_and_names_the_first_error(bench: &Bench) {
    let cache = &bench.cache;
    cache.push_list(b"batch-list", b"x", ListEnd::Head, None).await.unwrap();
    let mut writes = Vec::new();
    for n in 0..12_000 {
        let key = format!("batch-{n}").into_bytes();
        writes.push(CacheWrite::SetString { key, value: n.to_string().into_bytes(), ttl: Some(HOUR) });
    }
    let field = |key: &str, value: &str| CacheWrite::SetHashField {
        key: key.into(),
        field: b"f".to_vec(),
        value: value.into(),
        ttl: Some(HOUR),
    };
    // Writes of one key keep their order.
    writes.extend([field("batch-hash", "1"), field("batch-list", "wrong"), field("batch-hash", "2")]);
    writes.push(CacheWrite::DeleteKey { key: b"batch-0".to_vec() });
    let values = vec![b"a".to_vec(), b"b".to_vec()];
    writes.push(CacheWrite::ReplaceList { key: b"batch-1".to_vec(), values: values.clone(), ttl: None });
    let error = cache.write_batch(&writes).await.unwrap_err();
    assert!(error.to_string().contains("WRONGTYPE"), "{error}");
    assert_eq!(cache.get_hash_field(b"batch-hash", b"f").await.unwrap().unwrap(), b"2");
    ends_within(cache.hash_field_time_to_live(b"batch-hash", b"f").await.unwrap(), HOUR);
    assert_eq!(cache.get_string(b"batch-0").await.unwrap(), None);
    assert_eq!(cache.get_list(b"batch-1", 0, -1).await.unwrap(), values);
    assert_eq!(cache.get_string(b"batch-11999").await.unwrap().unwrap(), b"11999");
    assert_eq!(cache.keys(b"batch-*", 20_000).await.unwrap().len(), 12_001);
    cache.write_batch(&[]).await.unwrap();
}

async fn any_duration_is_a_life(bench: &Bench) {
    let cache = &bench.cache;
    cache.set_string(b"for ever", b"1", Some(Duration::MAX)).await.unwrap();
    cache.set_hash_field(b"for ever hash", b"f", b"1", Some(Duration::MAX)).await.unwrap();
    assert!(cache.time_to_live(b"for ever").await.unwrap().unwrap().unwrap() > HOUR * 24 * 365);
    cache.set_string(b"at once", b"1", Some(Duration::ZERO)).await.unwrap();
    cache.set_hash_field(b"at once hash", b"f", b"1", Some(Duration::from_micros(1))).await.unwrap();
    bench
        .until("both to expire", || async {
            cache.get_string(b"at once").await.unwrap().is_none()
                && cache.get_hash_field(b"at once hash", b"f").await.unwrap().is_none()
        })
        .await;
}

async fn channels_reach_their_readers(bench: &Bench) {
    let cache = &bench.cache;
    let (first, second) = (b"c\0\xff\n1".to_vec(), b"c2".to_vec());
    let mut both = cache.subscribe(&[first.clone(), second.clone()]).await.unwrap();
    let mut one = cache.subscribe(std::slice::from_ref(&second)).await.unwrap();
    for n in 0..50u8 {
        cache.publish(&first, &[n, 0, 0xff]).await.unwrap();
        cache.publish(&second, &[n]).await.unwrap();
    }
    assert_eq!(cache.publish(b"nobody listens", b"x").await.unwrap(), 0);
    let (mut of_first, mut of_second) = (Vec::new(), Vec::new());
    for _ in 0..100 {
        let message = both.next().await.unwrap().unwrap();
        if message.channel == first { &mut of_first } else { &mut of_second }.push(message.payload);
    }
    assert_eq!(of_first, (0..50u8).map(|n| vec![n, 0, 0xff]).collect::<Vec<_>>());
    assert_eq!(of_second, (0..50u8).map(|n| vec![n]).collect::<Vec<_>>());
    for n in 0..50u8 {
        assert_eq!(one.next().await.unwrap().unwrap().payload, [n]);
    }
}

async fn a_slow_reader_is_told_what_it_missed(bench: &Bench) {
    const SENT: usize = 3_000;
    let cache = &bench.cache;
    let mut slow = cache.subscribe(&[b"flood".to_vec()]).await.unwrap();
    let mut quick = cache.subscribe(&[b"end of flood".to_vec()]).await.unwrap();
    for n in 0..SENT {
        cache.publish(b"flood", n.to_string().as_bytes()).await.unwrap();
    }
    cache.publish(b"end of flood", b"").await.unwrap();
    quick.next().await.unwrap().unwrap();
    // Nothing was read meanwhile. What is missing is named before what is left, and the last one is there.
    let (mut received, mut missed) = (0, 0);
    loop {
        match slow.next().await.unwrap() {
            Ok(message) => {
                received += 1;
                if message.payload == (SENT - 1).to_string().as_bytes() {
                    break;
                }
            }
            Err(BackendError::Full { hint, .. }) => {
                missed += hint.split(' ').next().unwrap().parse::<usize>().unwrap();
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(missed > 0);
    assert_eq!(received + missed, SENT);
}

async fn values_may_be_big(bench: &Bench) {
    let cache = &bench.cache;
    let value: Vec<u8> = (0..4_000_000u32).map(|n| n as u8).collect();
    cache.set_string(b"big", &value, Some(HOUR)).await.unwrap();
    assert_eq!(cache.get_string(b"big").await.unwrap().unwrap(), value);
    cache.delete_key(b"big").await.unwrap();
}
