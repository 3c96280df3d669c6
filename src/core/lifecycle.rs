//! The one transition table of a task, and what each transition does to the document.
//!
//! Three parties change a task. An **operator** (or the API) asks: `Pause`, `Resume`, `Cancel`, `Requeue`,
//! `SetAttachments`. The **controller** decides: `Assign`, `Lost`, `Expire`, `Abandon`. The **holder**, the Skald that
//! runs it, reports: `Start`, `Note`, `Suspend`, `Continue`, `Finish`, `Fail`, `Release`; it names the incarnation under
//! which it holds the task, and is refused once the task has changed hands.
//!
//! What an operator asks for while somebody holds the task is stored as a fact (`cancelRequested`, `pauseRequested`)
//! and becomes the status when the holder has obeyed, or is gone. So a cancel cannot be lost, and `Cancelled` means
//! that nothing runs any more. Where the work goes on without its holder (`outside`), a cancelled task without a holder is
//! `Created`, and goes to a worker that ends it.

pub use super::change::{Change, ChangeKind, Refused};
use super::policy::{AfterFailure, Retry, rng_of};
use super::schedule::next_tick;
use super::task::{LifecycleStatus, Millis, Task};

/// The longest error text that is kept, in bytes.
pub const MAX_ERROR: usize = 4_096;

/// The table: where a change may lead from a status. Empty: it is refused.
///
/// Where several targets stand, what is stored in the task decides: a cancel that was asked for makes `Cancelled` of
/// every end, a pause that was asked for makes `Paused` of a way back to `Created`, a cron schedule makes `Created` of
/// `Finished` and `Failed`, and the retry policy chooses between `Created` and `Failed`. A cancel takes effect at once
/// where nobody holds the task.
pub fn targets(change: ChangeKind, from: LifecycleStatus) -> &'static [LifecycleStatus] {
    use ChangeKind as C;
    use LifecycleStatus::*;
    match (change, from) {
        (C::Assign, Created) => &[Assigning],
        (C::Start, Assigning) => &[Running],
        (C::Note, Running) => &[Running],
        (C::Note, Paused) => &[Paused],
        (C::Suspend, Running) => &[Paused],
        (C::Continue, Paused) => &[Running],
        (C::Finish, Running | Paused) => &[Finished, Created, Cancelled],
        (C::Fail, Assigning | Running | Paused) => &[Created, Paused, Failed, Cancelled],
        (C::Release, Assigning | Running | Paused) => &[Created, Paused, Cancelled],
        (C::Lost, Assigning) => &[Created, Paused, Cancelled],
        (C::Lost, Running | Paused) => &[Created, Paused, Failed, Cancelled],
        (C::Expire, Created | Assigning | Running | Paused) => &[Failed, Created],
        (C::Abandon, Created) => &[Failed, Created],
        (C::Pause, Created | Paused) => &[Paused],
        (C::Pause, Assigning) => &[Assigning],
        (C::Pause, Running) => &[Running],
        (C::Resume, Paused) => &[Paused, Created],
        (C::Resume, Assigning) => &[Assigning],
        (C::Resume, Running) => &[Running],
        (C::Cancel, Created | Failed) => &[Cancelled, Created],
        (C::Cancel, Assigning) => &[Assigning, Cancelled, Created],
        (C::Cancel, Running) => &[Running, Cancelled, Created],
        (C::Cancel, Paused) => &[Paused, Cancelled, Created],
        (C::Requeue, Created | Finished | Failed | Cancelled) => &[Created],
        (C::SetAttachments, Created) => &[Created],
        (C::SetAttachments, Assigning) => &[Assigning],
        (C::SetAttachments, Running) => &[Running],
        (C::SetAttachments, Paused) => &[Paused],
        (C::SetAttachments, Failed) => &[Failed],
        _ => &[],
    }
}

/// Makes the changed document, or says why not. Storage then decides whether it was first (compare-and-set on the
/// revision).
pub fn apply(task: &Task, change: &Change, now: Millis, retry: &Retry) -> Result<Task, Refused> {
    let kind = change.kind();
    let allowed = targets(kind, task.lifecycle_status);
    if allowed.is_empty() {
        return Err(Refused::NotAllowed { change: kind, status: task.lifecycle_status });
    }
    if let Some(given) = change.incarnation() {
        if given != task.skalds.incarnation {
            return Err(Refused::Stale { change: kind, given, current: task.skalds.incarnation });
        }
        if task.executor.is_none() {
            return Err(Refused::NotAllowed { change: kind, status: task.lifecycle_status }); // nobody holds it
        }
    }
    let mut next = task.clone();
    if next.lifecycle_status == LifecycleStatus::Created && !next.skalds.outside {
        // Nobody wants a created task cancelled or paused; but a Python controller that makes a task `Created` again
        // knows nothing of these and leaves them as they were.
        next.skalds.cancel_requested = false;
        next.skalds.pause_requested = false;
        next.skalds.dead = false;
    }
    change_document(&mut next, change, now, retry)?;
    next.update_date_time = now.max(task.update_date_time);
    debug_assert!(allowed.contains(&next.lifecycle_status), "{kind:?} led to {:?}", next.lifecycle_status);
    Ok(next)
}

