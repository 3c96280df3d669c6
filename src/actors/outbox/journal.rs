//! The segments of one outbox and where in them the live records are. Knows no queue and no thread: one commit is
//! one write and one sync.
//!
//! The log is a ring. The oldest segment is the only one that is ever given up, and only when none of its records is
//! live; records that still are get copied to the end first, under their old sequence number, a few with every
//! commit. So a removal always outlives the puts that it removes, and no step needs to be atomic with another.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::sync::Arc;

use super::disk::{Disk, DiskFile};
use super::segment::{self, HEADER, Op, RECORD, Seed};
use super::{OutboxError, OutboxOptions};

/// How much is copied away from the oldest segment with one commit.
const COPY_PER_COMMIT: usize = 256 * 1024;

/// Records that are to be committed together, encoded but for what depends on where they go.
#[derive(Default)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    /// Where each record begins.
    starts: Vec<usize>,
}

impl Batch {
    pub(super) fn put(&mut self, key: &[u8], kind: u8, body: &[u8]) {
        self.starts.push(self.bytes.len());
        segment::append(&mut self.bytes, Op::Put, key, kind, body);
    }

    pub(super) fn remove(&mut self, key: &[u8]) {
        self.starts.push(self.bytes.len());
        segment::append(&mut self.bytes, Op::Remove, key, 0, &[]);
    }

    pub(super) fn len(&self) -> usize {
        self.starts.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.starts.clear();
    }

    /// Adds a record whose bytes the caller fills in.
    fn room(&mut self, length: usize) -> &mut [u8] {
        let start = self.bytes.len();
        self.starts.push(start);
        self.bytes.resize(start + length, 0);
        &mut self.bytes[start..]
    }

    fn append(&mut self, other: &mut Batch) {
        let base = self.bytes.len();
        self.bytes.append(&mut other.bytes);
        self.starts.extend(other.starts.drain(..).map(|start| base + start));
    }

    /// The records, one after the other.
    fn records(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let ends = self.starts.iter().skip(1).copied().chain([self.bytes.len()]);
        let mut rest = &mut self.bytes[..];
        self.starts.iter().zip(ends).map(move |(start, end)| {
            let (record, after) = std::mem::take(&mut rest).split_at_mut(end - start);
            rest = after;
            record
        })
    }
}

type Key = Arc<[u8]>;

/// Where a live record is.
#[derive(Debug, Clone, Copy)]
struct Place {
    segment: u64,
    offset: u64,
    length: usize,
}

/// Which keys are live, and where their records are.
#[derive(Default)]
pub(super) struct Index {
    places: HashMap<Key, Place>,
    /// The same by position, so that the live records of the oldest segment are at hand.
    order: BTreeMap<(u64, u64), Key>,
    bytes: u64,
}

impl Index {
    pub(super) fn put(&mut self, key: &[u8], segment: u64, offset: u64, length: usize) {
        self.remove(key);
        let key = Key::from(key);
        self.order.insert((segment, offset), Arc::clone(&key));
        self.places.insert(key, Place { segment, offset, length });
        self.bytes += length as u64;
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some(old) = self.places.remove(key) {
            self.order.remove(&(old.segment, old.offset));
            self.bytes -= old.length as u64;
        }
    }

    fn oldest_segment(&self) -> Option<u64> {
        self.order.first_key_value().map(|((segment, _), _)| *segment)
    }
}

/// An open segment file.
pub(super) struct Segment<F> {
    pub(super) number: u64,
    pub(super) file: F,
    pub(super) seed: Seed,
    /// Where its records end.
    pub(super) end: u64,
}

/// What is on the disk.
pub(super) struct Journal<D: Disk> {
    pub(super) disk: D,
    pub(super) options: OutboxOptions,
    /// Oldest first; the last one is written to.
    pub(super) segments: VecDeque<Segment<D::File>>,
    /// How far the last segment has been filled with zeros (or old bytes): a write below this changes no metadata,
    /// which makes its sync about a third cheaper.
    pub(super) allocated: u64,
    /// The last sequence number given.
    pub(super) sequence: u64,
    pub(super) index: Index,
}

impl<D: Disk> Journal<D> {
    /// A journal over segments that have been read; `commit` may follow when there is at least one.
    pub(super) fn new(disk: D, options: OutboxOptions) -> Self {
        Journal {
            disk,
            options,
            segments: VecDeque::new(),
            allocated: 0,
            sequence: 0,
            index: Index::default(),
        }
    }

    /// Live records and their bytes.
    pub(super) fn live(&self) -> (usize, u64) {
        (self.index.places.len(), self.index.bytes)
    }

    /// Makes a batch durable: one write, one sync. After an error nothing may be written any more: what a failed
    /// sync left behind is not known. Copies from the oldest segment are added to the batch.
    pub(super) fn write(&mut self, batch: &mut Batch) -> Result<(), OutboxError> {
        if batch.is_empty() {
            return Ok(());
        }
        let mut copies = self.copies_from_oldest()?;
        let copied = copies.len();
        if copied > 0 {
            copies.append(batch);
            std::mem::swap(batch, &mut copies);
        }
        let length = batch.bytes() as u64;
        let limit = self.options.segment_bytes as u64;
        let end = self.active().end;
        if end > HEADER as u64 && end + length + RECORD as u64 > limit {
            self.seal()?;
            self.begin_segment()?;
        }
        let seed = self.active().seed;
        for (place, record) in batch.records().enumerate() {
            // A copy keeps its number: it is as old as it was.
            let sequence = if place < copied {
                segment::sequence(record)
            } else {
                self.sequence += 1;
                self.sequence
            };
            segment::stamp(record, seed, sequence, place == 0);
        }
        let number = self.active().number;
        self.write_and_sync(&batch.bytes).map_err(|error| self.io("write to", number, error))
    }

