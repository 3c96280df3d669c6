//! A compare-and-set: what the stored document must still be, and what is written into it.

use mongodb::bson::{Bson, Document, doc};
use serde_json::{Map, Value};

use super::document::{OURS, field, fields, own_field};
use crate::backend::{BackendError, document::status_name};
use crate::core::task::Task;

/// Matches the document while it is as it was seen. A Python peer sets the status and the executor and knows nothing of
/// revisions, so all of them are compared.
pub(super) fn still(seen: &Task) -> Document {
    doc! {
        "id": &seen.id,
        "lifecycleStatus": status_name(seen.lifecycle_status),
        "executor": seen.executor.as_ref(), // null matches a field that is not there, too
        "skalds.incarnation": counter(seen.skalds.incarnation),
        "skalds.revision": counter(seen.skalds.revision),
    }
}

/// A document of Python's has none of our counters: that is zero.
fn counter(value: u64) -> Bson {
    match i64::try_from(value) {
        Ok(0) => Bson::Document(doc! {"$in": [0_i64, null]}),
        // No task is changed 2^63 times.
        value => Bson::Int64(value.unwrap_or(i64::MAX)),
    }
}

/// What makes `next` of `seen`, and nothing else: what others have added to the document, or changed in it meanwhile, stays.
///
/// # Errors
/// As [`super::document::of_task`].
pub(super) fn update(seen: &Task, next: &Task) -> Result<Document, BackendError> {
    let (mut before, mut after) = (fields(seen)?, fields(next)?);
    let (ours_before, ours_after) = (sub_document(&mut before), sub_document(&mut after));
    let mut write = Write { id: &next.id, set: Document::new(), unset: Document::new() };
    write.differences("", &before, after, field)?;
    write.differences("skalds.", &ours_before, ours_after, own_field)?;
    let mut update = doc! {"$set": write.set};
    if !write.unset.is_empty() {
        update.insert("$unset", write.unset);
    }
    Ok(update)
}

fn sub_document(fields: &mut Map<String, Value>) -> Map<String, Value> {
    match fields.shift_remove(OURS) {
        Some(Value::Object(ours)) => ours,
        _ => Map::new(), // left out when everything in it is as at the beginning
    }
}

struct Write<'a> {
    id: &'a str,
    set: Document,
    unset: Document,
}

impl Write<'_> {
    fn differences(
        &mut self,
        under: &str,
        before: &Map<String, Value>,
        after: Map<String, Value>,
        encode: impl Fn(&str, &str, Value) -> Result<Bson, BackendError>,
    ) -> Result<(), BackendError> {
        for gone in before.keys().filter(|name| !after.contains_key(&name[..])) {
            self.unset.insert(format!("{under}{gone}"), "");
        }
        for (name, value) in after {
            if before.get(&name) != Some(&value) {
                let value = encode(self.id, &name, value)?;
                self.set.insert(format!("{under}{name}"), value);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::core::task::LifecycleStatus;

    #[test]
    fn only_what_differs_is_written() {
        let mut seen = Task::new("t", "C", 3);
        seen.skalds.next_attempt_at = Some(5);
        seen.skalds.attempt = 2;
        let mut next = seen.clone();
        next.lifecycle_status = LifecycleStatus::Assigning;
        next.executor = Some("a".into());
        next.update_date_time = 4;
        next.skalds.next_attempt_at = None;
        next.skalds.revision = 1;
        assert_eq!(
            update(&seen, &next).unwrap(),
            doc! {
                "$set": {
                    "executor": "a", "updateDateTime": 4_i64, "lifecycleStatus": "Assigning", "skalds.revision": 1_i32,
                },
                "$unset": {"skalds.nextAttemptAt": ""},
            }
        );
        // Attachments are written as a whole, whatever their fields are called.
        next = seen.clone();
        next.attachments = json!({"a.b": 1, "$c": 2}).as_object().cloned();
        assert_eq!(
            update(&seen, &next).unwrap(),
            doc! {"$set": {"attachments": {"a.b": 1_i32, "$c": 2_i32}}}
        );
    }

    #[test]
    fn a_document_without_our_counters_counts_as_zero() {
        let mut seen = Task::new("t", "C", 3);
        assert_eq!(
            still(&seen).get("skalds.revision"),
            Some(&Bson::Document(doc! {"$in": [0_i64, Bson::Null]}))
        );
        seen.skalds.revision = 7;
        assert_eq!(still(&seen).get("skalds.revision"), Some(&Bson::Int64(7)));
    }
}
