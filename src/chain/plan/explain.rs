//! A plan in words.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::chains::ChoiceReason;
use super::{Choice, Driver, OrderMethod, Plan, PlannedHop, Reach};

/// Why a plan is as it is: one row for each hop, and the decisions above them. Prints as a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The plan's number.
    pub epoch: u32,
    /// How many chains, and why.
    pub chains: String,
    /// How the order was found.
    pub order: String,
    /// Keys that are expected.
    pub keys: u64,
    /// The time that is expected, milliseconds.
    pub millis: f64,
    /// Bytes that are sent between agents, before compression.
    pub bytes_moved: u64,
    /// The longest call on a node, milliseconds.
    pub block_millis: f64,
    /// When it has taken too long, milliseconds.
    pub timeout_millis: u64,
    /// Slots that no node serves, as inclusive ranges.
    pub uncovered: Vec<(u16, u16)>,
    /// The hops.
    pub rows: Vec<ExplanationRow>,
}

/// One hop.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplanationRow {
    /// The chain, counted from 0.
    pub chain: usize,
    /// The hop's place in it, counted from 0.
    pub order: usize,
    /// Where Redis listens.
    pub node: String,
    /// Where the agent listens; `direct` for the coordinator's own process.
    pub agent: String,
    /// How many slots (0 where units are not slots).
    pub slots: u32,
    /// How many keys are expected.
    pub keys: u64,
    /// The way and the load, in hops within a rack.
    pub cost: f64,
    /// The time that is expected, milliseconds.
    pub millis: f64,
    /// What makes up the cost.
    pub why: String,
}

impl Plan {
    /// Why it is as it is.
    pub fn explain(&self) -> Explanation {
        let millis = |micros: u64| micros as f64 / 1_000.0;
        let row = |chain: usize, order: usize, planned: &PlannedHop| {
            let node = &self.nodes[usize::from(planned.hop.node)];
            ExplanationRow {
                chain,
                order,
                node: node.redis.clone(),
                agent: node.agent.clone().unwrap_or_else(|| "direct".into()),
                slots: planned.hop.slots.len(),
                keys: planned.keys,
                cost: (planned.cost * 100.0).round() / 100.0,
                millis: millis(planned.micros),
                why: why(planned, order == 0),
            }
        };
        let rows = self.chains.iter().enumerate().flat_map(|(chain, planned)| {
            planned.hops.iter().enumerate().map(move |(order, planned)| row(chain, order, planned))
        });
        Explanation {
            epoch: self.epoch,
            chains: chains_text(self.chains.len(), &self.choice),
            order: order_text(&self.order),
            keys: self.estimate.keys,
            millis: millis(self.estimate.micros),
            bytes_moved: self.estimate.bytes_moved,
            block_millis: millis(self.estimate.block_micros),
            timeout_millis: self.timeout_millis,
            uncovered: self.uncovered.ranges(),
            rows: rows.collect(),
        }
    }
}

fn why(planned: &PlannedHop, first: bool) -> String {
    let (to, from) = if first { (" as the coordinator", " from the coordinator") } else { ("", "") };
    let mut why = match planned.reach {
        _ if planned.driver == Driver::Direct => "driven by the coordinator".into(),
        Reach::SameProcess => format!("same agent{to}"),
        Reach::SameRack => format!("same rack{to}"),
        Reach::SameZone => format!("same zone{to}"),
        Reach::OtherZone => format!("other zone{}", if first { " than the coordinator" } else { "" }),
        Reach::Unplaced => "place not known".into(),
        Reach::Measured(micros) => format!("{micros} µs{from}"),
    };
    if planned.driver == Driver::Remote {
        why += ", driven over the network: no agent is beside it";
    }
    if planned.load_cost >= 0.005 {
        why += &format!(", load +{:.2}", planned.load_cost);
    }
    why
}

fn chains_text(chains: usize, choice: &Choice) -> String {
    let count = if chains == 1 { "1 chain".into() } else { format!("{chains} chains") };
    match choice.reason {
        _ if chains == 0 => "no chain: nothing is open".into(),
        ChoiceReason::Sequential => format!("{count}: the job passes one accumulator from hop to hop"),
        ChoiceReason::Asked => format!("{count}, as the job asks"),
        ChoiceReason::Fastest => {
            format!("{count} of at most {}: more would hardly be faster", choice.at_most)
        }
        ChoiceReason::Hot => format!(
            "{count} of at most {}: {} nodes are hot, and the job's priority leaves room for others",
            choice.at_most, choice.hot
        ),
    }
}

fn order_text(order: &OrderMethod) -> String {
    match order {
        OrderMethod::Given => "the job's own order".into(),
        OrderMethod::Exact => "the shortest of all orders".into(),
        OrderMethod::Improved { nearest_neighbour, improved } => format!(
            "nearest neighbour (way {nearest_neighbour:.1}), improved by 2-opt and Or-opt to {improved:.1}"
        ),
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |millis: f64| humantime::format_duration(Duration::from_micros((millis * 1_000.0) as u64));
        writeln!(f, "plan {}: {}", self.epoch, self.chains)?;
        writeln!(f, "order: {}", self.order)?;
        writeln!(
            f,
            "expected: {} keys in {}, {} bytes moved, at most {} per call; given up after {}",
            self.keys,
            time(self.millis),
            self.bytes_moved,
            time(self.block_millis),
            time(self.timeout_millis as f64)
        )?;
        if !self.uncovered.is_empty() {
            writeln!(f, "no node serves the slots {}", super::ranges_text(&self.uncovered))?;
        }
        let width = |of: fn(&ExplanationRow) -> &str, head: &str| {
            self.rows.iter().map(|row| of(row).len()).chain([head.len()]).max().unwrap_or(0)
        };
        let node = width(|row| &row.node, "node");
        let agent = width(|row| &row.agent, "agent");
        let (node_head, agent_head) = ("node", "agent");
        writeln!(
            f,
            "chain  hop  {node_head:node$}  {agent_head:agent$}  slots        keys    cost          ms  why"
        )?;
        for row in &self.rows {
            writeln!(
                f,
                "{:>5}  {:>3}  {:node$}  {:agent$}  {:>5}  {:>10}  {:>6.2}  {:>10.1}  {}",
                row.chain, row.order, row.node, row.agent, row.slots, row.keys, row.cost, row.millis, row.why
            )?;
        }
        Ok(())
    }
}
