//! The monitor: watches the fleet, judges held tasks, and passes news on.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, AsyncContext, Context, WrapFuture};
use tokio::sync::Mutex;

use super::board::is_held;
use super::builder::Shared;
use super::fleet::{Fleet, FleetReader};
use crate::actors::notice::{CHANNEL, Notice};
use crate::actors::tasks::{Changed, TaskError, Tasks};
use crate::backend::{BackendError, TaskScan};
use crate::config::env::ControllerMode;
use crate::core::event::read;
use crate::core::judge::{Evidence, Holder, TaskJudge, Verdict};
use crate::core::lease::Heartbeat;
use crate::core::lifecycle::Change;
use crate::core::names;
use crate::core::order::Order;
use crate::core::task::{LifecycleStatus, Millis, Task};

/// After a sweep that took a second there are a hundred without. A Skald that goes is judged at once, whatever this says.
const REST: u32 = 100;

pub(super) struct MonitorActor(pub(super) Arc<Monitor>);

impl MonitorActor {
    fn run(&self, ctx: &mut Context<Self>, work: impl Future<Output = ()> + 'static) {
        ctx.spawn(work.into_actor(self));
    }
}

impl Actor for MonitorActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let monitor = || Arc::clone(&self.0);
        let (fleet, news, sender, judge) = (monitor(), monitor(), monitor(), monitor());
        self.run(ctx, async move { fleet.watch_fleet().await });
        self.run(ctx, async move { news.hear_news().await });
        self.run(ctx, async move {
            let shared = &sender.shared;
            shared.tasks.notices.send_all(&*shared.backends.cache).await;
        });
        if self.0.shared.mode != ControllerMode::Controller {
            self.run(ctx, async move { judge.judge_tasks().await });
            let orders = monitor();
            self.run(ctx, async move { orders.send_orders().await });
        }
    }
}

pub(super) struct Monitor {
    pub(super) shared: Arc<Shared>,
    /// And the term that they judge in.
    judges: Mutex<(Option<u64>, HashMap<String, TaskJudge>)>,
}

fn millis(duration: Duration) -> Millis {
    Millis::try_from(duration.as_millis()).unwrap_or(Millis::MAX)
}

