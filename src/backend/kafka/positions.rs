//! Where a group reads on: fixed at the broker before a subscription returns, kept when partitions change hands.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{Offset, TopicPartitionList};

use super::board::Place;
use super::failure;
use super::group::Group;
use crate::backend::BackendError;

/// How long a broker may be away while partitions are being taken over.
const PATIENCE: Duration = Duration::from_secs(15);
const AGAIN: Duration = Duration::from_millis(200);

/// What the consumer's callbacks need. They run on the group's thread, while it polls.
pub(super) struct Positions {
    group: Arc<Group>,
    /// Positions that this process has decided and the broker has not confirmed.
    fixing: Mutex<HashMap<Place, i64>>,
    paused: AtomicBool,
}

/// Where a partition is read from.
pub(super) struct Start {
    pub(super) place: Place,
    pub(super) offset: i64,
    /// The broker has it already.
    pub(super) fixed: bool,
}

impl Positions {
    pub(super) fn new(group: Arc<Group>) -> Self {
        Positions { group, fixing: Mutex::default(), paused: AtomicBool::new(false) }
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    pub(super) fn set_paused(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
    }

    /// Those of `places` for which no position is known to be fixed.
    pub(super) fn not_fixed(&self, places: &[Place]) -> Vec<Place> {
        let fixed = self.group.fixed.lock().unwrap_or_else(PoisonError::into_inner);
        places.iter().filter(|place| !fixed.contains(place)).cloned().collect()
    }

    /// Commits the positions again that are not confirmed.
    pub(super) fn commit_again(&self, consumer: &BaseConsumer<Self>) {
        let fixing: Vec<(Place, i64)> = {
            let fixing = self.fixing.lock().unwrap_or_else(PoisonError::into_inner);
            fixing.iter().map(|(place, offset)| (place.clone(), *offset)).collect()
        };
        if !fixing.is_empty()
            && let Err(error) = consumer.commit(&list(&fixing), CommitMode::Async)
        {
            tracing::debug!(group = self.group.name, %error, "positions are not committed yet");
        }
    }

    fn assign(&self, consumer: &BaseConsumer<Self>, given: &TopicPartitionList) {
        let starts = match self.starts(consumer, given) {
            Ok(starts) => starts,
            Err(error) => {
                self.group.fail(error);
                Vec::new()
            }
        };
        let offsets: Vec<(Place, i64)> =
            starts.iter().map(|start| (start.place.clone(), start.offset)).collect();
        {
            let mut board = self.group.board();
            offsets.iter().for_each(|(place, offset)| board.assigned(place.clone(), *offset));
        }
        if let Err(error) = consumer.incremental_assign(&list(&offsets)) {
            self.group.fail(self.group.last.failed("take partitions", &error));
            return;
        }
        // A partition that was paused when it was taken away is still, to the client: all are as the others.
        let assigned = list(&offsets);
        let paused = self.is_paused();
        let set = if paused { consumer.pause(&assigned) } else { consumer.resume(&assigned) };
        if let Err(error) = set {
            tracing::warn!(group = self.group.name, %error, paused, "partitions are not as the others");
        }
        tracing::debug!(group = self.group.name, partitions = offsets.len(), "partitions are read here");
        {
            let mut fixed = self.group.fixed.lock().unwrap_or_else(PoisonError::into_inner);
            let mut fixing = self.fixing.lock().unwrap_or_else(PoisonError::into_inner);
            for start in starts {
                if start.fixed {
                    fixed.insert(start.place);
                } else {
                    fixing.insert(start.place, start.offset);
                }
            }
        }
        self.commit_again(consumer);
    }

    /// Where each partition is read from: where the group is; at the end when it is new; at the beginning when the
    /// broker has lost where it was. Asks until it is known: this process is the only one that may decide it.
    fn starts(
        &self,
        consumer: &BaseConsumer<Self>,
        given: &TopicPartitionList,
    ) -> Result<Vec<Start>, BackendError> {
        let end = Instant::now() + PATIENCE;
        loop {
            let error = match self.ask(consumer, given) {
                Ok(starts) => return Ok(starts),
                Err(error) => error,
            };
            if Instant::now() >= end || self.group.board().is_over() {
                return Err(self.group.last.failed("find the positions of a group", &error));
            }
            tracing::debug!(group = self.group.name, %error, "positions are not known yet");
            std::thread::sleep(AGAIN);
        }
    }

    /// Asks once.
    pub(super) fn ask(
        &self,
        consumer: &BaseConsumer<Self>,
        given: &TopicPartitionList,
    ) -> KafkaResult<Vec<Start>> {
        let wait = self.group.options.request_wait;
        let mut starts = Vec::new();
        let mut fresh = TopicPartitionList::new();
        let committed = consumer.committed_offsets(given.clone(), wait)?;
        for elem in committed.elements() {
            elem.error()?;
            let place: Place = (elem.topic().into(), elem.partition());
            match elem.offset() {
                Offset::Offset(offset) => starts.push(Start { place, offset, fixed: true }),
                _ if self.not_fixed(std::slice::from_ref(&place)).is_empty() => {
                    tracing::warn!(group = self.group.name, ?place, "the broker has lost a group's position");
                    self.group.board().may_have_missed();
                    starts.push(Start { place, offset: 0, fixed: false });
                }
                _ => {
                    fresh.add_partition_offset(elem.topic(), elem.partition(), Offset::End)?;
                }
            }
        }
        if fresh.count() > 0 {
            for elem in consumer.offsets_for_times(fresh, wait)?.elements() {
                elem.error()?;
                let place: Place = (elem.topic().into(), elem.partition());
                let offset = match elem.offset() {
                    Offset::Offset(offset) => offset,
                    // Some brokers answer so for an empty partition.
                    _ => consumer.fetch_watermarks(elem.topic(), elem.partition(), wait)?.1,
                };
                starts.push(Start { place, offset, fixed: false });
            }
        }
        Ok(starts)
    }

    fn revoke(&self, consumer: &BaseConsumer<Self>, taken: &TopicPartitionList) {
        let places: Vec<Place> =
            taken.elements().iter().map(|elem| (elem.topic().into(), elem.partition())).collect();
        let group = &self.group;
        // Others have them already when the assignment was lost; else they wait for us.
        if !consumer.assignment_lost() {
            let mut board = group.board();
            places.iter().for_each(|place| board.clear(place));
            let end = Instant::now() + group.options.hand_over;
            while board.is_held(&places) && Instant::now() < end {
                let left = end.saturating_duration_since(Instant::now());
                board = group.handed.wait_timeout(board, left).unwrap_or_else(PoisonError::into_inner).0;
            }
            drop(board);
            group.store(consumer);
        }
        {
            let mut board = group.board();
            places.iter().for_each(|place| board.revoked(place));
        }
        {
            let mut fixing = self.fixing.lock().unwrap_or_else(PoisonError::into_inner);
            fixing.retain(|place, _| !places.contains(place));
        }
        tracing::debug!(group = group.name, partitions = places.len(), "partitions are no longer read here");
        if let Err(error) = consumer.incremental_unassign(taken) {
            tracing::debug!(group = group.name, %error, "partitions were not assigned");
        }
    }
}

impl ClientContext for Positions {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        failure::log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        failure::heard(&self.group.last, &error, reason);
    }
}

impl ConsumerContext for Positions {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, error: RDKafkaRespErr, list: &mut TopicPartitionList) {
        if error == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS {
            self.assign(consumer, list);
        } else {
            self.revoke(consumer, list);
        }
    }

    fn commit_callback(&self, result: KafkaResult<()>, offsets: &TopicPartitionList) {
        if let Err(error) = result {
            tracing::debug!(group = self.group.name, %error, "positions were not committed; they will be again");
            return;
        }
        let mut fixed = self.group.fixed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut fixing = self.fixing.lock().unwrap_or_else(PoisonError::into_inner);
        for elem in offsets.elements() {
            if elem.error().is_ok() {
                let place: Place = (elem.topic().into(), elem.partition());
                fixing.remove(&place);
                fixed.insert(place);
            }
        }
    }
}

/// Places and offsets as the client takes them.
pub(super) fn list(offsets: &[(Place, i64)]) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(offsets.len());
    for ((topic, partition), offset) in offsets {
        if let Err(error) = list.add_partition_offset(topic, *partition, Offset::Offset(*offset)) {
            // cannot happen: offsets are what the broker has said.
            tracing::error!(topic = &**topic, partition, offset, %error, "a position cannot be expressed");
        }
    }
    list
}
