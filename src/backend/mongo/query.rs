//! Filters and orders, in the server's words. What a user typed goes into values only.

use mongodb::bson::{Bson, Document, doc};

use super::indexes;
use crate::backend::document::status_name;
use crate::backend::{BackendError, TaskOrder, TaskQuery, TaskScan};
use crate::core::task::LifecycleStatus;

/// The longest text that is searched for, in bytes: the server takes patterns of 32 KiB, and escaping makes them longer.
const MAX_TEXT: usize = 4_096;
/// Where a text is searched for.
const SEARCHED: [&str; 4] = ["id", "className", "name", "description"];

/// The tasks that a query is about.
///
/// # Errors
/// `Full` for a text that is too long to be searched for.
pub(super) fn filter(query: &TaskQuery) -> Result<Document, BackendError> {
    let mut filter = Document::new();
    if !query.statuses.is_empty() {
        filter.insert("lifecycleStatus", any_of_statuses(&query.statuses));
    }
    if !query.class_names.is_empty() {
        filter.insert("className", any_of(query.class_names.iter().map(String::as_str)));
    }
    if let Some(executor) = &query.executor {
        filter.insert("executor", executor);
    }
    if let Some(at) = query.due_at {
        for time in ["skalds.nextAttemptAt", "skalds.notBefore"] {
            filter.insert(time, doc! {"$not": {"$gt": at}}); // or it is not there
        }
    }
    if let Some(text) = query.text.as_deref().filter(|text| !text.is_empty()) {
        if text.len() > MAX_TEXT {
            return Err(BackendError::Full {
                what: format!("the text to search for ({} bytes)", text.len()),
                limit: format!("{MAX_TEXT} bytes"),
                hint: "search for a part of it".into(),
            });
        }
        let pattern = escape(text);
        let looks: Vec<Document> =
            SEARCHED.iter().map(|name| doc! {*name: {"$regex": &pattern, "$options": "i"}}).collect();
        filter.insert("$or", looks);
    }
    Ok(filter)
}

/// The index for the questions that dispatchers and Skalds ask all the time. It is named in the question: by chance a server
/// may take another one and read all tasks that have ended, too.
pub(super) fn index(query: &TaskQuery) -> Option<&'static str> {
    let dispatch = query.order == TaskOrder::DispatchOrder && query.statuses.len() == 1;
    match (&query.executor, query.class_names.len()) {
        (Some(_), _) if !query.statuses.is_empty() => Some(indexes::SCAN_EXECUTOR),
        (None, 1) if dispatch => Some(indexes::DISPATCH_CLASS),
        (None, 0) if dispatch => Some(indexes::DISPATCH),
        _ => None,
    }
}

/// The index of a sweep, named for the same reason.
pub(super) fn scan_index(scan: &TaskScan) -> &'static str {
    if scan.executor.is_some() { indexes::SCAN_EXECUTOR } else { indexes::SCAN }
}

/// The tasks of a sweep's next batch.
pub(super) fn scan_filter(scan: &TaskScan) -> Document {
    let mut filter = doc! {"lifecycleStatus": any_of_statuses(&scan.statuses)};
    if let Some(executor) = &scan.executor {
        filter.insert("executor", executor);
    }
    if let Some(after) = &scan.after {
        filter.insert("id", doc! {"$gt": after});
    }
    filter
}

/// Ids are the last word, so that pages do not depend on how the server stores tasks.
pub(super) fn order(order: TaskOrder) -> Document {
    match order {
        TaskOrder::Newest => doc! {"createDateTime": -1, "id": 1},
        TaskOrder::DispatchOrder => doc! {"priority": -1, "createDateTime": 1, "id": 1},
    }
}

fn any_of_statuses(statuses: &[LifecycleStatus]) -> Bson {
    any_of(statuses.iter().map(|status| status_name(*status)))
}

/// One value is compared with, not looked up in a list: then an index gives the order, too.
fn any_of<'a>(mut values: impl ExactSizeIterator<Item = &'a str>) -> Bson {
    match (values.len(), values.next()) {
        (1, Some(only)) => only.into(),
        (_, first) => {
            doc! {"$in": first.into_iter().chain(values).map(Bson::from).collect::<Vec<_>>()}.into()
        }
    }
}

/// A pattern that matches the text and nothing else. Only ASCII has signs that mean something; a zero byte would end it.
fn escape(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len() * 2);
    for letter in text.chars() {
        match letter {
            '\0' => pattern.push_str("\\x00"),
            letter if letter.is_ascii_punctuation() => pattern.extend(['\\', letter]),
            letter => pattern.push(letter),
        }
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_typed_means_itself() {
        assert_eq!(escape("a.b*[x]\\(ü)\0 9"), "a\\.b\\*\\[x\\]\\\\\\(ü\\)\\x00 9");
        let query = TaskQuery { text: Some("x".repeat(5_000)), ..TaskQuery::default() };
        assert!(matches!(filter(&query), Err(BackendError::Full { .. })));
        let nothing = TaskQuery { text: Some(String::new()), ..TaskQuery::default() };
        assert_eq!(filter(&nothing).unwrap(), doc! {});
    }

    #[test]
    fn one_value_is_compared_and_several_are_listed() {
        let query = TaskQuery {
            statuses: vec![LifecycleStatus::Created],
            class_names: vec!["A".into(), "B".into()],
            ..TaskQuery::default()
        };
        assert_eq!(
            filter(&query).unwrap(),
            doc! {"lifecycleStatus": "Created", "className": {"$in": ["A", "B"]}}
        );
    }
}
