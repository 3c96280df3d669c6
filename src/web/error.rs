//! What the API answers when it cannot do what was asked.

use actix_web::http::StatusCode;
use actix_web::{HttpResponse, ResponseError};
use serde_json::{Value, json};

use crate::actors::TaskError;
use crate::backend::BackendError;

/// An answer that is no success.
///
/// The body has what clients of the Python controller look for, and `detail`, which says it in a sentence:
/// `{"error": "Not Found", "status_code": 404, "message": "…", "detail": "…"}`. Where the request itself is wrong, `detail` is
/// the list that FastAPI makes: `[{"type": "value_error", "loc": ["body", "priority"], "msg": "…"}]`.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum ApiError {
    /// There is no such thing.
    #[error("{0}")]
    NotFound(String),
    /// A part of the request makes no sense.
    #[error("{message}")]
    Invalid {
        /// `body`, `query` or `path`, then the field.
        place: Vec<String>,
        message: String,
    },
    /// Not from there.
    #[error("{0}")]
    Forbidden(String),
    /// It makes sense, but not now.
    #[error("{0}")]
    Conflict(String),
    /// The body is longer than what is read.
    #[error("{0}")]
    TooLarge(String),
    /// A service is away or full; later it may work.
    #[error("{0}")]
    Unavailable(String),
    /// What is stored cannot be read, or we are wrong.
    #[error("{0}")]
    Internal(String),
}

impl ApiError {
    pub(crate) fn invalid(place: &[&str], message: impl ToString) -> Self {
        let place = place.iter().map(|part| (*part).to_owned()).collect();
        ApiError::Invalid { place, message: message.to_string() }
    }

    fn body(&self) -> Value {
        let status = self.status_code();
        let detail = match self {
            ApiError::Invalid { place, message } => {
                json!([{ "type": "value_error", "loc": place, "msg": message }])
            }
            other => Value::from(other.to_string()),
        };
        json!({
            "error": status.canonical_reason().unwrap_or("Error"),
            "status_code": status.as_u16(),
            "message": self.to_string(),
            "detail": detail,
        })
    }
}

impl ResponseError for ApiError {
    fn status_code(&self) -> StatusCode {
        match self {
            ApiError::NotFound(_) => StatusCode::NOT_FOUND,
            ApiError::Invalid { .. } => StatusCode::UNPROCESSABLE_ENTITY,
            ApiError::Forbidden(_) => StatusCode::FORBIDDEN,
            ApiError::Conflict(_) => StatusCode::CONFLICT,
            ApiError::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            ApiError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            ApiError::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn error_response(&self) -> HttpResponse {
        HttpResponse::build(self.status_code()).json(self.body())
    }
}

impl From<BackendError> for ApiError {
    fn from(error: BackendError) -> Self {
        let text = error.to_string();
        match error {
            BackendError::Unavailable { .. } | BackendError::Full { .. } | BackendError::Closed(_) => {
                ApiError::Unavailable(text)
            }
            _ => ApiError::Internal(text),
        }
    }
}

impl From<TaskError> for ApiError {
    fn from(error: TaskError) -> Self {
        let text = error.to_string();
        match error {
            TaskError::Missing(_) => ApiError::NotFound(text),
            TaskError::Invalid(_) => ApiError::invalid(&["body"], text),
            TaskError::Taken(_) | TaskError::Refused { .. } => ApiError::Conflict(text),
            TaskError::Contended(_) => ApiError::Unavailable(text),
            TaskError::Backend(error) => error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_have_what_every_client_looks_for() {
        assert_eq!(
            ApiError::from(TaskError::Missing("a".into())).body(),
            json!({"error": "Not Found", "status_code": 404, "message": "there is no task \"a\"",
                "detail": "there is no task \"a\""})
        );
        assert_eq!(
            ApiError::invalid(&["query", "page"], "too small").body()["detail"],
            json!([{"type": "value_error", "loc": ["query", "page"], "msg": "too small"}])
        );
    }

    #[test]
    fn a_service_that_is_away_is_not_our_fault() {
        let away = BackendError::Closed("storage".into());
        assert_eq!(ApiError::from(away).status_code(), StatusCode::SERVICE_UNAVAILABLE);
        let corrupt = BackendError::Corrupt { what: "x".into(), reason: "y".into() };
        assert_eq!(ApiError::from(corrupt).status_code(), StatusCode::INTERNAL_SERVER_ERROR);
    }
}
