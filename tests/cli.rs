//! `skald` as a person or a script meets it: words, exit codes, streams.

mod support;

use std::time::Duration;

use serde_json::Value;
use support::{Finished, Process, RedisCluster, RedisServer, Version, free_port};

const SOON: Duration = Duration::from_secs(30);

fn skald(arguments: &[&str]) -> Finished {
    Process::run(SOON, arguments)
}

#[test]
fn usage_errors_end_with_2_and_help_with_0() {
    for arguments in [&["nothing"][..], &["task"], &["task", "list", "--page", "0"], &["task", "update", "x"]]
    {
        let ended = skald(arguments);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{arguments:?}: {}", ended.stderr);
        assert!(!ended.stderr.is_empty(), "{arguments:?}");
    }
    let help = skald(&["--help"]);
    assert_eq!((help.code, help.stderr.as_str()), (Some(0), ""));
    assert!(help.stdout.contains("Exit codes"));
    assert_eq!(skald(&["--version"]).stdout, format!("skald {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn completions_are_printed_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ended = skald(&["completions", shell]);
        assert!(ended.code == Some(0) && ended.stdout.contains("doctor"), "{shell}");
    }
}

#[test]
fn a_controller_that_is_away_is_named_without_its_password() {
    let url = format!("http://ann:hunter2@127.0.0.1:{}", free_port());
    let ended = skald(&["task", "list", "--api", &url]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""));
    assert!(
        ended.stderr.contains("cannot reach the controller at http://ann:***@127.0.0.1"),
        "{}",
        ended.stderr
    );
    assert!(!ended.stderr.contains("hunter2"));
}

#[test]
fn the_doctor_describes_a_cluster() {
    let cluster = RedisCluster::start(Version::V8, 3, 0);
    cluster.load((0..30).map(|n| vec![b"SET".to_vec(), format!("key:{n}").into(), b"1".to_vec()]));
    let ended = skald(&["doctor", "--json", "--redis", &cluster.url()]);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(report["ok"], true);
    let said: Vec<&str> = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| finding["said"].as_str().unwrap())
        .collect();
    assert!(said.contains(&"a cluster of 3 primaries, 30 keys"), "{said:?}");
    assert_eq!(said.iter().filter(|said| said.contains("redis 8.2.3")).count(), 3, "{said:?}");
}

#[test]
fn the_doctor_says_what_an_old_version_lacks_and_what_a_password_is_for() {
    let server = RedisServer::start(Version::V7_0, &["--requirepass", "hunter2"]);
    let ended = skald(&["doctor", "--redis", &server.url()]);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.contains("no TTL per hash field"), "{}", ended.stdout);

    let ended = skald(&["doctor", "--redis", &server.address()]);
    assert_eq!(ended.code, Some(1), "{}", ended.stdout);
    assert!(ended.stdout.contains("NOAUTH"), "{}", ended.stdout);

    let file = server.folder().join("password");
    std::fs::write(&file, "hunter2\n").unwrap();
    let ended = skald(&["doctor", "--redis", &server.address(), "--password-file", file.to_str().unwrap()]);
    assert_eq!(ended.code, Some(0), "{}", ended.stdout);
    assert!(!format!("{}{}", ended.stdout, ended.stderr).contains("hunter2"));
}

#[test]
fn a_bad_variable_is_named_by_the_doctor() {
    let nobody = format!("redis://127.0.0.1:{}", free_port());
    let ended =
        Process::skald_with(&["doctor", "--redis", &nobody], &[("REDIS_SYNC_PERIOD", "often")]).wait(SOON);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stdout.contains("REDIS_SYNC_PERIOD is \"often\""), "{}", ended.stdout);
    assert!(ended.stdout.contains("failed  redis"), "{}", ended.stdout);
}
