//! The rules of a run, one by one. Whole jobs are in `chain::sim`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::chain::job::{Access, Combine, JobSpec, Step, Target};
use crate::chain::message::{Ack, ChainId, End, Progress, Recalled, Refuse, RefuseReason};
use crate::chain::slots::SlotSet;
use crate::chain::state::{Hop, JobState, KeyError, Part, PlanNode, Tally};
use crate::chain::value::Value;

fn spec(access: Access) -> Arc<JobSpec> {
    let target = Target::Pattern(b"*".to_vec());
    let mut spec = JobSpec::new("j", target, Step::Native("s".into()), Combine::Sum, access);
    spec.limits.max_replans = 2;
    Arc::new(spec)
}

/// A chain over nodes `n<first>` to `n<last>`, each with its agent `a<n>` and its slot `n`.
fn chain(epoch: u32, number: u16, first: u16, last: u16) -> JobState {
    let nodes = 0..=9u16;
    JobState {
        job: spec(Access::Read),
        chain: number,
        epoch,
        nodes: nodes
            .map(|node| PlanNode {
                id: format!("n{node}"),
                redis: String::new(),
                agent: Some(format!("a{node}")),
            })
            .collect(),
        route: (first..=last).map(|node| Hop { node, slots: SlotSet::range(node, node) }).collect(),
        position: 0,
        parts: Vec::new(),
        sequence: Default::default(),
        acc: Value::Nil,
        tally: Default::default(),
        errors: Vec::new(),
        open: BTreeMap::new(),
        failed: None,
        reports: Vec::new(),
    }
}

fn part(slot: u16) -> Part {
    Part {
        node: format!("n{slot}"),
        replication_id: "r".into(),
        slots: SlotSet::range(slot, slot),
        acc: Value::Int(1),
    }
}

/// The same chain at its end, with these slots done.
fn back(state: &JobState, done: &[u16]) -> JobState {
    JobState {
        position: state.route.len() as u32,
        parts: done.iter().map(|slot| part(*slot)).collect(),
        tally: Tally { visited: done.len() as u64, matched: 0, errors: 0 },
        ..state.clone()
    }
}

struct Rig {
    machine: RunMachine,
    now: Millis,
    /// The last record that was to be persisted, and its ticket while it is not.
    disk: Option<RunRecord>,
    writing: Option<(u64, RunRecord)>,
}

impl Rig {
    /// A run over slots 0 to `last`, its first record durable; the plan is asked for.
    fn new(last: u16, access: Access) -> Self {
        let mut out = Vec::new();
        let goal = Goal::Slots(SlotSet::range(0, last));
        let machine = RunMachine::start(RunConfig::default(), spec(access), goal, 0, &mut out);
        let mut rig = Rig { machine, now: 0, disk: None, writing: None };
        rig.note(&out);
        assert!(
            matches!(out[..], [RunEffect::NeedPlan { epoch: 1, .. }, RunEffect::Persist { .. }]),
            "{out:?}"
        );
        assert_eq!(rig.persisted(), []);
        rig
    }

    fn note(&mut self, out: &[RunEffect]) {
        for effect in out {
            if let RunEffect::Persist { ticket, record } = effect {
                assert!(self.writing.is_none());
                self.writing = Some((*ticket, RunRecord::clone(record)));
            }
        }
    }

    fn input(&mut self, input: RunInput) -> Vec<RunEffect> {
        let mut out = Vec::new();
        self.machine.handle(self.now, input, &mut out);
        self.note(&out);
        out.retain(|effect| !matches!(effect, RunEffect::Persist { .. }));
        out
    }

    fn persisted(&mut self) -> Vec<RunEffect> {
        let (ticket, record) = self.writing.take().expect("nothing is being written");
        self.disk = Some(record);
        self.input(RunInput::Persisted { ticket })
    }

