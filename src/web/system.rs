//! `/api/system/health` and `/metrics`.

use actix_web::http::StatusCode;
use actix_web::web::{Data, ServiceConfig};
use actix_web::{HttpResponse, web};
use serde_json::json;

use crate::actors::ActorSystem;
use crate::actors::controller::{ServiceHealth, SystemController};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) fn routes(config: &mut ServiceConfig) {
    config.service(web::resource("/api/system/health").get(health)).configure(metrics_route);
}

pub(super) fn metrics_route(config: &mut ServiceConfig) {
    config.service(web::resource("/metrics").get(metrics));
}

/// 503 when something is not well, for load balancers; the body says what.
async fn health(system: Data<ActorSystem>, controller: Data<SystemController>) -> HttpResponse {
    let health = controller.health().await;
    let (status, code) = match health.ok {
        true => ("healthy", StatusCode::OK),
        false => ("unhealthy", StatusCode::SERVICE_UNAVAILABLE),
    };
    HttpResponse::build(code).json(json!({
        "status": status,
        "timestamp": system.clock().now_millis(),
        "services": {
            "cache": said(&health.cache),
            "events": said(&health.events),
            "storage": said(&health.storage),
        },
        "leads": health.leads,
        "led": health.led,
        "skaldsOnline": health.skalds_online,
        "lastSweepMillis": health.last_sweep.map(|age| age.as_millis() as u64),
        "lastDispatchMillis": health.last_dispatch.map(|age| age.as_millis() as u64),
    }))
}

fn said(service: &ServiceHealth) -> String {
    match &service.error {
        Some(error) => format!("unhealthy: {error}"),
        None => "healthy".to_owned(),
    }
}

async fn metrics(system: Data<ActorSystem>) -> HttpResponse {
    HttpResponse::Ok().content_type(OPEN_METRICS).body(system.metrics_text())
}
