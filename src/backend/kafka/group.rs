//! One consumer for all of this process's readers of a group: a thread that polls and never runs anybody's code.

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::Message;
use rdkafka::{Offset, TopicPartitionList};
use tokio::sync::{Notify, oneshot, watch};

use super::board::{Board, Place};
use super::failure::{self, LastWord};
use super::options::KafkaOptions;
use super::positions::{Positions, list};
use super::topics::{self, Partitions};
use crate::backend::{BackendError, Event};

/// How long the thread waits for the client before it looks at what else there is to do.
const TURN: Duration = Duration::from_millis(25);
/// Events taken from the client before the thread looks at everything else.
const BATCH: usize = 256;
/// How often positions are asked for and committed again while somebody waits for them.
const AGAIN: Duration = Duration::from_millis(200);
/// How often missing topics are made.
const REPAIR: Duration = Duration::from_secs(1);

/// A subscription that waits until its group's positions are fixed.
struct Join {
    topics: BTreeSet<String>,
    answer: oneshot::Sender<Result<(), BackendError>>,
}

/// What readers, the thread and the client's callbacks share.
pub(super) struct Group {
    pub(super) name: String,
    pub(super) options: KafkaOptions,
    pub(super) last: LastWord,
    board: Mutex<Board>,
    /// Told when readers may find something.
    pub(super) changed: Notify,
    /// Told when a reader has handled what it had in hand.
    pub(super) handed: Condvar,
    joins: Mutex<Vec<Join>>,
    /// Partitions for which the broker has a position of this group, as far as this process has heard.
    pub(super) fixed: Mutex<HashSet<Place>>,
    ended: watch::Sender<bool>,
}

impl Group {
    /// Starts the thread.
    pub(super) fn start(
        name: &str,
        options: &KafkaOptions,
        last: &LastWord,
    ) -> Result<Arc<Self>, BackendError> {
        let group = Arc::new(Group {
            name: name.into(),
            options: options.clone(),
            last: last.clone(),
            board: Mutex::new(Board::new(options.events, options.bytes)),
            changed: Notify::new(),
            handed: Condvar::new(),
            joins: Mutex::new(Vec::new()),
            fixed: Mutex::default(),
            ended: watch::Sender::new(false),
        });
        let inside = Arc::clone(&group);
        let thread = std::thread::Builder::new().name("kafka-group".into());
        let started = thread.spawn(move || {
            inside.run();
            inside.ended.send_replace(true);
        });
        started.map_err(|error| BackendError::Unavailable {
            service: options.service(),
            action: "start a thread for a group".into(),
            reason: error.to_string(),
        })?;
        Ok(group)
    }

    pub(super) fn board(&self) -> MutexGuard<'_, Board> {
        // Nothing panics while the lock is held, so a poisoned board is still whole.
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a reader in; `None` when the group is ending and a new one must be started.
    pub(super) fn join(
        &self,
        reader: u64,
        topics: &[&str],
    ) -> Option<oneshot::Receiver<Result<(), BackendError>>> {
        let mut board = self.board();
        if !board.lets_in() {
            return None;
        }
        board.join(reader, topics);
        let (answer, heard) = oneshot::channel();
        let topics = topics.iter().map(|topic| (*topic).to_owned()).collect();
        // While the board is locked: the thread sees the reader and its wish together.
        self.joins.lock().unwrap_or_else(PoisonError::into_inner).push(Join { topics, answer });
        Some(heard)
    }

    /// A reader is gone.
    pub(super) fn leave(&self, reader: u64) {
        self.board().leave(reader);
        self.handed.notify_all();
        self.changed.notify_waiters();
    }

    /// Ends it for all readers.
    pub(super) fn close(&self) {
        self.board().closed = true;
        self.changed.notify_waiters();
    }

    /// Waits until the thread has left the group.
    pub(super) async fn ended(&self, limit: Duration) {
        let mut ended = self.ended.subscribe();
        // Over the limit it goes on leaving by itself.
        let _ = tokio::time::timeout(limit, ended.wait_for(|ended| *ended)).await;
    }

    pub(super) fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    fn run(self: &Arc<Self>) {
        let context = Positions::new(Arc::clone(self));
        let made = self.options.consumer(&self.name).create_with_context(context);
        let mut joins = Vec::new();
        match made {
            Err(error) => self.fail(self.last.failed("set up a consumer", &error)),
            Ok(consumer) => {
                let mut turn = Turn {
                    group: self,
                    consumer: &consumer,
                    topics: HashSet::new(),
                    partitions: Partitions::new(),
                    joins,
                    asked: None,
                    lost: None,
                };
                while turn.take() {}
                self.store(&consumer);
                joins = turn.joins;
                // Commits what was stored and leaves the group.
                drop(consumer);
            }
        }
        // Who came before the end is told.
        let error = {
            let mut board = self.board();
            board.end();
            board.failure().unwrap_or_else(|| BackendError::Closed(format!("the group {}", self.name)))
        };
        joins.extend(self.take_joins());
        for join in joins {
            // Whoever asked may have given up.
            let _ = join.answer.send(Err(error.clone()));
        }
    }

