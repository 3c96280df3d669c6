//! `count-by` over a real cluster of three masters against the engine's limit: the same loop, slot by slot, as one raw
//! EVAL for each node, run in parallel, which holds every node for all of its run. Goals: at least 0.8 times its speed
//! with a chain for each node, while no call of ours holds a node longer than 2 ms (median) and 5 ms (99th
//! percentile). Beside it, for what going by slots costs, the loop that most would write: SCAN, which is not exact
//! while slots move.
//!
//! All sides take turns; the ratio is the middle of the ratios of neighbouring rounds. How long calls hold a node is
//! what the servers' own slow logs say, in rounds of their own: `eval "$(scripts/services env)"` with exported
//! variables, then `cargo bench --bench count_by`.

#[path = "../tests/support/mod.rs"]
mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use skalds::chain::combine::fold;
use skalds::chain::job::{Builtin, JobSpec, Target};
use skalds::chain::slots::SlotSet;
use skalds::chain::state::{Hop, JobState, PlanNode, Sequence, Tally};
use skalds::chain::value::Value;
use skalds::node::{Advance, ClusterView, NativeJobs, RedisAccess, StepRunner, discover};
use support::{RedisCluster, RedisServer, Version};

const ORDERS: usize = 300_000;
const OTHERS: usize = 20_000;
const ROUNDS: usize = 15;
const STATUS: [&str; 5] = ["new", "paid", "packed", "sent", "returned"];

/// The yardstick: our loop without budgets, markers and counters. `ARGV`: the node's slots.
const RAW_SLOTS: &str = "
local acc = {}
for i = 1, #ARGV do
  for _, key in ipairs(redis.call('CLUSTER', 'GETKEYSINSLOT', ARGV[i], 1000000)) do
    if string.sub(key, 1, 6) == 'order:' then
      local status = redis.call('HGET', key, 'status')
      acc[status] = (acc[status] or 0) + 1
    end
  end
end
return cjson.encode(acc)";

/// The loop that most would write. `ARGV[1]`: the pattern.
const RAW_SCAN: &str = "
local acc, cursor = {}, '0'
repeat
  local page = redis.call('SCAN', cursor, 'MATCH', ARGV[1], 'COUNT', 500)
  cursor = page[1]
  for _, key in ipairs(page[2]) do
    local status = redis.call('HGET', key, 'status')
    acc[status] = (acc[status] or 0) + 1
  end
until cursor == '0'
return cjson.encode(acc)";

fn main() {
    let cluster = RedisCluster::start(Version::V8, 3, 0);
    let set = |parts: Vec<String>| parts.into_iter().map(String::into_bytes).collect::<Vec<_>>();
    cluster.load((0..ORDERS).map(|n| {
        let status = STATUS[n % STATUS.len()];
        set(["HSET", &format!("order:{n}"), "status", status, "total", &n.to_string()]
            .map(String::from)
            .into())
    }));
    cluster.load((0..OTHERS).map(|n| set(vec!["SET".into(), format!("user:{n}"), n.to_string()])));

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let seeds: Vec<String> = cluster.masters().iter().map(RedisServer::address).collect();
        let view = discover(&seeds, &RedisAccess::default()).await.unwrap();
        let by_slots: Vec<_> = view
            .nodes
            .iter()
            .map(|node| (node.redis.clone(), node.slots.iter().map(|slot| slot.to_string()).collect()))
            .collect();
        let by_scan: Vec<_> = seeds.iter().map(|seed| (seed.clone(), vec!["order:*".to_owned()])).collect();
        let (mut fan, mut chain, mut scan, mut raws) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            let raw = raw_everywhere(RAW_SLOTS, &by_slots).await;
            let fanned = ours(&view, true).await;
            let scanned = raw_everywhere(RAW_SCAN, &by_scan).await;
            let chained = ours(&view, false).await;
            // The first round warms all sides up.
            if round > 0 {
                fan.push(raw.as_secs_f64() / fanned.as_secs_f64());
                scan.push(scanned.as_secs_f64() / fanned.as_secs_f64());
                chain.push(raw.as_secs_f64() / chained.as_secs_f64());
                raws.push(raw.as_secs_f64());
            }
        }
        let rate = ORDERS as f64 / middle(&mut raws) / 1e6;
        println!("raw EVAL per node, slot by slot, in parallel: {rate:.2} M keys/s");
        let (fan, chain, scan) = (middle(&mut fan), middle(&mut chain), middle(&mut scan));
        println!("ours, a chain for each node:      {fan:.2} times that (goal 0.80); {scan:.2} times a raw SCAN loop");
        println!("ours, one chain from node to node: {chain:.2} times that");
        let mut held = held(&cluster, &view).await;
        held.sort_unstable();
        let at = |share: f64| held[((held.len() - 1) as f64 * share) as usize] as f64 / 1e3;
        println!(
            "calls of ours hold a node for {:.2} ms (median, goal 2), {:.2} ms (99 %, goal 5), {:.2} ms (longest of {})",
            at(0.5),
            at(0.99),
            at(1.0),
            held.len()
        );
    });
}

