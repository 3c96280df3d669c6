use proptest::prelude::*;

use super::*;

fn matches(pattern: &[u8], key: &[u8]) -> bool {
    Glob::new(pattern).matches(key)
}

/// What `KEYS pattern` answers on Redis 8.2.3 (x86) for a server that holds just this key.
const KNOWN: &[(&[u8], &[u8], bool)] = &[
    (b"*", b"", true),
    (b"**", b"", false),
    (b"", b"", true),
    (b"", b"a", false),
    (b"*", b"a", true),
    (b"?", b"", false),
    (b"a*", b"a", true),
    (b"a**", b"a", true),
    (b"*a", b"a", true),
    (b"h?llo", b"hello", true),
    (b"h?llo", b"hllo", false),
    (b"h*llo", b"hllo", true),
    (b"h*llo", b"heeeello", true),
    (b"h[ae]llo", b"hallo", true),
    (b"h[ae]llo", b"hillo", false),
    (b"h[^e]llo", b"hello", false),
    (b"h[^e]llo", b"hallo", true),
    (b"h[a-b]llo", b"hbllo", true),
    (b"h[b-a]llo", b"hallo", true),
    (b"[!a]", b"b", false),
    (b"[!a]", b"!", true),
    (b"\\*", b"*", true),
    (b"\\*", b"a", false),
    (b"a\\", b"a\\", true),
    (b"a\\", b"a", false),
    (b"\\\\", b"\\", true),
    (b"[]", b"]", false),
    (b"[]]", b"]", false),
    (b"[^]", b"a", true),
    (b"[^]]", b"a]", true),
    (b"[a-]", b"a", true),
    (b"[a-]", b"-", false),
    (b"[a-]", b"^", true),
    (b"[-a]", b"-", true),
    (b"[\\]]", b"]", true),
    (b"[\\-x]", b"-", true),
    (b"[a-\\]]", b"b]", false),
    (b"[a-\\]]", b"\\]", true),
    (b"[a\\-z]", b"-", true),
    (b"[a\\-z]", b"b", false),
    (b"[", b"[", false),
    (b"[a", b"a", true),
    (b"[ab", b"b", true),
    (b"[^", b"x", true),
    (b"[a-", b"-", true),
    (b"[a-c", b"b", true),
    (b"[\\", b"\\", true),
    (b"a]", b"a]", true),
    (b"[*]", b"*", true),
    (b"[*]", b"a", false),
    (b"[?]", b"?", true),
    (b"[^a]", b"\x0a", true),
    (b"?", b"\xff", true),
    (b"?", b"\x00", true),
    (b"a\x00*", b"a\x00b", true),
    (b"[\x00]", b"\x00", true),
    (b"[\x80-\xff]", b"\xc3", true),
    (b"[a-\xff]", b"b", false),
    (b"[a-\xff]", b"A", true),
    (b"[a-\xff]", b"\xff", true),
    (b"[a-\xff]", b"\x80", false),
    (b"*a*b*c", b"xaybzc", true),
    (b"*a*b*c", b"xbyazc", false),
    (b"*ab", b"aab", true),
    (b"a*a", b"a", false),
    (b"a*?", b"a", false),
    (b"a?*", b"ab", true),
    (b"\xc3\xbc?", b"\xc3\xbc\xc3\xa4", false),
    (b"\xc3\xbc??", b"\xc3\xbc\xc3\xa4", true),
    (b"A", b"a", false),
];

#[test]
fn keys_match_as_redis_has_it() {
    for (pattern, key, expected) in KNOWN {
        assert_eq!(matches(pattern, key), *expected, "{} on {}", pattern.escape_ascii(), key.escape_ascii());
    }
}

#[test]
fn the_simple_shapes_are_found() {
    let shape = |pattern: &str| Glob::new(pattern.as_bytes()).shape();
    assert_eq!(shape("*"), GlobShape::All);
    assert_eq!(shape("order:1"), GlobShape::Literal(b"order:1".to_vec()));
    assert_eq!(shape(r"a\*[b]"), GlobShape::Literal(b"a*b".to_vec()));
    assert_eq!(shape(""), GlobShape::Literal(vec![]));
    assert_eq!(shape("order:*"), GlobShape::Prefix(b"order:".to_vec()));
    assert_eq!(shape("order:**"), GlobShape::Prefix(b"order:".to_vec()));
    for general in ["**", "*:1", "a?*", "[ab]*", "a*b*"] {
        assert_eq!(shape(general), GlobShape::General, "{general}");
    }
}

