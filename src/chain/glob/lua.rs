//! Globs as Lua 5.1 patterns, for the loop that runs inside the server.

use super::{ByteSet, Glob, Token};

/// Patterns for `string.find(key, part, from)`, each to be found after the end of the one before: a key matches the
/// glob when all are found. None at all: every key matches.
///
/// They are what stands between the stars. The first is tied to the start and the last to the end where no star
/// stands there; every other may be taken where it is found first. So nothing is ever tried again, whatever the glob.
/// It works for keys with any bytes.
pub fn to_lua_parts(glob: &[u8]) -> Vec<Vec<u8>> {
    let Glob { tokens, all } = Glob::new(glob);
    if all {
        return Vec::new();
    }
    if tokens == [Token::Star] {
        return vec![b"^.".to_vec()]; // `**` does not take the empty key
    }
    let last = tokens.split(|token| *token == Token::Star).count() - 1;
    let parts = tokens.split(|token| *token == Token::Star).enumerate();
    parts
        .filter(|(_, part)| !part.is_empty() || last == 0)
        .map(|(index, part)| {
            let mut pattern = Vec::new();
            if index == 0 {
                pattern.push(b'^');
            }
            for token in part {
                match token {
                    Token::Star => {} // the parts are what stands between
                    Token::Any => pattern.push(b'.'),
                    Token::Byte(byte) => push_byte(&mut pattern, *byte),
                    Token::Set(set) => push_set(&mut pattern, set),
                }
            }
            if index == last {
                pattern.push(b'$');
            }
            pattern
        })
        .collect()
}

fn push_byte(pattern: &mut Vec<u8>, byte: u8) {
    match byte {
        0 => pattern.extend(b"%z"), // a Lua 5.1 pattern ends at a NUL
        _ if byte.is_ascii_punctuation() => pattern.extend([b'%', byte]),
        _ => pattern.push(byte),
    }
}

fn push_set(pattern: &mut Vec<u8>, set: &ByteSet) {
    let size: u32 = set.0.iter().map(|word| word.count_ones()).sum();
    let negated = size == 0 || size > 128;
    pattern.push(b'[');
    if negated {
        pattern.push(b'^');
    }
    let listed = |byte: &u8| set.contains(*byte) != negated;
    let mut byte = 0;
    while let Some(first) = (byte..=u8::MAX).find(listed) {
        let last = (first..=u8::MAX).take_while(listed).last().unwrap_or(first);
        // The ends of a range cannot be escaped.
        let end = (first..=last).rev().find(|byte| is_plain(*byte)).unwrap_or(first);
        let next = if is_plain(first) && end - first > 1 {
            pattern.extend([first, b'-', end]);
            end
        } else {
            push_byte(pattern, first);
            first
        };
        match next.checked_add(1) {
            Some(next) => byte = next,
            None => break,
        }
    }
    pattern.push(b']');
}

fn is_plain(byte: u8) -> bool {
    byte != 0 && !byte.is_ascii_punctuation()
}
