//! Hash slots: the set of them, a key's own, and a short tag for each.

use std::sync::OnceLock;

use bincode::de::{BorrowDecode, BorrowDecoder, Decode, Decoder};
use bincode::enc::{Encode, Encoder};
use bincode::error::{DecodeError, EncodeError};

/// How many hash slots a Redis Cluster has.
pub const SLOTS: u16 = 16_384;

const WORDS: usize = SLOTS as usize / 64;

/// A set with more ranges than this is encoded as a bitmap. A range takes 2 to 6 bytes, a bitmap 2,048.
const MAX_RANGES: u16 = 512;

/// A set of hash slots: 16,384 bits.
///
/// Encoded it is small where slots are contiguous, as a node's are: the number of ranges, then for each the gap
/// before it and its length less one. More than 512 ranges are a bitmap instead (number 65,535, then 2,048 bytes,
/// the lowest slot in the lowest bit).
#[derive(Clone, Default)]
pub struct SlotSet {
    /// `WORDS` words, or none for the empty set.
    words: Vec<u64>,
}

impl PartialEq for SlotSet {
    fn eq(&self, other: &Self) -> bool {
        match (self.words.len(), other.words.len()) {
            (mine, theirs) if mine == theirs => self.words == other.words,
            _ => self.is_empty() && other.is_empty(), // an emptied set keeps its words
        }
    }
}

impl Eq for SlotSet {}

impl Encode for SlotSet {
    fn encode<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        let ranges = self.ranges();
        if ranges.len() > usize::from(MAX_RANGES) {
            u16::MAX.encode(encoder)?;
            let mut bytes = [0u8; WORDS * 8];
            for (bytes, word) in bytes.chunks_exact_mut(8).zip(&self.words) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
            return bytes.encode(encoder);
        }
        (ranges.len() as u16).encode(encoder)?;
        let mut end = 0;
        for (first, last) in ranges {
            (first - end).encode(encoder)?;
            (last - first).encode(encoder)?;
            end = last + 1;
        }
        Ok(())
    }
}

impl<Context> Decode<Context> for SlotSet {
    fn decode<D: Decoder<Context = Context>>(decoder: &mut D) -> Result<Self, DecodeError> {
        const BAD: DecodeError = DecodeError::Other("a set of slots names slots that do not exist");
        match u16::decode(decoder)? {
            0 => Ok(SlotSet::empty()),
            u16::MAX => {
                let bytes = <[u8; WORDS * 8]>::decode(decoder)?;
                let word =
                    |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
                Ok(SlotSet { words: bytes.chunks_exact(8).map(word).collect() })
            }
            count if count <= MAX_RANGES => {
                // A few bytes become 2 KiB of memory: they count as such against the decoder's limit.
                decoder.claim_bytes_read(WORDS * 8)?;
                let mut set = SlotSet { words: vec![0; WORDS] };
                let mut end = 0u32;
                for _ in 0..count {
                    let first = end + u32::from(u16::decode(decoder)?);
                    end = first + u32::from(u16::decode(decoder)?) + 1;
                    if end > u32::from(SLOTS) {
                        return Err(BAD);
                    }
                    set.fill(first as u16, (end - 1) as u16);
                }
                Ok(set)
            }
            _ => Err(BAD),
        }
    }
}

