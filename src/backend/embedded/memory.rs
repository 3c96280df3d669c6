//! The contents of the embedded cache and the rules of its types, without locks and without a clock.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::cache::CacheLimits;
use super::expiry::{Bucket, Expiry, Moment, Mortal, NEVER, UNFILED};
use crate::backend::{BackendError, ListEnd};
use crate::chain::glob::Glob;

/// What an entry costs beside its bytes: map slots, allocations, its place in the expiry index.
const OVERHEAD: usize = 96;

type Answer<T> = Result<T, BackendError>;
type Fields = HashMap<Arc<[u8]>, Field>;

#[derive(Debug)]
enum Value {
    String(Vec<u8>),
    Hash(Fields),
    List(VecDeque<Vec<u8>>),
}

/// When something ends and where the index has it.
#[derive(Debug, Clone, Copy)]
struct Life {
    end: Moment,
    filed: Bucket,
}

impl Life {
    const UNFILED: Life = Life { end: NEVER, filed: UNFILED };

    fn over(&self, now: Moment) -> bool {
        self.end <= now
    }

    fn left(&self, now: Moment) -> Option<Moment> {
        (self.end != NEVER).then(|| self.end - now)
    }

    /// Sets the end; the index is touched only when it would look too late.
    fn set_end(&mut self, end: Moment, expiry: &mut Expiry, mortal: impl FnOnce() -> Mortal) {
        self.end = end;
        let bucket = Expiry::bucket(end);
        if bucket < self.filed {
            expiry.forget(self.filed);
            expiry.file(bucket, mortal());
            self.filed = bucket;
        }
    }
}

#[derive(Debug)]
struct Field {
    value: Vec<u8>,
    life: Life,
}

#[derive(Debug)]
struct Entry {
    value: Value,
    life: Life,
}

impl Entry {
    fn over(&self, now: Moment) -> bool {
        self.life.over(now)
            || matches!(&self.value, Value::Hash(fields) if fields.values().all(|field| field.life.over(now)))
    }

    fn size(&self, key: &[u8]) -> Size {
        match &self.value {
            Value::String(value) => Size::string(key, value),
            Value::List(values) => values.iter().fold(Size::key(key), |sum, value| sum + Size::item(value)),
            Value::Hash(fields) => {
                fields.iter().fold(Size::key(key), |sum, (name, field)| sum + Size::field(name, &field.value))
            }
        }
    }
}

/// What something costs: entries (strings, fields, list values) and bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Size {
    entries: usize,
    bytes: usize,
}

impl Size {
    fn key(key: &[u8]) -> Size {
        Size { entries: 0, bytes: key.len() + OVERHEAD }
    }

    fn string(key: &[u8], value: &[u8]) -> Size {
        Size { entries: 1, bytes: key.len() + value.len() + OVERHEAD }
    }

    fn item(value: &[u8]) -> Size {
        Size { entries: 1, bytes: value.len() + OVERHEAD }
    }

    fn field(field: &[u8], value: &[u8]) -> Size {
        Size { entries: 1, bytes: field.len() + value.len() + OVERHEAD }
    }
}

impl std::ops::Add for Size {
    type Output = Size;
    fn add(self, other: Size) -> Size {
        Size { entries: self.entries + other.entries, bytes: self.bytes + other.bytes }
    }
}

impl std::ops::Sub for Size {
    type Output = Size;
    fn sub(self, other: Size) -> Size {
        Size { entries: self.entries - other.entries, bytes: self.bytes - other.bytes }
    }
}

/// Everything that the cache holds.
#[derive(Debug, Default)]
pub(super) struct Memory {
    entries: HashMap<Arc<[u8]>, Entry>,
    expiry: Expiry,
    size: Size,
    limits: CacheLimits,
}

impl Memory {
    pub(super) fn new(limits: CacheLimits) -> Self {
        Memory { limits, ..Memory::default() }
    }

    /// Frees up to `count` of what is over. Called a little with every access, so nothing is ever scanned whole.
    pub(super) fn sweep(&mut self, now: Moment, count: usize) {
        for _ in 0..count {
            if !self.sweep_one(now) {
                break;
            }
        }
    }

