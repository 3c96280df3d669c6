//! Many documents: pages of tasks, and groups.

use mongodb::Cursor;
use mongodb::bson::{Document, RawDocumentBuf};

use super::{MongoStorage, failure};
use crate::backend::BackendError;
use crate::backend::document::PAGE_BYTES;
use crate::core::task::Task;

/// What a server that groups may answer with; there are seven statuses, and not many worker classes.
const MAX_GROUPS: usize = 100_000;

impl MongoStorage {
    /// The next tasks of a cursor, how many documents they were, and the id of the last one. A page ends early when its
    /// documents are large; one that cannot be read is left out and logged: it must not hide the others.
    pub(super) async fn page(
        &self,
        cursor: &mut Cursor<RawDocumentBuf>,
        limit: usize,
    ) -> Result<(Vec<Task>, usize, Option<String>), BackendError> {
        let (mut tasks, mut count, mut bytes, mut last) = (Vec::new(), 0, 0, None);
        while count < limit && bytes < PAGE_BYTES && self.call("list tasks", cursor.advance()).await? {
            let document = cursor.current();
            count += 1;
            bytes += document.as_bytes().len();
            let id = document.get_str("id").unwrap_or_default().to_owned();
            let task = Document::try_from(document)
                .map_err(|error| BackendError::Corrupt {
                    what: format!("task {id:?} in {}", self.service),
                    reason: error.to_string(),
                })
                .and_then(|document| self.read(&id, document));
            match task {
                Ok(task) => tasks.push(task),
                Err(error) => tracing::error!(%error, "a task is left out of a list"),
            }
            last = Some(id);
        }
        Ok((tasks, count, last))
    }

    /// The answer of a grouping.
    pub(super) async fn groups(
        &self,
        action: &str,
        stages: &[Document],
    ) -> Result<Vec<Document>, BackendError> {
        let collection = self.documents();
        let mut cursor =
            self.call(action, collection.aggregate(stages.to_vec()).max_time(self.limit)).await?;
        let mut groups = Vec::new();
        while self.call(action, cursor.advance()).await? {
            if groups.len() == MAX_GROUPS {
                return Err(BackendError::Full {
                    what: format!("the answer of {} when asked to {action}", self.service),
                    limit: format!("{MAX_GROUPS} entries"),
                    hint: "delete tasks that have ended".into(),
                });
            }
            let group = cursor
                .deserialize_current()
                .map_err(|error| failure::explain(&error, &self.service, action))?;
            groups.push(group);
        }
        Ok(groups)
    }
}
