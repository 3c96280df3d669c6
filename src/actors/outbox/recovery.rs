//! Opening an outbox: what the segments say, and where the last one is torn.

use std::collections::HashMap;

use super::disk::{Disk, DiskFile};
use super::journal::{Index, Journal, Segment};
use super::segment::{self, BadHeader, HEADER, Op, Seed};
use super::{OutboxError, OutboxOptions, Record};

impl<D: Disk> Journal<D> {
    /// Reads everything: the journal, ready to be written to, and the latest live record of each key in the order of
    /// the last writes.
    ///
    /// The end of the last segment may be torn by a crash: it is cut off, for a record there has never been
    /// acknowledged. A bad record anywhere else is an error: something that was acknowledged is gone.
    pub(super) fn open(disk: D, options: OutboxOptions) -> Result<(Self, Vec<Record>), OutboxError> {
        let mut journal = Journal::new(disk, options);
        let mut numbers =
            journal.disk.list().map_err(|error| journal.io("list the directory of", 0, error))?;
        numbers.sort_unstable();
        if let Some(gap) = numbers.windows(2).find(|pair| pair[0] + 1 != pair[1]) {
            return Err(OutboxError::Damaged {
                path: journal.disk.path(gap[0] + 1),
                offset: 0,
                what: "the segment is missing between its neighbours".into(),
            });
        }
        let mut newest = Newest::default();
        let mut sealed = true;
        for (place, number) in numbers.iter().enumerate() {
            let last = place + 1 == numbers.len();
            sealed = journal.read_segment(*number, last, &mut newest)?;
        }
        let records = newest.into_live(&mut journal.index);
        if sealed {
            journal.begin_segment()?;
        }
        Ok((journal, records))
    }

    /// Reads one segment; says whether it is sealed, which all but the last must be.
    fn read_segment(&mut self, number: u64, last: bool, newest: &mut Newest) -> Result<bool, OutboxError> {
        let file = self.disk.open(number).map_err(|error| self.io("open", number, error))?;
        let bytes = file.read_all().map_err(|error| self.io("read", number, error))?;
        let damaged = |offset: usize, what| OutboxError::Damaged {
            path: self.disk.path(number),
            offset: offset as u64,
            what,
        };
        let seed = match segment::read_header(&bytes, number) {
            Ok(seed) => seed,
            Err(BadHeader::Unfinished) if last => {
                file.truncate(0).map_err(|error| self.io("cut", number, error))?;
                self.allocated = 0;
                self.start_file(file, number)?;
                return Ok(false);
            }
            Err(BadHeader::Unfinished) => return Err(damaged(0, "it has no header".into())),
            Err(BadHeader::Damaged(what)) => return Err(damaged(0, what)),
        };
        let (end, sealed) = newest.read(&bytes, number, seed);
        self.sequence = self.sequence.max(newest.sequence);
        if !sealed {
            if !last {
                return Err(damaged(
                    end,
                    "no good record follows, but the segment is not the last one".into(),
                ));
            }
            if segment::holds_a_commit(&bytes[end..], seed) {
                let what = "a bad record stands before good ones that were written later";
                return Err(damaged(end, what.into()));
            }
            file.truncate(end as u64).map_err(|error| self.io("cut", number, error))?;
            file.sync().map_err(|error| self.io("sync", number, error))?;
            self.allocated = end as u64;
        }
        self.segments.push_back(Segment { number, file, seed, end: end as u64 });
        Ok(sealed)
    }
}

/// The newest record of each key, removals included.
#[derive(Default)]
struct Newest {
    records: HashMap<Vec<u8>, Found>,
    sequence: u64,
}

struct Found {
    sequence: u64,
    segment: u64,
    offset: u64,
    length: usize,
    /// `None`: the key was removed.
    live: Option<Record>,
}

impl Newest {
    /// Reads a segment's records: where they end, and whether that is by a seal.
    fn read(&mut self, bytes: &[u8], number: u64, seed: Seed) -> (usize, bool) {
        let mut offset = HEADER;
        while let Some(record) = segment::read(&bytes[offset..], seed) {
            self.sequence = self.sequence.max(record.sequence);
            let live = match record.op {
                Op::Seal => return (offset + record.length, true),
                Op::Remove => None,
                Op::Put => {
                    Some(Record { key: record.key.to_vec(), kind: record.kind, body: record.body.to_vec() })
                }
            };
            let found = Found {
                sequence: record.sequence,
                segment: number,
                offset: offset as u64,
                length: record.length,
                live,
            };
            match self.records.get_mut(record.key) {
                // Not older: a copy has the number of what it copies, and the later one stays.
                Some(old) if found.sequence >= old.sequence => *old = found,
                Some(_) => {}
                None => {
                    self.records.insert(record.key.to_vec(), found);
                }
            }
            offset += record.length;
        }
        (offset, false)
    }

    fn into_live(self, index: &mut Index) -> Vec<Record> {
        let mut found: Vec<Found> = self.records.into_values().filter(|found| found.live.is_some()).collect();
        found.sort_unstable_by_key(|found| found.sequence);
        found
            .into_iter()
            .filter_map(|found| {
                let record = found.live?;
                index.put(&record.key, found.segment, found.offset, found.length);
                Some(record)
            })
            .collect()
    }
}
