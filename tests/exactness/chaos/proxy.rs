//! A TCP connection that can be cut: everybody reaches an agent through one of these.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Passes bytes on between who dials it and its target, while it is not cut.
pub(super) struct Proxy {
    pub(super) address: String,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    cut: bool,
    streams: Vec<TcpStream>,
}

impl Proxy {
    /// Listens on `port`; its threads end with the process.
    pub(super) fn start(port: u16, target: String) -> Self {
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
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    shared.streams.push(from.try_clone().unwrap());
                    std::thread::spawn(move || pass(from, to));
                }
            }
        });
        Proxy { address: format!("127.0.0.1:{port}"), shared }
    }

    /// Ends all connections and lets no new ones through.
    pub(super) fn cut(&self) {
        let mut shared = self.shared.lock().unwrap();
        shared.cut = true;
        for stream in shared.streams.drain(..) {
            let _ = stream.shutdown(Shutdown::Both); // fails when its peer has gone
        }
    }

    pub(super) fn heal(&self) {
        self.shared.lock().unwrap().cut = false;
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read) = from.read(&mut buffer)
        && read > 0
        && to.write_all(&buffer[..read]).is_ok()
    {}
    for stream in [from, to] {
        let _ = stream.shutdown(Shutdown::Both); // fails when its peer has gone
    }
}
