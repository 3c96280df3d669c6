//! An agent with nothing to do at its node.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Instant;

use skalds::actors::hop_outbox::HopOutbox;
use skalds::actors::link::{Dialer, Link, LinkEvent, LinkOptions, Links};
use skalds::actors::outbox::OutboxOptions;
use skalds::chain::hop::{HopConfig, HopEffect, HopInput, HopMachine, Link as Peer};
use skalds::chain::message::{Message, Role};
use skalds::core::task::Millis;
use tokio_util::sync::CancellationToken;

use crate::{Arrival, hello};

/// An agent on its thread.
pub(crate) struct Handle {
    pub(crate) address: String,
    thread: std::thread::JoinHandle<Summary>,
}

/// What it has done.
pub(crate) struct Summary {
    pub(crate) arrivals: Vec<Arrival>,
    pub(crate) commits: u64,
    pub(crate) records: u64,
    pub(crate) frames: u64,
    pub(crate) writes: u64,
}

impl Handle {
    pub(crate) fn join(self) -> Summary {
        self.thread.join().expect("the agent does not panic")
    }
}

pub(crate) fn start(dir: &Path, stop: CancellationToken) -> Handle {
    let (sender, address) = mpsc::channel();
    let dir = dir.to_owned();
    let thread = std::thread::Builder::new().name("agent".into()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(run(dir, stop, sender))
    });
    let thread = thread.expect("a thread");
    Handle { address: address.recv().expect("the agent says where it listens"), thread }
}

struct Agent {
    machine: HopMachine,
    outbox: HopOutbox,
    links: Links,
    dialers: Vec<Dialer>,
    /// Connections that are up, as the machine names them.
    up: HashMap<Peer, Link>,
    names: HashMap<u64, Peer>,
    started: Instant,
    effects: Vec<HopEffect>,
    todo: VecDeque<HopEffect>,
    arrivals: Vec<Arrival>,
}

async fn run(dir: PathBuf, stop: CancellationToken, said: mpsc::Sender<String>) -> Summary {
    // The address is known only when it listens; nobody reads the name here.
    let (links, mut events) = Links::new(hello(Role::Agent, "agent"), LinkOptions::default());
    let listener = links.listen("127.0.0.1:0").await.expect("a free port");
    let address = listener.address().to_string();
    let (outbox, records) = HopOutbox::open(&dir, OutboxOptions::default()).expect("a fresh directory");
    let mut effects = Vec::new();
    let config = HopConfig { per_node: 64, ..HopConfig::new(address.clone()) };
    let machine = HopMachine::recover(config, records, 0, &mut effects);
    let mut agent = Agent {
        machine,
        outbox,
        links,
        dialers: Vec::new(),
        up: HashMap::new(),
        names: HashMap::new(),
        started: Instant::now(),
        effects,
        todo: VecDeque::new(),
        arrivals: Vec::with_capacity(1 << 20),
    };
    said.send(address).expect("the bench waits for it");
    let mut batch = Vec::new();
    loop {
        let alarm = agent.machine.alarm_at().map_or(60_000, |at| (at - agent.now()).clamp(0, 60_000));
        tokio::select! {
            biased;
            _ = events.recv_many(&mut batch, 128) => {
                for event in batch.drain(..) {
                    agent.outbox.room().await.expect("the disk is good");
                    agent.event(event);
                }
            }
            up_to = agent.outbox.persisted() => {
                agent.handle(HopInput::Persisted { up_to: up_to.expect("the disk is good") });
            }
            () = tokio::time::sleep(std::time::Duration::from_millis(alarm as u64)) => agent.handle(HopInput::Tick),
            () = stop.cancelled() => break,
        }
        if agent.outbox.is_cluttered() {
            agent.outbox.keep_only(&agent.machine.snapshot()).expect("the disk is good");
        }
    }
    let (outbox, links) = (agent.outbox.stats(), agent.links.stats());
    Summary {
        arrivals: agent.arrivals,
        commits: outbox.commits,
        records: outbox.records,
        frames: links.frames_out.load(Ordering::Relaxed),
        writes: links.writes.load(Ordering::Relaxed),
    }
}

impl Agent {
    fn now(&self) -> Millis {
        self.started.elapsed().as_millis() as Millis
    }

    fn event(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Connected { link, .. } => {
                let name = match link.dialled() {
                    true => Peer::Agent(link.peer().to_owned()),
                    false => Peer::Conn(link.id()),
                };
                self.names.insert(link.id(), name.clone());
                self.up.insert(name.clone(), link);
                self.handle(HopInput::Connected { link: name });
            }
            LinkEvent::Closed { id, .. } => {
                let name = self.names.remove(&id).expect("it was up");
                self.up.remove(&name);
                self.handle(HopInput::Lost { link: name });
            }
            LinkEvent::Message { id, message, bytes, frame } => {
                if let Message::State(state) = &message {
                    let number = state.job.id.rsplit('-').next().expect("a name with dashes");
                    let job = u64::from_str_radix(number, 16).expect("the last part is a number");
                    self.arrivals.push(Arrival { job, hop: state.position, at: Instant::now() });
                    self.outbox.received(state, frame.expect("a state comes with its frame"));
                }
                let from = self.names[&id].clone();
                self.handle(HopInput::Received { from, message, bytes: bytes as u64 });
            }
            _ => {}
        }
    }

    fn handle(&mut self, input: HopInput) {
        self.machine.handle(self.now(), input, &mut self.effects);
        self.todo.extend(self.effects.drain(..));
        while let Some(effect) = self.todo.pop_front() {
            match effect {
                HopEffect::Persist { ticket, record } => {
                    self.outbox.persist(ticket, &record).expect("the disk is good");
                }
                HopEffect::Note { record } => self.outbox.note(&record).expect("the disk is good"),
                HopEffect::Send { to, message } => self.send(to, &message),
                HopEffect::Run { hop, mut state } => {
                    // The empty step.
                    Arc::make_mut(&mut state).position += 1;
                    self.machine.handle(self.now(), HopInput::Ran { hop, state }, &mut self.effects);
                    self.todo.extend(self.effects.drain(..));
                }
                HopEffect::Abort { .. } => {}
            }
        }
    }

    fn send(&mut self, to: Peer, message: &Message) {
        match (self.up.get(&to), to) {
            (Some(link), _) => drop(link.try_send(message).expect("it is up and fast")),
            (None, Peer::Agent(address)) => {
                if !self.dialers.iter().any(|dialer| dialer.address() == address) {
                    self.dialers.push(self.links.dial(address));
                }
            }
            (None, Peer::Conn(_)) => {}
        }
    }
}
