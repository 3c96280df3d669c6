//! What was published and is not acknowledged, without locks, threads and files.
//!
//! An event is forgotten when it and all earlier ones of its key are acknowledged. So when something goes wrong on the
//! way, everything that is left can be sent again in the order in which it was published, and no event of a key is ever
//! last when it should not be.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::backend::{BackendError, Event};

/// What a publication hears.
pub(super) type Answer = Result<(), BackendError>;

#[derive(Debug)]
struct Entry {
    event: Event,
    call: u64,
    since: Instant,
    acknowledged: bool,
    /// Its call need not wait for it any more.
    counted: bool,
    /// It stands in the file, too.
    filed: bool,
}

#[derive(Debug)]
struct Call {
    left: usize,
    answer: oneshot::Sender<Answer>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Outbox {
    max_events: usize,
    max_bytes: usize,
    entries: BTreeMap<u64, Entry>,
    bytes: usize,
    /// Those that the client does not have.
    waiting: BTreeSet<u64>,
    /// The events of each key that are not forgotten, in their order.
    keys: HashMap<(String, Vec<u8>), VecDeque<u64>>,
    calls: HashMap<u64, Call>,
    next: u64,
    filed: usize,
    /// Counts how often everything was taken back: reports about what was sent before say nothing any more.
    round: u64,
    /// Something that was sent has failed: everything must be taken back and sent again.
    pub(super) broken: bool,
    pub(super) closed: bool,
}

fn size(event: &Event) -> usize {
    event.topic.len() + event.key.len() + event.value.len()
}

fn key(event: &Event) -> (String, Vec<u8>) {
    (event.topic.clone(), event.key.clone())
}

impl Outbox {
    pub(super) fn new(max_events: usize, max_bytes: usize) -> Self {
        Outbox {
            max_events,
            max_bytes,
            entries: BTreeMap::new(),
            bytes: 0,
            waiting: BTreeSet::new(),
            keys: HashMap::new(),
            calls: HashMap::new(),
            next: 0,
            filed: 0,
            round: 0,
            broken: false,
            closed: false,
        }
    }

    /// Takes the events of one publication, all or none; `answer` is told when all are acknowledged.
    pub(super) fn add(
        &mut self,
        events: &[Event],
        now: Instant,
        answer: oneshot::Sender<Answer>,
    ) -> Result<(), BackendError> {
        let bytes: usize = events.iter().map(size).sum();
        if self.entries.len() + events.len() > self.max_events || self.bytes + bytes > self.max_bytes {
            return Err(BackendError::Full {
                what: format!(
                    "the outbox for kafka, with {} events that are not acknowledged,",
                    self.entries.len()
                ),
                limit: format!("{} events or {} bytes", self.max_events, self.max_bytes),
                hint: "wait until the broker is back, or raise the bounds".into(),
            });
        }
        let call = self.next;
        self.calls.insert(call, Call { left: events.len(), answer });
        for event in events {
            self.insert(event.clone(), call, now, false);
        }
        Ok(())
    }

    /// Takes what a former process left in the file; the bounds of this one do not matter for it.
    pub(super) fn restore(&mut self, events: Vec<Event>, now: Instant) {
        for event in events {
            self.insert(event, u64::MAX, now, true);
        }
    }

    fn insert(&mut self, event: Event, call: u64, since: Instant, filed: bool) {
        let seq = self.next;
        self.next += 1;
        self.bytes += size(&event);
        self.filed += usize::from(filed);
        self.keys.entry(key(&event)).or_default().push_back(seq);
        self.waiting.insert(seq);
        self.entries.insert(seq, Entry { event, call, since, acknowledged: false, counted: false, filed });
    }

    /// The topics of everything that is not acknowledged.
    pub(super) fn topics(&self) -> BTreeSet<String> {
        let open = self.entries.values().filter(|entry| !entry.acknowledged);
        open.map(|entry| entry.event.topic.clone()).collect()
    }