/// The time of one raw EVAL on each node at once: addresses and arguments.
async fn raw_everywhere(text: &'static str, nodes: &[(String, Vec<String>)]) -> Duration {
    let mut connections = Vec::new();
    for (address, arguments) in nodes {
        let client = redis::Client::open(format!("redis://{address}/")).unwrap();
        connections.push((client.get_multiplexed_async_connection().await.unwrap(), arguments.clone()));
    }
    let start = Instant::now();
    let evals = connections.into_iter().map(|(mut connection, arguments)| {
        tokio::spawn(async move {
            let mut eval = redis::cmd("EVAL");
            eval.arg(text).arg(0).arg(arguments);
            connection.set_response_timeout(Duration::from_secs(60));
            eval.query_async::<String>(&mut connection).await.unwrap()
        })
    });
    let mut counted = 0;
    for eval in evals.collect::<Vec<_>>() {
        let counts: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(&eval.await.unwrap()).unwrap();
        counted += counts.values().map(|count| count.as_u64().unwrap()).sum::<u64>();
    }
    let took = start.elapsed();
    assert_eq!(counted, ORDERS as u64);
    took
}

/// The time of our job, connecting and loading the script included.
async fn ours(view: &ClusterView, fan: bool) -> Duration {
    let target = Target::Pattern(b"order:*".to_vec());
    let job = Arc::new(JobSpec::builtin("bench", target, Builtin::CountBy { field: "status".into() }));
    let start = Instant::now();
    let all: Vec<usize> = (0..view.nodes.len()).collect();
    let chains: Vec<Vec<usize>> = if fan { all.iter().map(|node| vec![*node]).collect() } else { vec![all] };
    let running = chains.into_iter().map(|nodes| tokio::spawn(run(state(view, &job, &nodes))));
    let mut acc = Value::Nil;
    for chain in running.collect::<Vec<_>>() {
        for part in chain.await.unwrap().parts {
            acc = fold(&job.combine, acc, part.acc).unwrap();
        }
    }
    let took = start.elapsed();
    let Value::Map(counts) = acc else { panic!("no table: {acc:?}") };
    assert!(counts.values().all(|count| *count == Value::Int((ORDERS / STATUS.len()) as i64)), "{counts:?}");
    took
}

fn state(view: &ClusterView, job: &Arc<JobSpec>, nodes: &[usize]) -> JobState {
    let known = |node: &skalds::node::NodeView| PlanNode {
        id: node.id.clone(),
        redis: node.redis.clone(),
        agent: None,
    };
    let hop = |node: &usize| Hop { node: *node as u16, slots: view.nodes[*node].slots.clone() };
    JobState {
        job: job.clone(),
        chain: 0,
        epoch: 1,
        nodes: view.nodes.iter().map(known).collect(),
        route: nodes.iter().map(hop).collect(),
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

async fn run(mut state: JobState) -> JobState {
    let (access, natives) = (RedisAccess::default(), NativeJobs::new());
    while let Some(node) = state.due_node().cloned() {
        let mut runner = StepRunner::open(&node, &state.job, &access, &natives).await.unwrap();
        while runner.advance(&mut state).await.unwrap() != Advance::HopDone {}
    }
    let mut done = SlotSet::empty();
    state.parts.iter().for_each(|part| done.union_with(&part.slots));
    assert!(state.failed.is_none() && state.open.is_empty());
    state
}

/// How long each call of a fanned-out job held its node, in microseconds, as far as it did for more than 50: commands
/// inside a script are logged too, and are shorter.
async fn held(cluster: &RedisCluster, view: &ClusterView) -> Vec<i64> {
    for node in cluster.masters() {
        node.query::<()>(&["CONFIG", "SET", "slowlog-max-len", "100000"]);
        node.query::<()>(&["CONFIG", "SET", "slowlog-log-slower-than", "50"]);
        node.query::<()>(&["SLOWLOG", "RESET"]);
    }
    for _ in 0..5 {
        ours(view, true).await;
    }
    let mut micros = Vec::new();
    for node in cluster.masters() {
        for entry in node.query::<Vec<Vec<redis::Value>>>(&["SLOWLOG", "GET", "-1"]) {
            // [id, time, microseconds, [command, …], client, name]
            let (redis::Value::Int(took), redis::Value::Array(command)) = (&entry[2], &entry[3]) else {
                panic!("not an entry: {entry:?}")
            };
            if matches!(&command[0], redis::Value::BulkString(name) if name.starts_with(b"EVALSHA")) {
                micros.push(*took);
            }
        }
    }
    micros
}

fn middle(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
