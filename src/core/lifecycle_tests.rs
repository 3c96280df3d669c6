use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use LifecycleStatus::*;

const STATUSES: [LifecycleStatus; 7] = [Created, Assigning, Running, Paused, Finished, Failed, Cancelled];
const NOW: Millis = 1_767_225_600_000;

/// One of each kind, all under incarnation 7.
fn changes() -> Vec<Change> {
    let incarnation = 7;
    vec![
        Change::Assign { executor: "a".into() },
        Change::Start { executor: "a".into(), incarnation, outside: false },
        Change::Note { incarnation, progress: None, checkpoint: Some(json!(1)) },
        Change::Suspend { incarnation },
        Change::Continue { incarnation },
        Change::Finish { incarnation, result: Some(json!({"n": 1})) },
        Change::Fail { incarnation, error: "boom".into(), retry: true },
        Change::Fail { incarnation, error: "boom".into(), retry: false },
        Change::Release { incarnation },
        Change::Lost { incarnation, reason: "no heartbeat".into() },
        Change::Expire,
        Change::Abandon { error: "dependency failed".into() },
        Change::Pause,
        Change::Resume,
        Change::Cancel,
        Change::Requeue,
        Change::SetAttachments(None),
    ]
}

/// A task in a status, held by `a` where somebody holds it.
fn task(status: LifecycleStatus) -> Task {
    let mut task = Task::new("t", "C", NOW - 1_000);
    task.lifecycle_status = status;
    task.executor = (status != Created).then(|| "a".into());
    task.skalds.incarnation = 7;
    task.skalds.attempt = 1;
    task
}

/// All that a stored document of this status may say besides.
fn variants(status: LifecycleStatus) -> Vec<Task> {
    let mut tasks = vec![task(status)];
    let mut with = |change: fn(&mut Task)| {
        let more: Vec<Task> = tasks
            .iter()
            .map(|task| {
                let mut task = task.clone();
                change(&mut task);
                task
            })
            .collect();
        tasks.extend(more);
    };
    with(|task| task.skalds.cancel_requested = true);
    with(|task| task.skalds.pause_requested = true);
    with(|task| task.skalds.outside = true);
    with(|task| task.skalds.cron = Some("* * * * *".into()));
    with(|task| task.skalds.max_attempts = Some(1));
    with(|task| task.deadline_date_time = NOW - 1);
    with(|task| task.executor = None);
    tasks
}

#[test]
fn every_pair_of_state_and_change_keeps_to_the_table() {
    let mut seen = BTreeSet::new();
    let mut pairs = 0;
    for status in STATUSES {
        for change in changes() {
            let kind = change.kind();
            pairs += 1;
            for before in variants(status) {
                match apply(&before, &change, NOW, &Retry::default()) {
                    Ok(after) => {
                        assert!(
                            targets(kind, status).contains(&after.lifecycle_status),
                            "{kind:?} led from {status:?} to {:?}",
                            after.lifecycle_status
                        );
                        assert!(after.skalds.incarnation >= before.skalds.incarnation);
                        seen.insert((kind, status, after.lifecycle_status));
                    }
                    Err(Refused::NotAllowed { .. }) if targets(kind, status).is_empty() => {}
                    Err(refused) => assert!(
                        !targets(kind, status).is_empty(),
                        "{kind:?} from {status:?} is not in the table, but was refused as {refused}"
                    ),
                }
            }
        }
    }
    assert_eq!(pairs, 7 * 17);
    // And no row of the table is dead.
    for status in STATUSES {
        for kind in changes().iter().map(Change::kind) {
            for target in targets(kind, status) {
                assert!(
                    seen.contains(&(kind, status, *target)),
                    "{kind:?}: {status:?} to {target:?} never happens"
                );
            }
        }
    }
}

#[test]
fn a_stale_holder_is_refused_whatever_it_says() {
    for status in [Assigning, Running, Paused] {
        for change in changes() {
            let mut task = task(status);
            task.skalds.incarnation = 8;
            if change.incarnation().is_some() && !targets(change.kind(), status).is_empty() {
                assert_eq!(
                    apply(&task, &change, NOW, &Retry::default()),
                    Err(Refused::Stale { change: change.kind(), given: 7, current: 8 })
                );
            }
        }
    }
}