    fn planned(&mut self, epoch: u32, chains: Vec<JobState>) -> Vec<RunEffect> {
        self.input(RunInput::Planned { epoch, chains, uncovered: BTreeMap::new() })
    }

    fn receive(&mut self, from: &str, message: Message) -> Vec<RunEffect> {
        self.input(RunInput::Received { from: from.into(), message })
    }

    fn returns(&mut self, from: &str, state: &JobState) -> Vec<RunEffect> {
        self.receive(from, Message::State(Arc::new(state.clone())))
    }

    /// Time goes on to the next alarm.
    fn wait(&mut self) -> Vec<RunEffect> {
        self.now = self.machine.alarm_at().expect("nothing will ever happen");
        self.input(RunInput::Tick)
    }

    fn restart(&mut self) -> Vec<RunEffect> {
        let mut out = Vec::new();
        let record = self.disk.clone().unwrap();
        self.machine = RunMachine::recover(RunConfig::default(), record, self.now, &mut out);
        self.writing = None;
        self.note(&out);
        out
    }

    fn settled(&self) -> Vec<u16> {
        let mut slots = SlotSet::empty();
        for part in &self.machine.record().settled.parts {
            slots.union_with(&part.slots);
        }
        slots.iter().collect()
    }
}

fn send(to: &str, message: Message) -> RunEffect {
    RunEffect::Send { to: to.into(), message }
}

fn sends(to: &str, state: &JobState) -> RunEffect {
    send(to, Message::State(Arc::new(state.clone())))
}

fn end(why: EndReason) -> Message {
    Message::End(End { job: "j".into(), incarnation: 0, why })
}

fn ended() -> Message {
    Message::Ended { job: "j".into() }
}

fn outcome(out: &[RunEffect]) -> &RunOutcome {
    match out {
        [.., RunEffect::Finished { outcome }] => outcome,
        other => panic!("not finished: {other:?}"),
    }
}

fn needs_plan(out: &[RunEffect]) -> Option<(u32, Vec<u16>, Vec<String>)> {
    out.iter().find_map(|effect| match effect {
        RunEffect::NeedPlan { epoch, open, lost, .. } => {
            Some((*epoch, open.iter().collect(), lost.iter().cloned().collect()))
        }
        _ => None,
    })
}

/// Found by `chain::model`: after a crash the chain would be live again, and nobody would have it.
#[test]
fn a_chain_that_was_given_up_is_refused_when_that_is_durable() {
    let mut rig = Rig::new(0, Access::Read);
    let plan = chain(1, 0, 0, 0);
    rig.planned(1, vec![plan.clone()]);
    rig.persisted();
    rig.receive("a0", Message::ack(vec![plan.hop_id()]));
    rig.input(RunInput::AgentLost { agent: "a0".into() });
    let done = back(&plan, &[0]);
    let refuses = |out: &[RunEffect]| {
        out.iter().any(|effect| {
            matches!(effect, RunEffect::Send { message: Message::Refuse(Refuse { hop, .. }), .. } if *hop == done.hop_id())
        })
    };
    let out = rig.returns("a0", &done);
    assert!(!refuses(&out), "{out:?}");
    let out = rig.persisted();
    assert!(refuses(&out), "{out:?}");
    let out = rig.returns("a0", &done);
    assert!(refuses(&out), "durable already: {out:?}");
}

