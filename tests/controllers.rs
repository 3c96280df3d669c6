//! Several controllers of one fleet: one leads, and another one takes over when it dies, hangs or goes.

mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Finished, MongoServer, Process, RedisServer, Version, holds_for, wait_until};

const SOON: Duration = Duration::from_secs(60);

/// A controller process and its API.
struct Controller {
    process: Process,
    api: String,
}

impl Controller {
    fn start(backends: &[&str]) -> Self {
        let fixed = ["--log", "info", "controller", "--listen", "127.0.0.1:0"];
        let mut process = Process::skald(&[&fixed, backends].concat());
        let api = process.ready_value(SOON, "api");
        Controller { process, api }
    }

    fn leads(&self) -> bool {
        // One that is not well says so with another status, and all the rest beside it.
        let asked = ureq::get(format!("{}/api/system/health", self.api)).config();
        let asked = asked.http_status_as_error(false).timeout_global(Some(Duration::from_secs(2))).build();
        let Ok(mut answer) = asked.call() else { return false };
        let health: Value = serde_json::from_str(&answer.body_mut().read_to_string().unwrap()).unwrap();
        health["leads"] == true
    }

    fn task(&self, arguments: &[&str]) -> Finished {
        Process::run(SOON, &[&["task", "--api", &self.api], arguments].concat())
    }

    /// Has a task made, run and finished.
    fn runs(&self, id: &str) {
        let made = self.task(&["create", "Command", "--id", id, "--attachments", r#"{"argv": ["true"]}"#]);
        assert_eq!(made.code, Some(0), "{}", made.stderr);
        wait_until(SOON, &format!("{id} to be finished"), || {
            let shown = self.task(&["show", id, "--json"]);
            serde_json::from_str::<Value>(&shown.stdout)
                .is_ok_and(|task| task["lifecycleStatus"] == "Finished")
        });
    }
}

/// Exactly one of them leads, and says how long that took.
fn one_leads(what: &str, controllers: &[&Controller]) -> usize {
    let began = Instant::now();
    let leading = || controllers.iter().filter(|controller| controller.leads()).count();
    wait_until(SOON, what, || leading() == 1);
    println!("{what}: after {:?}", began.elapsed());
    controllers.iter().position(|controller| controller.leads()).expect("it leads")
}

fn one_leads_and_another_takes_over(backends: &[&str], folder: &Path) {
    let mut first = Controller::start(backends);
    one_leads("the first one leads", &[&first]);
    let second = Controller::start(backends);
    let node = ["--log", "warn", "node", "--id", "n1"];
    let mut node = Process::skald(&[&node[..], backends].concat());
    node.ready(SOON);
    first.runs("a");
    second.runs("b"); // the API is on all
    assert!(first.leads() && !second.leads(), "whoever leads stays");

    // A program that leaves a line for each tick.
    let ticks = folder.join("ticks");
    let line = format!("date +%s%N >> {}", ticks.display());
    let argv = serde_json::json!({ "argv": ["sh", "-c", line] }).to_string();
    let cron = ["create", "Command", "--id", "ticks", "--cron", "* * * * * *", "--attachments", &argv];
    let (made, began) = (second.task(&cron), Instant::now());
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let fired = || std::fs::read_to_string(&ticks).unwrap_or_default().lines().count();
    wait_until(SOON, "a tick", || fired() >= 2);

    // It dies.
    first.process.kill_hard();
    one_leads("the second one leads after the death of the first", &[&second]);
    second.runs("c");
    let before = fired();
    wait_until(SOON, "ticks go on", || fired() >= before + 2);

    // It hangs, and comes back: by then it does nothing that it had decided on before.
    first = Controller::start(backends);
    second.process.freeze();
    one_leads("the first one leads while the second hangs", &[&first]);
    first.runs("d");
    second.process.thaw();
    wait_until(SOON, "the one that hung leads no more", || !second.leads());
    holds_for(Duration::from_secs(4), "it stays so", || first.leads() && !second.leads());
    second.runs("e");

    // It goes, and hands over.
    first.process.terminate();
    one_leads("the second one leads after the first has gone", &[&second]);
    second.runs("f");
    assert_eq!(first.process.wait(SOON).code, Some(0));
    let (fired, passed) = (fired(), began.elapsed().as_secs() as usize);
    assert!(fired <= passed + 1, "{fired} runs for {passed} ticks");
    second.process.terminate();
    assert_eq!(second.process.wait(SOON).code, Some(0));
}

#[test]
fn controllers_that_share_a_folder_have_one_leader() {
    let (redis, folder) = (RedisServer::start(Version::V8, &[]), tempfile::tempdir().unwrap());
    let (data, url) = (folder.path().join("data"), redis.url());
    let backends = ["--data", data.to_str().unwrap(), "--redis", &url];
    one_leads_and_another_takes_over(&backends, folder.path());
}

#[test]
fn controllers_that_share_a_mongodb_have_one_leader() {
    let (redis, folder) = (RedisServer::start(Version::V8, &[]), tempfile::tempdir().unwrap());
    let (mongo, url) = (MongoServer::start(), redis.url());
    let storage = mongo.url();
    one_leads_and_another_takes_over(&["--mongo", &storage, "--redis", &url], folder.path());
}
