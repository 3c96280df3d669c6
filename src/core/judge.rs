//! What a controller concludes about a task that somebody holds.

use super::lease::{Heartbeat, Liveness, Patience, SKALD_GONE_AFTER, TASK_STUCK_AFTER, Watch};
use super::lifecycle::Change;
use super::task::{LifecycleStatus, Millis, Task};

/// An order that is not followed is sent again after this time.
pub const REMIND_AFTER: Millis = 5_000;
/// A task that a living Skald does not start within this time goes to another one.
pub const START_WITHIN: Millis = 60_000;

/// A last word that still stands this long after the assignment is not a former run's any more.
const OLD_WORD_AFTER: Millis = 15_000;

/// What is known of the Skald that holds a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// It is alive and one of ours: it writes its tasks' outcomes into storage itself.
    Ours,
    /// It is alive and of the Python package: its tasks speak through their heartbeats alone.
    Python,
    /// It was there and is gone.
    Gone,
    /// Nobody has seen it.
    Unknown,
}

/// What is to be done about a task.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Nothing.
    Fine,
    /// These changes, in one write.
    Change(Vec<Change>),
    /// The assignment is sent again.
    RemindAssign,
    /// The cancel is sent again.
    RemindCancel,
}

/// What a judge remembers of one task. Times named `now` are the judge's own, monotonic.
#[derive(Debug, Clone)]
pub struct TaskJudge {
    watch: Watch,
    /// Since when the task has been seen in this incarnation and status.
    since: (u64, LifecycleStatus, Millis),
    reminded: Millis,
    /// Something that is no last word was seen under this incarnation: no value, or a beat.
    fresh: bool,
    /// Since when its holder is not to be found.
    unknown: Option<Millis>,
}

/// What is known when a task is judged.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    /// Of its holder.
    pub holder: Holder,
    /// What stands under its heartbeat key.
    pub heartbeat: Option<&'a [u8]>,
    /// What its worker complained of last.
    pub exception: Option<&'a str>,
    /// The judge's own time, monotonic.
    pub now: Millis,
    /// The time of day, for deadlines.
    pub wall: Millis,
    /// How long an expired heartbeat is put up with.
    pub expired_after: Millis,
    /// The heartbeat key was removed when the task was assigned under this incarnation: whatever stands there is new.
    pub cleared: bool,
}

impl TaskJudge {
    /// Sees a task for the first time.
    pub fn new(task: &Task, now: Millis) -> Self {
        TaskJudge {
            watch: Watch::new(task.skalds.incarnation, now),
            since: (task.skalds.incarnation, task.lifecycle_status, now),
            reminded: now,
            fresh: false,
            unknown: None,
        }
    }

    /// The judge was blind for a while.
    pub fn pardon(&mut self, now: Millis) {
        self.watch.pardon(now);
        self.since.2 = now;
        self.unknown = None;
    }

    /// Judges a task that is `Assigning`, `Running` or `Paused`.
    pub fn judge(&mut self, task: &Task, evidence: Evidence<'_>) -> Verdict {
        let Evidence { holder, heartbeat, exception, now, wall, expired_after, cleared } = evidence;
        let incarnation = task.skalds.incarnation;
        if (self.since.0, self.since.1) != (incarnation, task.lifecycle_status) {
            self.fresh = self.fresh && self.since.0 == incarnation;
            self.since = (incarnation, task.lifecycle_status, now);
            self.reminded = now;
        }
        let for_ = now.saturating_sub(self.since.2);
        // A worker that starts overwrites the last word of a former run within seconds.
        self.fresh |= cleared || for_ >= OLD_WORD_AFTER;
        let patience = Patience { expired: expired_after, stuck: TASK_STUCK_AFTER };
        let liveness = self.watch.observe(incarnation, heartbeat, now, patience);
        let unknown = match holder {
            Holder::Unknown => now.saturating_sub(*self.unknown.get_or_insert(now)),
            _ => {
                self.unknown = None;
                0
            }
        };
        let Some(executor) = &task.executor else { return expire(task, wall) };
        let lost = |reason: String| Verdict::Change(vec![Change::Lost { incarnation, reason }]);
        match holder {
            Holder::Gone => return lost(format!("skald {executor} is gone")),
            Holder::Unknown if unknown >= SKALD_GONE_AFTER => {
                return lost(format!("skald {executor} is not there"));
            }
            Holder::Unknown => return expire(task, wall),
            Holder::Python => {
                if let Some(change) = self.python_word(task, executor, heartbeat, exception) {
                    return Verdict::Change(change);
                }
            }
            Holder::Ours => {}
        }
        if let expired @ Verdict::Change(_) = expire(task, wall) {
            return expired;
        }
        if task.lifecycle_status == LifecycleStatus::Assigning {
            if for_ >= START_WITHIN {
                return lost(format!("skald {executor} did not start it within {} s", START_WITHIN / 1_000));
            }
            return self.remind(now, Verdict::RemindAssign);
        }
        match liveness {
            Liveness::Expired => {
                return lost(format!("it has no heartbeat any more, though skald {executor} is alive"));
            }
            Liveness::Stuck { since } => {
                return lost(format!("its heartbeat has not changed for {} s", since / 1_000));
            }
            Liveness::Waiting { since } if since >= TASK_STUCK_AFTER => {
                return lost(format!("it has no heartbeat, though skald {executor} is alive"));
            }
            Liveness::Waiting { .. } | Liveness::Alive => {}
        }
        if task.skalds.cancel_requested { self.remind(now, Verdict::RemindCancel) } else { Verdict::Fine }
    }

