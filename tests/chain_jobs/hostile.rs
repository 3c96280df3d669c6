//! Peers that do not speak the protocol: an agent closes the connection and goes on.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::agents::Agents;
use crate::{finished, three_masters, words};

#[test]
fn an_agent_survives_bytes_that_are_no_frames() {
    let cluster = three_masters();
    cluster.load([words(&["SET", "key", "x"])]);
    let mut agents = Agents::beside(&cluster);
    let mut seed = 7u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as u8
    };
    let noise: Vec<u8> = (0..4_096).map(|_| random()).collect();
    let four_gib = [&b"SKLD\x01\x02\x00\x01"[..], &u32::MAX.to_le_bytes(), &[0; 4]].concat();
    let http = b"GET / HTTP/1.1\r\nHost: agent\r\n\r\n".to_vec();
    for attack in [noise, four_gib, http, b"SKLD".to_vec()] {
        let mut stream = TcpStream::connect(&agents.all[0].address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // The agent may close before all of it is written.
        let _ = stream.write_all(&attack);
        let mut answer = Vec::new();
        // What it says (its own hello at most) ends: it has closed the connection, with or without a reset.
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.len() < 4_096, "{} bytes of answer", answer.len());
        assert!(agents.all[0].process.is_running());
    }
    let report = finished(&cluster.url(), &["count", "--match", "*", "--agents", "require"]);
    assert_eq!(report["result"], 1);
}
