//! The outbox: an agent's durable store of states.
//!
//! Append-only segment files with group commit: one thread takes everything that is queued, writes it with one call,
//! syncs it with one `fdatasync`, and wakes those who wait. What [`Outbox::put`] has returned for survives a crash of
//! the process and of the machine, as far as the disk keeps what it has synced. Records are opaque: a key, a kind, a
//! body; the latest record of a key counts.
//!
//! What it does not do: it answers no reads (its owner has the states in memory; [`Outbox::open`] returns them once),
//! it does not retry a failed disk (after a failed write or sync it refuses everything: what is on the disk is then
//! not known), and it is not shared between processes.

mod commit;
#[cfg(test)]
mod crash_disk;
mod disk;
mod journal;
mod recovery;
mod segment;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::oneshot;

use commit::Shared;
use disk::Directory;
use journal::Journal;

/// Sizes and times. All are bounds of memory or disk.
#[derive(Debug, Clone)]
pub struct OutboxOptions {
    /// Records that may wait for a commit before [`Outbox::put`] waits too.
    pub queue_records: usize,
    /// Their bytes, likewise.
    pub queue_bytes: usize,
    /// The longest record, key and body together.
    pub max_record_bytes: usize,
    /// When a segment file is ended and the next begun. A busy outbox keeps two to three of them.
    pub segment_bytes: usize,
    /// A segment file grows in steps of this.
    pub allocate_bytes: usize,
    /// How long a lazy record may stay undurable.
    pub lazy_delay: Duration,
    /// [`Outbox::commit`] commits on the caller's thread as long as the last commit took less than this.
    pub commit_here_below: Duration,
}

impl Default for OutboxOptions {
    fn default() -> Self {
        OutboxOptions {
            queue_records: 4096,
            queue_bytes: 16 << 20,
            max_record_bytes: 64 << 20,
            segment_bytes: 32 << 20,
            allocate_bytes: 1 << 20,
            lazy_delay: Duration::from_millis(50),
            commit_here_below: Duration::from_millis(1),
        }
    }
}

/// A live record, as recovery returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// What it is about.
    pub key: Vec<u8>,
    /// The owner's.
    pub kind: u8,
    /// The owner's.
    pub body: Vec<u8>,
}

/// Why the outbox does not take or keep something.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum OutboxError {
    /// The file system refused.
    #[error("cannot {action} {path}: {error}; the outbox takes nothing more until it is opened again")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What it said.
        error: Arc<io::Error>,
    },
    /// Another process has it open.
    #[error("the outbox {dir} is in use by another process; every agent needs a data directory of its own")]
    InUse {
        /// The directory.
        dir: PathBuf,
    },
    /// Acknowledged records are lost.
    #[error(
        "the outbox segment {path} is damaged at byte {offset}: {what}; restore the directory, or move it away to \
         start without the states in it"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// More than [`OutboxOptions::max_record_bytes`], or a key past 65,535 bytes.
    #[error("a record of {bytes} bytes is too large for the outbox, which takes {limit}")]
    TooLarge {
        /// Key or record.
        bytes: usize,
        /// What is taken.
        limit: usize,
    },
    /// Twice the queue's bounds are used up: the owner did not wait for [`Outbox::room`].
    #[error("the outbox has {records} records waiting for the disk and takes no more")]
    Full {
        /// How many wait.
        records: usize,
    },
    /// It has been closed.
    #[error("the outbox is closed")]
    Closed,
}

impl OutboxError {
    fn io(action: &'static str, path: &Path, error: io::Error) -> Self {
        OutboxError::Io { action, path: path.to_owned(), error: Arc::new(error) }
    }
}

/// How it is going.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutboxStats {
    /// Records that wait for a commit.
    pub pending: usize,
    /// Live records.
    pub live_records: usize,
    /// Their bytes on disk.
    pub live_bytes: u64,
    /// Commits so far: one write and one sync each.
    pub commits: u64,
    /// Records committed so far.
    pub records: u64,
}

/// An agent's durable store of states; a handle, cheap to clone. The last one that is dropped commits what is queued
/// and joins the thread.
#[derive(Clone)]
pub struct Outbox {
    /// `None`: nothing is kept.
    inner: Option<Arc<Inner>>,
}

struct Inner {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Outbox {
    /// Opens the outbox in `dir`, making it where it is missing, and returns the latest live record of each key in
    /// the order of the last writes.
    ///
    /// Reads all segments: blocking, for start-up.
    pub fn open(dir: &Path, options: OutboxOptions) -> Result<(Outbox, Vec<Record>), OutboxError> {
        let (journal, records) = Journal::open(Directory::open(dir)?, options.clone())?;
        Ok((Outbox::start(journal, options)?, records))
    }

    /// An outbox that keeps nothing: every put is "durable" at once. For direct mode without a data directory, where
    /// a crash ends the job anyway.
    pub fn in_memory() -> Outbox {
        Outbox { inner: None }
    }

    fn start<D: disk::Disk>(journal: Journal<D>, options: OutboxOptions) -> Result<Outbox, OutboxError> {
        let shared = Arc::new(Shared::new(options, journal));
        let thread = std::thread::Builder::new().name("skalds-outbox".into()).spawn({
            let shared = Arc::clone(&shared);
            move || commit::run(&shared)
        });
        let thread =
            thread.map_err(|error| OutboxError::io("start the thread of", Path::new("an outbox"), error))?;
        Ok(Outbox { inner: Some(Arc::new(Inner { shared, thread: Mutex::new(Some(thread)) })) })
    }