    fn remind(&mut self, now: Millis, reminder: Verdict) -> Verdict {
        if now.saturating_sub(self.reminded) < REMIND_AFTER {
            return Verdict::Fine;
        }
        self.reminded = now;
        reminder
    }

    /// What a Python worker says through its heartbeat.
    fn python_word(
        &mut self,
        task: &Task,
        executor: &str,
        heartbeat: Option<&[u8]>,
        exception: Option<&str>,
    ) -> Option<Vec<Change>> {
        let incarnation = task.skalds.incarnation;
        let assigning = task.lifecycle_status == LifecycleStatus::Assigning;
        let Some(said) = heartbeat else {
            self.fresh = true;
            return None;
        };
        let start = Change::Start { executor: executor.to_owned(), incarnation, outside: false };
        let mut changes = if assigning { vec![start] } else { Vec::new() };
        match Heartbeat::parse(said) {
            Ok(Heartbeat::Beat(_)) => {
                self.fresh = true;
                return assigning.then_some(changes);
            }
            // The last word of a former run stays for an hour: it must not end this one before it has begun.
            Ok(_) if assigning && !self.fresh => return None,
            Ok(Heartbeat::Finished) => changes.push(Change::Finish { incarnation, result: None }),
            Ok(Heartbeat::Failed) => {
                let error =
                    exception.filter(|text| !text.is_empty()).unwrap_or("the worker failed").to_owned();
                changes.push(Change::Fail { incarnation, error, retry: true });
            }
            // From `Assigning` too: nothing needs to have started.
            Ok(Heartbeat::Cancelled) => changes = vec![Change::Cancel, Change::Release { incarnation }],
            Err(_) => return None, // judged by its change, like any other value
        }
        Some(changes)
    }
}

