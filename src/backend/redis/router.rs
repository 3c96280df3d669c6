//! Brings every command to the server that serves its key, and follows the cluster when it changes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures_util::future::{join_all, select_ok};
use redis::{Cmd, ConnectionInfo, ServerErrorKind, Value};
use tokio::time::Instant;

use super::failure::{Failure, explain, words};
use super::field_ttl::{FieldTtl, FieldTtlSupport};
use super::link::Link;
use super::map::Map;
use super::{RedisOptions, url};
use crate::backend::BackendError;

/// How often a command follows a change of the cluster before its error is given to the caller.
const ATTEMPTS: usize = 5;
/// Commands in one pipeline: enough to make round trips cheap, few enough to answer well within the time limit.
const CHUNK: usize = 5_000;
/// How many nodes are asked for the map at one time, and how long for.
const ASKED: usize = 4;
const ASK_TIMEOUT: Duration = Duration::from_secs(1);
/// Before a command is tried again while its slot moves.
const PAUSE: Duration = Duration::from_millis(20);

/// Whether a command may be sent a second time when nobody knows what became of the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// Twice is as good as once.
    Repeatable,
    /// Twice is wrong, or the answer would be.
    Once,
}

pub(super) struct Router {
    options: RedisOptions,
    seeds: Vec<ConnectionInfo>,
    map: RwLock<Arc<Map>>,
    refreshing: tokio::sync::Mutex<()>,
    /// A node did not answer: perhaps another serves its slots by now.
    doubtful: AtomicBool,
    /// Which node is asked first, so that it is not always the same one.
    turn: AtomicUsize,
}

/// What came of one command of a round.
enum Step {
    Answer(Value),
    Failed(Failure),
}

pub(super) fn service(link: &Link) -> String {
    format!("redis at {}", link.address())
}

impl Router {
    pub(super) async fn connect(
        seeds: Vec<ConnectionInfo>,
        options: RedisOptions,
    ) -> Result<Self, BackendError> {
        let links =
            seeds.iter().map(|info| Arc::new(Link::new(info.clone(), options.connect_timeout))).collect();
        let deadline = Instant::now() + options.call_timeout;
        let map =
            find_map(links, &HashMap::new(), options.connect_timeout, deadline, options.call_timeout).await?;
        if !map.is_cluster() && seeds.len() > 1 {
            return Err(BackendError::Refused {
                service: service(&map.links()[0]),
                action: "use it as a part of a cluster".into(),
                reason: "it is a server alone; give one address, or the addresses of a cluster".into(),
            });
        }
        Ok(Router {
            options,
            seeds,
            map: RwLock::new(Arc::new(map)),
            refreshing: tokio::sync::Mutex::new(()),
            doubtful: AtomicBool::new(false),
            turn: AtomicUsize::new(0),
        })
    }

    /// For messages about all of it.
    pub(super) fn service(&self) -> String {
        let map = self.map();
        let addresses: Vec<&str> = map.links().iter().map(|link| link.address()).collect();
        let kind = if map.is_cluster() { "redis cluster at" } else { "redis at" };
        format!("{kind} {}", addresses.join(", "))
    }

    pub(super) fn is_cluster(&self) -> bool {
        self.map().is_cluster()
    }

    /// Every primary.
    pub(super) async fn links(&self) -> Vec<Arc<Link>> {
        self.current_map(self.deadline()).await.links().to_vec()
    }

    /// The server of a key, or any when nobody serves it.
    pub(super) async fn link_for(&self, key: &[u8]) -> Arc<Link> {
        let map = self.current_map(self.deadline()).await;
        map.links()[map.owner(key).unwrap_or(0)].clone()
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.options.call_timeout
    }