    fn write_and_sync(&mut self, bytes: &[u8]) -> io::Result<()> {
        let active = self.active();
        active.file.write_at(bytes, active.end)?;
        let end = active.end + bytes.len() as u64;
        let mut allocated = self.allocated;
        if end > allocated {
            allocated = end.next_multiple_of(self.options.allocate_bytes.max(1) as u64);
            active.file.write_at(&vec![0; (allocated - end) as usize], end)?;
        }
        active.file.sync()?;
        self.allocated = allocated;
        Ok(())
    }

    /// Takes note of a batch that [`Journal::write`] has made durable, and gives up segments that hold nothing live.
    pub(super) fn apply(&mut self, batch: &mut Batch) -> Result<(), OutboxError> {
        let Some(active) = self.segments.back_mut() else { return Ok(()) };
        for record in batch.records() {
            let view = segment::trusted(record);
            match view.op {
                Op::Put => self.index.put(view.key, active.number, active.end, view.length),
                Op::Remove => self.index.remove(view.key),
                Op::Seal => {}
            }
            active.end += view.length as u64;
        }
        self.give_up()
    }

    /// Some of the oldest live records, when little of what is on the disk is live.
    fn copies_from_oldest(&self) -> Result<Batch, OutboxError> {
        let mut copies = Batch::default();
        let Some(oldest) = self.index.oldest_segment() else { return Ok(copies) };
        let used: u64 = self.segments.iter().filter(|one| one.number >= oldest).map(|one| one.end).sum();
        let segment_bytes = self.options.segment_bytes as u64;
        if oldest == self.active().number || used < 4 * self.index.bytes + segment_bytes + segment_bytes / 2 {
            return Ok(copies);
        }
        let Some(segment) = self.segments.iter().find(|one| one.number == oldest) else { return Ok(copies) };
        for ((_, offset), key) in self.index.order.range((oldest, 0)..(oldest + 1, 0)) {
            if copies.bytes() >= COPY_PER_COMMIT {
                break;
            }
            let Some(place) = self.index.places.get(key) else { continue };
            let record = copies.room(place.length);
            segment.file.read_at(record, *offset).map_err(|error| self.io("read", oldest, error))?;
            if segment::read(record, segment.seed).is_none_or(|record| record.key != &key[..]) {
                return Err(OutboxError::Damaged {
                    path: self.disk.path(oldest),
                    offset: *offset,
                    what: "a record that was good when it was written no longer is".into(),
                });
            }
        }
        Ok(copies)
    }

    /// Ends the last segment for good.
    fn seal(&mut self) -> Result<(), OutboxError> {
        let mut seal = Vec::with_capacity(RECORD);
        segment::append(&mut seal, Op::Seal, &[], 0, &[]);
        self.sequence += 1;
        let active = self.active();
        segment::stamp(&mut seal, active.seed, self.sequence, true);
        let sealed = active.file.write_at(&seal, active.end).and_then(|()| active.file.sync());
        let number = active.number;
        sealed.map_err(|error| self.io("end", number, error))?;
        if let Some(active) = self.segments.back_mut() {
            active.end += RECORD as u64;
        }
        Ok(())
    }

    /// Starts a segment: in the oldest file where nothing in that is live, so that it need not be filled again.
    pub(super) fn begin_segment(&mut self) -> Result<(), OutboxError> {
        let number = self.segments.back().map_or(1, |last| last.number + 1);
        let oldest_live = self.index.oldest_segment().unwrap_or(u64::MAX);
        let dead = self.segments.front().is_some_and(|first| first.number < oldest_live);
        let file = match if dead { self.segments.pop_front() } else { None } {
            Some(old) => {
                self.allocated = old.end;
                self.disk
                    .rename(old.number, number)
                    .map_err(|error| self.io("use again", old.number, error))?;
                old.file
            }
            None => {
                self.allocated = 0;
                self.disk.create(number).map_err(|error| self.io("create", number, error))?
            }
        };
        // The name first: a header of this number under the old name would look like damage after a crash.
        self.disk.sync().map_err(|error| self.io("sync the directory of", number, error))?;
        self.start_file(file, number)
    }

    /// Writes the header of a segment that is empty, and makes it the one that is written to.
    pub(super) fn start_file(&mut self, file: D::File, number: u64) -> Result<(), OutboxError> {
        let (header, seed) = segment::write_header(number, fastrand::Rng::new().u64(..));
        file.write_at(&header, 0).map_err(|error| self.io("write to", number, error))?;
        self.segments.push_back(Segment { number, file, seed, end: HEADER as u64 });
        Ok(())
    }

    /// Deletes the oldest segments while nothing in them is live, but keeps one to be used again.
    fn give_up(&mut self) -> Result<(), OutboxError> {
        let oldest_live = self.index.oldest_segment().unwrap_or(u64::MAX);
        let mut removed = false;
        while self.segments.len() > 2 && self.segments[1].number < oldest_live {
            let number = self.segments[0].number;
            self.disk.remove(number).map_err(|error| self.io("delete", number, error))?;
            self.segments.pop_front();
            removed = true;
        }
        if removed {
            let number = self.segments[0].number;
            self.disk.sync().map_err(|error| self.io("sync the directory of", number, error))?;
        }
        Ok(())
    }

    fn active(&self) -> &Segment<D::File> {
        &self.segments[self.segments.len() - 1]
    }

    pub(super) fn io(&self, action: &'static str, number: u64, error: io::Error) -> OutboxError {
        OutboxError::io(action, &self.disk.path(number), error)
    }
}
