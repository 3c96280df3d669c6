use proptest::prelude::*;

use super::order::tests::{length, nearest};
use super::share::Drive;
use super::*;
use crate::chain::job::{Access, AgentPolicy, Builtin, Combine};
use crate::chain::slots::{SLOTS, slot_of};

/// So many nodes with an agent each, their slots in contiguous ranges.
fn cluster(nodes: u16) -> PlanInput {
    let bound = |index: u16| (u32::from(index) * u32::from(SLOTS) / u32::from(nodes)) as u16;
    let facts = |index: u16| NodeFacts {
        node: PlanNode {
            id: format!("id{index}"),
            redis: format!("r{index}:1"),
            agent: Some(format!("a{index}:1")),
        },
        slots: SlotSet::range(bound(index), bound(index + 1) - 1),
        keys: 100_000,
        ..NodeFacts::default()
    };
    PlanInput { nodes: (0..nodes).map(facts).collect(), open: SlotSet::full(), ..PlanInput::default() }
}

fn count() -> JobSpec {
    JobSpec::builtin("job", Target::Pattern(b"*".to_vec()), Builtin::Count)
}

fn targeting(target: Target) -> JobSpec {
    JobSpec { target, ..count() }
}

/// The nodes of each chain, by their number in a cluster of [`cluster`].
fn routes(plan: &Plan) -> Vec<Vec<usize>> {
    let node = |hop: &PlannedHop| plan.nodes[usize::from(hop.hop.node)].id[2..].parse().unwrap();
    plan.chains.iter().map(|chain| chain.hops.iter().map(node).collect()).collect()
}

fn place(zone: &str, rack: &str) -> Place {
    Place { zone: Some(zone.into()), rack: Some(rack.into()) }
}

/// A key of every node in turn.
fn key_in(input: &PlanInput, node: usize, number: usize) -> Vec<u8> {
    (number..)
        .map(|number| format!("k{number}").into_bytes())
        .find(|key| input.nodes[node].slots.contains(slot_of(key)))
        .unwrap()
}

#[test]
fn a_chain_goes_rack_by_rack_and_zone_by_zone() {
    let mut input = cluster(6);
    let places = [("a", "1"), ("b", "1"), ("a", "2"), ("b", "1"), ("a", "1"), ("a", "2")];
    input.nodes.iter_mut().zip(places).for_each(|(node, (zone, rack))| node.place = place(zone, rack));
    input.coordinator = place("a", "1");
    let plan = plan(&JobSpec { chains: Some(1), ..count() }, &input).unwrap();
    // Rack 1 and rack 2 of zone a, with zone b in between or at an end: 1 + 1 + 2 + 1 + 10 + 1 + 10.
    assert_eq!(plan.chains[0].cost, 26.0);
    let route = &routes(&plan)[0];
    let b = route.iter().position(|node| [1, 3].contains(node)).unwrap();
    assert!([1, 3].contains(&route[b + 1]), "{route:?}");
    assert_eq!(plan.order, OrderMethod::Exact);
}

#[test]
fn what_is_measured_counts_more_than_what_is_assumed() {
    let mut input = cluster(3);
    input.nodes.iter_mut().for_each(|node| node.place = place("a", "1"));
    input.coordinator = place("a", "1");
    let link = |from, to, micros| Link { from, to, micros };
    input.links = vec![link(None, 0, 5_000), link(None, 2, 40), link(Some(1), 0, 20), link(Some(2), 1, 700)];
    let plan = plan(&JobSpec { chains: Some(1), ..count() }, &input).unwrap();
    // 2 and 0 next to each other (assumed 1), 1 and 0 (0.2), 1 and the coordinator (assumed 1), 2 (0.4).
    assert!((plan.chains[0].cost - 2.6).abs() < 1e-6, "{plan:?}");
    let reaches: Vec<_> = plan.chains[0].hops.iter().map(|hop| hop.reach).collect();
    assert!(reaches.contains(&Reach::Measured(20)) && reaches.contains(&Reach::SameRack), "{reaches:?}");
}