fn step(task: &Task, change: Change) -> Task {
    apply(task, &change, NOW, &Retry::default()).unwrap_or_else(|refused| panic!("{refused}"))
}

#[test]
fn the_straight_way() {
    let task = Task::new("t", "C", NOW);
    let task = step(&task, Change::Assign { executor: "a".into() });
    assert_eq!(
        (task.lifecycle_status, task.executor.as_deref(), task.skalds.incarnation),
        (Assigning, Some("a"), 1)
    );
    let other = Change::Start { executor: "b".into(), incarnation: 1, outside: false };
    assert!(matches!(apply(&task, &other, NOW, &Retry::default()), Err(Refused::OtherExecutor { .. })));
    let task = step(&task, Change::Start { executor: "a".into(), incarnation: 1, outside: false });
    assert_eq!((task.lifecycle_status, task.skalds.attempt), (Running, 1));
    let task = step(&task, Change::Finish { incarnation: 1, result: Some(json!(42)) });
    assert_eq!((task.lifecycle_status, task.skalds.result), (Finished, Some(json!(42))));
}

#[test]
fn a_failed_attempt_waits_for_the_next_and_the_last_one_is_dead() {
    let mut task = task(Running);
    task.skalds.max_attempts = Some(2);
    let fail = |task: &Task| Change::Fail {
        incarnation: task.skalds.incarnation,
        error: "boom".repeat(2_000),
        retry: true,
    };
    let waiting = step(&task, fail(&task));
    assert_eq!((waiting.lifecycle_status, waiting.executor.as_deref()), (Created, None));
    let at = waiting.skalds.next_attempt_at.unwrap();
    assert!((NOW + 800..=NOW + 1_200).contains(&at), "{at}");
    let assign = Change::Assign { executor: "b".into() };
    assert_eq!(
        apply(&waiting, &assign, NOW, &Retry::default()),
        Err(Refused::TooEarly { change: ChangeKind::Assign, until: at })
    );
    let again = apply(&waiting, &assign, at, &Retry::default()).unwrap();
    let again = step(
        &again,
        Change::Start { executor: "b".into(), incarnation: again.skalds.incarnation, outside: false },
    );
    assert_eq!(again.skalds.attempt, 2);
    let dead = step(&again, fail(&again));
    assert_eq!((dead.lifecycle_status, dead.skalds.dead), (Failed, true));
    assert_eq!(dead.skalds.last_error.as_ref().unwrap().len(), MAX_ERROR);
    // Final, except for an explicit requeue.
    let back = step(&dead, Change::Requeue);
    assert_eq!((back.lifecycle_status, back.skalds.attempt, back.skalds.dead), (Created, 0, false));
}

#[test]
fn a_cancel_is_a_fact_in_every_state() {
    for status in STATUSES {
        let cancelled = apply(&task(status), &Change::Cancel, NOW, &Retry::default());
        match status {
            Created | Failed => assert_eq!(cancelled.unwrap().lifecycle_status, Cancelled),
            Finished | Cancelled => {
                assert_eq!(cancelled, Err(Refused::NotAllowed { change: ChangeKind::Cancel, status }));
            }
            Assigning | Running | Paused => {
                let asked = cancelled.unwrap();
                assert!(asked.skalds.cancel_requested && asked.lifecycle_status == status);
                // However the holder's part ends, the task ends as cancelled, and no schedule brings it back.
                for end in changes().into_iter().filter(|change| {
                    matches!(
                        change.kind(),
                        ChangeKind::Finish | ChangeKind::Fail | ChangeKind::Release | ChangeKind::Lost
                    ) && !targets(change.kind(), status).is_empty()
                }) {
                    let mut asked = asked.clone();
                    asked.skalds.cron = Some("* * * * *".into());
                    assert_eq!(step(&asked, end).lifecycle_status, Cancelled);
                }
                if status == Assigning {
                    let start = Change::Start { executor: "a".into(), incarnation: 7, outside: false };
                    assert!(matches!(
                        apply(&asked, &start, NOW, &Retry::default()),
                        Err(Refused::Overruled { wanted: "cancelled", .. })
                    ));
                }
            }
        }
    }
}

