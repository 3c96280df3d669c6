//! Where the rules of [`crate::chain::hop`] meet the outbox, the links and the hops under way.

use std::collections::HashMap;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};
use std::time::Duration;

use actix::fut::{ActorFuture, ActorFutureExt};
use actix::{Actor, AsyncContext, Context, Handler, SpawnHandle, StreamHandler, WrapFuture};
use tokio_util::sync::CancellationToken;

use super::crash_point::crash_point;
use super::hop_run::{HopRun, Tools};
use super::metrics::{AgentMetrics, Measures};
use super::presence;
use super::{AgentError, AgentInput, Ready};
use crate::actors::hop_outbox::HopOutbox;
use crate::actors::link::{Dialer, Link as Connection, LinkError, LinkEvent, LinkOptions, Links, Listener};
use crate::actors::outbox::OutboxOptions;
use crate::actors::{ActorRef, Clock, Scope};
use crate::chain::hop::{HopConfig, HopEffect, HopInput, HopMachine, Link};
use crate::chain::message::{Hello, Message, PROTOCOL, Role};
use crate::chain::state::HopId;
use crate::core::task::Millis;

/// Bytes of states that an agent holds before it is busy, and that may wait for its disk.
const CAPACITY_BYTES: u64 = 64 << 20;

/// What stays the same over an agent's restarts.
#[derive(Debug)]
pub(super) struct Setup {
    pub(super) address: String,
    /// Of the connection by which coordinators find it.
    pub(super) name: String,
    pub(super) listen: Option<String>,
    pub(super) redis: Option<String>,
    pub(super) data_dir: Option<PathBuf>,
    pub(super) allow_remote: bool,
    pub(super) per_node: usize,
    pub(super) metrics: Option<AgentMetrics>,
    pub(super) tools: Arc<Tools>,
}

/// The agent.
pub(crate) struct AgentActor {
    setup: Arc<Setup>,
    me: ActorRef<AgentActor>,
    clock: Clock,
    /// `None` until `started`, and when that failed (see `failure`).
    up: Option<Up>,
    failure: Option<AgentError>,
    effects: Vec<HopEffect>,
    alarm: Option<(Millis, SpawnHandle)>,
}

/// What an agent that is up has.
struct Up {
    machine: HopMachine,
    outbox: HopOutbox,
    /// Wakes what waits for the outbox.
    durable: Option<Waker>,
    links: Links,
    listener: Option<Listener>,
    dialers: HashMap<String, Dialer>,
    connections: HashMap<Link, Connection>,
    /// The rules' name of a connection, by its number.
    names: HashMap<u64, Link>,
    runs: HashMap<HopId, CancellationToken>,
    measures: Option<Measures>,
}

impl AgentActor {
    pub(super) fn new(setup: Arc<Setup>, scope: Scope<AgentActor>) -> Self {
        let clock = scope.system.clock();
        AgentActor { setup, me: scope.me, clock, up: None, failure: None, effects: Vec::new(), alarm: None }
    }

    fn start(&mut self, ctx: &mut Context<Self>) -> Result<(), AgentError> {
        let options = OutboxOptions { queue_bytes: CAPACITY_BYTES as usize, ..OutboxOptions::default() };
        let (outbox, records) = match &self.setup.data_dir {
            Some(dir) => HopOutbox::open(dir, options)?,
            None => (HopOutbox::in_memory(), Vec::new()),
        };
        let now = self.clock.now_millis();
        let hello = Hello {
            protocol: PROTOCOL,
            role: Role::Agent,
            name: self.setup.address.clone(),
            incarnation: u64::try_from(now).unwrap_or(0),
            token: None,
        };
        let options = LinkOptions { allow_remote: self.setup.allow_remote, ..LinkOptions::default() };
        let (links, mut events) = Links::new(hello, options);
        ctx.add_stream(futures_util::stream::poll_fn(move |cx| events.poll_recv(cx)));

        ctx.spawn(Durable);
        let config = HopConfig {
            per_node: self.setup.per_node,
            capacity_bytes: CAPACITY_BYTES,
            ..HopConfig::new(self.setup.address.clone())
        };
        if !records.is_empty() {
            tracing::info!(agent = %self.setup.address, records = records.len(), "taking up what the outbox holds");
        }
        let machine = HopMachine::recover(config, records, now, &mut self.effects);
        self.up = Some(Up {
            machine,
            outbox,
            durable: None,
            links,
            listener: None,
            dialers: HashMap::new(),
            connections: HashMap::new(),
            names: HashMap::new(),
            runs: HashMap::new(),
            measures: self.setup.metrics.as_ref().map(|metrics| metrics.of(&self.setup.address)),
        });
        if let Some(redis) = &self.setup.redis {
            let (access, redis) = (self.setup.tools.access.clone(), redis.clone());
            ctx.spawn(presence::stay(access, redis, self.setup.name.clone()).into_actor(self));
        }
        self.listen(ctx);
        self.carry_out(ctx);
        Ok(())
    }

