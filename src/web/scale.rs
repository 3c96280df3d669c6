//! `/scale`: for autoscalers. KEDA's metrics-api scaler reads one number out of it, such as `classes.Camera.backlog`.

use actix_web::HttpResponse;
use actix_web::web::{self, Data, ServiceConfig};
use serde_json::{Map, Value, json};

use super::error::ApiError;
use crate::actors::controller::SystemController;

pub(super) fn routes(config: &mut ServiceConfig) {
    config.service(web::resource("/scale").get(scale));
}

async fn scale(controller: Data<SystemController>) -> Result<HttpResponse, ApiError> {
    let (mut classes, mut backlog, mut oldest) = (Map::new(), 0, 0);
    for class in controller.scale().await? {
        let age = class.oldest.as_secs();
        (backlog, oldest) = (backlog + class.backlog, age.max(oldest));
        let said: Value = json!({
            "backlog": class.backlog,
            "oldestAgeSeconds": age,
            "held": class.held,
            "skalds": class.skalds,
            "freeSlots": class.free_slots,
        });
        classes.insert(class.class_name, said);
    }
    Ok(HttpResponse::Ok().json(json!({ "backlog": backlog, "oldestAgeSeconds": oldest, "classes": classes })))
}