/// A task whose work goes on without its holder is ended by a holder.
#[test]
fn a_cancelled_task_whose_work_goes_on_outside_is_ended_by_a_worker() {
    let mut assigned = task(Assigning);
    assigned.skalds.not_before = Some(NOW);
    let running = step(&assigned, Change::Start { executor: "a".into(), incarnation: 7, outside: true });
    let lost = Change::Lost { incarnation: 7, reason: "no heartbeat".into() };
    let drained = step(&running, Change::Release { incarnation: 7 });
    for unheld in [
        step(&step(&running, Change::Cancel), lost.clone()),
        step(&step(&running, Change::Cancel), Change::Release { incarnation: 7 }),
        step(&step(&running, lost), Change::Cancel),
        step(&drained, Change::Cancel),
        step(&step(&drained, Change::Pause), Change::Cancel),
    ] {
        assert_eq!(unheld.lifecycle_status, Created);
        assert!(
            unheld.skalds.cancel_requested && not_before(&unheld).is_none_or(|at| at <= NOW),
            "{unheld:?}"
        );
        let assigned = step(&unheld, Change::Assign { executor: "b".into() });
        let incarnation = assigned.skalds.incarnation;
        let ending = step(&assigned, Change::Start { executor: "b".into(), incarnation, outside: true });
        assert!(ending.skalds.cancel_requested && ending.lifecycle_status == Running);
        let ended = step(&ending, Change::Finish { incarnation, result: None });
        assert_eq!((ended.lifecycle_status, ended.skalds.outside), (Cancelled, false));
        // Requeued, it is like any other.
        let again = step(&ended, Change::Requeue);
        assert_eq!(step(&again, Change::Cancel).lifecycle_status, Cancelled);
    }
}

#[test]
fn a_pause_is_acknowledged_by_the_holder_and_survives_it() {
    let asked = step(&task(Running), Change::Pause);
    assert_eq!(asked.lifecycle_status, Running);
    let paused = step(&asked, Change::Suspend { incarnation: 7 });
    assert_eq!(paused.lifecycle_status, Paused);
    let resumed = step(&paused, Change::Resume);
    assert_eq!(resumed.lifecycle_status, Paused, "until the holder goes on");
    assert_eq!(step(&resumed, Change::Continue { incarnation: 7 }).lifecycle_status, Running);
    // The holder drains: the task stays held, and goes back to the queue when an operator lets it.
    let released = step(&paused, Change::Release { incarnation: 7 });
    assert_eq!((released.lifecycle_status, released.executor.as_deref()), (Paused, None));
    assert_eq!(step(&released, Change::Resume).lifecycle_status, Created);
}

#[test]
fn a_hand_back_uses_no_attempt_up_and_a_dead_holder_does() {
    let released = step(&task(Running), Change::Release { incarnation: 7 });
    assert_eq!(
        (released.lifecycle_status, released.skalds.attempt, released.skalds.incarnation),
        (Created, 0, 8)
    );
    let lost = step(&task(Running), Change::Lost { incarnation: 7, reason: "gone".into() });
    assert_eq!((lost.lifecycle_status, lost.skalds.attempt, lost.skalds.next_attempt_at), (Created, 1, None));
    let mut second = task(Running);
    second.skalds.attempt = 2;
    let lost = step(&second, Change::Lost { incarnation: 7, reason: "gone".into() });
    assert!(
        lost.skalds.next_attempt_at.unwrap() > NOW,
        "a task that takes its Skald along waits longer each time"
    );
}

#[test]
fn a_schedule_begins_the_next_round_and_keeps_its_time_allowed() {
    let mut scheduled = task(Running);
    scheduled.skalds.cron = Some("0 * * * *".into());
    scheduled.skalds.not_before = Some(NOW - 3_600_000);
    scheduled.deadline_date_time = NOW + 60_000;
    scheduled.skalds.checkpoint = Some(json!(1));
    for change in [
        Change::Finish { incarnation: 7, result: Some(json!(1)) },
        Change::Fail { incarnation: 7, error: "boom".into(), retry: false },
    ] {
        let next = step(&scheduled, change);
        assert_eq!((next.lifecycle_status, next.skalds.not_before), (Created, Some(NOW + 3_600_000)));
        assert_eq!(next.deadline_date_time, NOW + 2 * 3_600_000 + 60_000);
        assert_eq!((next.skalds.attempt, next.skalds.dead, next.skalds.checkpoint), (0, false, None));
    }
}

