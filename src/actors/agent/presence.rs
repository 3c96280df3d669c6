//! How coordinators find the agent: a connection to its node whose name says where it is.

use std::time::Duration;

use crate::node::{NodeError, RedisAccess};

/// How often the connection is looked after.
const EVERY: Duration = Duration::from_secs(1);

/// Keeps a connection of this name ([`Presence::to_name`](crate::node::Presence::to_name)) to the node at `redis` for as long as it is polled.
pub(super) async fn stay(access: RedisAccess, redis: String, name: String) {
    let mut said = None;
    loop {
        let Err(error) = stay_once(&access, &redis, &name).await;
        let error = error.to_string();
        // Once for each reason: a node that stays away would fill the log.
        if said.as_ref() != Some(&error) {
            tracing::warn!(node = %redis, %error, "cannot make this agent known at its node; coordinators do not find it");
            said = Some(error);
        }
        tokio::time::sleep(EVERY).await;
    }
}

async fn stay_once(
    access: &RedisAccess,
    redis: &str,
    name: &str,
) -> Result<std::convert::Infallible, NodeError> {
    let mut connection = access.connect(redis).await?;
    let mut set_name = redis::cmd("CLIENT");
    set_name.arg("SETNAME").arg(name);
    let failed = |action: &str, error: &redis::RedisError| NodeError::from_redis(redis, action, error);
    set_name.query_async::<()>(&mut connection).await.map_err(|error| failed("CLIENT SETNAME", &error))?;
    tracing::info!(node = %redis, %name, "known at its node");
    loop {
        tokio::time::sleep(EVERY).await;
        let ping = redis::cmd("PING");
        match tokio::time::timeout(access.call_timeout, ping.query_async::<()>(&mut connection)).await {
            Ok(answer) => answer.map_err(|error| failed("PING", &error))?,
            // Slow is not gone: the node still shows the connection's name.
            Err(_) => tracing::debug!(node = %redis, "the node answers no PING"),
        }
    }
}