    /// Hands what waits to `send`, in order, until it says that it takes no more (`false`).
    pub(super) fn send_waiting(&mut self, mut send: impl FnMut(u64, u64, &Event) -> bool) {
        while let Some(seq) = self.waiting.first().copied() {
            // cannot fail: what waits is there.
            let Some(entry) = self.entries.get(&seq) else { break };
            if !send(self.round, seq, &entry.event) {
                break;
            }
            self.waiting.remove(&seq);
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// How long the oldest event has been waiting for its acknowledgement.
    pub(super) fn age(&self, now: Instant) -> Duration {
        let oldest = self.entries.values().find(|entry| !entry.acknowledged);
        oldest.map_or(Duration::ZERO, |entry| now.saturating_duration_since(entry.since))
    }

    /// The broker has it. True when the last event that stands in the file is done with.
    pub(super) fn acknowledged(&mut self, round: u64, seq: u64) -> bool {
        if round != self.round {
            return false;
        }
        let Some(entry) = self.entries.get_mut(&seq) else { return false };
        if entry.acknowledged {
            return false;
        }
        entry.acknowledged = true;
        let of = key(&entry.event);
        self.count_down(seq);
        let filed = self.filed;
        self.forget_done(&of);
        filed > 0 && self.filed == 0
    }

    fn count_down(&mut self, seq: u64) {
        let Some(entry) = self.entries.get_mut(&seq) else { return };
        let call = entry.call;
        if !std::mem::replace(&mut entry.counted, true)
            && let Some(open) = self.calls.get_mut(&call)
        {
            open.left -= 1;
            if open.left == 0 {
                self.answer(call, Ok(()));
            }
        }
    }

    fn answer(&mut self, call: u64, answer: Answer) {
        if let Some(call) = self.calls.remove(&call) {
            // Nobody waits any more: the publication was answered otherwise, or given up.
            let _ = call.answer.send(answer);
        }
    }

    /// Forgets the events of a key that are done, from the first on.
    fn forget_done(&mut self, of: &(String, Vec<u8>)) {
        let Some(seqs) = self.keys.get_mut(of) else { return };
        while let Some(seq) = seqs.front().copied() {
            let Some(entry) = self.entries.get(&seq) else { break };
            if !entry.acknowledged {
                return;
            }
            self.bytes -= size(&entry.event);
            self.filed -= usize::from(entry.filed);
            self.entries.remove(&seq);
            self.waiting.remove(&seq);
            seqs.pop_front();
        }
        self.keys.remove(of);
    }

    /// The broker will never take it: its publication hears so, and nobody waits for it. True as with
    /// [`Outbox::acknowledged`].
    pub(super) fn refused(&mut self, round: u64, seq: u64, error: BackendError) -> bool {
        if let Some(entry) = self.entries.get(&seq).filter(|_| round == self.round) {
            let call = entry.call;
            self.answer(call, Err(error));
        }
        self.acknowledged(round, seq)
    }

    /// Takes everything back: what is left will be sent again, in its order.
    pub(super) fn take_back(&mut self) {
        self.round += 1;
        self.broken = false;
        self.waiting = self.entries.keys().copied().collect();
        // What was acknowledged after something that was not comes again after it; it is counted once.
        for entry in self.entries.values_mut() {
            entry.acknowledged = false;
        }
    }

    /// The events that do not stand in the file yet, in their order.
    pub(super) fn unfiled(&self) -> Vec<(u64, Event)> {
        let open = self.entries.iter().filter(|(_, entry)| !entry.filed);
        open.map(|(seq, entry)| (*seq, entry.event.clone())).collect()
    }

    /// They stand in the file now: whoever waits for them need not wait longer.
    pub(super) fn are_filed(&mut self, seqs: &[u64]) {
        for seq in seqs {
            let Some(entry) = self.entries.get_mut(seq) else { continue };
            entry.filed = true;
            self.filed += 1;
            self.count_down(*seq);
        }
    }

    /// Everything that stands in the file and is still needed, in its order.
    pub(super) fn filed(&self) -> Vec<Event> {
        self.entries.values().filter(|entry| entry.filed).map(|entry| entry.event.clone()).collect()
    }

    /// Whether the file still holds something that is needed.
    pub(super) fn needs_file(&self) -> bool {
        self.filed > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(key: &str, value: &str) -> Event {
        Event { topic: "t".into(), key: key.into(), value: value.into() }
    }

    fn add(outbox: &mut Outbox, events: &[Event]) -> oneshot::Receiver<Answer> {
        let (answer, heard) = oneshot::channel();
        outbox.add(events, Instant::now(), answer).unwrap();
        heard
    }

    fn sent(outbox: &mut Outbox) -> Vec<(u64, u64, String)> {
        let mut sent = Vec::new();
        outbox.send_waiting(|round, seq, event| {
            sent.push((round, seq, String::from_utf8(event.value.clone()).unwrap()));
            true
        });
        sent
    }

    fn values(sent: &[(u64, u64, String)]) -> Vec<&str> {
        sent.iter().map(|(_, _, value)| value.as_str()).collect()
    }

    #[test]
    fn a_call_is_answered_when_all_of_it_is_acknowledged() {
        let mut outbox = Outbox::new(10, 1_000);
        let mut heard = add(&mut outbox, &[event("a", "1"), event("b", "2")]);
        let first = sent(&mut outbox);
        assert_eq!(values(&first), ["1", "2"]);
        outbox.acknowledged(0, first[1].1);
        assert!(heard.try_recv().is_err());
        outbox.acknowledged(0, first[0].1);
        assert_eq!(heard.try_recv().unwrap(), Ok(()));
        assert!(outbox.is_empty() && outbox.bytes == 0 && outbox.keys.is_empty() && outbox.calls.is_empty());
    }

    #[test]
    fn after_a_failure_a_key_comes_again_from_its_first_gap_and_others_do_not() {
        let mut outbox = Outbox::new(10, 1_000);
        let mut heard = add(&mut outbox, &[event("a", "a1"), event("b", "b1"), event("a", "a2")]);
        let first = sent(&mut outbox);
        outbox.acknowledged(0, first[1].1);
        outbox.acknowledged(0, first[2].1);
        outbox.take_back();
        let again = sent(&mut outbox);
        assert_eq!(values(&again), ["a1", "a2"]);
        assert!(!outbox.acknowledged(0, first[0].1), "a report about the first round says nothing");
        assert_eq!(outbox.len(), 2);
        outbox.acknowledged(1, again[1].1);
        assert!(heard.try_recv().is_err(), "what was counted is not counted again");
        outbox.acknowledged(1, again[0].1);
        assert_eq!(heard.try_recv().unwrap(), Ok(()));
        assert!(outbox.is_empty());
    }

    #[test]
    fn what_is_full_takes_nothing_of_a_call() {
        let mut outbox = Outbox::new(3, 1_000);
        let _heard = add(&mut outbox, &[event("a", "1"), event("a", "2")]);
        let (answer, _) = oneshot::channel();
        let refused = outbox.add(&[event("a", "3"), event("a", "4")], Instant::now(), answer);
        assert!(matches!(refused, Err(BackendError::Full { .. })));
        assert_eq!(outbox.len(), 2);
    }

    #[test]
    fn what_is_filed_answers_and_is_needed_until_it_is_acknowledged() {
        let mut outbox = Outbox::new(10, 1_000);
        let mut heard = add(&mut outbox, &[event("a", "1"), event("a", "2")]);
        let seqs: Vec<u64> = outbox.unfiled().iter().map(|(seq, _)| *seq).collect();
        outbox.are_filed(&seqs);
        assert_eq!(heard.try_recv().unwrap(), Ok(()));
        assert!(outbox.unfiled().is_empty() && outbox.needs_file());
        assert_eq!(outbox.filed().len(), 2);
        sent(&mut outbox);
        assert!(!outbox.acknowledged(0, seqs[1]), "the first of its key is still open");
        assert!(outbox.acknowledged(0, seqs[0]), "the file is needed no more");
    }

    #[test]
    fn what_is_refused_is_told_and_holds_up_nobody() {
        let mut outbox = Outbox::new(10, 1_000);
        let mut heard = add(&mut outbox, &[event("a", "1"), event("a", "2")]);
        let first = sent(&mut outbox);
        outbox.refused(0, first[0].1, BackendError::Closed("x".into()));
        assert_eq!(heard.try_recv().unwrap(), Err(BackendError::Closed("x".into())));
        outbox.acknowledged(0, first[1].1);
        assert!(outbox.is_empty());
    }
}
