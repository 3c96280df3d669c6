//! Which reader of a group gets which event, and what may be committed: without locks, threads and clients.
//!
//! A *lane* is a partition that this process has. Its events are with one reader at a time, so that the order of a key,
//! which is always in one partition, holds whatever the readers do.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use crate::backend::{BackendError, Event};

/// A topic and a partition.
pub(super) type Place = (Arc<str>, i32);

/// What a reader gets when it asks.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Event(Event),
    Missed(u64),
    Nothing,
    Failed(BackendError),
    End,
}

#[derive(Debug)]
struct Waiting {
    arrival: u64,
    offset: i64,
    event: Event,
}

/// What a reader was given and has not handled.
#[derive(Debug)]
struct Hand {
    reader: u64,
    first: i64,
    next: i64,
}

#[derive(Debug)]
struct Lane {
    queue: VecDeque<Waiting>,
    hand: Option<Hand>,
    /// The offset that comes next if nothing is missing.
    expected: i64,
    /// What arrives is stale until the client reads from here again.
    rewind: Option<i64>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Board {
    max_events: usize,
    max_bytes: usize,
    readers: BTreeMap<u64, HashSet<String>>,
    lanes: HashMap<Place, Lane>,
    /// Lanes with something to give, by when their first event arrived.
    ready: BTreeMap<u64, Place>,
    arrivals: u64,
    events: usize,
    bytes: usize,
    full: bool,
    /// `Some(0)`: something was missed, nobody knows how much.
    missed: Option<u64>,
    /// Positions up to which everything is handled and nobody was told yet.
    storable: HashMap<Place, i64>,
    failure: Option<BackendError>,
    pub(super) closed: bool,
    begun: bool,
    ended: bool,
}

fn size(event: &Event) -> usize {
    event.topic.len() + event.key.len() + event.value.len()
}

impl Board {
    pub(super) fn new(max_events: usize, max_bytes: usize) -> Self {
        Board {
            max_events,
            max_bytes,
            readers: BTreeMap::new(),
            lanes: HashMap::new(),
            ready: BTreeMap::new(),
            arrivals: 0,
            events: 0,
            bytes: 0,
            full: false,
            missed: None,
            storable: HashMap::new(),
            failure: None,
            closed: false,
            begun: false,
            ended: false,
        }
    }

    pub(super) fn join(&mut self, reader: u64, topics: &[&str]) {
        self.begun = true;
        self.readers.insert(reader, topics.iter().map(|topic| (*topic).to_owned()).collect());
    }

    /// The reader is gone: what it has in hand comes again. True when it was the last one.
    pub(super) fn leave(&mut self, reader: u64) -> bool {
        self.readers.remove(&reader);
        let held = |(_, lane): &(&Place, &Lane)| lane.hand.as_ref().is_some_and(|hand| hand.reader == reader);
        let places: Vec<Place> = self.lanes.iter().filter(held).map(|(place, _)| place.clone()).collect();
        for place in places {
            self.clear(&place);
            if let Some(lane) = self.lanes.get_mut(&place) {
                lane.rewind = lane.hand.take().map(|hand| hand.first);
            }
        }
        self.readers.is_empty()
    }

    /// All topics that somebody reads.
    pub(super) fn topics(&self) -> HashSet<String> {
        self.readers.values().flatten().cloned().collect()
    }

    /// This process has the partition now, from this offset on.
    pub(super) fn assigned(&mut self, place: Place, offset: i64) {
        let lane = Lane { queue: VecDeque::new(), hand: None, expected: offset, rewind: None };
        self.lanes.insert(place, lane);
    }

    /// Another process has it, or nobody: what was not given out will be read there.
    pub(super) fn revoked(&mut self, place: &Place) {
        self.clear(place);
        self.lanes.remove(place);
        self.storable.remove(place);
    }

    /// Nothing more of this lane is given out, so that it can be handed over.
    pub(super) fn clear(&mut self, place: &Place) {
        let Some(lane) = self.lanes.get_mut(place) else { return };
        if let Some(first) = lane.queue.front() {
            self.ready.remove(&first.arrival);
        }
        for waiting in lane.queue.drain(..) {
            self.events -= 1;
            self.bytes -= size(&waiting.event);
        }
    }

    /// Whether a reader has something of these lanes in hand.
    pub(super) fn is_held(&self, places: &[Place]) -> bool {
        places.iter().any(|place| self.lanes.get(place).is_some_and(|lane| lane.hand.is_some()))
    }

    /// Something was lost that nobody can count.
    pub(super) fn may_have_missed(&mut self) {
        self.missed.get_or_insert(0);
    }

