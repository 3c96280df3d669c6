//! What every `DiskStorage` must do, and what the SQLite file must survive.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use skalds::backend::embedded::SqliteStorage;
use skalds::backend::{
    BackendError, DiskStorage, MAX_DOCUMENT, MAX_PAGE, Stored, TaskOrder, TaskQuery, TaskScan,
};
use skalds::core::order::{Order, Untold};
use skalds::core::task::{LifecycleStatus, Task};

pub(crate) fn task(id: &str, created: i64) -> Task {
    Task::new(id, "Copy", created)
}

fn ids(tasks: &[Task]) -> Vec<&str> {
    tasks.iter().map(|task| &task.id[..]).collect()
}

async fn inserts_refuse_an_id_that_is_taken(storage: &dyn DiskStorage) {
    let mut first = task("one", 1);
    first.attachments =
        json!({"rtspUrl": "rtsp://x", "nested": {"list": [1, 2.5, null]}}).as_object().cloned();
    first.name = Some("with 'quotes' and \0 and ünïcode".into());
    assert!(storage.insert(&first).await.unwrap());
    assert!(!storage.insert(&task("one", 2)).await.unwrap());
    assert_eq!(storage.get("one").await.unwrap(), Some(first));
    assert_eq!(storage.get("none").await.unwrap(), None);
    let many = [task("two", 2), task("one", 3), task("three", 3), task("two", 4)];
    assert_eq!(storage.insert_many(&many).await.unwrap(), [true, false, true, false]);
    assert_eq!(storage.get("two").await.unwrap().unwrap().create_date_time, 2);
    assert!(storage.insert_many(&[]).await.unwrap().is_empty());
    for id in ["one", "two", "three"] {
        assert!(storage.delete(id).await.unwrap());
        assert!(!storage.delete(id).await.unwrap());
    }
}

async fn what_was_decided_in_a_former_term_is_not_done(storage: &dyn DiskStorage) {
    let before = storage.latest_term().await.unwrap();
    let open = task("term-open", 1);
    assert!(storage.insert(&open).await.unwrap());
    let first = storage.begin_term().await.unwrap();
    assert!(first > before);
    assert_eq!(storage.latest_term().await.unwrap(), first);
    let changed = |seen: &Task, executor: &str| Task { executor: Some(executor.into()), ..seen.clone() };
    let stored = storage.replace_in_term(&changed(&open, "a"), &open, first).await.unwrap();
    assert_eq!(stored, Stored::Done);
    let seen = storage.get("term-open").await.unwrap().unwrap();
    let second = storage.begin_term().await.unwrap();
    assert!(second > first);
    // Nobody has changed the task since it was seen, so nothing but the term tells that the decision is old.
    let refused = storage.replace_in_term(&changed(&seen, "stale"), &seen, first).await;
    assert_eq!(refused, Err(BackendError::Superseded { term: first }));
    assert_eq!(storage.get("term-open").await.unwrap().as_ref(), Some(&seen));
    // An operator's change is of no term.
    assert_eq!(storage.replace(&changed(&seen, "operator"), &seen).await.unwrap(), Stored::Done);
    let Stored::Stale(now) = storage.replace_in_term(&changed(&seen, "b"), &seen, second).await.unwrap()
    else {
        panic!("it was changed meanwhile")
    };
    assert_eq!(storage.replace_in_term(&changed(&now, "b"), &now, second).await.unwrap(), Stored::Done);
    assert!(storage.delete("term-open").await.unwrap());
    assert_eq!(storage.replace_in_term(&now, &now, second).await.unwrap(), Stored::Missing);
}

