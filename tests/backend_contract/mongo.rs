//! `MongoStorage` on a real server: the contract of storages, and living with others who write into the documents.

use std::process::Command;
use std::sync::Arc;

use mongodb::bson::{Bson, Document, doc};
use mongodb::{Client, Collection, Database};
use serde_json::json;
use skalds::backend::mongo::{MongoOptions, MongoStorage};
use skalds::backend::{BackendError, DiskStorage, MAX_DOCUMENT, Stored, TaskOrder, TaskQuery, TaskScan};
use skalds::core::lifecycle::{Change, apply};
use skalds::core::task::{LifecycleStatus, Progress, Task};

use crate::storage::{self, task};
use crate::support::MongoDatabase;

pub(crate) async fn open(database: &MongoDatabase) -> MongoStorage {
    let options = MongoOptions { database: database.name.clone(), ..MongoOptions::new(&database.url) };
    MongoStorage::connect(options).await.unwrap()
}

/// As somebody else sees it.
async fn raw(database: &MongoDatabase) -> Database {
    Client::with_uri_str(&database.url).await.unwrap().database(&database.name)
}

async fn collection(database: &MongoDatabase) -> Collection<Document> {
    raw(database).await.collection("tasks")
}

/// A task as the Python package 0.3.8 stores it: fields, their order and their types.
fn python_task(id: &str, status: &str) -> Document {
    doc! {
        "id": id, "className": "MyWorker", "source": "Test", "name": null, "description": null, "executor": null,
        "dependencies": null, "mode": "Passive", "isPersistent": true,
        "createDateTime": 1_795_967_169_868_i64, "updateDateTime": 1_795_967_169_868_i64,
        "deadlineDateTime": 1_796_571_969_868_i64, "lifecycleStatus": status, "priority": 0_i32,
        "attachments": {"rtspUrl": "rtsp://x", "fixFrame": 30_i32},
    }
}

fn changed(seen: &Task, change: Change) -> Task {
    apply(seen, &change, seen.update_date_time + 1, &Default::default()).unwrap()
}

#[tokio::test]
async fn mongodb_keeps_the_contract() {
    let database = MongoDatabase::new();
    storage::all(Arc::new(open(&database).await)).await;
}

#[tokio::test]
async fn documents_of_python_are_read_changed_and_keep_what_is_not_ours() {
    let database = MongoDatabase::new();
    let (storage, theirs) = (open(&database).await, collection(&database).await);
    let mut document = python_task("task_1", "Created");
    document.insert("note", doc! {"by": "a user", "tags": ["x"]});
    theirs.insert_one(document).await.unwrap();

    let seen = storage.get("task_1").await.unwrap().unwrap();
    assert_eq!((seen.skalds.revision, seen.priority, seen.is_persistent), (0, 0, true));
    assert_eq!(seen.attachments.as_ref().unwrap()["fixFrame"], 30);
    let assigned = changed(&seen, Change::Assign { executor: "skald-a".into() });
    assert_eq!(storage.replace(&assigned, &seen).await.unwrap(), Stored::Done);

    let stored = theirs.find_one(doc! {"id": "task_1"}).await.unwrap().unwrap();
    let mut expected = python_task("task_1", "Assigning");
    expected.insert("_id", stored.get("_id").unwrap().clone());
    expected.insert("executor", "skald-a");
    expected.insert("updateDateTime", 1_795_967_169_869_i64);
    expected.insert("note", doc! {"by": "a user", "tags": ["x"]});
    expected.insert("skalds", doc! {"incarnation": 1_i32, "revision": 1_i32});
    for (name, value) in &expected {
        assert_eq!(stored.get(name), Some(value), "{name}");
    }
    assert_eq!(stored.len(), expected.len());
    assert_eq!(storage.replace(&assigned, &seen).await.unwrap(), Stored::Stale(now(&storage).await));
}

