//! The trait's methods as commands.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::future::try_join_all;
use redis::{Cmd, FromRedisValue, Value, cmd, from_redis_value};

use super::field_ttl::FieldTtl;
use super::router::{Effect, Router};
use super::subscription::Subscription;
use super::{RedisCache, keys, scripts};
use crate::backend::{BackendError, CacheMemory, CacheWrite, ChannelSubscription, ListEnd, ttl_millis};

/// What subscriptions keep of the cache.
pub(super) struct Shared {
    pub(super) router: Router,
}

/// How many keys a server looks at in one step of a scan.
const SCAN_COUNT: usize = 1_000;

fn eval(script: &str, keys: &[&[u8]]) -> Cmd {
    let mut command = cmd("EVAL");
    command.arg(script).arg(keys.len()).arg(keys);
    command
}

fn set(key: &[u8], value: &[u8], ttl: Option<Duration>) -> Cmd {
    let mut command = cmd("SET");
    command.arg(key).arg(value);
    if let Some(ttl) = ttl {
        command.arg("PX").arg(ttl_millis(ttl));
    }
    command
}

fn set_field(field_ttl: &FieldTtl, key: &[u8], field: &[u8], value: &[u8], ttl: Option<Duration>) -> Cmd {
    match (field_ttl, ttl.map(ttl_millis)) {
        (FieldTtl::Emulated(_), ttl) => {
            let ttl = ttl.map(|ttl| ttl.to_string()).unwrap_or_default();
            eval(scripts::EMULATED_SET, &[key, &keys::ends_of(key)]).arg(field).arg(value).arg(ttl).to_owned()
        }
        // HSET also takes the field's old TTL away.
        (_, None) => cmd("HSET").arg(key).arg(field).arg(value).to_owned(),
        (FieldTtl::Hsetex, Some(ttl)) => {
            cmd("HSETEX").arg(key).arg("PX").arg(ttl).arg("FIELDS").arg(1).arg(field).arg(value).to_owned()
        }
        (FieldTtl::Hpexpire, Some(ttl)) => {
            eval(scripts::SET_FIELD, &[key]).arg(field).arg(value).arg(ttl).to_owned()
        }
    }
}

fn replace_list(key: &[u8], values: &[Vec<u8>], ttl: Option<Duration>) -> Cmd {
    let ttl = ttl.map(|ttl| ttl_millis(ttl).to_string()).unwrap_or_default();
    eval(scripts::REPLACE_LIST, &[key]).arg(ttl).arg(values).to_owned()
}

fn delete(field_ttl: &FieldTtl, key: &[u8]) -> Cmd {
    match field_ttl {
        FieldTtl::Emulated(_) => eval(scripts::EMULATED_DELETE_KEY, &[key, &keys::ends_of(key)]),
        _ => cmd("UNLINK").arg(key).to_owned(),
    }
}

fn write(field_ttl: &FieldTtl, write: &CacheWrite) -> Cmd {
    match write {
        CacheWrite::SetString { key, value, ttl } => set(key, value, *ttl),
        CacheWrite::SetHashField { key, field, value, ttl } => set_field(field_ttl, key, field, value, *ttl),
        CacheWrite::ReplaceList { key, values, ttl } => replace_list(key, values, *ttl),
        CacheWrite::DeleteKey { key } => delete(field_ttl, key),
    }
}

fn key_of(write: &CacheWrite) -> &[u8] {
    match write {
        CacheWrite::SetString { key, .. }
        | CacheWrite::SetHashField { key, .. }
        | CacheWrite::ReplaceList { key, .. }
        | CacheWrite::DeleteKey { key } => key,
    }
}

/// PTTL and its kin: -2 there is none, -1 it never ends.
fn life(millis: i64) -> Option<Option<Duration>> {
    match millis {
        ..=-2 => None,
        -1 => Some(None),
        left => Some(Some(Duration::from_millis(left.unsigned_abs()))),
    }
}

impl Shared {
    fn read<T: FromRedisValue>(&self, value: Value, action: &str) -> Result<T, BackendError> {
        from_redis_value(value).map_err(|error| BackendError::Corrupt {
            what: format!("the answer of {}", self.router.service()),
            reason: format!("while trying to {action}: {error}"),
        })
    }

    async fn call<T: FromRedisValue>(
        &self,
        action: &str,
        effect: Effect,
        key: &[u8],
        build: impl Fn(&FieldTtl) -> Cmd + Sync,
    ) -> Result<T, BackendError> {
        let value = self.router.call(action, effect, key, build).await?;
        self.read(value, action)
    }
}

#[async_trait]
impl CacheMemory for RedisCache {
    async fn get_string(&self, key: &[u8]) -> Result<Option<Vec<u8>>, BackendError> {
        self.shared.call("read a string", Effect::Repeatable, key, |_| cmd("GET").arg(key).to_owned()).await
    }

