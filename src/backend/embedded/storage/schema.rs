//! Opening a file: what it must look like, how it is made, and what to say when it is something else.

use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::backend::BackendError;

/// Marks the file as ours ("skal").
const APPLICATION_ID: i32 = 0x736b_616c;
/// Raised by every change of the tables; a file with a higher number is not touched.
const SCHEMA: i32 = 4;
/// How long to wait for another process that writes.
const BUSY: Duration = Duration::from_secs(5);

/// The columns repeat what the document says, for the indexes: the dispatcher's order, the list's order, the filters of
/// [`crate::backend::TaskQuery`], the sweeps of [`crate::backend::TaskScan`], and
/// the orders that may not have been sent.
const TABLES: &str = "
    CREATE TABLE tasks (
        id TEXT PRIMARY KEY,
        revision INTEGER NOT NULL,
        status TEXT NOT NULL,
        class TEXT NOT NULL,
        executor TEXT,
        priority INTEGER NOT NULL,
        created INTEGER NOT NULL,
        due INTEGER NOT NULL,
        search TEXT NOT NULL,
        document TEXT NOT NULL,
        untold INTEGER
    ) STRICT;
    CREATE INDEX tasks_by_dispatch ON tasks (status, priority DESC, created, id);
    CREATE INDEX tasks_by_age ON tasks (created DESC, id);
    CREATE INDEX tasks_by_class ON tasks (class, status);
";
/// What a file of schema 1 or 2 lacks: since when an order waits to be sent.
const UNTOLD: &str = "ALTER TABLE tasks ADD COLUMN untold INTEGER;";
/// What a file of schema 1 to 3 lacks: the latest term of leadership, in one row.
const TERM: &str = "
    CREATE TABLE leadership (one INTEGER PRIMARY KEY CHECK (one = 1), term INTEGER NOT NULL) STRICT;
    INSERT INTO leadership (one, term) VALUES (1, 0);
";
/// Made again by every raise of [`SCHEMA`].
const INDEXES: &str = "
    DROP INDEX IF EXISTS tasks_by_executor;
    CREATE INDEX tasks_by_executor ON tasks (executor, status, id) WHERE executor IS NOT NULL;
    DROP INDEX IF EXISTS tasks_by_status;
    CREATE INDEX tasks_by_status ON tasks (status, id);
    DROP INDEX IF EXISTS tasks_untold;
    CREATE INDEX tasks_untold ON tasks (untold) WHERE untold IS NOT NULL;
";

pub(super) fn open(path: &Path, name: &str) -> Result<Connection, BackendError> {
    make_file(path).map_err(|error| BackendError::Unavailable {
        service: name.into(),
        action: "open it".into(),
        reason: error.to_string(),
    })?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection =
        Connection::open_with_flags(path, flags).map_err(|error| explain(&error, name, "open it"))?;
    prepare(connection, name)
}

pub(super) fn in_memory(name: &str) -> Result<Connection, BackendError> {
    let connection = Connection::open_in_memory().map_err(|error| explain(&error, name, "open it"))?;
    prepare(connection, name)
}

/// Makes the file for its owner only; SQLite gives the files beside it the same mode. The folder is synced, so that
/// the file is not lost with the power either.
fn make_file(path: &Path) -> std::io::Result<()> {
    let made = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    match made {
        Ok(_) => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            std::fs::File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

fn prepare(mut connection: Connection, name: &str) -> Result<Connection, BackendError> {
    let explain = |error: rusqlite::Error| explain(&error, name, "open it");
    connection.busy_timeout(BUSY).map_err(explain)?;
    // Looked at before anything is changed: a stranger's file stays as it is.
    check(&connection, name, &explain)?;
    connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;").map_err(explain)?;
    // So that the log does not keep the size of its worst moment.
    connection.execute_batch("PRAGMA journal_size_limit = 67108864;").map_err(explain)?;
    let transaction =
        connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).map_err(explain)?;
    // Again under the lock: another process may have made the tables meanwhile.
    let schema = check(&transaction, name, &explain)?;
    if schema == 0 {
        transaction.execute_batch(TABLES).map_err(explain)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID).map_err(explain)?;
    }
    if schema == 1 || schema == 2 {
        transaction.execute_batch(UNTOLD).map_err(explain)?;
    }
    if schema < SCHEMA {
        transaction.execute_batch(TERM).map_err(explain)?;
        transaction.execute_batch(INDEXES).map_err(explain)?;
        transaction.pragma_update(None, "user_version", SCHEMA).map_err(explain)?;
    }
    transaction.commit().map_err(explain)?;
    Ok(connection)
}

/// The file's schema, 0 when it is empty; an error when it is not ours to touch.
fn check(
    connection: &Connection,
    name: &str,
    explain: &impl Fn(rusqlite::Error) -> BackendError,
) -> Result<i32, BackendError> {
    let number =
        |pragma| connection.pragma_query_value(None, pragma, |row| row.get::<_, i32>(0)).map_err(explain);
    let (application, schema) = (number("application_id")?, number("user_version")?);
    let tables = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0))
        .map_err(explain)?;
    let refused = |reason: String| {
        Err(BackendError::Refused { service: name.into(), action: "open it".into(), reason })
    };
    if tables == 0 && application == 0 {
        return Ok(0);
    }
    if application != APPLICATION_ID {
        return refused("it is the database of another program; choose another path".into());
    }
    if schema > SCHEMA {
        return refused(format!(
            "it was written by a newer version (schema {schema}, this version knows {SCHEMA}); update this program, \
             or choose another path"
        ));
    }
    Ok(schema)
}

/// A SQLite error in the words of the traits.
pub(super) fn explain(error: &rusqlite::Error, name: &str, action: &str) -> BackendError {
    let reason = error.to_string();
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => BackendError::Corrupt {
            what: name.into(),
            reason: format!("{reason}; restore it from a copy, or choose another path"),
        },
        Some(ErrorCode::DiskFull) => BackendError::Full {
            what: name.into(),
            limit: "the disk, or the database's largest size".into(),
            hint: format!("free some space ({reason})"),
        },
        Some(
            ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied,
        ) => BackendError::Refused { service: name.into(), action: action.into(), reason },
        _ => BackendError::Unavailable { service: name.into(), action: action.into(), reason },
    }
}