async fn now(storage: &MongoStorage) -> Task {
    storage.get("task_1").await.unwrap().unwrap()
}

#[tokio::test]
async fn what_a_python_peer_changes_meanwhile_is_never_overwritten() {
    let database = MongoDatabase::new();
    let (storage, theirs) = (open(&database).await, collection(&database).await);
    theirs.insert_one(python_task("task_1", "Created")).await.unwrap();
    let by_python = async |set: Document| {
        let done = theirs.update_one(doc! {"id": "task_1"}, doc! {"$set": set}).await.unwrap();
        assert_eq!(done.modified_count, 1);
    };
    // A status without a revision.
    let seen = now(&storage).await;
    by_python(doc! {"lifecycleStatus": "Cancelled"}).await;
    let assigned = changed(&seen, Change::Assign { executor: "a".into() });
    let Stored::Stale(current) = storage.replace(&assigned, &seen).await.unwrap() else {
        panic!("a cancel was overwritten")
    };
    assert_eq!((current.lifecycle_status, current.skalds.revision), (LifecycleStatus::Cancelled, 0));
    // An executor: its dispatcher writes that first, and the status after it.
    by_python(doc! {"lifecycleStatus": "Created"}).await;
    by_python(doc! {"executor": "py"}).await;
    assert!(matches!(storage.replace(&assigned, &seen).await.unwrap(), Stored::Stale(_)));
    // Attachments: they stay, beside what we write.
    by_python(doc! {"executor": null}).await;
    assert_eq!(storage.replace(&assigned, &seen).await.unwrap(), Stored::Done);
    let seen = now(&storage).await;
    let incarnation = seen.skalds.incarnation;
    let running = changed(&seen, Change::Start { executor: "a".into(), incarnation, outside: false });
    assert_eq!(storage.replace(&running, &seen).await.unwrap(), Stored::Done);
    let seen = now(&storage).await;
    by_python(doc! {"attachments": {"rtspUrl": "rtsp://NEW", "fixFrame": 41_i32}}).await;
    let progress = Some(Progress { value: 0.5, text: None, stage: None });
    let noted = changed(&seen, Change::Note { incarnation, progress, checkpoint: Some(json!([1])) });
    assert_eq!(storage.replace(&noted, &seen).await.unwrap(), Stored::Done);
    let stored = now(&storage).await;
    assert_eq!(stored.attachments.unwrap()["rtspUrl"], "rtsp://NEW");
    assert_eq!((stored.skalds.progress, stored.skalds.checkpoint), (noted.skalds.progress, Some(json!([1]))));
    // What is over is removed, not set to nothing.
    let seen = now(&storage).await;
    let lost = changed(&seen, Change::Lost { incarnation, reason: "gone".into() });
    assert_eq!(storage.replace(&lost, &seen).await.unwrap(), Stored::Done);
    let seen = now(&storage).await;
    let mut requeued = changed(&seen, Change::Requeue);
    requeued.skalds.checkpoint = None;
    assert_eq!(storage.replace(&requeued, &seen).await.unwrap(), Stored::Done);
    let stored = theirs.find_one(doc! {"id": "task_1"}).await.unwrap().unwrap();
    let ours = stored.get_document("skalds").unwrap();
    assert!(!ours.contains_key("checkpoint") && ours.contains_key("progress"), "{ours:?}");
}

/// With the driver that the Python package uses, which is there because the test server runs on it.
#[tokio::test]
async fn python_reads_what_we_write() {
    let database = MongoDatabase::new();
    let storage = open(&database).await;
    let mut ours = task("ours", 1_795_967_169_868);
    ours.priority = 10;
    ours.attachments = json!({"rtspUrl": "rtsp://x", "fixFrame": 30, "rate": 0.5}).as_object().cloned();
    ours.skalds.not_before = Some(1);
    storage.insert(&ours).await.unwrap();
    let script = r#"
import json, sys, pymongo
task = pymongo.MongoClient(sys.argv[1])[sys.argv[2]].tasks.find_one({"id": "ours"})
del task["_id"]
for name in ["createDateTime", "updateDateTime", "deadlineDateTime", "priority"]:
    assert isinstance(task[name], int) and not isinstance(task[name], bool), name
print(json.dumps(task))
"#;
    let packages = format!("{}.d/python", std::env::var("MONGO_BIN").unwrap());
    let ran = Command::new("python3")
        .args(["-c", script, &database.url, &database.name])
        .env("PYTHONPATH", packages)
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let read: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(read, serde_json::to_value(&ours).unwrap());
}

