//! Channels: a connection of their own, made again when it breaks.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use redis::Client;
use redis::aio::{PubSubSink, PubSubStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use super::cache::Shared;
use super::failure::Failure;
use super::link::Link;
use super::router::service;
use crate::backend::inbox::Inbox;
use crate::backend::{BackendError, ChannelMessage, ChannelSubscription};

/// A connection that is silent for this long is asked whether it still stands.
const QUIET: Duration = Duration::from_secs(5);
/// Between attempts to subscribe again.
const PAUSE: Duration = Duration::from_millis(250);

/// Messages, and after every lost connection the news that some may be missing. The news comes when the channels are
/// subscribed to again, so that who then reads the state misses nothing.
pub(super) struct Subscription {
    inbox: Arc<Inbox>,
    task: JoinHandle<()>,
}

type Listening = (PubSubSink, PubSubStream);

impl Subscription {
    pub(super) async fn start(cache: Arc<Shared>, channels: &[Vec<u8>]) -> Result<Self, BackendError> {
        let channels = channels.to_vec();
        let first = subscribe(&cache, &channels)
            .await
            .map_err(|(link, failure)| failure.into_error(&service(&link), "subscribe to channels"))?;
        let inbox = Arc::new(Inbox::default());
        let task = tokio::spawn(run(cache, channels, first, CloseAtEnd(inbox.clone())));
        Ok(Subscription { inbox, task })
    }
}

#[async_trait]
impl ChannelSubscription for Subscription {
    async fn next(&mut self) -> Option<Result<ChannelMessage, BackendError>> {
        self.inbox.next().await
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The reader must not wait for ever when the runtime that the task lives on ends.
struct CloseAtEnd(Arc<Inbox>);

impl Drop for CloseAtEnd {
    fn drop(&mut self) {
        self.0.close();
    }
}

async fn subscribe(cache: &Shared, channels: &[Vec<u8>]) -> Result<Listening, (Arc<Link>, Failure)> {
    let link = cache.router.link_for(channels.first().map_or(&[][..], |channel| channel)).await;
    let deadline = Instant::now() + cache.router.options().connect_timeout;
    let connecting = async {
        let (mut sink, stream) = Client::open(link.info().clone())?.get_async_pubsub().await?.split();
        sink.subscribe(channels).await?;
        Ok::<_, redis::RedisError>((sink, stream))
    };
    match timeout_at(deadline, connecting).await {
        Ok(Ok(listening)) => Ok(listening),
        Ok(Err(error)) => Err((link, Failure::connecting(&error))),
        Err(_) => Err((link, Failure::NotConnected("it did not answer in time".into()))),
    }
}

async fn run(cache: Arc<Shared>, channels: Vec<Vec<u8>>, first: Listening, inbox: CloseAtEnd) {
    let mut listening = first;
    loop {
        listen(&mut listening, &inbox.0, cache.router.options().call_timeout).await;
        listening = loop {
            match subscribe(&cache, &channels).await {
                Ok(again) => break again,
                Err((link, failure)) => {
                    tracing::debug!(node = link.address(), ?failure, "cannot subscribe again yet");
                    cache.router.doubt();
                    tokio::time::sleep(PAUSE).await;
                }
            }
        };
        inbox.0.lost("the connection broke and stands again".into());
    }
}

/// Returns when the connection is gone.
async fn listen((sink, stream): &mut Listening, inbox: &Inbox, timeout: Duration) {
    loop {
        match tokio::time::timeout(QUIET, stream.next()).await {
            Ok(Some(message)) => {
                let channel = message.get_channel().unwrap_or_default();
                inbox.push(ChannelMessage { channel, payload: message.get_payload_bytes().to_vec() });
            }
            Ok(None) => return,
            Err(_) => {
                let answer = tokio::time::timeout(timeout, sink.ping::<redis::Value>()).await;
                if !matches!(answer, Ok(Ok(_))) {
                    return;
                }
            }
        }
    }
}
