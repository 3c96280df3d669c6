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
/// One whose life is prolonged stays where it is: when its bucket comes up it is filed again at its real end. So a
/// heartbeat that is written every second costs the index nothing most times. One that is removed, or filed earlier,
/// leaves a stale note behind, which is recognised when it comes up; when stale notes are many they are thrown out.
#[derive(Debug, Default)]
pub(super) struct Expiry {
    buckets: BTreeMap<Bucket, Vec<Mortal>>,
    /// A bucket that has come up and is looked through bit by bit.
    due: Vec<Mortal>,
    due_bucket: Bucket,
    notes: usize,
    stale: usize,
}

/// Stale notes are suffered until there are so many, and more than the others.
const MAX_STALE: usize = 1_024;

impl Expiry {
    /// The first bucket that comes up when everything in it is over.
    pub(super) fn bucket(end: Moment) -> Bucket {
        if end == NEVER { UNFILED } else { end / BUCKET_MILLIS + 1 }
    }

    pub(super) fn file(&mut self, bucket: Bucket, mortal: Mortal) {
        self.buckets.entry(bucket).or_default().push(mortal);
        self.notes += 1;
    }

    /// What was filed there is there no more, or was filed elsewhere.
    pub(super) fn forget(&mut self, bucket: Bucket) {
        if bucket != UNFILED {
            self.stale += 1;
        }
    }

    /// The next mortal to look at, with the bucket it was filed in. Either it is to be removed, or filed again, or the
    /// note was [`Expiry::stale_note`].
    pub(super) fn next_due(&mut self, now: Moment) -> Option<(Bucket, Mortal)> {
        while self.due.is_empty() {
            let first = self.buckets.first_entry()?;
            if *first.key() > now / BUCKET_MILLIS {
                return None;
            }
            self.due_bucket = *first.key();
            self.due = first.remove();
        }
        self.notes -= 1;
        self.due.pop().map(|mortal| (self.due_bucket, mortal))
    }

    pub(super) fn stale_note(&mut self) {
        self.stale = self.stale.saturating_sub(1);
    }

    /// Throws stale notes out when there are too many. `is_filed` says where a mortal is filed now.
    pub(super) fn tidy(&mut self, is_filed: impl Fn(&Mortal, Bucket) -> bool) {
        if self.stale <= MAX_STALE || self.stale <= self.notes / 2 {
            return;
        }
        let due_bucket = self.due_bucket;
        self.due.retain(|mortal| is_filed(mortal, due_bucket));
        self.notes = self.due.len();
        for (bucket, mortals) in &mut self.buckets {
            // One that was removed and filed there again would be in it twice.
            let unique: HashSet<Mortal> =
                mortals.drain(..).filter(|mortal| is_filed(mortal, *bucket)).collect();
            mortals.extend(unique);
            mortals.shrink_to_fit();
            self.notes += mortals.len();
        }
        self.buckets.retain(|_, mortals| !mortals.is_empty());
        self.stale = 0;
    }

    /// How many notes there are, stale ones included.
    #[cfg(test)]
    pub(super) fn notes(&self) -> usize {
        let counted = self.due.len() + self.buckets.values().map(Vec::len).sum::<usize>();
        assert_eq!(counted, self.notes);
        counted
    }
}
