//! Messages and outbox records as bytes.
//!
//! ```text
//! 0      4        5     6      7      8             12              16
//! | SKLD | version| kind| flags| codec| body length | CRC-32C       | body …
//! |      | 1      |     | 1=LZ4| 1    | u32 LE      | of the body   | as sent
//! ```
//! The body is bincode ([`CODEC_BINCODE`]: little endian, variable-length integers) of what the kind says. With flag
//! bit 0 it is LZ4-compressed: the uncompressed length as u32 LE, then one LZ4 block. A body is compressed only when
//! it has at least [`COMPRESS_FROM`] bytes and becomes smaller by it.
//!
//! What a hostile peer can make [`decode`] allocate is bounded: the body's length and the uncompressed length that
//! it claims are compared with the caller's cap before anything is allocated; the collections of a body may together
//! claim about [`CLAIM_FACTOR`] times the body's length before they are filled, else they are refused before they are
//! allocated (no element takes more than that per byte, so nothing honest is refused); and values nest at most
//! [`MAX_DEPTH`] deep, so that neither reading nor dropping one can overflow
//! the stack.

use std::cell::RefCell;
use std::sync::Arc;

use bincode::config::{Configuration, Limit, LittleEndian, Varint};
use bincode::{Decode, Encode};
use lz4_flex::block::{CompressTable, compress_into, compress_into_with_table, get_maximum_output_size};

use super::hop::Record;
use super::message::Message;
use super::run::RunRecord;
use super::state::JobState;
use super::value::MAX_DEPTH;
use crate::core::task::Millis;

/// The first four bytes of every frame.
pub const MAGIC: [u8; 4] = *b"SKLD";
/// The version of the frame's layout.
pub const VERSION: u8 = 1;
/// Magic, version, kind, flags, codec, body length, checksum.
pub const HEADER: usize = 16;
/// The only codec so far.
pub const CODEC_BINCODE: u8 = 1;
/// Shorter bodies are never compressed.
pub const COMPRESS_FROM: usize = 256;
/// No body is longer than this, whatever a caller's cap says.
pub const MAX_BODY: usize = 32 << 20;
/// What a body's collections may claim in memory per byte of the body: the element that takes most for its least
/// encoding is a [`Value`](super::value::Value), 32 bytes for one.
pub const CLAIM_FACTOR: usize = 32;

const FLAG_LZ4: u8 = 1;
const KIND_RECORD: u8 = 0x80;
const KIND_RUN: u8 = 0x81;
const KIND_STATE: u8 = 2;

/// Why bytes are not a frame, or something cannot be made into one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Not ours at all.
    #[error("not a frame: it starts with {0:02x?}, not with \"SKLD\"; is something else using this port?")]
    Magic([u8; 4]),
    /// Another version.
    #[error("frame version {0} is not supported, only {VERSION}; upgrade the older of the two sides")]
    Version(u8),
    /// A kind that this version does not have, or not here.
    #[error("frame kind {0:#04x} is unknown here")]
    Kind(u8),
    /// Flags that this version does not have.
    #[error("frame flags {0:#010b} are not supported, only bit 0 (LZ4)")]
    Flags(u8),
    /// Another codec.
    #[error("frame codec {0} is not supported, only {CODEC_BINCODE} (bincode)")]
    Codec(u8),
    /// Longer than the receiver takes.
    #[error("a frame body of {length} bytes is over the limit of {limit}")]
    TooLong {
        /// What the frame claims or would have, in bytes.
        length: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// Damaged on the way.
    #[error("frame checksum is {found:08x} and should be {expected:08x}")]
    Checksum {
        /// What the header says.
        expected: u32,
        /// What the body has.
        found: u32,
    },
    /// The compressed body is not LZ4, or not as long as it says.
    #[error("frame body cannot be decompressed: {0}")]
    Compression(String),
    /// The body is not what the kind says.
    #[error("frame body of kind {kind:#04x} cannot be read: {reason}")]
    Body {
        /// The kind.
        kind: u8,
        /// What the codec says.
        reason: String,
    },
    /// Bytes are left over behind the body.
    #[error("{0} bytes are left over behind the frame")]
    Trailing(usize),
    /// Bytes are missing (only where a whole frame must be there, as in an outbox record).
    #[error("the frame ends early")]
    Incomplete,
    /// It cannot be encoded: a value nests too deep.
    #[error("a frame cannot be made: {0}")]
    Encode(String),
}

