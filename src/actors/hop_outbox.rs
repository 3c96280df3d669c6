//! The outbox of a [`HopMachine`](crate::chain::hop::HopMachine): its records by key, its tickets by commit.
//!
//! The machine thinks of its outbox as a log that is read from its start. Here each thing that a record can be about
//! (a hop, a recalled chain, a job's standing) has a key, and only the latest record of a key is kept. A record that
//! makes the machine forget others removes them: a fence the hops of lower epochs, a job's end all of the job. What
//! the machine forgets by itself, beyond its limits, goes when [`HopOutbox::keep_only`] compares with its snapshot.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::outbox::{Commit, Outbox, OutboxError, OutboxOptions, OutboxStats};
use crate::chain::frame::{self, FrameError, MAX_BODY};
use crate::chain::hop::Record;
use crate::chain::state::{HopId, JobState};

/// Keys more than twice those of the last snapshot before the outbox is cluttered.
const SLACK: usize = 1024;

/// The body is a record.
const RECORD: u8 = 0;
/// The body is the frame of a state that is held under its own id.
const RECEIVED: u8 = 1;

/// Why a record is not kept or cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HopOutboxError {
    /// The outbox says no.
    #[error(transparent)]
    Outbox(#[from] OutboxError),
    /// A record cannot be encoded.
    #[error("a record cannot be put into the outbox: {0}")]
    Encode(FrameError),
    /// A record that is whole cannot be understood: another version has written it.
    #[error(
        "a record in the outbox cannot be read: {0}; start the version that has written it and let it finish"
    )]
    Decode(FrameError),
}

/// The outbox of one machine.
pub struct HopOutbox {
    outbox: Outbox,
    /// The keys of the live records, by job.
    live: BTreeSet<Vec<u8>>,
    /// What has been queued and not been found durable yet, in order.
    waiting: VecDeque<(u64, Commit)>,
    /// Some of it has been queued since the last commit.
    queued: bool,
    kept: usize,
    /// The state that was received last, and its frame.
    received: Option<(Arc<JobState>, Box<[u8]>)>,
    key: Vec<u8>,
    body: Vec<u8>,
}

impl HopOutbox {
    /// Opens the outbox in `dir`, and returns what the machine is to be recovered from.
    pub fn open(dir: &Path, options: OutboxOptions) -> Result<(Self, Vec<Record>), HopOutboxError> {
        let (outbox, stored) = Outbox::open(dir, options)?;
        let mut this = HopOutbox::over(outbox);
        let mut records = Vec::with_capacity(stored.len());
        for record in stored {
            let read = match record.kind {
                RECEIVED => frame::decode_state(&record.body, MAX_BODY)
                    .map(|state| Record::Held { hop: state.hop_id(), state }),
                _ => frame::decode_record(&record.body, MAX_BODY),
            };
            records.push(read.map_err(HopOutboxError::Decode)?);
            this.live.insert(record.key);
        }
        this.kept = this.live.len();
        Ok((this, records))
    }

    /// An outbox that keeps nothing.
    pub fn in_memory() -> Self {
        HopOutbox::over(Outbox::in_memory())
    }

    fn over(outbox: Outbox) -> Self {
        HopOutbox {
            outbox,
            live: BTreeSet::new(),
            waiting: VecDeque::new(),
            queued: false,
            kept: 0,
            received: None,
            key: Vec::new(),
            body: Vec::new(),
        }
    }

    /// A state has been received, in this frame: should the next records hold it, the frame is kept instead of an
    /// encoded record, which saves encoding and compressing it again.
    pub fn received(&mut self, state: &Arc<JobState>, frame: Box<[u8]>) {
        self.received = Some((Arc::clone(state), frame));
    }

    /// `HopEffect::Persist`: [`HopOutbox::persisted`] commits it and says when it is durable.
    pub fn persist(&mut self, ticket: u64, record: &Record) -> Result<(), HopOutboxError> {
        let commit = self.write(record, Outbox::queue_put)?;
        self.waiting.push_back((ticket, commit));
        self.queued = true;
        Ok(())
    }

