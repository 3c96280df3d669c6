//! The `Command` worker class: programs as tasks.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use skalds::actors::worker::command::{CLASS, Command};
use skalds::core::submission::NewTask;
use skalds::core::task::LifecycleStatus::*;

use crate::house::{House, eventually};

fn program(id: &str, argv: Value) -> NewTask {
    NewTask { max_attempts: Some(1), ..NewTask::new(CLASS).id(id).attach("argv", argv) }
}

fn shell(id: &str, script: &str) -> NewTask {
    program(id, json!(["/bin/sh", "-c", script]))
}

async fn house() -> House {
    let house = House::new();
    house.run(house.skald("a").register::<Command>(CLASS)).await;
    house
}

#[tokio::test]
async fn a_program_gets_its_parameters_and_its_exit_code_is_the_outcome() {
    let house = house().await;
    let folder = tempfile::tempdir().unwrap();
    let script = "pwd > out; echo \"$GREETING $SKALDS_TASK_ID $SKALDS_ATTEMPT\" >> out; cat >> out; echo said; echo loud >&2";
    let task = shell("good", script)
        .attach("env", json!({"GREETING": "hello"}))
        .attach("cwd", folder.path().to_str().unwrap())
        .attach("frames", 30);
    house.submit(task).await;
    assert_eq!(house.becomes("good", Finished).await.skalds.result, Some(json!({"exitCode": 0})));
    let out = std::fs::read_to_string(folder.path().join("out")).unwrap();
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], folder.path().canonicalize().unwrap().to_str().unwrap());
    assert_eq!(lines[1], "hello good 1");
    assert_eq!(serde_json::from_str::<Value>(lines[2]).unwrap()["frames"], 30);

    for (task, says) in [
        (shell("code", "echo first >&2; echo why >&2; exit 3"), "exit code 3: first\nwhy"),
        (shell("signal", "kill -9 $$"), "ended by signal 9"),
        (
            program("missing", json!(["/no/such/program"])),
            "program \"/no/such/program\" could not be started: ",
        ),
        (program("empty", json!([])), "attachment `argv` is empty"),
        (shell("long", "head -c 3000000 /dev/zero | tr '\\0' x >&2; exit 1"), "exit code 1: xxx"),
    ] {
        let id = task.id.clone().unwrap();
        house.submit(task).await;
        let error = house.becomes(&id, Failed).await.skalds.last_error.unwrap();
        assert!(error.starts_with(says), "{id}: {error}");
        assert!(error.len() < 4_096);
    }
}

#[tokio::test]
async fn a_cancel_ends_the_program_and_all_that_it_started() {
    let house = house().await;
    let folder = tempfile::tempdir().unwrap();
    // One that ends on SIGTERM, and one whose shell and child do not.
    for (id, script) in [
        ("polite", "echo $$ > pids; exec sleep 1000"),
        (
            "rude",
            "trap '' TERM; (trap '' TERM; sleep 1000) & echo $! > pids; echo $$ >> pids; wait; sleep 1000",
        ),
    ] {
        let pids = folder.path().join("pids");
        let _ = std::fs::remove_file(&pids);
        house.submit(shell(id, script).attach("cwd", folder.path().to_str().unwrap())).await;
        eventually("the program runs", || async {
            std::fs::read_to_string(&pids)
                .is_ok_and(|text| text.lines().count() == if id == "rude" { 2 } else { 1 })
        })
        .await;
        let pids: Vec<u32> =
            std::fs::read_to_string(&pids).unwrap().lines().map(|line| line.parse().unwrap()).collect();
        assert!(pids.iter().all(|pid| lives(*pid)));
        let start = Instant::now();
        house.controller.cancel(id).await.unwrap();
        house.becomes(id, Cancelled).await;
        if id == "polite" {
            assert!(start.elapsed() < Duration::from_millis(350), "{:?}", start.elapsed());
        }
        eventually("its processes are gone", || async { !pids.iter().any(|pid| lives(*pid)) }).await;
    }
}

#[tokio::test]
async fn a_pause_stops_the_program() {
    let house = house().await;
    let folder = tempfile::tempdir().unwrap();
    let ticks = || std::fs::metadata(folder.path().join("ticks")).map_or(0, |file| file.len());
    let script = "while true; do printf x >> ticks; sleep 0.01; done";
    house.submit(shell("t", script).attach("cwd", folder.path().to_str().unwrap())).await;
    eventually("it ticks", || async { ticks() > 3 }).await;
    house.controller.pause("t").await.unwrap();
    house.becomes("t", Paused).await;
    let before = ticks();
    tokio::time::sleep(Duration::from_millis(150)).await; // nothing may happen meanwhile
    assert!(ticks() <= before + 1);
    house.controller.resume("t").await.unwrap();
    house.becomes("t", Running).await;
    eventually("it ticks again", || async { ticks() > before + 3 }).await;
    house.controller.cancel("t").await.unwrap();
    house.becomes("t", Cancelled).await;
}

/// Whether a process lives (a zombie does not).
fn lives(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").trim_start().starts_with('Z'))
}
