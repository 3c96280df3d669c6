//! What the outbox needs of a file system, so that tests can put a disk underneath that fails and loses power.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::OutboxError;

/// How long a lock is waited for: a process that is just being started by the one that had it may hold it for a moment.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);
const LOCK_AGAIN: Duration = Duration::from_millis(10);

/// One directory of segment files.
pub(super) trait Disk: Send + 'static {
    /// An open segment file.
    type File: DiskFile;
    /// The numbers of all segments, in any order.
    fn list(&self) -> io::Result<Vec<u64>>;
    /// A new, empty segment.
    fn create(&self, number: u64) -> io::Result<Self::File>;
    /// An existing segment.
    fn open(&self, number: u64) -> io::Result<Self::File>;
    /// Gives a segment another number.
    fn rename(&self, from: u64, to: u64) -> io::Result<()>;
    /// Deletes a segment.
    fn remove(&self, number: u64) -> io::Result<()>;
    /// Makes creations, renames and removals durable.
    fn sync(&self) -> io::Result<()>;
    /// How errors name a segment.
    fn path(&self, number: u64) -> PathBuf;
}

/// One segment file.
pub(super) trait DiskFile: Send + 'static {
    /// The whole content.
    fn read_all(&self) -> io::Result<Vec<u8>>;
    /// Fills `buffer` from `offset` on.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Cuts the file off.
    fn truncate(&self, length: u64) -> io::Result<()>;
    /// Makes content and length durable (`fdatasync`).
    fn sync(&self) -> io::Result<()>;
}

/// A real directory, locked for as long as this lives.
pub(super) struct Directory {
    path: PathBuf,
    handle: File,
    /// Holds the lock.
    _lock: File,
}

impl Directory {
    /// Makes the directory where it is missing (mode 0700) and locks it against every other outbox.
    pub(super) fn open(path: &Path) -> Result<Self, OutboxError> {
        let io = |action: &'static str| move |error| OutboxError::io(action, path, error);
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io("create the directory"))?;
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path.join("lock"))
            .map_err(io("open the lock file of"))?;
        let deadline = Instant::now() + LOCK_PATIENCE;
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => std::thread::sleep(LOCK_AGAIN),
                Err(TryLockError::WouldBlock) => return Err(OutboxError::InUse { dir: path.to_owned() }),
                Err(TryLockError::Error(error)) => return Err(OutboxError::io("lock", path, error)),
            }
        }
        let handle = File::open(path).map_err(io("open the directory"))?;
        Ok(Directory { path: path.to_owned(), handle, _lock: lock })
    }
}

impl Disk for Directory {
    type File = File;

    fn list(&self) -> io::Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let name = entry?.file_name();
            // What has another name is not ours and is left alone.
            if let Some(number) = name.to_str().and_then(|name| name.strip_suffix(".segment"))
                && let Ok(number) = number.parse()
            {
                numbers.push(number);
            }
        }
        Ok(numbers)
    }

    fn create(&self, number: u64) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(self.path(number))
    }

    fn open(&self, number: u64) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).open(self.path(number))
    }

    fn rename(&self, from: u64, to: u64) -> io::Result<()> {
        std::fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, number: u64) -> io::Result<()> {
        std::fs::remove_file(self.path(number))
    }

    fn sync(&self) -> io::Result<()> {
        self.handle.sync_all()
    }

    fn path(&self, number: u64) -> PathBuf {
        self.path.join(format!("{number:020}.segment"))
    }
}

impl DiskFile for File {
    fn read_all(&self) -> io::Result<Vec<u8>> {
        let length = usize::try_from(self.metadata()?.len()).map_err(io::Error::other)?;
        let mut bytes = vec![0; length];
        self.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}
