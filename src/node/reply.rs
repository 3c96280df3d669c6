//! Values as the engine writes and reads them: RESP replies.

use crate::chain::value::Value;

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
