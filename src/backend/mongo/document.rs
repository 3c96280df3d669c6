//! A task as a BSON document, spelled as the Python package spells it.

use mongodb::bson::{Bson, Decimal128, Document};
use serde_json::{Map, Number, Value};

use crate::backend::{BackendError, document};
use crate::core::task::Task;

/// Whole numbers of 64 bits, however small they are: milliseconds.
const TIMES: [&str; 6] =
    ["createDateTime", "updateDateTime", "deadlineDateTime", "nextAttemptAt", "notBefore", "at"];
/// What the server takes; a worker's result may be deeper.
const MAX_DEPTH: usize = 100;

/// The sub-document that is ours.
pub(super) const OURS: &str = "skalds";
/// What workers return, which may be any JSON.
const WORKERS_OWN: [&str; 2] = ["result", "checkpoint"];
/// The only field of what is stored as JSON text.
const AS_TEXT: &str = "$json";

/// The fields of a task by their names on the wire.
///
/// # Errors
/// `Full` for a document that is too large.
pub(super) fn fields(task: &Task) -> Result<Map<String, Value>, BackendError> {
    document::to_json(task)?;
    match serde_json::to_value(task) {
        Ok(Value::Object(fields)) => Ok(fields),
        other => Err(BackendError::Corrupt {
            what: format!("task {:?}", task.id),
            reason: format!("it is no JSON object: {:?}", other.err()),
        }),
    }
}

/// A new document.
///
/// # Errors
/// `Full` for a document that is too large, `Refused` for one that holds what BSON cannot.
pub(super) fn of_task(task: &Task) -> Result<Document, BackendError> {
    let mut document = Document::new();
    for (name, value) in fields(task)? {
        let value = match value {
            Value::Object(ours) if name == OURS => {
                let ours: Result<Document, BackendError> = ours
                    .into_iter()
                    .map(|(name, value)| Ok((name.clone(), own_field(&task.id, &name, value)?)))
                    .collect();
                Bson::Document(ours?)
            }
            value => field(&task.id, &name, value)?,
        };
        document.insert(name, value);
    }
    Ok(document)
}

/// One field of the sub-document `skalds`. What a worker has returned is always taken: as text where BSON cannot hold it,
/// or where it looks like such a text.
pub(super) fn own_field(id: &str, name: &str, value: Value) -> Result<Bson, BackendError> {
    if !WORKERS_OWN.contains(&name) {
        return field(id, name, value);
    }
    let looks_like_text =
        value.as_object().is_some_and(|value| value.len() == 1 && value.contains_key(AS_TEXT));
    if !looks_like_text && let Ok(value) = encode(name, value.clone(), 2) {
        return Ok(value);
    }
    let mut text = Document::new();
    text.insert(AS_TEXT, value.to_string());
    Ok(Bson::Document(text))
}

fn decode_own(name: &str, value: Bson) -> Value {
    match value {
        Bson::Document(value) if WORKERS_OWN.contains(&name) && value.len() == 1 => {
            match value.get_str(AS_TEXT) {
                Ok(text) => serde_json::from_str(text).unwrap_or_else(|_| text.into()), // others wrote it: then as it is
                Err(_) => decode(Bson::Document(value)),
            }
        }
        value => decode(value),
    }
}

/// One field of the task `id`.
///
/// # Errors
/// `Refused` when it holds what BSON cannot.
pub(super) fn field(id: &str, name: &str, value: Value) -> Result<Bson, BackendError> {
    encode(name, value, 1).map_err(|what| BackendError::Refused {
        service: "mongodb".into(),
        action: format!("store task {id:?}"),
        reason: format!(
            "its {name} holds {what}, which a document cannot hold; leave it out, or store it as text"
        ),
    })
}

