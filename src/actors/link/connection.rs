//! One connection from its first byte to its last: hello, then reading, writing and listening for silence at once,
//! until one of them ends.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::bytes::{Buf, BytesMut};

use super::outgoing::Outgoing;
use super::{CloseReason, Link, LinkEvent, Owner, Shared, count};
use crate::chain::frame;
use crate::chain::message::{Hello, Message, PROTOCOL};
use crate::core::task::Millis;

/// What is read at once; a buffer that had to grow past four times this is not kept.
const READ_BYTES: usize = 128 << 10;
/// A hello is no longer than this; until it has come, nobody has said who is there.
const MAX_HELLO: usize = 64 << 10;

/// One connection.
pub(super) struct Connection {
    owner: Arc<Owner>,
    shared: Arc<Shared>,
    started: Instant,
    /// Bytes have come since the last look.
    heard: AtomicBool,
    /// The owner does not take an event: the peer is not to blame for silence.
    held_up: AtomicBool,
}

impl Connection {
    /// `dialled`: since when.
    pub(super) fn new(owner: Arc<Owner>, peer: String, dialled: Option<Instant>) -> Self {
        static LAST_ID: AtomicU64 = AtomicU64::new(0);
        let shared = Shared {
            id: LAST_ID.fetch_add(1, Ordering::Relaxed) + 1,
            peer,
            dialled: dialled.is_some(),
            outgoing: Outgoing::new(owner.options.send_bytes),
        };
        Connection {
            owner,
            shared: Arc::new(shared),
            started: dialled.unwrap_or_else(Instant::now),
            heard: AtomicBool::new(false),
            held_up: AtomicBool::new(false),
        }
    }

    /// Speaks until the end, and tells the owner of the beginning and the end. The reason is returned when the
    /// connection never came up.
    pub(super) async fn run<S: AsyncRead + AsyncWrite>(self, stream: S) -> Option<CloseReason> {
        let _ended = Ended(&self.shared.outgoing);
        let (mut input, mut output) = tokio::io::split(stream);
        let mut buffer = BytesMut::with_capacity(READ_BYTES);
        let limit = self.owner.options.hello_timeout;
        let greeting =
            timeout_at(self.started + limit, self.greet(&mut input, &mut output, &mut buffer)).await;
        let hello = match greeting.unwrap_or(Err(CloseReason::HelloTimeout(limit))) {
            Ok(hello) => hello,
            Err(reason) => {
                self.note(&reason);
                return Some(reason);
            }
        };
        let link = Link { shared: Arc::clone(&self.shared) };
        if self.owner.events.send(LinkEvent::Connected { link, hello }).await.is_err() {
            return None;
        }
        count(&self.owner.stats.connected);
        let reason = tokio::select! {
            reason = self.read(&mut input, &mut buffer) => reason,
            reason = self.write(&mut output) => reason,
            reason = self.listen_for_silence() => reason,
            () = self.owner.events.closed() => CloseReason::Closed,
        };
        self.owner.stats.connected.fetch_sub(1, Ordering::Relaxed);
        self.note(&reason);
        let closed = LinkEvent::Closed { id: self.shared.id, reason };
        // An owner that has gone away needs no telling.
        let _ = self.owner.events.send(closed).await;
        None
    }

    fn note(&self, reason: &CloseReason) {
        let peer = &self.shared.peer;
        match reason {
            CloseReason::Frame(_) | CloseReason::Protocol(_) => {
                count(&self.owner.stats.bad_frames);
                tracing::warn!(%peer, %reason, "a connection is closed: the peer does not speak our protocol");
            }
            _ => tracing::debug!(%peer, %reason, "a connection has ended"),
        }
    }

    /// Both sides say hello, and neither waits for the other to be first.
    async fn greet(
        &self,
        input: &mut (impl AsyncRead + Unpin),
        output: &mut (impl AsyncWrite + Unpin),
        buffer: &mut BytesMut,
    ) -> Result<Hello, CloseReason> {
        let mut ours = Vec::new();
        frame::encode(&Message::Hello(self.owner.hello.clone()), &mut ours)?;
        let say = async { Ok(output.write_all(&ours).await?) };
        let hear = async {
            loop {
                if let Some((message, length)) = frame::decode(buffer, MAX_HELLO)? {
                    buffer.advance(length);
                    return Ok(message);
                }
                if input.read_buf(buffer).await? == 0 {
                    return Err(CloseReason::NoHello);
                }
            }
        };
        match tokio::try_join!(say, hear)?.1 {
            Message::Hello(hello) if hello.protocol == PROTOCOL => Ok(hello),
            Message::Hello(hello) => Err(CloseReason::Protocol(format!(
                "{} speaks version {} of the protocol, this side {PROTOCOL}; upgrade the older one",
                hello.name, hello.protocol
            ))),
            _ => Err(CloseReason::Protocol("the peer did not say hello first".into())),
        }
    }

