//! The REST API of a controller, with the paths and fields of the Python package's.
//!
//! | path | |
//! | --- | --- |
//! | `POST /api/tasks` | creates a task (ours; the Python controller has none) |
//! | `GET /api/tasks?page&pageSize&lifecycleStatus&className&executor&id` | a page of tasks, newest first |
//! | `GET /api/tasks/classnames` | the worker classes that tasks name |
//! | `GET /api/tasks/{id}` | one task |
//! | `DELETE /api/tasks/{id}` | cancels it |
//! | `PUT /api/tasks/{id}/status` | `{"lifecycleStatus": "Cancelled"}` cancels, `"Created"` starts again or resumes; ours: `"Paused"`, `"Running"` |
//! | `PUT /api/tasks/{id}/attachments` | `{"attachments": {…}}` replaces them, in a running worker too |
//! | `GET /api/system/health` | 200 when every service answers, else 503 |
//! | `GET /scale` | how much waits, for how long, and how much room there is, by class (ours; for autoscalers) |
//! | `GET /metrics` | OpenMetrics |
//!
//! Embed it with [`configure`], or give it a port of its own with [`serve`]; [`serve_metrics`] serves `/metrics` alone.

mod body;
mod error;
mod scale;
mod server;
mod system;
mod tasks;

use actix_web::http::StatusCode;
use actix_web::web::{self, Data, JsonConfig, PathConfig, QueryConfig, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse, ResponseError};

pub use server::{ApiServer, serve, serve_metrics};

use self::error::ApiError;
use crate::actors::ActorSystem;
use crate::actors::controller::SystemController;
use crate::core::submission::MAX_ATTACHMENTS;

/// The longest body that is read, in bytes: the largest attachments, written with room between them.
pub const MAX_BODY: usize = 2 * MAX_ATTACHMENTS;

/// Adds the API to an actix-web application, under the paths above.
///
/// ```no_run
/// # use skalds::actors::{ActorSystem, controller::SystemController};
/// # fn app(system: ActorSystem, controller: SystemController) {
/// actix_web::App::new().configure(|config| skalds::web::configure(config, system, controller));
/// # }
/// ```
pub fn configure(config: &mut ServiceConfig, system: ActorSystem, controller: SystemController) {
    config
        .app_data(Data::new(system))
        .app_data(Data::new(controller))
        .app_data(JsonConfig::default().limit(MAX_BODY).error_handler(|error, _| {
            let status = error.status_code();
            match status {
                StatusCode::PAYLOAD_TOO_LARGE => {
                    ApiError::TooLarge(format!("the body is longer than {MAX_BODY} bytes")).into()
                }
                _ => ApiError::invalid(&["body"], error).into(),
            }
        }))
        .app_data(
            QueryConfig::default().error_handler(|error, _| ApiError::invalid(&["query"], error).into()),
        )
        .app_data(PathConfig::default().error_handler(|error, _| ApiError::invalid(&["path"], error).into()));
    tasks::routes(config);
    system::routes(config);
    scale::routes(config);
    config.service(web::scope("/api").default_service(web::to(no_such_path)));
}

async fn no_such_path(request: HttpRequest) -> Result<HttpResponse, ApiError> {
    Err(ApiError::NotFound(format!("there is nothing at {} {}", request.method(), request.path())))
}
