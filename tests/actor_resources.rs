//! Memory and threads, alone in their process: both are measured.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use actix::prelude::*;
use skalds::actors::{ActorError, ActorSystem, Spec};

const LONG: Duration = Duration::from_secs(20);

/// One after the other.
#[tokio::test]
async fn memory_and_threads() {
    all_threads_end_after_a_shutdown_and_after_a_drop().await;
    a_flood_keeps_memory_flat_and_a_control_message_overtakes_it().await;
}

async fn all_threads_end_after_a_shutdown_and_after_a_drop() {
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let before = threads();
    let system = ActorSystem::builder().arbiters(3).start().unwrap();
    assert_eq!(threads(), before + 4, "three arbiters and the system's own");
    system.run_blocking(|| ()).await.unwrap();
    assert!(system.shutdown(LONG).await.is_clean());
    until("the end of all threads", || threads() == before).await;

    let system = ActorSystem::builder().arbiters(3).start().unwrap();
    system.run_blocking(|| ()).await.unwrap();
    drop(system);
    until("the end of all threads", || threads() == before).await;
}

async fn a_flood_keeps_memory_flat_and_a_control_message_overtakes_it() {
    let system = ActorSystem::builder().arbiters(1).start().unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&order);
    let target = system.spawn(Spec::new("target", move || Logger(Arc::clone(&log))).mailbox(1_000)).unwrap();
    let gate = Arc::new(Gate::default());
    target.tell(HoldLog(Arc::clone(&gate))).unwrap();
    gate.entered().await;
    let before = resident();
    let (mut taken, mut full) = (0_u32, 0_u32);
    for n in 0..1_000_000 {
        match target.tell(Log(n)) {
            Ok(()) => taken += 1,
            Err(refused) => {
                assert!(matches!(refused.error, ActorError::Full { capacity: 1_000, .. }));
                assert_eq!(refused.message.0, n, "the message comes back");
                full += 1;
            }
        }
    }
    assert_eq!((taken, full), (1_000, 999_000));
    let grown = resident().saturating_sub(before);
    assert!(grown < 8 << 20, "memory grew by {grown} bytes");
    target.control(Log(u32::MAX)).unwrap();
    gate.open();
    until("the queue", || order.lock().unwrap().len() == 1_001).await;
    let order = order.lock().unwrap();
    assert_eq!(order[0], u32::MAX, "the control message is next");
    assert!(order[1..].iter().copied().eq(0..1_000), "the others in order");
}

/// Waits for a condition, with a deadline.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < LONG, "{what} did not come about");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[derive(Default)]
struct Gate {
    entered: AtomicBool,
    open: AtomicBool,
}

impl Gate {
    fn wait(&self) {
        self.entered.store(true, Ordering::SeqCst);
        let begin = Instant::now();
        while !self.open.load(Ordering::SeqCst) && begin.elapsed() < LONG {
            std::thread::yield_now();
        }
    }
    fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
    }
    async fn entered(&self) {
        until("the gate's actor", || self.entered.load(Ordering::SeqCst)).await;
    }
}

struct Logger(Arc<Mutex<Vec<u32>>>);

impl Actor for Logger {
    type Context = Context<Self>;
}

#[derive(Message)]
#[rtype(result = "()")]
struct Log(u32);

impl Handler<Log> for Logger {
    type Result = ();
    fn handle(&mut self, Log(n): Log, _: &mut Context<Self>) {
        self.0.lock().unwrap().push(n);
    }
}

#[derive(Message)]
#[rtype(result = "()")]
struct HoldLog(Arc<Gate>);

impl Handler<HoldLog> for Logger {
    type Result = ();
    fn handle(&mut self, HoldLog(gate): HoldLog, _: &mut Context<Self>) {
        gate.wait();
    }
}

/// Resident memory of this process in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4_096
}