#[test]
fn only_open_slots_are_planned_and_what_nobody_serves_is_named() {
    let mut input = cluster(4);
    input.open = SlotSet::range(10, 20);
    input.open.union_with(&SlotSet::range(16_000, SLOTS));
    input.nodes[3].slots = SlotSet::range(12_288, 16_100);
    let plan = plan(&JobSpec { chains: Some(1), ..count() }, &input).unwrap();
    let mut visited = routes(&plan).concat();
    visited.sort_unstable();
    assert_eq!(visited, [0, 3]);
    assert_eq!(plan.nodes.len(), 2, "no more nodes than needed travel");
    assert_eq!(plan.uncovered.ranges(), [(16_101, 16_383)]);
    let error = plan.covered().unwrap_err();
    assert!(error.to_string().starts_with("no node serves the slots 16101-16383; "), "{error}");
}

#[test]
fn nothing_open_is_a_plan_without_chains() {
    let mut input = cluster(3);
    input.open = SlotSet::empty();
    let plan = plan(&count(), &input).unwrap();
    assert!(plan.chains.is_empty() && plan.uncovered.is_empty());
    assert!(plan.explain().to_string().contains("nothing is open"));
}

#[test]
fn no_node_and_no_agent_are_errors() {
    assert_eq!(plan(&count(), &PlanInput::default()), Err(PlanError::NoNodes));
    let mut input = cluster(3);
    input.lost.insert("a1:1".into());
    let insists = JobSpec { agents: AgentPolicy::Require, ..count() };
    assert_eq!(plan(&insists, &input), Err(PlanError::NoAgent { nodes: vec!["r1:1".into()] }));
}

#[test]
fn a_node_without_an_agent_is_driven_by_the_nearest() {
    let mut input = cluster(4);
    let places = [("a", "1"), ("b", "1"), ("b", "1"), ("a", "1")];
    input.nodes.iter_mut().zip(places).for_each(|(node, (zone, rack))| node.place = place(zone, rack));
    input.nodes[2].node.agent = None;
    input.lost.insert("a3:1".into());
    let plan = plan(&count(), &input).unwrap();
    let agents: Vec<_> = plan.nodes.iter().map(|node| node.agent.as_deref().unwrap()).collect();
    assert_eq!(agents, ["a0:1", "a1:1", "a1:1", "a0:1"]);
    assert!(plan.explain().rows.iter().filter(|row| row.why.contains("no agent is beside it")).count() == 2);
    // The state does not travel between nodes that one agent drives.
    let one = super::plan(&JobSpec { chains: Some(1), ..count() }, &input).unwrap();
    let same = one.chains[0].hops.iter().filter(|hop| hop.reach == Reach::SameProcess).count();
    assert_eq!(same, 2);
}

#[test]
fn direct_mode_names_no_agent_and_listed_agents_are_the_only_ones() {
    let mut input = cluster(3);
    let off = plan(&JobSpec { agents: AgentPolicy::Off, ..count() }, &input).unwrap();
    assert!(off.nodes.iter().all(|node| node.agent.is_none()));
    assert!(
        off.explain().rows.iter().all(|row| row.agent == "direct" && row.why == "driven by the coordinator")
    );
    let at = |list: &[&str], input: &PlanInput| {
        let listed = list.iter().map(|agent| agent.to_string()).collect();
        let plan = plan(&JobSpec { agents: AgentPolicy::At(listed), ..count() }, input).unwrap();
        plan.nodes.into_iter().map(|node| node.agent.unwrap_or_default()).collect::<Vec<_>>()
    };
    assert_eq!(at(&["a1:1", "gone:1"], &input), ["a1:1", "a1:1", "a1:1"]);
    assert_eq!(at(&["x:1", "y:1"], &input), ["x:1", "y:1", "x:1"]);
    input.lost.insert("x:1".into());
    assert_eq!(at(&["x:1", "y:1"], &input), ["y:1", "y:1", "y:1"]);
}