    fn sweep_one(&mut self, now: Moment) -> bool {
        let Some((bucket, mortal)) = self.expiry.next_due(now) else { return false };
        let Some(life) = life_of(&mut self.entries, &mortal).filter(|life| life.filed == bucket) else {
            self.expiry.stale_note();
            return true;
        };
        life.filed = UNFILED;
        if !life.over(now) {
            let end = life.end;
            life.set_end(end, &mut self.expiry, || mortal);
            return true;
        }
        match mortal.field {
            None => self.remove(&mortal.key),
            Some(name) => self.remove_field(&mortal.key, &name),
        }
    }

    fn remove(&mut self, key: &[u8]) -> bool {
        let Some(entry) = self.entries.remove(key) else { return false };
        self.size = self.size - entry.size(key);
        self.expiry.forget(entry.life.filed);
        if let Value::Hash(fields) = entry.value {
            fields.values().for_each(|field| self.expiry.forget(field.life.filed));
        }
        self.tidy();
        true
    }

    fn remove_field(&mut self, key: &[u8], name: &[u8]) -> bool {
        let Some(Entry { value: Value::Hash(fields), .. }) = self.entries.get_mut(key) else { return false };
        let Some(field) = fields.remove(name) else { return false };
        let empty = fields.is_empty();
        self.size = self.size - Size::field(name, &field.value);
        self.expiry.forget(field.life.filed);
        if empty {
            self.remove(key);
        }
        self.tidy();
        true
    }

    fn tidy(&mut self) {
        let entries = &self.entries;
        self.expiry.tidy(|mortal, bucket| match (entries.get(&mortal.key), &mortal.field) {
            (Some(entry), None) => entry.life.filed == bucket,
            (Some(Entry { value: Value::Hash(fields), .. }), Some(name)) => {
                fields.get(name).is_some_and(|field| field.life.filed == bucket)
            }
            _ => false,
        });
    }

    /// Looks a key up; one that is over is removed first.
    fn live(&mut self, key: &[u8], now: Moment) -> Option<&mut Entry> {
        if self.entries.get(key)?.over(now) {
            self.remove(key);
            return None;
        }
        self.entries.get_mut(key)
    }

    /// Makes sure that there is room when `old` becomes `new`; what is over makes room first, what lives never does.
    fn make_room(&mut self, old: Size, new: Size, now: Moment) -> Answer<()> {
        loop {
            let wanted = self.size + new - old;
            if wanted.entries <= self.limits.entries && wanted.bytes <= self.limits.bytes {
                self.size = wanted;
                return Ok(());
            }
            if !self.sweep_one(now) {
                return Err(BackendError::Full {
                    what: "the embedded cache".into(),
                    limit: format!("{} entries or {} bytes", self.limits.entries, self.limits.bytes),
                    hint: "let entries expire, raise the limits, or use a Redis".into(),
                });
            }
        }
    }

    pub(super) fn exists(&mut self, key: &[u8], now: Moment) -> bool {
        self.live(key, now).is_some()
    }

