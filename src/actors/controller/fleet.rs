//! Which Skalds there are, as cache memory tells it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures_util::future::join_all;

use crate::backend::{BackendError, CacheMemory};
use crate::core::event::{SkaldTask, SkaldTasks, read};
use crate::core::judge::Holder;
use crate::core::lease::{Heartbeat, Liveness, Patience, SKALD_GONE_AFTER, Watch};
use crate::core::names;
use crate::core::task::Millis;

/// The most classes that are read of one Skald.
const MAX_CLASSES: i64 = 10_000;

/// A Skald as the fleet sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SkaldInfo {
    /// Its id.
    pub id: String,
    /// `node` or `edge`.
    pub mode: String,
    /// Whether it shows signs of life.
    pub online: bool,
    /// Its last sign of life by its own clock, milliseconds since the Unix epoch.
    pub last_seen: Millis,
    /// Its heartbeat's last value.
    pub heartbeat: Option<i32>,
    /// The worker classes that it runs, sorted.
    pub classes: Vec<String>,
    /// The tasks that it says it runs.
    pub tasks: Arc<[SkaldTask]>,
    /// How many it takes; `None`: it does not say, as those of the Python package.
    pub capacity: Option<u32>,
    /// It is one of ours, not of the Python package.
    pub native: bool,
    /// It is not only silent, but has been for so long that its tasks are taken back.
    pub(crate) gone: bool,
}

/// All Skalds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Fleet {
    /// It was read; `false` when nothing is known of it yet.
    pub(crate) known: bool,
    pub(crate) skalds: BTreeMap<String, SkaldInfo>,
}

impl Fleet {
    /// Those that take what a dispatcher gives them.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &SkaldInfo> {
        self.skalds.values().filter(|skald| skald.online && skald.mode == "node")
    }

    pub(crate) fn holder(&self, executor: &str) -> Holder {
        match self.skalds.get(executor) {
            Some(skald) if skald.gone => Holder::Gone,
            Some(skald) if skald.online && skald.native => Holder::Ours,
            Some(skald) if skald.online => Holder::Python,
            _ => Holder::Unknown,
        }
    }

    /// Whether the dispatcher would decide otherwise than for `other`.
    pub(crate) fn dispatches_as(&self, other: &Fleet) -> bool {
        let of = |fleet: &Fleet| -> Vec<(String, bool, Vec<String>, Option<u32>)> {
            let skalds = fleet.skalds.values();
            skalds.map(|s| (s.id.clone(), s.online, s.classes.clone(), s.capacity)).collect()
        };
        of(self) == of(other)
    }
}

/// Reads the fleet again and again, and judges who is alive.
#[derive(Default)]
pub(crate) struct FleetReader {
    watches: HashMap<String, Watch>,
    lists: HashMap<String, List>,
}

/// What a Skald said of its tasks: as it was written, and as it was read. A long list is not read twice.
#[derive(Default)]
struct List {
    json: Vec<u8>,
    tasks: Arc<[SkaldTask]>,
    capacity: Option<u32>,
}

impl List {
    fn read(skald: &str, json: Vec<u8>) -> List {
        let list: SkaldTasks = read("the list of a skald's tasks", &json).unwrap_or_else(|error| {
            tracing::warn!(skald, %error, "a skald's list of tasks was left out");
            SkaldTasks::default()
        });
        List { json, tasks: list.tasks.into(), capacity: list.capacity }
    }
}

impl FleetReader {
    /// Reads the fleet. `now` is monotonic.
    pub(crate) async fn read(
        &mut self,
        cache: &dyn CacheMemory,
        now: Millis,
        expired_after: Millis,
    ) -> Result<Fleet, BackendError> {
        let result = self.read_all(cache, now, expired_after).await;
        if result.is_err() {
            // Blind: nobody is declared gone for what was not seen.
            self.watches.values_mut().for_each(|watch| watch.pardon(now));
        }
        result
    }