async fn the_first_to_replace_wins(storage: &Arc<dyn DiskStorage>) {
    storage.insert(&task("cas", 1)).await.unwrap();
    let attempts = (0..20).map(|n| {
        let storage = storage.clone();
        async move {
            let mut next = task("cas", 1);
            next.executor = Some(format!("skald-{n}"));
            storage.replace(&next, &task("cas", 1)).await.unwrap()
        }
    });
    let outcomes = futures_util::future::join_all(attempts).await;
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == Stored::Done).count(), 1);
    let now = storage.get("cas").await.unwrap().unwrap();
    assert_eq!(now.skalds.revision, 1);
    for outcome in outcomes {
        if let Stored::Stale(seen) = outcome {
            assert_eq!(seen, now);
        }
    }
    let mut next = now.clone();
    next.lifecycle_status = LifecycleStatus::Running;
    // The document's own revision does not matter, the given one does.
    next.skalds.revision = 77;
    assert_eq!(storage.replace(&next, &now).await.unwrap(), Stored::Done);
    let now = storage.get("cas").await.unwrap().unwrap();
    assert_eq!((now.skalds.revision, now.lifecycle_status), (2, LifecycleStatus::Running));
    assert_eq!(
        storage.replace(&task("never there", 1), &task("never there", 1)).await.unwrap(),
        Stored::Missing
    );
    storage.delete("cas").await.unwrap();
}

async fn a_document_that_is_too_large_is_refused_and_changes_nothing(storage: &dyn DiskStorage) {
    let mut large = task("large", 1);
    large.skalds.checkpoint = Some("x".repeat(MAX_DOCUMENT).into());
    let refused = storage.insert(&large).await.unwrap_err();
    assert!(matches!(refused, BackendError::Full { .. }), "{refused}");
    assert!(refused.to_string().contains("large"), "{refused}");
    assert_eq!(storage.get("large").await.unwrap(), None);
    let refused = storage.insert_many(&[task("small", 1), large]).await.unwrap_err();
    assert!(matches!(refused, BackendError::Full { .. }), "{refused}");
    assert_eq!(storage.get("small").await.unwrap(), None);
}

