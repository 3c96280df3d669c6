//! The job: what a user submits.

use std::collections::BTreeMap;

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

use super::value::Value;

/// Which keys a job is about, and in what order.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Target {
    /// Every key that matches a Redis glob. A unit is a hash slot (on a server without cluster mode: a SCAN page).
    Pattern(#[serde(with = "serde_bytes_text")] Vec<u8>),
    /// Listed keys in any order. A unit is the listed keys of one slot.
    Keys(#[serde(with = "serde_bytes_list")] Vec<Vec<u8>>),
    /// Listed keys in strictly this order, one chain. A unit is one key.
    OrderedKeys(#[serde(with = "serde_bytes_list")] Vec<Vec<u8>>),
    /// Starts at a key; the step's `next` names the next one. A unit is one step.
    Walk(#[serde(with = "serde_bytes_text")] Vec<u8>),
}

/// What is done with each key.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Step {
    /// One of ours.
    Builtin(Builtin),
    /// The user's Lua text, which defines `each(key, acc)` and optionally `merge`, `finish` and `next`.
    Lua(String),
    /// A Rust job registered under this name on every agent that runs it.
    Native(String),
    /// The user's Lua text, run once per node as it is. Blocks the node for as long as it takes.
    Raw(String),
}

/// The built-in steps.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Builtin {
    /// How many keys.
    Count,
    /// How many keys for each value of a hash field (`""` stands for keys without the field).
    CountBy {
        /// The hash field.
        field: String,
    },
    /// The sum of a hash field that holds a number.
    Sum {
        /// The hash field.
        field: String,
    },
    /// Sets a time to live.
    Expire {
        /// Milliseconds from now on.
        ttl_millis: u64,
        /// Only when the condition holds.
        only_if: ExpireIf,
        /// Spread: up to this many percent longer, by a hash of the key.
        jitter_percent: u8,
    },
    /// Removes keys without blocking the node.
    Unlink,
}

impl Builtin {
    /// The result where no key matches.
    pub fn of_nothing(&self) -> Value {
        match self {
            Builtin::CountBy { .. } => Value::Map(BTreeMap::new()),
            Builtin::Count | Builtin::Sum { .. } | Builtin::Expire { .. } | Builtin::Unlink => Value::Int(0),
        }
    }
}

/// EXPIRE's own conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ExpireIf {
    /// Always.
    #[default]
    Always,
    /// The key has no TTL.
    None,
    /// The new TTL is shorter.
    Less,
    /// The new TTL is longer (a key without a TTL counts as infinite).
    Greater,
}

/// How deltas become one value.
#[derive(Debug, Clone, PartialEq, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Combine {
    /// Numbers add; tables add key by key.
    Sum,
    /// The least; tables key by key.
    Min,
    /// The greatest; tables key by key.
    Max,
    /// Lists of `[score, member]`: the `k` highest scores, ties by member.
    TopK {
        /// How many.
        k: u32,
    },
    /// Sets (lists of strings): their union, at most `cap` members.
    Union {
        /// More than this fails the job.
        cap: u32,
    },
    /// HyperLogLog: lists of strings to add, or registers to merge; 2^`precision` one-byte registers.
    Hll {
        /// 4 to 16.
        precision: u8,
    },
    /// Lists of numbers counted into buckets: bucket `i` holds numbers < `bounds[i]`, the last one the rest.
    Histogram {
        /// Ascending upper bounds.
        bounds: Vec<f64>,
    },
    /// Lists one after the other, at most `cap` elements.
    Concat {
        /// More than this fails the job.
        cap: u32,
    },
    /// The job's own `merge(a, b)`.
    Merge,
}

/// Whether a job changes keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Access {
    /// It only reads: re-running a unit is harmless.
    Read,
    /// It writes, and every unit leaves a marker so that it is applied once.
    Write,
    /// It writes what may be written twice (EXPIRE, UNLINK, SET): no markers.
    IdempotentWrite,
}

/// What happens when the step fails on a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OnError {
    /// The job ends as `Failed`, with its partial result marked as such.
    #[default]
    Stop,
    /// The key is reported and counted, and the job goes on.
    Skip,
}

/// What a job does while slots move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MovingSlots {
    /// Goes on; units in moving slots are planned again under the next epoch.
    #[default]
    Adaptive,
    /// Does not start before no slot moves.
    Stable,
}