    async fn read(&self, input: &mut (impl AsyncRead + Unpin), buffer: &mut BytesMut) -> CloseReason {
        match self.read_frames(input, buffer).await {
            Ok(never) => match never {},
            Err(reason) => reason,
        }
    }

    async fn read_frames(
        &self,
        input: &mut (impl AsyncRead + Unpin),
        buffer: &mut BytesMut,
    ) -> Result<Infallible, CloseReason> {
        loop {
            while let Some((message, length)) = frame::decode(buffer, self.owner.options.max_body)? {
                let bytes = frame::raw_length(buffer);
                let frame = matches!(message, Message::State(_)).then(|| buffer[..length].into());
                buffer.advance(length);
                count(&self.owner.stats.frames_in);
                self.received(message, bytes, frame).await?;
            }
            if buffer.is_empty() && buffer.capacity() > 4 * READ_BYTES {
                *buffer = BytesMut::new();
            }
            // The buffer grows with what has come, never with what a frame claims.
            buffer.reserve(READ_BYTES / 4);
            if input.read_buf(buffer).await? == 0 {
                return match buffer.is_empty() {
                    true => Err(CloseReason::ByPeer),
                    false => Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into()),
                };
            }
            count(&self.owner.stats.reads);
            self.heard.store(true, Ordering::Relaxed);
        }
    }

    async fn received(
        &self,
        message: Message,
        bytes: usize,
        frame: Option<Box<[u8]>>,
    ) -> Result<(), CloseReason> {
        let id = self.shared.id;
        let event = match message {
            Message::Ping { at } => {
                let load = &self.owner.load;
                let (queue, active) =
                    (load.queue.load(Ordering::Relaxed), load.active.load(Ordering::Relaxed));
                // A full queue answers nothing: what is in it tells the peer that we are there.
                let _ = self.shared.outgoing.push(&Message::Pong { at, queue, active });
                return Ok(());
            }
            Message::Pong { at, queue, active } => {
                let round_trip = Duration::from_micros(self.micros().saturating_sub(at).max(0) as u64);
                let _ = self.owner.events.try_send(LinkEvent::Pong { id, round_trip, queue, active });
                return Ok(());
            }
            Message::Hello(_) => return Err(CloseReason::Protocol("the peer said hello twice".into())),
            message => LinkEvent::Message { id, message, bytes, frame },
        };
        let event = match self.owner.events.try_send(event) {
            Ok(()) => return Ok(()),
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(CloseReason::Closed),
            Err(mpsc::error::TrySendError::Full(event)) => event,
        };
        self.held_up.store(true, Ordering::Relaxed);
        let sent = self.owner.events.send(event).await;
        self.held_up.store(false, Ordering::Relaxed);
        self.heard.store(true, Ordering::Relaxed);
        sent.map_err(|_| CloseReason::Closed)
    }

    async fn write(&self, output: &mut (impl AsyncWrite + Unpin)) -> CloseReason {
        let mut buffer = Vec::new();
        loop {
            match self.shared.outgoing.take(&mut buffer).await {
                Ok(Some(frames)) => {
                    self.owner.stats.frames_out.fetch_add(frames, Ordering::Relaxed);
                    count(&self.owner.stats.writes);
                    if let Err(error) = output.write_all(&buffer).await {
                        return error.into();
                    }
                }
                Ok(None) => {
                    // The peer must be able to end this, too.
                    return match timeout(self.owner.options.hello_timeout, output.shutdown()).await {
                        Ok(Err(error)) => error.into(),
                        Ok(Ok(())) | Err(_) => CloseReason::Closed,
                    };
                }
                Err(error) => return error.into(),
            }
        }
    }

    /// Pings, and ends when nothing comes back for too long.
    async fn listen_for_silence(&self) -> CloseReason {
        let options = &self.owner.options;
        let mut since = Instant::now();
        loop {
            // A full queue needs no ping: the peer hears from us.
            let _ = self.shared.outgoing.push(&Message::Ping { at: self.micros() });
            tokio::time::sleep(options.ping_every).await;
            if self.heard.swap(false, Ordering::Relaxed) || self.held_up.load(Ordering::Relaxed) {
                since = Instant::now();
            } else if since.elapsed() >= options.idle_timeout {
                return CloseReason::Idle(options.idle_timeout);
            }
        }
    }

    /// This side's clock, as pings carry it.
    fn micros(&self) -> Millis {
        self.started.elapsed().as_micros() as Millis
    }
}

/// Makes every sender notice, however the task ends.
struct Ended<'a>(&'a Outgoing);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}
