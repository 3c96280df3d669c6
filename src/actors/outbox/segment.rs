//! The bytes of a segment file.
//!
//! ```text
//! header   magic "SKOUTBOX" | version u32 | number u64 | salt u64 | crc u32                        (32 bytes)
//! record   crc u32 | length u32 | sequence u64 | op u8 | kind u8 | key length u16 | key | body     (20 bytes + …)
//! ```
//! All numbers are little-endian. `length` is that of the whole record. A checksum is CRC-32C over everything after
//! it, continued from the header's, so that a record counts in one segment at one time only: what an earlier use of
//! the file left behind never looks like a record. Bit 7 of `op` marks the first record of a commit.

/// The length of a segment's header.
pub(super) const HEADER: usize = 32;
/// The length of a record without key and body.
pub(super) const RECORD: usize = 20;
/// The longest key.
pub(super) const MAX_KEY: usize = u16::MAX as usize;

const MAGIC: &[u8; 8] = b"SKOUTBOX";
const VERSION: u32 = 1;
const FIRST_OF_COMMIT: u8 = 0x80;

/// What a record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    /// The key now has this body.
    Put = 1,
    /// The key is gone.
    Remove = 2,
    /// The segment is complete; a next one follows.
    Seal = 3,
}

/// What starts the checksum of every record of a segment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seed(u32);

/// Why a header is not one.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BadHeader {
    /// The segment was being created when the machine stopped: nothing in it has ever been acknowledged.
    Unfinished,
    /// Anything else.
    Damaged(String),
}

/// Writes a segment's header.
pub(super) fn write_header(number: u64, salt: u64) -> ([u8; HEADER], Seed) {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[12..20].copy_from_slice(&number.to_le_bytes());
    header[20..28].copy_from_slice(&salt.to_le_bytes());
    let crc = crc32c::crc32c(&header[..28]);
    header[28..].copy_from_slice(&crc.to_le_bytes());
    (header, Seed(crc))
}

/// Reads the header of segment `number`.
pub(super) fn read_header(bytes: &[u8], number: u64) -> Result<Seed, BadHeader> {
    let Some(header) = bytes.get(..HEADER) else { return Err(BadHeader::Unfinished) };
    if header.iter().all(|byte| *byte == 0) {
        return Err(BadHeader::Unfinished);
    }
    let crc = u32_at(header, 28);
    if &header[..8] != MAGIC || crc32c::crc32c(&header[..28]) != crc {
        return Err(BadHeader::Damaged("its header is not one".into()));
    }
    let version = u32_at(header, 8);
    if version != VERSION {
        return Err(BadHeader::Damaged(format!("format version {version}, this program reads {VERSION}")));
    }
    // A file that is used again carries its old number until its new header is written.
    if u64_at(header, 12) != number {
        return Err(BadHeader::Unfinished);
    }
    Ok(Seed(crc))
}

/// Appends a record without its sequence number and checksum, which [`stamp`] fills in.
pub(super) fn append(buffer: &mut Vec<u8>, op: Op, key: &[u8], kind: u8, body: &[u8]) {
    let length = RECORD + key.len() + body.len();
    debug_assert!(key.len() <= MAX_KEY && length <= u32::MAX as usize);
    let mut head = [0; RECORD];
    head[4..8].copy_from_slice(&(length as u32).to_le_bytes());
    head[16] = op as u8;
    head[17] = kind;
    head[18..20].copy_from_slice(&(key.len() as u16).to_le_bytes());
    buffer.reserve(length);
    buffer.extend_from_slice(&head);
    buffer.extend_from_slice(key);
    buffer.extend_from_slice(body);
}

/// Completes a record for the segment it goes to.
pub(super) fn stamp(record: &mut [u8], seed: Seed, sequence: u64, first_of_commit: bool) {
    record[8..16].copy_from_slice(&sequence.to_le_bytes());
    record[16] &= !FIRST_OF_COMMIT;
    if first_of_commit {
        record[16] |= FIRST_OF_COMMIT;
    }
    let crc = crc32c::crc32c_append(seed.0, &record[4..]);
    record[..4].copy_from_slice(&crc.to_le_bytes());
}

