//! Hash slots: the set of them, a key's own, and a short tag for each.

use std::sync::OnceLock;

use bincode::{Decode, Encode};

/// How many hash slots a Redis Cluster has.
pub const SLOTS: u16 = 16_384;

const WORDS: usize = SLOTS as usize / 64;

/// A set of hash slots: 16,384 bits, of which only the words in use are kept.
#[derive(Clone, PartialEq, Eq, Default, Encode, Decode)]
pub struct SlotSet {
    /// `WORDS` words, or none for the empty set.
    words: Vec<u64>,
}

impl SlotSet {
    /// No slot.
    pub fn empty() -> Self {
        SlotSet::default()
    }

    /// All of them.
    pub fn full() -> Self {
        SlotSet { words: vec![u64::MAX; WORDS] }
    }

    /// The slots of a range, both ends included; slots past the last one are left out.
    pub fn range(first: u16, last: u16) -> Self {
        (first..=last.min(SLOTS - 1)).collect()
    }

    /// Adds a slot; says whether it is new. Slots past the last one are not added.
    pub fn insert(&mut self, slot: u16) -> bool {
        if slot >= SLOTS {
            return false;
        }
        if self.words.len() != WORDS {
            self.words.resize(WORDS, 0);
        }
        let word = &mut self.words[usize::from(slot) / 64];
        let bit = 1 << (slot % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Removes a slot; says whether it was there.
    pub fn remove(&mut self, slot: u16) -> bool {
        let Some(word) = self.words.get_mut(usize::from(slot) / 64) else { return false };
        let bit = 1 << (slot % 64);
        let there = *word & bit != 0;
        *word &= !bit;
        there
    }

    /// Whether it holds a slot.
    pub fn contains(&self, slot: u16) -> bool {
        self.words.get(usize::from(slot) / 64).is_some_and(|word| word & (1 << (slot % 64)) != 0)
    }

    /// How many slots it holds.
    pub fn len(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Its slots, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.words.iter().enumerate().flat_map(|(index, word)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                (rest != 0).then(|| {
                    let bit = rest.trailing_zeros();
                    rest &= rest - 1;
                    index as u16 * 64 + bit as u16
                })
            })
        })
    }

    /// Adds all of `other`.
    pub fn union_with(&mut self, other: &SlotSet) {
        self.words.resize(self.words.len().max(other.words.len()), 0);
        for (mine, theirs) in self.words.iter_mut().zip(&other.words) {
            *mine |= theirs;
        }
    }

    /// Removes all of `other`.
    pub fn subtract(&mut self, other: &SlotSet) {
        for (mine, theirs) in self.words.iter_mut().zip(&other.words) {
            *mine &= !theirs;
        }
    }

    /// Whether the two share a slot.
    pub fn intersects(&self, other: &SlotSet) -> bool {
        self.words.iter().zip(&other.words).any(|(mine, theirs)| mine & theirs != 0)
    }

    /// Its slots as inclusive ranges, ascending.
    pub fn ranges(&self) -> Vec<(u16, u16)> {
        let mut ranges: Vec<(u16, u16)> = Vec::new();
        for slot in self.iter() {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == slot => *last = slot,
                _ => ranges.push((slot, slot)),
            }
        }
        ranges
    }
}

impl FromIterator<u16> for SlotSet {
    fn from_iter<I: IntoIterator<Item = u16>>(slots: I) -> Self {
        let mut set = SlotSet::empty();
        for slot in slots {
            set.insert(slot);
        }
        set
    }
}

impl std::fmt::Debug for SlotSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SlotSet")?;
        f.debug_list().entries(self.ranges()).finish()
    }
}

/// The slot of a key: CRC-16/XMODEM of its hash tag, or of the whole key where it has none (Redis Cluster
/// specification, "Keys distribution model" and "Hash tags").
pub fn slot_of(key: &[u8]) -> u16 {
    crc16::State::<crc16::XMODEM>::calculate(hash_tag(key)) % SLOTS
}

fn hash_tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else { return key };
    match key[open + 1..].iter().position(|byte| *byte == b'}') {
        Some(length) if length > 0 => &key[open + 1..open + 1 + length],
        _ => key,
    }
}

/// A short text whose slot is `slot`: what goes between braces to put a key of ours into a given slot.
///
/// # Panics
/// When `slot` is not below [`SLOTS`].
pub fn tag_of(slot: u16) -> &'static str {
    static TAGS: OnceLock<Vec<String>> = OnceLock::new();
    let tags = TAGS.get_or_init(|| {
        let mut tags = vec![String::new(); usize::from(SLOTS)];
        let mut missing = SLOTS;
        let mut number = 0u32;
        while missing > 0 {
            let tag = number.to_string();
            let place = &mut tags[usize::from(slot_of(tag.as_bytes()))];
            if place.is_empty() {
                *place = tag;
                missing -= 1;
            }
            number += 1;
        }
        tags
    });
    &tags[usize::from(slot)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(slot_of(b"123456789"), 12_739); // 0x31C3, the check value of CRC-16/XMODEM
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"{user1000}.followers"));
        assert_eq!(slot_of(b"foo{}{bar}"), crc16::State::<crc16::XMODEM>::calculate(b"foo{}{bar}") % SLOTS);
        assert_eq!(slot_of(b"foo{{bar}}zap"), slot_of(b"{{bar}"));
        assert_eq!(slot_of(b"foo{bar}{zap}"), slot_of(b"bar"));
    }

    #[test]
    fn every_slot_has_a_tag_of_its_own() {
        for slot in 0..SLOTS {
            assert_eq!(slot_of(format!("skalds:unit:{{{}}}:job", tag_of(slot)).as_bytes()), slot);
        }
    }

    #[test]
    fn a_set_is_a_set() {
        let mut set = SlotSet::range(60, 70);
        assert!(!set.insert(60) && set.insert(3) && !set.insert(SLOTS));
        assert_eq!(set.ranges(), [(3, 3), (60, 70)]);
        set.subtract(&SlotSet::range(62, SLOTS));
        assert_eq!(set.iter().collect::<Vec<_>>(), [3, 60, 61]);
        assert!(set.intersects(&SlotSet::range(61, 61)) && !set.intersects(&SlotSet::range(62, 99)));
        set.union_with(&SlotSet::full());
        assert_eq!(set, SlotSet::full());
        assert_eq!(set.len(), 16_384);
    }
}