    async fn get_strings(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, BackendError> {
        let action = "read strings";
        let names: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let build = |index: usize, _: &FieldTtl| cmd("GET").arg(names[index]).to_owned();
        let answers = self.shared.router.call_all(action, Effect::Repeatable, &names, build).await;
        let read = |answer: Result<Value, BackendError>| match answer {
            Ok(value) => self.shared.read(value, action),
            // As MGET, which cannot be used across slots: a key of another type reads as absent.
            Err(BackendError::Refused { reason, .. }) if reason.starts_with("WRONGTYPE") => Ok(None),
            Err(error) => Err(error),
        };
        answers.into_iter().map(read).collect()
    }

    async fn set_string(&self, key: &[u8], value: &[u8], ttl: Option<Duration>) -> Result<(), BackendError> {
        self.shared.call("set a string", Effect::Repeatable, key, |_| set(key, value, ttl)).await
    }

    async fn set_string_if_absent(
        &self,
        key: &[u8],
        value: &[u8],
        ttl: Duration,
    ) -> Result<bool, BackendError> {
        let build = |_: &FieldTtl| set(key, value, Some(ttl)).arg("NX").to_owned();
        let set: Option<String> =
            self.shared.call("set a string that is absent", Effect::Once, key, build).await?;
        Ok(set.is_some())
    }

    async fn swap_string(
        &self,
        key: &[u8],
        expected: &[u8],
        value: &[u8],
        ttl: Duration,
    ) -> Result<bool, BackendError> {
        let build = |_: &FieldTtl| {
            eval(scripts::SWAP, &[key]).arg(expected).arg(value).arg(ttl_millis(ttl)).to_owned()
        };
        self.shared.call("swap a string", Effect::Once, key, build).await
    }

    async fn time_to_live(&self, key: &[u8]) -> Result<Option<Option<Duration>>, BackendError> {
        let build = |_: &FieldTtl| cmd("PTTL").arg(key).to_owned();
        Ok(life(self.shared.call("read a key's time to live", Effect::Repeatable, key, build).await?))
    }

    async fn get_hash_field(&self, key: &[u8], field: &[u8]) -> Result<Option<Vec<u8>>, BackendError> {
        let build = |field_ttl: &FieldTtl| match field_ttl {
            FieldTtl::Emulated(_) => {
                eval(scripts::EMULATED_GET, &[key, &keys::ends_of(key)]).arg(field).to_owned()
            }
            _ => cmd("HGET").arg(key).arg(field).to_owned(),
        };
        self.shared.call("read a hash field", Effect::Repeatable, key, build).await
    }

    async fn get_all_hash(&self, key: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>, BackendError> {
        let action = "read a hash";
        let build = |field_ttl: &FieldTtl| match field_ttl {
            FieldTtl::Emulated(_) => eval(scripts::EMULATED_GET_ALL, &[key, &keys::ends_of(key)]),
            _ => cmd("HGETALL").arg(key).to_owned(),
        };
        // Only the script's answer has arrays in it: the hash, and the fields of it that are over.
        match self.shared.router.call(action, Effect::Repeatable, key, build).await? {
            Value::Array(parts)
                if matches!(&parts[..], [Value::Array(_) | Value::Map(_), Value::Array(_)]) =>
            {
                type Emulated = (Vec<(Vec<u8>, Vec<u8>)>, HashSet<Vec<u8>>);
                let (mut fields, over): Emulated = self.shared.read(Value::Array(parts), action)?;
                fields.retain(|(field, _)| !over.contains(field));
                Ok(fields)
            }
            value => self.shared.read(value, action),
        }
    }

    async fn set_hash_field(
        &self,
        key: &[u8],
        field: &[u8],
        value: &[u8],
        ttl: Option<Duration>,
    ) -> Result<(), BackendError> {
        let build = |field_ttl: &FieldTtl| set_field(field_ttl, key, field, value, ttl);
        self.shared.router.call("set a hash field", Effect::Repeatable, key, build).await.map(drop)
    }

    async fn hash_field_time_to_live(
        &self,
        key: &[u8],
        field: &[u8],
    ) -> Result<Option<Option<Duration>>, BackendError> {
        let build = |field_ttl: &FieldTtl| match field_ttl {
            FieldTtl::Emulated(_) => {
                eval(scripts::EMULATED_TTL, &[key, &keys::ends_of(key)]).arg(field).to_owned()
            }
            _ => cmd("HPTTL").arg(key).arg("FIELDS").arg(1).arg(field).to_owned(),
        };
        let action = "read a hash field's time to live";
        // Redis 7.4 answers nil for a key that is not there, later ones -2.
        let left: Option<Vec<i64>> = self.shared.call(action, Effect::Repeatable, key, build).await?;
        Ok(life(left.and_then(|left| left.first().copied()).unwrap_or(-2)))
    }

    async fn delete_hash_field(&self, key: &[u8], field: &[u8]) -> Result<bool, BackendError> {
        let build = |field_ttl: &FieldTtl| match field_ttl {
            FieldTtl::Emulated(_) => {
                eval(scripts::EMULATED_DELETE, &[key, &keys::ends_of(key)]).arg(field).to_owned()
            }
            _ => cmd("HDEL").arg(key).arg(field).to_owned(),
        };
        self.shared.call("delete a hash field", Effect::Once, key, build).await
    }

    async fn push_list(
        &self,
        key: &[u8],
        value: &[u8],
        at: ListEnd,
        ttl: Option<Duration>,
    ) -> Result<(), BackendError> {
        let push = match at {
            ListEnd::Head => "LPUSH",
            ListEnd::Tail => "RPUSH",
        };
        let build = |_: &FieldTtl| match ttl {
            Some(ttl) => eval(scripts::PUSH, &[key]).arg(push).arg(value).arg(ttl_millis(ttl)).to_owned(),
            None => cmd(push).arg(key).arg(value).to_owned(),
        };
        self.shared.router.call("push to a list", Effect::Once, key, build).await.map(drop)
    }

    async fn get_list(&self, key: &[u8], start: i64, stop: i64) -> Result<Vec<Vec<u8>>, BackendError> {
        let build = |_: &FieldTtl| cmd("LRANGE").arg(key).arg(start).arg(stop).to_owned();
        self.shared.call("read a list", Effect::Repeatable, key, build).await
    }

    async fn replace_list(
        &self,
        key: &[u8],
        values: &[Vec<u8>],
        ttl: Option<Duration>,
    ) -> Result<(), BackendError> {
        let build = |_: &FieldTtl| replace_list(key, values, ttl);
        self.shared.router.call("replace a list", Effect::Repeatable, key, build).await.map(drop)
    }

    async fn delete_key(&self, key: &[u8]) -> Result<bool, BackendError> {
        let build = |field_ttl: &FieldTtl| delete(field_ttl, key);
        self.shared.call("delete a key", Effect::Once, key, build).await
    }

    /// As SCAN: a key that is there from the call's begin to its end is found, unless its slot moves meanwhile.
    async fn keys(&self, pattern: &[u8], limit: usize) -> Result<Vec<Vec<u8>>, BackendError> {
        // A scan may name a key twice.
        let mut found = HashSet::new();
        for link in self.shared.router.links().await {
            let mut cursor: u64 = 0;
            loop {
                let mut scan = cmd("SCAN");
                scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_COUNT);
                let answer = self.shared.router.on(&link, "list keys", scan).await?;
                let (next, page): (u64, Vec<Vec<u8>>) = self.shared.read(answer, "list keys")?;
                for key in page.into_iter().filter(|key| !keys::is_ends(key)) {
                    if found.len() >= limit {
                        return Ok(found.into_iter().collect());
                    }
                    found.insert(key);
                }
                cursor = next;
                if cursor == 0 {
                    break;
                }
            }
        }
        Ok(found.into_iter().collect())
    }

    async fn write_batch(&self, writes: &[CacheWrite]) -> Result<(), BackendError> {
        let names: Vec<&[u8]> = writes.iter().map(key_of).collect();
        let build = |index: usize, field_ttl: &FieldTtl| write(field_ttl, &writes[index]);
        let answers = self.shared.router.call_all("write a batch", Effect::Repeatable, &names, build).await;
        answers.into_iter().find_map(Result::err).map_or(Ok(()), Err)
    }

    /// In a cluster the number counts the readers at one node only.
    async fn publish(&self, channel: &[u8], payload: &[u8]) -> Result<u64, BackendError> {
        let build = |_: &FieldTtl| cmd("PUBLISH").arg(channel).arg(payload).to_owned();
        self.shared.call("publish to a channel", Effect::Once, channel, build).await
    }

    async fn subscribe(&self, channels: &[Vec<u8>]) -> Result<Box<dyn ChannelSubscription>, BackendError> {
        Ok(Box::new(Subscription::start(Arc::clone(&self.shared), channels).await?))
    }

    /// The slowest of all servers.
    async fn ping(&self) -> Result<Duration, BackendError> {
        let links = self.shared.router.links().await;
        let pings = links.iter().map(|link| async move {
            let start = Instant::now();
            self.shared.router.on(link, "ping it", cmd("PING")).await?;
            Ok::<_, BackendError>(start.elapsed())
        });
        Ok(try_join_all(pings).await?.into_iter().max().unwrap_or_default())
    }
}
