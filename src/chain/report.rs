//! What a job says at its end: the object of `skald job run --json`, which is also the result of its task.

use serde::{Deserialize, Serialize};

use super::state::{HopReport, KeyError, Tally};
use super::value::text_of;
use crate::core::task::LifecycleStatus;

/// The whole report. Field names and order are part of the command's interface.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobReport {
    /// The job's, and its task's.
    pub id: String,
    /// The task's: `Finished`, `Failed` or `Cancelled`.
    pub status: LifecycleStatus,
    /// The result does not cover every unit, or the step failed on some keys.
    pub partial: bool,
    /// The value, by [`Value::to_json`](super::value::Value::to_json).
    pub result: serde_json::Value,
    /// Keys.
    pub keys: KeyCounts,
    /// Units.
    pub units: UnitCounts,
    /// How it was run.
    pub plan: PlanReport,
    /// What each hop did, in the order in which they came back.
    pub hops: Vec<HopLine>,
    /// The first keys that failed.
    pub errors: Vec<ErrorLine>,
    /// Why the job did not end well.
    pub error: Option<String>,
}

/// How many keys; of a job that did not finish also those that chains on their way had told of, which are in no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyCounts {
    /// Looked at.
    pub visited: u64,
    /// The step was run on.
    pub matched: u64,
    /// The step failed on.
    pub errors: u64,
}

/// How many units; of a job that did not finish also those that chains on their way had told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnitCounts {
    /// Done.
    pub done: u64,
    /// All there are; for a walk, and on a server without cluster mode, those that are done.
    pub total: u64,
}

/// How the job was run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanReport {
    /// The nodes of each chain, in order; of all plans, one after the other.
    pub chains: Vec<Vec<String>>,
    /// The last plan's number: 1 unless something changed while the job ran.
    pub epoch: u32,
}

/// One hop. Times are milliseconds, sizes bytes. The fields from `agent` on stand behind the documented ones.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HopLine {
    /// Where: the node's address.
    pub node: String,
    /// The chain's number.
    pub chain: u16,
    /// The hop's place in it, counted from 0.
    pub order: u32,
    /// Keys looked at.
    pub keys: u64,
    /// From the first call to the last answer.
    pub millis: f64,
    /// In calls.
    pub engine_millis: f64,
    /// The longest call.
    pub max_block_millis: f64,
    /// The job state when it left.
    pub state_bytes: u64,
    /// The same, as it was sent.
    pub state_bytes_compressed: u64,
    /// Who ran it: an agent's address, or `direct`.
    pub agent: String,
    /// The plan's number.
    pub epoch: u32,
    /// What a reader should know: a raw script is not exact while slots move, …
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A key that failed, or a unit or node that could not be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ErrorLine {
    /// The key, by [`text_of`]; empty when it is about a node or a slot.
    pub key: String,
    /// Where: the node's address.
    pub node: String,
    /// What went wrong.
    pub reason: String,
}

impl JobReport {
    /// The report of a job that did nothing; what it did is filled in and added.
    pub fn new(id: impl Into<String>, status: LifecycleStatus) -> Self {
        JobReport {
            id: id.into(),
            status,
            partial: status != LifecycleStatus::Finished,
            result: serde_json::Value::Null,
            keys: KeyCounts::default(),
            units: UnitCounts::default(),
            plan: PlanReport::default(),
            hops: Vec::new(),
            errors: Vec::new(),
            error: None,
        }
    }

    /// Adds a hop, and its node to its chain; `node` is the node's address. The hops of a chain come one after the
    /// other.
    pub fn add_hop(&mut self, hop: &HopReport, node: String) {
        let follows = self.hops.last().is_some_and(|last| (last.epoch, last.chain) == (hop.epoch, hop.chain));
        match self.plan.chains.last_mut() {
            Some(chain) if follows => chain.push(node.clone()),
            _ => self.plan.chains.push(vec![node.clone()]),
        }
        let millis = |micros: u64| micros as f64 / 1_000.0;
        self.hops.push(HopLine {
            node,
            chain: hop.chain,
            order: hop.order,
            keys: hop.keys,
            millis: millis(hop.micros),
            engine_millis: millis(hop.engine_micros),
            max_block_millis: millis(hop.max_block_micros),
            state_bytes: hop.state_bytes,
            state_bytes_compressed: hop.state_bytes_compressed,
            agent: hop.agent.clone(),
            epoch: hop.epoch,
            notes: hop.notes.clone(),
        });
    }

