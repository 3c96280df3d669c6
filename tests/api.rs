//! The REST API over a real controller and a Skald with embedded backends.

mod support;

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use skalds::actors::ActorSystem;
use skalds::actors::controller::SystemController;
use skalds::actors::skald::Skald;
use skalds::actors::worker::{Outcome, TaskWorker, WorkerContext, WorkerError};
use skalds::backend::Backends;
use skalds::web::{ApiServer, MAX_BODY, serve};
use support::{wait_for, wait_until};

const SOON: Duration = Duration::from_secs(10);

/// Returns its word.
#[derive(Deserialize)]
struct Echo {
    word: String,
}

#[async_trait::async_trait]
impl TaskWorker for Echo {
    async fn run(&self, _: &WorkerContext) -> Result<Outcome, WorkerError> {
        Outcome::with(&self.word)
    }
}

/// Goes on until it is stopped, and says what its attachments are.
#[derive(Deserialize)]
struct Patient {}

#[async_trait::async_trait]
impl TaskWorker for Patient {
    async fn run(&self, ctx: &WorkerContext) -> Result<Outcome, WorkerError> {
        let mut updates = ctx.updates();
        ctx.progress(0.5, "waiting");
        while let Some(attachments) = updates.next().await {
            ctx.progress(0.6, attachments["word"].as_str().unwrap_or_default());
        }
        Ok(Outcome::Stopped)
    }
}

/// A controller, a Skald and the API on a free port.
struct House {
    runtime: tokio::runtime::Runtime,
    system: ActorSystem,
    server: Option<ApiServer>,
    base: String,
    client: ureq::Agent,
}

impl House {
    fn new() -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let _inside = runtime.enter();
        let system = ActorSystem::start().unwrap();
        let backends = Backends::in_memory().unwrap();
        let controller = SystemController::builder().backends(backends.clone()).start(&system).unwrap();
        let skald = Skald::builder()
            .id("a")
            .backends(backends)
            .register::<Echo>("Echo")
            .register::<Patient>("Patient")
            .start(&system)
            .unwrap();
        let server = serve("127.0.0.1:0", system.clone(), controller).unwrap();
        let base = format!("http://{}", server.address());
        let client = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(20)))
            .build();
        drop(_inside);
        runtime.block_on(skald.ready());
        House { runtime, system, server: Some(server), base, client: client.into() }
    }

    fn get(&self, path: &str) -> (u16, Value) {
        answer(self.client.get(format!("{}{path}", self.base)).call())
    }

    fn post(&self, path: &str, body: Value) -> (u16, Value) {
        answer(self.client.post(format!("{}{path}", self.base)).send_json(body))
    }

    fn put(&self, path: &str, body: Value) -> (u16, Value) {
        answer(self.client.put(format!("{}{path}", self.base)).send_json(body))
    }

    #[track_caller]
    fn wait_for_status(&self, id: &str, status: &str) -> Value {
        wait_for(SOON, &format!("task {id} to be {status}"), || {
            let (_, task) = self.get(&format!("/api/tasks/{id}"));
            (task["lifecycleStatus"] == status).then_some(task)
        })
    }
}

impl Drop for House {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            self.runtime.block_on(server.stop());
        }
        self.runtime.block_on(self.system.shutdown(SOON));
    }
}