#[test]
fn keys_in_strict_order_hop_where_the_owner_changes() {
    let input = cluster(3);
    let owners = [0, 0, 2, 1, 1, 1, 0];
    let keys: Vec<_> =
        owners.iter().enumerate().map(|(index, node)| key_in(&input, *node, index * 100)).collect();
    let job = targeting(Target::OrderedKeys(keys));
    let whole = plan(&job, &input).unwrap();
    assert_eq!(routes(&whole), [[0, 2, 1, 0]]);
    let hops = &whole.chains[0].hops;
    assert_eq!(hops.iter().map(|hop| hop.keys).collect::<Vec<_>>(), [2, 1, 3, 1]);
    assert!(hops.iter().all(|hop| hop.hop.slots.is_empty()));
    assert_eq!(whole.choice.reason, ChoiceReason::Sequential);
    // After four keys are done, and when the owner of the last one is away.
    let mut rest = input.clone();
    rest.sequence.done = 4;
    rest.nodes[0].slots = SlotSet::empty();
    let plan = plan(&job, &rest).unwrap();
    assert_eq!(routes(&plan), [[1]]);
    assert_eq!(plan.uncovered.len(), 1);
}

#[test]
fn a_long_strict_order_is_planned_piece_by_piece() {
    let input = cluster(2);
    let pair = [key_in(&input, 0, 0), key_in(&input, 1, 0)];
    let keys = pair.iter().cycle().take(10_000).cloned().collect();
    let plan = plan(&targeting(Target::OrderedKeys(keys)), &input).unwrap();
    assert_eq!(plan.chains[0].hops.len(), share::MAX_ROUTE);
}

#[test]
fn a_walk_starts_at_its_next_key_and_knows_every_node() {
    let mut input = cluster(3);
    let start = key_in(&input, 1, 0);
    let job = targeting(Target::Walk(start));
    let first = plan(&job, &input).unwrap();
    assert_eq!((routes(&first), first.nodes.len()), (vec![vec![1]], 3));
    let state = first.states(&Arc::new(job.clone()), &input.sequence, &Value::Nil).remove(0);
    assert_eq!(state.due_node().unwrap().id, "id1");
    assert_eq!(state.nodes.len(), 3);
    input.sequence.done = 7;
    input.sequence.next_key = Some(key_in(&input, 2, 0));
    assert_eq!(routes(&plan(&job, &input).unwrap()), [[2]]);
    input.sequence.next_key = None;
    assert!(plan(&job, &input).unwrap().chains.is_empty());
}

#[test]
fn a_raw_script_visits_every_node_once_in_one_chain() {
    let mut input = cluster(5);
    input.nodes[2].slots = SlotSet::empty();
    let pattern = Target::Pattern(b"*".to_vec());
    let job = JobSpec {
        chains: Some(3),
        ..JobSpec::new("raw", pattern, Step::Raw("return 1".into()), Combine::Sum, Access::Read)
    };
    let plan = plan(&job, &input).unwrap();
    assert_eq!(plan.chains.len(), 1);
    let mut visited = routes(&plan).concat();
    visited.sort_unstable();
    assert_eq!(visited, [0, 1, 2, 3, 4]);
    assert!(plan.chains[0].hops.iter().all(|hop| hop.hop.slots.is_empty()));
    assert!(plan.estimate.block_micros >= 100_000, "it blocks for as long as it takes: {:?}", plan.estimate);
}

#[test]
fn a_server_without_cluster_mode_is_one_hop() {
    let mut input = cluster(1);
    input.cluster = false;
    input.open = SlotSet::empty(); // its units are pages, not slots
    let single = plan(&count(), &input).unwrap();
    assert_eq!(single.chains[0].hops[0].hop.slots, SlotSet::full());
    assert_eq!(single.chains[0].hops[0].keys, 100_000);
}

