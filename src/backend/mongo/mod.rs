//! The tasks in MongoDB, in the collection that Python peers use.

mod change;
mod connect;
mod document;
mod failure;
mod indexes;
mod pages;
mod query;
mod term;

use std::collections::HashSet;
use std::future::IntoFuture;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use mongodb::action::Action;
use mongodb::bson::{Bson, Document, RawDocumentBuf, doc};
use mongodb::error::ErrorKind;
use mongodb::options::Hint;
use mongodb::{Client, Collection};

pub use self::connect::MongoOptions;
use super::document::status_of;
use super::{BackendError, DiskStorage, MAX_PAGE, Stored, TaskBatch, TaskPage, TaskQuery, TaskScan};
use crate::core::task::{LifecycleStatus, Millis, Task};

/// The collection, in the database of [`MongoOptions::database`].
const TASKS: &str = "tasks";
/// How many tasks, and bytes of JSON, one message inserts at most.
const INSERT: (usize, usize) = (500, 16 << 20);

/// [`DiskStorage`] in MongoDB (5.0 or newer), as one of several that write into the collection. Cheap to clone.
///
/// A write has answered when most members of the replica set have it in their journals. What others add to a document, or
/// change in it, is left as it is: a write names the fields that it changes, and is done only while status, executor,
/// incarnation and revision are those that were seen.
///
/// After `Unavailable` nobody knows whether a write was done: it may have been under way.
#[derive(Clone)]
pub struct MongoStorage {
    /// For messages: the hosts and the database, without user and password.
    service: String,
    limit: Duration,
    client: Client,
    database: String,
}

impl std::fmt::Debug for MongoStorage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("MongoStorage").field(&self.service).finish()
    }
}

impl MongoStorage {
    /// Connects, and makes the indexes that are missing. Must be called on a tokio (or actix) runtime.
    ///
    /// # Errors
    /// `Refused` for an address that cannot be understood, a wrong password, a user without the right to write, or tasks
    /// that share an id; `Unavailable` when no server that takes writes answers.
    pub async fn connect(options: MongoOptions) -> Result<Self, BackendError> {
        let (client, service) = connect::client(&options).await?;
        let limit = options.call_timeout;
        let storage = MongoStorage { service, limit, client, database: options.database };
        storage.call("make its indexes", storage.documents().create_indexes(indexes::all())).await?;
        Ok(storage)
    }

    /// Says what is there, and changes nothing.
    #[cfg(feature = "cli")]
    pub(crate) async fn look(options: MongoOptions) -> Result<String, BackendError> {
        let (client, service) = connect::client(&options).await?;
        let storage =
            MongoStorage { service, limit: options.call_timeout, client, database: options.database };
        let database = storage.client.database(&storage.database);
        let info = storage.call("ask its version", database.run_command(doc! {"buildInfo": 1})).await?;
        let version = info.get_str("version").unwrap_or("unknown").to_owned();
        let took = storage.ping().await?;
        let count = storage.call("count tasks", storage.documents().estimated_document_count()).await?;
        Ok(format!("{}: version {version}, {count} tasks, answers within {took:.1?}", storage.service))
    }

    fn documents(&self) -> Collection<Document> {
        self.client.database(&self.database).collection(TASKS)
    }

    /// The same collection, read without looking into the documents.
    fn raw(&self) -> Collection<RawDocumentBuf> {
        self.documents().clone_with_type()
    }

    /// One round trip, within the limit.
    async fn call<T>(
        &self,
        action: &str,
        call: impl IntoFuture<Output = mongodb::error::Result<T>>,
    ) -> Result<T, BackendError> {
        match tokio::time::timeout(self.limit, call.into_future()).await {
            Ok(answer) => answer.map_err(|error| failure::explain(&error, &self.service, action)),
            Err(_) => Err(failure::late(self.limit, &self.service, action)),
        }
    }

    fn read(&self, id: &str, document: Document) -> Result<Task, BackendError> {
        document::to_task(document, || format!("task {id:?} in {}", self.service))
    }

    /// Makes `task` of `seen`, if the stored document matches `still`.
    async fn replace_where(&self, task: &Task, seen: &Task, still: Document) -> Result<Stored, BackendError> {
        let mut next = task.clone();
        next.skalds.revision = seen.skalds.revision.saturating_add(1);
        let update = change::update(seen, &next)?;
        let collection = self.documents();
        let done = self.call("change a task", collection.update_one(still, update)).await?;
        if done.matched_count > 0 {
            return Ok(Stored::Done);
        }
        Ok(self.get(&task.id).await?.map_or(Stored::Missing, Stored::Stale))
    }

