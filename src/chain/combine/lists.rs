//! The combiners that take lists: top-k, union, concat and histogram.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::mem;

use super::CombineError;
use super::pairwise::Number;
use crate::chain::value::Value;

const TOP: (&str, &str) = ("top-k", "lists of [score, member], a number and a string");
const UNION: (&str, &str) = ("union", "lists of strings, or tables of true");
const CONCAT: (&str, &str) = ("concat", "lists");
const HISTOGRAM: &str = "histogram";
const COUNTS: &[u8] = b"counts";

/// A list's elements; an empty table is an empty list too.
pub(super) fn elements(value: &Value) -> Option<&[Value]> {
    match value {
        Value::List(elements) => Some(elements),
        Value::Map(map) if map.is_empty() => Some(&[]),
        Value::Nil => Some(&[]),
        _ => None,
    }
}

/// A member's bytes; a whole number is a member by its decimal text.
pub(super) fn into_member(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::Bytes(bytes) => Some(bytes),
        Value::Int(number) => Some(number.to_string().into_bytes()),
        _ => None,
    }
}

pub(super) fn fold_top(k: u32, acc: &mut Value, delta: Value) -> Result<(), CombineError> {
    let fits = |value| elements(value).is_some_and(|pairs| pairs.iter().all(|pair| scored(pair).is_some()));
    if !fits(acc) || !fits(&delta) {
        return Err(CombineError::mismatch(TOP.0, acc, &delta, TOP.1));
    }
    let mut best = into_elements(mem::take(acc));
    best.extend(into_elements(delta).into_iter().map(with_text_member));
    // Stable, and quick on two sorted runs, which is what the accumulators of two chains are.
    best.sort_by(rank);
    best.truncate(k as usize);
    *acc = Value::List(best);
    Ok(())
}

fn into_elements(value: Value) -> Vec<Value> {
    match value {
        Value::List(elements) => elements,
        _ => Vec::new(),
    }
}

/// A pair's score and member.
fn scored(pair: &Value) -> Option<(Number, &Value)> {
    match pair {
        Value::List(pair) => match pair.as_slice() {
            [score, member @ (Value::Bytes(_) | Value::Int(_))] => {
                Number::of(score).filter(|score| !score.is_nan()).map(|score| (score, member))
            }
            _ => None,
        },
        _ => None,
    }
}

fn with_text_member(mut pair: Value) -> Value {
    if let Value::List(pair) = &mut pair
        && let Some(name) = pair.get_mut(1)
        && let Some(text) = into_member(mem::take(name))
    {
        *name = Value::Bytes(text);
    }
    pair
}

/// The highest score first, ties by member.
fn rank(a: &Value, b: &Value) -> Ordering {
    let (Some((score_a, a)), Some((score_b, b))) = (scored(a), scored(b)) else { return Ordering::Equal };
    let by_member = || match (a, b) {
        (Value::Bytes(a), Value::Bytes(b)) => a.cmp(b),
        _ => Ordering::Equal,
    };
    score_b.compare(score_a).then_with(by_member).then_with(|| score_b.compare_strictly(score_a))
}

pub(super) fn fold_union(cap: u32, acc: &mut Value, delta: Value) -> Result<(), CombineError> {
    // An accumulator that is a table is a set already: it is not walked again for every delta.
    if !is_set(&delta) || !(matches!(acc, Value::Map(_)) || is_set(acc)) {
        return Err(CombineError::mismatch(UNION.0, acc, &delta, UNION.1));
    }
    let mut more = into_set(delta);
    let mut set = match mem::take(acc) {
        Value::Map(set) => set,
        other => into_set(other),
    };
    let would = |set: &BTreeMap<Vec<u8>, Value>| {
        set.len() + more.keys().filter(|member| !set.contains_key(*member)).count()
    };
    if set.len() + more.len() > cap as usize && would(&set) > cap as usize {
        let would = would(&set);
        *acc = if set.is_empty() { Value::Nil } else { Value::Map(set) };
        return Err(over_cap(UNION.0, acc, &Value::Map(more), would, cap));
    }
    if set.len() < more.len() {
        mem::swap(&mut set, &mut more);
    }
    set.extend(more);
    *acc = Value::Map(set);
    Ok(())
}