#[test]
fn the_number_of_chains_follows_size_wish_and_load() {
    let chains = |job: &JobSpec, input: &PlanInput| plan(job, input).unwrap().chains.len();
    let mut input = cluster(8);
    assert_eq!(chains(&count(), &input), 8, "a large job fans out");
    assert_eq!(chains(&JobSpec { chains: Some(3), ..count() }, &input), 3);
    assert_eq!(chains(&JobSpec { chains: Some(99), ..count() }, &input), 8);
    input.nodes.iter_mut().for_each(|node| node.load.cpu = 0.95);
    assert_eq!(chains(&count(), &input), 1, "a job of the lowest priority is gentle to a hot cluster");
    assert_eq!(chains(&JobSpec { priority: 5, ..count() }, &input), 4);
    assert_eq!(chains(&JobSpec { priority: 10, ..count() }, &input), 8);
    let reason = plan(&count(), &input).unwrap().choice;
    assert_eq!((reason.reason, reason.hot), (ChoiceReason::Hot, 8));
    // One node that takes longer than all others together: more than two chains would be of no use.
    let mut uneven = cluster(8);
    uneven.nodes[0].keys = 10_000_000;
    assert_eq!(chains(&count(), &uneven), 2);
}

#[test]
fn the_timeout_is_derived() {
    let input = cluster(4);
    let one = plan(&JobSpec { chains: Some(1), ..count() }, &input).unwrap();
    // Four nodes with a limit of 10 s each and four times the expected 250 ms, three hand-offs, a tenth, a second.
    let per_node = 10_000 + 4 * one.chains[0].hops[0].micros / 1_000;
    let expected = (per_node * 4 + 3 * 1_200 / 1_000) as f64 * 1.1 + 1_000.0;
    assert!((one.timeout_millis as f64 - expected).abs() <= 2.0, "{} {expected}", one.timeout_millis);
    let fan = plan(&JobSpec { chains: Some(4), ..count() }, &input).unwrap();
    assert!(fan.timeout_millis < one.timeout_millis / 3);
}

#[test]
fn a_state_names_only_the_nodes_of_its_chain() {
    let input = cluster(5);
    let job = Arc::new(JobSpec { chains: Some(2), ..count() });
    let planned = plan(&job, &PlanInput { epoch: 7, ..input }).unwrap();
    let states = planned.states(&job, &Sequence::default(), &Value::Nil);
    let mut open = SlotSet::full();
    for (number, state) in states.iter().enumerate() {
        assert_eq!((usize::from(state.chain), state.epoch, state.position), (number, 7, 0));
        assert_eq!(state.nodes.len(), state.route.len());
        for (hop, planned_hop) in state.route.iter().zip(&planned.chains[number].hops) {
            assert_eq!(state.nodes[usize::from(hop.node)], planned.nodes[usize::from(planned_hop.hop.node)]);
            open.subtract(&hop.slots);
        }
    }
    assert!(open.is_empty());
}

#[test]
fn a_plan_can_be_read() {
    let mut input = cluster(2);
    input.nodes[0].place = place("a", "1");
    input.nodes[1].place = place("b", "1");
    input.nodes[1].load.cpu = 0.5;
    input.coordinator = place("a", "1");
    let text = plan(&JobSpec { chains: Some(1), ..count() }, &input).unwrap().explain().to_string();
    let expected = "\
plan 1: 1 chain, as the job asks
order: the shortest of all orders
expected: 200000 keys in 756ms 400us, 4611 bytes moved, at most 2ms per call; given up after 27s 406ms
chain  hop  node  agent  slots        keys    cost          ms  why
    0    0  r0:1  a0:1    8192      100000    1.00       250.5  same rack as the coordinator
    0    1  r1:1  a1:1    8192      100000   12.00       500.5  other zone, load +2.00
";
    assert_eq!(text, expected);
}