#[tokio::test]
async fn of_changes_by_several_clients_exactly_one_is_stored() {
    let database = MongoDatabase::new();
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(open(&database).await);
    }
    clients[0].insert(&task("one", 1)).await.unwrap();
    for round in 0..10 {
        let seen = clients[0].get("one").await.unwrap().unwrap();
        assert_eq!(seen.skalds.revision, round);
        let attempts = clients.iter().enumerate().flat_map(|(client, storage)| {
            let seen = &seen;
            (0..4).map(move |n| async move {
                let mut next = seen.clone();
                next.executor = Some(format!("{client}-{n}"));
                storage.replace(&next, seen).await.unwrap()
            })
        });
        let outcomes = futures_util::future::join_all(attempts).await;
        assert_eq!(outcomes.iter().filter(|outcome| **outcome == Stored::Done).count(), 1);
    }
}

#[tokio::test]
async fn hostile_values_are_values() {
    let database = MongoDatabase::new();
    let storage = open(&database).await;
    let names = ["$where", "a.b", "nul\0byte", "nul", "{\"$ne\": null}", "/.*/", "🦀 ü", "", " ", ".*"];
    for (n, id) in names.iter().enumerate() {
        let mut one = task(id, n as i64);
        one.class_name = format!("C{id}");
        one.executor = Some(id.to_string());
        one.lifecycle_status = LifecycleStatus::Running;
        one.attachments = json!({
            "$set": {"$unset": 1, "a.b": {"$where": "1"}}, "x.y": [{"$in": []}], "": "", "$": null, "big": "x".repeat(1_000),
        })
        .as_object()
        .cloned();
        assert!(storage.insert(&one).await.unwrap());
        assert_eq!(storage.get(id).await.unwrap().as_ref(), Some(&one));
        let mut next = one.clone();
        next.attachments.as_mut().unwrap().insert("$more.still".into(), json!({"$inc": {"a": 1}}));
        next.skalds.result = Some(json!({"$x": {"y.z": u64::MAX}}));
        next.skalds.last_error = Some("\0$".into());
        assert_eq!(storage.replace(&next, &one).await.unwrap(), Stored::Done);
        next.skalds.revision = 1;
        assert_eq!(storage.get(id).await.unwrap(), Some(next));
    }
    for id in names {
        let by_class = TaskQuery { class_names: vec![format!("C{id}")], ..TaskQuery::default() };
        let by_executor = TaskQuery { executor: Some(id.into()), ..TaskQuery::default() };
        for query in [by_class, by_executor] {
            let found = storage.list(&query).await.unwrap();
            assert_eq!(found.tasks.iter().map(|task| &task.id[..]).collect::<Vec<_>>(), [id], "{query:?}");
        }
        let text = TaskQuery { text: Some(format!("C{id}")), ..TaskQuery::default() };
        let expected = names.iter().filter(|name| name.starts_with(id)).count();
        assert_eq!(storage.list(&text).await.unwrap().total, expected as u64, "{id:?}");
    }
    let mut sorted = names;
    sorted.sort_unstable();
    let scan = TaskScan { statuses: vec![LifecycleStatus::Running], ..TaskScan::default() };
    let batch = storage.scan(&scan).await.unwrap();
    assert_eq!(batch.tasks.iter().map(|task| &task.id[..]).collect::<Vec<_>>(), sorted);

    // As large as it may be, and one byte larger.
    let mut large = task("large", 1);
    let room = MAX_DOCUMENT - serde_json::to_vec(&large).unwrap().len();
    large.description = Some("ü".repeat((room - 10) / 2));
    assert!(storage.insert(&large).await.unwrap());
    assert_eq!(storage.get("large").await.unwrap().as_ref(), Some(&large));
    let mut larger = large.clone();
    larger.attachments = json!({"x": "y".repeat(100)}).as_object().cloned();
    let refused = storage.replace(&larger, &large).await.unwrap_err();
    assert!(matches!(refused, BackendError::Full { .. }), "{refused}");
    let mut impossible = task("impossible", 1);
    impossible.attachments = json!({"a\0b": 1}).as_object().cloned();
    let refused = storage.insert(&impossible).await.unwrap_err();
    assert!(matches!(refused, BackendError::Refused { .. }), "{refused}");
    assert_eq!(storage.get("impossible").await.unwrap(), None);
}

