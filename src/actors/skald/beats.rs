//! Signs of life: one batch of writes per beat for all tasks and the Skald itself.
//!
//! There is one writer, so that a beat never overwrites the last word of a task that has ended in the meantime.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::core::SkaldCore;
use crate::actors::notice::Notice;
use crate::actors::worker::Complaints;
use crate::backend::CacheWrite;
use crate::config::env::SkaldMode;
use crate::core::event::{SkaldTask, SkaldTasks, write};
use crate::core::lease::{HEARTBEAT_PERIOD, HEARTBEAT_TTL, Heartbeat, next_beat};
use crate::core::names;

/// A Skald that holds very many tasks beats more slowly, at most 33,000 writes a second; the keys outlive it.
const TIME_PER_BEAT: Duration = Duration::from_micros(30);
/// And it tells less often which tasks it holds: from 10,000 on, less than every 3 seconds.
const TIME_PER_LISTED: Duration = Duration::from_micros(300);
/// How many last words wait while cache memory is away; the oldest make room (they expire anyway).
const MAX_WORDS: usize = 100_000;

/// What waits to be written besides the beats, and the counter.
#[derive(Default)]
pub(super) struct Beats {
    beat: AtomicU8,
    words: Mutex<VecDeque<CacheWrite>>,
    spoken: Notify,
    complaints: Arc<Complaints>,
}

impl Beats {
    /// A task has been started: what it failed with before is gone.
    pub(super) fn first_words(&self, task_id: &str, ttl: Duration) {
        self.say([string(names::task_exception(task_id), Vec::new(), ttl)]);
    }

    /// A task has ended.
    pub(super) fn last_words(
        &self,
        task_id: &str,
        heartbeat: Option<Heartbeat>,
        exception: Option<String>,
        ttl: Duration,
    ) {
        let exception = exception.map(|text| string(names::task_exception(task_id), text.into_bytes(), ttl));
        let heartbeat = heartbeat.map(|last| string(names::task_heartbeat(task_id), last.to_bytes(), ttl));
        self.say(exception.into_iter().chain(heartbeat));
        self.spoken.notify_one();
    }

    pub(super) fn complaints(&self) -> Arc<Complaints> {
        Arc::clone(&self.complaints)
    }

    fn say(&self, words: impl IntoIterator<Item = CacheWrite>) {
        // Nothing panics under this lock, so a poisoned queue is still whole.
        let mut waiting = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.extend(words);
        let excess = waiting.len().saturating_sub(MAX_WORDS);
        waiting.drain(..excess);
    }

    fn take_words(&self) -> Vec<CacheWrite> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect()
    }
}

fn string(key: String, value: Vec<u8>, ttl: Duration) -> CacheWrite {
    CacheWrite::SetString { key: key.into_bytes(), value, ttl: Some(ttl) }
}

fn millis(millis: i64) -> Duration {
    Duration::from_millis(millis.unsigned_abs())
}

/// The writes of a beat. Those for the tasks stay from beat to beat, until the Skald holds other tasks.
#[derive(Default)]
struct Batch {
    /// First one for each task, then what is written once.
    writes: Vec<CacheWrite>,
    tasks: usize,
    /// Of the Skald's table, when the tasks' writes were made.
    edition: Option<u64>,
}

impl Batch {
    /// Leaves the tasks' writes only, with the next beat.
    fn beat(&mut self, core: &SkaldCore) {
        self.writes.truncate(self.tasks);
        let beat = next_beat(core.beats.beat.load(Ordering::Relaxed));
        core.beats.beat.store(beat, Ordering::Relaxed);
        let beat = Heartbeat::Beat(beat).to_bytes();
        if self.edition != Some(core.table.edition()) {
            let (edition, writes) = core
                .table
                .each(|held| string(names::task_heartbeat(held.id()), beat.clone(), millis(HEARTBEAT_TTL)));
            *self = Batch { tasks: writes.len(), writes, edition: Some(edition) };
            return;
        }
        for write in &mut self.writes {
            if let CacheWrite::SetString { value, .. } = write {
                value.clone_from(&beat);
            }
        }
    }
}

