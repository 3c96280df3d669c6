//! Which server serves which slot.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::link::Link;
use super::url;
use crate::chain::slots::{SLOTS, slot_of};

/// The servers and their slots at one time. A single server serves them all.
pub(super) struct Map {
    links: Vec<Arc<Link>>,
    /// For each slot an index into `links`; `u16::MAX` where nobody serves it.
    owners: Vec<u16>,
    cluster: bool,
}

impl Map {
    pub(super) fn single(link: Arc<Link>) -> Self {
        Map { links: vec![link], owners: vec![0; usize::from(SLOTS)], cluster: false }
    }

    /// Reads the answer to CLUSTER SLOTS that `from` gave. Links that are already there are kept.
    pub(super) fn from_slots(
        answer: &Value,
        from: &Link,
        known: &HashMap<String, Arc<Link>>,
        connect_timeout: Duration,
    ) -> Option<Self> {
        let mut map = Map { links: Vec::new(), owners: vec![u16::MAX; usize::from(SLOTS)], cluster: true };
        let Value::Array(ranges) = answer else { return None };
        for range in ranges {
            let Value::Array(parts) = range else { return None };
            let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = &parts[..] else {
                return None;
            };
            let [host, Value::Int(port), ..] = &primary[..] else { return None };
            let info = url::at(from.info(), &host_of(host, from)?, u16::try_from(*port).ok()?);
            let address = url::address(&info);
            let index = match map.links.iter().position(|link| link.address() == address) {
                Some(index) => index,
                None => {
                    let fresh = || Arc::new(Link::new(info, connect_timeout));
                    map.links.push(known.get(&address).cloned().unwrap_or_else(fresh));
                    map.links.len() - 1
                }
            };
            let slots = usize::try_from(*first).ok()?..=usize::try_from(*last).ok()?;
            map.owners.get_mut(slots)?.fill(u16::try_from(index).ok()?);
        }
        Some(map)
    }

    pub(super) fn is_cluster(&self) -> bool {
        self.cluster
    }

    pub(super) fn links(&self) -> &[Arc<Link>] {
        &self.links
    }

    /// The index of the link that serves a key's slot.
    pub(super) fn owner(&self, key: &[u8]) -> Option<usize> {
        let slot = if self.cluster { slot_of(key) } else { 0 };
        let owner = usize::from(self.owners[usize::from(slot)]);
        (owner < self.links.len()).then_some(owner)
    }
}

/// A node that does not know its own name, or is not to be reached by it, says nothing, nil or `?`: then it is the one
/// that was asked.
fn host_of(host: &Value, from: &Link) -> Option<String> {
    let host = match host {
        Value::BulkString(host) => String::from_utf8(host.clone()).ok()?,
        Value::SimpleString(host) => host.clone(),
        Value::Nil => String::new(),
        _ => return None,
    };
    if !host.is_empty() && host != "?" {
        return Some(host);
    }
    from.address().rsplit_once(':').map(|(own, _)| own.to_owned())
}
