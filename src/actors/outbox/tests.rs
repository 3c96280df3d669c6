use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Instant;

use proptest::prelude::*;

use super::crash_disk::CrashDisk;
use super::journal::Batch;
use super::*;

/// Small, so that segments end, are emptied and used again all the time.
fn small() -> OutboxOptions {
    OutboxOptions { segment_bytes: 4096, allocate_bytes: 512, ..OutboxOptions::default() }
}

type Model = BTreeMap<Vec<u8>, (u8, Vec<u8>)>;

fn model_of(records: &[Record]) -> Model {
    let model: Model =
        records.iter().map(|record| (record.key.clone(), (record.kind, record.body.clone()))).collect();
    assert_eq!(model.len(), records.len(), "a key was recovered twice");
    model
}

#[derive(Debug, Clone)]
enum Change {
    Put(Vec<u8>, u8, Vec<u8>),
    Remove(Vec<u8>),
}

impl Change {
    fn random(rng: &mut fastrand::Rng) -> Self {
        let key = format!("key-{:02}", rng.u8(..12)).into_bytes();
        if rng.u8(..4) == 0 {
            return Change::Remove(key);
        }
        let length = if rng.u8(..10) == 0 { rng.usize(..6000) } else { rng.usize(..300) };
        Change::Put(key, rng.u8(..), std::iter::repeat_with(|| rng.u8(..)).take(length).collect())
    }

    fn apply(&self, model: &mut Model) {
        match self.clone() {
            Change::Put(key, kind, body) => drop(model.insert(key, (kind, body))),
            Change::Remove(key) => drop(model.remove(&key)),
        }
    }

    fn queue(&self, batch: &mut Batch) {
        match self {
            Change::Put(key, kind, body) => batch.put(key, *kind, body),
            Change::Remove(key) => batch.remove(key),
        }
    }
}

fn commit<D: disk::Disk>(journal: &mut Journal<D>, changes: &[Change]) -> Result<(), OutboxError> {
    let mut batch = Batch::default();
    changes.iter().for_each(|change| change.queue(&mut batch));
    journal.write(&mut batch)?;
    journal.apply(&mut batch)
}

/// The disk fails after a random number of operations, the power goes, the journal is opened again: what was
/// acknowledged is there, of the last commit a first part may be, and nothing else is.
#[test]
fn nothing_acknowledged_is_lost_when_the_power_goes_at_any_step() {
    for seed in 0..400 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let disk = CrashDisk::default();
        let mut acknowledged = Model::new();
        let mut unsure: Vec<Change> = Vec::new();
        for life in 0..12 {
            if rng.bool() {
                disk.fail_after(rng.u64(..200));
            }
            let opened = Journal::open(disk.clone(), small());
            if let Ok((mut journal, records)) = opened {
                let found = model_of(&records);
                let mut possible = acknowledged.clone();
                let mut prefix = std::iter::once(None).chain(unsure.iter().map(Some));
                let matches = prefix.any(|change| {
                    change.inspect(|change| change.apply(&mut possible));
                    possible == found
                });
                assert!(matches, "seed {seed}, life {life}: {found:?}");
                (acknowledged, unsure) = (found, Vec::new());
                for _ in 0..if rng.bool() { rng.usize(..3) } else { rng.usize(..60) } {
                    let changes: Vec<Change> =
                        (0..rng.usize(1..16)).map(|_| Change::random(&mut rng)).collect();
                    let mut batch = Batch::default();
                    changes.iter().for_each(|change| change.queue(&mut batch));
                    if journal.write(&mut batch).is_err() {
                        unsure = changes;
                        break;
                    }
                    changes.iter().for_each(|change| change.apply(&mut acknowledged));
                    if journal.apply(&mut batch).is_err() {
                        break;
                    }
                }
            } else if let Err(error) = opened {
                assert!(error.to_string().contains("injected"), "seed {seed}, life {life}: {error}");
            }
            disk.cut_power(&mut rng);
        }
    }
}