    async fn read_all(
        &mut self,
        cache: &dyn CacheMemory,
        now: Millis,
        expired_after: Millis,
    ) -> Result<Fleet, BackendError> {
        let seen = by_id(cache.get_all_hash(names::SKALDS.as_bytes()).await?);
        let modes = by_id(cache.get_all_hash(names::SKALD_MODES.as_bytes()).await?);
        let ids: Vec<&String> = seen.keys().collect();
        let keys: Vec<Vec<u8>> = ids
            .iter()
            .flat_map(|id| [names::skald_heartbeat(id).into_bytes(), names::skald_tasks(id).into_bytes()])
            .collect();
        let mut values = cache.get_strings(&keys).await?;
        let mut fleet = Fleet { known: true, ..Fleet::default() };
        let lists: Vec<Vec<u8>> = ids.iter().map(|id| names::skald_classes(id).into_bytes()).collect();
        let lists = join_all(lists.iter().map(|key| cache.get_list(key, 0, MAX_CLASSES))).await;
        for ((index, id), classes) in ids.into_iter().enumerate().zip(lists) {
            let json = values[2 * index + 1].take();
            let beat = &values[2 * index];
            let mut classes: Vec<String> =
                classes?.into_iter().filter_map(|name| String::from_utf8(name).ok()).collect();
            classes.sort_unstable();
            // No clock but ours: a sign of life is one that changes.
            let sign = beat.as_ref().map(|beat| [&beat[..], b" ", &seen[id][..]].concat());
            let watch = self.watches.entry(id.clone()).or_insert_with(|| Watch::new(0, now));
            let patience = Patience { expired: expired_after, stuck: SKALD_GONE_AFTER };
            let liveness = watch.observe(0, sign.as_deref(), now, patience);
            let gone = match liveness {
                Liveness::Alive => false,
                Liveness::Waiting { since } => since >= SKALD_GONE_AFTER,
                Liveness::Expired | Liveness::Stuck { .. } => true,
            };
            let list = self.lists.entry(id.clone()).or_default();
            match json {
                Some(json) if json != list.json => *list = List::read(id, json),
                Some(_) => {}
                None => *list = List::default(),
            }
            let number = |bytes: &[u8]| std::str::from_utf8(bytes).ok()?.trim().parse().ok();
            fleet.skalds.insert(
                id.clone(),
                SkaldInfo {
                    id: id.clone(),
                    mode: modes
                        .get(id)
                        .map_or("node".into(), |mode| String::from_utf8_lossy(mode).into_owned()),
                    online: liveness == Liveness::Alive,
                    last_seen: number(&seen[id]).unwrap_or(0),
                    heartbeat: beat
                        .as_ref()
                        .and_then(|beat| Heartbeat::parse(beat).ok())
                        .map(Heartbeat::number),
                    classes,
                    tasks: Arc::clone(&list.tasks),
                    capacity: list.capacity,
                    native: list.capacity.is_some(),
                    gone,
                },
            );
        }
        self.watches.retain(|id, _| seen.contains_key(id));
        self.lists.retain(|id, _| seen.contains_key(id));
        Ok(fleet)
    }

    /// Those that have shown nothing for so long that their entries may be removed.
    pub(crate) fn long_gone(&mut self, fleet: &Fleet, now: Millis) -> Vec<String> {
        let gone = fleet.skalds.values().filter(|skald| skald.gone);
        gone.filter(|skald| match self.watches.get_mut(&skald.id).map(|watch| watch.quiet_for(now)) {
            Some(quiet) => quiet >= 6 * SKALD_GONE_AFTER,
            None => false,
        })
        .map(|skald| skald.id.clone())
        .collect()
    }
}

fn by_id(fields: Vec<(Vec<u8>, Vec<u8>)>) -> BTreeMap<String, Vec<u8>> {
    // An id that is not text cannot be an executor.
    fields.into_iter().filter_map(|(id, value)| Some((String::from_utf8(id).ok()?, value))).collect()
}