    /// Adds an error; `node` is the node's address.
    pub fn add_error(&mut self, error: &KeyError, node: String) {
        self.errors.push(ErrorLine { key: text_of(&error.key), node, reason: error.reason.clone() });
    }

    /// What `skald job run` exits with: 0 finished, 3 finished but partial, 130 cancelled, else 1.
    pub fn exit_code(&self) -> u8 {
        match self.status {
            LifecycleStatus::Finished if self.partial => 3,
            LifecycleStatus::Finished => 0,
            LifecycleStatus::Cancelled => 130,
            _ => 1,
        }
    }
}

impl From<Tally> for KeyCounts {
    fn from(tally: Tally) -> Self {
        KeyCounts { visited: tally.visited, matched: tally.matched, errors: tally.errors }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::chain::value::Value;

    fn report() -> JobReport {
        let hop = |order, keys| HopReport {
            node: "07c3".into(),
            agent: "direct".into(),
            epoch: 2,
            order,
            keys,
            micros: 251_250,
            engine_micros: 250_000,
            max_block_micros: 1_875,
            state_bytes: 512,
            state_bytes_compressed: 300,
            ..HopReport::default()
        };
        let counts =
            BTreeMap::from([(b"paid".to_vec(), Value::Int(7)), (b"\xff".to_vec(), Value::Float(0.5))]);
        let mut report = JobReport::new("job-1", LifecycleStatus::Finished);
        report.partial = true;
        report.result = Value::Map(counts).to_json();
        report.keys = Tally { visited: 9, matched: 8, errors: 1 }.into();
        report.units = UnitCounts { done: 16_384, total: 16_384 };
        report.plan.epoch = 2;
        report.add_hop(&hop(0, 5), "h:1".into());
        report.add_hop(&HopReport { notes: vec!["n".into()], ..hop(1, 2) }, "h:2".into());
        report.add_hop(&HopReport { chain: 1, ..hop(0, 2) }, "h:3".into());
        let reason = "WRONGTYPE".into();
        report.add_error(&KeyError { key: b"k\xff 1".to_vec(), node: "07c3".into(), reason }, "h:1".into());
        report
    }

    #[test]
    fn the_json_is_the_commands_interface() {
        let hop = |place: &str, tail: &str| {
            format!(
                r#"{{{place},"millis":251.25,"engineMillis":250.0,"maxBlockMillis":1.875,"stateBytes":512,"#
            ) + r#""stateBytesCompressed":300,"agent":"direct","epoch":2"#
                + tail
                + "}"
        };
        let json = [
            r#"{"id":"job-1","status":"Finished","partial":true,"result":{"paid":7,"\\xff":0.5},"#,
            r#""keys":{"visited":9,"matched":8,"errors":1},"units":{"done":16384,"total":16384},"#,
            r#""plan":{"chains":[["h:1","h:2"],["h:3"]],"epoch":2},"hops":["#,
            &hop(r#""node":"h:1","chain":0,"order":0,"keys":5"#, ""),
            ",",
            &hop(r#""node":"h:2","chain":0,"order":1,"keys":2"#, r#","notes":["n"]"#),
            ",",
            &hop(r#""node":"h:3","chain":1,"order":0,"keys":2"#, ""),
            r#"],"errors":[{"key":"k\\xff 1","node":"h:1","reason":"WRONGTYPE"}],"error":null}"#,
        ]
        .concat();
        assert_eq!(serde_json::to_string(&report()).unwrap(), json);
        assert_eq!(serde_json::from_str::<JobReport>(&json).unwrap(), report());
    }

    #[test]
    fn exit_codes_are_those_of_the_manual() {
        let code = |status, partial| JobReport { status, partial, ..report() }.exit_code();
        assert_eq!(code(LifecycleStatus::Finished, false), 0);
        assert_eq!(code(LifecycleStatus::Finished, true), 3);
        assert_eq!(code(LifecycleStatus::Failed, true), 1);
        assert_eq!(code(LifecycleStatus::Cancelled, true), 130);
    }
}