    pub(super) fn fail(&self, error: BackendError) {
        tracing::warn!(group = self.name, %error, "a group of readers has ended");
        self.board().fail(error);
        self.changed.notify_waiters();
    }

    fn take_joins(&self) -> Vec<Join> {
        std::mem::take(&mut *self.joins.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Gives the client what readers have handled.
    pub(super) fn store(&self, consumer: &BaseConsumer<Positions>) {
        let handled = self.board().take_storable();
        if handled.is_empty() {
            return;
        }
        if let Err(error) = consumer.store_offsets(&list(&handled)) {
            // The partitions are no longer ours: whoever has them reads those events again.
            tracing::debug!(group = self.name, %error, "handled events are not committed");
        }
    }
}

/// What the thread knows.
struct Turn<'a> {
    group: &'a Group,
    consumer: &'a BaseConsumer<Positions>,
    /// What the client is subscribed to.
    topics: HashSet<String>,
    partitions: Partitions,
    joins: Vec<Join>,
    /// When positions were asked for the last time.
    asked: Option<Instant>,
    /// No broker can be reached, or it has lost topics: when it was looked for the last time.
    lost: Option<Instant>,
}

impl Turn<'_> {
    /// Does everything once; false when the group is over.
    fn take(&mut self) -> bool {
        let topics = {
            let mut board = self.group.board();
            if board.is_over() {
                // From here on a reader that comes starts a new group.
                board.end();
                return false;
            }
            self.joins.extend(self.group.take_joins());
            board.topics()
        };
        if self.lost.is_some_and(|looked| looked.elapsed() >= REPAIR) {
            self.come_back();
        }
        if topics != self.topics && !self.subscribe(topics) {
            return true;
        }
        self.answer_joins();
        self.rewind();
        self.group.store(self.consumer);
        self.pause_or_resume();
        self.poll();
        true
    }

    /// Makes what is missing of the topics and subscribes to all of them.
    fn subscribe(&mut self, topics: HashSet<String>) -> bool {
        let wanted: BTreeSet<String> = topics.iter().cloned().collect();
        let names: Vec<&str> = wanted.iter().map(String::as_str).collect();
        let group = self.group;
        let ensured = topics::ensure(self.consumer.client(), &wanted, &group.options, &group.last);
        let done = ensured.and_then(|partitions| {
            self.partitions = partitions;
            let subscribed = self.consumer.subscribe(&names);
            subscribed.map_err(|error| group.last.failed("subscribe", &error))
        });
        match done {
            Ok(()) => {
                self.topics = topics;
                true
            }
            Err(error) => {
                // Those who asked leave then, and take their topics with them.
                for join in self.joins.drain(..) {
                    let _ = join.answer.send(Err(error.clone()));
                }
                std::thread::sleep(TURN);
                self.poll();
                false
            }
        }
    }

    /// Nothing is fetched until a broker answers and all topics are there. A consumer that fetches from a topic that its
    /// broker has forgotten may be answered with a change of leader that names no topic, through which librdkafka (2.12)
    /// reads a null pointer.
    fn lose(&mut self, why: &str) {
        if self.lost.is_none() {
            tracing::warn!(group = self.group.name, why, "events are not read from kafka for now");
            self.lost = Some(Instant::now());
        }
        self.pause_or_resume();
    }

    /// Makes what is missing of the topics, has the client look at them, and goes on.
    fn come_back(&mut self) {
        self.lost = Some(Instant::now());
        let wanted = self.topics.iter().cloned().collect();
        let group = self.group;
        let ensured = topics::ensure(self.consumer.client(), &wanted, &group.options, &group.last);
        let done = ensured.and_then(|partitions| {
            self.partitions = partitions;
            let looked = self.look_at_positions();
            looked.map_err(|error| group.last.failed("find the positions of a group", &error))?;
            let names: Vec<&str> = wanted.iter().map(String::as_str).collect();
            let subscribed = self.consumer.subscribe(&names);
            subscribed.map_err(|error| group.last.failed("subscribe", &error))
        });
        match done {
            Ok(()) => {
                tracing::info!(group = group.name, "events are read from kafka again");
                self.lost = None;
            }
            Err(error) => tracing::debug!(group = group.name, %error, "kafka is still away"),
        }
    }

