//! A `skald` of one's own, with a chain job written in Rust.

use serde_json::json;

use crate::support::{Process, wait_until};
use crate::{PATIENCE, agents, orders, report, run, three_masters, words};

#[test]
fn a_rust_job_runs_over_agents_that_know_it_and_is_named_where_nobody_does() {
    let cluster = three_masters();
    let (commands, _) = orders(300);
    cluster.load(commands);
    cluster.load((0..200).map(|number| words(&["SET", &format!("user:{number}"), "x"])));
    let (url, data) = (cluster.url(), tempfile::tempdir().unwrap());
    let agents: Vec<Process> = (cluster.masters().iter().enumerate())
        .map(|(number, node)| {
            let data = data.path().join(number.to_string()).display().to_string();
            let mut agent =
                Process::example("own_skald", &["agent", "--redis", &node.url(), "--data", &data], &[]);
            let address = agent.ready_value(PATIENCE, "listen");
            wait_until(PATIENCE, "the agent is known", || agents::knows(node, &address));
            agent
        })
        .collect();
    let job = ["--native", "types", "--match", "*", "--combine", "sum", "--agents", "require"];
    let asked = [&["job", "run", "--redis", &url, "--json"], &job[..]].concat();
    let ended = Process::example("own_skald", &asked, &[]).wait(PATIENCE);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(report(&ended)["result"], json!({"hash": 300, "string": 200}));

    // The plain `skald` does not have it.
    let refused = run(&url, &job);
    assert_eq!(refused.code, Some(1));
    let error = report(&refused)["error"].as_str().unwrap().to_owned();
    assert!(error.contains("no native job \"types\"") && error.contains("own_skald"), "{error}");
    drop(agents);
}
