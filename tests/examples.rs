//! The examples do what they say. `cargo test` builds them unless it is told to run single tests: see `scripts/test`.

mod support;

use std::time::Duration;

use support::Process;

const SOON: Duration = Duration::from_secs(60);

/// Runs an example to its end; its standard output.
fn run(name: &str, environment: &[(&str, &str)]) -> String {
    let ended = Process::example(name, &[], environment).wait(SOON);
    assert_eq!(ended.code, Some(0), "{name}: {}{}", ended.stdout, ended.stderr);
    ended.stdout
}

#[track_caller]
fn says(output: &str, lines: &[&str]) {
    for line in lines {
        assert!(output.lines().any(|said| said == *line), "{line:?} is not in:\n{output}");
    }
}

#[test]
fn embedded_updates_a_task_tries_one_again_and_cancels_one() {
    let lines = [
        "door     Finished, attempt 1",
        "garden   Finished, attempt 3",
        "attic    Cancelled, attempt 1",
        "door saw 10 frames",
    ];
    says(&run("embedded", &[]), &lines);
}

#[test]
fn worker_node_takes_its_id_from_the_environment_and_runs_both_classes() {
    let output = run("worker_node", &[("SKALD_ID", "north")]);
    assert!(output.starts_with("north is ready\n"), "{output}");
    for class in ["Pipeline", "Primes"] {
        let finished = output.lines().any(|line| line.starts_with(&format!("{class} Finished ")));
        assert!(finished, "{class}: {output}");
    }
}
