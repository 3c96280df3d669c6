//! The value that a step returns and that combiners fold: what a Lua table, number or string can say.

use std::collections::BTreeMap;

use bincode::Encode;
use bincode::de::{BorrowDecoder, Decode, Decoder};
use bincode::error::DecodeError;

mod json;

pub use json::{JsonError, bytes_of, text_of};

/// How deep lists and tables may stand in each other. Decoding is recursive: without a bound, a few megabytes of
/// nested lists from a broken peer would overflow the stack, which no caller can catch.
pub const MAX_DEPTH: u8 = 32;

/// A delta, an accumulator or a result.
#[derive(Debug, Clone, PartialEq, Default, Encode)]
pub enum Value {
    /// Nothing; the identity of every combiner.
    #[default]
    Nil,
    /// A truth value.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Any other number.
    Float(f64),
    /// A string; any bytes.
    Bytes(Vec<u8>),
    /// A list.
    List(Vec<Value>),
    /// A table with string keys (whole-number keys are written in decimal).
    Map(BTreeMap<Vec<u8>, Value>),
}

impl Value {
    /// Whether it nests deeper than [`MAX_DEPTH`]: no peer would read it.
    pub fn is_too_deep(&self) -> bool {
        fn too_deep(value: &Value, depth: u8) -> bool {
            match value {
                _ if depth > MAX_DEPTH => true,
                Value::List(items) => items.iter().any(|item| too_deep(item, depth + 1)),
                Value::Map(items) => items.values().any(|item| too_deep(item, depth + 1)),
                _ => false,
            }
        }
        too_deep(self, 0)
    }

    /// The size of its encoding, give or take the width of whole numbers: what it costs in a job state.
    pub fn approximate_bytes(&self) -> usize {
        1 + match self {
            Value::Nil => 0,
            Value::Bool(_) => 1,
            Value::Int(_) => 5, // 1 to 9
            Value::Float(_) => 8,
            Value::Bytes(bytes) => length_bytes(bytes.len()) + bytes.len(),
            Value::List(list) => {
                length_bytes(list.len()) + list.iter().map(Value::approximate_bytes).sum::<usize>()
            }
            Value::Map(map) => {
                let entry = |(key, value): (&Vec<u8>, &Value)| {
                    length_bytes(key.len()) + key.len() + value.approximate_bytes()
                };
                length_bytes(map.len()) + map.iter().map(entry).sum::<usize>()
            }
        }
    }

    /// What it is, for messages: the kind, and a number's value or the size of anything else.
    pub fn shape(&self) -> String {
        match self {
            Value::Nil => "nil".into(),
            Value::Bool(value) => format!("the boolean {value}"),
            Value::Int(number) => format!("the whole number {number}"),
            Value::Float(number) => format!("the number {number:?}"),
            Value::Bytes(bytes) => format!("a string of {} bytes", bytes.len()),
            Value::List(list) => format!("a list of {}", list.len()),
            Value::Map(map) => format!("a table of {}", map.len()),
        }
    }

    fn decode_at<D: Decoder>(decoder: &mut D, depth: u8) -> Result<Self, DecodeError> {
        if depth > MAX_DEPTH {
            return Err(DecodeError::Other("a value is nested too deeply"));
        }
        // The numbers are the derived encoder's: a variant's place in the enum.
        Ok(match u32::decode(decoder)? {
            0 => Value::Nil,
            1 => Value::Bool(Decode::decode(decoder)?),
            2 => Value::Int(Decode::decode(decoder)?),
            3 => Value::Float(Decode::decode(decoder)?),
            4 => Value::Bytes(Decode::decode(decoder)?),
            5 => {
                let length = decode_length(decoder)?;
                // Grows as elements arrive: a length alone allocates nothing.
                let mut list = Vec::new();
                for _ in 0..length {
                    list.push(Value::decode_at(decoder, depth + 1)?);
                }
                Value::List(list)
            }
            6 => {
                let length = decode_length(decoder)?;
                let mut map = BTreeMap::new();
                for _ in 0..length {
                    let key = Decode::decode(decoder)?;
                    map.insert(key, Value::decode_at(decoder, depth + 1)?);
                }
                Value::Map(map)
            }
            found => {
                return Err(DecodeError::UnexpectedVariant {
                    type_name: "Value",
                    allowed: &bincode::error::AllowedEnumVariants::Range { min: 0, max: 6 },
                    found,
                });
            }
        })
    }
}