    /// A server does not answer: perhaps another has taken over.
    pub(super) fn doubt(&self) {
        if self.is_cluster() {
            self.doubtful.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn options(&self) -> &RedisOptions {
        &self.options
    }

    pub(super) async fn field_ttl_support(&self) -> Result<FieldTtlSupport, BackendError> {
        for link in self.links().await {
            let field_ttl = link.field_ttl(self.deadline()).await;
            let field_ttl = field_ttl.map_err(|failure| self.failed(&link, failure, "ask what it can do"))?;
            let support = field_ttl.support(link.address());
            if support != FieldTtlSupport::Native {
                return Ok(support);
            }
        }
        Ok(FieldTtlSupport::Native)
    }

    /// One command for one key.
    pub(super) async fn call(
        &self,
        action: &str,
        effect: Effect,
        key: &[u8],
        build: impl Fn(&FieldTtl) -> Cmd + Sync,
    ) -> Result<Value, BackendError> {
        let mut answers = self.call_all(action, effect, &[key], |_, field_ttl| build(field_ttl)).await;
        answers.pop().unwrap_or(Ok(Value::Nil)) // cannot be empty: one key, one answer
    }

    /// One command for each key: one pipeline per server, all servers at once. Commands of one key stay in order.
    pub(super) async fn call_all(
        &self,
        action: &str,
        effect: Effect,
        keys: &[&[u8]],
        build: impl Fn(usize, &FieldTtl) -> Cmd + Sync,
    ) -> Vec<Result<Value, BackendError>> {
        let deadline = self.deadline();
        let mut answers: Vec<Result<Value, BackendError>> = keys.iter().map(|_| Ok(Value::Nil)).collect();
        let mut open: Vec<usize> = (0..keys.len()).collect();
        for attempt in 1..=ATTEMPTS {
            let map = self.current_map(deadline).await;
            let mut shares = vec![Vec::new(); map.links().len()];
            for index in open.drain(..) {
                match map.owner(keys[index]) {
                    Some(owner) => shares[owner].push(index),
                    None => answers[index] = Err(self.unserved(action)),
                }
            }
            let rounds = shares.into_iter().zip(map.links()).map(|(share, link)| {
                let build = &build;
                async move { (link, self.round(link, share, deadline, build).await) }
            });
            let mut again = Again::default();
            for (link, steps) in join_all(rounds).await {
                for (index, step) in steps {
                    let last = attempt == ATTEMPTS || Instant::now() >= deadline;
                    if !last && again.wants(&step, effect, attempt, map.is_cluster()) {
                        open.push(index);
                        continue;
                    }
                    answers[index] = match step {
                        Step::Answer(Value::ServerError(error))
                            if error.kind() == Some(ServerErrorKind::Ask) =>
                        {
                            let command = |field_ttl: &FieldTtl| build(index, field_ttl);
                            self.ask(&map, &words(&error), action, deadline, command).await
                        }
                        Step::Answer(Value::ServerError(error)) => {
                            Err(explain(&error, &service(link), action))
                        }
                        Step::Answer(value) => Ok(value),
                        Step::Failed(failure) => Err(self.failed(link, failure, action)),
                    };
                }
            }
            if open.is_empty() {
                break;
            }
            open.sort_unstable();
            if again.pause {
                tokio::time::sleep(PAUSE * attempt as u32).await;
            }
            if again.refresh {
                self.refresh(&map, again.moved_to.as_deref(), deadline).await;
            }
        }
        answers
    }

    /// Sends one server its share, a pipeline at a time. After a failure the rest is not sent: it would only wait.
    async fn round(
        &self,
        link: &Link,
        share: Vec<usize>,
        deadline: Instant,
        build: &(impl Fn(usize, &FieldTtl) -> Cmd + Sync),
    ) -> Vec<(usize, Step)> {
        let mut steps = Vec::with_capacity(share.len());
        let mut deadline = deadline;
        for chunk in share.chunks(CHUNK) {
            let commands =
                |field_ttl: &FieldTtl| chunk.iter().map(|index| build(*index, field_ttl)).collect();
            match link.send(deadline, commands).await {
                Ok(values) => steps.extend(chunk.iter().copied().zip(values.into_iter().map(Step::Answer))),
                Err(failure) => {
                    let rest = &share[steps.len()..];
                    steps.extend(rest.iter().map(|index| (*index, Step::Failed(failure.clone()))));
                    break;
                }
            }
            deadline = self.deadline();
        }
        steps
    }

    /// One command to one server, whatever its keys.
    pub(super) async fn on(&self, link: &Link, action: &str, command: Cmd) -> Result<Value, BackendError> {
        match link.send(self.deadline(), |_| vec![command]).await {
            Ok(mut answers) => match answers.pop().unwrap_or_default() {
                Value::ServerError(error) => Err(explain(&error, &service(link), action)),
                value => Ok(value),
            },
            Err(failure) => Err(self.failed(link, failure, action)),
        }
    }

    /// Before a failure is given to the caller: the next call looks whether another node has taken over.
    fn failed(&self, link: &Link, failure: Failure, action: &str) -> BackendError {
        if !matches!(failure, Failure::Refused(_)) {
            self.doubt();
        }
        failure.into_error(&service(link), action)
    }

    /// Follows an ASK: the key may already be at the slot's new server, for this command only.
    async fn ask(
        &self,
        map: &Map,
        redirection: &str,
        action: &str,
        deadline: Instant,
        build: impl FnOnce(&FieldTtl) -> Cmd,
    ) -> Result<Value, BackendError> {
        let Some(link) = self.link_named(map, redirection) else { return Err(self.unserved(action)) };
        let commands = |field_ttl: &FieldTtl| vec![redis::cmd("ASKING"), build(field_ttl)];
        match link.send(deadline, commands).await {
            Ok(mut answers) => match answers.pop() {
                Some(Value::ServerError(error)) => Err(explain(&error, &service(&link), action)),
                value => Ok(value.unwrap_or(Value::Nil)),
            },
            Err(failure) => Err(self.failed(&link, failure, action)),
        }
    }

    /// The node at the end of `MOVED 3999 127.0.0.1:6381`; an empty host is the one that was asked first.
    fn link_named(&self, map: &Map, redirection: &str) -> Option<Arc<Link>> {
        let (host, port) = redirection.rsplit(' ').next()?.rsplit_once(':')?;
        let seed = &self.seeds[0];
        let own = url::address(seed);
        let host = if host.is_empty() { own.rsplit_once(':')?.0 } else { host };
        let address = format!("{host}:{port}");
        let known = map.links().iter().find(|link| link.address() == address).cloned();
        let info = url::at(seed, host, port.parse().ok()?);
        Some(known.unwrap_or_else(|| Arc::new(Link::new(info, self.options.connect_timeout))))
    }

    fn unserved(&self, action: &str) -> BackendError {
        BackendError::Unavailable {
            service: self.service(),
            action: action.into(),
            reason: "no node serves the key's slot".into(),
        }
    }

    /// The map, asked for anew when a node did not answer lately.
    async fn current_map(&self, deadline: Instant) -> Arc<Map> {
        if self.doubtful.swap(false, Ordering::Relaxed) {
            self.refresh(&self.map(), None, deadline).await;
        }
        self.map()
    }

    fn map(&self) -> Arc<Map> {
        // A map is replaced whole; a panic elsewhere cannot leave half of one.
        self.map.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks for the map anew, unless somebody did since `seen`. If no node answers, the old one stays: the next call
    /// will say what is wrong.
    async fn refresh(&self, seen: &Arc<Map>, moved_to: Option<&str>, deadline: Instant) {
        let Ok(_guard) = tokio::time::timeout_at(deadline, self.refreshing.lock()).await else { return };
        let map = self.map();
        if !Arc::ptr_eq(&map, seen) {
            return;
        }
        let known: HashMap<String, Arc<Link>> =
            map.links().iter().map(|link| (link.address().to_owned(), link.clone())).collect();
        let mut candidates: Vec<Arc<Link>> = map.links().to_vec();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % candidates.len().max(1);
        candidates.rotate_left(turn);
        // The one that a MOVED named knows best.
        candidates.splice(0..0, moved_to.and_then(|redirection| self.link_named(&map, redirection)));
        for info in &self.seeds {
            if !known.contains_key(&url::address(info)) {
                candidates.push(Arc::new(Link::new(info.clone(), self.options.connect_timeout)));
            }
        }
        let found = find_map(candidates, &known, self.options.connect_timeout, deadline, ASK_TIMEOUT).await;
        match found {
            Ok(map) => *self.map.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(map),
            Err(error) => tracing::debug!(%error, "no node told the cluster's map"),
        }
    }
}

/// What has to happen before the open commands are tried again.
#[derive(Default)]
struct Again {
    refresh: bool,
    pause: bool,
    moved_to: Option<String>,
}

impl Again {
    /// Whether a command should be tried again, and after what.
    fn wants(&mut self, step: &Step, effect: Effect, attempt: usize, cluster: bool) -> bool {
        match step {
            Step::Answer(Value::ServerError(error)) => match error.kind() {
                Some(ServerErrorKind::Moved) => {
                    self.refresh = true;
                    self.moved_to = Some(words(error));
                    true
                }
                // Demoted by a failover: the map tells who took over.
                Some(ServerErrorKind::ReadOnly) if cluster => {
                    self.refresh = true;
                    self.pause = true;
                    true
                }
                Some(ServerErrorKind::TryAgain) => {
                    self.pause = true;
                    true
                }
                _ => false,
            },
            Step::Answer(_) => false,
            // Another node may serve the slot by now: one look, then the caller is told.
            Step::Failed(Failure::NotConnected(_)) => {
                self.refresh |= cluster;
                cluster && attempt == 1
            }
            // A connection that broke while nobody used it looks the same as one that broke just now.
            Step::Failed(Failure::Lost(_)) => {
                self.refresh |= cluster;
                effect == Effect::Repeatable && attempt == 1
            }
            Step::Failed(Failure::Late(_) | Failure::Refused(_)) => false,
        }
    }
}

/// Asks some nodes at a time; the first good answer counts. The error is the last node's.
async fn find_map(
    candidates: Vec<Arc<Link>>,
    known: &HashMap<String, Arc<Link>>,
    connect_timeout: Duration,
    deadline: Instant,
    ask_timeout: Duration,
) -> Result<Map, BackendError> {
    let action = "connect and ask which node serves which slot";
    let mut error = Failure::NotConnected("no address is known".into()).into_error("redis", action);
    for some in candidates.chunks(ASKED) {
        let deadline = deadline.min(Instant::now() + ask_timeout);
        let asked = some.iter().map(|link| Box::pin(ask_for_map(link, known, connect_timeout, deadline)));
        match select_ok(asked).await {
            Ok((map, _)) => return Ok(map),
            Err((link, failure)) => error = failure.into_error(&service(&link), action),
        }
    }
    Err(error)
}

async fn ask_for_map(
    link: &Arc<Link>,
    known: &HashMap<String, Arc<Link>>,
    connect_timeout: Duration,
    deadline: Instant,
) -> Result<Map, (Arc<Link>, Failure)> {
    let fail = |failure| (link.clone(), failure);
    let command = |_: &FieldTtl| vec![redis::cmd("CLUSTER").arg("SLOTS").to_owned()];
    let answer = link.send(deadline, command).await.map_err(fail)?.pop().unwrap_or_default();
    if let Value::ServerError(error) = &answer {
        // A server alone; or one that does not let this user ask. If that one belongs to a cluster after all, commands
        // will be answered with MOVED, and the user sees that.
        let alone = words(error).contains("cluster support disabled")
            || words(error).to_lowercase().contains("unknown command")
            || error.kind() == Some(ServerErrorKind::NoPerm);
        return if alone { Ok(Map::single(link.clone())) } else { Err(fail(Failure::asking(error))) };
    }
    let mut known = known.clone();
    known.entry(link.address().to_owned()).or_insert_with(|| link.clone());
    let map = Map::from_slots(&answer, link, &known, connect_timeout);
    let map =
        map.ok_or_else(|| fail(Failure::NotConnected("its answer to CLUSTER SLOTS is unreadable".into())))?;
    if map.links().is_empty() {
        return Err(fail(Failure::NotConnected("its cluster serves no slot".into())));
    }
    Ok(map)
}
