//! The connection to one server: made when needed, given up when it breaks, never waited for without an end.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionInfo, Pipeline, Value};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use super::failure::Failure;
use super::field_ttl::FieldTtl;
use super::url;

/// After a failed attempt to connect, calls fail at once for this long; doubled up to [`MAX_PAUSE`].
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// One server. Its connection is shared by all callers: their commands are sent as they come, one behind the other.
pub(super) struct Link {
    address: String,
    info: ConnectionInfo,
    connect_timeout: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    session: Option<Session>,
    /// Counts sessions, so that a caller that saw an old one break does not end its successor.
    generation: u64,
    failed: Option<(Failure, Instant)>,
    pause: Duration,
}

/// A connection that stands, and what its server can do.
#[derive(Clone)]
struct Session {
    connection: MultiplexedConnection,
    field_ttl: FieldTtl,
    generation: u64,
}

impl Link {
    pub(super) fn new(info: ConnectionInfo, connect_timeout: Duration) -> Self {
        Link { address: url::address(&info), info, connect_timeout, state: Mutex::default() }
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn info(&self) -> &ConnectionInfo {
        &self.info
    }

    /// Sends commands as one pipeline; the answers come in their order, errors of single commands among them.
    /// `commands` is told what the server can do.
    pub(super) async fn send(
        &self,
        deadline: Instant,
        commands: impl FnOnce(&FieldTtl) -> Vec<Cmd>,
    ) -> Result<Vec<Value>, Failure> {
        let mut session = self.session(deadline).await?;
        let mut pipeline = Pipeline::new();
        for command in commands(&session.field_ttl) {
            pipeline.add_command(command);
        }
        let count = pipeline.len();
        let answered =
            timeout_at(deadline, session.connection.send_packed_commands(&pipeline, 0, count)).await;
        let failure = match answered {
            Ok(Ok(answers)) if answers.len() == count => return Ok(answers),
            Ok(Ok(answers)) => Failure::Lost(format!("{} answers came to {count} commands", answers.len())),
            Ok(Err(error)) => Failure::Lost(error.to_string()),
            Err(_) => Failure::Late("no answer in time".into()),
        };
        // Late too: the peer may be gone without a word. Who still waits on the old connection keeps it.
        self.give_up(session.generation).await;
        Err(failure)
    }

    pub(super) async fn field_ttl(&self, deadline: Instant) -> Result<FieldTtl, Failure> {
        Ok(self.session(deadline).await?.field_ttl)
    }

    async fn give_up(&self, generation: u64) {
        let mut state = self.state.lock().await;
        if state.generation == generation {
            state.session = None;
        }
    }

    /// The session that stands, or a new one. Callers that come meanwhile wait for the same attempt.
    async fn session(&self, deadline: Instant) -> Result<Session, Failure> {
        let locked = timeout_at(deadline, self.state.lock()).await;
        let Ok(mut state) = locked else {
            return Err(Failure::NotConnected("no connection in time".into()));
        };
        if let Some(session) = &state.session {
            return Ok(session.clone());
        }
        if let Some((failure, until)) = &state.failed
            && Instant::now() < *until
        {
            return Err(failure.clone());
        }
        let deadline = deadline.min(Instant::now() + self.connect_timeout);
        let connected = timeout_at(deadline, self.connect()).await;
        let failure = match connected {
            Ok(Ok((connection, field_ttl))) => {
                state.generation += 1;
                state.failed = None;
                state.pause = Duration::ZERO;
                let session = Session { connection, field_ttl, generation: state.generation };
                state.session = Some(session.clone());
                return Ok(session);
            }
            Ok(Err(error)) => Failure::connecting(&error),
            Err(_) => Failure::NotConnected("it did not accept the connection in time".into()),
        };
        state.pause = (state.pause * 2).clamp(MIN_PAUSE, MAX_PAUSE);
        state.failed = Some((failure.clone(), Instant::now() + state.pause));
        Err(failure)
    }

    async fn connect(&self) -> redis::RedisResult<(MultiplexedConnection, FieldTtl)> {
        // The time limits are ours, above: the client's own would end calls that may take longer.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let client = Client::open(self.info.clone())?;
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let field_ttl = FieldTtl::probe(&mut connection).await?;
        Ok((connection, field_ttl))
    }
}
