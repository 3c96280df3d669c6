//! Values as the engine writes and reads them: RESP replies and cmsgpack.

use std::collections::BTreeMap;

use rmpv::Value as Packed;

use crate::chain::value::Value;

/// Lua's cmsgpack answers nothing for what is nested deeper than this (`LUACMSGPACK_MAX_NESTING`).
const MAX_NESTING: usize = 16;

/// A reply of the server. Maps of RESP3 and pairs keep their keys as text; an error inside it becomes its text.
pub(crate) fn from_resp(reply: redis::Value) -> Value {
    use redis::Value as Resp;
    match reply {
        Resp::Nil => Value::Nil,
        Resp::Int(number) => Value::Int(number),
        Resp::BulkString(bytes) => Value::Bytes(bytes),
        Resp::SimpleString(text) => Value::Bytes(text.into_bytes()),
        Resp::VerbatimString { text, .. } => Value::Bytes(text.into_bytes()),
        Resp::Okay => Value::from("OK"),
        Resp::Double(number) => Value::Float(number),
        Resp::Boolean(truth) => Value::Bool(truth),
        Resp::Array(items) | Resp::Set(items) => Value::List(items.into_iter().map(from_resp).collect()),
        Resp::Map(pairs) => Value::Map(
            pairs
                .into_iter()
                .map(|(key, value)| {
                    let key = match from_resp(key) {
                        Value::Bytes(key) => key,
                        other => format!("{other:?}").into_bytes(),
                    };
                    (key, from_resp(value))
                })
                .collect(),
        ),
        other => Value::Bytes(format!("{other:?}").into_bytes()),
    }
}

/// Reads the values that `cmsgpack.pack(a, b, …)` wrote one after the other.
pub(crate) fn unpack_all(mut bytes: &[u8]) -> Result<Vec<Value>, String> {
    let mut values = Vec::new();
    while !bytes.is_empty() {
        values.push(unpack(&mut bytes)?);
    }
    Ok(values)
}

/// Reads one value and moves on.
pub(crate) fn unpack(bytes: &mut &[u8]) -> Result<Value, String> {
    let packed = rmpv::decode::read_value_with_max_depth(bytes, 2 * MAX_NESTING + 8)
        .map_err(|error| format!("not msgpack: {error}"))?;
    from_packed(packed)
}

fn from_packed(packed: Packed) -> Result<Value, String> {
    Ok(match packed {
        Packed::Nil => Value::Nil,
        Packed::Boolean(truth) => Value::Bool(truth),
        // Lua numbers are doubles: what does not fit i64 was never exact.
        Packed::Integer(number) => match number.as_i64() {
            Some(number) => Value::Int(number),
            None => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Packed::F32(number) => Value::Float(number.into()),
        Packed::F64(number) => Value::Float(number),
        Packed::String(text) => Value::Bytes(text.into_bytes()),
        Packed::Binary(bytes) => Value::Bytes(bytes),
        Packed::Array(items) => Value::List(items.into_iter().map(from_packed).collect::<Result<_, _>>()?),
        Packed::Map(pairs) => {
            let mut map = BTreeMap::new();
            for (key, value) in pairs {
                map.insert(key_of(key)?, from_packed(value)?);
            }
            Value::Map(map)
        }
        Packed::Ext(kind, _) => return Err(format!("an extension of type {kind}")),
    })
}

fn key_of(key: Packed) -> Result<Vec<u8>, String> {
    match key {
        Packed::String(text) => Ok(text.into_bytes()),
        Packed::Binary(bytes) => Ok(bytes),
        Packed::Integer(number) => Ok(number.to_string().into_bytes()),
        Packed::F64(number) => Ok(number.to_string().into_bytes()),
        Packed::Boolean(truth) => Ok(truth.to_string().into_bytes()),
        other => Err(format!("a table key that is neither text nor number: {other}")),
    }
}

/// Writes a value for `cmsgpack.unpack`, which knows no binary type and takes any bytes in a string; `rmpv` writes no
/// string that is not UTF-8. So this is by hand, with the forms that every version reads.
pub(crate) fn pack(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    pack_into(value, &mut bytes);
    bytes
}

fn pack_into(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Nil => out.push(0xc0),
        Value::Bool(truth) => out.push(if *truth { 0xc3 } else { 0xc2 }),
        Value::Int(number @ 0..=127) => out.push(*number as u8),
        Value::Int(number) => {
            out.push(0xd3);
            out.extend(number.to_be_bytes());
        }
        Value::Float(number) => {
            out.push(0xcb);
            out.extend(number.to_be_bytes());
        }
        Value::Bytes(bytes) => {
            pack_length(bytes.len(), 0xa0, 31, 0xda, out);
            out.extend(bytes);
        }
        Value::List(items) => {
            pack_length(items.len(), 0x90, 15, 0xdc, out);
            items.iter().for_each(|item| pack_into(item, out));
        }
        Value::Map(map) => {
            pack_length(map.len(), 0x80, 15, 0xde, out);
            for (key, value) in map {
                pack_length(key.len(), 0xa0, 31, 0xda, out);
                out.extend(key);
                pack_into(value, out);
            }
        }
    }
}