#[test]
fn a_job_goes_through() {
    let mut rig = Rig::new(1, Access::Read);
    let plan = chain(1, 0, 0, 1);
    assert_eq!(rig.planned(1, vec![plan.clone()]), [], "the plan is not durable yet");
    let out = rig.persisted();
    assert!(matches!(&out[0], RunEffect::Send { to, message: Message::Attach(_) } if to == "a0"), "{out:?}");
    assert_eq!(out[2], sends("a0", &plan));
    rig.receive("a0", Message::ack(vec![plan.hop_id()]));
    let done = back(&plan, &[0, 1]);
    assert_eq!(rig.returns("a1", &done), [], "not acknowledged before it is durable");
    let out = rig.persisted();
    assert_eq!(out[0], send("a1", Message::ack(vec![done.hop_id()])));
    assert_eq!(out[1..], [send("a0", end(EndReason::Finished)), send("a1", end(EndReason::Finished))]);
    rig.receive("a0", ended());
    rig.receive("a1", ended());
    let out = rig.persisted();
    let expected = RunOutcome {
        status: EndReason::Finished,
        reason: None,
        partial: false,
        units: 2,
        tally: Tally { visited: 2, matched: 0, errors: 0 },
        unconfirmed: vec![],
    };
    assert_eq!(outcome(&out), &expected);
    assert_eq!(outcome(&rig.restart()), &expected);
    assert_eq!(rig.machine.alarm_at(), None);
}

#[test]
fn a_return_is_folded_once_and_a_strange_one_refused() {
    let mut rig = Rig::new(3, Access::Read);
    let (first, second) = (chain(1, 0, 0, 1), chain(1, 1, 2, 3));
    rig.planned(1, vec![first.clone(), second]);
    rig.persisted();
    let done = back(&first, &[0, 1]);
    rig.returns("a1", &done);
    assert_eq!(rig.returns("a1", &done), [], "a duplicate waits for the same record");
    let ack = send("a1", Message::ack(vec![done.hop_id()]));
    assert_eq!(rig.persisted()[..2], [ack.clone(), ack.clone()]);
    assert_eq!(rig.returns("a1", &done), [ack], "and a late one is told so");
    assert_eq!(rig.machine.record().settled.tally.visited, 2);
    let strange = JobState { epoch: 7, ..done };
    let refuse = Message::refuse(strange.hop_id(), RefuseReason::StaleEpoch { current: 1 });
    assert_eq!(rig.returns("a1", &strange), [send("a1", refuse)]);
}

#[test]
fn a_chain_may_not_bring_what_was_not_its_own() {
    let mut rig = Rig::new(3, Access::Read);
    let (first, second) = (chain(1, 0, 0, 1), chain(1, 1, 2, 3));
    rig.planned(1, vec![first.clone(), second.clone()]);
    rig.persisted();
    rig.returns("a1", &back(&first, &[0, 2]));
    let mut twice = back(&second, &[2, 3]);
    twice.parts.push(part(3));
    rig.returns("a3", &twice);
    assert!(rig.settled().is_empty());
    assert!(rig.machine.record().settled.errors[0].reason.contains("not its own"));
}

#[test]
fn what_is_open_is_planned_again_until_nothing_helps() {
    let mut rig = Rig::new(1, Access::Read);
    let mut epoch = 1;
    let mut open = vec![0, 1];
    for round in 0..4 {
        let plan = chain(epoch, 0, open[0], 1);
        rig.planned(epoch, vec![plan.clone()]);
        rig.persisted();
        let mut done = back(&plan, if round == 0 { &[0] } else { &[] });
        done.open.insert(1, "slot 1 is migrating".into());
        let mut out = rig.returns("a1", &done);
        if round > 0 {
            assert_eq!(needs_plan(&out), None, "a plan that has settled nothing is followed by a wait");
            rig.persisted();
            out = rig.wait();
        } else {
            rig.persisted();
        }
        if round == 3 {
            assert_eq!(needs_plan(&out), None);
            break;
        }
        (epoch, open, _) = needs_plan(&out).unwrap();
        assert_eq!((epoch, &open[..]), (round + 2, &[1][..]));
    }
    let ending = rig.machine.record().ending.clone().unwrap();
    assert_eq!((ending.status, ending.partial), (EndReason::Failed, true));
    assert_eq!(
        ending.reason.as_deref(),
        Some(
            "1 of the job's slots are still open after 3 plans in a row without progress: 1: slot 1 is migrating (slot 1)"
        )
    );
    assert_eq!(rig.settled(), [0], "the partial result stays");
}