fn change_document(task: &mut Task, change: &Change, now: Millis, retry: &Retry) -> Result<(), Refused> {
    use LifecycleStatus::*;
    let kind = change.kind();
    let overruled = |wanted| Err(Refused::Overruled { change: kind, wanted });
    match change {
        Change::Assign { executor } => {
            if let Some(until) = not_before(task).filter(|until| *until > now) {
                return Err(Refused::TooEarly { change: kind, until });
            }
            task.executor = Some(executor.clone());
            task.skalds.incarnation += 1;
            task.lifecycle_status = Assigning;
        }
        Change::Start { executor, outside, .. } => {
            if task.executor.as_ref() != Some(executor) {
                return Err(Refused::OtherExecutor {
                    given: executor.clone(),
                    executor: task.executor.clone(),
                });
            }
            if task.skalds.cancel_requested && !task.skalds.outside {
                return overruled("cancelled");
            }
            if task.skalds.pause_requested && !task.skalds.cancel_requested {
                return overruled("paused");
            }
            task.skalds.outside |= outside;
            task.skalds.attempt = task.skalds.attempt.saturating_add(1);
            task.skalds.next_attempt_at = None;
            task.lifecycle_status = Running;
        }
        Change::Note { progress, checkpoint, .. } => {
            if progress.is_some() {
                task.skalds.progress.clone_from(progress);
            }
            if checkpoint.is_some() {
                task.skalds.checkpoint.clone_from(checkpoint);
            }
        }
        Change::Suspend { .. } => {
            if !task.skalds.pause_requested {
                return overruled("resumed");
            }
            task.lifecycle_status = Paused;
        }
        Change::Continue { .. } => {
            if task.skalds.pause_requested {
                return overruled("paused");
            }
            task.lifecycle_status = Running;
        }
        Change::Finish { result, .. } => {
            task.skalds.result.clone_from(result);
            task.skalds.last_error = None;
            task.skalds.outside = false;
            end(task, Finished, now);
        }
        Change::Fail { error, retry: may_retry, .. } => {
            if task.lifecycle_status == Assigning {
                task.skalds.attempt = task.skalds.attempt.saturating_add(1); // it did not even start, but it counts
            }
            fail(task, error, *may_retry, now, retry);
            if task.lifecycle_status != Created && task.lifecycle_status != Paused {
                task.skalds.outside = false; // its worker has seen to it
            }
        }
        Change::Release { .. } => {
            let started = task.lifecycle_status != Assigning;
            back_to_queue(task);
            if started && task.lifecycle_status != Cancelled {
                // The attempt was not used up: nothing went wrong with it.
                task.skalds.attempt = task.skalds.attempt.saturating_sub(1);
            }
        }
        Change::Lost { reason, .. } => {
            if task.lifecycle_status == Assigning || must_be_ended(task) {
                back_to_queue(task);
            } else {
                fail(task, reason, true, now, retry);
                if task.skalds.attempt <= 1 {
                    task.skalds.next_attempt_at = None; // the first time it is hardly the task's own fault
                }
            }
        }
        Change::Expire => {
            let until = task.deadline_date_time;
            if until <= 0 || until > now {
                return Err(Refused::TooEarly {
                    change: kind,
                    until: if until <= 0 { Millis::MAX } else { until },
                });
            }
            if task.skalds.cancel_requested {
                return overruled("cancelled"); // by its holder, or by whoever finds that the holder is gone
            }
            die(task, "the deadline has passed".to_owned(), now);
        }
        Change::Abandon { .. } if must_be_ended(task) => return overruled("cancelled"),
        Change::Abandon { error } => die(task, bounded(error), now),
        Change::Pause => {
            task.skalds.pause_requested = true;
            if task.lifecycle_status == Created {
                task.lifecycle_status = Paused;
            }
        }
        Change::Resume => {
            task.skalds.pause_requested = false;
            if task.lifecycle_status == Paused && task.executor.is_none() {
                task.lifecycle_status = Created;
            }
        }
        Change::Cancel => {
            task.skalds.cancel_requested = true;
            let held =
                task.executor.is_some() && matches!(task.lifecycle_status, Assigning | Running | Paused);
            if !held && must_be_ended(task) {
                // At once, whatever it would wait for.
                task.skalds.next_attempt_at = None;
                task.skalds.not_before = None;
                task.skalds.dead = false;
                back_to_queue(task);
            } else if !held {
                task.lifecycle_status = Cancelled;
            }
        }
        Change::Requeue => requeue(task, now),
        Change::SetAttachments(attachments) => {
            task.attachments.clone_from(attachments);
            task.skalds.attachments_version += 1;
        }
    }
    Ok(())
}

