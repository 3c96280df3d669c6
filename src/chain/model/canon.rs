//! Fingerprints of what the model's world consists of.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::chain::message::Message;
use crate::chain::slots::SlotSet;
use crate::chain::state::JobState;
use crate::core::task::Millis;

/// 64 bits that stand for a state, or a part of one. Of ten million states, two fall together by chance once in
/// 400,000 explorations.
pub(in crate::chain) struct Canon(DefaultHasher);

impl Canon {
    pub(super) fn new() -> Self {
        Canon(DefaultHasher::new())
    }

    pub(super) fn finish(self) -> u64 {
        self.0.finish()
    }

    pub(in crate::chain) fn put(&mut self, part: &impl Hash) -> &mut Self {
        part.hash(&mut self.0);
        self
    }

    /// Ends a list.
    pub(in crate::chain) fn end(&mut self) {
        0xedu8.hash(&mut self.0);
    }

    pub(in crate::chain) fn slots(&mut self, slots: &SlotSet) -> &mut Self {
        for slot in slots.iter() {
            self.put(&slot);
        }
        self.put(&u16::MAX)
    }

    /// How far off a timer is.
    pub(in crate::chain) fn due(&mut self, at: Option<Millis>, now: Millis) {
        self.put(&at.map(|at| (at - now).max(0)));
    }

    pub(in crate::chain) fn state(&mut self, state: &Arc<JobState>) -> &mut Self {
        self.put(&fingerprint(state))
    }

    pub(in crate::chain) fn message(&mut self, message: &Message) -> &mut Self {
        self.put(&std::mem::discriminant(message));
        match message {
            Message::State(state) => self.state(state),
            Message::Ack(ack) => self.put(&ack.hops).put(&ack.forwarded),
            Message::Recalled(recalled) => {
                self.put(&recalled.chain).put(&recalled.state.as_ref().map(fingerprint))
            }
            Message::Recall(chain) => self.put(chain),
            other => self.put(&format!("{other:?}")),
        }
    }
}

#[derive(Default)]
struct States {
    by_address: HashMap<*const JobState, u64>,
    by_fingerprint: HashMap<u64, Arc<JobState>>,
}

thread_local! {
    /// One of each job state there is; they are kept for as long as the thread, so that their addresses stay theirs.
    static STATES: RefCell<States> = RefCell::default();
}

/// The one that stands for all equal ones.
pub(super) fn intern(state: Arc<JobState>) -> Arc<JobState> {
    STATES.with_borrow_mut(|states| {
        if states.by_address.contains_key(&Arc::as_ptr(&state)) {
            return state;
        }
        let fingerprint = compute(&state);
        let one = states.by_fingerprint.entry(fingerprint).or_insert(state);
        states.by_address.insert(Arc::as_ptr(one), fingerprint);
        one.clone()
    })
}

fn fingerprint(state: &Arc<JobState>) -> u64 {
    let known = STATES.with_borrow(|states| states.by_address.get(&Arc::as_ptr(state)).copied());
    known.unwrap_or_else(|| compute(state))
}

fn compute(state: &JobState) -> u64 {
    let mut to = Canon::new();
    to.put(&(state.job.limits.retain, state.chain, state.epoch, state.position));
    for node in &state.nodes {
        to.put(&node.agent);
    }
    for hop in &state.route {
        to.put(&hop.node).slots(&hop.slots);
    }
    to.end();
    for part in &state.parts {
        to.put(&part.node).slots(&part.slots).put(&format!("{:?}", part.acc));
    }
    to.end();
    to.put(&state.open).put(&state.failed.is_some());
    to.finish()
}