/// A record as it stands in a segment.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct View<'a> {
    /// What it says.
    pub(super) op: Op,
    /// Which write it was: the highest of a key counts.
    pub(super) sequence: u64,
    /// The caller's.
    pub(super) kind: u8,
    /// The caller's.
    pub(super) key: &'a [u8],
    /// The caller's.
    pub(super) body: &'a [u8],
    /// The whole record's length.
    pub(super) length: usize,
    first_of_commit: bool,
}

/// Reads the record at the start of `bytes`; `None`: there is none.
pub(super) fn read(bytes: &[u8], seed: Seed) -> Option<View<'_>> {
    let length = u32_at(bytes.get(..RECORD)?, 4) as usize;
    let record = bytes.get(..length.max(RECORD))?;
    if length < RECORD + key_length(record)
        || !matches!(record[16] & !FIRST_OF_COMMIT, 1..=3)
        || crc32c::crc32c_append(seed.0, &record[4..]) != u32_at(record, 0)
    {
        return None;
    }
    Some(trusted(record))
}

/// Reads a record that is known to be whole: just written, or checked.
pub(super) fn trusted(record: &[u8]) -> View<'_> {
    let op = match record[16] & !FIRST_OF_COMMIT {
        1 => Op::Put,
        2 => Op::Remove,
        _ => Op::Seal,
    };
    let (key, body) = record[RECORD..].split_at(key_length(record));
    let first_of_commit = record[16] & FIRST_OF_COMMIT != 0;
    View {
        op,
        sequence: sequence(record),
        kind: record[17],
        key,
        body,
        length: record.len(),
        first_of_commit,
    }
}

/// A record's sequence number.
pub(super) fn sequence(record: &[u8]) -> u64 {
    u64_at(record, 8)
}

fn key_length(record: &[u8]) -> usize {
    usize::from(u16::from_le_bytes([record[18], record[19]]))
}

/// Whether a commit begins anywhere in `bytes`. A commit is only written when the one before it is durable: found
/// behind a bad record, it proves that the bad record is damage and not the torn end of the last write.
pub(super) fn holds_a_commit(bytes: &[u8], seed: Seed) -> bool {
    (0..bytes.len().saturating_sub(RECORD - 1)).any(|offset| {
        bytes[offset + 16] & FIRST_OF_COMMIT != 0
            && read(&bytes[offset..], seed).is_some_and(|record| record.first_of_commit)
    })
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_in_its_own_segment_only() {
        let (header, seed) = write_header(7, 1);
        assert_eq!(read_header(&header, 7).map(|seed| seed.0), Ok(seed.0));
        assert!(matches!(read_header(&header, 8), Err(BadHeader::Unfinished)));
        let (_, other) = write_header(7, 2);
        let mut bytes = Vec::new();
        append(&mut bytes, Op::Put, b"key", 9, b"body");
        stamp(&mut bytes, seed, 42, true);
        let record = read(&bytes, seed).expect("it was written with this seed");
        assert_eq!((record.op, record.sequence, record.kind), (Op::Put, 42, 9));
        assert_eq!((record.key, record.body, record.length), (&b"key"[..], &b"body"[..], bytes.len()));
        assert!(record.first_of_commit && read(&bytes, other).is_none());
        for cut in 0..bytes.len() {
            assert_eq!(read(&bytes[..cut], seed), None);
        }
        for flip in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[flip] ^= 4;
            assert_eq!(read(&bad, seed), None, "byte {flip}");
        }
    }

    #[test]
    fn a_foreign_header_is_named() {
        let (mut header, _) = write_header(7, 1);
        header[8] = 9;
        assert!(matches!(read_header(&header, 7), Err(BadHeader::Damaged(why)) if why.contains("not one")));
        let crc = crc32c::crc32c(&header[..28]);
        header[28..].copy_from_slice(&crc.to_le_bytes());
        assert!(matches!(read_header(&header, 7), Err(BadHeader::Damaged(why)) if why.contains("version 9")));
        assert_eq!(read_header(&[0; 99], 7).map(|seed| seed.0), Err(BadHeader::Unfinished));
    }
}
