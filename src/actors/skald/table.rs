//! Which tasks a Skald has in hand: a place for each.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::actors::actor_ref::ActorRef;
use crate::actors::worker::{Held, WorkerActor};

/// A place in the table.
pub(super) enum Slot {
    /// The task is being started.
    Starting,
    /// A worker runs it; its actor is filled in once it is spawned.
    Running(Arc<Held>, Option<ActorRef<WorkerActor>>),
}

impl Slot {
    fn held(&self) -> Option<&Arc<Held>> {
        match self {
            Slot::Running(held, _) => Some(held),
            Slot::Starting => None,
        }
    }
}

/// The places, in the order of ids, so that a part of them can be looked through at a time.
#[derive(Default)]
pub(super) struct Table {
    slots: Mutex<BTreeMap<String, Slot>>,
    edition: AtomicU64,
}

impl Table {
    pub(super) fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Slot>> {
        // Nothing panics under this lock, so a poisoned table is still whole.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes which tasks are held.
    pub(super) fn edit<T>(&self, edit: impl FnOnce(&mut BTreeMap<String, Slot>) -> T) -> T {
        let mut slots = self.lock();
        self.edition.fetch_add(1, Ordering::AcqRel);
        edit(&mut slots)
    }

    /// As long as this is the same number, the same tasks are held.
    pub(super) fn edition(&self) -> u64 {
        self.edition.load(Ordering::Acquire)
    }

    /// Everything, what is being started included.
    pub(super) fn ids(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    /// Likewise.
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether the task is held or being started.
    pub(super) fn knows(&self, id: &str) -> bool {
        self.lock().contains_key(id)
    }

    pub(super) fn held(&self, id: &str) -> Option<Arc<Held>> {
        self.lock().get(id).and_then(Slot::held).cloned()
    }

    /// What workers run, in the order of ids, and the edition of that moment.
    pub(super) fn each<T>(&self, of: impl Fn(&Held) -> T) -> (u64, Vec<T>) {
        let slots = self.lock();
        let each = slots.values().filter_map(Slot::held).map(|held| of(held)).collect();
        (self.edition(), each)
    }

    /// What workers run, if it fits.
    pub(super) fn that(&self, fits: impl Fn(&Held) -> bool) -> Vec<Arc<Held>> {
        self.lock().values().filter_map(Slot::held).filter(|held| fits(held)).cloned().collect()
    }

    /// The first so many that workers run after an id.
    pub(super) fn after(&self, id: Option<&str>, count: usize) -> Vec<Arc<Held>> {
        let from = id.map_or(Bound::Unbounded, Bound::Excluded);
        let slots = self.lock();
        let behind = slots.range::<str, _>((from, Bound::Unbounded));
        behind.filter_map(|(_, slot)| slot.held()).take(count).cloned().collect()
    }
}
