//! From a publication to the broker's acknowledgement: the outbox, its file, and the client that sends.

mod courier;

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{DeliveryResult, Message};
use rdkafka::producer::{BaseProducer, BaseRecord, NoCustomPartitioner, Producer, ProducerContext};
use tokio::sync::oneshot;

use super::failure::{self, LastWord};
use super::journal::Journal;
use super::options::{KafkaOptions, MAX_EVENT, check_topic};
use super::outbox::Outbox;
use super::topics::Partitions;
use crate::backend::{BackendError, Event};

/// After this long without an acknowledgement, though the broker answers, the client is made anew: one that meets a
/// broker which has forgotten it and its topics may wait for ever. Twice as long after each time that did not help.
const STUCK: Duration = Duration::from_secs(5);

type Client = BaseProducer<Reports>;
/// Holds nothing alive.
type Listener = Arc<OnceLock<Weak<Shared>>>;

/// Sends what is published, in order, and keeps it until it is acknowledged.
pub(super) struct Sender {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    options: KafkaOptions,
    last: LastWord,
    state: Mutex<State>,
    /// Told when there is something to do for the courier.
    work: Condvar,
    client: RwLock<Arc<Client>>,
    /// Who hears the client's reports.
    listener: Listener,
    journal: Option<Mutex<Journal>>,
}

struct State {
    outbox: Outbox,
    /// Topics that are known to exist.
    topics: Partitions,
    /// The client has said that it cannot go on, or was given up.
    fatal: bool,
    /// When something was acknowledged for the last time, or sending began again.
    begun: Instant,
    /// How long the client may then be silent.
    stuck: Duration,
    /// The file holds nothing that is needed, and should be emptied.
    file_is_done: bool,
    /// It was told that the broker does not acknowledge.
    complained: bool,
    stop: bool,
}

impl Sender {
    /// Takes up what a former process has left in the outbox's folder. No broker is needed.
    pub(super) fn open(options: KafkaOptions, last: LastWord) -> Result<Self, BackendError> {
        let mut outbox = Outbox::new(options.events, options.bytes);
        let journal = match options.outbox.as_deref() {
            None => None,
            Some(folder) => Some(Mutex::new(restore(folder, &mut outbox)?)),
        };
        let state = State {
            outbox,
            topics: Partitions::new(),
            fatal: false,
            begun: Instant::now(),
            stuck: STUCK,
            file_is_done: false,
            complained: false,
            stop: false,
        };
        let listener = Arc::new(OnceLock::new());
        let client = connect(&options, &last, &listener)?;
        let shared = Arc::new(Shared {
            options,
            last,
            state: Mutex::new(state),
            work: Condvar::new(),
            client: RwLock::new(Arc::new(client)),
            listener,
            journal,
        });
        // Nothing was sent yet, so no report can have come before.
        let _ = shared.listener.set(Arc::downgrade(&shared));
        let inside = Arc::clone(&shared);
        let reports = shared.thread("kafka-reports", move || inside.hear_reports())?;
        let inside = Arc::clone(&shared);
        let courier = match shared.thread("kafka-courier", move || inside.courier()) {
            Ok(courier) => courier,
            Err(error) => {
                shared.lock().stop = true;
                return Err(error);
            }
        };
        Ok(Sender { shared, threads: Mutex::new(vec![reports, courier]) })
    }

    /// See [`crate::backend::EventQueue::publish`].
    pub(super) async fn publish(&self, events: &[Event]) -> Result<(), BackendError> {
        if let Some(event) = events.iter().find(|event| size(event) > MAX_EVENT) {
            return Err(BackendError::Full {
                what: format!("an event of {} bytes on {}", size(event), event.topic),
                limit: format!("{MAX_EVENT} bytes"),
                hint: "keep large data elsewhere and send its address".into(),
            });
        }
        if events.is_empty() {
            return Ok(());
        }
        let service = self.shared.options.service();
        events.iter().try_for_each(|event| check_topic(&service, &event.topic))?;
        let (answer, mut heard) = oneshot::channel();
        let patience = self.shared.add(events, answer)?;
        match tokio::time::timeout(patience, &mut heard).await {
            Ok(Ok(answer)) => return answer,
            Ok(Err(_)) => return Err(self.shared.closed()),
            Err(_) => {}
        }
        if self.shared.journal.is_none() {
            let kept = "; the event is kept in memory and will be sent when the broker is back";
            return Err(self.shared.last.silence("publish", kept));
        }
        let shared = Arc::clone(&self.shared);
        let filed = tokio::task::spawn_blocking(move || shared.file()).await;
        match filed {
            Ok(filed) => filed?,
            Err(error) => return Err(self.shared.cannot("write to the outbox", &error)),
        }
        // Filed or, meanwhile, acknowledged or refused.
        heard.await.unwrap_or_else(|_| Err(self.shared.closed()))
    }