#[test]
fn waits_between_plans_without_progress_grow() {
    let mut rig = Rig::new(1, Access::Read);
    let mut waits = Vec::new();
    for _ in 0..2 {
        let epoch = rig.machine.record().epoch + 1;
        rig.input(RunInput::PlanFailed { epoch, reason: "no node answers".into(), permanent: false });
        let before = rig.now;
        assert!(needs_plan(&rig.wait()).is_some());
        waits.push(rig.now - before);
    }
    assert_eq!(waits, [50, 100]);
    rig.input(RunInput::PlanFailed { epoch: 1, reason: "no node answers".into(), permanent: false });
    rig.wait();
    assert!(
        rig.machine.record().ending.as_ref().unwrap().reason.as_ref().unwrap().contains("no node answers")
    );
}

#[test]
fn a_lost_agent_is_planned_around_while_other_chains_go_on() {
    let mut rig = Rig::new(4, Access::Read);
    let (first, second) = (chain(1, 0, 0, 2), chain(1, 1, 3, 4));
    rig.planned(1, vec![first.clone(), second.clone()]);
    rig.persisted();
    rig.receive("a0", Message::ack(vec![first.hop_id()]));
    rig.receive("a3", Message::ack(vec![second.hop_id()]));
    let out = rig.input(RunInput::AgentLost { agent: "a2".into() });
    let recall = Message::Recall(ChainId::of(&first));
    assert_eq!(out[..2], [send("a0", recall.clone()), send("a1", recall)]);
    let held = JobState { position: 1, parts: vec![part(0)], ..first.clone() };
    let recalled =
        |state| Message::Recalled(Recalled { chain: ChainId::of(&first), state: Some(Arc::new(state)) });
    let older = JobState { position: 0, parts: vec![], ..first.clone() };
    rig.receive("a1", recalled(held));
    let out = rig.receive("a0", recalled(older));
    assert_eq!(rig.settled(), [0]);
    assert_eq!(needs_plan(&out), None, "what else is left open is gathered for a while");
    let mut out = Vec::new();
    while needs_plan(&out).is_none() {
        out = rig.wait();
        if rig.writing.is_some() {
            rig.persisted();
        }
    }
    assert_eq!(needs_plan(&out), Some((2, vec![1, 2], vec!["a2".into()])));
    assert_eq!(rig.now, 1_000);
    let again = chain(2, 0, 1, 1);
    rig.planned(2, vec![again]);
    rig.persisted();
    // The lost agent is back with the chain: too late.
    let late = back(&first, &[0, 1, 2]);
    let refuse = Message::refuse(late.hop_id(), RefuseReason::StaleEpoch { current: 1 });
    assert_eq!(rig.returns("a2", &late), [send("a2", refuse)]);
    rig.returns("a4", &back(&second, &[3, 4]));
    assert_eq!(rig.settled(), [0, 3, 4]);
    // From now on nothing below epoch 2 is live, and the agents hear it when that is durable.
    let out = rig.persisted();
    assert!(out.iter().any(|effect| matches!(effect,
        RunEffect::Send { message: Message::Attach(attach), .. } if attach.epoch == 2)));
}

#[test]
fn an_agent_behind_the_chain_may_be_lost() {
    let mut rig = Rig::new(2, Access::Read);
    let plan = chain(1, 0, 0, 2);
    rig.planned(1, vec![plan.clone()]);
    rig.persisted();
    let progress = Progress {
        chain: ChainId::of(&plan),
        position: 1,
        node: "n1".into(),
        tally: Tally::default(),
        units_done: 1,
    };
    rig.receive("a1", Message::Progress(progress));
    assert_eq!(rig.machine.units_done(), 1);
    let out = rig.input(RunInput::AgentLost { agent: "a0".into() });
    assert!(!out.iter().any(|effect| matches!(effect, RunEffect::Send { message: Message::Recall(_), .. })));
}