fn encode(name: &str, value: Value, depth: usize) -> Result<Bson, &'static str> {
    if depth > MAX_DEPTH {
        return Err("more than 100 levels of lists and objects");
    }
    Ok(match value {
        Value::Null => Bson::Null,
        Value::Bool(value) => Bson::Boolean(value),
        Value::String(text) => Bson::String(text),
        Value::Number(number) => encode_number(name, &number),
        Value::Array(values) => Bson::Array(
            values.into_iter().map(|value| encode("", value, depth + 1)).collect::<Result<_, _>>()?,
        ),
        Value::Object(fields) => {
            let mut document = Document::new();
            for (name, value) in fields {
                if name.contains('\0') {
                    return Err("a field name with a zero byte");
                }
                let value = encode(&name, value, depth + 1)?;
                document.insert(name, value);
            }
            Bson::Document(document)
        }
    })
}

/// As Python's driver does: the smaller type that holds the number. What no whole type holds stays exact as a decimal.
fn encode_number(name: &str, number: &Number) -> Bson {
    if let Some(whole) = number.as_i64() {
        return match i32::try_from(whole) {
            Ok(small) if !TIMES.contains(&name) => Bson::Int32(small),
            _ => Bson::Int64(whole),
        };
    }
    let decimal = number.as_u64().and_then(|_| number.to_string().parse::<Decimal128>().ok());
    // A JSON number that is no whole one is a double.
    decimal.map_or_else(|| Bson::Double(number.as_f64().unwrap_or(f64::NAN)), Bson::Decimal128)
}

/// Reads a document back, whoever wrote it. `what` names it in the error. Fields that a task does not have are left out
/// here, and left alone by every write.
pub(super) fn to_task(document: Document, what: impl FnOnce() -> String) -> Result<Task, BackendError> {
    let fields = document.into_iter().filter(|(name, _)| name != "_id").map(|(name, value)| {
        let value = match value {
            // Clients whose numbers are all doubles store whole ones as such.
            Bson::Double(number) if is_number(&name) && number.fract() == 0.0 && number.abs() < 9e15 => {
                Value::from(number as i64)
            }
            Bson::Document(ours) if name == OURS => {
                let ours = ours.into_iter().map(|(name, value)| {
                    let value = decode_own(&name, value);
                    (name, value)
                });
                Value::Object(ours.collect())
            }
            value => decode(value),
        };
        (name, value)
    });
    let fields: Map<String, Value> = fields.collect();
    serde_json::from_value(Value::Object(fields))
        .map_err(|error| BackendError::Corrupt { what: what(), reason: error.to_string() })
}

fn is_number(name: &str) -> bool {
    name == "priority" || TIMES.contains(&name)
}