#[tokio::test]
async fn one_broken_document_does_not_hide_the_others() {
    let database = MongoDatabase::new();
    let (storage, theirs) = (open(&database).await, collection(&database).await);
    let mut broken = python_task("broken", "Running");
    broken.insert("createDateTime", "yesterday");
    let unknown = python_task("unknown", "Sleeping");
    theirs.insert_many([broken, unknown, python_task("good", "Running")]).await.unwrap();
    let page = storage.list(&TaskQuery::default()).await.unwrap();
    assert_eq!((page.tasks.len(), page.total, page.next), (1, 3, None));
    let scan = TaskScan { statuses: vec![LifecycleStatus::Running], ..TaskScan::default() };
    assert_eq!(storage.scan(&scan).await.unwrap().tasks, page.tasks);
    assert_eq!(storage.count_by_status().await.unwrap(), [(LifecycleStatus::Running, 2)]);
    for id in ["broken", "unknown"] {
        let error = storage.get(id).await.unwrap_err();
        assert!(matches!(error, BackendError::Corrupt { .. }), "{error}");
        assert!(error.to_string().contains(id) && !error.to_string().contains("root"), "{error}");
        assert!(storage.replace(&task(id, 1), &task(id, 1)).await.is_err());
        assert!(storage.delete(id).await.unwrap());
    }
}

#[tokio::test]
async fn ids_that_are_taken_are_told_apart_from_other_failures() {
    let database = MongoDatabase::new();
    let storage = open(&database).await;
    let many: Vec<Task> = (0..1_200).map(|n| task(&format!("t{n}"), n)).collect();
    storage.insert_many(&[many[3].clone(), many[1_100].clone()]).await.unwrap();
    let added = storage.insert_many(&many).await.unwrap();
    let left_out: Vec<usize> = (0..many.len()).filter(|n| !added[*n]).collect();
    assert_eq!(left_out, [3, 1_100]);
    let rule = doc! {"collMod": "tasks", "validator": {"source": {"$ne": "forbidden"}}};
    raw(&database).await.run_command(rule).await.unwrap();
    let mut forbidden = task("forbidden", 1);
    forbidden.source = "forbidden".into();
    for error in [
        storage.insert(&forbidden).await.unwrap_err(),
        storage.insert_many(&[task("t1", 1), forbidden.clone(), task("new", 1)]).await.unwrap_err(),
        storage
            .replace(&forbidden, &task("t1", 1))
            .await
            .map(|_| ())
            .and(storage.replace(&Task { id: "t1".into(), ..forbidden.clone() }, &many[1]).await)
            .unwrap_err(),
    ] {
        assert!(matches!(error, BackendError::Refused { .. }), "{error}");
        assert!(error.to_string().contains("failed validation"), "{error}");
    }
    assert_eq!(storage.get("forbidden").await.unwrap(), None);
    assert_eq!(storage.get("new").await.unwrap(), Some(task("new", 1)), "each task by itself");
}