    /// `HopEffect::Note`: durable with the next one that is persisted, or after a moment.
    pub fn note(&mut self, record: &Record) -> Result<(), HopOutboxError> {
        self.write(record, Outbox::put_lazily)
    }

    fn write<T>(
        &mut self,
        record: &Record,
        put: impl Fn(&Outbox, &[u8], u8, &[u8]) -> Result<T, OutboxError>,
    ) -> Result<T, HopOutboxError> {
        if let Record::Moved { from, hop, state } = record {
            // First the one, then the other: with the first alone, the old hop is run twice, and nothing is lost.
            let written = self.write_one(&Record::Held { hop: hop.clone(), state: state.clone() }, &put)?;
            self.write_one(&Record::Done { hop: from.clone() }, Outbox::put_lazily)?;
            return Ok(written);
        }
        self.write_one(record, put)
    }

    fn write_one<T>(
        &mut self,
        record: &Record,
        put: impl Fn(&Outbox, &[u8], u8, &[u8]) -> Result<T, OutboxError>,
    ) -> Result<T, HopOutboxError> {
        write_key(record, &mut self.key);
        let written = match (record, self.received.take()) {
            (Record::Held { hop, state }, Some((received, frame)))
                if Arc::ptr_eq(state, &received) && *hop == state.hop_id() =>
            {
                put(&self.outbox, &self.key, RECEIVED, &frame)?
            }
            _ => {
                self.body.clear();
                frame::encode_record(record, &mut self.body).map_err(HopOutboxError::Encode)?;
                put(&self.outbox, &self.key, RECORD, &self.body)?
            }
        };
        if !self.live.contains(&self.key) {
            self.live.insert(self.key.clone());
        }
        // After the record that says why: without it, nothing may be missing.
        for forgotten in forgotten_by(record) {
            let keys: Vec<Vec<u8>> = self.live.range(forgotten).cloned().collect();
            self.remove(keys)?;
        }
        Ok(written)
    }

    fn remove(&mut self, keys: Vec<Vec<u8>>) -> Result<(), OutboxError> {
        for key in keys {
            self.outbox.remove_lazily(&key)?;
            self.live.remove(&key);
        }
        Ok(())
    }

    /// The ticket up to which everything is durable now; waits until it is a higher one than the last time. Nothing
    /// is lost when the future is dropped. Without anything to wait for it waits for ever.
    ///
    /// On a quick disk the commit is made here, with everything that has been queued by then: to be polled when the
    /// inputs at hand have been given to the machine.
    pub async fn persisted(&mut self) -> Result<u64, OutboxError> {
        if std::mem::take(&mut self.queued) {
            self.outbox.commit();
        }
        let Some((ticket, commit)) = self.waiting.front_mut() else { return std::future::pending().await };
        let (mut up_to, done) = (*ticket, commit.await);
        self.waiting.pop_front();
        done?;
        while let Some((ticket, commit)) = self.waiting.front_mut()
            && let Some(done) = commit.try_now()
        {
            up_to = *ticket;
            self.waiting.pop_front();
            done?;
        }
        Ok(up_to)
    }

    /// Waits until there is room for what one input of the machine brings about.
    pub async fn room(&self) -> Result<(), OutboxError> {
        self.outbox.room().await
    }

    /// Many records may be of things that the machine has forgotten: [`HopOutbox::keep_only`] is due.
    pub fn is_cluttered(&self) -> bool {
        self.live.len() > 2 * self.kept + SLACK
    }

    /// Removes all records that are about nothing in the machine's snapshot. Only when everything that the machine
    /// wanted to be written has been.
    pub fn keep_only(&mut self, snapshot: &[Record]) -> Result<(), OutboxError> {
        let key = |record| {
            let mut key = Vec::new();
            write_key(record, &mut key);
            key
        };
        let keep: BTreeSet<Vec<u8>> = snapshot.iter().map(key).collect();
        self.remove(self.live.difference(&keep).cloned().collect())?;
        self.kept = self.live.len();
        Ok(())
    }

    /// Makes everything durable and gives the directory free.
    pub async fn close(self) -> Result<(), OutboxError> {
        self.outbox.close().await
    }

