//! What one group of subscribers still has to see, without locks and without waiting.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use crate::backend::Event;

/// What a subscriber gets when it asks.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Event(Event),
    Missed(u64),
    Nothing,
    End,
}

/// One group: events that wait, and events that were given out and not yet called handled.
#[derive(Debug)]
pub(super) struct Group {
    max_events: usize,
    max_bytes: usize,
    waiting: VecDeque<Event>,
    waiting_bytes: usize,
    /// `Some(0)`: something was missed, nobody knows how much.
    missed: Option<u64>,
    members: BTreeMap<u64, Member>,
    /// Which member holds events of a key, and how many.
    held: HashMap<Vec<u8>, (u64, usize)>,
    /// What the last members asked for, while there is none.
    topics: HashSet<String>,
}

#[derive(Debug, Default)]
struct Member {
    topics: HashSet<String>,
    given: VecDeque<Event>,
    given_bytes: usize,
    /// Given so long ago, and never called handled, that they are no longer kept for another reader.
    let_go: u64,
}

/// What an event takes of a group's bytes.
pub(super) fn size(event: &Event) -> usize {
    event.topic.len() + event.key.len() + event.value.len()
}

impl Group {
    pub(super) fn new(max_events: usize, max_bytes: usize) -> Self {
        Group {
            max_events,
            max_bytes,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            missed: None,
            members: BTreeMap::new(),
            held: HashMap::new(),
            topics: HashSet::new(),
        }
    }

    pub(super) fn may_have_missed(&mut self) {
        self.missed.get_or_insert(0);
    }

    pub(super) fn join(&mut self, id: u64, topics: &[&str]) {
        let topics: HashSet<String> = topics.iter().map(|topic| (*topic).to_owned()).collect();
        self.topics = if self.members.is_empty() { topics.clone() } else { &self.topics | &topics };
        self.members.insert(id, Member { topics, ..Member::default() });
        // What waits for nobody any more would wait for ever.
        let wanted = &self.topics;
        self.waiting.retain(|event| wanted.contains(&event.topic));
        self.waiting_bytes = self.waiting.iter().map(size).sum();
    }

    /// Adds an event if the group wants its topic. The oldest make room: who lags reads storage anyway, and what is
    /// newest may not stand there yet.
    pub(super) fn push(&mut self, event: &Event) {
        if self.topics.contains(&event.topic) {
            self.waiting_bytes += size(event);
            self.waiting.push_back(event.clone());
            self.make_room();
        }
    }

    fn make_room(&mut self) {
        while self.waiting.len() > self.max_events || self.waiting_bytes > self.max_bytes {
            let Some(oldest) = self.waiting.pop_front() else { break };
            self.waiting_bytes -= size(&oldest);
            *self.missed.get_or_insert(0) += 1;
        }
    }

    /// The first event that this member may have: of its topics, and no other member is busy with its key.
    pub(super) fn take(&mut self, id: u64) -> Taken {
        if let Some(missed) = self.missed.take() {
            return Taken::Missed(missed);
        }
        let Some(member) = self.members.get_mut(&id) else { return Taken::End };
        let held = &self.held;
        // A key that was passed over stays passed over, or a later event of it would overtake.
        let mut passed: HashSet<&[u8]> = HashSet::new();
        let found = self.waiting.iter().position(|event| {
            let free = held.get(&event.key).is_none_or(|(holder, _)| *holder == id);
            let fits = free && member.topics.contains(&event.topic) && !passed.contains(&event.key[..]);
            if !fits {
                passed.insert(&event.key);
            }
            fits
        });
        let Some(event) = found.and_then(|at| self.waiting.remove(at)) else { return Taken::Nothing };
        self.waiting_bytes -= size(&event);
        self.held.entry(event.key.clone()).or_insert((id, 0)).1 += 1;
        member.given_bytes += size(&event);
        member.given.push_back(event.clone());
        while member.given.len() > self.max_events || member.given_bytes > self.max_bytes {
            let Some(oldest) = member.given.pop_front() else { break };
            member.given_bytes -= size(&oldest);
            member.let_go += 1;
            release(&mut self.held, &oldest.key);
        }
        Taken::Event(event)
    }

