//! An actix-web application with an actor system inside: one supervised actor of the application's own, and beside
//! its own paths the API of a controller.
//!
//! ```text
//! cargo run --example inside_actix_web_app [-- 127.0.0.1:8080]
//! curl -X POST http://127.0.0.1:8080/visits/start      the count of a page, one more each time
//! curl -X POST http://127.0.0.1:8080/visits/panic      a panic in the actor: this request fails with its text,
//!                                                      the actor is made again, the application goes on
//! curl http://127.0.0.1:8080/greet/Ann                 a task is made and waited for
//! curl http://127.0.0.1:8080/api/tasks                 the tasks of the controller; see `skalds::web` for more
//! curl http://127.0.0.1:8080/metrics                   what the system counts
//! ```
//! Ctrl-C stops the server first, then drains the actors.

use std::{collections::HashMap, time::Duration};

use actix::prelude::*;
use actix_web::{App, HttpResponse, HttpServer, Responder, get, post, web};
use serde_json::json;
use skalds::actors::controller::SystemController;
use skalds::actors::skald::Skald;
use skalds::actors::worker::command::{self, Command};
use skalds::actors::{ActorError, ActorRef, ActorSystem, Restart, Spec, Stage};
use skalds::backend::Backends;
use skalds::core::submission::NewTask;

/// Counts visits. A plain actix actor: nothing in it knows of the system around it.
#[derive(Default)]
struct Visits {
    pages: HashMap<String, u64>,
}

impl Actor for Visits {
    type Context = Context<Self>;
}

#[derive(Message)]
#[rtype(u64)]
struct Visit(String);

impl Handler<Visit> for Visits {
    type Result = u64;

    fn handle(&mut self, Visit(page): Visit, _: &mut Context<Self>) -> u64 {
        assert!(page != "panic", "nobody visits {page}");
        let count = self.pages.entry(page).or_default();
        *count += 1;
        *count
    }
}

#[post("/visits/{page}")]
async fn visit(page: web::Path<String>, visits: web::Data<ActorRef<Visits>>) -> impl Responder {
    match visits.ask(Visit(page.into_inner())).deadline(Duration::from_secs(1)).await {
        Ok(count) => HttpResponse::Ok().body(format!("{count}\n")),
        Err(error @ ActorError::Panicked { .. }) => {
            HttpResponse::InternalServerError().body(format!("{error}\n"))
        }
        Err(error) => HttpResponse::ServiceUnavailable().body(format!("{error}\n")),
    }
}

#[get("/greet/{name}")]
async fn greet(name: web::Path<String>, controller: web::Data<SystemController>) -> impl Responder {
    let task = NewTask::new(command::CLASS).attach("argv", json!(["echo", format!("hello {name}")]));
    let ended = async {
        let task = controller.submit(task).await?;
        controller.ended(&task.id).await
    };
    match tokio::time::timeout(Duration::from_secs(10), ended).await {
        Ok(Ok(task)) => HttpResponse::Ok().json(json!({ "id": task.id, "result": task.skalds.result })),
        Ok(Err(error)) => HttpResponse::ServiceUnavailable().body(format!("{error}\n")),
        Err(_) => HttpResponse::GatewayTimeout().body("it takes longer than ten seconds\n"),
    }
}

#[actix_web::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".into());
    let system = ActorSystem::builder().arbiters(2).start()?;
    let visits = system.spawn(
        Spec::new("visits", Visits::default)
            .mailbox(1_024)
            .restart(Restart::at_most(5, Duration::from_secs(10)))
            .stage(Stage::Store),
    )?;

    let backends = Backends::in_memory()?;
    let controller = SystemController::builder().backends(backends.clone()).start(&system)?;
    Skald::builder().backends(backends).register::<Command>(command::CLASS).start(&system)?;

    let (inside, actor) = (system.clone(), web::Data::new(visits));
    let server = HttpServer::new(move || {
        let (system, controller) = (inside.clone(), controller.clone());
        App::new()
            .app_data(actor.clone())
            .app_data(web::Data::new(controller.clone()))
            .service(visit)
            .service(greet)
            .configure(|config| skalds::web::configure(config, system, controller))
    })
    .bind(&address)?;
    for bound in server.addrs() {
        println!("listening on http://{bound}");
    }
    server.run().await?;

    let report = system.shutdown(Duration::from_secs(5)).await;
    println!("{} actors drained, {} late", report.drained, report.late_count);
    Ok(())
}
