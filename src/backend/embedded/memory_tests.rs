use super::*;

fn counted(memory: &Memory) -> Size {
    memory.entries.iter().fold(Size::default(), |sum, (key, entry)| sum + entry.size(key))
}

/// Any mix of writes and time keeps the books right: sizes, index, and exact ends.
#[test]
fn sizes_and_the_index_are_exact_after_any_history() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut memory = Memory::new(CacheLimits { entries: 40, bytes: 6_000 });
        let mut now = 0;
        for _ in 0..400 {
            now += random.u64(0..400);
            let key = [b'k', random.u8(0..8)];
            let name = [b'f', random.u8(0..4)];
            let value = vec![0; random.usize(0..60)];
            let end = if random.u8(0..4) == 0 { NEVER } else { now + random.u64(1..3_000) };
            // Refused or not, the books must be right afterwards.
            let _ = match random.u8(0..8) {
                0 | 1 => memory.set_string(&key, &value, end, now).is_err(),
                2 | 3 => memory.set_hash_field(&key, &name, &value, end, now).is_err(),
                4 => memory.push_list(&key, &value, ListEnd::Head, Some(end), now).is_err(),
                5 => memory.replace_list(&key, &[value.clone(), value], end, now).is_err(),
                6 => memory.delete_hash_field(&key, &name, now).is_err(),
                _ => !memory.delete_key(&key, now),
            };
            memory.sweep(now, random.usize(0..3));
            assert_eq!(memory.size, counted(&memory), "seed {seed}");
            assert!(memory.size.entries <= 40 && memory.size.bytes <= 6_000);
        }
        memory.sweep(now + 10_000, usize::MAX);
        let immortal = |entry: &Entry| match &entry.value {
            Value::Hash(fields) => fields.values().all(|field| field.life.end == NEVER) && !fields.is_empty(),
            _ => entry.life.end == NEVER,
        };
        assert!(memory.entries.values().all(immortal), "seed {seed}");
        assert_eq!(memory.expiry.notes(), 0, "seed {seed}");
    }
}

#[test]
fn a_renewed_life_is_not_filed_again_and_a_shortened_one_is() {
    let mut memory = Memory::default();
    for now in (0..10_000).step_by(1_000) {
        memory.set_string(b"heartbeat", b"1", now + 8_000, now).unwrap();
        assert_eq!(memory.expiry.notes(), 1);
    }
    memory.set_string(b"heartbeat", b"1", 9_100, 9_050).unwrap();
    assert!(memory.exists(b"heartbeat", 9_099));
    memory.sweep(9_400, usize::MAX);
    assert!(memory.entries.is_empty());
}

#[test]
fn notes_of_what_came_and_went_do_not_pile_up() {
    let mut memory = Memory::default();
    for n in 0..100_000u64 {
        memory.set_string(b"lock", b"1", n + 3_600_000, n).unwrap();
        assert!(memory.delete_key(b"lock", n));
        memory.set_hash_field(b"h", &(n % 10).to_be_bytes(), b"1", n + 3_600_000, n).unwrap();
        memory.delete_hash_field(b"h", &((n + 5) % 10).to_be_bytes(), n).unwrap();
    }
    assert!(memory.expiry.notes() < 10_000, "{}", memory.expiry.notes());
    memory.sweep(10_000_000, usize::MAX);
    assert_eq!((memory.expiry.notes(), memory.entries.len()), (0, 0));
}

#[test]
fn a_full_cache_refuses_until_something_is_over() {
    let mut memory = Memory::new(CacheLimits { entries: 2, bytes: 10_000 });
    memory.set_string(b"a", b"1", 1_000, 0).unwrap();
    memory.set_hash_field(b"h", b"f", b"1", NEVER, 0).unwrap();
    let error = memory.set_hash_field(b"h", b"g", b"1", NEVER, 0).unwrap_err();
    assert!(matches!(error, BackendError::Full { .. }), "{error}");
    memory.set_string(b"a", b"22", 1_000, 0).unwrap();
    // The exact end counts, not the bucket of the index.
    assert_eq!(memory.get_string(b"a", 1_000).unwrap(), None);
    memory.set_hash_field(b"h", b"g", b"1", NEVER, 1_000).unwrap();
}
