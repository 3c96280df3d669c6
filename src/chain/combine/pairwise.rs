//! Sum, least and greatest: numbers alone, or entry by entry in tables and lists.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::mem;

use super::CombineError;
use crate::chain::value::Value;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Sum,
    Min,
    Max,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Operation::Sum => "sum",
            Operation::Min => "min",
            Operation::Max => "max",
        }
    }

    fn wants(self) -> &'static str {
        match self {
            Operation::Sum => "numbers, and tables of numbers key by key",
            Operation::Min | Operation::Max => "two numbers or two strings, and tables of them key by key",
        }
    }
}

/// Checks the whole delta first, so that an error leaves the accumulator as it was.
pub(super) fn fold(operation: Operation, acc: &mut Value, delta: Value) -> Result<(), CombineError> {
    check(operation, acc, &delta)?;
    apply(operation, acc, delta)
}

fn check(operation: Operation, acc: &Value, delta: &Value) -> Result<(), CombineError> {
    let mismatch = || Err(CombineError::mismatch(operation.name(), acc, delta, operation.wants()));
    match (acc, delta) {
        (_, Value::Nil) => Ok(()),
        (Value::Nil | Value::Map(_) | Value::List(_), Value::Map(entries)) => {
            entries.iter().try_for_each(|(key, delta)| {
                let acc = match acc {
                    Value::Map(acc) => acc.get(key),
                    Value::List(acc) => index_of(key).and_then(|index| acc.get(index)),
                    _ => None,
                };
                check(operation, acc.unwrap_or(&Value::Nil), delta).map_err(|error| error.within(key))
            })
        }
        (Value::Nil | Value::Map(_) | Value::List(_), Value::List(elements)) => {
            elements.iter().enumerate().try_for_each(|(index, delta)| {
                let acc = match acc {
                    Value::Map(acc) => acc.get(&key_of(index)),
                    Value::List(acc) => acc.get(index),
                    _ => None,
                };
                check(operation, acc.unwrap_or(&Value::Nil), delta)
                    .map_err(|error| error.within(&key_of(index)))
            })
        }
        (Value::Nil, Value::Int(_) | Value::Float(_)) => Ok(()),
        (Value::Nil, Value::Bytes(_) | Value::Bool(_)) if operation != Operation::Sum => Ok(()),
        (Value::Nil, _) => mismatch(),
        (acc, delta) => scalar(operation, acc, delta).map(drop),
    }
}

/// What [`check`] has passed does not fail here.
fn apply(operation: Operation, acc: &mut Value, delta: Value) -> Result<(), CombineError> {
    match (acc, delta) {
        (_, Value::Nil) => Ok(()),
        (acc @ Value::Nil, delta) => {
            *acc = delta;
            Ok(())
        }
        (Value::Map(acc), Value::Map(delta)) => merge(operation, acc, delta),
        (Value::Map(acc), Value::List(delta)) => merge(operation, acc, to_map(delta)),
        (acc @ Value::List(_), Value::Map(delta)) => {
            if let Value::List(elements) = mem::take(acc) {
                *acc = Value::Map(to_map(elements));
            }
            apply(operation, acc, Value::Map(delta))
        }
        (Value::List(acc), Value::List(delta)) => {
            if acc.len() < delta.len() {
                acc.resize(delta.len(), Value::Nil);
            }
            acc.iter_mut().zip(delta).try_for_each(|(acc, delta)| apply(operation, acc, delta))
        }
        (acc, delta) => {
            *acc = scalar(operation, acc, &delta)?;
            Ok(())
        }
    }
}

/// The smaller table goes into the larger one.
fn merge(
    operation: Operation,
    acc: &mut BTreeMap<Vec<u8>, Value>,
    mut delta: BTreeMap<Vec<u8>, Value>,
) -> Result<(), CombineError> {
    if acc.len() < delta.len() {
        mem::swap(acc, &mut delta);
    }
    delta.into_iter().try_for_each(|(key, delta)| apply(operation, acc.entry(key).or_default(), delta))
}

