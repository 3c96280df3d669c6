//! What a server can do for the time to live of hash fields.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisResult, Value};

/// How fields get their TTL on one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FieldTtl {
    /// `HSETEX`: Redis 8, Valkey 9.
    Hsetex,
    /// `HPEXPIRE`, in a script with `HSET`: Redis 7.4.
    Hpexpire,
    /// Neither: the ends stand in a key of ours. The server's name and version, for messages.
    Emulated(String),
}

/// What [`super::RedisCache::field_ttl_support`] says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldTtlSupport {
    /// The servers expire fields themselves.
    Native,
    /// It is emulated.
    Emulated {
        /// The first server without it: address, name and version.
        server: String,
        /// The commands it lacks.
        missing: String,
        /// What that means, and what to do.
        hint: String,
    },
}

impl FieldTtl {
    /// Asks a fresh connection. Not by the version: forks number their own, and a proxy may lack what the server
    /// behind it has. A command sent without its arguments does nothing and needs no permission; only the error
    /// differs between one that is unknown and one that is known.
    pub(super) async fn probe(connection: &mut MultiplexedConnection) -> RedisResult<FieldTtl> {
        let mut asked = Pipeline::new();
        for command in ["HSETEX", "HPEXPIRE", "HPTTL"] {
            asked.add_command(Cmd::new().arg(command).to_owned());
        }
        let answers = connection.send_packed_commands(&asked, 0, 3).await?;
        Ok(match answers.iter().map(is_known).collect::<Vec<_>>()[..] {
            [true, _, true] => FieldTtl::Hsetex,
            [false, true, true] => FieldTtl::Hpexpire,
            _ => FieldTtl::Emulated(version(connection).await?),
        })
    }

    pub(super) fn support(&self, address: &str) -> FieldTtlSupport {
        match self {
            FieldTtl::Hsetex | FieldTtl::Hpexpire => FieldTtlSupport::Native,
            FieldTtl::Emulated(version) => FieldTtlSupport::Emulated {
                server: format!("{address} ({version})"),
                missing: "HSETEX or HPEXPIRE".into(),
                hint: "fields expire by emulation, which other clients (a Python Skald among them) do not see; update \
                       to Redis 7.4 or newer, or Valkey 9"
                    .into(),
            },
        }
    }
}

fn is_known(answer: &Value) -> bool {
    match answer {
        Value::ServerError(error) => !super::failure::words(error).to_lowercase().contains("unknown command"),
        _ => true,
    }
}

/// `Redis 7.0.15`, as far as the user may ask for it.
async fn version(connection: &mut MultiplexedConnection) -> RedisResult<String> {
    let mut asked = Pipeline::new();
    asked.add_command(redis::cmd("INFO").arg("server").to_owned());
    let answers = connection.send_packed_commands(&asked, 0, 1).await?;
    let Some(Value::BulkString(info)) = answers.first() else { return Ok("of unknown version".into()) };
    let info = String::from_utf8_lossy(info);
    let value = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(match (value("valkey_version"), value("redis_version")) {
        (Some(version), _) => format!("Valkey {version}"),
        (None, Some(version)) => format!("Redis {version}"),
        (None, None) => "of unknown version".into(),
    })
}