    /// How it is going.
    pub fn stats(&self) -> OutboxStats {
        self.outbox.stats()
    }
}

/// What a record is about: the job, then its fence, its end, or something of an epoch. So all of a job stand together,
/// and in them all of its lower epochs.
fn write_key(record: &Record, key: &mut Vec<u8>) {
    match record {
        Record::Held { hop, .. }
        | Record::Moved { hop, .. }
        | Record::Retained { hop, .. }
        | Record::Done { hop } => {
            let HopId { job, chain, epoch, hop } = hop;
            write_epoch(job, *epoch, key);
            key.push(b'h');
            key.extend_from_slice(&chain.to_be_bytes());
            key.extend_from_slice(&hop.to_be_bytes());
        }
        Record::Recalled { chain } => {
            write_epoch(&chain.job, chain.epoch, key);
            key.push(b'r');
            key.extend_from_slice(&chain.chain.to_be_bytes());
        }
        Record::Fence { job, .. } => {
            write_job(job, key);
            key.push(FENCE);
        }
        Record::Ended { job, .. } => {
            write_job(job, key);
            key.push(ENDED);
        }
    }
}

const EPOCH: u8 = b'e';
const FENCE: u8 = b'f';
const ENDED: u8 = b'z';

fn write_job(job: &str, key: &mut Vec<u8>) {
    key.clear();
    // The length first, so that no job's keys stand among those of another.
    key.extend_from_slice(&(job.len() as u32).to_be_bytes());
    key.extend_from_slice(job.as_bytes());
}

fn write_epoch(job: &str, epoch: u32, key: &mut Vec<u8>) {
    write_job(job, key);
    key.push(EPOCH);
    key.extend_from_slice(&epoch.to_be_bytes());
}