impl Monitor {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Monitor { shared, judges: Mutex::default() }
    }

    fn now(&self) -> Millis {
        millis(self.shared.tasks.clock.elapsed())
    }

    /// Reads the fleet at every interval and when a Skald says that it has changed.
    async fn watch_fleet(&self) {
        let shared = &self.shared;
        let mut reader = FleetReader::default();
        let mut ticks = shared.tasks.clock.interval(shared.timing.skald_interval);
        loop {
            let cache = &*shared.backends.cache;
            match reader.read(cache, self.now(), shared.timing.expired_after).await {
                Ok(fleet) => {
                    if shared.term().is_some() {
                        for id in reader.long_gone(&fleet, self.now()) {
                            self.forget_skald(&id).await;
                        }
                    }
                    self.take_fleet(fleet);
                }
                Err(error) => {
                    tracing::warn!(%error, "the fleet could not be read; nobody is judged meanwhile")
                }
            }
            tokio::select! {
                () = ticks.tick() => {}
                () = shared.fleet_changed.notified() => {}
            }
        }
    }

    fn take_fleet(&self, fleet: Fleet) {
        let before = Arc::clone(&self.shared.fleet.borrow());
        let other = !fleet.dispatches_as(&before);
        let gone = |fleet: &Fleet| fleet.skalds.values().filter(|skald| skald.gone).count();
        let lost_one = gone(&fleet) > gone(&before);
        for skald in fleet.skalds.values() {
            let was = before.skalds.get(&skald.id).is_some_and(|skald| skald.online);
            if skald.online != was {
                tracing::info!(skald = skald.id, online = skald.online, "a skald has come or gone");
            }
        }
        self.shared.fleet.send_replace(Arc::new(fleet));
        if other {
            self.shared.dispatch.notify_one();
        }
        if lost_one {
            self.shared.judge_now.notify_one();
        }
    }

    /// Removes the entries of a Skald that died; its other keys expire by themselves.
    async fn forget_skald(&self, id: &str) {
        for hash in [names::SKALDS, names::SKALD_MODES] {
            if let Err(error) =
                self.shared.backends.cache.delete_hash_field(hash.as_bytes(), id.as_bytes()).await
            {
                tracing::debug!(skald = id, %error, "a field is left behind; it expires by itself");
            }
        }
    }

    /// Hears what others tell, and passes it on.
    async fn hear_news(&self) {
        let shared = &self.shared;
        loop {
            match shared.backends.cache.subscribe(&[CHANNEL.to_vec()]).await {
                Ok(mut subscription) => {
                    self.look_everywhere(); // for what was told before
                    while let Some(message) = subscription.next().await {
                        match message {
                            Ok(message) => match read::<Notice>("a notice", &message.payload) {
                                Ok(notice) => self.heard(notice),
                                Err(error) => tracing::warn!(%error, "a notice was left out"),
                            },
                            Err(error) => {
                                tracing::debug!(%error, "notices were missed; looking into storage");
                                self.look_everywhere();
                            }
                        }
                    }
                    tracing::debug!("notices have ended; listening again");
                }
                Err(error) => tracing::warn!(%error, "notices are not heard; trying again"),
            }
            shared.tasks.clock.sleep(Duration::from_secs(1)).await;
        }
    }

    fn look_everywhere(&self) {
        self.shared.fleet_changed.notify_one();
        self.shared.judge_now.notify_one();
        self.shared.dispatch.notify_one();
    }

    fn heard(&self, notice: Notice) {
        let shared = &self.shared;
        match notice {
            Notice::Skald { .. } => shared.fleet_changed.notify_one(),
            Notice::Task(change) => {
                let status = change.lifecycle_status;
                // Whoever begins to lead looks at all tasks; until then the board would only grow.
                let leads = shared.term().is_some();
                let freed = leads
                    && shared.board.see(&change.id, status, change.executor.as_deref(), change.revision);
                if let Some(at) = change.not_before.filter(|at| *at > shared.tasks.clock.now_millis()) {
                    shared.becomes_due(at);
                }
                if freed || !is_held(status) {
                    shared.dispatch.notify_one();
                }
                // Nobody listens: nothing is lost.
                let _ = shared.changes.send(change);
            }
        }
    }

    /// Judges all held tasks at every interval, and when a Skald has gone, while this controller leads.
    async fn judge_tasks(&self) {
        let clock = &self.shared.tasks.clock;
        loop {
            self.shared.leads().await;
            let Some(lead) = self.shared.lead() else { continue };
            let begun = clock.elapsed();
            match self.judge_all(&lead).await {
                Ok(()) => {
                    self.shared.pulse.swept(clock.elapsed());
                    self.shared.swept_in(&lead);
                }
                Err(error) => {
                    self.shared.failed(&error);
                    tracing::warn!(%error, "held tasks could not be judged; trying again");
                    let now = self.now();
                    self.judges.lock().await.1.values_mut().for_each(|judge| judge.pardon(now));
                }
            }
            let took = clock.elapsed().saturating_sub(begun);
            tokio::select! {
                () = clock.sleep(self.shared.timing.task_interval.max(took * REST)) => {}
                () = self.shared.judge_now.notified() => {}
            }
        }
    }

    async fn judge_all(&self, lead: &Tasks) -> Result<(), TaskError> {
        let shared = &self.shared;
        let mut judges = self.judges.lock().await;
        if judges.0 != lead.term {
            *judges = (lead.term, HashMap::new()); // what was seen long ago proves nothing now
        }
        let judges = &mut judges.1;
        let mut seen = Vec::new();
        let statuses = vec![LifecycleStatus::Assigning, LifecycleStatus::Running, LifecycleStatus::Paused];
        let mut scan = TaskScan { statuses, ..TaskScan::default() };
        shared.board.begin_round();
        loop {
            let batch = shared.backends.storage.scan(&scan).await?;
            let values = self.signs(&batch.tasks).await?;
            let (now, wall) = (self.now(), shared.tasks.clock.now_millis());
            let fleet = Arc::clone(&shared.fleet.borrow());
            for (task, (heartbeat, exception)) in batch.tasks.into_iter().zip(values) {
                shared.board.see_task(&task);
                let evidence = Evidence {
                    holder: task.executor.as_ref().map_or(Holder::Unknown, |executor| fleet.holder(executor)),
                    heartbeat: heartbeat.as_deref(),
                    exception: exception.as_deref(),
                    now,
                    wall,
                    expired_after: shared.timing.expired_after,
                    cleared: shared.board.is_cleared(&task.id, task.skalds.incarnation),
                };
                let judge = judges.entry(task.id.clone()).or_insert_with(|| TaskJudge::new(&task, now));
                let verdict = judge.judge(&task, evidence);
                seen.push(task.id.clone());
                self.carry_out(lead, task, verdict).await?;
            }
            scan.after = batch.next;
            if scan.after.is_none() {
                break;
            }
        }
        if shared.board.end_round() {
            shared.dispatch.notify_one();
        }
        if judges.len() > seen.len() {
            let seen: std::collections::HashSet<_> = seen.into_iter().collect();
            judges.retain(|id, _| seen.contains(id));
        }
        Ok(())
    }

    /// The heartbeat of each task, and the exception of those that are not simply alive.
    async fn signs(&self, tasks: &[Task]) -> Result<Vec<(Option<Vec<u8>>, Option<String>)>, BackendError> {
        let cache = &self.shared.backends.cache;
        let keys = |ids: &[&str], key: fn(&str) -> String| -> Vec<Vec<u8>> {
            ids.iter().map(|id| key(id).into_bytes()).collect()
        };
        let ids: Vec<&str> = tasks.iter().map(|task| &task.id[..]).collect();
        let beats = cache.get_strings(&keys(&ids, names::task_heartbeat)).await?;
        let alive = |beat: &Option<Vec<u8>>| {
            let beat = beat.as_ref().and_then(|beat| Heartbeat::parse(beat).ok());
            matches!(beat, Some(Heartbeat::Beat(_)))
        };
        let silent: Vec<&str> =
            ids.into_iter().zip(&beats).filter(|(_, beat)| !alive(beat)).map(|(id, _)| id).collect();
        let mut exceptions = Vec::new();
        if !silent.is_empty() {
            exceptions = cache.get_strings(&keys(&silent, names::task_exception)).await?;
        }
        let mut exceptions = exceptions.into_iter();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let signs = beats.into_iter().map(|beat| {
            let exception = if alive(&beat) { None } else { exceptions.next().flatten().map(text) };
            (beat, exception)
        });
        Ok(signs.collect())
    }

    async fn carry_out(&self, lead: &Tasks, task: Task, verdict: Verdict) -> Result<(), TaskError> {
        if !self.shared.still_leads(lead) {
            return Ok(()); // reminders are events, which nobody refuses
        }
        match verdict {
            Verdict::Fine => {}
            Verdict::RemindAssign => self.shared.tell(names::TASK_ASSIGN, &task).await,
            Verdict::RemindCancel => self.shared.tell(names::TASK_CANCEL, &task).await,
            Verdict::Change(changes) => {
                let before = task.clone();
                let taken = |change: &Change| matches!(change, Change::Lost { .. } | Change::Expire);
                let order = changes.iter().any(taken).then_some(Order::Stop);
                match self.shared.change_with(lead, task, &changes, order).await? {
                    Changed::Done(after) => {
                        tracing::info!(
                            task = after.id,
                            status = ?after.lifecycle_status,
                            error = after.skalds.last_error,
                            "the monitor changed a task"
                        );
                        // Whoever may still run it must stop.
                        if after.skalds.untold.is_some() {
                            self.shared.send_order(after).await;
                        } else if order.is_some() {
                            self.shared.tell(names::TASK_CANCEL, &before).await;
                        }
                    }
                    Changed::Refused(refused, task) => {
                        tracing::debug!(task = task.id, %refused, "a verdict came too late");
                    }
                    Changed::Missing => {}
                }
            }
        }
        Ok(())
    }
}