/// How large a body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EncodedSizes {
    /// Before compression, in bytes.
    pub raw: usize,
    /// As it goes out, in bytes; the same as `raw` when it is not compressed. The header is not counted.
    pub sent: usize,
}

/// Appends a message's frame to `out`; on an error `out` is as before.
pub fn encode(message: &Message, out: &mut Vec<u8>) -> Result<EncodedSizes, FrameError> {
    match message {
        Message::Hello(hello) => write(1, hello, out),
        Message::State(state) => encode_state(state, out),
        Message::Ack(ack) => write(3, ack, out),
        Message::Refuse(refuse) => write(4, refuse, out),
        Message::Attach(attach) => write(5, attach, out),
        Message::Progress(progress) => write(6, progress, out),
        Message::Recall(chain) => write(7, chain, out),
        Message::Recalled(recalled) => {
            recalled.state.as_deref().map_or(Ok(()), check_depth)?;
            write(8, recalled, out)
        }
        Message::End(end) => write(9, end, out),
        Message::Ended { job } => write(10, job, out),
        Message::Ping { at } => write(11, at, out),
        Message::Pong { at, queue, active } => write(12, (at, queue, active), out),
    }
}

/// Reads the frame at the start of `bytes`: the message and how many bytes it took; `None` while bytes are missing.
/// Neither the body as sent nor the uncompressed body may be longer than `max_body`. After an error the stream has
/// no known frame boundary any more: close the connection.
pub fn decode(bytes: &[u8], max_body: usize) -> Result<Option<(Message, usize)>, FrameError> {
    let Some(frame) = parse(bytes, max_body)? else { return Ok(None) };
    let message = match frame.kind {
        1 => Message::Hello(frame.read()?),
        KIND_STATE => Message::State(frame.read()?),
        3 => Message::Ack(frame.read()?),
        4 => Message::Refuse(frame.read()?),
        5 => Message::Attach(frame.read()?),
        6 => Message::Progress(frame.read()?),
        7 => Message::Recall(frame.read()?),
        8 => Message::Recalled(frame.read()?),
        9 => Message::End(frame.read()?),
        10 => Message::Ended { job: frame.read()? },
        11 => Message::Ping { at: frame.read()? },
        12 => {
            let (at, queue, active): (Millis, u32, u32) = frame.read()?;
            Message::Pong { at, queue, active }
        }
        kind => return Err(FrameError::Kind(kind)),
    };
    Ok(Some((message, frame.consumed)))
}

/// How long the body of the whole frame at the start of `bytes` is before compression: what [`EncodedSizes::raw`] was.
pub fn raw_length(bytes: &[u8]) -> usize {
    let number = |at: usize| {
        bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize)
    };
    let compressed = bytes.get(6).is_some_and(|flags| flags & FLAG_LZ4 != 0);
    number(if compressed { HEADER } else { 8 })
}

/// Appends a state as a frame of its own (what [`Message::State`] would be).
pub fn encode_state(state: &JobState, out: &mut Vec<u8>) -> Result<EncodedSizes, FrameError> {
    check_depth(state)?;
    write(KIND_STATE, state, out)
}

/// Reads what [`encode_state`] wrote; `bytes` must hold it and nothing else.
pub fn decode_state(bytes: &[u8], max_body: usize) -> Result<Arc<JobState>, FrameError> {
    read_whole(bytes, max_body, KIND_STATE)
}

/// Appends an outbox record as a frame of its own.
pub fn encode_record(record: &Record, out: &mut Vec<u8>) -> Result<EncodedSizes, FrameError> {
    record.state().map_or(Ok(()), check_depth)?;
    write(KIND_RECORD, record, out)
}

