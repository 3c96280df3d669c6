//! Free ports and the limit on clusters, agreed on between test processes by locked files.

use std::fs::{self, File, TryLockError};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use super::wait::wait_for;

/// Locks of the ports handed out, held until this process ends.
static TAKEN: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// A port on loopback that nobody listens on and that no other test process is handed.
///
/// Below the kernel's range for outgoing connections, so that a server can be killed and started again on it.
pub fn free_port() -> u16 {
    for _ in 0..1_000 {
        let port = fastrand::u16(10_000..21_000);
        let Some(lock) = try_lock(&format!("port-{port}")) else { continue };
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            TAKEN.lock().unwrap().push(lock);
            return port;
        }
    }
    panic!("no free port between 10000 and 21000 on loopback");
}

/// Clusters that may run at the same time on this machine, over all test processes.
const CLUSTERS: usize = 2;

/// Held by a running cluster.
#[derive(Debug)]
pub(super) struct ClusterPermit(#[allow(dead_code)] File); // the lock is what matters

/// Waits for one of the [`CLUSTERS`] places. A test must not hold one while it waits for a second.
pub(super) fn cluster_permit() -> ClusterPermit {
    wait_for(Duration::from_secs(900), "a place for a cluster (other tests hold them all)", || {
        (0..CLUSTERS).find_map(|place| try_lock(&format!("cluster-{place}"))).map(ClusterPermit)
    })
}

fn try_lock(name: &str) -> Option<File> {
    let folder: PathBuf = std::env::temp_dir().join("skalds-tests");
    fs::create_dir_all(&folder).unwrap();
    let file = File::create(folder.join(name)).unwrap();
    match file.try_lock() {
        Ok(()) => Some(file),
        Err(TryLockError::WouldBlock) => None,
        Err(TryLockError::Error(error)) => panic!("cannot lock {name} in {}: {error}", folder.display()),
    }
}
