//! What goes wrong is said with its key, line, node and reason.

use skalds::chain::job::{Access, Builtin, Combine, JobSpec, OnError, Step, Target};
use skalds::chain::slots::SlotSet;
use skalds::chain::value::Value;
use skalds::node::{NativeJobs, RedisAccess, StepRunner, check, discover};

use crate::drive::*;
use crate::support::{RedisCluster, RedisServer, Version};

fn places() -> impl Iterator<Item = Place> {
    Place::each(&[Version::V8, Version::V7_0], &[Version::Valkey9])
}

#[test]
fn a_value_of_the_wrong_type_is_that_keys_error() {
    for place in places() {
        place.load(orders(600));
        place.load([
            command(&[b"SET", b"order:text", b"1"]),
            command(&[b"HSET", b"order:odd", b"total", b"12x"]),
        ]);
        runtime().block_on(async {
            for (step, reason) in [
                (Builtin::CountBy { field: "status".into() }, "WRONGTYPE"),
                (Builtin::Sum { field: "total".into() }, "WRONGTYPE"),
            ] {
                let sums = matches!(step, Builtin::Sum { .. });
                let mut job = builtin(pattern("order:*"), step);
                job.on_error = OnError::Skip;
                let state = run(&place, job.clone()).await;
                assert!(state.failed.is_none());
                assert_eq!((state.tally.matched, state.tally.errors), (602, if sums { 2 } else { 1 }));
                let error = state.errors.iter().find(|error| error.key == b"order:text").unwrap();
                assert!(error.reason.starts_with(reason), "{}", error.reason);
                assert_eq!(error.node, place.owner_of(b"order:text").address());
                if sums {
                    assert_eq!(result(&state), Value::Int(179_700));
                    let odd = state.errors.iter().find(|error| error.key == b"order:odd").unwrap();
                    assert_eq!(odd.reason, "the field total holds no number: 12x");
                } else {
                    assert_eq!(result(&state), map(&[("", 1), ("new", 200), ("paid", 200), ("sent", 200)]));
                }
                job.on_error = OnError::Stop;
                let state = run(&place, job).await;
                let failed = state.failed.clone().unwrap();
                assert!(failed.key == b"order:text" || failed.key == b"order:odd");
                assert!(state.due_node().is_none() && state.ledger().len() < 16_384);
            }
        });
    }
}

#[test]
fn a_script_error_names_key_and_line() {
    let each = |body: &str| format!("#!lua name=mine\n-- mine\nfunction each(key, acc)\n  {body}\nend");
    for place in places() {
        place.load(strings("user:", 50));
        runtime().block_on(async {
            for (body, said) in [
                ("return key.x.y", "line 4: attempt to index field 'x' (a nil value)"),
                ("return redis.call('HGET', key, 'f')", "line 4: WRONGTYPE"),
                ("error('mine')", "line 4: mine"),
                ("helper = 1", "line 4: Attempt to modify a readonly table"),
                (
                    "return nothing(key)",
                    "line 4: Script attempted to access nonexistent global variable 'nothing'",
                ),
            ] {
                let mut job = lua(pattern("user:*"), &each(body), Access::Read);
                let state = run(&place, job.clone()).await;
                let failed = state.failed.unwrap();
                assert!(failed.key.starts_with(b"user:"));
                assert!(failed.reason.starts_with(said), "{body}: {}", failed.reason);
                job.on_error = OnError::Skip;
                let state = run(&place, job).await;
                assert_eq!((state.tally.errors, state.errors.len()), (50, 20), "{body}");
            }
        });
    }
}

