//! A hop of a whole-node script: the user's text as it is, once. It may hold the node for as long as it takes, sees
//! what SCAN sees, and is not exact while slots move; the hop's report says so.

use std::time::{Duration, Instant};

use super::error::{NodeError, words};
use super::reply::from_resp;
use super::runner::{Onward, Turn};
use super::site::Site;
use crate::chain::job::{Access, Step, Target};
use crate::chain::state::JobState;
use crate::chain::value::Value;

/// The longest that a whole-node script may take.
const LIMIT: Duration = Duration::from_secs(3_600);

/// `ARGV[1]` is the pattern, `ARGV[2]` what the nodes before have folded to, as JSON (empty on the first). The answer
/// is a number, a list, a text, or JSON of an object or a list.
pub(crate) async fn advance(site: &mut Site, state: &mut JobState) -> Result<Turn, NodeError> {
    let job = site.job.clone();
    let (Step::Raw(text), Target::Pattern(pattern)) = (&job.step, &job.target) else {
        return Err(NodeError::job(&job.id, "a whole-node script takes a pattern"));
    };
    let before = match &state.acc {
        Value::Nil => String::new(),
        acc => acc.to_json().to_string(),
    };
    let mut command = redis::cmd(site.engine.eval());
    command.arg(text).arg(0).arg(&pattern[..]).arg(before);
    let start = Instant::now();
    let action = "run the whole-node script";
    let answer = match site.engine.node.answer(&command, action, LIMIT).await {
        // It may have written, and nothing says how far it came.
        Err(error) if error.is_transient() && job.access == Access::Write => {
            let reason = format!("{error}; the script writes and may have run, so it is not run again");
            return Err(NodeError::job(&job.id, reason));
        }
        answer => answer?,
    };
    site.engine.note(start.elapsed());
    let value = match answer {
        Ok(answer) => from_text(from_resp(answer)),
        Err(error) if words(&error).contains("user_script") => {
            let reason = words(&error);
            return Err(NodeError::job(&job.id, format!("at {}: {reason}", site.place.address)));
        }
        Err(error) => return Err(NodeError::from_redis(&site.place.address, action, &error)),
    };
    let mut acc = std::mem::take(&mut state.acc);
    let folded = site.fold(&mut acc, vec![value]).await;
    state.acc = acc;
    folded?;
    if site.engine.cluster {
        site.place.note(state, "a whole-node script is not exact while slots move".to_owned());
    }
    site.place.report(state).units += 1;
    state.sequence.done += 1;
    state.sequence.complete = state.position as usize + 1 >= state.route.len();
    Ok(Turn::Done(Onward::Next))
}

/// Scripts answer tables with names as `cjson.encode(table)`: a RESP answer has none.
fn from_text(value: Value) -> Value {
    match &value {
        Value::Bytes(text) if matches!(text.first(), Some(b'{' | b'[')) => {
            serde_json::from_slice(text).ok().and_then(|json| Value::from_json(&json).ok()).unwrap_or(value)
        }
        _ => value,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn json_answers_are_read_and_other_texts_are_kept() {
        assert_eq!(from_text(Value::from("[1]")), Value::List(vec![Value::Int(1)]));
        let table = BTreeMap::from([(b"paid".to_vec(), Value::Int(2))]);
        assert_eq!(from_text(Value::from(r#"{"paid":2}"#)), Value::Map(table));
        assert_eq!(from_text(Value::from("{paid")), Value::from("{paid"));
        assert_eq!(from_text(Value::Int(3)), Value::Int(3));
    }
}