    /// Inserts what one message takes; says which positions of `documents` have a taken id.
    async fn insert_part(&self, documents: Vec<Document>) -> Result<HashSet<usize>, BackendError> {
        let count = documents.len();
        let collection = self.documents();
        let insert = collection.insert_many(documents).ordered(false).into_future();
        let Ok(answer) = tokio::time::timeout(self.limit, insert).await else {
            return Err(failure::late(self.limit, &self.service, "store tasks"));
        };
        let Err(error) = answer else { return Ok(HashSet::new()) };
        match &*error.kind {
            ErrorKind::InsertMany(failed)
                if failed.write_concern_error.is_none()
                    && failed.write_errors.iter().flatten().all(|one| one.code == failure::DUPLICATE_KEY) =>
            {
                let taken = failed.write_errors.iter().flatten().map(|one| one.index);
                Ok(taken.filter(|index| *index < count).collect())
            }
            _ => Err(failure::explain(&error, &self.service, "store tasks")),
        }
    }
}

#[async_trait]
impl DiskStorage for MongoStorage {
    async fn insert(&self, task: &Task) -> Result<bool, BackendError> {
        let document = document::of_task(task)?;
        let collection = self.documents();
        let insert = collection.insert_one(document).into_future();
        match tokio::time::timeout(self.limit, insert).await {
            Ok(Ok(_)) => Ok(true),
            Ok(Err(error)) if failure::is_duplicate(&error) => Ok(false),
            Ok(Err(error)) => Err(failure::explain(&error, &self.service, "store a task")),
            Err(_) => Err(failure::late(self.limit, &self.service, "store a task")),
        }
    }

    /// Each task is stored or not by itself: after an error some of them may be.
    async fn insert_many(&self, tasks: &[Task]) -> Result<Vec<bool>, BackendError> {
        let documents = tasks.iter().map(document::of_task).collect::<Result<Vec<_>, _>>()?;
        let mut added = vec![false; tasks.len()];
        let mut seen = HashSet::with_capacity(tasks.len());
        let mut part: (Vec<usize>, Vec<Document>, usize) = Default::default();
        let mut documents = documents.into_iter().enumerate().peekable();
        while let Some((index, document)) = documents.next() {
            // The first of an id wins, in whatever order the server works.
            if seen.insert(&tasks[index].id) {
                part.2 += bytes(&document);
                part.0.push(index);
                part.1.push(document);
            }
            let full = part.1.len() >= INSERT.0 || part.2 >= INSERT.1;
            if (full || documents.peek().is_none()) && !part.1.is_empty() {
                let (indexes, documents, _) = std::mem::take(&mut part);
                let taken = self.insert_part(documents).await?;
                for (at, index) in indexes.into_iter().enumerate() {
                    added[index] = !taken.contains(&at);
                }
            }
        }
        Ok(added)
    }

    async fn get(&self, id: &str) -> Result<Option<Task>, BackendError> {
        let collection = self.documents();
        let found =
            self.call("read a task", collection.find_one(doc! {"id": id}).max_time(self.limit)).await?;
        found.map(|document| self.read(id, document)).transpose()
    }

    async fn replace(&self, task: &Task, seen: &Task) -> Result<Stored, BackendError> {
        self.replace_where(task, seen, change::still(seen)).await
    }

    async fn begin_term(&self) -> Result<u64, BackendError> {
        self.next_term().await
    }

    async fn latest_term(&self) -> Result<u64, BackendError> {
        self.read_term().await
    }

    async fn replace_in_term(&self, task: &Task, seen: &Task, term: u64) -> Result<Stored, BackendError> {
        let mut still = change::still(seen);
        still.insert(term::STAMP, term::not_newer_than(term));
        match self.replace_where(task, seen, still).await? {
            Stored::Done => Ok(Stored::Done),
            other if self.read_term().await? > term => {
                tracing::debug!(task = task.id, term, ?other, "a write of a former leader was not done");
                Err(BackendError::Superseded { term })
            }
            other => Ok(other),
        }
    }

    async fn delete(&self, id: &str) -> Result<bool, BackendError> {
        let done = self.call("delete a task", self.documents().delete_one(doc! {"id": id})).await?;
        Ok(done.deleted_count > 0)
    }