/// How many bytes the codec takes for a length.
fn length_bytes(length: usize) -> usize {
    match length {
        0..251 => 1,
        251..0x1_0000 => 3,
        0x1_0000..0x1_0000_0000 => 5,
        _ => 9,
    }
}

fn decode_length<D: Decoder>(decoder: &mut D) -> Result<u64, DecodeError> {
    let length = u64::decode(decoder)?;
    // Every element takes at least one byte of input, which the decoder's own limit counts.
    decoder.claim_container_read::<u8>(usize::try_from(length).map_err(|_| DecodeError::LimitExceeded)?)?;
    decoder.unclaim_bytes_read(length as usize);
    Ok(length)
}

impl<Context> Decode<Context> for Value {
    fn decode<D: Decoder<Context = Context>>(decoder: &mut D) -> Result<Self, DecodeError> {
        Value::decode_at(decoder, 0)
    }
}

impl<'de, Context> bincode::BorrowDecode<'de, Context> for Value {
    fn borrow_decode<D: BorrowDecoder<'de, Context = Context>>(decoder: &mut D) -> Result<Self, DecodeError> {
        Value::decode_at(decoder, 0)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Value::Int(number)
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Value::Bytes(bytes)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Bytes(text.as_bytes().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(depth: u8) -> Value {
        (0..depth).fold(Value::Int(7), |inner, _| Value::List(vec![inner]))
    }

    fn round_trip(value: &Value) -> Result<Value, DecodeError> {
        let config = bincode::config::standard().with_limit::<{ 1 << 20 }>();
        let bytes = bincode::encode_to_vec(value, config).unwrap();
        bincode::decode_from_slice(&bytes, config).map(|(value, _)| value)
    }

    #[test]
    fn every_kind_survives_the_codec() {
        let map = BTreeMap::from([(b"\xff\0".to_vec(), Value::Nil), (vec![], Value::Bool(true))]);
        let value = Value::List(vec![Value::Map(map), Value::Float(-0.5), Value::Int(i64::MIN), "x".into()]);
        assert_eq!(round_trip(&value).unwrap(), value);
    }

    #[test]
    fn the_size_is_the_codecs() {
        let map = BTreeMap::from([(vec![b'k'; 300], Value::Float(1.5)), (vec![1], Value::Int(70_000))]);
        let value =
            Value::List(vec![Value::Map(map), Value::Nil, Value::Bool(true), vec![7u8; 70_000].into()]);
        let bytes = bincode::encode_to_vec(&value, bincode::config::standard()).unwrap();
        assert_eq!(value.approximate_bytes(), bytes.len());
    }

    #[test]
    fn nesting_is_bounded() {
        assert_eq!(round_trip(&nested(MAX_DEPTH)).unwrap(), nested(MAX_DEPTH));
        assert!(!nested(MAX_DEPTH).is_too_deep());
        assert!(round_trip(&nested(MAX_DEPTH + 1)).is_err());
        assert!(nested(MAX_DEPTH + 1).is_too_deep());
        let deep: Vec<u8> = [5u8, 1].repeat(200_000);
        let config = bincode::config::standard().with_limit::<{ 1 << 20 }>();
        assert!(bincode::decode_from_slice::<Value, _>(&deep, config).is_err());
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused() {
        let claim = [5u8, 253, 255, 255, 255, 255, 255, 255, 255, 255];
        let config = bincode::config::standard().with_limit::<{ 1 << 20 }>();
        assert!(bincode::decode_from_slice::<Value, _>(&claim, config).is_err());
    }
}
