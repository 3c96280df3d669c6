//! The value that a step returns and that combiners fold: what a Lua table, number or string can say.

use std::collections::BTreeMap;

use bincode::{Decode, Encode};

/// A delta, an accumulator or a result.
#[derive(Debug, Clone, PartialEq, Default, Encode, Decode)]
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

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Value::Int(number)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Bytes(text.as_bytes().to_vec())
    }
}
