//! How deltas become one value: the fold of every [`Combine`] and what its accumulator finally says.
//!
//! An accumulator has the same shape as a delta, or a more compact one that only the combiner reads:
//!
//! | combiner | deltas | accumulator | [`finish`] |
//! | --- | --- | --- | --- |
//! | sum, min, max | numbers (min and max: strings and booleans too), lists and tables of them | the same | the same |
//! | top-k | lists of `[score, member]` | the `k` best, best first | the same |
//! | union | lists of strings, or tables of `true` | a table of nils | a sorted list |
//! | hll | lists of strings, or registers | a string of registers | the estimate, a whole number |
//! | histogram | lists of numbers | `{counts = [...]}` | the list of counts |
//! | concat | lists | a list | the same |
//!
//! Accumulators fold into each other exactly as deltas fold into them, so several chains may run at once. Every
//! fold is associative, and all but concat are commutative; sums of floats are so up to rounding, and whether a sum
//! past the largest whole number is met on the way depends on the order. Nil is the identity of all of them.
//!
//! A Lua array and a Lua table with the keys 1 to n are the same thing, and an empty table could be either. So
//! lists and tables fold into each other (element `i` is the entry `"i"`), and an empty one fits everywhere.

mod hll;
mod lists;
mod pairwise;

#[cfg(test)]
mod tests;

use super::job::Combine;
use super::value::Value;

/// Why a delta cannot be folded. The job cannot go on with this step and this combiner.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CombineError {
    /// The shapes do not go together.
    #[error("cannot fold {delta} into {acc}{at}: {combine} takes {wants}")]
    Mismatch {
        /// The combiner.
        combine: &'static str,
        /// The accumulator's shape.
        acc: String,
        /// The delta's shape.
        delta: String,
        /// The entry they stand in, as ` at "a" in "b"`; empty at the top.
        at: String,
        /// What the combiner takes.
        wants: String,
    },
    /// A whole number would not fit 64 bits.
    #[error(
        "the sum of {acc} and {delta}{at} is beyond 64 bits; let the step return floats (1.0 instead of 1)"
    )]
    Overflow {
        /// The accumulator's shape.
        acc: String,
        /// The delta's shape.
        delta: String,
        /// The entry they stand in; empty at the top.
        at: String,
    },
    /// More elements than the job allows.
    #[error(
        "folding {delta} into {acc} would make {would} elements and the cap of {combine} is {cap}; \
         raise the cap, or return less per key"
    )]
    Cap {
        /// The combiner.
        combine: &'static str,
        /// The accumulator's shape.
        acc: String,
        /// The delta's shape.
        delta: String,
        /// How many there would be.
        would: usize,
        /// How many may be.
        cap: u32,
    },
    /// The fold is the job's own.
    #[error("two deltas of a job with its own merge can only be folded by running its merge(a, b)")]
    NeedsMerge,
}

impl CombineError {
    fn mismatch(combine: &'static str, acc: &Value, delta: &Value, wants: impl Into<String>) -> Self {
        CombineError::Mismatch {
            combine,
            acc: acc.shape(),
            delta: delta.shape(),
            at: String::new(),
            wants: wants.into(),
        }
    }

    /// Says in which entry of a table or list it happened.
    fn within(mut self, entry: &[u8]) -> Self {
        if let CombineError::Mismatch { at, .. } | CombineError::Overflow { at, .. } = &mut self {
            let place = if at.is_empty() { "at" } else { "in" };
            *at += &format!(" {place} \"{}\"", super::value::text_of(entry));
        }
        self
    }
}

/// Folds a delta (or another accumulator) into an accumulator, in place.
///
/// # Errors
/// See [`CombineError`]; `acc` is then what it was before. [`Combine::Merge`] answers
/// [`CombineError::NeedsMerge`] unless one side is nil.
pub fn fold_into(combine: &Combine, acc: &mut Value, delta: Value) -> Result<(), CombineError> {
    if delta == Value::Nil {
        return Ok(());
    }
    match combine {
        Combine::Sum => pairwise::fold(pairwise::Operation::Sum, acc, delta),
        Combine::Min => pairwise::fold(pairwise::Operation::Min, acc, delta),
        Combine::Max => pairwise::fold(pairwise::Operation::Max, acc, delta),
        Combine::TopK { k } => lists::fold_top(*k, acc, delta),
        Combine::Union { cap } => lists::fold_union(*cap, acc, delta),
        Combine::Concat { cap } => lists::fold_concat(*cap, acc, delta),
        Combine::Histogram { bounds } => lists::fold_histogram(bounds, acc, delta),
        Combine::Hll { precision } => hll::fold(*precision, acc, delta),
        Combine::Merge if *acc == Value::Nil => {
            *acc = delta;
            Ok(())
        }
        Combine::Merge => Err(CombineError::NeedsMerge),
    }
}

/// [`fold_into`] for an accumulator that is given away.
///
/// # Errors
/// As [`fold_into`]; the accumulator is then gone.
pub fn fold(combine: &Combine, mut acc: Value, delta: Value) -> Result<Value, CombineError> {
    fold_into(combine, &mut acc, delta)?;
    Ok(acc)
}

/// The result that an accumulator stands for. Nothing folded is the combiner's empty answer: no elements, counts
/// of zero, an estimate of 0; for sum, min, max and the job's own merge it is nil.
pub fn finish(combine: &Combine, acc: Value) -> Value {
    match combine {
        Combine::Sum | Combine::Min | Combine::Max | Combine::Merge => acc,
        Combine::TopK { .. } | Combine::Concat { .. } => match acc {
            Value::Nil => Value::List(Vec::new()),
            acc => acc,
        },
        Combine::Union { .. } => lists::finish_union(acc),
        Combine::Histogram { bounds } => lists::finish_histogram(bounds, acc),
        Combine::Hll { precision } => hll::finish(*precision, acc),
    }
}