/// What JSON has no type for (dates, object ids, bytes, …) becomes text.
fn decode(value: Bson) -> Value {
    match value {
        Bson::Null | Bson::Undefined => Value::Null,
        Bson::Boolean(value) => value.into(),
        Bson::String(text) => text.into(),
        Bson::Int32(number) => number.into(),
        Bson::Int64(number) => number.into(),
        Bson::Double(number) => {
            Number::from_f64(number).map_or_else(|| number.to_string().into(), Value::Number)
        }
        Bson::Array(values) => values.into_iter().map(decode).collect(),
        Bson::Document(fields) => {
            Value::Object(fields.into_iter().map(|(name, value)| (name, decode(value))).collect())
        }
        Bson::Decimal128(number) => {
            let text = number.to_string();
            text.parse::<u64>().map_or_else(|_| text.clone().into(), Value::from)
        }
        Bson::DateTime(at) => at.try_to_rfc3339_string().unwrap_or_else(|_| at.to_string()).into(),
        Bson::ObjectId(id) => id.to_hex().into(),
        other => other.to_string().into(),
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{doc, oid::ObjectId};
    use serde_json::json;

    use super::*;
    use crate::core::task::LifecycleStatus;

    fn round(task: &Task) -> Task {
        to_task(of_task(task).unwrap(), || "it".into()).unwrap()
    }

    #[test]
    fn a_task_is_the_same_after_a_round_trip_whatever_it_holds() {
        let mut task = Task::new("a\0b.$c", "C", 3);
        task.attachments = json!({
            "whole": [0, 1, -1, i64::MAX, i64::MIN, u64::MAX, 1_u64 << 63], "double": [0.5, 1.0, -0.0, 1e300],
            "$set": {"a.b": {"": null}}, "text": "\0\u{10ffff}", "flags": [true, false, null, {}, []],
        })
        .as_object()
        .cloned();
        task.skalds.incarnation = 1 << 40;
        task.skalds.not_before = Some(5);
        task.skalds.result = Some(json!([{"deep": [[[1]]]}]));
        assert_eq!(round(&task), task);
    }

    #[test]
    fn numbers_have_the_types_that_python_writes() {
        let mut task = Task::new("t", "C", 3);
        task.priority = 7;
        task.deadline_date_time = 0;
        task.attachments = json!({"small": 30, "large": 1_795_967_169_868_i64}).as_object().cloned();
        task.skalds.next_attempt_at = Some(9);
        let document = of_task(&task).unwrap();
        let names: Vec<&str> = document.keys().map(String::as_str).collect();
        assert_eq!(
            names.join(" "),
            "id className source name description executor dependencies mode isPersistent createDateTime updateDateTime \
             deadlineDateTime lifecycleStatus priority attachments skalds"
        );
        for (name, value) in [
            ("createDateTime", Bson::Int64(3)),
            ("deadlineDateTime", Bson::Int64(0)),
            ("priority", Bson::Int32(7)),
            ("lifecycleStatus", Bson::String("Created".into())),
            ("executor", Bson::Null),
            ("attachments", Bson::Document(doc! {"small": 30_i32, "large": 1_795_967_169_868_i64})),
            ("skalds", Bson::Document(doc! {"nextAttemptAt": 9_i64})),
        ] {
            assert_eq!(document.get(name), Some(&value), "{name}");
        }
    }

    #[test]
    fn what_others_write_is_read() {
        let mut document = of_task(&Task::new("t", "C", 3)).unwrap();
        let id = ObjectId::new();
        document.insert("_id", id);
        document.insert("createDateTime", 1_795_967_169_868.0);
        document.insert("priority", 3.0);
        document.insert("theirs", doc! {"x": 1});
        document.insert(
            "attachments",
            doc! {"at": mongodb::bson::DateTime::from_millis(0), "id": id, "nan": f64::NAN, "one": 1.0},
        );
        let task = to_task(document.clone(), || "it".into()).unwrap();
        assert_eq!((task.create_date_time, task.priority), (1_795_967_169_868, 3));
        assert_eq!(
            Value::Object(task.attachments.unwrap()),
            json!({"at": "1970-01-01T00:00:00Z", "id": id.to_hex(), "nan": "NaN", "one": 1.0})
        );
        document.insert("lifecycleStatus", "Sleeping");
        let error = to_task(document, || "task \"t\"".into()).unwrap_err().to_string();
        assert!(error.contains("task \"t\"") && error.contains("Sleeping"), "{error}");
    }

    #[test]
    fn what_bson_cannot_hold_is_refused_by_name() {
        let mut task = Task::new("t", "C", 3);
        task.attachments = json!({"a": {"b\0": 1}}).as_object().cloned();
        let error = of_task(&task).unwrap_err().to_string();
        assert!(error.contains("its attachments holds a field name with a zero byte"), "{error}");
        let deep = (0..110).fold(json!(1), |inner, _| json!([inner]));
        task.attachments = json!({"deep": deep.clone()}).as_object().cloned();
        assert!(of_task(&task).unwrap_err().to_string().contains("100 levels"));
        // An outcome must not be lost for that.
        task.attachments = None;
        task.lifecycle_status = LifecycleStatus::Finished;
        for outcome in [deep, json!({"b\0": [1]}), json!({"$json": "{"}), json!({"$json": 1, "x": 2})] {
            task.skalds.result = Some(outcome.clone());
            task.skalds.checkpoint = Some(outcome);
            assert_eq!(round(&task), task);
        }
    }
}