fn is_set(value: &Value) -> bool {
    match value {
        Value::Map(map) => map.values().all(|held| matches!(held, Value::Nil | Value::Bool(true))),
        value => elements(value).is_some_and(|members| {
            members.iter().all(|name| matches!(name, Value::Bytes(_) | Value::Int(_)))
        }),
    }
}

fn into_set(value: Value) -> BTreeMap<Vec<u8>, Value> {
    match value {
        Value::Map(mut map) => {
            map.values_mut().for_each(|held| *held = Value::Nil);
            map
        }
        value => {
            into_elements(value).into_iter().filter_map(into_member).map(|name| (name, Value::Nil)).collect()
        }
    }
}

fn over_cap(combine: &'static str, acc: &Value, delta: &Value, would: usize, cap: u32) -> CombineError {
    CombineError::Cap { combine, acc: acc.shape(), delta: delta.shape(), would, cap }
}

pub(super) fn finish_union(acc: Value) -> Value {
    match acc {
        Value::Map(set) => Value::List(set.into_keys().map(Value::Bytes).collect()),
        Value::Nil => Value::List(Vec::new()),
        other => other,
    }
}

pub(super) fn fold_concat(cap: u32, acc: &mut Value, delta: Value) -> Result<(), CombineError> {
    let (Some(before), Some(more)) = (elements(acc), elements(&delta)) else {
        return Err(CombineError::mismatch(CONCAT.0, acc, &delta, CONCAT.1));
    };
    let would = before.len() + more.len();
    if would > cap as usize {
        return Err(over_cap(CONCAT.0, acc, &delta, would, cap));
    }
    match (acc, delta) {
        (Value::List(acc), Value::List(delta)) => acc.extend(delta),
        (acc, delta @ Value::List(_)) => *acc = delta,
        (acc @ (Value::Nil | Value::Map(_)), _) => *acc = Value::List(Vec::new()),
        _ => {}
    }
    Ok(())
}

pub(super) fn fold_histogram(bounds: &[f64], acc: &mut Value, delta: Value) -> Result<(), CombineError> {
    let mismatch = |acc: &Value, delta: &Value| {
        let wants = format!("lists of numbers (its counts have {} buckets)", bounds.len() + 1);
        CombineError::mismatch(HISTOGRAM, acc, delta, wants)
    };
    let mut counts = counts_of(bounds, acc).ok_or_else(|| mismatch(acc, &delta))?;
    let more = counts_of(bounds, &delta).ok_or_else(|| mismatch(acc, &delta))?;
    for (count, more) in counts.iter_mut().zip(more) {
        *count = count.checked_add(more).ok_or_else(|| CombineError::Overflow {
            acc: acc.shape(),
            delta: delta.shape(),
            at: String::new(),
        })?;
    }
    let counts = Value::List(counts.into_iter().map(Value::Int).collect());
    *acc = Value::Map(BTreeMap::from([(COUNTS.to_vec(), counts)]));
    Ok(())
}

fn counts_of(bounds: &[f64], value: &Value) -> Option<Vec<i64>> {
    if let Value::Map(map) = value
        && let Some(Value::List(counts)) = map.get(COUNTS)
        && map.len() == 1
        && counts.len() == bounds.len() + 1
    {
        let count = |value: &Value| match value {
            Value::Int(count) if *count >= 0 => Some(*count),
            _ => None,
        };
        return counts.iter().map(count).collect();
    }
    let mut counts = vec![0; bounds.len() + 1];
    for number in elements(value)? {
        let number = Number::of(number)?;
        let bucket =
            bounds.partition_point(|bound| Number::Float(*bound).compare(number) != Ordering::Greater);
        counts[bucket] += 1;
    }
    Some(counts)
}

pub(super) fn finish_histogram(bounds: &[f64], acc: Value) -> Value {
    match counts_of(bounds, &acc) {
        Some(counts) => Value::List(counts.into_iter().map(Value::Int).collect()),
        None => acc,
    }
}