#[test]
fn load_of_any_kind_costs() {
    let base = Load { cpu: 0.2, memory: 0.2, connections: 0.2, ops_per_sec: 10.0, queue: 1 };
    let more = [
        Load { cpu: 0.3, ..base },
        Load { memory: 0.3, ..base },
        Load { connections: 0.3, ..base },
        Load { ops_per_sec: 20.0, ..base },
        Load { queue: 2, ..base },
    ];
    assert!(more.iter().all(|load| load.penalty() > base.penalty()));
    let broken = Load { cpu: f64::NAN, memory: -1.0, connections: f64::INFINITY, ..Load::default() };
    assert_eq!((broken.penalty(), broken.pressure()), (0.0, 0.0));
}

fn input(nodes: std::ops::Range<u16>) -> impl Strategy<Value = PlanInput> {
    (nodes, any::<u64>(), any::<bool>(), 0..3u8).prop_map(|(nodes, seed, measured, agents)| {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut input = cluster(nodes);
        let mut place = || Place {
            zone: (rng.u8(..9) > 0).then(|| format!("z{}", rng.u8(..3))),
            rack: (rng.u8(..9) > 0).then(|| format!("r{}", rng.u8(..4))),
        };
        input.coordinator = place();
        input.nodes.iter_mut().for_each(|node| node.place = place());
        for node in &mut input.nodes {
            node.load = Load { cpu: rng.f64(), queue: rng.u32(..4), ..Load::default() };
            node.keys = rng.u64(..2_000_000);
            // Usually all have an agent, sometimes few, sometimes none.
            if agents == 0 || agents == 1 && rng.bool() {
                node.node.agent = None;
            }
        }
        if measured {
            for from in 0..nodes {
                for to in from + 1..nodes {
                    if rng.u8(..4) > 0 {
                        input.links.push(Link { from: Some(from), to, micros: rng.u32(20..3_000) });
                    }
                }
            }
        }
        input.open = (0..SLOTS).filter(|_| rng.u8(..16) == 0).collect();
        input
    })
}

fn permutations(rest: &mut Vec<usize>, fixed: usize, visit: &mut impl FnMut(&[usize])) {
    if fixed == rest.len() {
        return visit(rest);
    }
    for place in fixed..rest.len() {
        rest.swap(fixed, place);
        permutations(rest, fixed + 1, visit);
        rest.swap(fixed, place);
    }
}

fn costs(input: &PlanInput) -> cost::Costs {
    cost::Costs::new(input, &vec![Drive::Beside; input.nodes.len()])
}