/// The time before which a `Created` task is not started.
pub fn not_before(task: &Task) -> Option<Millis> {
    task.skalds.next_attempt_at.max(task.skalds.not_before)
}

/// The task leaves its holder and waits for another one, or for whatever an operator asked for meanwhile.
fn back_to_queue(task: &mut Task) {
    task.executor = None;
    task.skalds.incarnation += 1;
    task.lifecycle_status = if must_be_ended(task) {
        LifecycleStatus::Created
    } else if task.skalds.cancel_requested {
        LifecycleStatus::Cancelled
    } else if task.skalds.pause_requested {
        LifecycleStatus::Paused
    } else {
        LifecycleStatus::Created
    };
}

/// It was cancelled, and what it has begun goes on without a worker.
fn must_be_ended(task: &Task) -> bool {
    task.skalds.cancel_requested && task.skalds.outside
}

fn fail(task: &mut Task, error: &str, may_retry: bool, now: Millis, retry: &Retry) {
    let error = bounded(error);
    let after = retry.after_failure(task, now, &mut rng_of(task));
    match after {
        AfterFailure::RetryAt(at) if may_retry => {
            task.skalds.last_error = Some(error);
            task.skalds.next_attempt_at = Some(at);
            back_to_queue(task);
        }
        _ => die(task, error, now),
    }
}

fn die(task: &mut Task, error: String, now: Millis) {
    task.skalds.last_error = Some(error);
    task.skalds.dead = true;
    end(task, LifecycleStatus::Failed, now);
}

/// The task ends; a scheduled one begins its next round instead.
fn end(task: &mut Task, status: LifecycleStatus, now: Millis) {
    task.skalds.incarnation += 1;
    task.skalds.next_attempt_at = None;
    task.skalds.pause_requested = false;
    task.lifecycle_status = if task.skalds.cancel_requested { LifecycleStatus::Cancelled } else { status };
    if task.lifecycle_status != status {
        task.skalds.dead = false;
        return;
    }
    let Some(cron) = &task.skalds.cron else { return };
    match next_tick(cron, now) {
        Ok(tick) => {
            if task.deadline_date_time > 0 {
                task.deadline_date_time = tick.saturating_add(time_allowed(task));
            }
            task.executor = None;
            task.lifecycle_status = LifecycleStatus::Created;
            task.skalds.not_before = Some(tick);
            task.skalds.attempt = 0;
            task.skalds.dead = false;
            task.skalds.checkpoint = None;
            task.skalds.progress = None;
        }
        // It was valid when the task was made; whoever changed it since reads this.
        Err(error) => task.skalds.last_error = Some(error.to_string()),
    }
}

/// From the start, at once. A finished task begins anew; one that failed or was cancelled keeps its checkpoint.
fn requeue(task: &mut Task, now: Millis) {
    let time_allowed = time_allowed(task);
    if task.lifecycle_status == LifecycleStatus::Finished {
        task.skalds.checkpoint = None;
    }
    if task.lifecycle_status != LifecycleStatus::Created {
        task.executor = None;
        task.skalds.incarnation += 1;
        task.skalds.attempt = 0;
        task.skalds.progress = None;
        task.skalds.result = None;
        task.skalds.dead = false;
        task.skalds.cancel_requested = false;
        task.skalds.pause_requested = false;
        task.lifecycle_status = LifecycleStatus::Created;
    }
    if task.skalds.outside {
        task.skalds.cancel_requested = false;
    }
    task.skalds.next_attempt_at = None;
    task.skalds.not_before = None;
    if task.deadline_date_time > 0 {
        task.deadline_date_time = now.saturating_add(time_allowed);
    }
    if task.skalds.cron.is_some() {
        task.skalds.not_before = Some(now);
    }
}

/// From when it might start to its deadline.
fn time_allowed(task: &Task) -> Millis {
    task.deadline_date_time.saturating_sub(task.skalds.not_before.unwrap_or(task.create_date_time)).max(0)
}

fn bounded(error: &str) -> String {
    let mut end = error.len().min(MAX_ERROR);
    while !error.is_char_boundary(end) {
        end -= 1;
    }
    error[..end].to_owned()
}

#[cfg(test)]
#[path = "lifecycle_tests.rs"]
mod tests;
