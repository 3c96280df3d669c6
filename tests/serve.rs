//! The subcommands that serve, as processes: `dev`, `run`, `node`, `controller`, with `task` as their client.

mod support;

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use support::{Finished, MongoServer, Process, RedisServer, Version, wait_until};

const SOON: Duration = Duration::from_secs(30);

const WORKERS: &str = "\
TaskWorkers:
  first:
    className: Command
    isPersistent: false
    attachments: { argv: [\"sh\", \"-c\", \"echo out; cat\"], colour: red }
  second:
    className: Command
    isPersistent: false
    attachments: { argv: [\"true\"] }
";

/// A client of one controller.
struct Client(String);

impl Client {
    fn task(&self, arguments: &[&str]) -> Finished {
        Process::run(SOON, &[&["task", "--api", &self.0], arguments].concat())
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let ended = self.task(&[arguments, &["--json"]].concat());
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        serde_json::from_str(&ended.stdout).unwrap()
    }

    #[track_caller]
    fn wait_for_status(&self, id: &str, status: &str) {
        wait_until(SOON, &format!("{id} to be {status}"), || {
            self.json(&["show", id])["lifecycleStatus"] == status
        });
    }
}

fn dev(folder: &Path, more: &[&str]) -> (Process, Client) {
    let data = folder.join("data");
    let fixed = ["dev", "--listen", "127.0.0.1:0", "--data", data.to_str().unwrap()];
    let mut process = Process::skald(&[&fixed, more].concat());
    let api = process.ready_value(SOON, "api");
    (process, Client(api))
}

fn workers_file(folder: &Path, text: &str) -> String {
    let file = folder.join("workers.yml");
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn dev_runs_the_tasks_of_a_file_and_keeps_them_when_it_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let file = workers_file(folder.path(), WORKERS);
    let (mut process, client) = dev(folder.path(), &["--workers", &file]);
    for id in ["first", "second"] {
        client.wait_for_status(id, "Finished");
    }
    wait_until(SOON, "the program's output to be logged", || process.stderr().contains("\"colour\":\"red\""));
    let created = client.task(&["create", "Nobody", "--id", "waits", "--priority", "7", "-a", "n=30"]);
    assert_eq!((created.code, created.stdout.as_str()), (Some(0), "waits\n"), "{}", created.stderr);
    process.kill_hard();

    let (process, client) = dev(folder.path(), &["--workers", &file]);
    let page = client.json(&["list"]);
    assert_eq!(page["total"], 3);
    let task = client.json(&["show", "waits"]);
    assert_eq!((&task["priority"], &task["attachments"]["n"]), (&7.into(), &30.into()));
    let shown = client.task(&["show", "first"]).stdout;
    assert!(shown.contains("status        Finished") && shown.contains("attempt       1"), "{shown}");

    let updated = client.task(&["update", "waits", "--attachments", r#"{"n": 31}"#]);
    assert_eq!(updated.code, Some(0), "{}", updated.stderr);
    assert_eq!(client.json(&["show", "waits"])["attachments"]["n"], 31);
    for (arguments, then) in [
        // Single ones are set, the others stay; an object replaces all of them.
        (&["-a", "m=[1]", "-a", "text=a=b"][..], serde_json::json!({"n": 31, "m": [1], "text": "a=b"})),
        (&["--attach", "n=32"], serde_json::json!({"n": 32, "m": [1], "text": "a=b"})),
        (&["--attachments", r#"{"k": 1}"#], serde_json::json!({"k": 1})),
        (&["--attachments", r#"{"k": 1, "j": 2}"#, "-a", "j=3"], serde_json::json!({"k": 1, "j": 3})),
    ] {
        let updated = client.task(&[&["update", "waits"], arguments].concat());
        assert_eq!((updated.code, updated.stdout.as_str()), (Some(0), "waits\n"), "{}", updated.stderr);
        assert_eq!(client.json(&["show", "waits"])["attachments"], then);
    }
    let missing = client.task(&["update", "nothing", "-a", "n=1"]);
    assert_eq!(missing.code, Some(1));
    assert!(missing.stderr.contains("there is no task \"nothing\""), "{}", missing.stderr);
    let cancelled = client.task(&["cancel", "waits", "nothing"]);
    assert_eq!((cancelled.code, cancelled.stdout.as_str()), (Some(1), "waits\n"));
    assert!(cancelled.stderr.contains("there is no task \"nothing\""), "{}", cancelled.stderr);
    assert_eq!(client.json(&["show", "waits"])["lifecycleStatus"], "Cancelled");

    let second = Process::run(SOON, &["dev", "--data", folder.path().join("data").to_str().unwrap()]);
    assert_eq!(second.code, Some(1));
    assert!(second.stderr.contains("another skald uses it"), "{}", second.stderr);
    process.terminate();
    assert_eq!(process.wait(SOON).code, Some(0));
}

#[test]
fn a_waiting_client_ends_as_the_task_does() {
    let folder = tempfile::tempdir().unwrap();
    let (_process, client) = dev(folder.path(), &[]);
    let create = |id: &str, script: &str| {
        let argv = format!("argv={}", serde_json::json!(["sh", "-c", script]));
        client.task(&["create", "Command", "--id", id, "-a", &argv, "--max-attempts", "1", "--wait"])
    };
    assert_eq!(create("good", "exit 0").code, Some(0));
    let bad = create("bad", "echo trouble >&2; exit 3");
    assert_eq!(bad.code, Some(1));
    assert!(bad.stderr.contains("trouble"), "{}", bad.stderr);
    let argv = r#"argv=["sleep","600"]"#;
    let arguments = ["task", "--api", &client.0, "create", "Command", "--id", "long", "-a", argv, "--wait"];
    let waiting = Process::skald(&arguments);
    client.wait_for_status_once_there("long", "Running");
    assert_eq!(client.task(&["cancel", "long"]).code, Some(0));
    assert_eq!(waiting.wait(SOON).code, Some(130));
}

impl Client {
    /// As `wait_for_status`, for a task that somebody else is just creating.
    #[track_caller]
    fn wait_for_status_once_there(&self, id: &str, status: &str) {
        wait_until(SOON, &format!("{id} to be there"), || self.task(&["show", id]).code == Some(0));
        self.wait_for_status(id, status);
    }
}

#[test]
fn run_ends_with_its_tasks_and_with_the_worst_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let good = Process::run(SOON, &["run", &workers_file(folder.path(), WORKERS), "--until-done"]);
    assert_eq!(good.code, Some(0), "{}", good.stderr);
    assert_eq!(good.stdout.matches("Finished").count(), 2, "{}", good.stdout);

    let bad = WORKERS.replace("\"true\"", "\"false\"");
    let bad =
        Process::run(SOON, &["run", &workers_file(folder.path(), &bad), "--until-done", "--retries", "0"]);
    assert_eq!(bad.code, Some(1), "{}{}", bad.stdout, bad.stderr);
    assert!(bad.stdout.contains("Failed"), "{}", bad.stdout);

    let nonsense = Process::run(SOON, &["run", &workers_file(folder.path(), "TaskWorkers: 5")]);
    assert_eq!(nonsense.code, Some(2), "{}", nonsense.stderr);
}

#[test]
fn a_file_with_a_class_that_nobody_has_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = workers_file(folder.path(), &WORKERS.replacen("className: Command", "className: Nope", 1));
    let data = folder.path().join("data");
    for arguments in [
        &["run", &file][..],
        &["run", &file, "--until-done"],
        &["run", &file, "--single-process"],
        &["dev", "--listen", "127.0.0.1:0", "--data", data.to_str().unwrap(), "--workers", &file],
    ] {
        let ended = Process::run(SOON, arguments);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{arguments:?}: {}", ended.stderr);
        for part in [&format!("{file}: first: ")[..], "\"Nope\"", "Command"] {
            assert!(ended.stderr.contains(part), "{arguments:?}: {part}: {}", ended.stderr);
        }
    }
    // The file is refused as a whole: no task of it was created.
    let (_process, client) = dev(folder.path(), &[]);
    assert_eq!(client.json(&["list"])["total"], 0);
}

#[test]
fn a_dispatcher_says_once_that_nobody_runs_a_class() {
    let arguments = ["dev", "--in-memory", "--listen", "127.0.0.1:0"];
    let mut process = Process::skald_with(&arguments, &[("DISPATCHER_INTERVAL", "1")]);
    let client = Client(process.ready_value(SOON, "api"));
    let create = |class: &str, id: &str| {
        let created = client.task(&["create", class, "--id", id]);
        assert_eq!(created.code, Some(0), "{}", created.stderr);
    };
    let said = |class: &str| {
        process.stderr().matches(&format!("no Skald that is online runs class {class};")).count()
    };
    create("Nope", "one");
    wait_until(SOON, "the warning", || said("Nope") == 1);
    create("Nope", "two");
    create("Other", "three");
    wait_until(SOON, "the other warning", || said("Other") == 1);
    assert_eq!((said("Nope"), said("Command")), (1, 0));
}

#[test]
fn run_hands_back_what_it_runs_when_it_is_told_to_stop() {
    let folder = tempfile::tempdir().unwrap();
    let text = WORKERS.replace("\"true\"", "\"sleep\", \"600\"");
    let mut process = Process::skald(&["run", &workers_file(folder.path(), &text)]);
    process.ready(SOON);
    process.interrupt();
    assert_eq!(process.wait(SOON).code, Some(0));
}

#[test]
fn a_controller_and_its_nodes_share_a_folder_and_a_redis() {
    let redis = RedisServer::start(Version::V8, &["--requirepass", "hunter2"]);
    let folder = tempfile::tempdir().unwrap();
    let password = folder.path().join("password");
    std::fs::write(&password, "hunter2\n").unwrap();
    let (data, address) = (folder.path().join("data"), redis.address());
    let shared = [
        "--data",
        data.to_str().unwrap(),
        "--redis",
        &address,
        "--password-file",
        password.to_str().unwrap(),
    ];
    let mut controller = Process::skald(&[&["controller", "--listen", "127.0.0.1:0"], &shared[..]].concat());
    let client = Client(controller.ready_value(SOON, "api"));
    let mut nodes: Vec<Process> = ["one", "two"]
        .map(|id| Process::skald(&[&["node", "--id", id], &shared[..]].concat()))
        .into_iter()
        .collect();
    nodes.iter_mut().for_each(|node| {
        node.ready(SOON);
    });
    let ids: Vec<String> = (0..6).map(|number| format!("task-{number}")).collect();
    for id in &ids {
        let created = client.task(&["create", "Command", "--id", id, "-a", r#"argv=["sleep","0.3"]"#]);
        assert_eq!(created.code, Some(0), "{}", created.stderr);
    }
    ids.iter().for_each(|id| client.wait_for_status(id, "Finished"));
    let said = format!("{}{}", controller.stderr(), nodes[0].stderr());
    assert!(!said.contains("hunter2"), "{said}");
    let alone = Process::run(SOON, &["node", "--data", data.to_str().unwrap()]);
    assert_eq!(alone.code, Some(2), "{}", alone.stderr);
}

#[test]
fn a_controller_and_its_nodes_share_a_mongodb_and_a_redis() {
    let redis = RedisServer::start(Version::V8, &[]);
    let mut mongo = MongoServer::start();
    let (url, address) = (mongo.url(), redis.address());
    let shared = ["--mongo", &url, "--database", "fleet", "--redis", &address];
    let listen = ["controller", "--listen", "127.0.0.1:0"];
    let mut controller = Process::skald(&[&listen, &shared[..]].concat());
    let client = Client(controller.ready_value(SOON, "api"));
    // The variables of the Python package say the same.
    let variables = [("MONGO_HOST", &url[..]), ("DB_NAME", "fleet"), ("REDIS_URL", &address)];
    let mut nodes = [
        Process::skald(&[&["node", "--id", "one"], &shared[..]].concat()),
        Process::skald_with(&["node", "--id", "two"], &variables),
    ];
    nodes.iter_mut().for_each(|node| {
        node.ready(SOON);
    });
    let create = |id: &str, seconds: &str| {
        let argv = format!(r#"argv=["sleep","{seconds}"]"#);
        let created = client.task(&["create", "Command", "--id", id, "-a", &argv]);
        assert_eq!(created.code, Some(0), "{}", created.stderr);
    };
    let ids: Vec<String> = (0..4).map(|number| format!("task-{number}")).collect();
    ids.iter().for_each(|id| create(id, "0.3"));
    create("long", "600");
    client.wait_for_status("long", "Running");
    ids.iter().for_each(|id| client.wait_for_status(id, "Finished"));
    let updated = client.task(&["update", "long", "-a", "colour=red"]);
    assert_eq!(updated.code, Some(0), "{}", updated.stderr);
    assert_eq!(client.json(&["show", "long"])["attachments"]["colour"], "red");
    assert_eq!(client.json(&["show", "long"])["lifecycleStatus"], "Running");

    // While the server is away nothing is lost: what runs goes on, and is cancelled after it is back.
    mongo.kill_hard();
    let away = client.task(&["show", "long"]);
    assert_eq!(away.code, Some(1));
    assert!(away.stderr.contains("mongodb at 127.0.0.1"), "{}", away.stderr);
    mongo.restart();
    wait_until(SOON, "the tasks to be there again", || client.task(&["show", "long"]).code == Some(0));
    assert_eq!(client.json(&["show", "long"])["lifecycleStatus"], "Running");
    assert_eq!(client.task(&["cancel", "long"]).code, Some(0));
    client.wait_for_status("long", "Cancelled");
    create("after", "0.1");
    client.wait_for_status("after", "Finished");

    let looked = Process::run(SOON, &["doctor", "--mongo", &url, "--database", "fleet"]);
    assert!(
        looked.stdout.contains("(database fleet): version ") && looked.stdout.contains("6 tasks"),
        "{}",
        looked.stdout
    );
    for (arguments, why) in [
        (&["dev", "--mongo", &url][..], "--redis"),
        (&["dev", "--mongo", &url, "--in-memory"], "cannot be used"),
    ] {
        let refused = Process::run(SOON, arguments);
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        assert!(refused.stderr.contains(why), "{}", refused.stderr);
    }
    let nowhere = Process::run(SOON, &["node", "--redis", &address]);
    assert_eq!(nowhere.code, Some(2));
    assert!(nowhere.stderr.contains("--mongo"), "{}", nowhere.stderr);
    let wrong = mongo.url_of("root:hunter2");
    let wrong = Process::run(SOON, &["node", "--redis", &address, "--mongo", &wrong]);
    assert_eq!(wrong.code, Some(1));
    assert!(wrong.stderr.contains("check the user, the password"), "{}", wrong.stderr);
    let said = [&controller, &nodes[0], &nodes[1]].map(|process| process.stdout() + &process.stderr());
    let said = format!("{}{}{}", said.concat(), wrong.stderr, away.stderr);
    assert!(!said.contains("root:root") && !said.contains("hunter2"), "{said}");
}

#[test]
fn nothing_listens_where_others_reach_it_unless_it_is_told_to() {
    let refused = Process::run(SOON, &["dev", "--in-memory", "--listen", "0.0.0.0:0"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("--allow-remote"), "{}", refused.stderr);
}

/// Entries that are added, changed and removed take effect; a file with an error changes nothing and says where.
#[test]
fn a_workers_file_is_taken_on_while_its_skald_runs() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    // Each program leaves its process id, and what it was given, in a file of its own.
    let entry = |id: &str, script: &str, more: &str| {
        let out = at(id).display().to_string();
        let script = script.replace("OUT", &out);
        format!(
            "  {id}:\n    className: Command\n    isPersistent: false\n    \
             attachments: {{ argv: [\"sh\", \"-c\", \"{script}\"]{more} }}\n"
        )
    };
    let lasting = "echo $$ > OUT; exec sleep 1000";
    let file =
        |entries: &[String]| workers_file(folder.path(), &format!("TaskWorkers:\n{}", entries.concat()));
    let path = file(&[
        entry("stays", lasting, ""),
        entry("goes", lasting, ""),
        entry("again", "cat >> OUT", ", colour: red"),
    ]);
    let mut run = Process::skald(&["--log", "info", "run", &path]);
    run.ready(SOON);
    let said = |name: &str| std::fs::read_to_string(at(name)).unwrap_or_default();
    let alive = |pid: &str| Path::new("/proc").join(pid.trim()).exists();
    wait_until(SOON, "all three to have begun", || {
        !said("stays").is_empty() && !said("goes").is_empty() && said("again").contains("red")
    });
    let (stays, goes) = (said("stays"), said("goes"));

    std::fs::write(&path, "TaskWorkers:\n  stays:\n    className: Command\n    nonsense: 1\n").unwrap();
    wait_until(SOON, "the error to be told", || run.stderr().contains("is not taken on"));
    let told = run.stderr();
    assert!(told.contains("workers.yml") && told.contains("line 4") && told.contains("nonsense"), "{told}");
    assert!(alive(&stays) && alive(&goes));

    file(&[
        entry("stays", lasting, ""),
        entry("again", "cat >> OUT", ", colour: green"),
        entry("comes", lasting, ""),
    ]);
    wait_until(SOON, "the new one to have begun", || !said("comes").is_empty());
    wait_until(SOON, "the changed one to have run again", || said("again").contains("green"));
    wait_until(SOON, "the removed one to have ended", || !alive(&goes));
    assert!(alive(&stays), "what did not change goes on");
    assert_eq!(said("stays"), stays);

    // What was removed may come back.
    file(&[entry("stays", lasting, ""), entry("goes", lasting, "")]);
    wait_until(SOON, "the removed one to run again", || said("goes") != goes && !said("goes").is_empty());
    run.terminate();
    let ended = run.wait(SOON);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(!alive(&stays));
}