fn scalar(operation: Operation, acc: &Value, delta: &Value) -> Result<Value, CombineError> {
    if let (Some(a), Some(b)) = (Number::of(acc), Number::of(delta)) {
        return match operation {
            Operation::Sum => a.plus(b).ok_or_else(|| CombineError::Overflow {
                acc: acc.shape(),
                delta: delta.shape(),
                at: String::new(),
            }),
            _ if a.is_nan() || b.is_nan() => Ok(Value::Float(f64::NAN)),
            _ => Ok(choose(operation, a.compare_strictly(b), acc, delta)),
        };
    }
    match (acc, delta) {
        (Value::Bytes(a), Value::Bytes(b)) if operation != Operation::Sum => {
            Ok(choose(operation, a.cmp(b), acc, delta))
        }
        (Value::Bool(a), Value::Bool(b)) if operation != Operation::Sum => {
            Ok(choose(operation, a.cmp(b), acc, delta))
        }
        _ => Err(CombineError::mismatch(operation.name(), acc, delta, operation.wants())),
    }
}

fn choose(operation: Operation, order: Ordering, acc: &Value, delta: &Value) -> Value {
    let acc_is_least = order != Ordering::Greater;
    if acc_is_least == (operation == Operation::Min) { acc.clone() } else { delta.clone() }
}

fn to_map(elements: Vec<Value>) -> BTreeMap<Vec<u8>, Value> {
    elements.into_iter().enumerate().map(|(index, element)| (key_of(index), element)).collect()
}

/// The key that a Lua table gives the element: counted from 1, in decimal.
fn key_of(index: usize) -> Vec<u8> {
    (index + 1).to_string().into_bytes()
}

fn index_of(key: &[u8]) -> Option<usize> {
    let number: usize = std::str::from_utf8(key).ok()?.parse().ok()?;
    let index = number.checked_sub(1)?;
    (key_of(index) == key).then_some(index)
}

/// A whole number or any other, compared exactly (a 64-bit whole number does not fit a float).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Number {
    Int(i64),
    Float(f64),
}

impl Number {
    pub(super) fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Int(number) => Some(Number::Int(*number)),
            Value::Float(number) => Some(Number::Float(*number)),
            _ => None,
        }
    }

    pub(super) fn is_nan(self) -> bool {
        matches!(self, Number::Float(number) if number.is_nan())
    }

    /// `None`: beyond 64 bits.
    fn plus(self, other: Self) -> Option<Value> {
        match (self, other) {
            (Number::Int(a), Number::Int(b)) => a.checked_add(b).map(Value::Int),
            (a, b) => Some(Value::Float(a.to_float() + b.to_float())),
        }
    }

    fn to_float(self) -> f64 {
        match self {
            Number::Int(number) => number as f64,
            Number::Float(number) => number,
        }
    }

    /// By value. NaN is above everything.
    pub(super) fn compare(self, other: Self) -> Ordering {
        match (self, other) {
            (Number::Int(a), Number::Int(b)) => a.cmp(&b),
            (Number::Int(a), Number::Float(b)) => compare_mixed(a, b),
            (Number::Float(a), Number::Int(b)) => compare_mixed(b, a).reverse(),
            (Number::Float(a), Number::Float(b)) => {
                a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
            }
        }
    }

    /// By value, and where that is equal by kind and sign, so that the choice does not depend on who came first.
    pub(super) fn compare_strictly(self, other: Self) -> Ordering {
        self.compare(other).then_with(|| match (self, other) {
            (Number::Int(_), Number::Float(_)) => Ordering::Less,
            (Number::Float(_), Number::Int(_)) => Ordering::Greater,
            (Number::Float(a), Number::Float(b)) => a.total_cmp(&b),
            (Number::Int(_), Number::Int(_)) => Ordering::Equal,
        })
    }
}

fn compare_mixed(whole: i64, float: f64) -> Ordering {
    const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;
    if float.is_nan() || float >= TWO_TO_63 {
        return Ordering::Less;
    }
    if float < -TWO_TO_63 {
        return Ordering::Greater;
    }
    let fraction = float.fract();
    whole.cmp(&(float.trunc() as i64)).then_with(|| 0.0.partial_cmp(&fraction).unwrap_or(Ordering::Equal))
}
