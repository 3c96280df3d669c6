//! Drives a job over a cluster or a server as a coordinator would, in this process and without a planner.

use std::collections::BTreeMap;
use std::sync::Arc;

use skalds::chain::combine::{finish, fold};
use skalds::chain::job::{Access, Builtin, Combine, JobSpec, Step, Target};
use skalds::chain::slots::{SlotSet, slot_of};
use skalds::chain::state::{Hop, JobState, PlanNode, Sequence, Tally};
use skalds::chain::value::Value;
use skalds::node::{Advance, ClusterView, NativeJobs, NodeError, RedisAccess, StepRunner, discover};

use crate::support::{Command, RedisCluster, RedisServer, Version, load};

/// Either kind of place to run on.
pub(crate) enum Place {
    Cluster(RedisCluster),
    Single(RedisServer),
}

impl Place {
    pub(crate) fn cluster(version: Version) -> Self {
        Place::Cluster(RedisCluster::start(version, 3, 0))
    }

    pub(crate) fn single(version: Version) -> Self {
        Place::Single(RedisServer::start(version, &[]))
    }

    /// Clusters of these versions and single servers of those, one after the other: each is gone before the next
    /// one starts.
    pub(crate) fn each(clusters: &[Version], singles: &[Version]) -> impl Iterator<Item = Place> {
        let clusters = clusters.iter().copied().map(Place::cluster);
        clusters.chain(singles.iter().copied().map(Place::single))
    }

    pub(crate) fn load(&self, commands: impl IntoIterator<Item = Command>) {
        match self {
            Place::Cluster(cluster) => cluster.load(commands),
            Place::Single(server) => load(server, commands),
        }
    }

    pub(crate) fn seeds(&self) -> Vec<String> {
        match self {
            Place::Cluster(cluster) => cluster.masters().iter().map(RedisServer::address).collect(),
            Place::Single(server) => vec![server.address()],
        }
    }

    pub(crate) fn owner_of(&self, key: &[u8]) -> &RedisServer {
        match self {
            Place::Cluster(cluster) => cluster.owner_of(key),
            Place::Single(server) => server,
        }
    }

    pub(crate) fn servers(&self) -> Vec<&RedisServer> {
        match self {
            Place::Cluster(cluster) => cluster.masters().iter().collect(),
            Place::Single(server) => vec![server],
        }
    }

    pub(crate) fn name(&self) -> String {
        match self {
            Place::Cluster(cluster) => format!("cluster of {:?}", cluster.nodes[0].version()),
            Place::Single(server) => format!("single {:?}", server.version()),
        }
    }

    /// One command to the owner of its first argument.
    pub(crate) fn query<T: redis::FromRedisValue>(&self, command: &[&str]) -> T {
        self.owner_of(command[1].as_bytes()).query(command)
    }
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

pub(crate) fn pattern(text: &str) -> Target {
    Target::Pattern(text.as_bytes().to_vec())
}

pub(crate) fn lua(target: Target, text: &str, access: Access) -> JobSpec {
    JobSpec::new("job-1", target, Step::Lua(text.to_owned()), Combine::Sum, access)
}

pub(crate) fn builtin(target: Target, builtin: Builtin) -> JobSpec {
    JobSpec::builtin("job-1", target, builtin)
}

pub(crate) fn command(parts: &[&[u8]]) -> Command {
    parts.iter().map(|part| part.to_vec()).collect()
}

pub(crate) fn map(entries: &[(&str, i64)]) -> Value {
    Value::Map(entries.iter().map(|(key, count)| (key.as_bytes().to_vec(), Value::Int(*count))).collect())
}

/// One chain over all nodes of the view that still have something to do.
pub(crate) fn chain(job: JobSpec, view: &ClusterView, done: &SlotSet) -> JobState {
    let nodes: Vec<PlanNode> = view
        .nodes
        .iter()
        .map(|node| PlanNode { id: node.id.clone(), redis: node.redis.clone(), agent: None })
        .collect();
    let listed: Option<SlotSet> = match &job.target {
        Target::Keys(keys) => Some(keys.iter().map(|key| slot_of(key)).collect()),
        _ => None,
    };
    let first = match &job.target {
        Target::Walk(key) => Some(key.clone()),
        Target::OrderedKeys(keys) => keys.first().cloned(),
        _ => None,
    };
    let mut route = Vec::new();
    for (index, node) in (0..).zip(&view.nodes) {
        let mut slots: SlotSet = match &listed {
            Some(listed) => listed.iter().filter(|slot| node.slots.contains(*slot)).collect(),
            None => node.slots.clone(),
        };
        slots.subtract(done);
        let due = match &first {
            Some(key) => node.slots.contains(slot_of(key)),
            None => !slots.is_empty(),
        };
        if due {
            route.push(Hop { node: index, slots: if first.is_some() { SlotSet::empty() } else { slots } });
        }
    }
    JobState {
        job: Arc::new(job),
        chain: 0,
        epoch: 1,
        nodes,
        route,
        position: 0,
        parts: Vec::new(),
        sequence: Sequence::default(),
        acc: Value::Nil,
        tally: Tally::default(),
        errors: Vec::new(),
        open: Default::default(),
        failed: None,
        reports: Vec::new(),
    }
}

pub(crate) async fn view(place: &Place) -> ClusterView {
    discover(&place.seeds(), &RedisAccess::default()).await.unwrap()
}

/// Runs all hops of a chain; a runner serves all hops on its node.
pub(crate) async fn run_chain(state: &mut JobState, natives: &NativeJobs) -> Result<(), NodeError> {
    let mut runners = BTreeMap::new();
    while let Some(node) = state.due_node().cloned() {
        if !runners.contains_key(&node.id) {
            let runner = StepRunner::open(&node, &state.job, &RedisAccess::default(), natives).await?;
            runners.insert(node.id.clone(), runner);
        }
        let runner = runners.get_mut(&node.id).unwrap();
        while runner.advance(state).await? != Advance::HopDone {}
    }
    Ok(())
}

/// Runs a whole job once over the place as it is.
pub(crate) async fn run_with(place: &Place, job: JobSpec, natives: &NativeJobs) -> JobState {
    let view = view(place).await;
    let mut state = chain(job, &view, &SlotSet::empty());
    run_chain(&mut state, natives).await.unwrap();
    state
}

pub(crate) async fn run(place: &Place, job: JobSpec) -> JobState {
    run_with(place, job, &NativeJobs::new()).await
}

/// What the job came to.
pub(crate) fn result(state: &JobState) -> Value {
    let folded = state
        .parts
        .iter()
        .fold(state.acc.clone(), |acc, part| fold(&state.job.combine, acc, part.acc.clone()).unwrap());
    finish(&state.job.combine, folded)
}

/// Orders as the demo has them, and others.
pub(crate) fn orders(count: usize) -> impl Iterator<Item = Command> {
    const STATUS: [&str; 3] = ["new", "paid", "sent"];
    (0..count).map(|n| {
        let (key, total) = (format!("order:{n}"), n.to_string());
        command(&[b"HSET", key.as_bytes(), b"status", STATUS[n % 3].as_bytes(), b"total", total.as_bytes()])
    })
}

pub(crate) fn strings(prefix: &str, count: usize) -> impl Iterator<Item = Command> {
    let prefix = prefix.to_owned();
    (0..count).map(move |n| command(&[b"SET", format!("{prefix}{n}").as_bytes(), b"0"]))
}