/// Reads what [`encode_record`] wrote; `bytes` must hold it and nothing else.
pub fn decode_record(bytes: &[u8], max_body: usize) -> Result<Record, FrameError> {
    read_whole(bytes, max_body, KIND_RECORD)
}

/// What would be refused when it is read is not written.
fn check_depth(state: &JobState) -> Result<(), FrameError> {
    if state.acc.is_too_deep() || state.parts.iter().any(|part| part.acc.is_too_deep()) {
        return Err(FrameError::Encode(format!("an accumulator nests deeper than {MAX_DEPTH} levels")));
    }
    Ok(())
}

fn write<T: Encode>(kind: u8, what: T, out: &mut Vec<u8>) -> Result<EncodedSizes, FrameError> {
    let start = out.len();
    out.resize(start + HEADER, 0);
    let result = write_body(&what, out, start);
    let (sizes, flags) = match result {
        Ok(written) => written,
        Err(error) => {
            out.truncate(start);
            return Err(error);
        }
    };
    let crc = crc32c::crc32c(&out[start + HEADER..]);
    let header = &mut out[start..start + HEADER];
    header[..4].copy_from_slice(&MAGIC);
    header[4..8].copy_from_slice(&[VERSION, kind, flags, CODEC_BINCODE]);
    header[8..12].copy_from_slice(&(sizes.sent as u32).to_le_bytes());
    header[12..].copy_from_slice(&crc.to_le_bytes());
    Ok(sizes)
}

fn write_body<T: Encode>(
    what: &T,
    out: &mut Vec<u8>,
    start: usize,
) -> Result<(EncodedSizes, u8), FrameError> {
    let body = start + HEADER;
    let raw = bincode::encode_into_std_write(what, out, bincode::config::standard())
        .map_err(|error| FrameError::Encode(error.to_string()))?;
    if raw > MAX_BODY {
        return Err(FrameError::TooLong { length: raw as u64, limit: MAX_BODY as u64 });
    }
    if raw >= COMPRESS_FROM
        && let Some(sent) = compress(out, body)?
    {
        return Ok((EncodedSizes { raw, sent }, FLAG_LZ4));
    }
    Ok((EncodedSizes { raw, sent: raw }, 0))
}

thread_local! {
    /// What LZ4 looks short inputs up in. It is cleared for every use, so that nothing but the time depends on it:
    /// allocating it anew took a tenth of a hop's processor time.
    static TABLE: RefCell<CompressTable> = RefCell::new(CompressTable::small());
}

/// Puts the compressed form in the place of what stands in `out` from `start` on, and returns its length; `None`, and
/// nothing has changed: it would not be shorter. Works in `out` alone, so that a buffer that is used again allocates
/// nothing.
fn compress(out: &mut Vec<u8>, start: usize) -> Result<Option<usize>, FrameError> {
    const PREFIX: usize = 4; // the uncompressed length
    let end = out.len();
    let raw = end - start;
    out.resize(end + PREFIX + get_maximum_output_size(raw), 0);
    let (plain, packed) = out[start..].split_at_mut(raw);
    packed[..PREFIX].copy_from_slice(&(raw as u32).to_le_bytes());
    let packed = &mut packed[PREFIX..];
    let length = if raw < usize::from(u16::MAX) {
        TABLE.with_borrow_mut(|table| compress_into_with_table(plain, packed, table))
    } else {
        compress_into(plain, packed)
    };
    let length = length.map_err(|error| FrameError::Encode(error.to_string()));
    let sent = match length {
        Ok(length) if PREFIX + length < raw => PREFIX + length,
        other => {
            out.truncate(end);
            return other.map(|_| None);
        }
    };
    out.copy_within(end..end + sent, start);
    out.truncate(start + sent);
    Ok(Some(sent))
}

struct Frame<'a> {
    kind: u8,
    flags: u8,
    body: &'a [u8],
    max_body: usize,
    consumed: usize,
}

