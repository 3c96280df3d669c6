//! Glob patterns over bytes, with the rules of Redis' `KEYS` and `SCAN MATCH`.

/// Whether `text` matches `pattern`: `*` any bytes, `?` one byte, `[abc]`, `[a-z]`, `[^a]` one byte of a set, `\x`
/// the byte x itself. Takes time in the product of both lengths at most, whatever the pattern.
pub(crate) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where to go on after a mismatch: behind the last `*`, which then swallows one byte more.
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        let step = match pattern.get(p) {
            Some(b'*') => {
                retry = Some((p + 1, t));
                p += 1;
                continue;
            }
            Some(_) => one(&pattern[p..], text[t]),
            None => None,
        };
        match (step, retry) {
            (Some(length), _) => {
                p += length;
                t += 1;
            }
            (None, Some((behind, from))) => {
                p = behind;
                t = from + 1;
                retry = Some((behind, t));
            }
            (None, None) => return false,
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// Matches one byte against the head of a non-empty pattern; says how long that head is.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern[0] {
        b'?' => Some(1),
        b'[' => set(pattern, byte),
        b'\\' if pattern.len() > 1 => (pattern[1] == byte).then_some(2),
        literal => (literal == byte).then_some(1),
    }
}

/// A set without its closing bracket ends with the pattern, as in Redis.
fn set(pattern: &[u8], byte: u8) -> Option<usize> {
    let mut at = 1;
    let negated = pattern.get(at) == Some(&b'^');
    if negated {
        at += 1;
    }
    let mut found = false;
    loop {
        match (pattern.get(at), pattern.get(at + 1), pattern.get(at + 2)) {
            (None, ..) => break,
            (Some(b']'), ..) => {
                at += 1;
                break;
            }
            (Some(b'\\'), Some(escaped), _) => {
                found |= *escaped == byte;
                at += 2;
            }
            (Some(low), Some(b'-'), Some(high)) => {
                found |= (*low.min(high)..=*low.max(high)).contains(&byte);
                at += 3;
            }
            (Some(literal), ..) => {
                found |= *literal == byte;
                at += 1;
            }
        }
    }
    (found != negated).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("task:*:heartbeat", "task:a:b:heartbeat", true),
            ("task:*:heartbeat", "task:a:heartbeats", false),
            ("h?llo", "hallo", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hello", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            (r"a\*b", "a*b", true),
            (r"a\*b", "axb", false),
            (r"[\]]x", "]x", true),
            ("[abc", "c", true),
            ("*a*a*a*", "bababab", true),
            ("a\n*", "a\nb", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
        assert!(matches(b"\xff*\0", b"\xff\xfe\0"));
    }

    #[test]
    fn many_stars_do_not_take_for_ever() {
        let text = vec![b'a'; 10_000];
        let pattern = "a*".repeat(200) + "b";
        assert!(!matches(pattern.as_bytes(), &text));
    }
}