#[test]
fn deadlines_end_what_has_not_ended() {
    let mut late = task(Running);
    assert!(matches!(apply(&late, &Change::Expire, NOW, &Retry::default()), Err(Refused::TooEarly { .. })));
    late.deadline_date_time = NOW;
    let failed = step(&late, Change::Expire);
    assert_eq!((failed.lifecycle_status, failed.skalds.dead, failed.skalds.incarnation), (Failed, true, 8));
    let back = step(&failed, Change::Requeue);
    assert_eq!(back.deadline_date_time, NOW + 1_000, "a requeue gives the same time again");
    late.deadline_date_time = 0;
    assert!(matches!(
        apply(&late, &Change::Expire, Millis::MAX, &Retry::default()),
        Err(Refused::TooEarly { .. })
    ));
}

#[test]
fn errors_are_cut_at_a_character() {
    let error = bounded(&"é".repeat(MAX_ERROR));
    assert!(error.len() <= MAX_ERROR && error.chars().all(|character| character == 'é'));
}

/// The diagram in the docs is this table.
#[test]
fn the_picture_is_the_table() {
    let mut lines = BTreeSet::new();
    for from in STATUSES {
        for kind in changes().iter().map(Change::kind) {
            for to in targets(kind, from) {
                if from != *to {
                    lines.insert((from, *to, kind));
                }
            }
        }
    }
    let mut edges: Vec<(LifecycleStatus, LifecycleStatus, Vec<String>)> = Vec::new();
    for (from, to, kind) in lines {
        match edges.last_mut() {
            Some((f, t, kinds)) if (*f, *t) == (from, to) => kinds.push(format!("{kind:?}")),
            _ => edges.push((from, to, vec![format!("{kind:?}")])),
        }
    }
    let mut picture = String::from("stateDiagram-v2\n    [*] --> Created\n");
    for (from, to, kinds) in edges {
        picture += &format!("    {from:?} --> {to:?}: {}\n", kinds.join(", "));
    }
    let kept = include_str!("lifecycle.mmd");
    assert_eq!(picture, kept, "src/core/lifecycle.mmd is not the table's picture any more");
}

proptest! {
    /// Whatever happens in whatever order: the incarnation never falls, what was cancelled starts again only after a
    /// requeue, and an ended task is left only by one.
    #[test]
    fn no_sequence_breaks_the_rules(
        picks in prop::collection::vec((0usize..17, 0u64..3, 0i64..120_000), 1..60),
        cron: bool,
        max_attempts in prop::option::of(1i64..4),
    ) {
        let mut task = Task::new("t", "C", NOW);
        task.skalds.cron = cron.then(|| "* * * * *".into());
        task.skalds.max_attempts = max_attempts;
        let mut now = NOW;
        for (pick, behind, wait) in picks {
            now += wait;
            let mut change = changes().swap_remove(pick);
            let incarnation_of_change = task.skalds.incarnation.saturating_sub(behind);
            match &mut change {
                Change::Start { incarnation, .. } | Change::Note { incarnation, .. } | Change::Suspend { incarnation }
                | Change::Continue { incarnation } | Change::Finish { incarnation, .. } | Change::Fail { incarnation, .. }
                | Change::Release { incarnation } | Change::Lost { incarnation, .. } => *incarnation = incarnation_of_change,
                _ => {}
            }
            let Ok(next) = apply(&task, &change, now, &Retry::default()) else { continue };
            let ended = matches!(task.lifecycle_status, Finished | Cancelled);
            prop_assert!(!ended || change.kind() == ChangeKind::Requeue);
            prop_assert!(next.skalds.incarnation >= task.skalds.incarnation);
            prop_assert!(change.incarnation().is_none_or(|given| given == task.skalds.incarnation));
            if task.skalds.cancel_requested && change.kind() != ChangeKind::Requeue {
                prop_assert!(next.skalds.cancel_requested);
                prop_assert!(!matches!(next.lifecycle_status, Created | Finished | Failed));
                prop_assert!(next.lifecycle_status != Running || task.lifecycle_status != Assigning);
            }
            if matches!(next.lifecycle_status, Assigning | Running) {
                prop_assert!(next.executor.is_some());
            }
            if next.lifecycle_status == Created {
                prop_assert!(next.executor.is_none() && !next.skalds.dead);
            }
            task = next;
        }
    }
}