    pub(super) fn handled(&mut self, id: u64) {
        let Some(member) = self.members.get_mut(&id) else { return };
        member.let_go = 0;
        member.given_bytes = 0;
        for event in member.given.drain(..) {
            release(&mut self.held, &event.key);
        }
    }

    /// The member is gone: what it was given and did not handle goes to the next reader, before everything else.
    pub(super) fn leave(&mut self, id: u64) {
        let Some(member) = self.members.remove(&id) else { return };
        if !self.members.is_empty() {
            self.topics = self.members.values().flat_map(|member| member.topics.iter().cloned()).collect();
            let wanted = &self.topics;
            self.waiting.retain(|event| wanted.contains(&event.topic));
            self.waiting_bytes = self.waiting.iter().map(size).sum();
        }
        if member.let_go > 0 {
            *self.missed.get_or_insert(0) += member.let_go;
        }
        for event in member.given.into_iter().rev() {
            release(&mut self.held, &event.key);
            self.waiting_bytes += size(&event);
            self.waiting.push_front(event);
        }
        self.make_room();
    }
}

fn release(held: &mut HashMap<Vec<u8>, (u64, usize)>, key: &[u8]) {
    if let Some((_, count)) = held.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            held.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(key: &str, value: &str) -> Event {
        Event { topic: "t".into(), key: key.into(), value: value.into() }
    }

    fn value(taken: Taken) -> String {
        match taken {
            Taken::Event(event) => String::from_utf8(event.value).unwrap(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn two_members_share_and_a_key_stays_with_one_until_it_is_handled() {
        let mut group = Group::new(100, 1_000);
        group.join(1, &["t"]);
        group.join(2, &["t"]);
        for (key, text) in [("a", "a1"), ("a", "a2"), ("b", "b1"), ("a", "a3")] {
            group.push(&event(key, text));
        }
        assert_eq!(value(group.take(1)), "a1");
        assert_eq!(value(group.take(2)), "b1");
        assert_eq!(group.take(2), Taken::Nothing);
        assert_eq!(value(group.take(1)), "a2");
        group.handled(1);
        assert_eq!(value(group.take(2)), "a3");
        assert_eq!(group.take(1), Taken::Nothing);
    }

    #[test]
    fn what_a_lost_member_did_not_handle_comes_again_first_and_in_order() {
        let mut group = Group::new(100, 1_000);
        group.join(1, &["t"]);
        for text in ["1", "2", "3", "4"] {
            group.push(&event("a", text));
        }
        assert_eq!(value(group.take(1)), "1");
        group.handled(1);
        assert_eq!(value(group.take(1)), "2");
        assert_eq!(value(group.take(1)), "3");
        group.leave(1);
        group.push(&event("a", "5"));
        group.join(2, &["t"]);
        for text in ["2", "3", "4", "5", "Nothing"] {
            assert_eq!(value(group.take(2)), text);
        }
    }

    #[test]
    fn a_full_group_drops_its_oldest_and_says_how_many() {
        let mut group = Group::new(3, 1_000);
        group.join(1, &["t"]);
        for n in 0..5 {
            group.push(&event("a", &n.to_string()));
        }
        assert_eq!(group.take(1), Taken::Missed(2));
        assert_eq!(value(group.take(1)), "2");
        let mut narrow = Group::new(1_000, 10);
        narrow.join(1, &["t"]);
        for _ in 0..3 {
            narrow.push(&event("a", "three"));
        }
        assert_eq!(narrow.take(1), Taken::Missed(2));
    }

    #[test]
    fn a_member_that_never_handles_keeps_no_more_than_the_bound_and_its_heir_is_told() {
        let mut group = Group::new(3, 1_000);
        group.join(1, &["t"]);
        for n in 0..5 {
            group.push(&event("a", &n.to_string()));
            assert_eq!(value(group.take(1)), n.to_string());
        }
        group.leave(1);
        group.join(2, &["t"]);
        assert_eq!(group.take(2), Taken::Missed(2));
        assert_eq!(value(group.take(2)), "2");
        assert!(group.held.len() == 1);
    }
}