impl<'de, Context> BorrowDecode<'de, Context> for SlotSet {
    fn borrow_decode<D: BorrowDecoder<'de, Context = Context>>(decoder: &mut D) -> Result<Self, DecodeError> {
        SlotSet::decode(decoder)
    }
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
        let last = last.min(SLOTS - 1);
        if first > last {
            return SlotSet::empty();
        }
        let mut set = SlotSet { words: vec![0; WORDS] };
        set.fill(first, last);
        set
    }

    /// Adds a range word by word. The words are there, and `first <= last < SLOTS`.
    fn fill(&mut self, first: u16, last: u16) {
        let (from, to) = (usize::from(first) / 64, usize::from(last) / 64);
        for index in from..=to {
            let mut mask = u64::MAX;
            if index == from {
                mask &= u64::MAX << (first % 64);
            }
            if index == to {
                mask &= u64::MAX >> (63 - last % 64);
            }
            self.words[index] |= mask;
        }
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

    /// The slots that both hold.
    pub fn intersection(&self, other: &SlotSet) -> SlotSet {
        SlotSet { words: self.words.iter().zip(&other.words).map(|(mine, theirs)| mine & theirs).collect() }
    }

    /// Whether the two share a slot.
    pub fn intersects(&self, other: &SlotSet) -> bool {
        self.words.iter().zip(&other.words).any(|(mine, theirs)| mine & theirs != 0)
    }

    /// Its slots as inclusive ranges, ascending.
    pub fn ranges(&self) -> Vec<(u16, u16)> {
        let mut ranges = Vec::new();
        let mut next = 0;
        while let Some(first) = self.seek(next, true) {
            let end = self.seek(first, false).unwrap_or(SLOTS);
            ranges.push((first, end - 1));
            next = end;
        }
        ranges
    }

    /// The first slot from `from` on that is in the set (or is not).
    fn seek(&self, from: u16, held: bool) -> Option<u16> {
        let start = usize::from(from) / 64;
        self.words.iter().enumerate().skip(start).find_map(|(index, word)| {
            let mut word = if held { *word } else { !*word };
            if index == start {
                word &= u64::MAX << (from % 64);
            }
            (word != 0).then(|| index as u16 * 64 + word.trailing_zeros() as u16)
        })
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

/// What goes between the braces of a key of ours to put it into this key's slot, as a walk's script tells it from the key
/// alone; where that cannot be told, [`tag_of`] its slot.
pub fn key_tag(key: &[u8]) -> &[u8] {
    let tag = hash_tag(key);
    if tag.is_empty() || tag.contains(&b'}') { tag_of(slot_of(key)).as_bytes() } else { tag }
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
    fn a_keys_tag_puts_another_key_into_its_slot() {
        for key in [&b"user:1"[..], b"a{b}c", b"", b"a}b", b"{}x", b"{a", b"{{a}}", b"}{a}{", b"a{}{b}"] {
            let ours = [b"ours:{", key_tag(key), b"}:x"].concat();
            assert_eq!(slot_of(&ours), slot_of(key), "{:?}", String::from_utf8_lossy(key));
        }
    }

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
        let mut emptied = SlotSet::range(5, 5);
        emptied.remove(5);
        assert_eq!(emptied, SlotSet::empty());
        assert_eq!(SlotSet::range(0, 9).intersection(&SlotSet::range(9, 20)), SlotSet::range(9, 9));
        assert_eq!(SlotSet::range(9, 8), SlotSet::empty());
    }

    const CONFIG: bincode::config::Configuration = bincode::config::standard();

    fn encoded(set: &SlotSet) -> Vec<u8> {
        bincode::encode_to_vec(set, CONFIG).unwrap()
    }

    fn decoded(bytes: &[u8]) -> Result<SlotSet, DecodeError> {
        bincode::decode_from_slice(bytes, CONFIG).map(|(set, _)| set)
    }

    #[test]
    fn a_set_of_ranges_takes_few_bytes() {
        assert_eq!(encoded(&SlotSet::empty()), [0]);
        assert_eq!(encoded(&SlotSet::full()), [1, 0, 251, 0xff, 0x3f]);
        assert_eq!(encoded(&[3, 60, 61].into_iter().collect()), [2, 3, 0, 56, 1]);
        assert_eq!(encoded(&(0..SLOTS).step_by(2).collect()).len(), 3 + 2048);
    }

    #[test]
    fn what_is_no_set_is_refused() {
        for bytes in
            [&[1, 251, 0, 64, 0][..], &[1, 0, 251, 0, 64], &[251, 1, 2], &[251, 0xff, 0xff, 1], &[2, 0, 0]]
        {
            assert!(decoded(bytes).is_err(), "{bytes:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_set_is_what_its_slots_are(
            slots in proptest::collection::btree_set(0..SLOTS, 0..2_000),
            (first, last) in (0..SLOTS, 0..SLOTS),
        ) {
            let mut set: SlotSet = slots.iter().copied().collect();
            assert_eq!(decoded(&encoded(&set)).unwrap(), set);
            set.union_with(&SlotSet::range(first, last));
            assert_eq!(decoded(&encoded(&set)).unwrap(), set);
            let mut all = slots;
            all.extend(first..=last);
            assert!(set.iter().eq(all.iter().copied()));
            let spread: Vec<u16> = set.ranges().into_iter().flat_map(|(first, last)| first..=last).collect();
            assert!(spread.iter().eq(all.iter()));
        }
    }
}
