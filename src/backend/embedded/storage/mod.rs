//! The tasks in one SQLite file.

mod batch;
mod query;
mod row;
mod schema;
#[cfg(test)]
mod tests;
mod thread;

use std::path::Path;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot};

use self::row::Row;
use self::thread::{Pending, Read, Request, Write};
use crate::backend::{BackendError, DiskStorage, Stored, TaskBatch, TaskPage, TaskQuery, TaskScan};
use crate::core::task::{LifecycleStatus, Millis, Task};

/// Requests that wait for the storage thread; callers beyond it wait.
const QUEUE: usize = 1_024;

/// [`DiskStorage`] in a SQLite file: write-ahead log, `synchronous = FULL`.
///
/// Writes run on a thread of their own. Those that wait together share one commit, and each still gets its own
/// answer, after the commit is on disk. Reads run on a second thread and see every write that was answered.
/// Other processes may open the same file, to look in or to write.
///
/// A caller that goes away while it waits (a dropped future) does not undo its write.
#[derive(Clone)]
pub struct SqliteStorage {
    name: String,
    writes: mpsc::Sender<Request>,
    reads: mpsc::Sender<Request>,
}

impl SqliteStorage {
    /// Opens the file, or makes it, readable by its owner only. Blocks for the moment that takes.
    ///
    /// # Errors
    /// `Corrupt` for a file that is not a whole SQLite database, `Refused` for one that belongs to another program
    /// or that a newer version of this one wrote, `Unavailable` when the file cannot be opened.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, BackendError> {
        let path = path.as_ref();
        let name = format!("task storage {}", path.display());
        let writer = schema::open(path, &name)?;
        let reader = schema::open(path, &name)?;
        let writes = thread::start(writer, &name, QUEUE)?;
        let reads = thread::start(reader, &name, QUEUE)?;
        Ok(SqliteStorage { name, writes, reads })
    }

    /// A storage that is gone when it is dropped.
    ///
    /// # Errors
    /// `Unavailable` when no memory or thread is to be had.
    pub fn in_memory() -> Result<Self, BackendError> {
        let name = "task storage in memory".to_owned();
        // One connection is the whole database, so reads take their turn between commits.
        let writes = thread::start(schema::in_memory(&name)?, &name, QUEUE)?;
        Ok(SqliteStorage { name, reads: writes.clone(), writes })
    }

    async fn ask<T>(
        &self,
        queue: &mpsc::Sender<Request>,
        request: impl FnOnce(oneshot::Sender<Result<T, BackendError>>) -> Request,
    ) -> Result<T, BackendError> {
        let closed = || BackendError::Closed(self.name.clone());
        let (answer, answered) = oneshot::channel();
        queue.send(request(answer)).await.map_err(|_| closed())?;
        answered.await.map_err(|_| closed())?
    }

    /// Whoever writes into the file raises the revision, so that it stands for the status and the incarnation.
    async fn replace_row(&self, task: &Task, seen: &Task, term: Option<u64>) -> Result<Stored, BackendError> {
        let revision = seen.skalds.revision;
        let mut next = task.clone();
        next.skalds.revision = revision.saturating_add(1);
        let row = Row::of(&next)?;
        self.write(|pending| Write::Replace(Box::new(row), revision, term, Box::new(pending))).await
    }

    async fn write<T>(&self, write: impl FnOnce(Pending<T>) -> Write) -> Result<T, BackendError> {
        self.ask(&self.writes, |answer| Request::Write(write(Pending::new(answer)))).await
    }

    async fn read<T>(
        &self,
        read: impl FnOnce(oneshot::Sender<Result<T, BackendError>>) -> Read,
    ) -> Result<T, BackendError> {
        self.ask(&self.reads, |answer| Request::Read(read(answer))).await
    }
}

impl std::fmt::Debug for SqliteStorage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SqliteStorage").field(&self.name).finish()
    }
}

#[async_trait]
impl DiskStorage for SqliteStorage {
    async fn insert(&self, task: &Task) -> Result<bool, BackendError> {
        let rows = vec![Row::of(task)?];
        Ok(self.write(|pending| Write::Insert(rows, pending)).await?.first() == Some(&true))
    }

    async fn insert_many(&self, tasks: &[Task]) -> Result<Vec<bool>, BackendError> {
        let rows = tasks.iter().map(Row::of).collect::<Result<_, _>>()?;
        self.write(|pending| Write::Insert(rows, pending)).await
    }

    async fn get(&self, id: &str) -> Result<Option<Task>, BackendError> {
        self.read(|answer| Read::Get(id.into(), answer)).await
    }

    async fn replace(&self, task: &Task, seen: &Task) -> Result<Stored, BackendError> {
        self.replace_row(task, seen, None).await
    }

    async fn begin_term(&self) -> Result<u64, BackendError> {
        self.write(Write::BeginTerm).await
    }

    async fn latest_term(&self) -> Result<u64, BackendError> {
        self.read(Read::LatestTerm).await
    }

    async fn replace_in_term(&self, task: &Task, seen: &Task, term: u64) -> Result<Stored, BackendError> {
        self.replace_row(task, seen, Some(term)).await
    }

    async fn delete(&self, id: &str) -> Result<bool, BackendError> {
        self.write(|pending| Write::Delete(id.into(), pending)).await
    }

    async fn list(&self, query: &TaskQuery) -> Result<TaskPage, BackendError> {
        self.read(|answer| Read::List(Box::new(query.clone()), answer)).await
    }

    async fn scan(&self, scan: &TaskScan) -> Result<TaskBatch, BackendError> {
        self.read(|answer| Read::Scan(Box::new(scan.clone()), answer)).await
    }

    async fn untold(&self, before: Millis) -> Result<Vec<Task>, BackendError> {
        self.read(|answer| Read::Untold(before, answer)).await
    }

    async fn count_by_status(&self) -> Result<Vec<(LifecycleStatus, u64)>, BackendError> {
        self.read(Read::Count).await
    }

    async fn class_names(&self) -> Result<Vec<String>, BackendError> {
        self.read(Read::Classes).await
    }

    /// Through the queue of writes, which is the one that can be long.
    async fn ping(&self) -> Result<Duration, BackendError> {
        let start = Instant::now();
        self.ask(&self.writes, |answer| Request::Read(Read::Ping(answer))).await?;
        Ok(start.elapsed())
    }
}