/// Who runs the hops.
#[derive(Debug, Clone, PartialEq, Eq, Default, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AgentPolicy {
    /// Agents that are found; nodes without one are driven from the nearest agent, or directly when there is none.
    #[default]
    Auto,
    /// The coordinator's own process.
    Off,
    /// Only agents beside the nodes; a node without one fails the job.
    Require,
    /// Agents at these addresses.
    At(Vec<String>),
}

/// A job's bounds.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Limits {
    /// No call should hold a node longer than this.
    pub max_block_micros: u32,
    /// A larger job state fails the job.
    pub max_state_bytes: u32,
    /// How often what is left may be planned again without any unit having been done in between.
    pub max_replans: u16,
    /// How long one node may answer nothing before its units are left open.
    pub node_timeout_millis: u32,
    /// How many hops back a state is kept: 1 or 2.
    pub retain: u8,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_block_micros: 2_000,
            max_state_bytes: 4 << 20,
            max_replans: 20,
            node_timeout_millis: 10_000,
            retain: 1,
        }
    }
}

/// The whole job.
#[derive(Debug, Clone, PartialEq, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobSpec {
    /// Unique; part of marker names. In a task's attachments it is left out: it is the task's id.
    #[serde(default)]
    pub id: String,
    /// Which keys.
    pub target: Target,
    /// What is done with each.
    pub step: Step,
    /// How deltas become one value.
    pub combine: Combine,
    /// Whether keys are changed.
    pub access: Access,
    /// What a failing key does to the job.
    #[serde(default)]
    pub on_error: OnError,
    /// What moving slots do to the job.
    #[serde(default)]
    pub moving: MovingSlots,
    /// Who runs it.
    #[serde(default)]
    pub agents: AgentPolicy,
    /// How many chains; absent: the planner chooses.
    #[serde(default)]
    pub chains: Option<u16>,
    /// Bounds.
    #[serde(default)]
    pub limits: Limits,
    /// What Lua sees as the table `args`, and a native step as its arguments.
    #[serde(default)]
    pub args: BTreeMap<String, String>,
    /// 0 (lowest) to 10.
    #[serde(default)]
    pub priority: u8,
}

impl JobSpec {
    /// Whether the job must take one chain: its accumulator passes from key to key.
    pub fn is_sequential(&self) -> bool {
        matches!(self.target, Target::OrderedKeys(_) | Target::Walk(_)) || matches!(self.step, Step::Raw(_))
    }
}

/// Keys in JSON: text where they are UTF-8, else `{"hex": "…"}`.
mod serde_bytes_text {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    pub(super) enum Key {
        Text(String),
        Hex { hex: String },
    }

    impl Key {
        pub(super) fn from_bytes(bytes: &[u8]) -> Self {
            match std::str::from_utf8(bytes) {
                Ok(text) => Key::Text(text.to_owned()),
                Err(_) => Key::Hex { hex: bytes.iter().map(|byte| format!("{byte:02x}")).collect() },
            }
        }

        pub(super) fn into_bytes(self) -> Result<Vec<u8>, String> {
            match self {
                Key::Text(text) => Ok(text.into_bytes()),
                Key::Hex { hex } => {
                    let digits = hex.as_bytes();
                    if digits.len() % 2 != 0 {
                        return Err(format!("hex key {hex:?} has an odd number of digits"));
                    }
                    digits
                        .chunks(2)
                        .map(|pair| {
                            std::str::from_utf8(pair)
                                .ok()
                                .and_then(|pair| u8::from_str_radix(pair, 16).ok())
                                .ok_or_else(|| format!("hex key {hex:?} has something other than hex digits"))
                        })
                        .collect()
                }
            }
        }
    }

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        Key::from_bytes(bytes).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        Key::deserialize(deserializer)?.into_bytes().map_err(serde::de::Error::custom)
    }
}

mod serde_bytes_list {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::serde_bytes_text::Key;

    pub(super) fn serialize<S: Serializer>(keys: &[Vec<u8>], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(keys.iter().map(|key| Key::from_bytes(key)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Vec<u8>>, D::Error> {
        Vec::<Key>::deserialize(deserializer)?
            .into_iter()
            .map(|key| key.into_bytes().map_err(serde::de::Error::custom))
            .collect()
    }
}
