//! Names of the keys that this adapter adds to the users' own.

use crate::chain::slots::{slot_of, tag_of};

const MARK: &[u8] = b":skalds-ttl:";

/// Where the emulation keeps the ends of a hash's fields: in the hash's own slot, whatever bytes its key has.
pub(super) fn ends_of(key: &[u8]) -> Vec<u8> {
    let tag = tag_of(slot_of(key)).as_bytes();
    [b"{", tag, b"}", MARK, key].concat()
}

/// Whether a key is such a one.
pub(super) fn is_ends(key: &[u8]) -> bool {
    let Some(close) = key.iter().position(|byte| *byte == b'}') else { return false };
    key.strip_prefix(b"{").is_some()
        && key[close + 1..].strip_prefix(MARK).is_some_and(|hash| ends_of(hash) == key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_any_key_stand_in_its_slot() {
        for key in [&b""[..], b"skalds:hash", b"{}x", b"a}b", b"a{b", b"{user}:1", b"a{b}c", b"\0\xff\n {"] {
            let ends = ends_of(key);
            assert_eq!(slot_of(&ends), slot_of(key), "{key:?}");
            assert!(is_ends(&ends));
            assert!(!is_ends(key));
        }
        assert!(!is_ends(b"{x}:skalds-ttl:k"));
    }
}