async fn tasks_are_found_by_what_they_are(storage: &dyn DiskStorage) {
    let mut tasks = Vec::new();
    for n in 0..30i64 {
        let mut one = task(&format!("t{n:02}"), 1_000 + n);
        one.class_name = if n % 3 == 0 { "Copy".into() } else { "Transcode".into() };
        one.lifecycle_status = [LifecycleStatus::Created, LifecycleStatus::Running, LifecycleStatus::Failed]
            [usize::try_from(n % 3).unwrap()];
        one.executor = (n % 5 == 0).then(|| format!("skald-{}", n % 2));
        one.priority = u8::try_from(n % 4).unwrap();
        tasks.push(one);
    }
    tasks[1].name = Some("Straße 100% Öl_A".into());
    tasks[2].description = Some("a 100x yoghurt".into());
    tasks[0].skalds.next_attempt_at = Some(5_000);
    tasks[3].skalds.not_before = Some(6_000);
    tasks[6].skalds.next_attempt_at = Some(4_000);
    tasks[6].skalds.not_before = Some(7_000);
    storage.insert_many(&tasks).await.unwrap();
    let list = async |query: TaskQuery| storage.list(&query).await.unwrap();

    let newest = list(TaskQuery { limit: 3, ..TaskQuery::default() }).await;
    assert_eq!((ids(&newest.tasks), newest.total, newest.next), (vec!["t29", "t28", "t27"], 30, Some(3)));
    let page = list(TaskQuery { offset: 28, limit: 5, ..TaskQuery::default() }).await;
    assert_eq!((ids(&page.tasks), page.total, page.next), (vec!["t01", "t00"], 30, None));
    let beyond = list(TaskQuery { offset: 99, ..TaskQuery::default() }).await;
    assert_eq!((beyond.tasks.len(), beyond.total, beyond.next), (0, 30, None));

    let dispatch = TaskQuery {
        statuses: vec![LifecycleStatus::Created],
        order: TaskOrder::DispatchOrder,
        ..TaskQuery::default()
    };
    let all = list(dispatch.clone()).await;
    let mut expected: Vec<&Task> =
        tasks.iter().filter(|task| task.lifecycle_status == LifecycleStatus::Created).collect();
    expected.sort_by_key(|task| (std::cmp::Reverse(task.priority), task.create_date_time));
    assert_eq!(all.tasks.iter().collect::<Vec<_>>(), expected);
    for (at, left_out) in [(4_999, vec!["t00", "t03", "t06"]), (6_000, vec!["t06"]), (7_000, vec![])] {
        let due = list(TaskQuery { due_at: Some(at), ..dispatch.clone() }).await;
        let found: BTreeSet<&str> = ids(&due.tasks).into_iter().collect();
        let missing = ids(&all.tasks).into_iter().filter(|id| !found.contains(id)).collect::<BTreeSet<_>>();
        assert_eq!(missing, left_out.into_iter().collect(), "due at {at}");
    }

    let found = async |query: TaskQuery| list(query).await.total;
    let either = vec![LifecycleStatus::Created, LifecycleStatus::Failed];
    assert_eq!(found(TaskQuery { statuses: either, ..TaskQuery::default() }).await, 20);
    assert_eq!(found(TaskQuery { class_names: vec!["Transcode".into()], ..TaskQuery::default() }).await, 20);
    assert_eq!(found(TaskQuery { executor: Some("skald-1".into()), ..TaskQuery::default() }).await, 3);
    let class_names = vec!["Copy".to_owned()];
    let executor = Some("skald-0".to_owned());
    assert_eq!(found(TaskQuery { class_names, executor, ..TaskQuery::default() }).await, 1);
    for (text, count) in [
        ("STRASSE", 0),
        ("straße", 1),
        ("öl_a", 1),
        ("ÖL_A", 1),
        ("100%", 1),
        ("100_", 0),
        ("yogHURT", 1),
        ("t1", 10),
        ("TRANSC", 20),
        ("'; DROP TABLE tasks", 0),
        ("", 30),
    ] {
        assert_eq!(
            found(TaskQuery { text: Some(text.into()), ..TaskQuery::default() }).await,
            count,
            "{text:?}"
        );
    }
    let counts: BTreeSet<_> = storage
        .count_by_status()
        .await
        .unwrap()
        .into_iter()
        .map(|(status, count)| (format!("{status:?}"), count))
        .collect();
    assert_eq!(counts, ["Created", "Running", "Failed"].map(|status| (status.to_owned(), 10)).into());
    assert_eq!(storage.class_names().await.unwrap(), ["Copy", "Transcode"]);
}

async fn a_page_has_a_bound_and_the_pages_are_the_whole(storage: &dyn DiskStorage) {
    let many: Vec<Task> = (0..2_500).map(|n| task(&format!("page-{n:05}"), 9_000 + n)).collect();
    assert!(storage.insert_many(&many).await.unwrap().into_iter().all(|added| added));
    let mut query = TaskQuery { text: Some("page-".into()), limit: u64::MAX, ..TaskQuery::default() };
    let mut seen = BTreeSet::new();
    loop {
        let page = storage.list(&query).await.unwrap();
        assert!(page.tasks.len() as u64 <= MAX_PAGE && page.total == 2_500);
        seen.extend(page.tasks.into_iter().map(|task| task.id));
        match page.next {
            Some(next) => query.offset = next,
            None => break,
        }
    }
    assert_eq!(seen.len(), 2_500);
}

