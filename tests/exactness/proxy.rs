//! A TCP connection that can be cut, or held: what is sent then arrives late.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Passes bytes on between who dials it and its target, while it is not cut.
pub(crate) struct Proxy {
    pub(crate) address: String,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    cut: bool,
    held: bool,
    streams: Vec<TcpStream>,
}

impl Proxy {
    /// Listens on `port`; its threads end with the process.
    pub(crate) fn start(port: u16, target: String) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let shared = Arc::<Mutex<Shared>>::default();
        let of_thread = Arc::clone(&shared);
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let mut shared = of_thread.lock().unwrap();
                // While it is cut, who dials finds nobody; so does everybody while the agent is down.
                let Some(far) = (!shared.cut).then(|| TcpStream::connect(&target).ok()).flatten() else {
                    continue;
                };
                shared.streams.retain(|stream| stream.peer_addr().is_ok());
                for (from, to, there) in [(&near, &far, true), (&far, &near, false)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    shared.streams.push(from.try_clone().unwrap());
                    let of_pass = Arc::clone(&of_thread);
                    std::thread::spawn(move || pass(from, to, there.then_some(&of_pass)));
                }
            }
        });
        Proxy { address: format!("127.0.0.1:{port}"), shared }
    }

    /// Ends all connections and lets no new ones through.
    pub(crate) fn cut(&self) {
        let mut shared = self.shared.lock().unwrap();
        shared.cut = true;
        for stream in shared.streams.drain(..) {
            let _ = stream.shutdown(Shutdown::Both); // fails when its peer has gone
        }
    }

    /// Keeps what is sent to the target from now on, and passes it on when it is healed, also if its sender has gone by then.
    pub(crate) fn hold(&self) {
        self.shared.lock().unwrap().held = true;
    }

    pub(crate) fn heal(&self) {
        let mut shared = self.shared.lock().unwrap();
        (shared.cut, shared.held) = (false, false);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, holds: Option<&Mutex<Shared>>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read) = from.read(&mut buffer)
        && read > 0
    {
        while holds.is_some_and(|shared| shared.lock().unwrap().held) {
            std::thread::sleep(Duration::from_millis(10));
        }
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    for stream in [from, to] {
        let _ = stream.shutdown(Shutdown::Both); // fails when its peer has gone
    }
}
