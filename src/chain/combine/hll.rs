//! HyperLogLog: how many different strings, in 2^precision bytes.
//!
//! Hash and estimator are those of Redis' PFCOUNT: MurmurHash64A, and the estimator of Otmar Ertl, "New cardinality
//! estimation algorithms for HyperLogLog sketches" (arXiv:1702.01284), which needs no bias tables. The standard
//! error is 1.04 / sqrt(2^precision).

use std::mem;

use super::CombineError;
use super::lists::elements;
use crate::chain::value::Value;

/// What a job may ask for; anything else is refused at submission and held to these ends here.
const PRECISIONS: std::ops::RangeInclusive<u8> = 4..=16;

fn registers(precision: u8) -> usize {
    1 << precision.clamp(*PRECISIONS.start(), *PRECISIONS.end())
}

pub(super) fn fold(precision: u8, acc: &mut Value, delta: Value) -> Result<(), CombineError> {
    let size = registers(precision);
    let mismatch = |acc: &Value, delta: &Value| {
        CombineError::mismatch("hll", acc, delta, format!("lists of strings, or {size} bytes of registers"))
    };
    let hashes = match &delta {
        Value::Bytes(bytes) if bytes.len() == size => None,
        delta => Some(hashes(delta).ok_or_else(|| mismatch(acc, delta))?),
    };
    let mut own = match mem::take(acc) {
        Value::Bytes(own) if own.len() == size => own,
        other => match self::hashes(&other) {
            Some(hashes) => {
                let mut own = vec![0; size];
                hashes.into_iter().for_each(|hash| add(&mut own, hash));
                own
            }
            None => {
                *acc = other;
                return Err(mismatch(acc, &delta));
            }
        },
    };
    match (hashes, delta) {
        (Some(hashes), _) => hashes.into_iter().for_each(|hash| add(&mut own, hash)),
        (None, Value::Bytes(other)) => {
            own.iter_mut().zip(other).for_each(|(own, other)| *own = other.max(*own))
        }
        (None, _) => {}
    }
    *acc = Value::Bytes(own);
    Ok(())
}

fn hashes(value: &Value) -> Option<Vec<u64>> {
    elements(value)?
        .iter()
        .map(|value| match value {
            Value::Bytes(bytes) => Some(murmur64a(bytes)),
            Value::Int(number) => Some(murmur64a(number.to_string().as_bytes())),
            _ => None,
        })
        .collect()
}

fn add(registers: &mut [u8], hash: u64) {
    let index = hash as usize & (registers.len() - 1);
    let precision = registers.len().trailing_zeros();
    // The set bit ends the count for a hash whose remaining bits are all zero.
    let rank = ((hash >> precision) | 1 << (64 - precision)).trailing_zeros() as u8 + 1;
    registers[index] = registers[index].max(rank);
}

pub(super) fn finish(precision: u8, acc: Value) -> Value {
    match acc {
        Value::Bytes(own) if own.len() == registers(precision) => Value::Int(estimate(&own)),
        Value::Nil => Value::Int(0),
        other => other,
    }
}

/// Ertl's estimator, algorithm 6.
fn estimate(registers: &[u8]) -> i64 {
    let m = registers.len() as f64;
    let q = 64 - registers.len().trailing_zeros() as usize;
    let mut counts = [0u32; 66];
    for register in registers {
        counts[usize::from(*register).min(q + 1)] += 1;
    }
    let mut z = m * tau(1.0 - f64::from(counts[q + 1]) / m);
    for count in counts[1..=q].iter().rev() {
        z = 0.5 * (z + f64::from(*count));
    }
    z += m * sigma(f64::from(counts[0]) / m);
    (m * m / (2.0 * std::f64::consts::LN_2) / z).round() as i64
}

fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut y, mut z) = (1.0, x);
    loop {
        x *= x;
        let before = z;
        z += x * y;
        y += y;
        if before == z {
            return z;
        }
    }
}

fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut y, mut z) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = z;
        y *= 0.5;
        z -= (1.0 - x) * (1.0 - x) * y;
        if before == z {
            return z / 3.0;
        }
    }
}

/// MurmurHash64A (Austin Appleby, public domain) with the seed that Redis uses. Agents of every version must agree
/// on it: it is part of the state's format.
fn murmur64a(key: &[u8]) -> u64 {
    const SEED: u64 = 0xadc8_3b19;
    const M: u64 = 0xc6a4_a793_5bd1_e995;
    let mut hash = SEED ^ (key.len() as u64).wrapping_mul(M);
    let mut chunks = key.chunks_exact(8);
    for chunk in &mut chunks {
        let word = chunk.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)).wrapping_mul(M);
        hash = (hash ^ (word ^ word >> 47).wrapping_mul(M)).wrapping_mul(M);
    }
    let rest = chunks.remainder();
    if !rest.is_empty() {
        let word = rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        hash = (hash ^ word).wrapping_mul(M);
    }
    hash = (hash ^ hash >> 47).wrapping_mul(M);
    hash ^ hash >> 47
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_murmur() {
        // What the reference implementation in C says with this seed.
        assert_eq!(murmur64a(b""), 0xd8df_ea65_85bc_9732);
        assert_eq!(murmur64a(b"a"), 0x53d2_470a_9b43_b1a7);
        assert_eq!(murmur64a(b"12345678"), 0x95eb_b863_8913_2953);
        assert_eq!(murmur64a(b"hello, world: \xff"), 0x300c_ee70_35a4_b6b9);
    }

    #[test]
    fn the_estimate_is_within_four_standard_errors() {
        for precision in PRECISIONS {
            for n in [0u32, 1, 10, 300, 5_000, 30_000] {
                let mut own = vec![0; registers(precision)];
                (0..n).for_each(|i| add(&mut own, murmur64a(format!("member:{i}").as_bytes())));
                let bound = 4.0 * 1.04 / (own.len() as f64).sqrt() * f64::from(n);
                let error = (estimate(&own) - i64::from(n)).abs() as f64;
                assert!(error <= bound.max(1.0), "precision {precision}, {n} members: off by {error}");
            }
        }
    }
}
