//! `MongoStorage` while its server is killed, hangs, or does not let it in.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use skalds::backend::mongo::{MongoOptions, MongoStorage};
use skalds::backend::{BackendError, DiskStorage, Stored, TaskQuery};
use skalds::core::task::LifecycleStatus;

use crate::storage::task;
use crate::support::{MongoServer, wait_until_async};

/// Above every limit that is set here.
const SOON: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(1);
/// What a limit may be passed by on a busy machine.
const SLACK: Duration = Duration::from_secs(1);

fn impatient(url: String) -> MongoOptions {
    MongoOptions { call_timeout: LIMIT, connect_timeout: LIMIT / 2, ..MongoOptions::new(url) }
}

/// The writes of a round, and whether they may fail yet.
#[derive(Default)]
struct Round {
    acknowledged: AtomicUsize,
    killed: AtomicBool,
}

/// Eight callers store and change tasks as fast as they can until the server is gone; what was answered is kept.
async fn store_until_it_is_away(
    storage: &MongoStorage,
    number: usize,
    round: &Arc<Round>,
) -> Vec<(String, u64)> {
    let callers = (0..8).map(|caller| {
        let (storage, round) = (storage.clone(), Arc::clone(round));
        tokio::spawn(async move {
            let mut acknowledged = Vec::new();
            for n in 0.. {
                let id = format!("{number}-{caller}-{n}");
                let seen = task(&id, n);
                let mut next = seen.clone();
                next.lifecycle_status = LifecycleStatus::Running;
                match storage.insert(&seen).await {
                    Ok(true) => acknowledged.push((id.clone(), 0)),
                    Ok(false) => panic!("{id} is new"),
                    Err(error) => return (acknowledged, error),
                }
                round.acknowledged.fetch_add(1, Ordering::SeqCst);
                match storage.replace(&next, &seen).await {
                    Ok(Stored::Done) => acknowledged.push((id, 1)),
                    Ok(other) => panic!("nobody else changes {id}: {other:?}"),
                    Err(error) => return (acknowledged, error),
                }
            }
            unreachable!("the loop ends with the server");
        })
    });
    let mut all = Vec::new();
    for caller in futures_util::future::join_all(callers).await {
        let (acknowledged, error) = caller.unwrap();
        assert!(round.killed.load(Ordering::SeqCst), "a write failed before the server was killed: {error}");
        assert!(matches!(error, BackendError::Unavailable { .. }), "{error}");
        all.extend(acknowledged);
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_when_the_server_is_killed() {
    let mut server = MongoServer::start();
    let storage = MongoStorage::connect(impatient(server.url())).await.unwrap();
    let mut acknowledged = Vec::new();
    for number in 0..3 {
        let round = Arc::<Round>::default();
        let killing = async {
            let enough = async || round.acknowledged.load(Ordering::SeqCst) > 100 * (number + 1);
            wait_until_async(SOON, "enough writes", enough).await;
            round.killed.store(true, Ordering::SeqCst);
            tokio::task::block_in_place(|| server.kill_hard());
        };
        let (stored, ()) = tokio::join!(store_until_it_is_away(&storage, number, &round), killing);
        acknowledged.extend(stored);
        tokio::task::block_in_place(|| server.restart());
        wait_until_async(SOON, "the storage to be there again", async || storage.ping().await.is_ok()).await;
        for (id, revision) in &acknowledged {
            let stored = storage.get(id).await.unwrap().unwrap_or_else(|| panic!("{id} is lost"));
            assert!(stored.skalds.revision >= *revision, "{id} is older than {revision}");
        }
    }
}

#[tokio::test]
async fn a_server_that_hangs_is_unavailable_within_the_limit_and_comes_back() {
    let server = MongoServer::start();
    let storage = MongoStorage::connect(impatient(server.url())).await.unwrap();
    storage.insert(&task("before", 1)).await.unwrap();
    server.freeze();
    for round in 0..3 {
        let start = Instant::now();
        let (new, seen, next) = (task("new", 1), task("before", 1), task("before", 2));
        let query = TaskQuery::default();
        let outcomes = tokio::join!(
            storage.insert(&new),
            storage.get("before"),
            storage.replace(&next, &seen),
            storage.list(&query),
            storage.ping(),
        );
        let errors = [
            outcomes.0.unwrap_err(),
            outcomes.1.unwrap_err(),
            outcomes.2.unwrap_err(),
            outcomes.3.unwrap_err(),
            outcomes.4.unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, BackendError::Unavailable { .. }), "round {round}: {error}");
        }
        assert!(start.elapsed() < LIMIT + SLACK, "round {round}: {:?}", start.elapsed());
    }
    server.thaw();
    wait_until_async(SOON, "the storage to be there again", async || storage.ping().await.is_ok()).await;
    assert!(storage.get("before").await.unwrap().is_some());
    assert!(storage.insert(&task("after", 1)).await.unwrap());
}

#[tokio::test]
async fn who_is_not_let_in_is_told_why_and_no_password_is_told() {
    let server = MongoServer::start();
    for user in ["root:hunter2", "nobody:hunter2"] {
        let error = MongoStorage::connect(impatient(server.url_of(user))).await.unwrap_err();
        assert!(matches!(error, BackendError::Refused { .. }), "{error:?}");
        let text = format!("{error} {error:?}");
        assert!(text.contains("127.0.0.1") && text.contains("check the user"), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
    let nobody_there = format!("mongodb://root:hunter2@127.0.0.1:{}/", crate::support::free_port());
    let start = Instant::now();
    let error = MongoStorage::connect(impatient(nobody_there)).await.unwrap_err();
    assert!(start.elapsed() < LIMIT + SLACK);
    assert!(matches!(error, BackendError::Unavailable { .. }), "{error:?}");
    let text = format!("{error} {error:?}");
    assert!(text.contains("Connection refused") && !text.contains("hunter2"), "{text}");
    // A server without TLS, asked for TLS.
    let tls = format!("{}?tls=true", server.url_of("root:hunter2"));
    let error = MongoStorage::connect(impatient(tls)).await.unwrap_err();
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    assert!(matches!(error, BackendError::Unavailable { .. }), "{error:?}");
    let storage = MongoStorage::connect(impatient(server.url())).await.unwrap();
    assert!(!format!("{storage:?}").contains("root"), "{storage:?}");
}
