//! One connection to one node: every call has a time limit and an error that names the node.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError};

use super::access::RedisAccess;
use super::error::{NodeError, words};

/// A connection that knows whose it is.
#[derive(Clone)]
pub(crate) struct NodeConnection {
    /// `host:port`.
    pub(crate) address: String,
    connection: MultiplexedConnection,
    pub(crate) call_timeout: Duration,
}

/// What a call found that was answered: the server's answer, or its error reply.
pub(crate) type Answer = Result<redis::Value, RedisError>;

impl NodeConnection {
    pub(crate) async fn open(address: &str, access: &RedisAccess) -> Result<Self, NodeError> {
        let connection = access.connect(address).await?;
        Ok(NodeConnection { address: address.to_owned(), connection, call_timeout: access.call_timeout })
    }

    /// Sends one command; `action` completes "redis at … refused to …".
    pub(crate) async fn call(&self, command: &Cmd, action: &str) -> Result<redis::Value, NodeError> {
        self.answer(command, action, self.call_timeout)
            .await?
            .map_err(|error| NodeError::from_redis(&self.address, action, &error))
    }

    /// As [`NodeConnection::call`], with the server's refusal left to the caller and a time limit of its own.
    pub(crate) async fn answer(
        &self,
        command: &Cmd,
        action: &str,
        limit: Duration,
    ) -> Result<Answer, NodeError> {
        let mut connection = self.connection.clone();
        match tokio::time::timeout(limit, connection.send_packed_command(command)).await {
            Ok(Err(error)) if error.code().is_none() => Err(NodeError::Lost {
                node: self.address.clone(),
                action: action.to_owned(),
                reason: words(&error),
            }),
            // Error replies inside an answer are not raised by the library at this level.
            Ok(Ok(redis::Value::ServerError(error))) => Ok(Err(error.into())),
            Ok(answer) => Ok(answer),
            Err(_) => Err(NodeError::lost(&self.address, action, limit)),
        }
    }

    /// Sends many commands in one write; one answer each.
    pub(crate) async fn answers(
        &self,
        commands: &redis::Pipeline,
        count: usize,
        action: &str,
    ) -> Result<Vec<redis::Value>, NodeError> {
        let mut connection = self.connection.clone();
        match tokio::time::timeout(self.call_timeout, connection.send_packed_commands(commands, 0, count))
            .await
        {
            Ok(answers) => answers.map_err(|error| NodeError::from_redis(&self.address, action, &error)),
            Err(_) => Err(NodeError::lost(&self.address, action, self.call_timeout)),
        }
    }

    /// The best of three round trips.
    pub(crate) async fn round_trip(&self) -> Result<Duration, NodeError> {
        let mut best = Duration::MAX;
        for _ in 0..3 {
            let start = Instant::now();
            self.call(&redis::cmd("PING"), "ping").await?;
            best = best.min(start.elapsed());
        }
        Ok(best)
    }

    /// An answer as text.
    pub(crate) async fn text(&self, command: &Cmd, action: &str) -> Result<String, NodeError> {
        let answer = self.call(command, action).await?;
        text_of(&answer)
            .ok_or_else(|| NodeError::unreadable(&self.address, action, format!("not a text: {answer:?}")))
    }
}

/// A string answer.
pub(crate) fn text_of(value: &redis::Value) -> Option<String> {
    match value {
        redis::Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        redis::Value::SimpleString(text) => Some(text.clone()),
        redis::Value::VerbatimString { text, .. } => Some(text.clone()),
        _ => None,
    }
}
