//! Where the rules of [`crate::chain::run`] meet the links, the planner and the store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use actix::fut::ActorFutureExt;
use actix::{
    Actor, ActorContext, AsyncContext, Context, Handler, Message as ActixMessage, StreamHandler, WrapFuture,
};
use tokio::sync::watch;
use tokio::time::Instant;

use super::peers::{Heard, Peers};
use super::planning::{self, Ask, NoPlan, Planned};
use super::{JobOptions, JobPhase, JobProgress, markers, result};
use crate::actors::agent::{AgentError, AgentOptions, DIRECT, NodeAgent};
use crate::actors::link::{LinkError, LinkEvent, LinkOptions, Links};
use crate::actors::outbox::OutboxError;
use crate::actors::{ActorSystem, Clock, Scope};
use crate::chain::job::JobSpec;
use crate::chain::message::{ChainId, Hello, Message, PROTOCOL, Progress, Role};
use crate::chain::plan::Explanation;
use crate::chain::report::JobReport;
use crate::chain::run::{Goal, RunConfig, RunEffect, RunInput, RunMachine, RunOutcome, RunRecord};
use crate::chain::state::NodeId;
use crate::core::task::LifecycleStatus;
use crate::node;

/// How often agents that are away are looked for, and progress is told.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What a coordinator is made for.
pub(super) struct Task {
    pub(super) job: Arc<JobSpec>,
    pub(super) options: JobOptions,
    pub(super) progress: watch::Sender<JobProgress>,
    pub(super) report: watch::Sender<Option<JobReport>>,
}

/// What a coordinator is told from inside the process.
pub(super) enum CoordinatorInput {
    /// End the job.
    Cancel,
}

impl ActixMessage for CoordinatorInput {
    type Result = ();
}

/// The coordinator of one job.
pub(super) struct CoordinatorActor {
    task: Arc<Task>,
    system: ActorSystem,
    clock: Clock,
    peers: Option<Peers>,
    direct: Direct,
    machine: Option<RunMachine>,
    effects: Vec<RunEffect>,
    explanation: Option<Arc<Explanation>>,
    /// Where the nodes of all plans listen.
    addresses: BTreeMap<NodeId, String>,
    /// What chains under way have last said.
    heard: BTreeMap<ChainId, Progress>,
    cancelled: bool,
    ending: bool,
    alarm: Option<(i64, actix::SpawnHandle)>,
    began: Instant,
}

/// The agent in this process, made when a plan wants it.
enum Direct {
    None,
    Starting,
    Up(NodeAgent),
}

impl CoordinatorActor {
    pub(super) fn new(task: Arc<Task>, scope: Scope<CoordinatorActor>) -> Self {
        CoordinatorActor {
            clock: scope.system.clock(),
            system: scope.system,
            task,
            peers: None,
            direct: Direct::None,
            machine: None,
            effects: Vec::new(),
            explanation: None,
            addresses: BTreeMap::new(),
            heard: BTreeMap::new(),
            cancelled: false,
            ending: false,
            alarm: None,
            began: Instant::now(),
        }
    }

    fn config(&self) -> RunConfig {
        RunConfig {
            incarnation: self.task.options.incarnation,
            direct: DIRECT.into(),
            ..RunConfig::default()
        }
    }

    /// Looks at the job and the cluster before anything is started: a job that cannot run says so at once.
    fn begin(&mut self, ctx: &mut Context<Self>) {
        let task = Arc::clone(&self.task);
        let look = async move { first_look(&task).await };
        ctx.spawn(look.into_actor(self).map(|looked, coordinator: &mut Self, ctx| {
            // An earlier attempt at it may have left chains with agents.
            let first = coordinator.task.options.incarnation <= 1;
            if coordinator.cancelled && first {
                return coordinator.refuse("it was cancelled before it started", true, ctx);
            }
            match looked {
                Ok((goal, agents)) => {
                    let (job, now) = (Arc::clone(&coordinator.task.job), coordinator.clock.now_millis());
                    let sequence = planning::start_of(&job);
                    let mut record = RunRecord::new(job, goal);
                    record.settled.sequence = sequence;
                    if !first {
                        record.agents = agents;
                    }
                    let config = coordinator.config();
                    coordinator.machine =
                        Some(RunMachine::recover(config, record, now, &mut coordinator.effects));
                    coordinator.carry_out(ctx);
                    if coordinator.cancelled {
                        coordinator.input(RunInput::Cancel, ctx);
                    }
                }
                Err(reason) => coordinator.refuse(&reason, false, ctx),
            }
        }));
    }

