//! The rules of the hand-off, one by one. Whole jobs are in `chain::sim`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::chain::job::{Access, Combine, JobSpec, Step, Target};
use crate::chain::message::{Ack, Attach, ChainId, End, EndReason, Progress, Recalled, Refuse, RefuseReason};
use crate::chain::slots::SlotSet;
use crate::chain::state::{Hop, Part, PlanNode};
use crate::chain::value::Value;

const UPSTREAM: Link = Link::Conn(1);
const COORDINATOR: Link = Link::Conn(9);

/// A chain over the agents `b`, `b` (another node) and `c`; this agent is `b`.
fn state(retain: u8) -> JobState {
    let target = Target::Pattern(b"*".to_vec());
    let mut spec = JobSpec::new("j", target, Step::Native("s".into()), Combine::Sum, Access::Read);
    spec.limits.retain = retain;
    let node =
        |id: &str, agent: &str| PlanNode { id: id.into(), redis: id.into(), agent: Some(agent.into()) };
    JobState {
        job: Arc::new(spec),
        chain: 0,
        epoch: 5,
        nodes: vec![node("n0", "b"), node("n1", "b"), node("n2", "c")],
        route: (0..3).map(|node| Hop { node, slots: SlotSet::range(node, node) }).collect(),
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

fn at(position: u32) -> JobState {
    JobState { position, ..state(1) }
}

fn hop(number: u32) -> HopId {
    HopId { job: "j".into(), chain: 0, epoch: 5, hop: number }
}

/// A machine with its outbox.
struct Rig {
    machine: HopMachine,
    now: Millis,
    disk: Vec<Record>,
}

impl Rig {
    fn new() -> Self {
        Self::with(|_| ())
    }

    fn with(change: impl FnOnce(&mut HopConfig)) -> Self {
        let mut config = HopConfig::new("b");
        change(&mut config);
        let mut out = Vec::new();
        let machine = HopMachine::recover(config, [], 0, &mut out);
        assert_eq!(out, []);
        Rig { machine, now: 0, disk: Vec::new() }
    }

    fn input(&mut self, input: HopInput) -> Vec<HopEffect> {
        let mut out = Vec::new();
        self.machine.handle(self.now, input, &mut out);
        for effect in &out {
            if let HopEffect::Persist { record, .. } | HopEffect::Note { record } = effect {
                self.disk.push(record.clone());
            }
        }
        out
    }

    fn receive(&mut self, from: Link, message: Message) -> Vec<HopEffect> {
        self.input(HopInput::Received { from, message, bytes: 100 })
    }

    fn take(&mut self, state: JobState) -> Vec<HopEffect> {
        self.receive(UPSTREAM, Message::State(Arc::new(state)))
    }

    fn persisted(&mut self) -> Vec<HopEffect> {
        self.input(HopInput::Persisted { up_to: u64::MAX - 1 })
    }

    /// Takes a hop and starts it.
    fn running(&mut self, state: JobState) {
        let id = state.hop_id();
        self.take(state);
        let out = self.persisted();
        assert!(
            out.iter().any(|effect| matches!(effect, HopEffect::Run { hop, .. } if *hop == id)),
            "{out:?}"
        );
    }

    fn ran(&mut self, from: u32, state: JobState) -> Vec<HopEffect> {
        self.input(HopInput::Ran { hop: hop(from), state: Arc::new(state) })
    }

    fn attach(&mut self, epoch: u32, incarnation: u64) -> Vec<HopEffect> {
        let job = "j".into();
        self.receive(COORDINATOR, Message::Attach(Attach { job, epoch, incarnation }))
    }

    fn end(&mut self, why: EndReason) -> Vec<HopEffect> {
        self.receive(COORDINATOR, Message::End(End { job: "j".into(), incarnation: 1, why }))
    }

    fn recall(&mut self) -> Option<Arc<JobState>> {
        let out = self.receive(COORDINATOR, Message::Recall(ChainId::of(&state(1))));
        let recalled = out.into_iter().find_map(|effect| match effect {
            HopEffect::Send { to: COORDINATOR, message: Message::Recalled(Recalled { state, .. }) } => {
                Some(state)
            }
            _ => None,
        });
        recalled.unwrap()
    }

    /// Starts again from what the disk holds.
    fn restart(&mut self) -> Vec<HopEffect> {
        let mut out = Vec::new();
        let config = self.machine.config.clone();
        self.machine = HopMachine::recover(config, self.disk.clone(), self.now, &mut out);
        out
    }
}

fn send(to: Link, message: Message) -> HopEffect {
    HopEffect::Send { to, message }
}

fn sends(to: Link, state: &JobState) -> HopEffect {
    send(to, Message::State(Arc::new(state.clone())))
}

fn agent(name: &str) -> Link {
    Link::Agent(name.into())
}

fn refusal(number: u32, reason: RefuseReason) -> HopEffect {
    send(UPSTREAM, Message::refuse(hop(number), reason))
}

#[test]
fn a_hop_is_acknowledged_when_it_is_durable_and_run_then() {
    let mut rig = Rig::new();
    let record = Record::Held { hop: hop(0), state: Arc::new(at(0)) };
    assert_eq!(rig.take(at(0)), [HopEffect::Persist { ticket: 1, record }]);
    assert_eq!(rig.take(at(0)), [], "a duplicate waits for the same record");
    let ack = send(UPSTREAM, Message::ack(vec![hop(0)]));
    assert_eq!(rig.persisted(), [ack.clone(), HopEffect::Run { hop: hop(0), state: Arc::new(at(0)) }]);
    assert_eq!(rig.take(at(0)), std::slice::from_ref(&ack), "held");
    rig.input(HopInput::Connected { link: agent("c") });
    rig.ran(0, at(2));
    rig.receive(agent("c"), Message::ack(vec![hop(2)]));
    assert_eq!(rig.take(at(0)), [ack], "done");
}

#[test]
fn acknowledgements_of_one_sync_go_out_together() {
    let mut rig = Rig::new();
    for chain in 0..3 {
        rig.take(JobState { chain, ..at(0) });
    }
    let hops = (0..3).map(|chain| HopId { chain, ..hop(0) }).collect();
    assert_eq!(rig.persisted()[0], send(UPSTREAM, Message::ack(hops)));
}

#[test]
fn a_hop_of_the_same_agent_follows_without_a_sync() {
    let mut rig = Rig::new();
    rig.running(at(0));
    let moved = Record::Moved { from: hop(0), hop: hop(1), state: Arc::new(at(1)) };
    assert_eq!(
        rig.ran(0, at(1)),
        [HopEffect::Note { record: moved }, HopEffect::Run { hop: hop(1), state: Arc::new(at(1)) }]
    );
    // Somebody else wants to forget what is only here, and here only lazily.
    let out = rig.take(at(1));
    assert!(matches!(&out[..], [HopEffect::Persist { record: Record::Held { .. }, .. }]), "{out:?}");
    assert_eq!(rig.persisted(), [send(UPSTREAM, Message::ack(vec![hop(1)]))]);
}

#[test]
fn a_forward_is_sent_unsynced_and_again_until_it_is_acknowledged() {
    let mut rig = Rig::new();
    rig.running(at(1));
    assert_eq!(rig.ran(1, at(2)), [sends(agent("c"), &at(2))], "to an agent that is to be dialled");
    assert_eq!(rig.input(HopInput::Connected { link: agent("c") }), [sends(agent("c"), &at(2))]);
    let alarm = rig.machine.alarm_at().unwrap();
    assert_eq!(alarm, 500);
    rig.now = alarm;
    assert_eq!(rig.input(HopInput::Tick), [sends(agent("c"), &at(2))]);
    rig.input(HopInput::Lost { link: agent("c") });
    assert_eq!(rig.input(HopInput::Connected { link: agent("c") }), [sends(agent("c"), &at(2))]);
    assert_eq!(rig.receive(agent("x"), Message::ack(vec![hop(2)])), [], "not its receiver");
    let done = HopEffect::Note { record: Record::Done { hop: hop(1) } };
    assert_eq!(rig.receive(agent("c"), Message::ack(vec![hop(2)])), [done]);
    assert_eq!((rig.machine.pending(), rig.machine.alarm_at()), (0, None));
}

#[test]
fn forwards_are_pipelined_within_a_window() {
    let mut rig = Rig::with(|config| config.window = 2);
    rig.input(HopInput::Connected { link: agent("c") });
    let mut sent = 0;
    for chain in 0..4 {
        rig.running(JobState { chain, ..at(1) });
        let hop = HopId { chain, ..hop(1) };
        sent += rig.input(HopInput::Ran { hop, state: Arc::new(JobState { chain, ..at(2) }) }).len();
    }
    assert_eq!(sent, 2);
    let out = rig.receive(agent("c"), Message::ack(vec![HopId { chain: 1, ..hop(2) }]));
    assert!(out.contains(&sends(agent("c"), &JobState { chain: 2, ..at(2) })), "{out:?}");
    // A busy peer is asked again later, and others may use its place in the window.
    let busy = Refuse { hop: HopId { chain: 0, ..hop(2) }, reason: RefuseReason::Busy };
    let out = rig.receive(agent("c"), Message::Refuse(busy));
    assert_eq!(out, [sends(agent("c"), &JobState { chain: 3, ..at(2) })]);
}

#[test]
fn a_full_agent_is_busy_but_never_for_hops_that_are_further_on() {
    let mut rig = Rig::with(|config| config.capacity = 2);
    for chain in 1..=2 {
        rig.take(JobState { chain, ..at(0) });
    }
    assert_eq!(rig.take(at(0)), [refusal(0, RefuseReason::Busy)]);
    assert!(matches!(rig.take(at(1))[..], [HopEffect::Persist { .. }]));
    assert_eq!(rig.take(JobState { chain: 9, ..at(1) }).len(), 1);
    let mut rig = Rig::with(|config| config.capacity_bytes = 150);
    rig.take(JobState { chain: 1, ..at(0) });
    assert_eq!(rig.take(at(0)), [refusal(0, RefuseReason::Busy)]);
}

#[test]
fn after_a_crash_a_hop_runs_again_from_its_checkpoint() {
    let mut rig = Rig::new();
    rig.running(at(1));
    let mut further = at(1);
    further.tally.visited = 7;
    rig.input(HopInput::Checkpoint { hop: hop(1), state: Arc::new(further.clone()) });
    rig.ran(1, at(2)); // sent, and nothing of it is on the disk
    assert_eq!(rig.restart(), [HopEffect::Run { hop: hop(1), state: Arc::new(further) }]);
    rig.ran(1, at(2));
    rig.receive(agent("c"), Message::ack(vec![hop(2)]));
    assert_eq!(rig.restart(), []);
    assert_eq!(rig.take(at(1)), [send(UPSTREAM, Message::ack(vec![hop(1)]))]);
    // A new segment with the snapshot says the same.
    rig.disk = rig.machine.snapshot();
    assert_eq!(rig.restart(), []);
    assert_eq!(rig.take(at(1)), [send(UPSTREAM, Message::ack(vec![hop(1)]))]);
}

/// Found by `chain::model`: forgotten here and kept by the outbox, the fence would take a hop away in a crash that
/// has been acknowledged.
#[test]
fn a_fence_outlives_the_connection_that_it_came_over() {
    let mut rig = Rig::new();
    rig.attach(6, 1);
    rig.input(HopInput::Lost { link: COORDINATOR });
    let stale = [refusal(0, RefuseReason::StaleEpoch { current: 6 })];
    assert_eq!(rig.take(at(0)), stale);
    rig.restart();
    assert_eq!(rig.take(at(0)), stale);

    let mut rig = Rig::new();
    rig.attach(5, 1);
    assert_eq!(rig.recall(), None);
    rig.input(HopInput::Lost { link: COORDINATOR });
    assert_eq!(rig.take(at(0)), stale, "recalled");
}

/// Found by `chain::model`: the snapshot says that the chain is recalled before it says what is retained of it.
#[test]
fn what_is_retained_of_a_recalled_chain_is_in_the_snapshot() {
    let mut rig = Rig::new();
    rig.running(JobState { position: 1, ..state(2) });
    let sent = Arc::new(JobState { position: 2, ..state(2) });
    rig.input(HopInput::Ran { hop: hop(1), state: sent.clone() });
    rig.receive(agent("c"), Message::ack(vec![hop(2)]));
    assert_eq!(rig.recall(), Some(sent.clone()));
    rig.disk = rig.machine.snapshot();
    rig.restart();
    assert_eq!(rig.recall(), Some(sent));
}

/// Found by `chain::model`: an end says whose it is, so that the attach of the same coordinator, read later from the rest
/// of an older connection, is not taken for a new attempt's.
#[test]
fn an_end_is_not_taken_back_by_an_attach_that_it_has_overtaken() {
    let mut rig = Rig::new();
    rig.end(EndReason::Failed);
    let ended = send(COORDINATOR, Message::Ended { job: "j".into() });
    assert_eq!(rig.persisted(), std::slice::from_ref(&ended));
    assert_eq!(rig.attach(5, 1), [ended]);
    assert_eq!(rig.take(at(0)), [refusal(0, RefuseReason::Ended)]);
    rig.attach(6, 2);
    rig.running(JobState { epoch: 6, ..at(0) });
    // Nor does the end of one that another has followed end what is the other's.
    assert_eq!(rig.end(EndReason::Failed), []);
    let taken = rig.take(JobState { epoch: 6, ..at(1) });
    assert!(matches!(taken[..], [HopEffect::Persist { record: Record::Held { .. }, .. }]), "{taken:?}");
}

#[test]
fn the_end_is_durable_and_waits_for_what_runs() {
    let mut rig = Rig::new();
    rig.running(at(0));
    let out = rig.end(EndReason::Cancelled);
    assert!(
        matches!(
            &out[..],
            [
                HopEffect::Persist { record: Record::Ended { retryable: false, .. }, .. },
                HopEffect::Abort { .. },
            ]
        ),
        "{out:?}"
    );
    assert_eq!(rig.persisted(), [], "a hop still runs");
    let ended = send(COORDINATOR, Message::Ended { job: "j".into() });
    assert_eq!(rig.input(HopInput::Stopped { hop: hop(0) }), std::slice::from_ref(&ended));
    assert_eq!(rig.take(at(0)), [refusal(0, RefuseReason::Ended)]);
    assert_eq!(rig.restart(), []);
    assert_eq!(rig.take(at(0)), [refusal(0, RefuseReason::Ended)]);
    assert_eq!(rig.end(EndReason::Cancelled), std::slice::from_ref(&ended));
    assert_eq!(rig.attach(6, 99), [ended], "for good, whoever asks");
    rig.disk = rig.machine.snapshot();
    rig.restart();
    assert_eq!(rig.take(at(0)), [refusal(0, RefuseReason::Ended)]);
}

#[test]
fn a_hop_that_ends_while_it_is_aborted_counts_as_stopped() {
    let mut rig = Rig::new();
    rig.running(at(0));
    rig.end(EndReason::Finished);
    rig.persisted();
    assert_eq!(rig.ran(0, at(2)), [send(COORDINATOR, Message::Ended { job: "j".into() })]);
}

#[test]
fn a_job_that_was_not_cancelled_is_taken_up_again_by_a_later_incarnation() {
    let mut rig = Rig::new();
    rig.attach(5, 1);
    rig.end(EndReason::Finished);
    rig.persisted();
    assert_eq!(rig.attach(6, 1).len(), 1, "the same attempt hears that it has ended");
    let fence = Record::Fence { job: "j".into(), epoch: 6, incarnation: 2 };
    assert_eq!(rig.attach(6, 2), [HopEffect::Note { record: fence }]);
    rig.restart();
    assert_eq!(rig.take(at(0)), [refusal(0, RefuseReason::StaleEpoch { current: 6 })]);
    assert!(matches!(rig.take(JobState { epoch: 6, ..at(0) })[..], [HopEffect::Persist { .. }]));
    assert_eq!(rig.attach(7, 1), [], "a zombie");
}

#[test]
fn a_fence_drops_what_is_below() {
    let mut rig = Rig::new();
    rig.running(at(0));
    rig.take(JobState { epoch: 4, chain: 3, ..at(0) });
    let out = rig.attach(6, 1);
    let chain = ChainId { job: "j".into(), epoch: 4, chain: 3 };
    let stale = HopId { job: chain.job, epoch: 4, chain: 3, hop: 0 };
    assert!(out.contains(&HopEffect::Abort { hop: hop(0) }));
    assert!(out.contains(&send(UPSTREAM, Message::refuse(stale, RefuseReason::StaleEpoch { current: 6 }))));
    assert_eq!((rig.machine.pending(), rig.persisted()), (0, vec![]));
    assert_eq!(rig.restart(), []);
}

#[test]
fn the_chains_end_goes_to_whoever_has_attached() {
    let mut rig = Rig::new();
    rig.running(at(1));
    assert_eq!(rig.ran(1, at(3)), [], "nobody has");
    let out = rig.attach(5, 1);
    assert!(out.contains(&sends(COORDINATOR, &at(3))), "{out:?}");
    rig.input(HopInput::Lost { link: COORDINATOR });
    assert_eq!(rig.receive(COORDINATOR, Message::ack(vec![hop(3)])), [], "that connection is gone");
    let other = Link::Conn(10);
    let attach = Message::Attach(Attach { job: "j".into(), epoch: 5, incarnation: 1 });
    assert!(rig.receive(other.clone(), attach).contains(&sends(other.clone(), &at(3))));
    rig.receive(other, Message::ack(vec![hop(3)]));
    assert_eq!(rig.machine.pending(), 0);
}

#[test]
fn a_failed_chain_skips_its_route() {
    let mut rig = Rig::new();
    rig.attach(5, 1);
    rig.running(at(1));
    let error = crate::chain::state::KeyError { key: vec![], node: "n1".into(), reason: "r".into() };
    let failed = JobState { failed: Some(error), ..at(1) };
    assert_eq!(rig.ran(1, failed.clone()), [sends(COORDINATOR, &JobState { position: 3, ..failed })]);
}

#[test]
fn a_hop_that_does_not_go_on_fails() {
    let mut rig = Rig::new();
    rig.attach(5, 1);
    rig.running(at(1));
    let out = rig.ran(1, at(1));
    assert!(
        matches!(&out[..], [HopEffect::Send { to: COORDINATOR, message: Message::State(state) }]
            if state.failed.is_some() && state.position == 3),
        "{out:?}"
    );
}

#[test]
fn a_state_that_is_too_large_fails_without_what_made_it_so() {
    let mut rig = Rig::new();
    rig.attach(5, 1);
    rig.input(HopInput::Connected { link: agent("c") });
    for refused in [true, false] {
        let chain = u16::from(refused);
        let part = Part {
            node: "n1".into(),
            replication_id: "r".into(),
            slots: SlotSet::range(1, 1),
            acc: Value::Bytes(vec![0; 1_000]),
        };
        rig.running(JobState { chain, ..at(1) });
        let id = HopId { chain, ..hop(1) };
        let large = JobState { chain, parts: vec![part], ..at(2) };
        rig.input(HopInput::Ran { hop: id, state: Arc::new(large) });
        let id = HopId { chain, ..hop(2) };
        let out = if refused {
            let refuse = Refuse { hop: id, reason: RefuseReason::TooLarge { limit: 900 } };
            rig.receive(agent("c"), Message::Refuse(refuse))
        } else {
            rig.input(HopInput::Unsendable { hop: id, reason: "over 900 bytes".into() })
        };
        let [HopEffect::Send { to: COORDINATOR, message: Message::State(state) }] = &out[..] else {
            panic!("{out:?}")
        };
        assert!(state.failed.as_ref().unwrap().reason.contains("900"));
        assert!(state.parts.is_empty() && state.position == 3);
    }
}

#[test]
fn a_recall_stops_the_chain_and_gives_its_newest_state() {
    let mut rig = Rig::new();
    assert_eq!(rig.recall(), None);
    assert_eq!(rig.take(at(0)), [refusal(0, RefuseReason::StaleEpoch { current: 6 })], "it comes too late");

    let mut rig = Rig::new();
    rig.attach(5, 1);
    rig.running(at(0));
    let mut further = at(0);
    further.tally.visited = 7;
    rig.input(HopInput::Checkpoint { hop: hop(0), state: Arc::new(further.clone()) });
    assert_eq!(rig.recall().as_deref(), Some(&further));
    assert_eq!(rig.ran(0, at(2)), [], "it does not go on");
    assert_eq!(rig.recall().as_deref(), Some(&further), "asked again");
    assert_eq!(rig.restart(), [], "nor after a restart");
    assert_eq!(rig.recall().as_deref(), Some(&further));
    rig.attach(6, 1);
    assert_eq!(rig.machine.pending(), 0, "the fence lets it go");

    let mut rig = Rig::new();
    rig.running(at(1));
    rig.ran(1, at(2));
    assert_eq!(rig.recall().as_deref(), Some(&at(2)), "on its way");
}

#[test]
fn a_receiver_that_has_been_recalled_from_makes_the_sender_wait_for_the_same() {
    let mut rig = Rig::new();
    rig.running(at(1));
    rig.ran(1, at(2));
    let stale = Refuse { hop: hop(2), reason: RefuseReason::StaleEpoch { current: 6 } };
    assert_eq!(rig.receive(agent("c"), Message::Refuse(stale)), []);
    assert_eq!(rig.recall().as_deref(), Some(&at(2)));
}

#[test]
fn two_hops_back_a_state_is_kept_until_it_has_been_passed_on() {
    let retain = |position| JobState { position, ..state(2) };
    let mut rig = Rig::new();
    rig.running(retain(1));
    rig.ran(1, retain(2));
    let out = rig.receive(agent("c"), Message::ack(vec![hop(2)]));
    let forwarded = Message::Ack(Ack { hops: vec![], forwarded: vec![hop(1)] });
    assert_eq!(out[1], send(UPSTREAM, forwarded), "the one before may forget it");
    assert!(matches!(out[0], HopEffect::Note { record: Record::Retained { .. } }));
    rig.restart();
    assert_eq!(rig.take(retain(1)), [send(UPSTREAM, Message::ack(vec![hop(1)]))]);
    assert_eq!(rig.recall().as_deref(), Some(&retain(2)));
    let passed_on = Message::Ack(Ack { hops: vec![], forwarded: vec![hop(2)] });
    let done = HopEffect::Note { record: Record::Done { hop: hop(1) } };
    assert_eq!(rig.receive(agent("c"), passed_on), [done]);
    assert_eq!(rig.recall(), None);
}

#[test]
fn coordinators_hear_of_every_chain_that_is_held() {
    let mut rig = Rig::new();
    rig.running(at(1));
    rig.attach(5, 1);
    rig.now = rig.machine.alarm_at().unwrap();
    assert_eq!(rig.now, 1_000);
    let progress = Message::Progress(Progress {
        chain: ChainId::of(&at(1)),
        position: 1,
        node: "n1".into(),
        tally: Default::default(),
        units_done: 0,
    });
    assert_eq!(rig.input(HopInput::Tick), [send(COORDINATOR, progress)]);
    assert_eq!(rig.machine.alarm_at(), Some(2_000));
}

#[test]
fn a_job_that_nobody_attaches_to_any_more_is_ended() {
    let mut rig = Rig::with(|config| config.orphan_after = 5_000);
    rig.running(at(1));
    let mut out = Vec::new();
    while rig.now < 6_000 {
        rig.now = rig.machine.alarm_at().unwrap();
        out = rig.input(HopInput::Tick);
        if !out.is_empty() {
            break;
        }
    }
    assert_eq!(rig.now, 5_000);
    assert!(matches!(out[0], HopEffect::Persist { record: Record::Ended { retryable: true, .. }, .. }));
}

#[test]
fn what_is_remembered_is_bounded() {
    let mut rig = Rig::with(|config| {
        config.keep_done = 3;
        config.keep_ended = 2;
    });
    rig.attach(5, 1);
    for chain in 0..5 {
        rig.running(JobState { chain, ..at(1) });
        let (from, to) = (HopId { chain, ..hop(1) }, HopId { chain, ..hop(3) });
        rig.input(HopInput::Ran { hop: from, state: Arc::new(JobState { chain, ..at(3) }) });
        rig.receive(COORDINATOR, Message::ack(vec![to]));
    }
    let done = |rig: &Rig| rig.machine.snapshot().iter().filter(|r| matches!(r, Record::Done { .. })).count();
    assert_eq!(done(&rig), 3);
    for job in ["j", "k", "l"] {
        rig.receive(
            COORDINATOR,
            Message::End(End { job: job.into(), incarnation: 1, why: EndReason::Finished }),
        );
    }
    assert_eq!(done(&rig), 0);
    assert_eq!(rig.machine.snapshot().len(), 2, "the two jobs that ended last");
}