/// What a torn commit left behind must not come back when a later commit ends where a record of it begins.
#[test]
fn a_torn_commit_stays_gone() {
    // Small steps, so that nothing is covered with zeros by accident.
    let options = OutboxOptions { allocate_bytes: 1, ..OutboxOptions::default() };
    let put = |key: u8, body: u8| Change::Put(vec![key], 0, vec![body; 200]);
    let torn: Vec<Change> = (0..12).map(|key| put(key, 1)).collect();
    for seed in 0..100 {
        let disk = CrashDisk::default();
        let (mut journal, _) = Journal::open(disk.clone(), options.clone()).expect("it opens");
        commit(&mut journal, &[put(0, 0)]).expect("the disk is good");
        disk.fail_after(1); // the write succeeds, the sync does not
        commit(&mut journal, &torn).expect_err("the disk is not");
        disk.cut_power(&mut fastrand::Rng::with_seed(seed));
        let (mut journal, records) = Journal::open(disk.clone(), options.clone()).expect("it opens");
        let mut model = model_of(&records);
        let again: Vec<Change> = (20..21 + seed as u8 % 6).map(|key| put(key, 2)).collect();
        commit(&mut journal, &again).expect("the disk is good");
        again.iter().for_each(|change| change.apply(&mut model));
        let (_, records) = Journal::open(disk, options.clone()).expect("it opens");
        assert_eq!(model_of(&records), model, "seed {seed}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The same on a real file that is cut off anywhere behind what was synced.
    #[test]
    fn a_torn_tail_costs_only_what_was_not_acknowledged(seed: u64, rounds in 1..5usize) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut model = Model::new();
        for _ in 0..rounds {
            let disk = Directory::open(dir.path()).expect("it is free");
            let (mut journal, records) = Journal::open(disk, small()).expect("it opens");
            prop_assert_eq!(&model_of(&records), &model);
            let mut order: Vec<Vec<u8>> = records.into_iter().map(|record| record.key).collect();
            for _ in 0..rng.usize(..40) {
                let change = Change::random(&mut rng);
                commit(&mut journal, std::slice::from_ref(&change)).expect("the disk is good");
                change.apply(&mut model);
                let (Change::Put(key, ..) | Change::Remove(key)) = &change;
                order.retain(|other| other != key);
                if let Change::Put(key, ..) = change {
                    order.push(key);
                }
            }
            let (number, synced) = journal.segments.back().map(|last| (last.number, last.end)).expect("one");
            let path = disk::Disk::path(&journal.disk, number);
            // In the middle of the next commit.
            let mut batch = Batch::default();
            (0..3).for_each(|_| Change::random(&mut rng).queue(&mut batch));
            let before = std::fs::read(&path).expect("it can be read");
            drop(journal);
            let mut torn = before[..synced as usize].to_vec();
            let length = rng.usize(..700);
            torn.extend(std::iter::repeat_with(|| rng.u8(..)).take(length));
            std::fs::write(&path, torn).expect("it can be written");
            let disk = Directory::open(dir.path()).expect("it is free");
            let (_, records) = Journal::open(disk, small()).expect("it opens");
            prop_assert_eq!(&model_of(&records), &model);
            let keys: Vec<Vec<u8>> = records.into_iter().map(|record| record.key).collect();
            prop_assert_eq!(keys, order, "in the order of the last writes");
        }
    }
}

fn fill(disk: &CrashDisk, commits: usize) -> Journal<CrashDisk> {
    let (mut journal, _) = Journal::open(disk.clone(), small()).expect("it opens");
    for number in 0..commits {
        let key = format!("key-{number}").into_bytes();
        commit(&mut journal, &[Change::Put(key, 0, vec![7; 400])]).expect("the disk is good");
    }
    journal
}

#[test]
fn damage_is_not_taken_for_a_torn_tail() {
    // In the last segment, with a later commit behind it.
    let disk = CrashDisk::default();
    drop(fill(&disk, 5));
    disk.rot(1, 32 + 430 + 100);
    let error = Journal::open(disk, small()).err().expect("it is damaged").to_string();
    assert!(error.contains("crash-disk/1 is damaged at byte") && error.contains("later"), "{error}");

    // In an earlier segment.
    let disk = CrashDisk::default();
    assert!(fill(&disk, 30).segments.len() > 2);
    disk.rot(2, 600);
    let error = Journal::open(disk, small()).err().expect("it is damaged").to_string();
    assert!(error.contains("crash-disk/2 is damaged at byte"), "{error}");

    // A segment that somebody has deleted.
    let disk = CrashDisk::default();
    drop(fill(&disk, 30));
    disk::Disk::remove(&disk, 2).expect("it is there");
    let error = Journal::open(disk, small()).err().expect("it is incomplete").to_string();
    assert!(error.contains("crash-disk/2") && error.contains("missing"), "{error}");
}

#[test]
fn what_is_no_longer_live_is_given_up() {
    let disk = CrashDisk::default();
    let mut journal = fill(&disk, 3); // these stay
    for number in 0..20_000u32 {
        let key = number.to_le_bytes().to_vec();
        let changes = [Change::Put(key.clone(), 1, vec![1; 200]), Change::Remove(key)];
        commit(&mut journal, &changes).expect("the disk is good");
        assert!(disk.files() <= 4, "{} files after {number}", disk.files());
    }
    drop(journal);
    let (_, records) = Journal::open(disk, small()).expect("it opens");
    let keys: Vec<_> = records.iter().map(|record| String::from_utf8_lossy(&record.key)).collect();
    assert_eq!(keys, ["key-0", "key-1", "key-2"]);
}

#[tokio::test]
async fn a_failed_disk_reaches_every_waiter_and_is_final() {
    let disk = CrashDisk::default();
    let (journal, _) = Journal::open(disk.clone(), small()).expect("it opens");
    let outbox = Outbox::start(journal, small()).expect("a thread");
    outbox.put(b"a", 0, b"kept").await.expect("the disk is good");
    disk.fail_after(0);
    let puts: Vec<Commit> = (0..10).filter_map(|_| outbox.start_put(b"b", 0, b"lost").ok()).collect();
    assert!(!puts.is_empty());
    for put in puts {
        let error = put.await.expect_err("the disk is not").to_string();
        assert!(error.contains("injected disk failure") && error.contains("crash-disk/1"), "{error}");
    }
    let operations = disk.operations();
    for error in [
        outbox.put(b"c", 0, b"").await,
        outbox.put_lazily(b"c", 0, b""),
        outbox.remove_lazily(b"a"),
        outbox.flush().await,
        outbox.room().await,
    ] {
        assert!(error.expect_err("it is final").to_string().contains("injected disk failure"));
    }
    drop(outbox);
    assert_eq!(disk.operations(), operations, "something was written after the failure");
}

#[tokio::test]
async fn a_second_opener_is_told_and_files_are_private() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("agent").join("outbox");
    let (outbox, records) = Outbox::open(&path, OutboxOptions::default()).expect("it is new");
    assert_eq!(records, []);
    outbox.put(b"key", 3, b"body").await.expect("the disk is good");
    let error = Outbox::open(&path, OutboxOptions::default()).err().expect("it is in use");
    assert!(matches!(&error, OutboxError::InUse { .. }), "{error}");
    let mode = |path: &Path| std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o700);
    for entry in std::fs::read_dir(&path).expect("it can be listed") {
        assert_eq!(mode(&entry.expect("an entry").path()), 0o600);
    }
    outbox.remove_lazily(b"nothing").expect("it takes lazy records");
    outbox.put_lazily(b"lazy", 4, b"").expect("it takes lazy records");
    outbox.clone().close().await.expect("the disk is good");
    assert!(matches!(outbox.put(b"late", 0, b"").await, Err(OutboxError::Closed)));
    let (_again, records) = Outbox::open(&path, OutboxOptions::default()).expect("it is free");
    let kinds: Vec<u8> = records.iter().map(|record| record.kind).collect();
    assert_eq!(kinds, [3, 4]);
}