#[test]
fn a_chain_that_nobody_speaks_of_is_given_up() {
    let mut rig = Rig::new(0, Access::Read);
    let plan = chain(1, 0, 0, 0);
    rig.planned(1, vec![plan.clone()]);
    rig.persisted();
    rig.receive("a0", Message::ack(vec![plan.hop_id()]));
    let (mut attached, mut recalled) = (0, 0);
    let plan_asked = loop {
        let out = rig.wait();
        for effect in &out {
            match effect {
                RunEffect::Send { message: Message::Attach(_), .. } => attached += 1,
                RunEffect::Send { message: Message::Recall(_), .. } => recalled += 1,
                _ => {}
            }
        }
        if needs_plan(&out).is_some() {
            break needs_plan(&out);
        }
    };
    assert!(attached > 0 && recalled > 0);
    assert_eq!(plan_asked, Some((2, vec![0], vec!["a0".into()])), "who does not answer is planned around");
    assert!((33_000..34_000).contains(&rig.now), "{}", rig.now);
}

#[test]
fn a_first_state_is_sent_until_it_is_taken() {
    let mut rig = Rig::new(0, Access::Read);
    let plan = chain(1, 0, 0, 0);
    rig.planned(1, vec![plan.clone()]);
    rig.persisted();
    assert!(rig.wait().contains(&sends("a0", &plan)));
    rig.receive("a0", Message::Refuse(Refuse { hop: plan.hop_id(), reason: RefuseReason::Busy }));
    assert!(rig.wait().contains(&sends("a0", &plan)));
    assert!(rig.input(RunInput::Connected { agent: "a0".into() }).contains(&sends("a0", &plan)));
    assert!(
        rig.restart().contains(&sends("a0", &plan)),
        "a new coordinator does not know whether it was sent"
    );
    rig.receive("a0", Message::Ack(Ack { hops: vec![plan.hop_id()], forwarded: vec![] }));
    assert!(!rig.wait().contains(&sends("a0", &plan)));
}

#[test]
fn a_failed_chain_ends_the_job() {
    let mut rig = Rig::new(3, Access::Read);
    let (first, second) = (chain(1, 0, 0, 1), chain(1, 1, 2, 3));
    rig.planned(1, vec![first.clone(), second.clone()]);
    rig.persisted();
    let error = KeyError { key: b"user:\xff".to_vec(), node: "n1".into(), reason: "wrong type".into() };
    let failed = JobState { failed: Some(error), ..back(&first, &[0]) };
    assert_eq!(rig.returns("a1", &failed), []);
    let out = rig.persisted();
    assert!(out.contains(&send("a3", end(EndReason::Failed))));
    let late = back(&second, &[2, 3]);
    let refuse = Message::refuse(late.hop_id(), RefuseReason::Ended);
    assert_eq!(rig.returns("a3", &late), [send("a3", refuse)]);
    for agent in ["a0", "a1", "a2", "a3"] {
        rig.receive(agent, ended());
    }
    let out = rig.persisted();
    let outcome = outcome(&out);
    assert_eq!(outcome.reason.as_deref(), Some("node n1: key \"user:\\xff\": wrong type"));
    assert!(outcome.partial);
    assert_eq!(rig.settled(), [0]);
    // The task's next attempt goes on from there.
    let mut record = rig.disk.clone().unwrap();
    assert!(record.retry());
    rig.disk = Some(record);
    assert_eq!(needs_plan(&rig.restart()), Some((2, vec![1, 2, 3], vec![])));
}

