//! The file that keeps events over the death of this process.
//!
//! ```text
//! magic "SKKAFKA1", then records: crc u32 | topic length u32 | key length u32 | value length u32 | topic | key | value
//! ```
//! Numbers are little-endian; a checksum is CRC-32C over everything of its record after it. A record that is cut off
//! or does not fit its checksum ends the file: it was being written when the machine stopped, and nobody was told
//! that it is kept.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::options::MAX_EVENT;
use crate::backend::{BackendError, Event};

const MAGIC: &[u8; 8] = b"SKKAFKA1";
const HEAD: usize = 16;

/// An open journal, locked for as long as it is.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    length: u64,
}

impl Journal {
    /// Opens or creates the journal in `folder` and answers the events that it holds.
    pub(super) fn open(folder: &Path) -> Result<(Self, Vec<Event>), BackendError> {
        let path = folder.join("kafka-outbox");
        let cannot = |error: &dyn std::fmt::Display| broken(&path, "open it", error);
        std::fs::create_dir_all(folder).map_err(|error| cannot(&error))?;
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600); // events may say what others must not read
        let mut file = options.open(&path).map_err(|error| cannot(&error))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(cannot(&"another process uses it; give each process a folder of its own"));
            }
            Err(TryLockError::Error(error)) => return Err(cannot(&error)),
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|error| cannot(&error))?;
        // A process may have died while it wrote the first eight bytes.
        if bytes.len() >= MAGIC.len() && !bytes.starts_with(MAGIC)
            || !MAGIC.starts_with(&bytes[..bytes.len().min(8)])
        {
            return Err(cannot(&"it is not an outbox; name another folder"));
        }
        let (events, good) = read(&bytes);
        if good < bytes.len() {
            tracing::warn!(file = %path.display(), bytes = bytes.len() - good, "the end of the outbox is cut off");
        }
        let mut journal = Journal { path, file, length: good as u64 };
        journal.begin().map_err(|error| broken(&journal.path, "prepare it", &error))?;
        Ok((journal, events))
    }

    /// The file holds what was read of it, and nothing after that.
    fn begin(&mut self) -> io::Result<()> {
        if self.length < MAGIC.len() as u64 {
            self.file.set_len(0)?;
            self.file.seek(SeekFrom::Start(0))?;
            self.file.write_all(MAGIC)?;
            self.length = MAGIC.len() as u64;
        } else {
            self.file.set_len(self.length)?;
        }
        self.file.sync_all()?;
        if let Some(folder) = self.path.parent() {
            File::open(folder)?.sync_all()?; // its name survives, too
        }
        Ok(())
    }

    /// Adds events; they are on disk when it returns. After an error the file holds what it held before.
    pub(super) fn append<'a>(&mut self, events: impl Iterator<Item = &'a Event>) -> Result<(), BackendError> {
        let mut bytes = Vec::new();
        events.for_each(|event| write(event, &mut bytes));
        let written = self
            .file
            .seek(SeekFrom::Start(self.length))
            .and_then(|_| self.file.write_all(&bytes))
            .and_then(|()| self.file.sync_data());
        match written {
            Ok(()) => {
                self.length += bytes.len() as u64;
                Ok(())
            }
            Err(error) => {
                // What was half written would be cut off at the next start, or is written over before.
                let _ = self.file.set_len(self.length);
                Err(broken(&self.path, "write to it", &error))
            }
        }
    }

    /// Replaces what it holds. A crash leaves more than `events`, or only a part of them, if they are written over: so
    /// it is done only when nothing is kept (`events` is empty) or through a second file.
    pub(super) fn replace(&mut self, events: &[Event]) -> Result<(), BackendError> {
        let replaced = if events.is_empty() { self.clear() } else { self.rewrite(events) };
        replaced.map_err(|error| broken(&self.path, "shorten it", &error))
    }

    fn clear(&mut self) -> io::Result<()> {
        self.length = MAGIC.len() as u64;
        self.file.set_len(self.length)?;
        self.file.sync_data()
    }

    fn rewrite(&mut self, events: &[Event]) -> io::Result<()> {
        let mut bytes = MAGIC.to_vec();
        events.iter().for_each(|event| write(event, &mut bytes));
        let other = self.path.with_extension("new");
        let mut file = File::options().read(true).write(true).create(true).truncate(true).open(&other)?;
        // The lock belongs to the file: the new one has it before it takes the name.
        file.try_lock().map_err(io::Error::other)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        std::fs::rename(&other, &self.path)?;
        if let Some(folder) = self.path.parent() {
            File::open(folder)?.sync_all()?;
        }
        self.file = file;
        self.length = bytes.len() as u64;
        Ok(())
    }

    /// Its length in bytes.
    pub(super) fn length(&self) -> u64 {
        self.length
    }
}