    pub(super) fn arrived(&mut self, place: &Place, offset: i64, event: Event) {
        let Some(lane) = self.lanes.get_mut(place) else { return };
        if lane.rewind.is_some() {
            return;
        }
        // A gap: the broker no longer has what stood there. A step back: it is not the topic that it was.
        if offset != lane.expected {
            let gap = u64::try_from(offset - lane.expected).unwrap_or(0);
            *self.missed.get_or_insert(0) += gap;
        }
        lane.expected = offset + 1;
        let arrival = self.arrivals;
        self.arrivals += 1;
        if lane.queue.is_empty() {
            self.ready.insert(arrival, place.clone());
        }
        self.events += 1;
        self.bytes += size(&event);
        lane.queue.push_back(Waiting { arrival, offset, event });
    }

    /// Whether the client should read no more for now. It begins again when half is free.
    pub(super) fn is_full(&mut self) -> bool {
        let over =
            |share: usize| self.events >= self.max_events / share || self.bytes >= self.max_bytes / share;
        self.full = if self.full { over(2) && self.events > 0 } else { over(1) };
        self.full
    }

    /// The oldest event that this reader may have: of its topics, and no other reader is busy with its lane.
    pub(super) fn take(&mut self, reader: u64) -> Taken {
        if let Some(failure) = &self.failure {
            return Taken::Failed(failure.clone());
        }
        let Some(topics) = self.readers.get(&reader).filter(|_| !self.closed) else { return Taken::End };
        if let Some(missed) = self.missed.take() {
            return Taken::Missed(missed);
        }
        let lanes = &self.lanes;
        let fits = |place: &Place| {
            let hand = lanes.get(place).and_then(|lane| lane.hand.as_ref());
            topics.contains(&*place.0) && hand.is_none_or(|hand| hand.reader == reader)
        };
        let found = self.ready.iter().find(|(_, place)| fits(place));
        let Some((arrival, place)) = found.map(|(arrival, place)| (*arrival, place.clone())) else {
            return Taken::Nothing;
        };
        self.ready.remove(&arrival);
        let Some(lane) = self.lanes.get_mut(&place) else { return Taken::Nothing };
        // cannot fail: a lane that is ready has an event.
        let Some(waiting) = lane.queue.pop_front() else { return Taken::Nothing };
        let next = waiting.offset + 1;
        match &mut lane.hand {
            Some(hand) => hand.next = next,
            None => lane.hand = Some(Hand { reader, first: waiting.offset, next }),
        }
        if let Some(first) = lane.queue.front() {
            self.ready.insert(first.arrival, place);
        }
        self.events -= 1;
        self.bytes -= size(&waiting.event);
        Taken::Event(waiting.event)
    }

    /// The reader has handled all it was given.
    pub(super) fn handled(&mut self, reader: u64) {
        for (place, lane) in &mut self.lanes {
            if let Some(hand) = lane.hand.take_if(|hand| hand.reader == reader) {
                self.storable.insert(place.clone(), hand.next);
            }
        }
    }

    /// What may be committed, each once.
    pub(super) fn take_storable(&mut self) -> Vec<(Place, i64)> {
        self.storable.drain().collect()
    }

    /// Lanes that must be read again from an offset.
    pub(super) fn rewinds(&self) -> Vec<(Place, i64)> {
        let wanted = |(place, lane): (&Place, &Lane)| Some((place.clone(), lane.rewind?));
        self.lanes.iter().filter_map(wanted).collect()
    }

    /// Nothing that was read of this lane is worth anything: it is read from `offset` on.
    pub(super) fn restart(&mut self, place: &Place, offset: i64) {
        self.clear(place);
        self.storable.remove(place);
        if let Some(lane) = self.lanes.get_mut(place) {
            (lane.hand, lane.rewind) = (None, Some(offset));
        }
    }

    /// The client reads from there again.
    pub(super) fn rewound(&mut self, place: &Place, offset: i64) {
        if let Some(lane) = self.lanes.get_mut(place) {
            (lane.rewind, lane.expected) = (None, offset);
        }
    }

    /// Every reader hears this from now on; the group is over.
    pub(super) fn fail(&mut self, error: BackendError) {
        self.failure.get_or_insert(error);
    }

    /// Nobody reads here any more: all are gone, or it was closed, or it has failed.
    pub(super) fn is_over(&self) -> bool {
        !self.lets_in() || self.begun && self.readers.is_empty()
    }