    /// Refuses what comes from now on, and waits until everything is acknowledged, or at least kept in the file.
    pub(super) async fn close(&self, limit: Duration) -> Result<(), BackendError> {
        self.shared.lock().outbox.closed = true;
        let end = Instant::now() + limit;
        while !self.shared.lock().outbox.is_empty() && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let shared = Arc::clone(&self.shared);
        let ended = tokio::task::spawn_blocking(move || {
            let left = shared.lock().outbox.len();
            let kept = if shared.journal.is_some() { shared.file() } else { Ok(()) };
            let lost = left > 0 && shared.journal.is_none();
            kept.and_then(|()| {
                let then = format!("; {left} events were not sent and are lost");
                if lost { Err(shared.last.silence("send what was published", &then)) } else { Ok(()) }
            })
        });
        let ended = ended.await.unwrap_or_else(|error| Err(self.shared.cannot("close", &error)));
        self.stop();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // They end within one request; that one panics cannot happen, and would have been printed.
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
        ended
    }

    fn stop(&self) {
        self.shared.lock().stop = true;
        self.shared.work.notify_all();
    }

    /// Events that are not acknowledged yet.
    pub(super) fn waiting(&self) -> usize {
        self.shared.lock().outbox.len()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.shared.lock().outbox.closed
    }

    /// One round trip. Blocks.
    pub(super) fn ping(&self) -> Result<Duration, BackendError> {
        let start = Instant::now();
        let client = self.shared.client();
        let answered = client.client().fetch_metadata(None, self.shared.options.request_wait);
        answered.map_err(|error| self.shared.last.failed("ask for metadata", &error))?;
        self.shared.last.forget();
        Ok(start.elapsed())
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.stop();
    }
}

fn size(event: &Event) -> usize {
    event.topic.len() + event.key.len() + event.value.len()
}

fn restore(folder: &Path, outbox: &mut Outbox) -> Result<Journal, BackendError> {
    let (journal, events) = Journal::open(folder)?;
    if !events.is_empty() {
        tracing::info!(count = events.len(), "events that a former process has left are sent");
    }
    outbox.restore(events, Instant::now());
    Ok(journal)
}