/// The keys of what the machine forgets with a record.
fn forgotten_by(record: &Record) -> Vec<Range<Vec<u8>>> {
    let job_and = |job: &str, what: u8| {
        let mut key = Vec::new();
        write_job(job, &mut key);
        key.push(what);
        key
    };
    match record {
        Record::Fence { job, epoch, .. } => {
            let mut live = Vec::new();
            write_epoch(job, *epoch, &mut live);
            // A fence that is written after the end takes the job up again.
            vec![job_and(job, EPOCH)..live, job_and(job, ENDED)..job_and(job, ENDED + 1)]
        }
        Record::Ended { job, .. } => vec![job_and(job, EPOCH)..job_and(job, EPOCH + 1)],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::hop::{HopConfig, HopEffect, HopInput, HopMachine, Link};
    use crate::chain::job::{Builtin, JobSpec, Target};
    use crate::chain::message::{Ack, Attach, ChainId, End, EndReason, Message};
    use crate::chain::slots::SlotSet;
    use crate::chain::state::{Hop, PlanNode, Sequence, Tally};
    use crate::chain::value::Value;

    /// A state as another agent may hand it over: a chain's route is always the same, and a hop that this agent comes
    /// to by itself is not received as well (that happens only when a crash has made the one before run twice).
    fn state(rng: &mut fastrand::Rng, id: &str, epoch: u32) -> JobState {
        let mut job = JobSpec::builtin(id, Target::Pattern(b"*".to_vec()), Builtin::Count);
        let chain = rng.u16(..2);
        let mut of_chain =
            fastrand::Rng::with_seed(u64::from(epoch) << 32 | (id.len() as u64) << 8 | u64::from(chain));
        job.limits.retain = of_chain.u8(1..3);
        let node = |name: &str| PlanNode { id: name.into(), redis: name.into(), agent: Some(name.into()) };
        let nodes = [0, of_chain.u16(..2), of_chain.u16(..2), of_chain.u16(..2)];
        let route = nodes.map(|node| Hop { node, slots: SlotSet::empty() }).into();
        let entries: Vec<u32> =
            (0..4u32).filter(|hop| nodes[..*hop as usize + 1].ends_with(&[1, 0]) || *hop == 0).collect();
        JobState {
            job: job.into(),
            chain,
            epoch,
            nodes: vec![node("me"), node("you")],
            route,
            position: entries[rng.usize(..entries.len())],
            parts: Vec::new(),
            sequence: Sequence::default(),
            acc: Value::Int(rng.i64(0..1000)),
            tally: Tally::default(),
            errors: Vec::new(),
            open: Default::default(),
            failed: None,
            reports: Vec::new(),
        }
    }

    fn config() -> HopConfig {
        HopConfig { capacity: 16, keep_done: 10_000, ..HopConfig::new("me") }
    }

    fn small() -> OutboxOptions {
        OutboxOptions { segment_bytes: 8192, allocate_bytes: 512, ..OutboxOptions::default() }
    }

    /// What a machine holds, without the order in which it holds it, and without done hops below the fence, which
    /// are refused for that before anybody asks whether they are done.
    fn holds(records: impl IntoIterator<Item = Record>) -> BTreeSet<String> {
        let snapshot = HopMachine::recover(config(), records, 0, &mut Vec::new()).snapshot();
        let fenced = |hop: &HopId| {
            snapshot.iter().any(|record| {
                matches!(record, Record::Fence { job, epoch, .. } if *job == hop.job && hop.epoch < *epoch)
            })
        };
        let counts = |record: &&Record| !matches!(record, Record::Done { hop } if fenced(hop));
        snapshot.iter().filter(counts).map(|record| format!("{record:?}")).collect()
    }

    /// Drives a machine with anything that can happen, and keeps its records in an outbox and in a plain log.
    struct Driven {
        rng: fastrand::Rng,
        machine: HopMachine,
        outbox: HopOutbox,
        log: Vec<Record>,
        running: Vec<(HopId, Arc<JobState>)>,
        sent: Vec<(Link, HopId)>,
        now: i64,
        /// Each job's epoch and incarnation. They only rise, and the coordinator's connection is never lost: a machine
        /// that has forgotten a job takes what its log would refuse, and the two differ for that.
        jobs: [(u32, u64); 2],
    }

    impl Driven {
        fn input(&mut self) -> HopInput {
            let from = [Link::Conn(1), Link::Agent("you".into())][self.rng.usize(..2)].clone();
            let place = self.rng.usize(..2);
            let job = ["a", "ab"][place].to_owned();
            let (epoch, incarnation) = &mut self.jobs[place];
            *epoch += u32::from(self.rng.u8(..30) == 0);
            *incarnation += u64::from(self.rng.u8(..30) == 0);
            let (epoch, incarnation) = (*epoch, *incarnation);
            let message = match self.rng.u8(..20) {
                0..6 => Message::State(state(&mut self.rng, &job, epoch).into()),
                6..9 if !self.running.is_empty() => {
                    let (hop, mut state) = self.running.swap_remove(self.rng.usize(..self.running.len()));
                    Arc::make_mut(&mut state).position += 1;
                    return HopInput::Ran { hop, state };
                }
                9 if !self.running.is_empty() => {
                    let (hop, mut state) = self.running[self.rng.usize(..self.running.len())].clone();
                    Arc::make_mut(&mut state).tally.visited = self.rng.u64(..1000);
                    return HopInput::Checkpoint { hop, state };
                }
                10..15 if !self.sent.is_empty() => {
                    let (from, hop) = self.sent.swap_remove(self.rng.usize(..self.sent.len()));
                    let forwarded = if self.rng.bool() { vec![hop.clone()] } else { Vec::new() };
                    let message = Message::Ack(Ack { hops: vec![hop], forwarded });
                    return HopInput::Received { from, message, bytes: 10 };
                }
                15 | 16 => Message::Attach(Attach { job, epoch, incarnation }),
                17 => Message::Recall(ChainId { job, epoch, chain: self.rng.u16(..2) }),
                18 if self.rng.u8(..4) == 0 => {
                    let why = if self.rng.u8(..8) == 0 { EndReason::Finished } else { EndReason::Failed };
                    Message::End(End { job, incarnation, why })
                }
                _ => {
                    self.now += self.rng.i64(0..3000);
                    return match self.rng.u8(..3) {
                        0 => HopInput::Tick,
                        1 => HopInput::Connected { link: Link::Agent("you".into()) },
                        _ => HopInput::Lost { link: Link::Agent("you".into()) },
                    };
                }
            };
            HopInput::Received { from, message, bytes: 10 }
        }

        fn step(&mut self) {
            let mut effects = VecDeque::new();
            let mut out = Vec::new();
            let input = self.input();
            if let HopInput::Received { message: Message::State(state), .. } = &input
                && self.rng.bool()
            {
                let mut frame = Vec::new();
                frame::encode_state(state, &mut frame).expect("it can be encoded");
                self.outbox.received(state, frame.into());
            }
            self.machine.handle(self.now, input, &mut out);
            effects.extend(out.drain(..));
            while let Some(effect) = effects.pop_front() {
                match effect {
                    HopEffect::Persist { ticket, record } => {
                        self.outbox.persist(ticket, &record).expect("the disk is good");
                        self.log.push(record);
                        self.machine.handle(self.now, HopInput::Persisted { up_to: ticket }, &mut out);
                        effects.extend(out.drain(..));
                    }
                    HopEffect::Note { record } => {
                        self.outbox.note(&record).expect("the disk is good");
                        self.log.push(record);
                    }
                    HopEffect::Send { to, message: Message::State(state) } => {
                        self.sent.push((to, state.hop_id()))
                    }
                    HopEffect::Run { hop, state } => self.running.push((hop, state)),
                    HopEffect::Send { .. } | HopEffect::Abort { .. } => {}
                }
            }
        }
    }

    #[tokio::test]
    async fn what_is_kept_recovers_the_same_machine_as_the_whole_log() {
        for seed in 0..100 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let dir = tempfile::tempdir().expect("a temporary directory");
            let (outbox, records) = HopOutbox::open(dir.path(), small()).expect("it is new");
            let machine = HopMachine::recover(config(), records, 0, &mut Vec::new());
            let steps = rng.usize(..400);
            let (running, sent) = (Vec::new(), Vec::new());
            let mut driven =
                Driven { rng, machine, outbox, log: Vec::new(), running, sent, now: 0, jobs: [(1, 1); 2] };
            for _ in 0..steps {
                driven.step();
            }
            driven.outbox.close().await.expect("the disk is good");
            let (_outbox, records) = HopOutbox::open(dir.path(), small()).expect("it is free");
            assert!(records.len() <= driven.log.len());
            let (kept, logged) = (holds(records), holds(driven.log));
            let difference: Vec<_> = kept.symmetric_difference(&logged).collect();
            assert!(difference.is_empty(), "seed {seed}, {steps} steps: {difference:?}");
        }
    }

    #[tokio::test]
    async fn tickets_become_durable_in_order_and_clutter_goes() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (mut outbox, _) = HopOutbox::open(dir.path(), OutboxOptions::default()).expect("it is new");
        let hop = |hop| HopId { job: "job".into(), chain: 0, epoch: 1, hop };
        for ticket in 1..=200 {
            outbox.note(&Record::Done { hop: hop(10_000 + ticket as u32) }).expect("the disk is good");
            outbox.persist(ticket, &Record::Done { hop: hop(ticket as u32) }).expect("the disk is good");
        }
        let mut up_to = 0;
        while up_to < 200 {
            let next = outbox.persisted().await.expect("the disk is good");
            assert!(next > up_to);
            up_to = next;
        }
        assert!(!outbox.is_cluttered());
        for number in 0..2000 {
            outbox.room().await.expect("the disk is good");
            outbox.note(&Record::Done { hop: hop(20_000 + number) }).expect("the disk is good");
        }
        assert!(outbox.is_cluttered());
        outbox.keep_only(&[Record::Done { hop: hop(7) }]).expect("the disk is good");
        assert!(!outbox.is_cluttered());
        outbox.close().await.expect("the disk is good");
        let (_, records) = HopOutbox::open(dir.path(), OutboxOptions::default()).expect("it is free");
        assert_eq!(records, [Record::Done { hop: hop(7) }]);
    }
}
