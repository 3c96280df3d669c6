//! Reads.

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params_from_iter};

use super::row::{fold, task_of};
use super::schema::explain;
use crate::backend::document::{PAGE_BYTES, status_name, status_of};
use crate::backend::{BackendError, MAX_PAGE, TaskBatch, TaskOrder, TaskPage, TaskQuery, TaskScan};
use crate::core::task::{LifecycleStatus, Task};

pub(super) fn get(connection: &Connection, name: &str, id: &str) -> Result<Option<Task>, BackendError> {
    let found: Option<String> = connection
        .prepare_cached("SELECT document FROM tasks WHERE id = ?1")
        .and_then(|mut statement| statement.query_row([id], |row| row.get(0)).optional())
        .map_err(|error| explain(&error, name, "read a task"))?;
    found.map(|document| task_of(&document, || format!("task {id:?} in the {name}"))).transpose()
}

pub(super) fn list(connection: &Connection, name: &str, query: &TaskQuery) -> Result<TaskPage, BackendError> {
    let (total, documents) = page(connection, query).map_err(|error| explain(&error, name, "list tasks"))?;
    let next = query.offset.saturating_add(documents.len() as u64);
    Ok(TaskPage { tasks: readable(documents, name), total, next: (next < total).then_some(next) })
}

pub(super) fn scan(connection: &Connection, name: &str, scan: &TaskScan) -> Result<TaskBatch, BackendError> {
    if scan.statuses.is_empty() {
        return Ok(TaskBatch { tasks: Vec::new(), next: None });
    }
    let (documents, more) = batch(connection, scan).map_err(|error| explain(&error, name, "scan tasks"))?;
    let next = documents.last().filter(|_| more).map(|(id, _)| id.clone());
    Ok(TaskBatch { tasks: readable(documents, name), next })
}

/// The tasks with an order that was stored before this time.
pub(super) fn untold(connection: &Connection, name: &str, before: i64) -> Result<Vec<Task>, BackendError> {
    let documents = connection
        .prepare_cached("SELECT id, document FROM tasks WHERE untold < ?1 ORDER BY untold")
        .and_then(|mut statement| take_documents(&mut statement.query([before])?))
        .map_err(|error| explain(&error, name, "look for orders that were not sent"))?;
    Ok(readable(documents, name))
}

/// One broken document must not hide all others; `get` and `delete` still reach it.
fn readable(documents: Vec<(String, String)>, name: &str) -> Vec<Task> {
    let tasks = documents.into_iter().filter_map(|(id, document)| {
        task_of(&document, || format!("task {id:?} in the {name}"))
            .inspect_err(|error| tracing::error!(%error, "a task is left out of a list"))
            .ok()
    });
    tasks.collect()
}

/// The batch, and whether there is more.
fn batch(connection: &Connection, scan: &TaskScan) -> rusqlite::Result<(Vec<(String, String)>, bool)> {
    let (sql, values) = scan_sql(scan);
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(params_from_iter(values))?;
    let documents = take_documents(&mut rows)?;
    let more = rows.next()?.is_some();
    Ok((documents, more))
}

/// Each status has its own stretch of an index that is in the order of ids, and SQLite merges the stretches as it goes:
/// nothing is sorted and nothing is read that is not returned. The index is named: without statistics SQLite may take the
/// dispatcher's and sort.
pub(super) fn scan_sql(scan: &TaskScan) -> (String, Vec<Value>) {
    let (index, executor) = match scan.executor {
        Some(_) => ("tasks_by_executor", "AND executor = ?"),
        None => ("tasks_by_status", ""),
    };
    let stretch =
        format!("SELECT id, document FROM tasks INDEXED BY {index} WHERE status = ? {executor} AND id > ?");
    let stretches = vec![stretch; scan.statuses.len()].join(" UNION ALL ");
    let mut values = Vec::new();
    for status in &scan.statuses {
        values.push(Value::Text(status_name(*status).to_owned()));
        values.extend(scan.executor.clone().map(Value::Text));
        values.push(Value::Text(scan.after.clone().unwrap_or_default()));
    }
    (format!("{stretches} ORDER BY id"), values)
}

