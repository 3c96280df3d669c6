//! Finds what has expired without looking at what has not.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// Milliseconds of the cache's clock; see [`super::cache::Clock`].
pub(super) type Moment = u64;
/// The moment of what never expires.
pub(super) const NEVER: Moment = Moment::MAX;

/// A bucket of the index: the moments of [`BUCKET_MILLIS`] milliseconds.
pub(super) type Bucket = u64;
/// The bucket of what is not filed.
pub(super) const UNFILED: Bucket = Bucket::MAX;

/// How coarse the index is. Reads look at the exact moment, so this only says how long the dead keep their memory.
const BUCKET_MILLIS: u64 = 256;

/// What may expire: a key, or one field of a hash.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Mortal {
    pub(super) key: Arc<[u8]>,
    pub(super) field: Option<Arc<[u8]>>,
}

/// Mortals by the time at which to look at them next.
///
/// Each mortal is filed at most once. One whose life is prolonged stays where it is: when its bucket comes up it is
/// filed again at its real end. So a heartbeat that is written every second costs the index nothing most times.
#[derive(Debug, Default)]
pub(super) struct Expiry {
    buckets: BTreeMap<Bucket, HashSet<Mortal>>,
    /// A bucket that has come up and is looked through bit by bit.
    due: Vec<Mortal>,
    due_bucket: Bucket,
}

impl Expiry {
    /// The first bucket that comes up when everything in it is over.
    pub(super) fn bucket(end: Moment) -> Bucket {
        if end == NEVER { UNFILED } else { end / BUCKET_MILLIS + 1 }
    }

    pub(super) fn file(&mut self, bucket: Bucket, mortal: Mortal) {
        self.buckets.entry(bucket).or_default().insert(mortal);
    }

    pub(super) fn remove(&mut self, bucket: Bucket, mortal: &Mortal) {
        if bucket == UNFILED {
            return;
        }
        if let Some(mortals) = self.buckets.get_mut(&bucket) {
            mortals.remove(mortal);
            if mortals.is_empty() {
                self.buckets.remove(&bucket);
            }
        }
    }

    /// The next mortal to look at, with the bucket it was filed in: it is to be removed, or filed again, or was
    /// meanwhile filed elsewhere.
    pub(super) fn next_due(&mut self, now: Moment) -> Option<(Bucket, Mortal)> {
        while self.due.is_empty() {
            let first = self.buckets.first_entry()?;
            if *first.key() > now / BUCKET_MILLIS {
                return None;
            }
            self.due_bucket = *first.key();
            self.due = first.remove().into_iter().collect();
        }
        self.due.pop().map(|mortal| (self.due_bucket, mortal))
    }

    /// How many are filed.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.due.len() + self.buckets.values().map(HashSet::len).sum::<usize>()
    }
}