fn answer(answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> (u16, Value) {
    let mut answer = answer.unwrap();
    let text = answer.body_mut().read_to_string().unwrap();
    (answer.status().as_u16(), serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

#[test]
fn a_task_is_created_run_and_shown() {
    let house = House::new();
    let (code, created) =
        house.post("/api/tasks", json!({"className": "Echo", "id": "t 1/ü", "attachments": {"word": "hi"}}));
    assert_eq!((code, &created["lifecycleStatus"]), (201, &json!("Created")), "{created}");
    let task = house.wait_for_status("t%201%2F%C3%BC", "Finished");
    assert_eq!(task["skalds"]["result"], "hi");
    for field in
        ["mode", "priority", "executor", "heartbeat", "error", "exception", "attachments", "createDateTime"]
    {
        assert!(task.get(field).is_some(), "{field} is missing in {task}");
    }
    let (code, again) = house.post("/api/tasks", json!({"className": "Echo", "id": "t 1/ü"}));
    assert_eq!(code, 409, "{again}");
    let (_, classes) = house.get("/api/tasks/classnames");
    assert_eq!(classes, json!(["Echo"]));
}

#[test]
fn a_running_task_gets_its_new_attachments_and_is_cancelled() {
    let house = House::new();
    house.post("/api/tasks", json!({"className": "Patient", "id": "p", "attachments": {}}));
    house.wait_for_status("p", "Running");
    let (code, done) = house.put("/api/tasks/p/attachments", json!({"attachments": {"word": "new"}}));
    let expected = json!({"success": true, "message": "Task attachments updated successfully",
        "data": {"taskId": "p", "attachments": {"word": "new"}}});
    assert_eq!((code, done), (200, expected));
    wait_until(SOON, "the worker to see them", || {
        house.get("/api/tasks/p").1["skalds"]["progress"]["text"] == "new"
    });
    let (code, done) = house.put("/api/tasks/p/status", json!({"lifecycleStatus": "Cancelled"}));
    assert_eq!((code, &done["message"]), (200, &json!("Task status updated to Cancelled")));
    assert_eq!((&done["data"]["taskId"], &done["data"]["status"]), (&json!("p"), &json!("Cancelled")));
    house.wait_for_status("p", "Cancelled");
}

#[test]
fn pages_and_filters() {
    let house = House::new();
    for number in 0..5 {
        let body = json!({"className": if number < 3 { "VideoWorker" } else { "AudioWorker" },
            "id": format!("job-{number}"), "priority": number});
        assert_eq!(house.post("/api/tasks/", body).0, 201);
    }
    let (_, page) = house.get("/api/tasks?page=2&pageSize=2");
    assert_eq!((&page["total"], &page["page"], &page["pageSize"]), (&json!(5), &json!(2), &json!(2)));
    assert_eq!(page["items"].as_array().unwrap().len(), 2);
    for (query, total) in [
        ("className=video", 3),
        ("className=WORKER", 5),
        ("className=none", 0),
        ("lifecycleStatus=creat", 5),
        ("lifecycleStatus=Finished", 0),
        ("id=job-4", 1),
        ("executor=nobody", 0),
        ("page=18446744073709551615&pageSize=100", 5),
    ] {
        let (code, page) = house.get(&format!("/api/tasks/?{query}"));
        assert_eq!((code, &page["total"]), (200, &json!(total)), "{query}");
    }
    let (_, cancelled) = house.put("/api/tasks/job-0/status", json!({"lifecycleStatus": "Cancelled"}));
    assert_eq!(cancelled["data"]["lifecycleStatus"], "Cancelled");
    let (_, paused) = house.put("/api/tasks/job-1/status", json!({"lifecycleStatus": "Paused"}));
    assert_eq!(paused["data"]["lifecycleStatus"], "Paused");
    let (_, resumed) = house.put("/api/tasks/job-1/status", json!({"lifecycleStatus": "Created"}));
    assert_eq!(resumed["data"]["lifecycleStatus"], "Created");
}

#[test]
fn what_is_wrong_is_said_in_a_shape_that_clients_know() {
    let house = House::new();
    house.post("/api/tasks", json!({"className": "Nobody", "id": "t"}));
    let too_long = "x".repeat(MAX_BODY);
    for (found, code, said) in [
        (house.get("/api/tasks/nothing"), 404, "there is no task \"nothing\""),
        (house.get("/api/nothing"), 404, "there is nothing at GET /api/nothing"),
        (house.get("/api/tasks?page=0"), 422, "expected at least 1"),
        (house.get("/api/tasks?pageSize=101"), 422, "expected 1 to 100"),
        (house.get("/api/tasks?page=x"), 422, "invalid digit"),
        (house.post("/api/tasks", json!({"className": "C", "priorty": 1})), 422, "unknown field `priorty`"),
        (house.post("/api/tasks", json!({"className": "C", "priority": 11})), 422, "priority is 11"),
        (house.post("/api/tasks", json!({"className": "C", "name": too_long})), 413, "longer than"),
        (house.put("/api/tasks/t/status", json!({"lifecycleStatus": "Finished"})), 422, "expected Created"),
        (house.put("/api/tasks/none/status", json!({"lifecycleStatus": "Created"})), 404, "there is no task"),
        (house.put("/api/tasks/t/attachments", json!({"attachments": 5})), 422, "invalid type"),
    ] {
        let (status, body) = found;
        assert_eq!(status, code, "{body}");
        assert_eq!(body["status_code"], code, "{body}");
        assert!(body["message"].as_str().unwrap().contains(said), "{body} should say {said:?}");
        assert!(!body["error"].as_str().unwrap().is_empty() && !body["detail"].is_null(), "{body}");
    }
    let (code, _) = house.put("/api/tasks/t/status", json!({"lifecycleStatus": "Cancelled"}));
    assert_eq!(code, 200);
    let (code, body) = house.put("/api/tasks/t/status", json!({"lifecycleStatus": "Paused"}));
    assert_eq!(code, 409, "{body}");
}

#[test]
fn a_web_page_that_lets_its_name_mean_this_machine_is_refused() {
    let house = House::new();
    let call =
        house.client.get(format!("{}/api/tasks", house.base)).header("Host", "evil.example:8000").call();
    let (code, body) = answer(call);
    assert_eq!(code, 403, "{body}");
    assert!(body["message"].as_str().unwrap().contains("evil.example"), "{body}");
    assert_eq!(house.get("/api/tasks").0, 200);
}

#[test]
fn health_and_metrics() {
    let house = House::new();
    wait_until(SOON, "everything to be healthy", || house.get("/api/system/health").0 == 200);
    let (_, health) = house.get("/api/system/health");
    assert_eq!((&health["status"], &health["services"]["storage"]), (&json!("healthy"), &json!("healthy")));
    let (code, metrics) = house.get("/metrics");
    let metrics = metrics.as_str().unwrap();
    assert!(code == 200 && metrics.ends_with("# EOF\n"), "{metrics}");
}

#[test]
fn scale_says_what_waits_and_how_much_room_there_is() {
    let house = House::new();
    for number in 0..3 {
        let task = json!({"id": format!("waits-{number}"), "className": "Nobody"});
        assert_eq!(house.post("/api/tasks", task).0, 201);
    }
    // Not due for long: it does not wait.
    let later = json!({"id": "later", "className": "Nobody", "notBefore": 4_000_000_000_000i64});
    assert_eq!(house.post("/api/tasks", later).0, 201);
    let patient = json!({"id": "runs", "className": "Patient"});
    assert_eq!(house.post("/api/tasks", patient).0, 201);
    house.wait_for_status("runs", "Running");
    let scale = || {
        let (status, scale) = house.get("/scale");
        assert_eq!(status, 200, "{scale}");
        scale
    };
    wait_until(SOON, "the oldest to be a second old", || scale()["oldestAgeSeconds"].as_u64() >= Some(1));
    let now = scale();
    let nobody = &now["classes"]["Nobody"];
    assert_eq!((&now["backlog"], &nobody["backlog"]), (&3.into(), &3.into()), "{now:#}");
    assert_eq!((&nobody["skalds"], &nobody["freeSlots"], &nobody["held"]), (&0.into(), &0.into(), &0.into()));
    let patient = &now["classes"]["Patient"];
    assert_eq!(
        (&patient["backlog"], &patient["held"], &patient["skalds"]),
        (&0.into(), &1.into(), &1.into())
    );
    assert!(patient["freeSlots"].as_u64() > Some(0), "{now:#}");
    assert_eq!(now["classes"]["Echo"]["skalds"], 1, "a class that no task names yet: {now:#}");
}
