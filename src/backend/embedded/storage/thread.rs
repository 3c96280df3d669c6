//! The thread that owns a connection: takes what waits, commits it together, answers.

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::row::Row;
use super::{batch, query, schema};
use crate::backend::{BackendError, Stored, TaskBatch, TaskPage, TaskQuery, TaskScan};
use crate::core::task::{LifecycleStatus, Task};

/// Where an answer goes. Nobody may be waiting any more; then it is dropped.
pub(super) type Answer<T> = oneshot::Sender<Result<T, BackendError>>;

pub(super) enum Request {
    Write(Write),
    Read(Read),
}

pub(super) enum Write {
    Insert(Vec<Row>, Pending<Vec<bool>>),
    /// With the revision that was seen, and the term that it must be done in, if any.
    Replace(Box<Row>, u64, Option<u64>, Box<Pending<Stored>>),
    BeginTerm(Pending<u64>),
    Delete(String, Pending<bool>),
}

/// A write's outcome, held back until it is on disk. It may be an error of its own (a stored document that cannot be
/// read): the write changed nothing then.
pub(super) struct Pending<T> {
    to: Answer<T>,
    outcome: Option<Result<T, BackendError>>,
}

impl<T> Pending<T> {
    pub(super) fn new(to: Answer<T>) -> Self {
        Pending { to, outcome: None }
    }

    pub(super) fn hold(&mut self, outcome: Result<T, BackendError>) {
        self.outcome = Some(outcome);
    }

    /// Answers. Without an outcome the caller is told that the storage is closed.
    pub(super) fn settle(self, committed: Result<(), BackendError>) {
        match (committed, self.outcome) {
            (Err(error), _) => send(self.to, Err(error)),
            (Ok(()), Some(outcome)) => send(self.to, outcome),
            (Ok(()), None) => drop(self.to),
        }
    }
}

pub(super) enum Read {
    Get(String, Answer<Option<Task>>),
    List(Box<TaskQuery>, Answer<TaskPage>),
    Scan(Box<TaskScan>, Answer<TaskBatch>),
    Untold(i64, Answer<Vec<Task>>),
    LatestTerm(Answer<u64>),
    Count(Answer<Vec<(LifecycleStatus, u64)>>),
    Classes(Answer<Vec<String>>),
    Ping(Answer<()>),
}

/// The most writes in one commit: what a caller waits for its neighbours stays in the milliseconds.
const GROUP: usize = 512;

/// Starts the thread. It ends when the last sender is gone and everything queued is done.
pub(super) fn start(
    connection: Connection,
    name: &str,
    queue: usize,
) -> Result<mpsc::Sender<Request>, BackendError> {
    let (sender, receiver) = mpsc::channel(queue);
    let owned_name = name.to_owned();
    std::thread::Builder::new()
        .name("skalds-storage".into())
        .spawn(move || run(connection, &owned_name, receiver))
        .map_err(|error| BackendError::Unavailable {
            service: name.into(),
            action: "start its thread".into(),
            reason: error.to_string(),
        })?;
    Ok(sender)
}

fn run(mut connection: Connection, name: &str, mut requests: mpsc::Receiver<Request>) {
    let mut taken = Vec::with_capacity(GROUP);
    while requests.blocking_recv_many(&mut taken, GROUP) > 0 {
        let mut writes = Vec::new();
        let mut reads = Vec::new();
        for request in taken.drain(..) {
            match request {
                Request::Write(write) => writes.push(write),
                Request::Read(read) => reads.push(read),
            }
        }
        if !writes.is_empty() {
            batch::commit(&mut connection, name, writes);
        }
        for read in reads {
            answer(&connection, name, read);
        }
    }
}

fn answer(connection: &Connection, name: &str, read: Read) {
    match read {
        Read::Get(id, to) => send(to, query::get(connection, name, &id)),
        Read::List(which, to) => send(to, query::list(connection, name, &which)),
        Read::Scan(which, to) => send(to, query::scan(connection, name, &which)),
        Read::Untold(before, to) => send(to, query::untold(connection, name, before)),
        Read::LatestTerm(to) => {
            let term = batch::latest_term(connection);
            send(to, term.map_err(|error| schema::explain(&error, name, "read the term of leadership")));
        }
        Read::Count(to) => send(to, query::count_by_status(connection, name)),
        Read::Classes(to) => send(to, query::class_names(connection, name)),
        Read::Ping(to) => {
            let answered = connection.query_row("SELECT 1", [], |_| Ok(()));
            send(to, answered.map_err(|error| schema::explain(&error, name, "ping it")));
        }
    }
}

fn send<T>(to: Answer<T>, answer: Result<T, BackendError>) {
    // An error only says that the caller stopped waiting.
    let _ = to.send(answer);
}