impl SkaldCore {
    /// Writes a batch at every beat, and at once when a task has ended; for ever.
    pub(super) async fn beat_loop(&self) {
        let clock = &self.tasks.clock;
        let mut next_own = Duration::ZERO;
        let mut next_list = Duration::ZERO;
        let mut failing = false;
        let mut batch = Batch::default();
        let mut words = Vec::new();
        loop {
            let now = clock.elapsed();
            batch.beat(self);
            let held = batch.tasks as u32;
            let ttl = self.timing.key_ttl;
            let complaints = self.beats.complaints.take().into_iter();
            self.beats
                .say(complaints.map(|(id, text)| string(names::task_error(&id), text.into_bytes(), ttl)));
            // What is due before the next beat is written now: a beat too early is better than one too late.
            let period = self.timing.beat.max(TIME_PER_BEAT * held).min(millis(HEARTBEAT_PERIOD));
            if next_own < now + period / 2 {
                batch.writes.extend(self.own_beats());
                next_own = now + millis(HEARTBEAT_PERIOD);
            }
            if next_list < now + period / 2 {
                batch.writes.extend(self.own_tasks());
                next_list = now + self.timing.sync.max(TIME_PER_LISTED * held);
            }
            failing = self.write(&mut batch.writes, failing).await;
            if !failing {
                self.set_announced();
            }
            let mut beat = std::pin::pin!(clock.sleep((now + period).saturating_sub(clock.elapsed())));
            loop {
                tokio::select! {
                    () = &mut beat => break,
                    () = self.beats.spoken.notified() => {
                        failing = self.write(&mut words, failing).await;
                        words.clear();
                    }
                }
            }
            if failing {
                // It may come back empty: then everything is due at once.
                (next_own, next_list) = (Duration::ZERO, Duration::ZERO);
            }
        }
    }

    /// Writes these and the words that wait, which it adds to them. Says whether it failed.
    async fn write(&self, writes: &mut Vec<CacheWrite>, failing: bool) -> bool {
        let before = writes.len();
        writes.extend(self.beats.take_words());
        if writes.is_empty() {
            return failing;
        }
        match self.backends.cache.write_batch(writes).await {
            Ok(()) => {
                if failing {
                    tracing::info!(skald = self.id, "cache memory is back; heartbeats are written again");
                }
                false
            }
            Err(error) => {
                if !failing {
                    tracing::warn!(skald = self.id, %error, "heartbeats are not written; trying again at every beat");
                }
                self.beats.say(writes.drain(before..));
                true
            }
        }
    }

    /// The Skald's own signs of life. A single process has none, as the Python package has it.
    fn own_beats(&self) -> Vec<CacheWrite> {
        if self.mode == SkaldMode::SingleProcess {
            return Vec::new();
        }
        let field = |key: &str, value: String| CacheWrite::SetHashField {
            key: key.into(),
            field: self.id.clone().into_bytes(),
            value: value.into_bytes(),
            ttl: Some(self.timing.key_ttl),
        };
        let beat = Heartbeat::Beat(self.beats.beat.load(Ordering::Relaxed)).to_bytes();
        vec![
            field(names::SKALDS, self.tasks.clock.now_millis().to_string()),
            field(names::SKALD_MODES, self.mode.word().to_owned()),
            string(names::skald_heartbeat(&self.id), beat, millis(HEARTBEAT_TTL)),
        ]
    }

    /// What the Skald runs and can run.
    fn own_tasks(&self) -> Vec<CacheWrite> {
        let ttl = self.timing.key_ttl;
        let (_, tasks) = self
            .table
            .each(|held| SkaldTask { id: held.id().to_owned(), class_name: held.class_name.clone() });
        let list = SkaldTasks {
            existed_task_ids: tasks.iter().map(|task| task.id.clone()).collect(),
            tasks,
            timestamp: self.tasks.clock.now_millis(),
            capacity: Some(if self.is_draining() { 0 } else { self.capacity }),
        };
        vec![
            string(names::skald_tasks(&self.id), write(&list), ttl),
            CacheWrite::ReplaceList {
                key: names::skald_classes(&self.id).into_bytes(),
                values: self.classes.names().map(|name| name.as_bytes().to_vec()).collect(),
                ttl: Some(ttl),
            },
        ]
    }

    /// Tells the fleet that this Skald is there, or that what it takes has changed.
    pub(super) async fn announce(&self) {
        let mut writes = self.own_beats();
        writes.extend(self.own_tasks());
        if let Err(error) = self.backends.cache.write_batch(&writes).await {
            tracing::debug!(skald = self.id, %error, "not announced; the next beat will do it");
            return;
        }
        self.tasks.notices.post(Notice::Skald { id: self.id.clone() });
    }

    /// The last batch of all: what tasks ended with, and no sign of life of the Skald's own any more.
    pub(super) async fn say_goodbye(&self) {
        let mut writes = self.beats.take_words();
        let gone =
            [names::skald_heartbeat(&self.id), names::skald_tasks(&self.id), names::skald_classes(&self.id)];
        writes.extend(gone.into_iter().map(|key| CacheWrite::DeleteKey { key: key.into_bytes() }));
        let cache = &self.backends.cache;
        if let Err(error) = cache.write_batch(&writes).await {
            tracing::warn!(skald = self.id, %error, "the skald could not say goodbye; its keys expire by themselves");
        }
        for hash in [names::SKALDS, names::SKALD_MODES] {
            if let Err(error) = cache.delete_hash_field(hash.as_bytes(), self.id.as_bytes()).await {
                tracing::debug!(skald = self.id, %error, "a field is left behind; it expires by itself");
            }
        }
        self.tasks.notices.post(Notice::Skald { id: self.id.clone() });
        while self.tasks.notices.send_some(&**cache).await {}
    }
}
