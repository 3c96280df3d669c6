//! Child processes that cannot be left behind.

use std::io;
use std::process::{Child, Command};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock};

type Job = (Command, Sender<io::Result<Child>>);

/// Starts `program` so that the kernel kills it when this process dies.
///
/// The kernel looks at the *thread* that started a child, and the harness ends a thread with each test: so one thread
/// that lives as long as the process starts them all.
pub(super) fn spawn(program: &str, prepare: impl FnOnce(&mut Command)) -> Child {
    static STARTER: OnceLock<Mutex<Sender<Job>>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (jobs, queue) = channel::<Job>();
        std::thread::spawn(move || {
            for (mut command, answer) in queue {
                // cannot matter: who does not wait for the answer does not want the child
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(jobs)
    });
    // From util-linux, on every Debian; it replaces itself by the program, so the process id is the program's.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", program]);
    prepare(&mut command);
    let (answer, child) = channel();
    starter.lock().unwrap().send((command, answer)).unwrap();
    child.recv().unwrap().unwrap_or_else(|error| panic!("cannot start {program}: {error}"))
}

/// Sends a signal by name (`STOP`, `CONT`, `INT`, `TERM`) to a child by its process id.
pub(super) fn signal(child: &Child, name: &str) {
    let status =
        Command::new("sh").args(["-c", "kill -s \"$0\" \"$1\"", name, &child.id().to_string()]).status();
    assert!(status.expect("sh runs").success(), "cannot send SIG{name} to process {}", child.id());
}

/// SIGKILL, and wait until it is gone. Harmless when it has ended already.
pub(super) fn kill(child: &mut Child) {
    let _ = child.kill(); // fails only when it has ended
    let _ = child.wait();
}