    /// The job ends before it has begun, or because the coordinator cannot go on with it.
    fn refuse(&mut self, reason: &str, cancelled: bool, ctx: &mut Context<Self>) {
        let mut report = result::refused(&self.task.job, reason, cancelled);
        if let Some(machine) = &self.machine {
            result::how_far(&mut report, machine.record(), machine.units_done(), machine.tally());
        }
        self.tell(report, ctx);
    }

    fn tell(&mut self, report: JobReport, ctx: &mut Context<Self>) {
        if let Some(metrics) = &self.task.options.metrics {
            metrics.over(&report, self.began.elapsed());
        }
        self.task.report.send_replace(Some(report));
        ctx.stop();
    }

    fn input(&mut self, input: RunInput, ctx: &mut Context<Self>) {
        let now = self.clock.now_millis();
        if let Some(machine) = &mut self.machine {
            machine.handle(now, input, &mut self.effects);
        }
        self.carry_out(ctx);
    }

    /// Does what the rules have decided, in their order.
    fn carry_out(&mut self, ctx: &mut Context<Self>) {
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                RunEffect::Persist { ticket, record } => self.persist(ticket, &record, ctx),
                RunEffect::NeedPlan { epoch, open, sequence, acc, lost } => {
                    self.plan(Ask { epoch, open, sequence, acc, lost }, ctx);
                }
                RunEffect::Verify { parts } => {
                    let task = Arc::clone(&self.task);
                    let look = async move { planning::gone(&task.options, parts).await };
                    ctx.spawn(look.into_actor(self).map(|gone, coordinator: &mut Self, ctx| match gone {
                        Ok(gone) => coordinator.input(RunInput::Verified { gone }, ctx),
                        // Unanswered: the rules ask again after a while.
                        Err(error) => tracing::warn!(%error, "cannot verify which primaries are still there"),
                    }));
                }
                RunEffect::Send { to, message } => self.send(to, message, ctx),
                RunEffect::Finished { outcome } => self.finish(outcome, ctx),
            }
        }
        self.after(ctx);
    }

    fn persist(&mut self, ticket: u64, record: &RunRecord, ctx: &mut Context<Self>) {
        let commit = match &self.task.options.store {
            None => None,
            Some(store) => match store.put(record) {
                Ok(commit) => Some(commit),
                Err(error) => return self.refuse(&error.to_string(), false, ctx),
            },
        };
        let durable = async move {
            match commit {
                Some(commit) => commit.await,
                None => Ok::<(), OutboxError>(()),
            }
        };
        ctx.spawn(durable.into_actor(self).map(move |durable, coordinator: &mut Self, ctx| match durable {
            Ok(()) => coordinator.input(RunInput::Persisted { ticket }, ctx),
            Err(error) => coordinator.refuse(&error.to_string(), false, ctx),
        }));
    }

    fn plan(&mut self, ask: Ask, ctx: &mut Context<Self>) {
        let task = Arc::clone(&self.task);
        let epoch = ask.epoch;
        let make = async move { planning::make(&task.job, &task.options, ask).await };
        ctx.spawn(make.into_actor(self).map(move |planned, coordinator: &mut Self, ctx| {
            let input = match planned {
                Ok(Planned { chains, uncovered, explanation, addresses }) => {
                    coordinator.explanation = Some(explanation);
                    coordinator.addresses.extend(addresses);
                    RunInput::Planned { epoch, chains, uncovered }
                }
                Err(NoPlan { reason, permanent }) => RunInput::PlanFailed { epoch, reason, permanent },
            };
            coordinator.heard.clear();
            coordinator.input(input, ctx);
        }));
    }

    fn send(&mut self, to: String, message: Message, ctx: &mut Context<Self>) {
        if to == DIRECT {
            self.start_direct(ctx);
        }
        let Some(link) = self.peers.as_mut().and_then(|peers| peers.reach(&to)) else { return };
        match link.try_send(&message) {
            Ok(_) | Err(LinkError::Closed { .. }) => {}
            Err(LinkError::Full { .. }) => {
                let link = link.clone();
                ctx.spawn(async move { drop(link.send(&message).await) }.into_actor(self));
            }
            Err(error) => self.refuse(&error.to_string(), false, ctx),
        }
    }

    /// Starts the agent in this process and connects to it through a pipe.
    fn start_direct(&mut self, ctx: &mut Context<Self>) {
        if !matches!(self.direct, Direct::None) {
            return;
        }
        self.direct = Direct::Starting;
        let (system, options) = (self.system.clone(), &self.task.options);
        let agent = AgentOptions {
            listen: None,
            redis: None,
            access: options.access.clone(),
            natives: options.natives.clone(),
            data_dir: options.direct_dir.clone(),
            ..AgentOptions::default()
        };
        let start = async move {
            let agent = NodeAgent::start(&system, agent).await?;
            let stream = agent.connect().await?;
            Ok::<_, AgentError>((agent, stream))
        };
        ctx.spawn(start.into_actor(self).map(|started, coordinator: &mut Self, ctx| match started {
            Ok((agent, stream)) => {
                coordinator.direct = Direct::Up(agent);
                if let Some(peers) = &coordinator.peers {
                    peers.links().over(stream, DIRECT);
                }
            }
            Err(error) => coordinator.refuse(&error.to_string(), false, ctx),
        }));
    }

    /// Folds what came back and reports.
    fn finish(&mut self, outcome: RunOutcome, ctx: &mut Context<Self>) {
        let Some(machine) = &self.machine else { return };
        self.ending = true;
        let record = machine.record().clone();
        let (task, addresses) = (Arc::clone(&self.task), self.addresses.clone());
        let report = async move {
            // An agent that has not confirmed may be cut off, and run what it holds when it is back.
            let nothing_runs = outcome.unconfirmed.is_empty();
            let report = result::report(&task, record, outcome, &addresses).await;
            if nothing_runs && report.status == LifecycleStatus::Finished {
                markers::forget(&task).await;
            }
            report
        };
        ctx.spawn(report.into_actor(self).map(|report, coordinator: &mut Self, ctx| {
            coordinator.tell(report, ctx);
        }));
    }

    /// Keeps the alarm and the published progress in step with the rules.
    fn after(&mut self, ctx: &mut Context<Self>) {
        self.publish();
        let due = self.machine.as_ref().and_then(RunMachine::alarm_at);
        if self.alarm.as_ref().map(|(at, _)| *at) == due {
            return;
        }
        if let Some((_, handle)) = self.alarm.take() {
            ctx.cancel_future(handle);
        }
        if let Some(at) = due {
            let wait = u64::try_from(at - self.clock.now_millis()).unwrap_or(0);
            let handle = ctx.run_later(Duration::from_millis(wait), |coordinator, ctx| {
                coordinator.alarm = None;
                coordinator.input(RunInput::Tick, ctx);
            });
            self.alarm = Some((at, handle));
        }
    }

    fn publish(&self) {
        let Some(machine) = &self.machine else { return };
        let record = machine.record();
        let progress = JobProgress {
            phase: match (self.ending || record.ending.is_some(), record.live.is_empty()) {
                (true, _) => JobPhase::Ending,
                (false, true) => JobPhase::Planning,
                (false, false) => JobPhase::Running,
            },
            epoch: record.plan_number(record.epoch),
            units_done: machine.units_done(),
            units_total: result::units_total(&record.spec, &record.goal),
            tally: machine.tally(),
            at: self.heard.values().map(|progress| self.address_of(&progress.node)).collect(),
            plan: self.explanation.clone(),
        };
        self.task.progress.send_if_modified(|last| {
            let changed = *last != progress;
            *last = progress;
            changed
        });
    }

    fn address_of(&self, node: &NodeId) -> String {
        self.addresses.get(node).unwrap_or(node).clone()
    }

    fn look(&mut self, ctx: &mut Context<Self>) {
        let limit = self.task.options.agent_timeout;
        let lost = self.peers.as_mut().map(|peers| peers.newly_lost(limit)).unwrap_or_default();
        for (agent, reason) in lost {
            tracing::warn!(%agent, %reason, job = %self.task.job.id, "planning without an agent that is away");
            self.input(RunInput::AgentLost { agent }, ctx);
        }
    }
}

