//! Values as JSON, and bytes as text.

use serde_json::{Map, Number, Value as Json};

use super::{MAX_DEPTH, Value};

/// Why a JSON document is no value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JsonError {
    /// Lists and objects stand too deep in each other.
    #[error("JSON nested deeper than {MAX_DEPTH} levels cannot be a value; flatten it")]
    TooDeep,
}

impl Value {
    /// As JSON. Strings and keys are those of [`text_of`]. JSON has no numbers that are not finite: they are the
    /// texts `"NaN"`, `"Infinity"` and `"-Infinity"`, so that they are not mistaken for nothing.
    pub fn to_json(&self) -> Json {
        match self {
            Value::Nil => Json::Null,
            Value::Bool(value) => Json::Bool(*value),
            Value::Int(number) => Json::Number((*number).into()),
            Value::Float(number) => match Number::from_f64(*number) {
                Some(number) => Json::Number(number),
                None if number.is_nan() => "NaN".into(),
                None if *number > 0.0 => "Infinity".into(),
                None => "-Infinity".into(),
            },
            Value::Bytes(bytes) => Json::String(text_of(bytes)),
            Value::List(list) => Json::Array(list.iter().map(Value::to_json).collect()),
            Value::Map(map) => {
                Json::Object(map.iter().map(|(key, value)| (text_of(key), value.to_json())).collect())
            }
        }
    }

    /// From JSON. Strings and keys are read by [`bytes_of`], so a value comes back as it was, except that numbers
    /// that are not finite stay texts. A number beyond 64 bits is a float.
    ///
    /// # Errors
    /// When it nests deeper than [`MAX_DEPTH`].
    pub fn from_json(json: &Json) -> Result<Value, JsonError> {
        from_json_at(json, 0)
    }
}

fn from_json_at(json: &Json, depth: u8) -> Result<Value, JsonError> {
    if depth > MAX_DEPTH {
        return Err(JsonError::TooDeep);
    }
    Ok(match json {
        Json::Null => Value::Nil,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => match number.as_i64() {
            Some(number) => Value::Int(number),
            None => Value::Float(number.as_f64().unwrap_or(f64::NAN)), // every JSON number has a float
        },
        Json::String(text) => Value::Bytes(bytes_of(text)),
        Json::Array(list) => {
            Value::List(list.iter().map(|json| from_json_at(json, depth + 1)).collect::<Result<_, _>>()?)
        }
        Json::Object(map) => Value::Map(entries(map, depth)?),
    })
}

fn entries(
    map: &Map<String, Json>,
    depth: u8,
) -> Result<std::collections::BTreeMap<Vec<u8>, Value>, JsonError> {
    map.iter().map(|(key, json)| Ok((bytes_of(key), from_json_at(json, depth + 1)?))).collect()
}

/// Bytes as text: UTF-8 as it is, any other byte as `\xNN`. A backslash that would read as such an escape is
/// escaped too (`\x5c`), so different bytes are always different text; [`bytes_of`] reads it back.
pub fn text_of(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    let mut rest = bytes;
    while !rest.is_empty() {
        let (valid, invalid) = match std::str::from_utf8(rest) {
            Ok(valid) => (valid, 0),
            Err(error) => {
                let end = error.valid_up_to();
                // What `error_len` leaves out is a sequence cut off by the end of the bytes.
                let length = error.error_len().unwrap_or(rest.len() - end);
                (std::str::from_utf8(&rest[..end]).unwrap_or_default(), length) // valid: the error says so
            }
        };
        for (at, character) in valid.char_indices() {
            if character == '\\' && escaped_byte(&rest[at..]).is_some() {
                text.push_str("\\x5c");
            } else {
                text.push(character);
            }
        }
        rest = &rest[valid.len()..];
        for byte in &rest[..invalid] {
            text.push_str(&format!("\\x{byte:02x}"));
        }
        rest = &rest[invalid..];
    }
    text
}

/// The bytes that [`text_of`] writes as this text: `\xNN` (two hex digits) is one byte, everything else is itself.
pub fn bytes_of(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, others @ ..] = rest {
        match escaped_byte(rest) {
            Some(byte) => {
                bytes.push(byte);
                rest = &rest[4..];
            }
            None => {
                bytes.push(*first);
                rest = others;
            }
        }
    }
    bytes
}

/// The byte that an escape at the start of `bytes` stands for.
fn escaped_byte(bytes: &[u8]) -> Option<u8> {
    match bytes {
        [b'\\', b'x', high, low, ..] => Some(hex_digit(*high)? << 4 | hex_digit(*low)?),
        _ => None,
    }
}

fn hex_digit(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bytes_are_readable_text() {
        assert_eq!(text_of("order:ü \"1\"\n\0".as_bytes()), "order:ü \"1\"\n\0");
        assert_eq!(text_of(b"a\xffb\xc3"), "a\\xffb\\xc3");
        assert_eq!(text_of(b"C:\\temp\\x"), "C:\\temp\\x");
        assert_eq!(text_of(b"\\xff"), "\\x5cxff");
        assert_eq!(text_of(b"\\\xff"), "\\\\xff");
    }

    #[test]
    fn what_is_not_finite_is_text() {
        let json = |number: f64| Value::Float(number).to_json();
        assert_eq!(json(f64::NAN), "NaN");
        assert_eq!(json(f64::INFINITY), "Infinity");
        assert_eq!(json(f64::NEG_INFINITY), "-Infinity");
        assert_eq!(json(0.5).to_string(), "0.5");
    }

    #[test]
    fn deep_json_is_refused() {
        let nested = |depth| (0..depth).fold(Json::Null, |inner, _| Json::Array(vec![inner]));
        assert!(Value::from_json(&nested(MAX_DEPTH)).is_ok());
        assert_eq!(Value::from_json(&nested(MAX_DEPTH + 1)), Err(JsonError::TooDeep));
    }

    #[test]
    fn large_numbers_are_floats() {
        assert_eq!(Value::from_json(&serde_json::json!(u64::MAX)), Ok(Value::Float(u64::MAX as f64)));
        assert_eq!(Value::from_json(&serde_json::json!(i64::MIN)), Ok(Value::Int(i64::MIN)));
    }

    /// Bytes rich in what escapes are made of.
    fn tricky() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![Just(b'\\'), Just(b'x'), Just(b'5'), Just(b'c'), Just(b'F'), any::<u8>()];
        proptest::collection::vec(byte, 0..12)
    }

    fn finite_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Nil),
            any::<bool>().prop_map(Value::Bool),
            any::<i64>().prop_map(Value::Int),
            any::<f64>().prop_filter("finite", |number| number.is_finite()).prop_map(Value::Float),
            tricky().prop_map(Value::Bytes),
        ];
        leaf.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::List),
                proptest::collection::btree_map(tricky(), inner, 0..5).prop_map(Value::Map),
            ]
        })
    }

    proptest! {
        #[test]
        fn text_says_the_bytes(bytes in tricky()) {
            prop_assert_eq!(bytes_of(&text_of(&bytes)), bytes);
        }

        #[test]
        fn json_says_the_value(value in finite_value()) {
            prop_assert_eq!(Value::from_json(&value.to_json()), Ok(value));
        }
    }
}