#[test]
fn a_hostile_pattern_takes_no_longer_than_its_length_times_the_keys() {
    let key = vec![b'a'; 20_000];
    let pattern = [b"*a".repeat(500), b"*b".to_vec()].concat();
    assert!(!matches(&pattern, &key)); // a naive matcher would not come back
}

#[test]
fn lua_patterns_are_short_and_anchored() {
    let lua = |glob: &[u8]| {
        let parts = to_lua_parts(glob);
        parts.iter().map(|part| part.escape_ascii().to_string()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(lua(b"*"), "");
    assert_eq!(lua(b""), "^$");
    assert_eq!(lua(b"**"), "^.");
    assert_eq!(lua(b"order:*"), "^order%:");
    assert_eq!(lua(b"user:*:profile"), "^user%: %:profile$");
    assert_eq!(lua(b"k\0?[a-d^%]x"), "^k%z.[%%%^a-d]x$");
    assert_eq!(lua(b"[^a]"), "^[^a]$");
    assert_eq!(lua(b"*a*b*c*d*"), "a b c d");
}

/// Straight from the definition; exponential.
fn naive(tokens: &[Token], key: &[u8]) -> bool {
    match tokens.split_first() {
        None => key.is_empty(),
        Some((Token::Star, rest)) => (0..=key.len()).any(|skip| naive(rest, &key[skip..])),
        Some((one, rest)) => {
            key.split_first().is_some_and(|(byte, key)| one.takes(*byte) && naive(rest, key))
        }
    }
}

/// `stringmatchlen` of Redis 8, line by line, for patterns whose stars do not make it slow.
fn stringmatchlen(mut p: &[u8], mut s: &[u8]) -> bool {
    while !p.is_empty() && !s.is_empty() {
        match p[0] {
            b'*' => {
                while p.get(1) == Some(&b'*') {
                    p = &p[1..];
                }
                return p.len() == 1 || (0..s.len()).any(|skip| stringmatchlen(&p[1..], &s[skip..]));
            }
            b'?' => s = &s[1..],
            b'[' => {
                p = &p[1..];
                let negated = p.first() == Some(&b'^');
                if negated {
                    p = &p[1..];
                }
                let mut found = false;
                loop {
                    if p.len() >= 2 && p[0] == b'\\' {
                        p = &p[1..];
                        found |= p[0] == s[0];
                    } else if p.is_empty() || p[0] == b']' {
                        break;
                    } else if p.len() >= 3 && p[1] == b'-' {
                        let (start, end, byte) = (p[0] as i8, p[2] as i8, s[0] as i8);
                        p = &p[2..];
                        found |= (start.min(end)..=start.max(end)).contains(&byte);
                    } else {
                        found |= p[0] == s[0];
                    }
                    p = &p[1..];
                }
                if found == negated {
                    return false;
                }
                s = &s[1..];
            }
            first => {
                let byte = match p {
                    [b'\\', byte, ..] => {
                        p = &p[1..];
                        *byte
                    }
                    _ => first,
                };
                if byte != s[0] {
                    return false;
                }
                s = &s[1..];
            }
        }
        p = p.get(1..).unwrap_or_default();
        if s.is_empty() {
            while p.first() == Some(&b'*') {
                p = &p[1..];
            }
        }
    }
    p.is_empty() && s.is_empty()
}

/// What the loop in the server does with the parts.
fn lua_matches(parts: &[Vec<u8>], key: &[u8]) -> bool {
    let mut from = 0;
    parts.iter().all(|part| {
        let found = lua_find(part, key, from);
        from = found.unwrap_or(from);
        found.is_some()
    })
}

/// Lua 5.1's `string.find` for the patterns that are made here (`lstrlib.c`): where what it finds ends.
fn lua_find(pattern: &[u8], subject: &[u8], from: usize) -> Option<usize> {
    assert!(!pattern.contains(&0), "a Lua 5.1 pattern ends at a NUL");
    match pattern {
        [b'^', tied @ ..] => do_match(tied, &subject[from..]).map(|length| from + length),
        _ => {
            (from..=subject.len()).find_map(|at| do_match(pattern, &subject[at..]).map(|length| at + length))
        }
    }
}

/// How many bytes of `s` it takes.
fn do_match(p: &[u8], s: &[u8]) -> Option<usize> {
    match p {
        [] => Some(0),
        [b'$'] => s.is_empty().then_some(0),
        _ => {
            let end = class_end(p);
            let (first, rest) = s.split_first()?;
            single_match(*first, &p[..end]).then(|| do_match(&p[end..], rest))?.map(|length| length + 1)
        }
    }
}

fn class_end(p: &[u8]) -> usize {
    match p[0] {
        b'%' => 2,
        b'[' => {
            let mut at = if p[1] == b'^' { 2 } else { 1 };
            loop {
                at += if p[at] == b'%' { 2 } else { 1 };
                if p[at] == b']' {
                    return at + 1;
                }
            }
        }
        _ => 1,
    }
}

fn single_match(byte: u8, class: &[u8]) -> bool {
    match class {
        [b'.'] => true,
        [b'%', class] => class_match(byte, *class),
        [b'[', set @ .., b']'] => {
            let (set, negated) = if set[0] == b'^' { (&set[1..], true) } else { (set, false) };
            let mut rest = set;
            while let Some(first) = rest.first() {
                let (found, used) = match rest {
                    [b'%', class, ..] => (class_match(byte, *class), 2),
                    [start, b'-', end, ..] => ((*start..=*end).contains(&byte), 3),
                    _ => (*first == byte, 1),
                };
                if found {
                    return !negated;
                }
                rest = &rest[used..];
            }
            negated
        }
        class => class == [byte],
    }
}

fn class_match(byte: u8, class: u8) -> bool {
    match class {
        b'z' => byte == 0,
        class => {
            assert!(!class.is_ascii_alphanumeric(), "a character class is not meant");
            byte == class
        }
    }
}

fn pattern() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        4 => proptest::sample::select(b"*?[]^-\\ab".to_vec()),
        1 => proptest::sample::select(b"c%.$z\0\x7f\x80\xff".to_vec()),
    ];
    proptest::collection::vec(byte, 0..10)
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        4 => proptest::sample::select(b"ab".to_vec()),
        1 => proptest::sample::select(b"c*?[]^-\\%.$z\0\x7f\x80\xff".to_vec()),
    ];
    proptest::collection::vec(byte, 0..8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn matching_is_redis_own(pattern in pattern(), key in key()) {
        let expected = if pattern == b"*" { true } else { stringmatchlen(&pattern, &key) };
        prop_assert_eq!(matches(&pattern, &key), expected);
    }

    #[test]
    fn matching_is_the_definition(pattern in pattern(), key in key()) {
        prop_assume!(!key.is_empty());
        let glob = Glob::new(&pattern);
        prop_assert_eq!(glob.matches(&key), naive(&glob.tokens, &key));
    }

    #[test]
    fn the_lua_pattern_means_the_same(pattern in pattern(), key in key()) {
        let lua = to_lua_parts(&pattern);
        prop_assert_eq!(lua_matches(&lua, &key), matches(&pattern, &key), "{:?}", lua);
    }

    #[test]
    fn a_set_of_any_bytes_is_expressed_in_lua(bytes in proptest::collection::btree_set(any::<u8>(), 0..256)) {
        let mut set = ByteSet::default();
        bytes.iter().for_each(|byte| set.insert(*byte));
        // As a glob: every byte escaped.
        let glob: Vec<u8> = [b"[".to_vec(), bytes.iter().flat_map(|byte| [b'\\', *byte]).collect(), b"]".to_vec()].concat();
        let lua = to_lua_parts(&glob);
        for byte in 0..=u8::MAX {
            prop_assert_eq!(lua_matches(&lua, &[byte]), set.contains(byte), "{:?} on {}", lua, byte);
        }
    }

    #[test]
    fn the_shape_tells_the_truth(pattern in pattern(), key in key()) {
        let glob = Glob::new(&pattern);
        match glob.shape() {
            GlobShape::All => prop_assert!(glob.matches(&key)),
            GlobShape::Literal(literal) => prop_assert_eq!(glob.matches(&key), key == literal),
            GlobShape::Prefix(prefix) => prop_assert_eq!(glob.matches(&key), key.starts_with(&prefix)),
            GlobShape::General => {}
        }
    }
}
