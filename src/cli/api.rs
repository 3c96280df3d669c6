//! A controller's REST API, seen from the command line.

use std::time::Duration;

use crate::config::secret::Secret;
use serde_json::Value;
use ureq::Agent;
use ureq::http::Response;

use super::exit::Failure;

/// No call takes longer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// No answer is longer, in bytes: a page of 100 tasks with attachments of 1 MiB.
const MAX_ANSWER: u64 = 128 << 20;

/// Which controller.
#[derive(Debug, clap::Args)]
pub(crate) struct ApiArgs {
    /// The controller's address
    #[arg(
        long = "api",
        value_name = "URL",
        env = "SKALD_API",
        default_value = "http://127.0.0.1:8000",
        hide_env_values = true,
        global = true
    )]
    url: String,
}

/// A client of one controller.
pub(crate) struct Api {
    base: String,
    agent: Agent,
}

impl Api {
    pub(crate) fn new(args: &ApiArgs) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false) // the body says more
            .timeout_global(Some(TIMEOUT))
            .user_agent(concat!("skald/", env!("CARGO_PKG_VERSION")))
            .build();
        Api { base: args.url.trim_end_matches('/').to_owned(), agent: config.into() }
    }

    /// `path` begins with a slash and is escaped already; see [`segment`] and [`query`].
    pub(crate) fn get(&self, path: &str) -> Result<Value, Failure> {
        self.read(path, self.agent.get(self.url(path)).call())
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.read(path, self.agent.post(self.url(path)).send_json(body))
    }

    pub(crate) fn put(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.read(path, self.agent.put(self.url(path)).send_json(body))
    }

    /// Where it is, without a password.
    pub(crate) fn address(&self) -> String {
        Secret::new(self.base.as_str()).to_string()
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    fn read(&self, path: &str, answer: Result<Response<ureq::Body>, ureq::Error>) -> Result<Value, Failure> {
        let base = self.address();
        let mut answer = answer.map_err(|error| {
            Failure::failed(format!(
                "cannot reach the controller at {base}: {error}; is it running? (--api or SKALD_API names another)"
            ))
        })?;
        let status = answer.status();
        let text =
            answer.body_mut().with_config().limit(MAX_ANSWER).read_to_string().map_err(|error| {
                Failure::failed(format!("cannot read the answer of {base}{path}: {error}"))
            })?;
        let json = serde_json::from_str::<Value>(&text);
        if status.is_success() {
            return json.map_err(|_| {
                Failure::failed(format!("{base}{path} did not answer with JSON: not a controller?"))
            });
        }
        let reason = json.ok().and_then(|body| reason_of(&body)).unwrap_or_else(|| format!("HTTP {status}"));
        Err(Failure::failed(reason))
    }
}

/// What an error body says, in our shape, in the Python controller's or in FastAPI's.
fn reason_of(body: &Value) -> Option<String> {
    match body.get("detail") {
        Some(Value::String(detail)) => return Some(detail.clone()),
        Some(Value::Array(items)) => {
            let messages: Vec<&str> = items.iter().filter_map(|item| item.get("msg")?.as_str()).collect();
            return (!messages.is_empty()).then(|| messages.join("; "));
        }
        _ => {}
    }
    let error = body.get("error")?.as_str()?;
    match body.get("message").and_then(Value::as_str) {
        Some(message) => Some(format!("{error}: {message}")),
        None => Some(error.to_owned()),
    }
}

/// Text as one segment of a path, or as one value of a query.
pub(crate) fn segment(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

/// A query string of the pairs that have a value, with its `?`.
pub(crate) fn query(pairs: &[(&str, Option<String>)]) -> String {
    let given: Vec<String> = pairs
        .iter()
        .filter_map(|(name, value)| Some(format!("{name}={}", segment(value.as_ref()?))))
        .collect();
    if given.is_empty() { String::new() } else { format!("?{}", given.join("&")) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn errors_are_read_in_every_shape_that_a_controller_may_send() {
        for (body, said) in [
            (json!({"detail": "no such task"}), Some("no such task")),
            (json!({"detail": [{"msg": "a"}, {"msg": "b"}], "error": "x"}), Some("a; b")),
            (json!({"error": "Not Found", "message": "gone"}), Some("Not Found: gone")),
            (json!({"error": "Task not found", "status_code": 404}), Some("Task not found")),
            (json!(["strange"]), None),
        ] {
            assert_eq!(reason_of(&body).as_deref(), said, "{body}");
        }
    }

    #[test]
    fn ids_are_escaped() {
        assert_eq!(segment("a/b c?ü"), "a%2Fb%20c%3F%C3%BC");
        assert_eq!(query(&[("a", None), ("b", Some("x&y".into())), ("c", Some("1".into()))]), "?b=x%26y&c=1");
        assert_eq!(query(&[("a", None)]), "");
    }
}
