//! What must hold in every state, and at the end.

use std::collections::BTreeMap;

use super::actions::Job;
use super::effects::{delta, keeps};
use super::world::{Agent, World, address};
use crate::chain::message::{ChainId, EndReason};
use crate::chain::run::{LiveChain, RunOutcome, RunRecord};
use crate::chain::slots::SlotSet;
use crate::chain::state::HopId;
use crate::chain::value::Value;

impl Job {
    pub(super) fn check_world(&self, world: &World) -> Result<(), String> {
        if let Some(violation) = &world.violation {
            return Err(violation.clone());
        }
        let machine = world.coordinator.machine.as_ref();
        for record in
            machine.map(|machine| machine.record()).into_iter().chain(world.coordinator.disk.as_deref())
        {
            check_ledger(record, self.bounds.units)?;
        }
        check_copies(world)?;
        check_holders(world)?;
        match &world.outcome {
            Some(outcome) => self.check_end(world, outcome),
            None => Ok(()),
        }
    }

    /// All units are folded, or the end says that it is partial and why.
    fn check_end(&self, world: &World, outcome: &RunOutcome) -> Result<(), String> {
        let record = world.coordinator.disk.as_ref().ok_or("it is over, and nothing is on the disk")?;
        if !record.over || record.ending.as_ref() != Some(outcome) {
            return Err(format!("{outcome:?} is not what is on the disk"));
        }
        if let Some(error) = record.settled.errors.first() {
            return Err(format!("a chain was refused: {}", error.reason));
        }
        if outcome.partial == record.open_slots().is_empty() {
            return Err(format!("{outcome:?}, and open is {:?}", record.open_slots()));
        }
        let told = (0..world.agents.len()).filter(|agent| !outcome.unconfirmed.contains(&address(*agent)));
        for agent in told {
            if record.agents.contains(&address(agent)) && !world.agents[agent].running.is_empty() {
                return Err(format!("agent {agent} has confirmed the end and runs something"));
            }
        }
        let faults = self.bounds.faults;
        match outcome.status {
            EndReason::Finished if outcome.partial => {
                Err(format!("finished without {:?}", record.open_slots()))
            }
            EndReason::Failed if world.left == faults || outcome.reason.is_none() => {
                Err(format!("failed for no reason: {outcome:?}"))
            }
            EndReason::Cancelled if world.left.cancel == faults.cancel => {
                Err("nobody has cancelled it".into())
            }
            _ => Ok(()),
        }
    }
}

/// No unit is folded twice, and the ledger marks exactly what is folded.
fn check_ledger(record: &RunRecord, units: u16) -> Result<(), String> {
    let mut sum = 0;
    let mut ledger = SlotSet::empty();
    for part in &record.settled.parts {
        if part.slots.intersects(&ledger) {
            return Err(format!("two parts share a unit: {:?}", record.settled.parts));
        }
        ledger.union_with(&part.slots);
        for acc in &part.accs {
            let Value::Int(number) = acc else { return Err(format!("{acc:?} is no sum")) };
            sum += number;
        }
    }
    let expected: i64 = ledger.iter().map(delta).sum();
    if sum != expected || ledger.iter().any(|unit| unit >= units) {
        return Err(format!("the ledger has {ledger:?}, and the units folded are {sum:x}"));
    }
    Ok(())
}

/// Each chain that is live in the coordinator's durable record has a durable copy that nobody is about to forget: with
/// the coordinator, while it does not know it acknowledged, or on the disk of an agent that keeps a state of the chain.
fn check_copies(world: &World) -> Result<(), String> {
    let Some(disk) = &world.coordinator.disk else { return Ok(()) };
    let memory = world.coordinator.machine.as_ref().map_or(&**disk, |machine| machine.record());
    for chain in &disk.live {
        let same = |live: &&LiveChain| (live.epoch, live.chain) == (chain.epoch, chain.chain);
        let known = memory.live.iter().find(same);
        if chain.unsent.is_some() && known.is_none_or(|live| live.unsent.is_some()) {
            continue;
        }
        let id = ChainId { job: disk.spec.id.clone(), epoch: chain.epoch, chain: chain.chain };
        let kept = |agent: &Agent| {
            let on_disk = agent.log[..agent.synced].iter().any(|record| keeps(record, &id));
            on_disk && agent.machine.as_ref().is_none_or(|machine| machine.keeps(&id))
        };
        if !world.agents.iter().any(|agent| kept(agent)) {
            return Err(format!("nobody has a durable state of {id:?}"));
        }
    }
    Ok(())
}

/// One hop is never with two agents that may run it, and one chain is with more than one only after crashes.
fn check_holders(world: &World) -> Result<(), String> {
    let mut holders: BTreeMap<(u32, u16), Vec<(usize, &HopId)>> = BTreeMap::new();
    for (agent, of) in world.agents.iter().enumerate() {
        for hop in of.machine.iter().flat_map(|machine| machine.may_run()) {
            holders.entry((hop.epoch, hop.chain)).or_default().push((agent, hop));
        }
    }
    for holders in holders.values() {
        if holders.len() > 1 + usize::from(world.crashes) {
            return Err(format!("too many may go on with one chain: {holders:?}"));
        }
        for (place, (_, hop)) in holders.iter().enumerate() {
            if holders[..place].iter().any(|(_, other)| other == hop) {
                return Err(format!("two agents may run one hop: {holders:?}"));
            }
        }
    }
    Ok(())
}
