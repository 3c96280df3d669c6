//! Which agents are connected, and which have been away too long.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::actors::agent::DIRECT;
use crate::actors::link::{Dialer, Link, LinkEvent, Links};
use crate::chain::message::Message;

/// A coordinator's connections, by the agents' addresses.
pub(super) struct Peers {
    links: Links,
    dialers: HashMap<String, Dialer>,
    connected: HashMap<String, Link>,
    names: HashMap<u64, String>,
    away: HashMap<String, Away>,
}

struct Away {
    since: Instant,
    reason: String,
    told: bool,
}

/// What an event of the links means.
pub(super) enum Heard {
    /// An agent is there.
    Connected(String),
    /// It says something.
    Message(String, Message),
}

impl Peers {
    pub(super) fn new(links: Links) -> Self {
        Peers {
            links,
            dialers: HashMap::new(),
            connected: HashMap::new(),
            names: HashMap::new(),
            away: HashMap::new(),
        }
    }

    pub(super) fn links(&self) -> &Links {
        &self.links
    }

    /// The connection to an agent; when there is none yet, it is dialled. The agent in this process is not.
    pub(super) fn reach(&mut self, agent: &str) -> Option<&Link> {
        if !self.connected.contains_key(agent) && agent != DIRECT && !self.dialers.contains_key(agent) {
            self.dialers.insert(agent.to_owned(), self.links.dial(agent));
            self.note_away(agent, "it has not answered yet");
        }
        self.connected.get(agent)
    }

    fn note_away(&mut self, agent: &str, reason: &str) {
        let now = Instant::now();
        let new = || Away { since: now, reason: String::new(), told: false };
        self.away.entry(agent.to_owned()).or_insert_with(new).reason = reason.to_owned();
    }

    /// Takes an event of the links.
    pub(super) fn hear(&mut self, event: LinkEvent) -> Option<Heard> {
        match event {
            LinkEvent::Connected { link, .. } => {
                let agent = link.peer().to_owned();
                self.names.insert(link.id(), agent.clone());
                self.connected.insert(agent.clone(), link);
                self.away.remove(&agent);
                Some(Heard::Connected(agent))
            }
            LinkEvent::Message { id, message, .. } => {
                self.names.get(&id).map(|agent| Heard::Message(agent.clone(), message))
            }
            LinkEvent::Closed { id, reason } => {
                let agent = self.names.remove(&id)?;
                self.connected.remove(&agent);
                self.note_away(&agent, &reason.to_string());
                None
            }
            LinkEvent::Unreachable { address, reason } => {
                self.note_away(&address, &reason.to_string());
                None
            }
            LinkEvent::Pong { .. } => None,
        }
    }

    /// Agents that have been away for longer than `limit` and were not named before, with the last reason.
    pub(super) fn newly_lost(&mut self, limit: Duration) -> Vec<(String, String)> {
        let mut lost = Vec::new();
        for (agent, away) in &mut self.away {
            if !away.told && away.since.elapsed() >= limit {
                away.told = true;
                lost.push((agent.clone(), away.reason.clone()));
            }
        }
        lost
    }
}