#[tokio::test]
async fn lazy_records_become_durable_by_themselves() {
    let disk = CrashDisk::default();
    let (journal, _) = Journal::open(disk.clone(), small()).expect("it opens");
    let outbox = Outbox::start(journal, small()).expect("a thread");
    for round in 1..=2 {
        outbox.put_lazily(b"key", 0, &[round]).expect("it takes lazy records");
        let deadline = Instant::now() + Duration::from_secs(5);
        while outbox.stats().records < u64::from(round) {
            assert!(Instant::now() < deadline, "still not durable");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    assert_eq!(outbox.stats().commits, 2);
    assert_eq!(outbox.stats().live_records, 1);
}

#[tokio::test]
async fn an_owner_commits_on_its_own_thread_while_the_disk_is_quick() {
    let committed = |options: OutboxOptions| {
        let (journal, _) = Journal::open(CrashDisk::default(), options.clone()).expect("it opens");
        let outbox = Outbox::start(journal, options).expect("a thread");
        let mut commits: Vec<Commit> =
            (0..3).map(|key| outbox.queue_put(&[key], 0, b"body").expect("there is room")).collect();
        assert!(commits[2].try_now().is_none(), "it was committed before anybody asked for it");
        outbox.commit();
        (outbox, commits)
    };
    let quick = OutboxOptions { commit_here_below: Duration::MAX, lazy_delay: Duration::MAX, ..small() };
    let (outbox, mut commits) = committed(quick.clone());
    for commit in &mut commits {
        assert!(matches!(commit.try_now(), Some(Ok(()))), "commit returned before it was durable");
    }
    assert_eq!(outbox.stats().commits, 1);
    // A slow disk is the thread's: the owner does not wait for it, and what it waits for comes all the same.
    let (outbox, commits) = committed(OutboxOptions { commit_here_below: Duration::ZERO, ..quick });
    for commit in commits {
        commit.await.expect("the disk is good");
    }
    // It is counted after those who wait have been told, and before the next commit.
    outbox.flush().await.expect("the disk is good");
    assert_eq!(outbox.stats().records, 3);
}

#[tokio::test]
async fn the_queue_is_bounded_and_put_waits() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = OutboxOptions { queue_records: 8, max_record_bytes: 1000, ..small() };
    let (outbox, _) = Outbox::open(dir.path(), options).expect("it is new");
    assert!(matches!(
        outbox.start_put(b"key", 0, &[0; 1000]),
        Err(OutboxError::TooLarge { bytes: 1003, .. })
    ));
    assert!(matches!(outbox.remove_lazily(&[0; 70_000]), Err(OutboxError::TooLarge { .. })));
    let writers: Vec<_> = (0..64u8)
        .map(|writer| {
            let outbox = outbox.clone();
            tokio::spawn(async move {
                for round in 0..20u8 {
                    outbox.put(&[writer], round, &[writer; 100]).await.expect("put waits, it never drops");
                    assert!(outbox.stats().pending <= 16);
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.expect("no writer panics");
    }
    let full = (0..1_000_000).find_map(|_| outbox.put_lazily(b"flood", 0, &[0; 900]).err());
    assert!(matches!(full, Some(OutboxError::Full { records: 16 }) | None), "{full:?}");
    outbox.close().await.expect("the disk is good");
    let (_, records) = Outbox::open(dir.path(), small()).expect("it is free");
    assert_eq!(records.iter().filter(|record| record.kind == 19).count(), 64);
}

#[tokio::test]
async fn in_memory_keeps_nothing_and_never_waits() {
    let outbox = Outbox::in_memory();
    outbox.put(b"key", 0, b"body").await.expect("there is no disk");
    outbox.remove_lazily(b"key").expect("there is no disk");
    outbox.flush().await.expect("there is no disk");
    assert_eq!(outbox.stats(), OutboxStats::default());
    outbox.close().await.expect("there is no disk");
}

const CHILD_DIR: &str = "SKALDS_TEST_OUTBOX_DIR";

/// This test starts itself as a child process, which acknowledges its puts on stdout, and kills it with SIGKILL.
#[test]
fn nothing_acknowledged_is_lost_by_sigkill() {
    if let Some(dir) = std::env::var_os(CHILD_DIR) {
        return put_and_acknowledge(Path::new(&dir));
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let name = format!("{}::nothing_acknowledged_is_lost_by_sigkill", module_path!());
    let name = name.split_once("::").expect("a crate and a path").1;
    let mut acknowledged: BTreeMap<u64, u64> = BTreeMap::new();
    for round in 0..4 {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", name, "--nocapture", "--test-threads=1"])
            .env(CHILD_DIR, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the child starts");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let mut seen = 0;
        while let Some(Ok(line)) = lines.next() {
            let Some(words) = line.strip_prefix("acknowledged ") else { continue };
            let Some((key, version)) = words.split_once(' ') else { continue };
            // The last line may be cut off by the kill: a shorter number is an older version.
            if let (Ok(key), Ok(version)) = (key.parse(), version.parse::<u64>()) {
                let latest = acknowledged.entry(key).or_default();
                *latest = version.max(*latest);
            }
            seen += 1;
            if seen == 300 + 137 * round {
                child.kill().expect("it runs");
            }
        }
        child.wait().expect("it has ended");
        assert!(seen >= 300 + 137 * round, "the child ended by itself");
        let (outbox, records) = Outbox::open(dir.path(), small()).expect("it opens");
        let stored: BTreeMap<u64, u64> =
            records.iter().map(|record| (number_of(&record.key), number_of(&record.body))).collect();
        for (key, version) in &acknowledged {
            let kept = stored.get(key);
            assert!(kept >= Some(version), "round {round}: key {key}: {kept:?}, acknowledged {version}");
        }
        drop(outbox);
    }
    assert_eq!(acknowledged.len(), 16);
}

fn number_of(bytes: &[u8]) -> u64 {
    bytes[..8].try_into().map(u64::from_le_bytes).expect("eight bytes")
}

fn put_and_acknowledge(dir: &Path) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    runtime.block_on(async {
        let (outbox, records) = Outbox::open(dir, small()).expect("it opens");
        let mut versions: BTreeMap<u64, u64> =
            records.iter().map(|record| (number_of(&record.key), number_of(&record.body))).collect();
        let writers: Vec<_> = (0..16u64)
            .map(|key| {
                let outbox = outbox.clone();
                let first = versions.remove(&key).unwrap_or(0) + 1;
                tokio::spawn(async move {
                    for version in first.. {
                        let mut body = version.to_le_bytes().to_vec();
                        body.resize(300, 0);
                        if key % 2 == 0 {
                            outbox.put(&key.to_le_bytes(), 0, &body).await.expect("the disk is good");
                        } else {
                            let commit =
                                outbox.queue_put(&key.to_le_bytes(), 0, &body).expect("there is room");
                            outbox.commit();
                            commit.await.expect("the disk is good");
                        }
                        // With the line's end in one call, so that lines of several threads do not mix.
                        std::io::stdout()
                            .write_all(format!("acknowledged {key} {version}\n").as_bytes())
                            .expect("the parent reads");
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.await.expect("it runs until the kill");
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_under_load_keeps_every_live_record() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options =
        OutboxOptions { segment_bytes: 64 * 1024, allocate_bytes: 4096, ..OutboxOptions::default() };
    let (outbox, _) = Outbox::open(dir.path(), options.clone()).expect("it is new");
    for key in 0..50u32 {
        outbox.put_lazily(&key.to_be_bytes(), 1, &[key as u8; 500]).expect("there is room");
    }
    let writers: Vec<_> = (0..16u32)
        .map(|writer| {
            let outbox = outbox.clone();
            tokio::spawn(async move {
                for round in 0..150u32 {
                    let key = [b'w', writer as u8, round as u8];
                    // Threads and owners commit side by side.
                    if writer % 2 == 0 {
                        outbox.put(&key, 2, &[0; 1500]).await.expect("the disk is good");
                    } else {
                        let commit = outbox.queue_put(&key, 2, &[0; 1500]).expect("there is room");
                        outbox.commit();
                        commit.await.expect("the disk is good");
                    }
                    outbox.remove_lazily(&key).expect("there is room");
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.expect("no writer panics");
    }
    outbox.close().await.expect("the disk is good");
    let files = std::fs::read_dir(dir.path()).expect("it can be listed").count();
    assert!(files <= 6, "{files} files for 27 kB of live records");
    let (outbox, records) = Outbox::open(dir.path(), options).expect("it is free");
    let keys: Vec<u32> = records
        .iter()
        .filter_map(|record| Some(u32::from_be_bytes(record.key.as_slice().try_into().ok()?)))
        .collect();
    assert_eq!(keys, (0..50).collect::<Vec<_>>());
    assert_eq!((records.len(), outbox.stats().live_records), (50, 50));
}
