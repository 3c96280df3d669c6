//! Connections, and what becomes of messages.

use super::{COORDINATOR, Conn, Event, World, address};
use crate::chain::hop::{HopInput, Link};
use crate::chain::message::Message;
use crate::chain::run::RunInput;

impl World {
    pub(super) fn send(&mut self, from: usize, conn: u64, message: Message) {
        let Some(Conn { from: dialler, to, open: true }) = self.conns.get(&conn) else { return };
        let to = if from == *dialler { *to } else { *dialler };
        let life = self.parties[to].life;
        let copies = match self.rng.u8(..100) {
            roll if roll < self.plan.loss => 0,
            roll if roll < self.plan.loss + self.plan.doubling => 2,
            _ => 1,
        };
        for _ in 0..copies {
            let delay = if self.rng.u8(..20) == 0 { self.rng.i64(20..120) } else { self.rng.i64(1..10) };
            self.schedule(delay, Event::Deliver { conn, to, life, message: message.clone() });
        }
    }

    pub(super) fn deliver(&mut self, conn: u64, to: usize, message: Message) {
        let dialler = self.conns[&conn].from;
        let peer = if dialler == to { self.conns[&conn].to } else { dialler };
        if to == COORDINATOR {
            if let Message::Ended { .. } = &message
                && let Some(machine) = &self.agents[peer].machine
            {
                self.check_stopped(peer, machine.pending());
            }
            self.run_input(RunInput::Received { from: address(peer), message });
        } else {
            let from = if dialler == to { Link::Agent(address(peer)) } else { Link::Conn(conn) };
            self.hop_input(to, HopInput::Received { from, message, bytes: 100 });
        }
    }

    pub(super) fn dial(&mut self, from: usize, to: usize) {
        if from != to && self.parties[from].dialling.insert(to) {
            let (delay, life) = (self.rng.i64(1..10), self.parties[from].life);
            self.schedule(delay, Event::Dialled { from, life, to });
        }
    }

    pub(super) fn dialled(&mut self, from: usize, life: u32, to: usize) {
        if self.parties[from].life != life || !self.parties[from].up {
            return;
        }
        self.parties[from].dialling.remove(&to);
        if !self.parties[to].up || self.parties[from].dialled.contains_key(&to) {
            return;
        }
        self.next_conn += 1;
        let conn = self.next_conn;
        self.conns.insert(conn, Conn { from, to, open: true });
        self.parties[from].dialled.insert(to, conn);
        if from == COORDINATOR {
            self.run_input(RunInput::Connected { agent: address(to) });
        } else {
            self.hop_input(from, HopInput::Connected { link: Link::Agent(address(to)) });
        }
    }

    pub(super) fn break_conn(&mut self, id: u64) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.open = false;
        let (from, to) = (conn.from, conn.to);
        self.parties[from].dialled.remove(&to);
        if from != COORDINATOR && self.parties[from].up {
            self.hop_input(from, HopInput::Lost { link: Link::Agent(address(to)) });
        }
        if self.parties[to].up {
            self.hop_input(to, HopInput::Lost { link: Link::Conn(id) });
        }
    }
}