async fn a_scan_visits_each_task_once_in_the_order_of_ids(storage: &dyn DiskStorage) {
    use LifecycleStatus::{Failed, Paused, Running};
    let of = |n: i64| {
        let mut task = task(&format!("scan-{n:05}"), 1);
        task.lifecycle_status = [Running, Paused, Failed][n as usize % 3];
        task.executor = Some(if n % 2 == 0 { "even" } else { "odd" }.into());
        task
    };
    let many: Vec<Task> = (0..4_000).rev().map(of).collect();
    assert!(storage.insert_many(&many).await.unwrap().into_iter().all(|added| added));
    let mut scan = TaskScan {
        statuses: vec![Running, Paused],
        executor: Some("odd".into()),
        after: Some("scan-".into()),
    };
    let mut seen = Vec::new();
    let mut batches = 0;
    loop {
        let batch = storage.scan(&scan).await.unwrap();
        batches += 1;
        assert!(batch.tasks.len() as u64 <= MAX_PAGE);
        seen.extend(batch.tasks.iter().map(|task| task.id.clone()));
        if batches == 1 {
            // What changes behind the scan does not move it.
            assert!(storage.delete(&seen[0]).await.unwrap());
            assert!(storage.insert(&of(3_999 + 6)).await.unwrap());
        }
        scan.after = batch.next;
        if scan.after.is_none() {
            break;
        }
    }
    let mut expected: Vec<String> =
        (0..4_000).filter(|n| n % 2 == 1 && n % 3 != 2).map(|n| format!("scan-{n:05}")).collect();
    expected.push("scan-04005".into());
    assert_eq!(seen, expected);
    assert_eq!(batches, 2);
    scan.statuses.clear();
    assert!(storage.scan(&scan).await.unwrap().tasks.is_empty());
}

async fn orders_that_may_not_have_been_sent_are_found_oldest_first(storage: &dyn DiskStorage) {
    let marked = |id: &str, at: Option<i64>| {
        let mut task = task(id, 1);
        task.skalds.untold = at.map(|at| Untold { order: Order::Stop, recipient: "py".into(), at });
        task
    };
    let found = async |before| storage.untold(before).await.unwrap();
    assert!(found(i64::MAX).await.is_empty());
    let tasks =
        [marked("late", Some(30)), marked("none", None), marked("new", Some(20)), marked("old", Some(10))];
    storage.insert_many(&tasks).await.unwrap();
    assert_eq!(ids(&found(30).await), ["old", "new"]);
    assert_eq!(found(31).await.last(), Some(&tasks[0]));
    assert_eq!(storage.replace(&marked("old", None), &tasks[3]).await.unwrap(), Stored::Done);
    assert_eq!(storage.replace(&marked("none", Some(-5)), &tasks[1]).await.unwrap(), Stored::Done);
    assert_eq!(ids(&found(30).await), ["none", "new"]);
    for task in tasks {
        storage.delete(&task.id).await.unwrap();
    }
}

pub(crate) async fn all(storage: Arc<dyn DiskStorage>) {
    inserts_refuse_an_id_that_is_taken(&*storage).await;
    what_was_decided_in_a_former_term_is_not_done(&*storage).await;
    the_first_to_replace_wins(&storage).await;
    a_document_that_is_too_large_is_refused_and_changes_nothing(&*storage).await;
    tasks_are_found_by_what_they_are(&*storage).await;
    a_page_has_a_bound_and_the_pages_are_the_whole(&*storage).await;
    a_scan_visits_each_task_once_in_the_order_of_ids(&*storage).await;
    orders_that_may_not_have_been_sent_are_found_oldest_first(&*storage).await;
    assert!(storage.ping().await.unwrap() < Duration::from_secs(5));
}

#[tokio::test]
async fn sqlite_in_a_file_keeps_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    all(Arc::new(SqliteStorage::open(folder.path().join("tasks.db")).unwrap())).await;
}

#[tokio::test]
async fn sqlite_in_memory_keeps_the_contract() {
    all(Arc::new(SqliteStorage::in_memory().unwrap())).await;
}

#[tokio::test]
async fn what_was_stored_is_there_after_opening_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tasks.db");
    let storage = SqliteStorage::open(&path).unwrap();
    storage.insert(&task("kept", 1)).await.unwrap();
    drop(storage);
    assert_eq!(SqliteStorage::open(&path).unwrap().get("kept").await.unwrap(), Some(task("kept", 1)));
}

/// Names the file to a child: the same test again, in a process of its own, which plays the one that is killed.
const CHILD: &str = "SKALDS_TEST_STORAGE";

struct Victim(Child);

