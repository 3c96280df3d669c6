//! The floor: the same bytes over TCP and onto the disk, with blocking calls and nothing else.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// One sample each per turn.
pub(crate) struct Floor {
    /// To a peer and back.
    pub(crate) ping_pong: Vec<Duration>,
    /// A write into a file that is as long already, and `fdatasync`.
    pub(crate) sync: Vec<Duration>,
    /// One after the other.
    pub(crate) both: Vec<Duration>,
    /// A chain's hop at its barest: both sides write and sync what has come before they send it on.
    pub(crate) one_way: Vec<Duration>,
}

/// A preallocated file, written to from its start to its end.
struct Log {
    file: std::fs::File,
    offset: u64,
}

impl Log {
    const BYTES: usize = 32 << 20;

    fn new() -> Self {
        let file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).expect("a file on a real disk");
        file.write_all_at(&vec![0; Self::BYTES], 0).expect("there is room");
        file.sync_all().expect("the disk is good");
        Log { file, offset: 0 }
    }

    fn append(&mut self, bytes: &[u8]) {
        if self.offset as usize + bytes.len() > Self::BYTES {
            self.offset = 0;
        }
        self.file.write_all_at(bytes, self.offset).expect("there is room");
        self.file.sync_data().expect("the disk is good");
        self.offset += bytes.len() as u64;
    }
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let left = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
    let (right, _) = listener.accept().expect("it was dialled");
    left.set_nodelay(true).expect("it is up");
    right.set_nodelay(true).expect("it is up");
    (left, right)
}

/// Half of `time` for each of the two floors.
pub(crate) fn measure(frame: &[u8], record: &[u8], time: Duration) -> Floor {
    let mut floor = Floor { ping_pong: Vec::new(), sync: Vec::new(), both: Vec::new(), one_way: Vec::new() };
    let mut buffer = vec![0; frame.len()];
    let mut log = Log::new();

    let (mut near, far) = pair();
    let peer = std::thread::spawn(echo(far, frame.len(), None));
    let end = Instant::now() + time / 2;
    while Instant::now() < end {
        let start = Instant::now();
        near.write_all(frame).expect("it is read");
        near.read_exact(&mut buffer).expect("it comes back");
        let back = Instant::now();
        log.append(record);
        floor.ping_pong.push(back - start);
        floor.sync.push(back.elapsed());
        floor.both.push(start.elapsed());
    }
    drop(near);
    peer.join().expect("it does not panic");

    let (mut near, far) = pair();
    let peer = std::thread::spawn(echo(far, frame.len(), Some((Log::new(), record.to_vec()))));
    let end = Instant::now() + time / 2;
    while Instant::now() < end {
        let start = Instant::now();
        near.write_all(frame).expect("it is read");
        near.read_exact(&mut buffer).expect("it comes back");
        log.append(record);
        floor.one_way.push(start.elapsed() / 2);
    }
    drop(near);
    peer.join().expect("it does not panic");
    floor
}

fn echo(mut stream: TcpStream, length: usize, mut log: Option<(Log, Vec<u8>)>) -> impl FnOnce() {
    move || {
        let mut buffer = vec![0; length];
        while stream.read_exact(&mut buffer).is_ok() {
            if let Some((log, record)) = &mut log {
                log.append(record);
            }
            if stream.write_all(&buffer).is_err() {
                return;
            }
        }
    }
}