    /// The count and the page are of two moments.
    async fn list(&self, query: &TaskQuery) -> Result<TaskPage, BackendError> {
        let filter = query::filter(query)?;
        let collection = self.raw();
        let hint = query::index(query).map(|name| Hint::Name(name.into()));
        let count = collection
            .count_documents(filter.clone())
            .max_time(self.limit)
            .optional(hint.clone(), |count, hint| count.hint(hint));
        let total = self.call("count tasks", count).await?;
        if query.offset >= total {
            return Ok(TaskPage { tasks: Vec::new(), total, next: None });
        }
        let limit = if query.limit == 0 { MAX_PAGE } else { query.limit.min(MAX_PAGE) };
        let find = collection
            .find(filter)
            .sort(query::order(query.order))
            .skip(query.offset)
            .limit(limit as i64) // at most MAX_PAGE
            .optional(hint, |find, hint| find.hint(hint))
            .max_time(self.limit);
        let mut cursor = self.call("list tasks", find).await?;
        let (tasks, count, _) = self.page(&mut cursor, limit as usize).await?;
        let next = query.offset.saturating_add(count as u64);
        Ok(TaskPage { tasks, total, next: (count > 0 && next < total).then_some(next) })
    }

    async fn scan(&self, scan: &TaskScan) -> Result<TaskBatch, BackendError> {
        if scan.statuses.is_empty() {
            return Ok(TaskBatch { tasks: Vec::new(), next: None });
        }
        let collection = self.raw();
        let find = collection
            .find(query::scan_filter(scan))
            .sort(doc! {"id": 1})
            .hint(Hint::Name(query::scan_index(scan).into()))
            .limit(MAX_PAGE as i64 + 1) // one more says whether there is more
            .max_time(self.limit);
        let mut cursor = self.call("scan tasks", find).await?;
        let (tasks, _, last) = self.page(&mut cursor, MAX_PAGE as usize).await?;
        let more = last.is_some() && self.call("scan tasks", cursor.advance()).await?;
        Ok(TaskBatch { tasks, next: last.filter(|_| more) })
    }

    async fn untold(&self, before: Millis) -> Result<Vec<Task>, BackendError> {
        let collection = self.raw();
        let find = collection
            .find(doc! {"skalds.untold.at": {"$lt": before}})
            .sort(doc! {"skalds.untold.at": 1})
            .limit(MAX_PAGE as i64)
            .hint(Hint::Name(indexes::UNTOLD.into()))
            .max_time(self.limit);
        let mut cursor = self.call("look for orders that were not sent", find).await?;
        Ok(self.page(&mut cursor, MAX_PAGE as usize).await?.0)
    }

    /// A status that this version does not know is left out, and logged.
    async fn count_by_status(&self) -> Result<Vec<(LifecycleStatus, u64)>, BackendError> {
        let stages = [doc! {"$group": {"_id": "$lifecycleStatus", "count": {"$sum": 1}}}];
        let groups = self.groups("count tasks", &stages).await?;
        let known = groups.into_iter().filter_map(|group| {
            let count = group.get("count").and_then(whole).unwrap_or_default();
            let status = group.get("_id").and_then(Bson::as_str).and_then(status_of);
            if status.is_none() {
                let service = &self.service;
                let status = group.get("_id");
                tracing::error!(service, ?status, count, "tasks of an unknown status are not counted");
            }
            Some((status?, count))
        });
        Ok(known.collect())
    }

    async fn class_names(&self) -> Result<Vec<String>, BackendError> {
        let stages = [doc! {"$group": {"_id": "$className"}}];
        let groups = self.groups("list worker classes", &stages).await?;
        let mut names: Vec<String> =
            groups.iter().filter_map(|group| group.get_str("_id").ok().map(str::to_owned)).collect();
        names.sort_unstable();
        Ok(names)
    }

    async fn ping(&self) -> Result<Duration, BackendError> {
        let start = Instant::now();
        // A command that needs the password, unlike `ping`, and a server that takes writes.
        let find = self.documents();
        self.call("ping it", find.find_one(doc! {"id": ""}).projection(doc! {"_id": 1})).await?;
        Ok(start.elapsed())
    }
}

/// A count, whatever type the server gave it.
fn whole(value: &Bson) -> Option<u64> {
    match value {
        Bson::Int32(number) => u64::try_from(*number).ok(),
        Bson::Int64(number) => u64::try_from(*number).ok(),
        Bson::Double(number) => Some(*number as u64),
        _ => None,
    }
}

fn bytes(document: &Document) -> usize {
    // What cannot be encoded is refused by the driver in a moment.
    document.to_vec().map_or(0, |bytes| bytes.len())
}