#[tokio::test]
async fn tasks_that_share_an_id_are_refused_at_the_start() {
    let database = MongoDatabase::new();
    let theirs = collection(&database).await;
    theirs.insert_many([python_task("twice", "Created"), python_task("twice", "Running")]).await.unwrap();
    let options = MongoOptions { database: database.name.clone(), ..MongoOptions::new(&database.url) };
    let error = MongoStorage::connect(options).await.unwrap_err();
    assert!(matches!(error, BackendError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("remove all but one of each"), "{error}");
    theirs.delete_one(doc! {"id": "twice"}).await.unwrap();
    open(&database).await;
    open(&database).await; // the indexes are there already
}

/// The server's profile shows what it was really asked, and it explains how it answers that.
#[tokio::test]
async fn every_question_is_answered_along_an_index() {
    use LifecycleStatus::{Assigning, Created, Paused, Running};
    let database = MongoDatabase::new();
    let (storage, server) = (open(&database).await, raw(&database).await);
    let many: Vec<Task> = (0..200)
        .map(|n| {
            let mut one = task(&format!("t{n}"), n);
            one.lifecycle_status = [Created, Running, LifecycleStatus::Finished][n as usize % 3];
            one
        })
        .collect();
    storage.insert_many(&many).await.unwrap();
    server.run_command(doc! {"profile": 2}).await.unwrap();
    let query = TaskQuery {
        statuses: vec![Created],
        order: TaskOrder::DispatchOrder,
        limit: 10,
        ..TaskQuery::default()
    };
    storage.list(&query).await.unwrap();
    storage
        .list(&TaskQuery { class_names: vec!["Copy".into()], due_at: Some(5), ..query.clone() })
        .await
        .unwrap();
    let mine = TaskQuery { statuses: vec![Assigning], executor: Some("a".into()), ..query };
    storage.list(&mine).await.unwrap();
    storage.list(&TaskQuery { offset: 3, limit: 10, ..TaskQuery::default() }).await.unwrap();
    for executor in [None, Some("a".to_owned())] {
        let scan =
            TaskScan { statuses: vec![Assigning, Running, Paused], executor, after: Some("t1".into()) };
        storage.scan(&scan).await.unwrap();
    }
    storage.get("t5").await.unwrap();
    server.run_command(doc! {"profile": 0}).await.unwrap();

    let profile = server.collection::<Document>("system.profile");
    let mut asked = profile.find(doc! {"op": "query"}).await.unwrap();
    let mut explained = 0;
    while asked.advance().await.unwrap() {
        let entry: Document = asked.deserialize_current().unwrap();
        let command = entry.get_document("command").unwrap();
        if command.get_str("find").ok() != Some("tasks") {
            continue;
        }
        let mut find = Document::new();
        for name in ["find", "filter", "sort", "limit", "skip", "hint"] {
            if let Some(value) = command.get(name) {
                find.insert(name, value.clone());
            }
        }
        let plan =
            server.run_command(doc! {"explain": find.clone(), "verbosity": "queryPlanner"}).await.unwrap();
        let stages = stages(plan.get_document("queryPlanner").unwrap().get("winningPlan").unwrap());
        assert!(stages.contains("IXSCAN") && !stages.contains("COLLSCAN"), "{find}: {stages}");
        explained += 1;
    }
    assert!(explained >= 6, "only {explained} questions are in the profile");
}

/// The plan in one line.
fn stages(plan: &Bson) -> String {
    match plan {
        Bson::Document(stage) => {
            let name = |field| stage.get_str(field).map(|name| format!(" {name}")).unwrap_or_default();
            let inner: String = stage.values().map(stages).collect();
            format!("{}{}{inner}", name("stage"), name("indexName"))
        }
        Bson::Array(stages_of_it) => stages_of_it.iter().map(stages).collect(),
        _ => String::new(),
    }
}