/// As many as a page may have.
fn take_documents(rows: &mut rusqlite::Rows<'_>) -> rusqlite::Result<Vec<(String, String)>> {
    let mut documents = Vec::new();
    let mut bytes = 0;
    while bytes < PAGE_BYTES
        && (documents.len() as u64) < MAX_PAGE
        && let Some(row) = rows.next()?
    {
        let document: String = row.get(1)?;
        bytes += document.len();
        documents.push((row.get(0)?, document));
    }
    Ok(documents)
}

/// The count and the page, of the same moment.
fn page(connection: &Connection, query: &TaskQuery) -> rusqlite::Result<(u64, Vec<(String, String)>)> {
    let (condition, mut values) = condition(query);
    let moment = connection.unchecked_transaction()?;
    let total = moment
        .prepare_cached(&format!("SELECT count(*) FROM tasks WHERE {condition}"))?
        .query_row(params_from_iter(&values), |row| row.get::<_, i64>(0))?;
    let order = match query.order {
        TaskOrder::Newest => "created DESC, id",
        TaskOrder::DispatchOrder => "priority DESC, created, id",
    };
    let limit = if query.limit == 0 { MAX_PAGE } else { query.limit.min(MAX_PAGE) };
    values.push(Value::Integer(limit as i64));
    values.push(Value::Integer(i64::try_from(query.offset).unwrap_or(i64::MAX)));
    let mut statement = moment.prepare_cached(&format!(
        "SELECT id, document FROM tasks WHERE {condition} ORDER BY {order} LIMIT ? OFFSET ?"
    ))?;
    let documents = take_documents(&mut statement.query(params_from_iter(&values))?)?;
    Ok((total as u64, documents))
}

/// The filter as SQL; what the user typed goes into the values only.
fn condition(query: &TaskQuery) -> (String, Vec<Value>) {
    let mut terms = vec!["1".to_owned()];
    let mut values = Vec::new();
    let mut any_of = |column: &str, allowed: Vec<String>| {
        if !allowed.is_empty() {
            terms.push(format!("{column} IN ({})", vec!["?"; allowed.len()].join(", ")));
            values.extend(allowed.into_iter().map(Value::Text));
        }
    };
    any_of("status", query.statuses.iter().map(|status| status_name(*status).to_owned()).collect());
    any_of("class", query.class_names.clone());
    let mut term = |sql: &str, value: Option<Value>| {
        if let Some(value) = value {
            terms.push(sql.into());
            values.push(value);
        }
    };
    term("executor = ?", query.executor.clone().map(Value::Text));
    term("due <= ?", query.due_at.map(Value::Integer));
    // Not LIKE: there `%` and `_` mean something, and only ASCII has no case.
    term("instr(search, ?) > 0", query.text.as_deref().map(|text| Value::Text(fold(text))));
    (terms.join(" AND "), values)
}

pub(super) fn count_by_status(
    connection: &Connection,
    name: &str,
) -> Result<Vec<(LifecycleStatus, u64)>, BackendError> {
    let counts = connection
        .prepare_cached("SELECT status, count(*) FROM tasks GROUP BY status")
        .and_then(|mut statement| {
            statement
                .query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)))?
                .collect::<rusqlite::Result<Vec<_>>>()
        })
        .map_err(|error| explain(&error, name, "count tasks"))?;
    let known = |(status, count): (String, i64)| match status_of(&status) {
        Some(status) => Ok((status, count as u64)),
        None => Err(BackendError::Corrupt {
            what: name.into(),
            reason: format!("{count} tasks have the unknown status {status:?}"),
        }),
    };
    counts.into_iter().map(known).collect()
}

pub(super) fn class_names(connection: &Connection, name: &str) -> Result<Vec<String>, BackendError> {
    connection
        .prepare_cached("SELECT DISTINCT class FROM tasks ORDER BY class")
        .and_then(|mut statement| statement.query_map([], |row| row.get(0))?.collect())
        .map_err(|error| explain(&error, name, "list worker classes"))
}