    /// Whether a reader may come. When all are gone and the thread has not ended yet, a new one takes it over.
    pub(super) fn lets_in(&self) -> bool {
        !self.ended && !self.closed && self.failure.is_none()
    }

    pub(super) fn failure(&self) -> Option<BackendError> {
        self.failure.clone()
    }

    /// From now on nobody may join.
    pub(super) fn end(&mut self) {
        self.ended = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(partition: i32) -> Place {
        ("t".into(), partition)
    }

    fn board(partitions: i32) -> Board {
        let mut board = Board::new(10, 1_000);
        board.join(1, &["t"]);
        (0..partitions).for_each(|n| board.assigned(place(n), 0));
        board
    }

    fn arrive(board: &mut Board, partition: i32, offset: i64) {
        let value = format!("{partition}/{offset}").into_bytes();
        board.arrived(&place(partition), offset, Event { topic: "t".into(), key: b"k".to_vec(), value });
    }

    fn take(board: &mut Board, reader: u64) -> String {
        match board.take(reader) {
            Taken::Event(event) => String::from_utf8(event.value).unwrap(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn a_lane_is_with_one_reader_until_that_has_handled() {
        let mut board = board(2);
        board.join(2, &["t"]);
        for (partition, offset) in [(0, 0), (0, 1), (1, 0), (0, 2)] {
            arrive(&mut board, partition, offset);
        }
        assert_eq!(take(&mut board, 1), "0/0");
        assert_eq!(take(&mut board, 2), "1/0");
        assert_eq!(take(&mut board, 2), "Nothing");
        assert_eq!(take(&mut board, 1), "0/1");
        board.handled(1);
        assert_eq!(board.take_storable(), [(place(0), 2)]);
        assert_eq!(take(&mut board, 2), "0/2");
        assert_eq!(take(&mut board, 1), "Nothing");
    }

    #[test]
    fn what_a_lost_reader_had_in_hand_is_read_again_and_nothing_stale_comes_between() {
        let mut board = board(1);
        board.join(2, &["t"]);
        (0..4).for_each(|offset| arrive(&mut board, 0, offset));
        assert_eq!(take(&mut board, 1), "0/0");
        board.handled(1);
        assert_eq!(take(&mut board, 1), "0/1");
        assert_eq!(take(&mut board, 1), "0/2");
        assert!(!board.leave(1));
        assert_eq!(take(&mut board, 2), "Nothing");
        assert_eq!(board.rewinds(), [(place(0), 1)]);
        arrive(&mut board, 0, 4);
        assert_eq!(take(&mut board, 2), "Nothing");
        board.rewound(&place(0), 1);
        (1..5).for_each(|offset| arrive(&mut board, 0, offset));
        for offset in 1..5 {
            assert_eq!(take(&mut board, 2), format!("0/{offset}"));
        }
        assert_eq!((board.events, board.bytes), (0, 0));
        assert!(board.leave(2));
    }

    #[test]
    fn gaps_and_steps_back_are_told() {
        let mut board = board(2);
        arrive(&mut board, 0, 3);
        assert_eq!(board.take(1), Taken::Missed(3));
        assert_eq!(take(&mut board, 1), "0/3");
        arrive(&mut board, 0, 0);
        assert_eq!(board.take(1), Taken::Missed(0));
        assert_eq!(take(&mut board, 1), "0/0");
        arrive(&mut board, 0, 1);
        assert_eq!(take(&mut board, 1), "0/1");
    }

    #[test]
    fn a_full_board_asks_for_a_pause_until_half_is_free() {
        let mut board = board(1);
        (0..9).for_each(|offset| arrive(&mut board, 0, offset));
        assert!(!board.is_full());
        arrive(&mut board, 0, 9);
        assert!(board.is_full());
        (0..5).for_each(|_| assert!(matches!(board.take(1), Taken::Event(_))));
        assert!(board.is_full());
        board.take(1);
        assert!(!board.is_full());
    }

    #[test]
    fn a_lane_that_is_gone_leaves_nothing_behind_and_late_words_about_it_count_for_nothing() {
        let mut board = board(2);
        (0..3).for_each(|offset| arrive(&mut board, 0, offset));
        assert_eq!(take(&mut board, 1), "0/0");
        assert!(board.is_held(&[place(0), place(1)]));
        board.revoked(&place(0));
        assert!(!board.is_held(&[place(0), place(1)]));
        board.handled(1);
        assert!(board.take_storable().is_empty());
        assert_eq!(take(&mut board, 1), "Nothing");
        assert_eq!((board.events, board.bytes, board.ready.len()), (0, 0, 0));
    }
}
