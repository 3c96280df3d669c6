//! Terms of leadership: a counter in a collection of its own, and a stamp on every task that a leader may change.
//!
//! One write changes one document, so the condition "no newer term has begun" must stand in the task's own document. A new
//! term first raises the counter, then stamps all tasks that have not ended, and only then begins. What a former leader has
//! under way is done before the stamp, and so before the new term, or not at all. A task that is made after the stamping
//! has none; a former leader has not seen it, and asks whether it still leads before it reads anything.

use std::future::IntoFuture;
use std::time::Duration;

use mongodb::Collection;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::ReturnDocument;

use super::{MongoStorage, failure, whole};
use crate::backend::{BackendError, document::status_name};
use crate::core::task::LifecycleStatus;

/// The field of a task with the latest term that was begun while the task had not ended.
pub(super) const STAMP: &str = "skalds.term";
/// The collection with the counter, which no Python peer reads.
const COLLECTION: &str = "skalds_leadership";
/// How long stamping may take: it writes to every task that has not ended, in one command.
const STAMP_WITHIN: Duration = Duration::from_secs(120);

const STAMPING: &str = "stamp tasks with the term of leadership";

/// Matches a stamp of this term, of an older one, or none.
pub(super) fn not_newer_than(term: u64) -> Document {
    doc! {"$not": {"$gt": number(term)}}
}

/// No fleet has 2^63 terms.
fn number(term: u64) -> Bson {
    Bson::Int64(i64::try_from(term).unwrap_or(i64::MAX))
}

impl MongoStorage {
    fn leadership(&self) -> Collection<Document> {
        self.client.database(&self.database).collection(COLLECTION)
    }

    /// The driver may repeat a write whose answer was lost: then a number is left out, which harms nobody.
    pub(super) async fn next_term(&self) -> Result<u64, BackendError> {
        let collection = self.leadership();
        let raise = collection
            .find_one_and_update(doc! {"_id": "term"}, doc! {"$inc": {"term": 1_i64}})
            .upsert(true)
            .return_document(ReturnDocument::After);
        let raised = self.call("begin a term of leadership", raise).await?;
        let term = raised.as_ref().and_then(|document| document.get("term")).and_then(whole);
        let term = term.ok_or_else(|| self.corrupt())?;
        use LifecycleStatus::{Assigning, Created, Paused, Running};
        let open = [Created, Assigning, Running, Paused].map(status_name);
        let unstamped = doc! {
            "lifecycleStatus": {"$in": &open[..]},
            STAMP: {"$not": {"$gte": number(term)}},
        };
        let tasks = self.documents();
        let stamp = tasks.update_many(unstamped, doc! {"$set": {STAMP: number(term)}});
        match tokio::time::timeout(STAMP_WITHIN, stamp.into_future()).await {
            Ok(Ok(_)) => Ok(term),
            Ok(Err(error)) => Err(failure::explain(&error, &self.service, STAMPING)),
            Err(_) => Err(failure::late(STAMP_WITHIN, &self.service, STAMPING)),
        }
    }

    pub(super) async fn read_term(&self) -> Result<u64, BackendError> {
        let collection = self.leadership();
        let found =
            self.call("read the term of leadership", collection.find_one(doc! {"_id": "term"})).await?;
        let Some(found) = found else { return Ok(0) };
        found.get("term").and_then(whole).ok_or_else(|| self.corrupt())
    }

    fn corrupt(&self) -> BackendError {
        BackendError::Corrupt {
            what: format!("the term of leadership in {} (collection {COLLECTION})", self.service),
            reason: "it is not a number".into(),
        }
    }
}