/// Checks the job against the cluster and says what has to be done, and which agents there are. A cluster that does not answer is given the time
/// that one of its nodes has.
async fn first_look(task: &Task) -> Result<(Goal, BTreeSet<String>), String> {
    let limit = Duration::from_millis(task.job.limits.node_timeout_millis.into());
    let began = Instant::now();
    let options = &task.options;
    task.job.check().map_err(|error| error.to_string())?;
    loop {
        let looked = async {
            let view = node::discover(&options.seeds, &options.access).await?;
            if let Some(first) = view.nodes.first() {
                node::check(&first.redis, &task.job, &options.access, &options.natives).await?;
            }
            let agents = view.nodes.into_iter().filter_map(|node| node.agent).collect();
            Ok::<_, node::NodeError>((view.cluster, agents))
        };
        match looked.await {
            Ok((cluster, agents)) => return Ok((planning::goal(&task.job, cluster), agents)),
            Err(error) if !error.is_transient() || began.elapsed() >= limit => return Err(error.to_string()),
            Err(error) => tracing::debug!(%error, "looking at the cluster again"),
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

impl Actor for CoordinatorActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let hello = Hello {
            protocol: PROTOCOL,
            role: Role::Coordinator,
            name: format!("coordinator of {}", self.task.job.id),
            incarnation: self.task.options.incarnation,
            token: None,
        };
        let (links, mut events) = Links::new(hello, LinkOptions::default());
        ctx.add_stream(futures_util::stream::poll_fn(move |cx| events.poll_recv(cx)));
        self.peers = Some(Peers::new(links));
        ctx.run_interval(LOOK_EVERY, |coordinator, ctx| coordinator.look(ctx));
        match self.task.options.store.as_ref().and_then(|store| store.take(&self.task.job.id)) {
            Some(record) => {
                tracing::info!(job = %self.task.job.id, epoch = record.epoch, "going on with a job");
                let now = self.clock.now_millis();
                self.machine = Some(RunMachine::recover(self.config(), record, now, &mut self.effects));
                self.carry_out(ctx);
            }
            None => self.begin(ctx),
        }
    }

    fn stopped(&mut self, _ctx: &mut Context<Self>) {
        if let Direct::Up(agent) = &self.direct {
            agent.end();
        }
    }
}

impl Handler<CoordinatorInput> for CoordinatorActor {
    type Result = ();

    fn handle(&mut self, input: CoordinatorInput, ctx: &mut Context<Self>) {
        match input {
            CoordinatorInput::Cancel => {
                self.cancelled = true;
                self.input(RunInput::Cancel, ctx);
            }
        }
    }
}

impl StreamHandler<LinkEvent> for CoordinatorActor {
    fn handle(&mut self, event: LinkEvent, ctx: &mut Context<Self>) {
        match self.peers.as_mut().and_then(|peers| peers.hear(event)) {
            Some(Heard::Connected(agent)) => self.input(RunInput::Connected { agent }, ctx),
            Some(Heard::Message(from, message)) => {
                if let Message::Progress(progress) = &message {
                    self.heard.insert(progress.chain.clone(), progress.clone());
                }
                if let Message::State(state) = &message {
                    self.heard.remove(&ChainId::of(state));
                }
                self.input(RunInput::Received { from, message }, ctx);
            }
            None => {}
        }
    }

    // The links end only with this actor.
    fn finished(&mut self, _ctx: &mut Context<Self>) {}
}