fn connect(options: &KafkaOptions, last: &LastWord, listener: &Listener) -> Result<Client, BackendError> {
    let reports = Reports { listener: Arc::clone(listener), last: last.clone() };
    let made = options.producer().create_with_context(reports);
    made.map_err(|error| last.failed("set up a producer", &error))
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the lock is held, so a poisoned state is still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn client(&self) -> Arc<Client> {
        Arc::clone(&self.client.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn closed(&self) -> BackendError {
        BackendError::Closed(self.options.service())
    }

    fn cannot(&self, action: &str, reason: &dyn std::fmt::Display) -> BackendError {
        let (service, action) = (self.options.service(), action.into());
        BackendError::Unavailable { service, action, reason: reason.to_string() }
    }

    /// Takes a publication in, sends it if nothing stands before it, and says how long to wait for its acknowledgement:
    /// not at all when the broker has not acknowledged others for long.
    fn add(
        &self,
        events: &[Event],
        answer: oneshot::Sender<Result<(), BackendError>>,
    ) -> Result<Duration, BackendError> {
        let now = Instant::now();
        let mut state = self.lock();
        if state.outbox.closed {
            return Err(self.closed());
        }
        let patience = self.options.ack_wait.saturating_sub(state.outbox.age(now));
        let was_idle = state.outbox.is_empty();
        if was_idle {
            state.begun = now;
        }
        let free = !state.outbox.is_waiting() && !state.outbox.broken;
        state.outbox.add(events, now, answer)?;
        if free && events.iter().all(|event| state.topics.contains_key(&event.topic)) {
            self.send(&mut state);
        }
        if state.outbox.is_waiting() || was_idle {
            self.work.notify_one();
        }
        Ok(patience)
    }

    /// Hands what waits to the client.
    fn send(&self, state: &mut State) {
        let client = self.client();
        let (mut refused, mut fatal) = (Vec::new(), false);
        state.outbox.send_waiting(|round, seq, event| {
            let record = BaseRecord::with_opaque_to(&event.topic, Box::new(Report { round, seq }))
                .key(&event.key)
                .payload(&event.value);
            match client.send(record) {
                Ok(()) => true,
                Err((error, _)) if is_final(error.rdkafka_error_code()) => {
                    refused.push((round, seq, error));
                    true
                }
                Err((error, _)) => {
                    tracing::debug!(%error, "the client takes no more events for now");
                    fatal = error.rdkafka_error_code() == Some(Code::Fatal);
                    false
                }
            }
        });
        if fatal {
            (state.fatal, state.outbox.broken) = (true, true);
            self.work.notify_one();
        }
        for (round, seq, error) in refused {
            self.refuse(state, round, seq, &error);
        }
    }

    fn refuse(&self, state: &mut State, round: u64, seq: u64, error: &KafkaError) {
        let error = self.last.failed("publish", error);
        tracing::error!(%error, "an event is refused and will not be sent");
        state.file_is_done |= state.outbox.refused(round, seq, error);
    }

    /// What becomes of an event that was sent.
    fn report(&self, report: &Report, result: Result<(), KafkaError>) {
        let mut state = self.lock();
        match result {
            Ok(()) => {
                (state.begun, state.stuck) = (Instant::now(), STUCK);
                state.file_is_done |= state.outbox.acknowledged(report.round, report.seq);
                if std::mem::take(&mut state.complained) {
                    tracing::info!("kafka acknowledges again");
                }
            }
            Err(error) if is_final(error.rdkafka_error_code()) => {
                self.refuse(&mut state, report.round, report.seq, &error);
            }
            Err(error) => {
                tracing::debug!(%error, "an event was not delivered; it will be sent again");
                state.fatal |= error.rdkafka_error_code() == Some(Code::Fatal);
                state.outbox.broken = true;
            }
        }
        if state.outbox.broken || state.file_is_done {
            self.work.notify_one();
        }
    }

    /// Writes everything to the file that is not acknowledged and not there yet. Those who wait meanwhile for the lock
    /// find that theirs is there.
    fn file(&self) -> Result<(), BackendError> {
        let Some(journal) = &self.journal else { return Ok(()) };
        let mut journal = journal.lock().unwrap_or_else(PoisonError::into_inner);
        let unfiled = self.lock().outbox.unfiled();
        if unfiled.is_empty() {
            return Ok(());
        }
        // What is done with is not taken out one by one.
        if journal.length() > 2 * self.options.bytes as u64 + (1 << 20) {
            let needed = self.lock().outbox.filed();
            journal.replace(&needed)?;
        }
        journal.append(unfiled.iter().map(|(_, event)| event))?;
        let seqs: Vec<u64> = unfiled.iter().map(|(seq, _)| *seq).collect();
        self.lock().outbox.are_filed(&seqs);
        Ok(())
    }

    /// Empties the file if nothing in it is needed.
    fn tidy_file(&self) {
        let Some(journal) = &self.journal else { return };
        let mut journal = journal.lock().unwrap_or_else(PoisonError::into_inner);
        if self.lock().outbox.needs_file() {
            return;
        }
        if let Err(error) = journal.replace(&[]) {
            tracing::warn!(%error, "what was sent stays in the outbox and will be sent once more after a restart");
        }
    }

    /// Serves the client's callbacks; they take a lock and say what happened, nothing more.
    fn hear_reports(&self) {
        while !self.lock().stop {
            self.client().poll(Duration::from_millis(100));
        }
    }

    fn thread(
        &self,
        name: &str,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<JoinHandle<()>, BackendError> {
        let thread = std::thread::Builder::new().name(name.into());
        thread.spawn(run).map_err(|error| self.cannot("start a thread", &error))
    }
}

/// Whether sending again can never help.
fn is_final(code: Option<Code>) -> bool {
    matches!(
        code,
        Some(
            Code::MessageSizeTooLarge
                | Code::InvalidMessageSize
                | Code::InvalidRecord
                | Code::InvalidMessage
                | Code::InvalidTopic
                | Code::TopicAuthorizationFailed
                | Code::PolicyViolation
        )
    )
}

/// Which event a report is about.
#[derive(Debug)]
struct Report {
    round: u64,
    seq: u64,
}

/// Hears what becomes of events.
struct Reports {
    listener: Listener,
    last: LastWord,
}

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        failure::log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        failure::heard(&self.last, &error, reason);
        if error.rdkafka_error_code() == Some(Code::Fatal)
            && let Some(shared) = self.listener.get().and_then(Weak::upgrade)
        {
            tracing::warn!(reason, "the kafka producer has to be made anew");
            let mut state = shared.lock();
            (state.fatal, state.outbox.broken) = (true, true);
            shared.work.notify_one();
        }
    }
}

impl ProducerContext<NoCustomPartitioner> for Reports {
    type DeliveryOpaque = Box<Report>;

    fn delivery(&self, result: &DeliveryResult<'_>, report: Self::DeliveryOpaque) {
        let Some(shared) = self.listener.get().and_then(Weak::upgrade) else { return };
        match result {
            Ok(message) => {
                tracing::trace!(topic = message.topic(), partition = message.partition(), "acknowledged");
                shared.last.forget();
                shared.report(&report, Ok(()));
            }
            Err((error, _)) => shared.report(&report, Err(error.clone())),
        }
    }
}