    /// Listens before the first message is handled, so that who asks whether it is up gets a true answer.
    fn listen(&self, ctx: &mut Context<Self>) {
        let (Some(up), Some(address)) = (&self.up, self.setup.listen.clone()) else { return };
        let links = up.links.clone();
        let listen = async move { links.listen(&address).await };
        ctx.wait(listen.into_actor(self).map(|listener, agent: &mut Self, _| {
            match (listener, &mut agent.up) {
                (Ok(listener), Some(up)) => up.listener = Some(listener),
                (Ok(_), None) => {}
                (Err(error), _) => agent.fail(error.into()),
            }
        }));
    }

    fn fail(&mut self, error: AgentError) {
        tracing::error!(agent = %self.setup.address, %error, "cannot start");
        self.up = None;
        self.failure = Some(error);
    }

    fn input(&mut self, input: HopInput, ctx: &mut Context<Self>) {
        if let HopInput::Ran { hop, .. } | HopInput::Stopped { hop } = &input
            && let Some(up) = &mut self.up
        {
            up.runs.remove(hop);
        }
        let now = self.clock.now_millis();
        if let Some(up) = &mut self.up {
            up.machine.handle(now, input, &mut self.effects);
        }
        self.carry_out(ctx);
    }

    /// Does what the rules have decided, in their order.
    fn carry_out(&mut self, ctx: &mut Context<Self>) {
        let mut unsendable = Vec::new();
        for effect in std::mem::take(&mut self.effects) {
            let Some(up) = &mut self.up else { return };
            let done = match effect {
                HopEffect::Persist { ticket, record } => {
                    crash_point("before-persist");
                    up.durable.iter().for_each(Waker::wake_by_ref);
                    up.outbox.persist(ticket, &record)
                }
                HopEffect::Note { record } => up.outbox.note(&record),
                HopEffect::Send { to, message } => {
                    unsendable.extend(self.send(to, message, ctx));
                    Ok(())
                }
                HopEffect::Run { hop, state } => {
                    let abort = CancellationToken::new();
                    up.runs.insert(hop.clone(), abort.clone());
                    let (tools, agent) = (Arc::clone(&self.setup.tools), self.me.clone());
                    let run = HopRun::new(hop, (*state).clone(), tools, abort, agent);
                    ctx.spawn(run.run().into_actor(self));
                    Ok(())
                }
                HopEffect::Abort { hop } => {
                    if let Some(abort) = up.runs.get(&hop) {
                        abort.cancel();
                    }
                    Ok(())
                }
            };
            if let Err(error) = done {
                give_up(&self.setup.address, &error);
            }
        }
        for input in unsendable {
            self.input(input, ctx);
        }
        self.after(ctx);
    }

    fn send(&mut self, to: Link, message: Message, ctx: &mut Context<Self>) -> Option<HopInput> {
        let up = self.up.as_mut()?;
        let Some(connection) = up.connections.get(&to) else {
            if let Link::Agent(address) = &to
                && !up.dialers.contains_key(address)
            {
                up.dialers.insert(address.clone(), up.links.dial(address.clone()));
            }
            return None;
        };
        if let Message::State(state) = &message {
            crash_point("before-send");
            up.measures.iter_mut().for_each(|measures| measures.sent(state.hop_id()));
        }
        match connection.try_send(&message) {
            Ok(_) | Err(LinkError::Closed { .. }) => None,
            Err(LinkError::Unsendable { error, .. }) => {
                tracing::error!(%error, "a job state cannot be sent");
                match message {
                    Message::State(state) => {
                        up.measures.iter_mut().for_each(|measures| measures.failed(&state.hop_id()));
                        Some(HopInput::Unsendable { hop: state.hop_id(), reason: error.to_string() })
                    }
                    _ => None,
                }
            }
            // The peer reads slowly. What waits here is bounded by the rules' window; what may be lost is.
            Err(_) if message.is_lossy() => None,
            Err(_) => {
                let connection = connection.clone();
                ctx.spawn(async move { drop(connection.send(&message).await) }.into_actor(self));
                None
            }
        }
    }

