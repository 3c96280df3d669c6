//! Fills a Redis, cluster or not, with data that a chain job can be tried on, and says what it holds.
//!
//! ```text
//! cargo run --example load_orders -- redis://127.0.0.1:7000 [ORDERS]
//! ```
//!
//! ORDERS (300,000 unless named) hashes `order:N` with a `status` and a `total`, and 20,000 other keys of every type.
//! What it has written goes to standard output as one JSON object: how many orders there are of each status, and the
//! sum of all totals.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use serde_json::json;
use skalds::chain::slots::slot_of;
use skalds::node::{RedisAccess, discover};

const STATUSES: [(&str, u64); 5] =
    [("paid", 40), ("shipped", 30), ("open", 20), ("cancelled", 8), ("refunded", 2)];
const OTHERS: u64 = 20_000;
/// Commands in flight on one connection.
const PIPELINE: usize = 1_000;

type Failure = Box<dyn Error + Send + Sync>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or("name a Redis: load_orders redis://host:port [ORDERS]")?;
    let orders: u64 = arguments.next().map_or(Ok(300_000), |text| text.parse())?;

    let urls: Vec<&str> = url.split(',').collect();
    let (access, seeds) = RedisAccess::from_urls(&urls)?;
    let view = discover(&seeds, &access).await?;
    let mut shares: Vec<Share> = view.nodes.iter().map(|node| Share::new(&node.redis)).collect();
    let owner_of =
        |key: &str| view.nodes.iter().position(|node| node.slots.contains(slot_of(key.as_bytes())));

    let mut rng = fastrand::Rng::with_seed(7);
    let mut by_status: BTreeMap<&str, u64> = BTreeMap::new();
    let mut total_of_all = 0;
    for number in 0..orders {
        let (key, status, total) = (format!("order:{number}"), draw(&mut rng), rng.u64(1..500));
        *by_status.entry(status).or_default() += 1;
        total_of_all += total;
        let owner = owner_of(&key).ok_or("a slot has no owner")?;
        shares[owner].add(&["HSET", &key, "status", status, "total", &total.to_string()]);
    }
    for number in 0..OTHERS {
        let command = other(number);
        let owner = owner_of(&command[1]).ok_or("a slot has no owner")?;
        shares[owner].add(&command.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let sending: Vec<_> = shares.into_iter().map(|share| std::thread::spawn(|| share.send())).collect();
    for node in sending {
        node.join().map_err(|_| "a loading thread panicked")??;
    }
    println!("{}", json!({ "orders": orders, "status": by_status, "total": total_of_all, "others": OTHERS }));
    Ok(())
}

/// A status, by its weight.
fn draw(rng: &mut fastrand::Rng) -> &'static str {
    let mut ticket = rng.u64(0..STATUSES.iter().map(|(_, weight)| weight).sum());
    for (status, weight) in STATUSES {
        match ticket.checked_sub(weight) {
            Some(rest) => ticket = rest,
            None => return status,
        }
    }
    STATUSES[0].0
}

/// A key that is no order, of one type after the other.
fn other(number: u64) -> Vec<String> {
    let words = |text: String| text.split(' ').map(str::to_owned).collect();
    words(match number % 6 {
        0 => format!("SET session:{number} {number}"),
        1 => format!("RPUSH queue:{number} a b c"),
        2 => format!("SADD tags:{number} red green"),
        3 => format!("ZADD score:{number} 1 ann 2 bob"),
        4 => format!("HSET user:{number} name user-{number} visits {number}"),
        _ => format!("XADD events:{number} 1-1 kind click"),
    })
}

/// The commands for one node, as they go over the wire.
struct Share {
    address: String,
    batches: Vec<(Vec<u8>, usize)>,
}

impl Share {
    fn new(address: &str) -> Self {
        Share { address: address.to_owned(), batches: Vec::new() }
    }

    fn add(&mut self, command: &[&str]) {
        if self.batches.last().is_none_or(|(_, commands)| *commands == PIPELINE) {
            self.batches.push((Vec::new(), 0));
        }
        let Some((bytes, commands)) = self.batches.last_mut() else { return };
        bytes.extend_from_slice(format!("*{}\r\n", command.len()).as_bytes());
        for word in command {
            bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
        }
        *commands += 1;
    }

    fn send(self) -> Result<(), Failure> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_nodelay(true)?;
        let mut answers = BufReader::new(stream.try_clone()?).lines();
        for (bytes, commands) in self.batches {
            stream.write_all(&bytes)?;
            let mut left = commands;
            while left > 0 {
                let answer = answers.next().ok_or("the connection was closed")??;
                if answer.starts_with('-') {
                    return Err(format!("{} refused a command: {answer}", self.address).into());
                }
                // XADD answers in two lines, its length first.
                if !answer.starts_with('$') {
                    left -= 1;
                }
            }
        }
        Ok(())
    }
}