#[test]
fn values_that_do_not_fold_fail_the_job() {
    let mut rig = Rig::new(1, Access::Read);
    let (first, second) = (chain(1, 0, 0, 0), chain(1, 1, 1, 1));
    rig.planned(1, vec![first.clone(), second.clone()]);
    rig.persisted();
    rig.returns("a0", &back(&first, &[0]));
    let mut other = back(&second, &[1]);
    other.parts[0].node = "n0".into();
    other.parts[0].acc = Value::from("text");
    rig.returns("a1", &other);
    assert!(rig.machine.record().ending.as_ref().unwrap().reason.as_ref().unwrap().contains("cannot fold"));
}

#[test]
fn a_cancel_is_durable_then_told_then_final() {
    let mut rig = Rig::new(1, Access::Read);
    rig.planned(1, vec![chain(1, 0, 0, 1)]);
    rig.persisted();
    assert_eq!(rig.input(RunInput::Cancel), []);
    assert_eq!(
        rig.persisted(),
        [send("a0", end(EndReason::Cancelled)), send("a1", end(EndReason::Cancelled))]
    );
    rig.receive("a0", ended());
    assert_eq!(rig.wait(), [send("a1", end(EndReason::Cancelled))]);
    let out = rig.restart();
    assert!(out.contains(&send("a0", end(EndReason::Cancelled))), "who has said so is not remembered");
    rig.receive("a0", ended());
    // One agent cannot be reached: it is waited for, and then named.
    while rig.writing.is_none() {
        rig.wait();
    }
    let out = rig.persisted();
    let outcome = outcome(&out);
    assert_eq!((outcome.status, &outcome.unconfirmed[..]), (EndReason::Cancelled, &["a1".to_owned()][..]));
    assert_eq!(rig.input(RunInput::Cancel), []);
    assert!(!rig.disk.clone().unwrap().retry(), "for good");
}

#[test]
fn a_job_that_did_not_finish_says_how_far_it_came() {
    let mut rig = Rig::new(9, Access::Read);
    let (first, second) = (chain(1, 0, 0, 1), chain(1, 1, 2, 9));
    rig.planned(1, vec![first.clone(), second.clone()]);
    rig.persisted();
    let told = |units_done| {
        let tally = Tally { visited: 10 * units_done, matched: units_done, errors: 0 };
        Message::Progress(Progress {
            chain: ChainId::of(&second),
            position: 0,
            node: "n2".into(),
            tally,
            units_done,
        })
    };
    rig.receive("a2", told(3));
    rig.receive("a2", told(2)); // it was killed, and goes on from its checkpoint
    rig.returns("a1", &back(&first, &[0, 1]));
    rig.persisted();
    rig.input(RunInput::Cancel);
    rig.persisted();
    rig.receive("a2", told(4)); // too late: the end is decided on
    let expected = (5, Tally { visited: 32, matched: 3, errors: 0 });
    assert_eq!((rig.machine.units_done(), rig.machine.tally()), expected);
    while rig.writing.is_none() {
        rig.wait();
    }
    let out = rig.persisted();
    let outcome = outcome(&out);
    assert_eq!((outcome.units, outcome.tally, outcome.partial), (expected.0, expected.1, true));
    assert_eq!(rig.settled(), [0, 1], "the result has only what came back");
}

#[test]
fn a_cancel_before_the_plan_needs_nobody() {
    let mut rig = Rig::new(1, Access::Read);
    rig.input(RunInput::Cancel);
    rig.persisted();
    let out = rig.persisted();
    assert_eq!(outcome(&out).status, EndReason::Cancelled);
    assert_eq!(rig.planned(1, vec![chain(1, 0, 0, 1)]), [], "too late");
    assert!(rig.machine.record().live.is_empty());
}