impl Victim {
    fn start(test: &str, path: &Path) -> Victim {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).env(CHILD, path);
        Victim(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap())
    }

    /// The lines that it wrote until `enough` of them came and it was killed. A line cut short does not count.
    fn killed_after(mut self, enough: usize) -> Vec<String> {
        let mut output = BufReader::new(self.0.stdout.take().unwrap());
        let mut lines = Vec::new();
        let mut line = String::new();
        while output.read_line(&mut line).unwrap() > 0 {
            if let Some(said) = line.strip_suffix('\n').and_then(|line| line.strip_prefix("stored ")) {
                lines.push(said.to_owned());
            }
            line.clear();
            if lines.len() == enough {
                self.0.kill().unwrap(); // SIGKILL; what it wrote before is still read
            }
        }
        assert!(lines.len() >= enough, "it ended by itself after {} lines", lines.len());
        lines
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill(); // fails only when it has ended
        let _ = self.0.wait();
    }
}

fn say(text: &str) {
    let mut output = std::io::stdout().lock();
    writeln!(output, "stored {text}").unwrap();
    output.flush().unwrap();
}

/// 64 callers store and change tasks as fast as they can; each says so when it is done.
async fn store_until_killed(path: &Path) {
    let storage = SqliteStorage::open(path).unwrap();
    let mut callers = Vec::new();
    for caller in 0..64 {
        let storage = storage.clone();
        callers.push(tokio::spawn(async move {
            for n in 0..1_000_000 {
                let id = format!("{}-{caller}-{n}", std::process::id());
                let mut task = task(&id, n);
                assert!(storage.insert(&task).await.unwrap());
                say(&format!("{id} 0"));
                let seen = task.clone();
                task.lifecycle_status = LifecycleStatus::Running;
                assert_eq!(storage.replace(&task, &seen).await.unwrap(), Stored::Done);
                say(&format!("{id} 1"));
            }
        }));
    }
    futures_util::future::join_all(callers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_when_the_process_is_killed() {
    if let Some(path) = std::env::var_os(CHILD) {
        return store_until_killed(Path::new(&path)).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tasks.db");
    let mut acknowledged = Vec::new();
    for round in 1..=3 {
        let victim = Victim::start("storage::nothing_acknowledged_is_lost_when_the_process_is_killed", &path);
        acknowledged.extend(victim.killed_after(500 * round));
        let storage = SqliteStorage::open(&path).unwrap();
        for line in &acknowledged {
            let (id, revision) = line.split_once(' ').unwrap();
            let stored = storage.get(id).await.unwrap().unwrap_or_else(|| panic!("{id} is lost"));
            assert!(stored.skalds.revision >= revision.parse().unwrap(), "{id} is older than {revision}");
        }
    }
}

#[tokio::test]
async fn a_writer_killed_in_the_middle_of_a_transaction_leaves_nothing_of_it() {
    if let Some(path) = std::env::var_os(CHILD) {
        let writer = rusqlite::Connection::open(path).unwrap();
        // Small enough a cache that half-done pages go to the log before the end.
        writer.execute_batch("PRAGMA cache_size = 1; BEGIN IMMEDIATE").unwrap();
        let insert = "INSERT INTO tasks VALUES (?1, 0, 'Created', 'C', NULL, 0, 0, 0, hex(randomblob(500)), '{}', NULL)";
        for n in 0..2_000 {
            writer.execute(insert, [format!("half-{n}")]).unwrap();
        }
        say("half of it");
        loop {
            std::thread::park();
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tasks.db");
    let storage = SqliteStorage::open(&path).unwrap();
    storage.insert(&task("before", 1)).await.unwrap();
    let victim =
        Victim::start("storage::a_writer_killed_in_the_middle_of_a_transaction_leaves_nothing_of_it", &path);
    victim.killed_after(1);
    // The one that is still open goes on, and one that opens the file now agrees.
    assert!(storage.insert(&task("after", 2)).await.unwrap());
    for storage in [storage, SqliteStorage::open(&path).unwrap()] {
        assert_eq!(ids(&storage.list(&TaskQuery::default()).await.unwrap().tasks), ["after", "before"]);
    }
}