#[test]
fn a_script_is_checked_before_it_runs() {
    for place in places() {
        let node = place.seeds()[0].clone();
        let natives = NativeJobs::new();
        let access = RedisAccess::default();
        let each = "function each(key, acc) return 1 end\n";
        let walk = Target::Walk(b"a".to_vec());
        runtime().block_on(async {
            for (text, target, combine, said) in [
                (
                    "function each(key, acc)\n  return acc +\nend",
                    pattern("*"),
                    Combine::Sum,
                    "line 3: unexpected symbol",
                ),
                (
                    "#!lua\nfunction each(key, acc)\n  return 1\n",
                    pattern("*"),
                    Combine::Sum,
                    "line 4: 'end' expected",
                ),
                ("local x = 1", pattern("*"), Combine::Sum, "defines no function each(key, acc)"),
                (each, pattern("*"), Combine::Merge, "defines no function merge(a, b)"),
                (each, walk, Combine::Sum, "defines no function next(key, acc)"),
                (
                    "\n\nlocal x = nil .. 'a'",
                    pattern("*"),
                    Combine::Sum,
                    "line 3: attempt to concatenate a nil value",
                ),
                ("function each() end return 1", pattern("*"), Combine::Sum, "must not end with a return"),
            ] {
                let mut job = lua(target, text, Access::Read);
                job.combine = combine;
                let error = check(&node, &job, &access, &natives).await.unwrap_err();
                assert!(!error.is_transient());
                assert!(error.to_string().contains(said), "{text:?}: {error}");
            }
            for text in [each, "#!lua flags=no-writes\nlocal function each(key) return #key end"] {
                check(&node, &lua(pattern("*"), text, Access::Read), &access, &natives).await.unwrap();
            }
            let native =
                JobSpec::new("n", pattern("*"), Step::Native("mine".into()), Combine::Sum, Access::Read);
            let error = check(&node, &native, &access, &natives).await.unwrap_err().to_string();
            assert!(error.contains("\"mine\""), "{error}");
        });
    }
}

#[test]
fn merge_and_finish_are_the_jobs_own() {
    let text = "
        local function each(key, acc) return {n = (acc and acc.n or 0) + 1, f = 0.5} end
        local function merge(a, b) return {n = a.n + b.n, f = a.f} end
        local function finish(acc) return {n = acc.n, f = acc.f, args = args} end";
    for place in places() {
        place.load(strings("user:", 2_000));
        runtime().block_on(async {
            let mut job = lua(pattern("user:*"), text, Access::Read);
            job.combine = Combine::Merge;
            job.args.insert("unit".into(), "keys\0".into());
            let state = run(&place, job).await;
            let node = state.nodes[0].clone();
            let mut runner = StepRunner::open(&node, &state.job, &RedisAccess::default(), &NativeJobs::new())
                .await
                .unwrap();
            let mut acc = state.acc.clone();
            for part in state.parts {
                acc = runner.merge(acc, part.acc).await.unwrap();
            }
            let Value::Map(done) = runner.finish(acc).await.unwrap() else { panic!("no table") };
            assert_eq!(done[&b"n"[..]], Value::Int(2_000));
            assert_eq!(done[&b"f"[..]], Value::Float(0.5));
            let Value::Map(args) = &done[&b"args"[..]] else { panic!("no table") };
            assert_eq!(args[&b"unit"[..]], Value::Bytes(b"keys\0".to_vec()));
            let error = runner.merge(Value::Int(1), Value::Int(2)).await.unwrap_err().to_string();
            assert!(error.contains("merge failed: line 3: attempt to index local 'a'"), "{error}");
        });
    }
}

#[test]
fn a_wrong_password_names_the_node_and_not_the_password() {
    let server = RedisServer::start(Version::V8, &["--requirepass", "right"]);
    runtime().block_on(async {
        for url in [format!("redis://:wrong@{}", server.address()), format!("redis://{}", server.address())] {
            let (access, seeds) = RedisAccess::from_urls(&[url]).unwrap();
            let error = discover(&seeds, &access).await.unwrap_err();
            let text = error.to_string();
            assert!(!error.is_transient() && text.contains(&server.address()), "{text}");
            assert!(
                text.contains("password") && !text.contains("wrong@") && !text.contains(":wrong"),
                "{text}"
            );
        }
        let (access, seeds) = RedisAccess::from_urls(&[server.url()]).unwrap();
        let view = discover(&seeds, &access).await.unwrap();
        assert_eq!((view.cluster, view.nodes[0].slots.len()), (false, 16_384));
    });
}

