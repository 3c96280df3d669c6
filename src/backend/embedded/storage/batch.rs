//! Group commit: many writes, one transaction, an answer for each.

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use super::row::{Row, signed, task_of};
use super::schema::explain;
use super::thread::Write;
use crate::backend::{BackendError, Stored};

/// Commits the writes together and answers each when the commit is on disk.
///
/// If the group fails as a whole (a full disk, say), each write is tried again alone: the one that does not fit must
/// not take its neighbours with it.
pub(super) fn commit(connection: &mut Connection, name: &str, mut writes: Vec<Write>) {
    let committed = together(connection, name, &mut writes);
    if committed.is_ok() || writes.len() == 1 {
        writes.into_iter().for_each(|write| write.settle(committed.clone()));
        return;
    }
    for mut write in writes {
        let committed = together(connection, name, std::slice::from_mut(&mut write));
        write.settle(committed);
    }
}

fn together(connection: &mut Connection, name: &str, writes: &mut [Write]) -> Result<(), BackendError> {
    let explain = |error: rusqlite::Error| explain(&error, name, "write to it");
    // Immediate: a transaction that begins by reading could find itself behind another process's commit.
    let transaction =
        connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(explain)?;
    for write in writes {
        apply(&transaction, name, write).map_err(explain)?;
    }
    transaction.commit().map_err(explain)
}

fn apply(transaction: &Transaction<'_>, name: &str, write: &mut Write) -> rusqlite::Result<()> {
    match write {
        Write::Insert(rows, pending) => {
            pending.hold(Ok(rows.iter().map(|row| insert(transaction, row)).collect::<Result<_, _>>()?));
        }
        // The transaction holds the file's only write lock: no term begins between this look and the commit.
        Write::Replace(_, _, Some(term), pending) if latest_term(transaction)? > *term => {
            pending.hold(Err(BackendError::Superseded { term: *term }));
        }
        Write::Replace(row, revision, _, pending) => {
            pending.hold(replace(transaction, name, row, *revision)?);
        }
        Write::BeginTerm(pending) => {
            transaction.execute("UPDATE leadership SET term = term + 1", [])?;
            pending.hold(Ok(latest_term(transaction)?));
        }
        Write::Delete(id, pending) => {
            let mut statement = transaction.prepare_cached("DELETE FROM tasks WHERE id = ?1")?;
            pending.hold(Ok(statement.execute([&*id])? > 0));
        }
    }
    Ok(())
}

/// The latest term of leadership that has begun.
pub(super) fn latest_term(connection: &Connection) -> rusqlite::Result<u64> {
    let mut statement = connection.prepare_cached("SELECT term FROM leadership")?;
    let term: i64 = statement.query_row([], |row| row.get(0))?;
    Ok(term.unsigned_abs()) // it counts from 0
}

fn insert(transaction: &Transaction<'_>, row: &Row) -> rusqlite::Result<bool> {
    let mut statement = transaction.prepare_cached(
        "INSERT INTO tasks (id, revision, status, class, executor, priority, created, due, search, document, untold)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11) ON CONFLICT (id) DO NOTHING",
    )?;
    let inserted = statement.execute(params![
        row.id,
        row.revision,
        row.status,
        row.class,
        row.executor,
        row.priority,
        row.created,
        row.due,
        row.search,
        row.document,
        row.untold
    ])?;
    Ok(inserted > 0)
}

fn replace(
    transaction: &Transaction<'_>,
    name: &str,
    row: &Row,
    revision: u64,
) -> rusqlite::Result<Result<Stored, BackendError>> {
    let mut statement = transaction.prepare_cached(
        "UPDATE tasks SET revision = ?3, status = ?4, class = ?5, executor = ?6, priority = ?7, created = ?8,
         due = ?9, search = ?10, document = ?11, untold = ?12 WHERE id = ?1 AND revision = ?2",
    )?;
    let replaced = statement.execute(params![
        row.id,
        signed(revision),
        row.revision,
        row.status,
        row.class,
        row.executor,
        row.priority,
        row.created,
        row.due,
        row.search,
        row.document,
        row.untold
    ])?;
    if replaced > 0 {
        return Ok(Ok(Stored::Done));
    }
    let mut statement = transaction.prepare_cached("SELECT document FROM tasks WHERE id = ?1")?;
    let now = statement.query_row([&row.id], |found| found.get::<_, String>(0)).optional()?;
    Ok(match now {
        None => Ok(Stored::Missing),
        Some(document) => {
            task_of(&document, || format!("task {:?} in the {name}", row.id)).map(Stored::Stale)
        }
    })
}

impl Write {
    fn settle(self, committed: Result<(), BackendError>) {
        match self {
            Write::Insert(_, pending) => pending.settle(committed),
            Write::BeginTerm(pending) => pending.settle(committed),
            Write::Replace(_, _, _, pending) => pending.settle(committed),
            Write::Delete(_, pending) => pending.settle(committed),
        }
    }
}