    /// Writes a record and returns when it is durable. Waits while the queue is full.
    pub async fn put(&self, key: &[u8], kind: u8, body: &[u8]) -> Result<(), OutboxError> {
        loop {
            self.room().await?;
            match self.start_put(key, kind, body) {
                Err(OutboxError::Full { .. }) => {} // others were faster
                started => return started?.await,
            }
        }
    }

    /// Queues a record, in the order of calls, and has the thread commit it; the returned future says when it is
    /// durable. Wait for [`Outbox::room`] first: past twice the queue's bounds the answer is [`OutboxError::Full`].
    pub fn start_put(&self, key: &[u8], kind: u8, body: &[u8]) -> Result<Commit, OutboxError> {
        let commit = self.queue_put(key, kind, body)?;
        if let Some(inner) = &self.inner {
            inner.shared.make_due();
        }
        Ok(commit)
    }

    /// The same for an owner that calls [`Outbox::commit`] when it has queued all that there is; without it the
    /// record is committed like a lazy one.
    pub fn queue_put(&self, key: &[u8], kind: u8, body: &[u8]) -> Result<Commit, OutboxError> {
        match &self.inner {
            None => Ok(Commit { waiter: None }),
            Some(inner) => {
                inner.shared.check(key, body)?;
                let (sender, waiter) = oneshot::channel();
                inner.shared.queue(Some(sender), |batch| batch.put(key, kind, body))?;
                Ok(Commit { waiter: Some(waiter) })
            }
        }
    }

    /// Commits what is queued: on the caller's thread while the disk is quick ([`OutboxOptions::commit_here_below`]),
    /// which saves waking another one, and on the outbox's own otherwise.
    pub fn commit(&self) {
        if let Some(inner) = &self.inner {
            inner.shared.commit();
        }
    }

    /// Queues a record that becomes durable with a later one, or within [`OutboxOptions::lazy_delay`].
    pub fn put_lazily(&self, key: &[u8], kind: u8, body: &[u8]) -> Result<(), OutboxError> {
        let Some(inner) = &self.inner else { return Ok(()) };
        inner.shared.check(key, body)?;
        inner.shared.queue(None, |batch| batch.put(key, kind, body))
    }

    /// Removes a key; durable as with [`Outbox::put_lazily`]. Never refused for want of room: how many removals can
    /// wait is bounded by how many keys there are.
    pub fn remove_lazily(&self, key: &[u8]) -> Result<(), OutboxError> {
        let Some(inner) = &self.inner else { return Ok(()) };
        inner.shared.check(key, &[])?;
        inner.shared.queue_removal(key)
    }

    /// Returns when the queue is below its bounds.
    pub async fn room(&self) -> Result<(), OutboxError> {
        match &self.inner {
            None => Ok(()),
            Some(inner) => inner.shared.room().await,
        }
    }

    /// Returns when everything queued so far is durable.
    pub async fn flush(&self) -> Result<(), OutboxError> {
        let Some(inner) = &self.inner else { return Ok(()) };
        let (sender, waiter) = oneshot::channel();
        inner.shared.queue_waiter(sender)?;
        Commit { waiter: Some(waiter) }.await
    }

    /// Makes everything queued durable, ends the thread and gives the directory free. All handles answer
    /// [`OutboxError::Closed`] from now on.
    pub async fn close(self) -> Result<(), OutboxError> {
        let flushed = self.flush().await;
        if let Some(inner) = &self.inner {
            inner.join();
        }
        flushed
    }

    /// How it is going.
    pub fn stats(&self) -> OutboxStats {
        self.inner.as_ref().map_or_else(OutboxStats::default, |inner| inner.shared.stats())
    }
}

impl Inner {
    fn join(&self) {
        self.shared.close();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the outbox thread panicked");
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.join();
    }
}

/// Resolves when what was queued is durable, or with the error that kept it from becoming so.
#[derive(Debug)]
pub struct Commit {
    /// `None`: nothing is kept.
    waiter: Option<oneshot::Receiver<Result<(), OutboxError>>>,
}

impl Commit {
    /// The answer, if there is one already.
    pub fn try_now(&mut self) -> Option<Result<(), OutboxError>> {
        match self.waiter.as_mut().map(oneshot::Receiver::try_recv) {
            None => Some(Ok(())),
            Some(Ok(answer)) => Some(answer),
            Some(Err(oneshot::error::TryRecvError::Empty)) => None,
            Some(Err(oneshot::error::TryRecvError::Closed)) => Some(Err(OutboxError::Closed)),
        }
    }
}

impl Future for Commit {
    type Output = Result<(), OutboxError>;

    fn poll(mut self: std::pin::Pin<&mut Self>, context: &mut std::task::Context<'_>) -> Poll<Self::Output> {
        match &mut self.waiter {
            None => Poll::Ready(Ok(())),
            // The sender is dropped unanswered only when the thread panics.
            Some(waiter) => std::pin::Pin::new(waiter)
                .poll(context)
                .map(|answer| answer.unwrap_or(Err(OutboxError::Closed))),
        }
    }
}