#[test]
fn a_node_that_is_gone_or_hangs_is_named() {
    let mut cluster = RedisCluster::start(Version::V8, 3, 0);
    let access =
        RedisAccess { connect_timeout: std::time::Duration::from_millis(300), ..RedisAccess::default() };
    let seeds: Vec<String> = cluster.nodes.iter().map(RedisServer::address).collect();
    runtime().block_on(async {
        cluster.nodes[1].freeze();
        let error = discover(&seeds, &access).await.unwrap_err();
        assert!(error.is_transient() && error.to_string().contains(&seeds[1]), "{error}");
        cluster.nodes[1].thaw();
        cluster.nodes[2].kill_hard();
        let error = discover(&seeds, &access).await.unwrap_err();
        assert!(error.is_transient() && error.to_string().contains(&seeds[2]), "{error}");
        let error = discover(&seeds[2..], &access).await.unwrap_err();
        assert!(error.is_transient() && error.to_string().contains("no redis answered"), "{error}");
    });
}

#[test]
fn slots_without_an_owner_are_listed() {
    let cluster = RedisCluster::start(Version::V8, 3, 0);
    let owner = &cluster.nodes[cluster.owners()[100]];
    owner.query::<()>(&["CLUSTER", "DELSLOTS", "100", "101"]);
    runtime().block_on(async {
        let view = discover(&[owner.address()], &RedisAccess::default()).await.unwrap();
        assert_eq!(view.uncovered, SlotSet::range(100, 101));
        assert_eq!(view.nodes.len(), 3);
        assert!(view.owner(100).is_none() && view.owner(102).is_some());
    });
}

#[test]
fn a_user_without_permission_fails_the_job_and_no_key() {
    for place in Place::each(&[Version::V8, Version::V7_0], &[]) {
        place.load(orders(300));
        let rights = ["ACL", "SETUSER", "limited", "on", ">pw", "~order:*", "~skalds:*", "+@all", "-hget"];
        for server in place.servers() {
            server.query::<()>(&rights);
        }
        runtime().block_on(async {
            let view = view(&place).await;
            let access = RedisAccess {
                username: Some("limited".into()),
                password: Some(skalds::config::secret::Secret::new("pw")),
                ..RedisAccess::default()
            };
            let mut job = builtin(pattern("order:*"), Builtin::CountBy { field: "status".into() });
            job.on_error = OnError::Skip;
            let mut state = chain(job, &view, &SlotSet::empty());
            let node = state.due_node().cloned().unwrap();
            let mut runner = StepRunner::open(&node, &state.job, &access, &NativeJobs::new()).await.unwrap();
            let error = loop {
                if let Err(error) = runner.advance(&mut state).await {
                    break error;
                }
            };
            assert!(!error.is_transient() && error.to_string().contains(&node.redis), "{error}");
            assert!(error.to_string().contains("permissions"), "{error}");
            assert_eq!(state.tally.matched, 0);
        });
    }
}

#[test]
fn agents_are_found_by_the_name_of_their_connection() {
    let cluster = RedisCluster::start(Version::V8, 3, 1);
    let mut connection = cluster.nodes[1].connection();
    redis::cmd("CLIENT")
        .arg("SETNAME")
        .arg("skald-agent:10.0.0.7:7600;zone=eu-1a;rack=r7")
        .exec(&mut connection)
        .unwrap();
    runtime().block_on(async {
        let view = discover(&[cluster.nodes[0].address()], &RedisAccess::default()).await.unwrap();
        assert!(view.cluster && view.uncovered.is_empty() && view.unreachable.is_empty());
        assert_eq!(view.nodes.len(), 3);
        for node in &view.nodes {
            let own = node.redis == cluster.nodes[1].address();
            assert_eq!(node.agent.as_deref(), own.then_some("10.0.0.7:7600"));
            assert_eq!(node.zone.as_deref(), own.then_some("eu-1a"));
            assert_eq!(node.rack.as_deref(), own.then_some("r7"));
            assert_eq!((node.flavour.as_str(), node.version.as_str()), ("redis", "8.2.3"));
            assert_eq!(node.replicas.len(), 1);
            assert!(node.ping_micros > 0 && node.memory_bytes > 0 && node.clients > 0);
        }
        // A replica is as good a seed.
        let again = discover(&[cluster.nodes[3].address()], &RedisAccess::default()).await.unwrap();
        assert_eq!(again.nodes.len(), 3);
    });
}
