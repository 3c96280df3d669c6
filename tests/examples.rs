//! The examples do what they say. `cargo test` builds them unless it is told to run single tests: see `scripts/test`.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use support::{Process, wait_for};

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

/// Where an example says that it listens.
fn listens(example: &Process) -> String {
    wait_for(SOON, "the example to listen", || {
        let said = example.stdout();
        let line = said.lines().find_map(|line| line.strip_prefix("listening on "))?;
        Some(line.trim_start_matches("http://").to_owned())
    })
}

#[test]
fn inside_tokio_service_answers_lines_with_the_results_of_tasks_and_ends_by_its_own_signal() {
    let service = Process::example("inside_tokio_service", &["127.0.0.1:0"], &[]);
    let mut client = TcpStream::connect(listens(&service)).unwrap();
    client.write_all(b"100\nmany\n10000\n").unwrap();
    let lines = BufReader::new(client.try_clone().unwrap()).lines().take(3);
    let answers: Vec<String> = lines.map(Result::unwrap).collect();
    assert_eq!(
        answers,
        ["25 primes below 100", "no: invalid digit found in string", "1229 primes below 10000"]
    );
    service.terminate();
    let ended = service.wait(SOON);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    assert_eq!(ended.stdout.matches(" is Finished").count(), 2, "{}", ended.stdout);
    assert!(ended.stdout.contains("actors drained, 0 late"), "{}", ended.stdout);
}

#[test]
fn inside_actix_web_app_waits_for_a_task_and_survives_a_panic() {
    let app = Process::example("inside_actix_web_app", &["127.0.0.1:0"], &[]);
    let address = listens(&app);
    let ask = |request: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        write!(stream, "{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let greeted = ask("GET /greet/Ann");
    assert!(greeted.starts_with("HTTP/1.1 200") && greeted.contains(r#""exitCode":0"#), "{greeted}");
    assert!(ask("POST /visits/start").ends_with("1\n"));
    assert!(ask("POST /visits/panic").contains("nobody visits panic"));
    assert!(ask("POST /visits/start").ends_with("1\n"), "the actor was made anew");
    app.interrupt();
    let ended = app.wait(SOON);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
}