fn parse(bytes: &[u8], max_body: usize) -> Result<Option<Frame<'_>>, FrameError> {
    let known = bytes.len().min(4);
    if bytes[..known] != MAGIC[..known] {
        let mut start = [0; 4];
        start[..known].copy_from_slice(&bytes[..known]);
        return Err(FrameError::Magic(start));
    }
    let Some(header) = bytes.first_chunk::<HEADER>() else { return Ok(None) };
    let [_, _, _, _, version, kind, flags, codec, l0, l1, l2, l3, c0, c1, c2, c3] = *header;
    if version != VERSION {
        return Err(FrameError::Version(version));
    }
    if codec != CODEC_BINCODE {
        return Err(FrameError::Codec(codec));
    }
    if flags & !FLAG_LZ4 != 0 {
        return Err(FrameError::Flags(flags));
    }
    let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    let limit = max_body.min(MAX_BODY);
    if length > limit {
        return Err(FrameError::TooLong { length: length as u64, limit: limit as u64 });
    }
    let Some(body) = bytes.get(HEADER..HEADER + length) else { return Ok(None) };
    let expected = u32::from_le_bytes([c0, c1, c2, c3]);
    let found = crc32c::crc32c(body);
    if expected != found {
        return Err(FrameError::Checksum { expected, found });
    }
    Ok(Some(Frame { kind, flags, body, max_body: limit, consumed: HEADER + length }))
}

/// Appends a coordinator's record as a frame of its own.
pub fn encode_run(record: &RunRecord, out: &mut Vec<u8>) -> Result<EncodedSizes, FrameError> {
    write(KIND_RUN, record, out)
}

/// Reads what [`encode_run`] wrote; `bytes` must hold it and nothing else.
pub fn decode_run(bytes: &[u8]) -> Result<RunRecord, FrameError> {
    read_whole(bytes, MAX_BODY, KIND_RUN)
}

fn read_whole<T: Decode<()>>(bytes: &[u8], max_body: usize, kind: u8) -> Result<T, FrameError> {
    let frame = parse(bytes, max_body)?.ok_or(FrameError::Incomplete)?;
    if frame.kind != kind {
        return Err(FrameError::Kind(frame.kind));
    }
    if frame.consumed != bytes.len() {
        return Err(FrameError::Trailing(bytes.len() - frame.consumed));
    }
    frame.read()
}

impl Frame<'_> {
    fn read<T: Decode<()>>(&self) -> Result<T, FrameError> {
        if self.flags & FLAG_LZ4 == 0 {
            return self.read_from(self.body);
        }
        let (length, packed) = lz4_flex::block::uncompressed_size(self.body)
            .map_err(|error| FrameError::Compression(error.to_string()))?;
        if length > self.max_body {
            return Err(FrameError::TooLong { length: length as u64, limit: self.max_body as u64 });
        }
        let raw = lz4_flex::block::decompress(packed, length)
            .map_err(|error| FrameError::Compression(error.to_string()))?;
        if raw.len() != length {
            return Err(FrameError::Compression(format!("{} bytes came out of {length}", raw.len())));
        }
        self.read_from(&raw)
    }

    fn read_from<T: Decode<()>>(&self, raw: &[u8]) -> Result<T, FrameError> {
        // The limit is a type parameter: four steps are enough to keep claims in proportion.
        let (what, read) = match raw.len() {
            0..=0x8000 => bincode::decode_from_slice(raw, claims::<{ CLAIM_FACTOR * 0x8000 }>()),
            0x8001..=0x10_0000 => bincode::decode_from_slice(raw, claims::<{ CLAIM_FACTOR * 0x10_0000 }>()),
            0x10_0001..=0x80_0000 => {
                bincode::decode_from_slice(raw, claims::<{ CLAIM_FACTOR * 0x80_0000 }>())
            }
            _ => bincode::decode_from_slice(raw, claims::<{ CLAIM_FACTOR * MAX_BODY }>()),
        }
        .map_err(|error| FrameError::Body { kind: self.kind, reason: error.to_string() })?;
        if read != raw.len() {
            return Err(FrameError::Trailing(raw.len() - read));
        }
        Ok(what)
    }
}

fn claims<const N: usize>() -> Configuration<LittleEndian, Varint, Limit<N>> {
    bincode::config::standard().with_limit::<N>()
}

#[cfg(test)]
mod tests;
