use std::os::unix::fs::PermissionsExt;

use rusqlite::Connection;

use super::*;
use crate::backend::{BackendError, TaskOrder};

fn task(id: &str) -> Task {
    Task::new(id, "Copy", 1_000)
}

fn file() -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tasks.db");
    (folder, path)
}

#[tokio::test]
async fn the_file_is_its_owners_alone_and_another_connection_may_look_in() {
    let (folder, path) = file();
    let storage = SqliteStorage::open(&path).unwrap();
    assert!(storage.insert(&task("a")).await.unwrap());
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{:?}", entry.path());
    }
    let other = SqliteStorage::open(&path).unwrap();
    assert_eq!(other.get("a").await.unwrap().unwrap(), task("a"));
    other.insert(&task("b")).await.unwrap();
    assert_eq!(storage.list(&TaskQuery::default()).await.unwrap().total, 2);
}

#[test]
fn a_file_that_is_not_ours_is_refused_and_left_as_it_is() {
    let (_folder, path) = file();
    std::fs::write(&path, "this is no database, but a text that is long enough to have a header".repeat(20))
        .unwrap();
    let error = SqliteStorage::open(&path).unwrap_err();
    assert!(matches!(error, BackendError::Corrupt { .. }), "{error}");
    assert!(std::fs::read_to_string(&path).unwrap().starts_with("this is no database"));

    let (_folder, path) = file();
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
    let error = SqliteStorage::open(&path).unwrap_err().to_string();
    assert!(error.contains("another program"), "{error}");

    let (_folder, path) = file();
    drop(SqliteStorage::open(&path).unwrap());
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 9).unwrap();
    let error = SqliteStorage::open(&path).unwrap_err().to_string();
    assert!(error.contains("schema 9") && error.contains("update this program"), "{error}");

    let error = SqliteStorage::open("/nonexistent/tasks.db").unwrap_err().to_string();
    assert!(error.contains("/nonexistent/tasks.db"), "{error}");
}

#[tokio::test]
async fn a_damaged_page_is_reported_as_damage() {
    let (_folder, path) = file();
    let storage = SqliteStorage::open(&path).unwrap();
    let many: Vec<Task> = (0..500).map(|n| task(&format!("task-{n}"))).collect();
    storage.insert_many(&many).await.unwrap();
    drop(storage);
    // Everything is in the file itself, not in its log.
    Connection::open(&path).unwrap().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[8_192..].fill(0xA5);
    std::fs::write(&path, bytes).unwrap();
    let found = match SqliteStorage::open(&path) {
        Ok(storage) => storage.list(&TaskQuery::default()).await.map(|page| page.total),
        Err(error) => Err(error),
    };
    assert!(matches!(found, Err(BackendError::Corrupt { .. })), "{found:?}");
}

#[tokio::test]
async fn one_broken_document_does_not_hide_the_others() {
    let (_folder, path) = file();
    let storage = SqliteStorage::open(&path).unwrap();
    storage.insert_many(&[task("good"), task("broken")]).await.unwrap();
    let other = Connection::open(&path).unwrap();
    other.execute("UPDATE tasks SET document = '{' WHERE id = 'broken'", []).unwrap();
    let page = storage.list(&TaskQuery::default()).await.unwrap();
    assert_eq!((page.tasks.len(), page.total, page.next), (1, 2, None));
    let scan = TaskScan { statuses: vec![page.tasks[0].lifecycle_status], ..TaskScan::default() };
    assert_eq!(storage.scan(&scan).await.unwrap().tasks, page.tasks);
    let error = storage.get("broken").await.unwrap_err();
    assert!(matches!(error, BackendError::Corrupt { .. }), "{error}");
    let mut seen = task("broken");
    seen.skalds.revision = 7;
    let stale = storage.replace(&task("broken"), &seen).await.unwrap_err();
    assert!(matches!(stale, BackendError::Corrupt { .. }), "{stale}");
    assert!(storage.delete("broken").await.unwrap());
}