fn broken(path: &Path, action: &str, error: &dyn std::fmt::Display) -> BackendError {
    BackendError::Refused {
        service: format!("the kafka outbox {}", path.display()),
        action: action.into(),
        reason: error.to_string(),
    }
}

fn write(event: &Event, into: &mut Vec<u8>) {
    let at = into.len();
    into.extend_from_slice(&[0; 4]);
    // The bound on events is far below what 32 bits count.
    for part in [event.topic.len(), event.key.len(), event.value.len()] {
        into.extend_from_slice(&(part as u32).to_le_bytes());
    }
    into.extend_from_slice(event.topic.as_bytes());
    into.extend_from_slice(&event.key);
    into.extend_from_slice(&event.value);
    let crc = crc32c::crc32c(&into[at + 4..]);
    into[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

/// The events of a file, and where what is good of it ends.
fn read(bytes: &[u8]) -> (Vec<Event>, usize) {
    let mut events = Vec::new();
    let mut at = MAGIC.len().min(bytes.len());
    while let Some((event, length)) = bytes.get(at..).and_then(read_one) {
        events.push(event);
        at += length;
    }
    (events, at)
}

fn read_one(bytes: &[u8]) -> Option<(Event, usize)> {
    let number = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let crc = number(0)?;
    let lengths = [number(4)?, number(8)?, number(12)?].map(|length| length as usize);
    if lengths.iter().any(|length| *length > MAX_EVENT) {
        return None;
    }
    let length = HEAD + lengths.iter().sum::<usize>();
    let record = bytes.get(..length)?;
    if crc32c::crc32c(&record[4..]) != crc {
        return None;
    }
    let (topic, rest) = record[HEAD..].split_at(lengths[0]);
    let (key, value) = rest.split_at(lengths[1]);
    let topic = std::str::from_utf8(topic).ok()?.to_owned();
    Some((Event { topic, key: key.to_vec(), value: value.to_vec() }, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(n: u8) -> Event {
        Event { topic: "t".into(), key: vec![0, 255, n], value: vec![n; n as usize] }
    }

    #[test]
    fn what_was_written_is_there_again_and_a_torn_end_is_cut_off_at_any_byte() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, events) = Journal::open(folder.path()).unwrap();
        assert!(events.is_empty());
        let written: Vec<Event> = (0..4).map(event).collect();
        journal.append(written[..3].iter()).unwrap();
        let before = journal.length() as usize;
        journal.append(written[3..].iter()).unwrap();
        drop(journal);
        let path = folder.path().join("kafka-outbox");
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..=whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let (mut journal, events) = Journal::open(folder.path()).unwrap();
            let expected = if cut == whole.len() { 4 } else { events.len() };
            assert!(cut < before || expected >= 3, "cut at {cut}");
            assert_eq!(events, written[..expected], "cut at {cut}");
            // It goes on after what is good.
            journal.append([event(9)].iter()).unwrap();
            drop(journal);
            let (_, again) = Journal::open(folder.path()).unwrap();
            assert_eq!((again.len(), again.last()), (expected + 1, Some(&event(9))));
        }
    }

    #[test]
    fn it_is_replaced_as_a_whole_and_stays_locked() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(folder.path()).unwrap();
        journal.append((0..50).map(event).collect::<Vec<_>>().iter()).unwrap();
        journal.replace(&[event(7)]).unwrap();
        let refused = Journal::open(folder.path()).unwrap_err().to_string();
        assert!(refused.contains("another process uses it"), "{refused}");
        journal.append([event(8)].iter()).unwrap();
        drop(journal);
        let (mut journal, events) = Journal::open(folder.path()).unwrap();
        assert_eq!(events, [event(7), event(8)]);
        journal.replace(&[]).unwrap();
        drop(journal);
        assert!(Journal::open(folder.path()).unwrap().1.is_empty());
        std::fs::write(folder.path().join("kafka-outbox"), "somebody else's text").unwrap();
        assert!(Journal::open(folder.path()).unwrap_err().to_string().contains("it is not an outbox"));
    }
}
