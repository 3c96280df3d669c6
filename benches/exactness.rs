//! What exactness costs: loops over a real cluster of three masters with and without what makes a job exact.
//!
//! - in the engine alone, as one EVAL for each node in parallel: the same loop, slot by slot, without anything; with the
//!   test that the slot is here (reads); and with the unit's marker (writes). Goals: reads at most 1.1 times, writes at
//!   most 1.5 times the loop without;
//! - whole jobs: an INCRBY of every key with markers, and without (`--idempotent`).
//!
//! All take turns; a ratio is the middle of the ratios of neighbouring rounds. With the variables of
//! `scripts/services env` exported: `cargo bench --bench exactness`.

#[path = "../tests/support/mod.rs"]
mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use skalds::chain::job::{Access, Combine, JobSpec, Step, Target};
use skalds::chain::slots::tag_of;
use skalds::chain::state::{Hop, JobState, PlanNode, Sequence, Tally};
use skalds::chain::value::Value;
use skalds::node::{Advance, ClusterView, NativeJobs, RedisAccess, StepRunner, discover};
use support::{RedisCluster, RedisServer, Version};

const KEYS: usize = 200_000;
const ROUNDS: usize = 11;

/// A loop over slots as one EVAL. `ARGV`: a round's name, then (slot, tag) pairs.
fn raw(before: &str, each: &str, after: &str) -> String {
    format!(
        "local total = 0
for i = 2, #ARGV, 2 do
  local marker = 'skalds:unit:{{' .. ARGV[i + 1] .. '}}:' .. ARGV[1]
  {before}
  local delta = 0
  for _, key in ipairs(redis.call('CLUSTER', 'GETKEYSINSLOT', ARGV[i], 1000000)) do
    if string.sub(key, 1, 5) == 'user:' then
      {each}
    end
  end
  {after}
  total = total + delta
end
return total"
    )
}

const READ: &str = "delta = delta + redis.call('GET', key)";
const WRITE: &str = "redis.call('INCRBY', key, 1) delta = delta + 1";
const TEST: &str =
    "local seen = redis.pcall('GET', marker) if seen then return redis.error_reply('seen') end";
const MARK: &str = "if delta > 0 then redis.call('SET', marker, cmsgpack.pack(true, false, delta, delta, 0, delta), 'PX', 864000000) end";

fn main() {
    let cluster = RedisCluster::start(Version::V8, 3, 0);
    let zero =
        |number: usize| ["SET", &format!("user:{number}"), "0"].map(|word| word.as_bytes().to_vec()).to_vec();
    cluster.load((0..KEYS).map(zero));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let seeds: Vec<String> = cluster.masters().iter().map(RedisServer::address).collect();
        let view = discover(&seeds, &RedisAccess::default()).await.unwrap();
        let loops = [raw("", READ, ""), raw(TEST, READ, ""), raw("", WRITE, ""), raw(TEST, WRITE, MARK)];
        let mut times: [Vec<f64>; 6] = Default::default();
        for round in 0..=ROUNDS {
            let mut took = [0.0; 6];
            for (at, text) in loops.iter().enumerate() {
                took[at] = everywhere(&view, text, &format!("{round}-{at}")).await.as_secs_f64();
            }
            for (at, access) in [(4, Access::IdempotentWrite), (5, Access::Write)] {
                took[at] = job(&view, &format!("job-{round}-{at}"), access).await.as_secs_f64();
            }
            // The first round warms everything up. Markers are not to pile up.
            if round > 0 {
                (0..6).for_each(|at| times[at].push(took[at]));
            }
            for node in cluster.masters() {
                let clear = "for _, key in ipairs(redis.call('KEYS', 'skalds:unit:*')) do redis.call('UNLINK', key) end";
                node.query::<()>(&["EVAL", clear, "0"]);
            }
        }
        let ratio = |of: usize, to: usize| {
            let mut ratios: Vec<f64> = times[of].iter().zip(&times[to]).map(|(a, b)| a / b).collect();
            ratios.sort_by(f64::total_cmp);
            ratios[ratios.len() / 2]
        };
        println!("a GET of every key, with the test of its slot:       {:.2} times without (goal 1.1)", ratio(1, 0));
        println!("an INCRBY of every key, with the test and a marker:  {:.2} times without (goal 1.5)", ratio(3, 2));
        println!("a job that does INCRBY, with markers:                {:.2} times one without", ratio(5, 4));
        println!("the same job with markers:                           {:.2} times the plain loop in the engine", ratio(5, 2));
    });
}

/// One EVAL on each node, all at once.
async fn everywhere(view: &ClusterView, text: &str, round: &str) -> Duration {
    let mut connections = Vec::new();
    for node in &view.nodes {
        let client = redis::Client::open(format!("redis://{}/", node.redis)).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        connection.set_response_timeout(Duration::from_secs(60));
        let mut eval = redis::cmd("EVAL");
        eval.arg(text).arg(0).arg(round);
        for slot in node.slots.iter() {
            eval.arg(slot).arg(tag_of(slot));
        }
        connections.push((connection, eval));
    }
    let start = Instant::now();
    let evals = connections.into_iter().map(|(mut connection, eval)| {
        tokio::spawn(async move { eval.query_async::<i64>(&mut connection).await.unwrap() })
    });
    for eval in evals.collect::<Vec<_>>() {
        eval.await.unwrap();
    }
    start.elapsed()
}

/// A whole job, a chain for each node.
async fn job(view: &ClusterView, id: &str, access: Access) -> Duration {
    let text = "function each(key, acc) redis.call('INCRBY', key, 1) return (acc or 0) + 1 end";
    let target = Target::Pattern(b"user:*".to_vec());
    let job = Arc::new(JobSpec::new(id, target, Step::Lua(text.into()), Combine::Sum, access));
    let start = Instant::now();
    let chains = (0..view.nodes.len()).map(|node| tokio::spawn(run(state(view, &job, node))));
    let mut total = 0;
    for chain in chains.collect::<Vec<_>>() {
        for part in chain.await.unwrap().parts {
            let Value::Int(count) = part.acc else { continue };
            total += count;
        }
    }
    assert_eq!(total, KEYS as i64);
    start.elapsed()
}

fn state(view: &ClusterView, job: &Arc<JobSpec>, node: usize) -> JobState {
    let known = |node: &skalds::node::NodeView| PlanNode {
        id: node.id.clone(),
        redis: node.redis.clone(),
        agent: None,
    };
    JobState {
        job: job.clone(),
        chain: 0,
        epoch: 1,
        nodes: view.nodes.iter().map(known).collect(),
        route: [Hop { node: node as u16, slots: view.nodes[node].slots.clone() }].into(),
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
    assert!(state.failed.is_none() && state.open.is_empty());
    state
}
