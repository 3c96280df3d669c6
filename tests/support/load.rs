//! Filling a server quickly: commands in pipelines over a plain socket.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use super::server::RedisServer;

/// A command with its arguments, as bytes.
pub type Command = Vec<Vec<u8>>;

/// Commands in flight at a time.
const PIPELINE: usize = 1_000;

/// Sends all commands and panics at the first error. For commands whose answer is one line (SET, HSET, RPUSH, …).
pub fn load(server: &RedisServer, commands: impl IntoIterator<Item = Command>) {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut answers = BufReader::new(stream.try_clone().unwrap());
    let mut answer = Vec::new();
    let mut commands = commands.into_iter().peekable();
    while commands.peek().is_some() {
        let mut bytes = Vec::new();
        let mut sent = 0;
        for command in commands.by_ref().take(PIPELINE) {
            encode(&command, &mut bytes);
            sent += 1;
        }
        stream.write_all(&bytes).unwrap();
        for _ in 0..sent {
            answer.clear();
            answers.read_until(b'\n', &mut answer).unwrap();
            let text = String::from_utf8_lossy(&answer);
            assert!(!answer.is_empty(), "{} closed the connection", server.address());
            assert!(!text.starts_with('-'), "{} refused a command: {text}", server.address());
            assert!(!text.starts_with(['$', '*']), "an answer of several lines cannot be read here: {text}");
        }
    }
}

/// The bytes of a command as RESP.
fn encode(command: &[Vec<u8>], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", command.len()).as_bytes());
    for argument in command {
        out.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        out.extend_from_slice(argument);
        out.extend_from_slice(b"\r\n");
    }
}