/// A full disk, played by SQLite's own bound on the size of the database.
#[tokio::test]
async fn a_write_that_does_not_fit_fails_alone_and_its_neighbours_are_stored() {
    let connection = schema::in_memory("test").unwrap();
    let pages: i64 = connection.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
    connection.pragma_update(None, "max_page_count", pages + 20).unwrap();
    let mut answers = Vec::new();
    let mut writes = Vec::new();
    for n in 0..8 {
        let mut task = task(&format!("task-{n}"));
        if n == 3 {
            task.description = Some("x".repeat(200_000));
        }
        let (sender, receiver) = oneshot::channel();
        writes.push(Write::Insert(vec![Row::of(&task).unwrap()], Pending::new(sender)));
        answers.push(receiver);
    }
    let mut connection = connection;
    batch::commit(&mut connection, "test", writes);
    for (n, answer) in answers.into_iter().enumerate() {
        let answer = answer.await.unwrap();
        match n {
            3 => assert!(matches!(answer, Err(BackendError::Full { .. })), "{answer:?}"),
            _ => assert_eq!(answer.unwrap(), [true]),
        }
    }
    let stored: i64 = connection.query_row("SELECT count(*) FROM tasks", [], |row| row.get(0)).unwrap();
    assert_eq!(stored, 7);
}

/// A file of the first schema is given the indexes that came later; with them no scan sorts or reads what it leaves out.
#[tokio::test]
async fn an_older_file_gets_the_indexes_that_scans_walk_along() {
    let (_folder, path) = file();
    SqliteStorage::open(&path).unwrap().insert(&task("old")).await.unwrap();
    let other = Connection::open(&path).unwrap();
    other
        .execute_batch(
            "DROP TABLE leadership; DROP INDEX tasks_untold; ALTER TABLE tasks DROP COLUMN untold;
             DROP INDEX tasks_by_status; DROP INDEX tasks_by_executor;
             CREATE INDEX tasks_by_executor ON tasks (executor, status) WHERE executor IS NOT NULL;
             PRAGMA user_version = 1;",
        )
        .unwrap();
    assert!(SqliteStorage::open(&path).unwrap().get("old").await.unwrap().is_some());
    for executor in [None, Some("a".to_owned())] {
        let statuses = vec![LifecycleStatus::Running, LifecycleStatus::Paused];
        let scan = TaskScan { statuses, executor, after: None };
        let (sql, values) = query::scan_sql(&scan);
        let mut plan = other.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let rows = plan.query_map(rusqlite::params_from_iter(values), |row| row.get::<_, String>(3)).unwrap();
        let steps: Vec<String> = rows.collect::<rusqlite::Result<_>>().unwrap();
        let searches = steps.iter().filter(|step| step.contains("status=?") && step.contains("id>?")).count();
        assert_eq!(searches, 2, "{steps:?}");
        assert!(!steps.iter().any(|step| step.contains("TEMP B-TREE") || step.contains("SCAN")), "{steps:?}");
    }
}

#[tokio::test]
async fn a_page_ends_before_its_documents_fill_the_memory_and_says_where_to_go_on() {
    let storage = SqliteStorage::in_memory().unwrap();
    for n in 0..40 {
        let mut task = task(&format!("task-{n:02}"));
        task.description = Some("x".repeat(900_000));
        storage.insert(&task).await.unwrap();
    }
    let mut query = TaskQuery { order: TaskOrder::DispatchOrder, ..TaskQuery::default() };
    let mut ids = Vec::new();
    let mut pages = 0;
    loop {
        let page = storage.list(&query).await.unwrap();
        assert_eq!(page.total, 40);
        ids.extend(page.tasks.into_iter().map(|task| task.id));
        pages += 1;
        match page.next {
            Some(next) => query.offset = next,
            None => break,
        }
    }
    assert!(pages > 1);
    let expected: Vec<_> = (0..40).map(|n| format!("task-{n:02}")).collect();
    assert_eq!(ids, expected);
}
