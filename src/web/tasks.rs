//! `/api/tasks`.

use actix_web::http::header;
use actix_web::web::{Data, Json, Path, Query, ServiceConfig};
use actix_web::{HttpResponse, web};
use futures_util::future::try_join_all;
use serde_json::{Value, json};

use super::body::{AttachmentsBody, Done, StatusBody, TaskBody, TaskFilter, TaskPageBody, Wish};
use super::error::ApiError;
use crate::actors::controller::SystemController;
use crate::core::submission::NewTask;
use crate::core::task::Task;

type Answer<T> = Result<Json<T>, ApiError>;

pub(super) fn routes(config: &mut ServiceConfig) {
    // With and without a slash at the end, as clients of the Python controller call it.
    for path in ["/api/tasks", "/api/tasks/"] {
        config.service(web::resource(path).get(list).post(create));
    }
    config
        .service(web::resource("/api/tasks/classnames").get(class_names))
        .service(web::resource("/api/tasks/{id}").get(get).delete(cancel))
        .service(web::resource("/api/tasks/{id}/status").put(set_status))
        .service(web::resource("/api/tasks/{id}/attachments").put(set_attachments));
}

/// The task, with what its worker shows.
async fn shown(controller: &SystemController, task: Task) -> Result<TaskBody, ApiError> {
    let heartbeat = controller.heartbeat(&task.id).await?;
    Ok(TaskBody::new(task, heartbeat))
}

async fn create(controller: Data<SystemController>, task: Json<NewTask>) -> Result<HttpResponse, ApiError> {
    let task = controller.submit(task.into_inner()).await?;
    Ok(HttpResponse::Created()
        .insert_header((header::LOCATION, format!("/api/tasks/{}", escaped(&task.id))))
        .json(TaskBody::new(task, Default::default())))
}

async fn list(controller: Data<SystemController>, filter: Query<TaskFilter>) -> Answer<TaskPageBody> {
    let (page, page_size) = filter.page()?;
    let classes = if filter.names_a_class() { controller.class_names().await? } else { Vec::new() };
    let Some(query) = filter.query(&classes)? else {
        return Ok(Json(TaskPageBody { items: Vec::new(), total: 0, page, page_size }));
    };
    let found = controller.list(&query).await?;
    let items = try_join_all(found.tasks.into_iter().map(|task| shown(&controller, task))).await?;
    Ok(Json(TaskPageBody { items, total: found.total, page, page_size }))
}

async fn class_names(controller: Data<SystemController>) -> Answer<Vec<String>> {
    Ok(Json(controller.class_names().await?))
}

async fn get(controller: Data<SystemController>, id: Path<String>) -> Answer<TaskBody> {
    let task = controller.get(&id).await?;
    Ok(Json(shown(&controller, task).await?))
}

async fn set_status(
    controller: Data<SystemController>,
    id: Path<String>,
    body: Json<StatusBody>,
) -> Answer<Done> {
    let now = controller.get(&id).await?.lifecycle_status;
    let task = match body.wish(now)? {
        Wish::Cancel => controller.cancel(&id).await?,
        Wish::Requeue => controller.requeue(&id).await?,
        Wish::Pause => controller.pause(&id).await?,
        Wish::Resume => controller.resume(&id).await?,
    };
    let wanted = &body.lifecycle_status;
    Ok(Json(Done::new(format!("Task status updated to {wanted}"), status_of(&task, wanted))))
}

async fn set_attachments(
    controller: Data<SystemController>,
    id: Path<String>,
    body: Json<AttachmentsBody>,
) -> Answer<Done> {
    let attachments = body.into_inner().attachments;
    let data = json!({ "taskId": id.as_str(), "attachments": Value::Object(attachments.clone()) });
    controller.update_attachments(&id, Some(attachments)).await?;
    Ok(Json(Done::new("Task attachments updated successfully", data)))
}

/// As in the Python controller, a task is cancelled, not removed.
async fn cancel(controller: Data<SystemController>, id: Path<String>) -> Answer<Done> {
    let task = controller.cancel(&id).await?;
    Ok(Json(Done::new("Task cancelled successfully", status_of(&task, "Cancelled"))))
}

/// What was asked for, as the Python controller answers, and how far it has come.
fn status_of(task: &Task, wanted: &str) -> Value {
    json!({ "taskId": task.id, "status": wanted, "lifecycleStatus": task.lifecycle_status })
}

/// An id as one segment of a path.
fn escaped(id: &str) -> String {
    let mut segment = String::with_capacity(id.len());
    for byte in id.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                segment.push(char::from(byte))
            }
            other => segment.push_str(&format!("%{other:02X}")),
        }
    }
    segment
}