    /// A broker that has forgotten where the group is has forgotten its topics, too, and what stands at our positions now
    /// is something else.
    fn look_at_positions(&self) -> Result<(), KafkaError> {
        let assigned = self.consumer.assignment()?;
        if assigned.count() > 0 {
            let starts = self.consumer.context().ask(self.consumer, &assigned)?;
            let mut board = self.group.board();
            starts.into_iter().filter(|start| !start.fixed).for_each(|s| board.restart(&s.place, s.offset));
        }
        Ok(())
    }

    /// Answers those whose topics have a fixed position in every partition, whoever has it.
    fn answer_joins(&mut self) {
        if self.joins.is_empty() {
            return;
        }
        let context = self.consumer.context();
        let ask = self.asked.is_none_or(|asked| asked.elapsed() >= AGAIN);
        if ask {
            context.commit_again(self.consumer);
        }
        let mut open = Vec::new();
        for join in self.joins.drain(..) {
            let places = places(&join.topics, &self.partitions);
            let missing = context.not_fixed(&places);
            if missing.is_empty() || ask && self.group.are_committed(self.consumer, &missing) {
                let _ = join.answer.send(Ok(()));
            } else if !join.answer.is_closed() {
                open.push(join);
            }
        }
        self.joins = open;
        if ask {
            self.asked = Some(Instant::now());
        }
    }

    fn rewind(&self) {
        let rewinds = self.group.board().rewinds();
        for (place, offset) in rewinds {
            let sought = self.consumer.seek(&place.0, place.1, Offset::Offset(offset), AGAIN);
            match sought {
                Ok(()) => self.group.board().rewound(&place, offset),
                Err(error) => tracing::debug!(group = self.group.name, %error, "seeking again"),
            }
        }
    }

    fn pause_or_resume(&self) {
        let full = self.group.board().is_full() || self.lost.is_some();
        let context = self.consumer.context();
        if full == context.is_paused() {
            return;
        }
        let changed = self
            .consumer
            .assignment()
            .and_then(|all| if full { self.consumer.pause(&all) } else { self.consumer.resume(&all) });
        match changed {
            Ok(()) => context.set_paused(full),
            Err(error) => tracing::debug!(group = self.group.name, %error, full, "pausing again"),
        }
    }

    fn poll(&mut self) {
        let mut wait = TURN;
        for _ in 0..BATCH {
            match self.consumer.poll(wait) {
                None => return,
                Some(Ok(message)) => {
                    let event = Event {
                        topic: message.topic().to_owned(),
                        key: message.key().unwrap_or_default().to_vec(),
                        value: message.payload().unwrap_or_default().to_vec(),
                    };
                    let place: Place = (message.topic().into(), message.partition());
                    let mut board = self.group.board();
                    board.arrived(&place, message.offset(), event);
                    let full = board.is_full();
                    drop(board);
                    self.group.changed.notify_waiters();
                    if full {
                        return;
                    }
                }
                Some(Err(error)) => self.hear(&error),
            }
            wait = Duration::ZERO;
        }
    }

    fn hear(&mut self, error: &KafkaError) {
        failure::heard(&self.group.last, error, &error.to_string());
        match error.rdkafka_error_code() {
            Some(Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition) => {
                self.lose("topics are missing");
            }
            Some(Code::AllBrokersDown) => self.lose("no broker can be reached"),
            Some(code) if failure::hint(code).is_some() => {
                self.group.fail(self.group.last.failed("read events", error));
            }
            _ if matches!(error, KafkaError::MessageConsumptionFatal(_)) => {
                self.group.fail(self.group.last.failed("read events", error));
            }
            _ => tracing::debug!(group = self.group.name, %error, "reading goes on"),
        }
    }
}

impl Group {
    /// Whether the broker has positions for all of these. An error is a no: it is asked again.
    fn are_committed(&self, consumer: &BaseConsumer<Positions>, places: &[Place]) -> bool {
        let mut asked = TopicPartitionList::new();
        for (topic, partition) in places {
            asked.add_partition(topic, *partition);
        }
        match consumer.committed_offsets(asked, self.options.request_wait) {
            Ok(committed) => {
                let mut fixed = self.fixed.lock().unwrap_or_else(PoisonError::into_inner);
                for elem in committed.elements() {
                    if matches!(elem.offset(), Offset::Offset(_)) {
                        fixed.insert((elem.topic().into(), elem.partition()));
                    }
                }
                places.iter().all(|place| fixed.contains(place))
            }
            Err(error) => {
                tracing::debug!(group = self.name, %error, "positions are not known yet");
                false
            }
        }
    }
}

fn places(topics: &BTreeSet<String>, partitions: &Partitions) -> Vec<Place> {
    let of = |topic: &String| {
        let count = partitions.get(topic).copied().unwrap_or(0);
        let name: Arc<str> = topic.as_str().into();
        (0..count).map(move |partition| (Arc::clone(&name), partition)).collect::<Vec<_>>()
    };
    topics.iter().flat_map(of).collect()
}