/// A length in its short form (up to `short`, in the byte `base`), else in 16 bits after `wide`, or in 32 after the one
/// behind it.
fn pack_length(length: usize, base: u8, short: usize, wide: u8, out: &mut Vec<u8>) {
    if length <= short {
        out.push(base | length as u8);
    } else if let Ok(length) = u16::try_from(length) {
        out.push(wide);
        out.extend(length.to_be_bytes());
    } else {
        out.push(wide + 1);
        out.extend((length as u32).to_be_bytes()); // nothing of 4 GiB gets here: states are bounded
    }
}

/// The fields of an answer, taken one after the other; a script of ours that answers something else is a defect, and
/// is reported as what it answered.
pub(crate) struct Fields(std::vec::IntoIter<Value>);

impl Fields {
    pub(crate) fn new(values: Vec<Value>) -> Self {
        Fields(values.into_iter())
    }

    pub(crate) fn value(&mut self) -> Value {
        self.0.next().unwrap_or_default()
    }

    pub(crate) fn count(&mut self) -> Result<u64, String> {
        match self.value() {
            Value::Int(number) => {
                u64::try_from(number).map_err(|_| format!("{number} where a count belongs"))
            }
            other => Err(format!("{other:?} where a count belongs")),
        }
    }

    pub(crate) fn bytes(&mut self) -> Result<Vec<u8>, String> {
        match self.value() {
            Value::Bytes(bytes) => Ok(bytes),
            other => Err(format!("{other:?} where a text belongs")),
        }
    }

    pub(crate) fn text(&mut self) -> Result<String, String> {
        self.bytes().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// A text, or nothing (nil or false).
    pub(crate) fn bytes_or_none(&mut self) -> Result<Option<Vec<u8>>, String> {
        match self.value() {
            Value::Bytes(bytes) => Ok(Some(bytes)),
            Value::Nil | Value::Bool(false) => Ok(None),
            other => Err(format!("{other:?} where a text belongs")),
        }
    }

    pub(crate) fn list(&mut self) -> Result<Vec<Value>, String> {
        match self.value() {
            Value::List(items) => Ok(items),
            other => Err(format!("{other:?} where a list belongs")),
        }
    }

    /// A list of lists.
    pub(crate) fn rows(&mut self) -> Result<Vec<Fields>, String> {
        self.list()?
            .into_iter()
            .map(|row| match row {
                Value::List(fields) => Ok(Fields::new(fields)),
                other => Err(format!("{other:?} where a row belongs")),
            })
            .collect()
    }

    pub(crate) fn all_bytes(&mut self) -> Result<Vec<Vec<u8>>, String> {
        self.list()?
            .into_iter()
            .map(|item| match item {
                Value::Bytes(bytes) => Ok(bytes),
                other => Err(format!("{other:?} where a key belongs")),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_both_ways() {
        let value = Value::Map(BTreeMap::from([
            (b"n\0\xff".to_vec(), Value::List(vec![Value::Int(i64::MIN), Value::Float(0.5), Value::Nil])),
            (Vec::new(), Value::Bytes(vec![0, 255])),
        ]));
        let long = Value::List(vec![Value::Bytes(vec![7; 70_000]); 20]);
        assert_eq!(unpack_all(&pack(&long)).unwrap(), [long]);
        let mut both = pack(&value);
        both.extend(pack(&Value::Bool(true)));
        assert_eq!(unpack_all(&both).unwrap(), [value, Value::Bool(true)]);
    }

    #[test]
    fn rubbish_is_an_error() {
        assert!(unpack_all(&[0xa5, b'x']).is_err());
        assert!(unpack_all(&[0x91; 4096]).is_err());
        assert!(unpack_all(&[0xdd, 0xff, 0xff, 0xff, 0xff]).is_err());
    }

    #[test]
    fn whole_number_keys_are_decimal() {
        let mut bytes = Vec::new();
        rmpv::encode::write_value(&mut bytes, &Packed::Map(vec![(Packed::from(7), Packed::from(1))]))
            .unwrap();
        assert_eq!(
            unpack_all(&bytes).unwrap(),
            [Value::Map(BTreeMap::from([(b"7".to_vec(), Value::Int(1))]))]
        );
    }
}
