//! Globs as Lua 5.1 patterns, for the loop that runs inside the server.

use super::{ByteSet, Glob, Token};

/// Stars that make Lua try again: it does so for every one of them, so the steps grow with the key's length to this
/// power. A star at the end costs nothing and is not counted.
const MAX_BACKTRACKING_STARS: usize = 3;

/// A pattern for `string.find(key, pattern)` that finds exactly the keys that the glob matches; `None` where Lua
/// could take too long over it (more than three stars before the last byte).
///
/// It works for keys with any bytes. `string.match` and Luau take it as well.
pub fn to_lua_pattern(glob: &[u8]) -> Option<Vec<u8>> {
    let Glob { mut tokens, all } = Glob::new(glob);
    if all {
        return Some(b"^".to_vec());
    }
    let mut pattern = vec![b'^'];
    let open_end = tokens.last() == Some(&Token::Star);
    if open_end {
        tokens.pop();
        if tokens.is_empty() {
            return Some(b"^.".to_vec()); // `**` does not take the empty key
        }
    }
    let stars = tokens.iter().filter(|token| **token == Token::Star).count();
    if stars > MAX_BACKTRACKING_STARS {
        return None;
    }
    let mut stars_left = stars;
    for token in &tokens {
        match token {
            Token::Star => {
                stars_left -= 1;
                // What stands after the last star is most often found fastest from the end.
                let lazy = stars_left > 0 || open_end;
                pattern.extend(if lazy { b".-" } else { b".*" });
            }
            Token::Any => pattern.push(b'.'),
            Token::Byte(byte) => push_byte(&mut pattern, *byte),
            Token::Set(set) => push_set(&mut pattern, set),
        }
    }
    if !open_end {
        pattern.push(b'$');
    }
    Some(pattern)
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