fn expire(task: &Task, wall: Millis) -> Verdict {
    let held = task.executor.is_some();
    let due = task.deadline_date_time > 0 && task.deadline_date_time <= wall;
    if due && !((held || task.skalds.outside) && task.skalds.cancel_requested) {
        Verdict::Change(vec![Change::Expire])
    } else {
        Verdict::Fine
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LifecycleStatus::*;

    fn held(status: LifecycleStatus) -> Task {
        let mut task = Task::new("t", "C", 0);
        task.lifecycle_status = status;
        task.executor = Some("a".into());
        task.skalds.incarnation = 3;
        task
    }

    struct Bench {
        judge: TaskJudge,
        task: Task,
        holder: Holder,
        cleared: bool,
    }

    impl Bench {
        fn new(status: LifecycleStatus, holder: Holder) -> Self {
            let task = held(status);
            Bench { judge: TaskJudge::new(&task, 0), task, holder, cleared: false }
        }

        fn at(&mut self, now: Millis, heartbeat: Option<&str>) -> Verdict {
            let evidence = Evidence {
                holder: self.holder,
                heartbeat: heartbeat.map(str::as_bytes),
                exception: Some("boom"),
                now,
                wall: now,
                expired_after: 5_000,
                cleared: self.cleared,
            };
            self.judge.judge(&self.task, evidence)
        }
    }

    fn is_lost(verdict: &Verdict) -> bool {
        matches!(verdict, Verdict::Change(changes) if matches!(changes[..], [Change::Lost { incarnation: 3, .. }]))
    }

    #[test]
    fn a_task_of_a_skald_that_is_gone_is_taken_back() {
        assert!(is_lost(&Bench::new(Running, Holder::Gone).at(0, Some("5"))));
        let mut unknown = Bench::new(Running, Holder::Unknown);
        assert_eq!(unknown.at(0, None), Verdict::Fine);
        assert_eq!(unknown.at(9_999, None), Verdict::Fine);
        assert!(is_lost(&unknown.at(10_000, None)));
        // A cache that was emptied: the Skald is back before anybody misses it, and is missed anew the next time.
        let mut back = Bench::new(Running, Holder::Unknown);
        back.at(100_000, None);
        back.holder = Holder::Ours;
        assert_eq!(back.at(103_000, Some("1")), Verdict::Fine);
        back.holder = Holder::Unknown;
        assert_eq!(back.at(120_000, Some("2")), Verdict::Fine);
    }

    #[test]
    fn a_healthy_task_is_left_alone_and_a_silent_one_is_not() {
        let mut task = Bench::new(Running, Holder::Ours);
        for second in 0..600 {
            assert_eq!(task.at(second * 1_000, Some(&(second % 200).to_string())), Verdict::Fine);
        }
        assert_eq!(task.at(603_000, None), Verdict::Fine);
        assert!(is_lost(&task.at(604_000, None)), "its key has expired");
        let mut stuck = Bench::new(Running, Holder::Ours);
        assert_eq!(stuck.at(0, Some("5")), Verdict::Fine);
        assert_eq!(stuck.at(29_999, Some("5")), Verdict::Fine);
        assert!(is_lost(&stuck.at(30_000, Some("5"))));
        let mut never = Bench::new(Running, Holder::Ours);
        assert_eq!(never.at(29_999, None), Verdict::Fine);
        assert!(is_lost(&never.at(30_000, None)));
    }

    #[test]
    fn a_long_task_outlives_any_number_of_lease_periods_and_an_outage_of_the_cache() {
        let mut task = Bench::new(Running, Holder::Ours);
        assert_eq!(task.at(0, Some("5")), Verdict::Fine);
        task.judge.pardon(100_000);
        assert_eq!(task.at(100_001, None), Verdict::Fine);
        assert_eq!(task.at(103_000, Some("6")), Verdict::Fine);
    }

    #[test]
    fn orders_are_repeated_until_they_are_followed() {
        let mut assigned = Bench::new(Assigning, Holder::Ours);
        assert_eq!(assigned.at(4_999, None), Verdict::Fine);
        assert_eq!(assigned.at(5_000, None), Verdict::RemindAssign);
        assert_eq!(assigned.at(5_001, None), Verdict::Fine);
        assert_eq!(assigned.at(10_000, None), Verdict::RemindAssign);
        assert!(is_lost(&assigned.at(60_000, None)));
        let mut cancelled = Bench::new(Running, Holder::Ours);
        cancelled.task.skalds.cancel_requested = true;
        assert_eq!(cancelled.at(5_000, Some("1")), Verdict::RemindCancel);
        assert_eq!(cancelled.at(5_001, Some("2")), Verdict::Fine);
    }

    #[test]
    fn python_workers_speak_through_their_heartbeats() {
        let start = Change::Start { executor: "a".into(), incarnation: 3, outside: false };
        let mut task = Bench::new(Assigning, Holder::Python);
        assert_eq!(task.at(0, None), Verdict::Fine);
        assert_eq!(task.at(1, Some("17")), Verdict::Change(vec![start.clone()]));
        task.task.lifecycle_status = Running;
        assert_eq!(
            task.at(2, Some("200")),
            Verdict::Change(vec![Change::Finish { incarnation: 3, result: None }])
        );
        assert_eq!(
            task.at(2, Some("-1")),
            Verdict::Change(vec![Change::Fail { incarnation: 3, error: "boom".into(), retry: true }])
        );
        assert_eq!(
            task.at(2, Some("-2")),
            Verdict::Change(vec![Change::Cancel, Change::Release { incarnation: 3 }])
        );
        // A task too short to be seen running.
        let mut short = Bench::new(Assigning, Holder::Python);
        short.at(0, None);
        assert_eq!(
            short.at(3_000, Some("200")),
            Verdict::Change(vec![start, Change::Finish { incarnation: 3, result: None }])
        );
        // Ours write their outcome into storage: the same value says nothing more.
        assert_eq!(Bench::new(Running, Holder::Ours).at(0, Some("200")), Verdict::Fine);
    }

    #[test]
    fn the_last_word_of_a_former_run_ends_nothing() {
        let mut again = Bench::new(Assigning, Holder::Python);
        assert_eq!(again.at(0, Some("200")), Verdict::Fine);
        assert_eq!(again.at(3_000, Some("200")), Verdict::Fine);
        assert!(matches!(again.at(6_000, Some("4")), Verdict::Change(_)));
        assert!(matches!(again.at(9_000, Some("200")), Verdict::Change(_)));
        let mut cleared = Bench::new(Assigning, Holder::Python);
        cleared.cleared = true;
        assert!(matches!(cleared.at(0, Some("-1")), Verdict::Change(_)), "nothing of a former run was left");
        let mut quick = Bench::new(Assigning, Holder::Python);
        assert_eq!(quick.at(14_999, Some("-1")), Verdict::RemindAssign);
        assert!(matches!(quick.at(15_000, Some("-1")), Verdict::Change(_)), "it was a short one");
    }

    #[test]
    fn deadlines_pass_but_not_for_what_is_being_cancelled() {
        let mut late = Bench::new(Running, Holder::Ours);
        late.task.deadline_date_time = 100;
        assert_eq!(late.at(99, Some("1")), Verdict::Fine);
        assert_eq!(late.at(100, Some("2")), Verdict::Change(vec![Change::Expire]));
        late.task.skalds.cancel_requested = true;
        assert_eq!(late.at(101, Some("3")), Verdict::Fine);
        late.task.executor = None;
        late.task.lifecycle_status = Paused;
        late.task.skalds.cancel_requested = false;
        assert_eq!(late.at(102, None), Verdict::Change(vec![Change::Expire]));
    }
}