    pub(super) fn get_string(&mut self, key: &[u8], now: Moment) -> Answer<Option<&[u8]>> {
        match self.live(key, now).map(|entry| &entry.value) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(value)),
            Some(_) => Err(wrong_type("read a string")),
        }
    }

    pub(super) fn set_string(&mut self, key: &[u8], value: &[u8], end: Moment, now: Moment) -> Answer<()> {
        // The heartbeat's way: the key is there, the value is as long as before.
        if let Some(Entry { value: Value::String(old), life }) = self.entries.get_mut(key)
            && old.len() == value.len()
            && !life.over(now)
        {
            old.copy_from_slice(value);
            life.set_end(end, &mut self.expiry, || Mortal { key: key.into(), field: None });
            return Ok(());
        }
        self.put(key, Value::String(value.to_vec()), end, now)
    }

    pub(super) fn time_to_live(&mut self, key: &[u8], now: Moment) -> Option<Option<Moment>> {
        self.live(key, now).map(|entry| entry.life.left(now))
    }

    /// Puts a value of any type in the place of whatever was there.
    fn put(&mut self, key: &[u8], value: Value, end: Moment, now: Moment) -> Answer<()> {
        let old = self.live(key, now).map(|entry| entry.size(key)).unwrap_or_default();
        let mut entry = Entry { value, life: Life::UNFILED };
        self.make_room(old, entry.size(key), now)?;
        // The size is already that of the new value: give `remove` back what it takes.
        self.size = self.size + old;
        self.remove(key);
        let key: Arc<[u8]> = key.into();
        entry.life.set_end(end, &mut self.expiry, || Mortal { key: key.clone(), field: None });
        self.entries.insert(key, entry);
        Ok(())
    }

    /// The fields of a hash, those that are over included; perhaps all of them are.
    fn hash(&mut self, key: &[u8], now: Moment, action: &str) -> Answer<Option<&mut Fields>> {
        // Not `live`: that looks at the fields until it finds one that lives.
        let over = match self.entries.get(key) {
            None => return Ok(None),
            Some(Entry { value: Value::Hash(_), life }) => life.over(now),
            Some(entry) if !entry.over(now) => return Err(wrong_type(action)),
            Some(_) => true,
        };
        if over {
            self.remove(key);
        }
        match self.entries.get_mut(key).map(|entry| &mut entry.value) {
            Some(Value::Hash(fields)) => Ok(Some(fields)),
            _ => Ok(None),
        }
    }

    pub(super) fn get_hash_field(&mut self, key: &[u8], name: &[u8], now: Moment) -> Answer<Option<&[u8]>> {
        let fields = self.hash(key, now, "read a hash field")?;
        Ok(fields
            .and_then(|fields| fields.get(name))
            .filter(|field| !field.life.over(now))
            .map(|f| &f.value[..]))
    }

    pub(super) fn get_all_hash(&mut self, key: &[u8], now: Moment) -> Answer<Vec<(Vec<u8>, Vec<u8>)>> {
        let Some(fields) = self.hash(key, now, "read a hash")? else { return Ok(Vec::new()) };
        let live = fields.iter().filter(|(_, field)| !field.life.over(now));
        Ok(live.map(|(name, field)| (name.to_vec(), field.value.clone())).collect())
    }

    pub(super) fn field_time_to_live(
        &mut self,
        key: &[u8],
        name: &[u8],
        now: Moment,
    ) -> Answer<Option<Option<Moment>>> {
        let fields = self.hash(key, now, "read a hash field's time to live")?;
        Ok(fields.and_then(|f| f.get(name)).filter(|f| !f.life.over(now)).map(|f| f.life.left(now)))
    }

    pub(super) fn set_hash_field(
        &mut self,
        key: &[u8],
        name: &[u8],
        value: &[u8],
        end: Moment,
        now: Moment,
    ) -> Answer<()> {
        let mut old = Size::default();
        let mut new = Size::field(name, value);
        match self.get_hash_field(key, name, now)?.map(<[u8]>::len) {
            Some(length) => old = Size { bytes: new.bytes - value.len() + length, ..new },
            None => {
                // Nothing that is over may stay: the sweep below could free it, and the sums would not be right.
                self.remove_field(key, name);
                if self.live(key, now).is_none() {
                    new = new + Size::key(key);
                }
            }
        }
        self.make_room(old, new, now)?;
        if !self.entries.contains_key(key) {
            let entry = Entry { value: Value::Hash(HashMap::new()), life: Life::UNFILED };
            self.entries.insert(key.into(), entry);
        }
        let Some(Entry { value: Value::Hash(fields), .. }) = self.entries.get_mut(key) else {
            return Err(wrong_type("set a hash field")); // cannot happen: it is a hash, or was made one above
        };
        if let Some(field) = fields.get_mut(name) {
            field.value.clear();
            field.value.extend_from_slice(value);
            let mortal = || Mortal { key: key.into(), field: Some(name.into()) };
            field.life.set_end(end, &mut self.expiry, mortal);
        } else {
            let name: Arc<[u8]> = name.into();
            let mut field = Field { value: value.to_vec(), life: Life::UNFILED };
            let mortal = || Mortal { key: key.into(), field: Some(name.clone()) };
            field.life.set_end(end, &mut self.expiry, mortal);
            fields.insert(name, field);
        }
        Ok(())
    }

    pub(super) fn delete_hash_field(&mut self, key: &[u8], name: &[u8], now: Moment) -> Answer<bool> {
        let there = self.get_hash_field(key, name, now)?.is_some();
        self.remove_field(key, name);
        Ok(there)
    }

    pub(super) fn push_list(
        &mut self,
        key: &[u8],
        value: &[u8],
        at: ListEnd,
        end: Option<Moment>,
        now: Moment,
    ) -> Answer<()> {
        match self.live(key, now).map(|entry| &entry.value) {
            None => {
                let values = VecDeque::from([value.to_vec()]);
                return self.put(key, Value::List(values), end.unwrap_or(NEVER), now);
            }
            Some(Value::List(_)) => {}
            Some(_) => return Err(wrong_type("push to a list")),
        }
        self.make_room(Size::default(), Size::item(value), now)?;
        if let Some(Entry { value: Value::List(values), life }) = self.entries.get_mut(key) {
            match at {
                ListEnd::Head => values.push_front(value.to_vec()),
                ListEnd::Tail => values.push_back(value.to_vec()),
            }
            if let Some(end) = end {
                life.set_end(end, &mut self.expiry, || Mortal { key: key.into(), field: None });
            }
        }
        Ok(())
    }

    pub(super) fn get_list(
        &mut self,
        key: &[u8],
        start: i64,
        stop: i64,
        now: Moment,
    ) -> Answer<Vec<Vec<u8>>> {
        let values = match self.live(key, now).map(|entry| &entry.value) {
            None => return Ok(Vec::new()),
            Some(Value::List(values)) => values,
            Some(_) => return Err(wrong_type("read a list")),
        };
        let length = values.len() as i64;
        let from_end = |at: i64| if at < 0 { length.saturating_add(at) } else { at };
        let (start, stop) = (from_end(start).max(0), from_end(stop).min(length - 1));
        if start > stop {
            return Ok(Vec::new());
        }
        Ok(values.range(start as usize..=stop as usize).cloned().collect())
    }

    pub(super) fn replace_list(
        &mut self,
        key: &[u8],
        values: &[Vec<u8>],
        end: Moment,
        now: Moment,
    ) -> Answer<()> {
        if values.is_empty() {
            self.remove(key);
            return Ok(());
        }
        self.put(key, Value::List(values.iter().cloned().collect()), end, now)
    }

    pub(super) fn delete_key(&mut self, key: &[u8], now: Moment) -> bool {
        self.live(key, now).is_some() && self.remove(key)
    }

    pub(super) fn keys(&self, pattern: &[u8], limit: usize, now: Moment) -> Vec<Vec<u8>> {
        let pattern = Glob::new(pattern);
        let live = self.entries.iter().filter(|(key, entry)| pattern.matches(key) && !entry.over(now));
        live.take(limit).map(|(key, _)| key.to_vec()).collect()
    }
}

fn life_of<'a>(entries: &'a mut HashMap<Arc<[u8]>, Entry>, mortal: &Mortal) -> Option<&'a mut Life> {
    let entry = entries.get_mut(&mortal.key)?;
    match (&mortal.field, &mut entry.value) {
        (None, _) => Some(&mut entry.life),
        (Some(name), Value::Hash(fields)) => Some(&mut fields.get_mut(name)?.life),
        (Some(_), _) => None,
    }
}

/// Redis' own words, with what was tried.
fn wrong_type(action: &str) -> BackendError {
    BackendError::Refused {
        service: "the embedded cache".into(),
        action: action.into(),
        reason: "WRONGTYPE operation against a key holding the wrong kind of value".into(),
    }
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