fn in_order(nodes: &[usize], order: &[usize]) -> Vec<usize> {
    order.iter().map(|place| nodes[*place]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn up_to_eight_nodes_no_order_is_shorter(input in input(1..9)) {
        let costs = costs(&input);
        let mut nodes: Vec<usize> = (0..input.nodes.len()).collect();
        let found = length(&costs, &in_order(&nodes, &order::shortest(&costs, &nodes).0));
        let mut best = f64::INFINITY;
        permutations(&mut nodes, 0, &mut |order| best = best.min(length(&costs, order)));
        prop_assert!((found - best).abs() < 1e-4, "{found} instead of {best}");
    }

    #[test]
    fn no_order_is_longer_than_the_nearest_neighbours(input in input(1..70)) {
        let costs = costs(&input);
        let nodes: Vec<usize> = (0..input.nodes.len()).collect();
        let found = order::shortest(&costs, &nodes).0;
        let nearest = length(&costs, &in_order(&nodes, &nearest(&costs, &nodes)));
        let length = length(&costs, &in_order(&nodes, &found));
        prop_assert!(length <= nearest + 1e-4, "{length} instead of {nearest}");
        let mut visited = found;
        visited.sort_unstable();
        prop_assert_eq!(visited, nodes);
    }

    #[test]
    fn the_heuristic_is_between_the_best_and_the_nearest_neighbour(input in input(9..13)) {
        let costs = costs(&input);
        let nodes: Vec<usize> = (0..input.nodes.len()).collect();
        let best = length(&costs, &in_order(&nodes, &order::shortest(&costs, &nodes).0));
        let near = in_order(&nodes, &nearest(&costs, &nodes));
        let improved = length(&costs, &in_order(&near, &order::polish(&costs, &near)));
        prop_assert!(improved >= best - 1e-4);
        prop_assert!(improved <= length(&costs, &near) + 1e-4);
    }

    #[test]
    fn every_open_slot_is_in_one_hop_at_its_owner_and_every_needed_node_in_one_chain(
        input in input(1..40), chains in proptest::option::of(1..50u16), priority in 0..11u8,
    ) {
        let job = JobSpec { chains, priority, ..count() };
        let plan = plan(&job, &input).unwrap();
        let routes = routes(&plan);
        let mut open = input.open.clone();
        for (route, chain) in routes.iter().zip(&plan.chains) {
            prop_assert!(!route.is_empty());
            for (node, hop) in route.iter().zip(&chain.hops) {
                let slots = &hop.hop.slots;
                prop_assert_eq!(slots, &input.open.intersection(&input.nodes[*node].slots));
                prop_assert!(!slots.is_empty());
                open.subtract(slots);
            }
        }
        prop_assert!(open.is_empty());
        let mut visited = routes.concat();
        visited.sort_unstable();
        visited.dedup();
        prop_assert_eq!(visited.len(), routes.concat().len());
        let needed = visited.len();
        let hot = visited.iter().filter(|node| input.nodes[**node].load.pressure() > input.watermark).count();
        prop_assert!(plan.chains.len() <= needed);
        match chains {
            Some(chains) => prop_assert_eq!(plan.chains.len(), needed.min(chains.into())),
            None => prop_assert!(plan.chains.len() <= plan.choice.at_most),
        }
        prop_assert!(plan.choice.at_most >= (needed - hot).max(1));
        // Balanced: no chain takes longer than the mean, one more hop and the ways.
        let runs: Vec<u64> = plan.chains.iter().map(|chain| chain.hops.iter().map(|hop| hop.micros).sum()).collect();
        let longest_hop = plan.chains.iter().flat_map(|chain| &chain.hops).map(|hop| hop.micros).max().unwrap_or(0);
        let ways = 5_000 * needed as u64;
        let mean = runs.iter().sum::<u64>() / runs.len().max(1) as u64;
        prop_assert!(runs.iter().all(|run| *run <= mean + longest_hop + ways), "{runs:?}");
        prop_assert!(plan.explain().rows.len() == needed);
    }

    #[test]
    fn a_cut_is_even_and_leaves_nothing_out(
        weights in proptest::collection::vec(0..1_000u64, 1..60), pieces in 1..60usize,
    ) {
        let pieces = pieces.min(weights.len());
        let cut = chains::cut(&weights, pieces);
        prop_assert_eq!(cut.len(), pieces);
        prop_assert_eq!(cut.iter().cloned().flatten().collect::<Vec<_>>(), (0..weights.len()).collect::<Vec<_>>());
        prop_assert!(cut.iter().all(|piece| !piece.is_empty()));
        let heaviest = cut.into_iter().map(|piece| weights[piece].iter().sum::<u64>()).max().unwrap();
        // The best possible, by trying every limit.
        let needed = |limit: u64| {
            let (mut count, mut sum) = (1, 0);
            for weight in &weights {
                if sum + weight > limit {
                    (count, sum) = (count + 1, 0);
                }
                sum += weight;
            }
            count
        };
        let largest = *weights.iter().max().unwrap();
        let best = (largest..).find(|limit| needed(*limit) <= pieces).unwrap();
        prop_assert_eq!(heaviest, best);
    }
}