#[test]
fn writes_under_a_primary_that_is_gone_are_done_again() {
    let mut rig = Rig::new(1, Access::Write);
    let plan = chain(1, 0, 0, 1);
    rig.planned(1, vec![plan.clone()]);
    rig.persisted();
    let out = rig.returns("a1", &back(&plan, &[0, 1]));
    let key = |slot: u16| PartKey { node: format!("n{slot}"), replication_id: "r".into() };
    assert_eq!(out, [RunEffect::Verify { parts: vec![key(0), key(1)] }]);
    assert_eq!(rig.wait(), out, "asked again while there is no answer");
    let out = rig.input(RunInput::Verified { gone: vec![key(1)] });
    assert_eq!(needs_plan(&out), Some((2, vec![1], vec![])));
    rig.persisted();
    let again = chain(2, 0, 1, 1);
    rig.planned(2, vec![again.clone()]);
    rig.persisted();
    let mut done = back(&again, &[1]);
    done.parts[0].replication_id = "r2".into();
    assert!(matches!(rig.returns("a1", &done)[..], [RunEffect::Verify { .. }]));
    rig.input(RunInput::Verified { gone: vec![] });
    assert_eq!(rig.machine.record().ending.as_ref().unwrap().status, EndReason::Finished);
}

#[test]
fn a_plan_that_cannot_be_is_a_defect_that_is_named() {
    let overlapping = vec![chain(1, 0, 0, 1), chain(1, 1, 1, 1)];
    let twice = vec![chain(1, 0, 0, 0), chain(1, 0, 1, 1)];
    let not_open = vec![chain(1, 0, 1, 2)];
    let under_way = vec![JobState { position: 1, ..chain(1, 0, 0, 1) }];
    let no_node = vec![JobState { nodes: vec![], ..chain(1, 0, 0, 1) }];
    let not_empty = vec![JobState { parts: vec![part(0)], ..chain(1, 0, 0, 1) }];
    for chains in [overlapping, twice, not_open, under_way, no_node, not_empty, vec![chain(2, 0, 0, 1)]] {
        let mut rig = Rig::new(1, Access::Read);
        rig.planned(1, chains);
        let ending = rig.machine.record().ending.clone().unwrap();
        assert!(ending.reason.unwrap().contains("a defect of the planner"));
    }
}

#[test]
fn a_job_without_units_is_finished_at_once() {
    let mut out = Vec::new();
    let goal = Goal::Slots(SlotSet::empty());
    let mut machine = RunMachine::start(RunConfig::default(), spec(Access::Read), goal, 0, &mut out);
    while let Some(RunEffect::Persist { ticket, .. }) = out.pop() {
        out.clear();
        machine.handle(0, RunInput::Persisted { ticket }, &mut out);
        if out.iter().any(|effect| matches!(effect, RunEffect::Finished { .. })) {
            break;
        }
    }
    assert_eq!(outcome(&out).status, EndReason::Finished);
}

#[test]
fn a_record_survives_the_codec() {
    let mut rig = Rig::new(3, Access::Read);
    let (first, second) = (chain(1, 0, 0, 1), chain(1, 1, 2, 3));
    rig.planned(1, vec![first.clone(), second]);
    rig.persisted();
    rig.returns("a1", &back(&first, &[0, 1]));
    let record = rig.machine.record();
    let mut bytes = Vec::new();
    crate::chain::frame::encode_run(record, &mut bytes).unwrap();
    assert_eq!(&crate::chain::frame::decode_run(&bytes).unwrap(), record);
}

#[test]
fn later_incarnations_number_their_plans_above_all_earlier_ones() {
    let next = |incarnation, record: RunRecord| {
        let config = RunConfig { incarnation, ..RunConfig::default() };
        let machine = RunMachine::recover(config, record, 0, &mut Vec::new());
        (machine.record().epoch + 1, machine.record().clone())
    };
    let fresh = || RunRecord::new(spec(Access::Read), Goal::Slots(SlotSet::range(0, 1)));
    assert_eq!(next(1, fresh()).0, 1);
    let (third, record) = next(3, fresh());
    assert_eq!((third, record.plan_number(third)), (8_193, 1));
    assert_eq!(next(4, record).0, third, "a takeover goes on with the record");
    assert!(next(u64::MAX, fresh()).0 > third);
}