    /// Keeps the alarm, the published load and the outbox's size in step with the rules.
    fn after(&mut self, ctx: &mut Context<Self>) {
        let Some(up) = &mut self.up else { return };
        let (queue, active) = up.machine.load();
        up.links.load().queue.store(queue, Ordering::Relaxed);
        up.links.load().active.store(active, Ordering::Relaxed);
        if let Some(measures) = &up.measures {
            measures.load(queue, active, up.outbox.stats().pending);
        }
        if up.outbox.is_cluttered()
            && let Err(error) = up.outbox.keep_only(&up.machine.snapshot())
        {
            give_up(&self.setup.address, &error);
        }
        let due = up.machine.alarm_at();
        if self.alarm.map(|(at, _)| at) == due {
            return;
        }
        if let Some((_, handle)) = self.alarm.take() {
            ctx.cancel_future(handle);
        }
        if let Some(at) = due {
            let wait = u64::try_from(at - self.clock.now_millis()).unwrap_or(0);
            let handle = ctx.run_later(Duration::from_millis(wait), |agent, ctx| {
                agent.alarm = None;
                agent.input(HopInput::Tick, ctx);
            });
            self.alarm = Some((at, handle));
        }
    }
}

/// An agent that cannot keep what it is told must not go on: the supervisor starts it again from what is durable.
fn give_up(address: &str, error: &dyn std::fmt::Display) -> ! {
    panic!("agent {address} cannot keep its states: {error}")
}

impl Actor for AgentActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        if let Err(error) = self.start(ctx) {
            self.fail(error);
        }
    }

    fn stopped(&mut self, _ctx: &mut Context<Self>) {
        if let Some(up) = &self.up {
            up.runs.values().for_each(CancellationToken::cancel);
        }
    }
}

impl Handler<Ready> for AgentActor {
    type Result = Result<(), AgentError>;

    fn handle(&mut self, _: Ready, _ctx: &mut Context<Self>) -> Self::Result {
        self.failure.take().map_or(Ok(()), Err)
    }
}

impl Handler<AgentInput> for AgentActor {
    type Result = ();

    fn handle(&mut self, input: AgentInput, ctx: &mut Context<Self>) {
        match input {
            AgentInput::Hop(input) => self.input(input, ctx),
            AgentInput::Join(stream) => {
                if let Some(up) = &self.up {
                    up.links.over(stream, "this process");
                }
            }
        }
    }
}

impl StreamHandler<LinkEvent> for AgentActor {
    fn handle(&mut self, event: LinkEvent, ctx: &mut Context<Self>) {
        let Some(up) = &mut self.up else { return };
        let input = match event {
            LinkEvent::Connected { link, .. } => {
                let name =
                    if link.dialled() { Link::Agent(link.peer().to_owned()) } else { Link::Conn(link.id()) };
                up.names.insert(link.id(), name.clone());
                up.connections.insert(name.clone(), link);
                HopInput::Connected { link: name }
            }
            LinkEvent::Message { id, message, bytes, frame } => {
                let Some(from) = up.names.get(&id).cloned() else { return };
                if let (Message::State(state), Some(frame)) = (&message, frame) {
                    up.outbox.received(state, frame);
                }
                if let Some(measures) = &mut up.measures {
                    measures.received(&message);
                }
                let acknowledges = matches!(message, Message::Ack(_));
                if acknowledges {
                    crash_point("after-send");
                }
                self.input(HopInput::Received { from, message, bytes: bytes as u64 }, ctx);
                if acknowledges {
                    crash_point("after-ack");
                }
                return;
            }
            LinkEvent::Closed { id, reason } => {
                let Some(name) = up.names.remove(&id) else { return };
                tracing::debug!(agent = %self.setup.address, connection = ?name, %reason, "connection closed");
                up.connections.remove(&name);
                HopInput::Lost { link: name }
            }
            LinkEvent::Pong { .. } | LinkEvent::Unreachable { .. } => return,
        };
        self.input(input, ctx);
    }

    // The links outlive their events only when this actor ends.
    fn finished(&mut self, _ctx: &mut Context<Self>) {}
}

/// Waits for the outbox for as long as the agent is up.
struct Durable;

impl ActorFuture<AgentActor> for Durable {
    type Output = ();

    fn poll(
        self: Pin<&mut Self>,
        agent: &mut AgentActor,
        ctx: &mut Context<AgentActor>,
        cx: &mut std::task::Context<'_>,
    ) -> Poll<()> {
        loop {
            let Some(up) = &mut agent.up else { return Poll::Pending };
            let durable = pin!(up.outbox.persisted()).poll(cx);
            match durable {
                Poll::Ready(Ok(up_to)) => {
                    crash_point("after-persist");
                    agent.input(HopInput::Persisted { up_to }, ctx);
                }
                Poll::Ready(Err(error)) => give_up(&agent.setup.address, &error),
                Poll::Pending => {
                    up.durable = Some(cx.waker().clone());
                    return Poll::Pending;
                }
            }
        }
    }
}
