//! The link: connections between agents, and between coordinators and agents.
//!
//! Frames of [`crate::chain::frame`] over any byte stream: TCP, or a pipe within the process. One owner (an actor)
//! has one [`Links`], from which it dials and listens, and one receiver of [`LinkEvent`]s; a [`Link`] is the handle
//! of one connection that is up. What is sent together goes out in one write, queued acknowledgements in one
//! message; the reader decodes as many frames as one read has brought. Both directions are bounded: a full send
//! queue makes [`Link::send`] wait, a full event queue stops reading, which in the end stops the peer.
//!
//! What it does not do: it is no session. What was queued or on its way when a connection ends is gone; the hand-off
//! protocol sends it again. There is no authentication and no encryption yet, so it listens on loopback unless told
//! otherwise.

mod connection;
mod dialer;
mod listener;
mod outgoing;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use crate::chain::frame::{EncodedSizes, FrameError, MAX_BODY};
use crate::chain::message::{Hello, Message, PROTOCOL};
use connection::Connection;
pub use dialer::Dialer;
pub use listener::Listener;
use outgoing::Outgoing;

/// Sizes and times. All are bounds.
#[derive(Debug, Clone)]
pub struct LinkOptions {
    /// The longest body of a frame that is taken, in bytes; at most [`MAX_BODY`].
    pub max_body: usize,
    /// Bytes that wait to be sent on one connection before [`Link::send`] waits. One message may go over it.
    pub send_bytes: usize,
    /// Events that wait for the owner before the connections stop reading.
    pub events: usize,
    /// From the start of dialling, or from accepting, to the peer's `Hello`.
    pub hello_timeout: Duration,
    /// How often a ping is sent.
    pub ping_every: Duration,
    /// A peer that has sent nothing for this long is gone. A multiple of `ping_every`.
    pub idle_timeout: Duration,
    /// The first wait before an address is dialled again; it doubles up to `redial_max`. Both are shortened by up to
    /// a half at random, so that peers of one that restarts do not come all at once.
    pub redial_min: Duration,
    /// The longest wait.
    pub redial_max: Duration,
    /// Connections that a listener keeps; more are closed as soon as they are accepted.
    pub max_connections: usize,
    /// Listen on addresses that others can reach.
    pub allow_remote: bool,
}

impl Default for LinkOptions {
    fn default() -> Self {
        LinkOptions {
            max_body: MAX_BODY,
            send_bytes: 4 << 20,
            events: 128,
            hello_timeout: Duration::from_secs(5),
            ping_every: Duration::from_secs(2),
            idle_timeout: Duration::from_secs(10),
            redial_min: Duration::from_millis(50),
            redial_max: Duration::from_secs(5),
            max_connections: 1024,
            allow_remote: false,
        }
    }
}

/// What happens on the connections of one owner.
#[derive(Debug)]
#[non_exhaustive]
pub enum LinkEvent {
    /// A connection is up: both sides have said hello.
    Connected {
        /// Its handle.
        link: Link,
        /// What the peer said.
        hello: Hello,
    },
    /// A message other than `Hello`, `Ping` and `Pong`.
    Message {
        /// The connection's [`Link::id`].
        id: u64,
        /// The message.
        message: Message,
        /// Its body's length before compression.
        bytes: usize,
        /// Of a [`Message::State`], the frame as it came: an outbox can keep it as it is.
        frame: Option<Box<[u8]>>,
    },
    /// The peer has answered a ping. Left out when the owner is slow.
    Pong {
        /// The connection's [`Link::id`].
        id: u64,
        /// From the ping to its answer.
        round_trip: Duration,
        /// Hops that wait there to be run.
        queue: u32,
        /// Hops under way there.
        active: u32,
    },
    /// A connection that was up is gone. Nothing of it follows.
    Closed {
        /// The connection's [`Link::id`].
        id: u64,
        /// Why.
        reason: CloseReason,
    },
    /// An address that is dialled could not be reached this time; it is dialled again. Left out when the owner is
    /// slow.
    Unreachable {
        /// The address.
        address: String,
        /// Why.
        reason: CloseReason,
    },
}

/// Why a connection has ended, or did not come about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// By [`Link::close`].
    #[error("closed by this side")]
    Closed,
    /// By the peer, between two frames.
    #[error("closed by the peer")]
    ByPeer,
    /// By the peer, before its hello: it may be full, or not an agent.
    #[error("closed by the peer before it said hello")]
    NoHello,
    /// The peer did not say hello in time.
    #[error("the peer did not say hello within {0:?}")]
    HelloTimeout(Duration),
    /// The peer has not been heard of.
    #[error("nothing was heard from the peer for {0:?}")]
    Idle(Duration),
    /// The peer speaks another version, or not in turn.
    #[error("{0}")]
    Protocol(String),
    /// What the peer sent is not a frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The network.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Why something cannot be sent, or a listener not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The connection is gone.
    #[error("the connection to {peer} is closed")]
    Closed {
        /// Who was at its other end.
        peer: String,
    },
    /// The send queue is full, and the caller does not want to wait.
    #[error("{bytes} bytes wait to be sent to {peer}, which reads too slowly")]
    Full {
        /// Who does not read.
        peer: String,
        /// How much waits.
        bytes: usize,
    },
    /// The message cannot be made into a frame.
    #[error("cannot send to {peer}: {error}")]
    Unsendable {
        /// To whom.
        peer: String,
        /// Why.
        error: FrameError,
    },
    /// Others could connect.
    #[error(
        "refusing to listen on {address}: agents do not authenticate or encrypt yet, and everybody who reaches the \
         port could run jobs; use a loopback address, or set `allow_remote` on a network that you trust"
    )]
    Remote {
        /// The address.
        address: String,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: String,
        /// Why.
        error: io::Error,
    },
}

/// Counters over all connections of one owner.
#[derive(Debug, Default)]
pub struct LinkStats {
    /// Frames received.
    pub frames_in: AtomicU64,
    /// Frames sent; merged acknowledgements count as one.
    pub frames_out: AtomicU64,
    /// Calls to the stream's read that brought something.
    pub reads: AtomicU64,
    /// Calls to the stream's write.
    pub writes: AtomicU64,
    /// Connections closed because what came was not a frame, or not in turn.
    pub bad_frames: AtomicU64,
    /// Connections refused because there were too many.
    pub refused: AtomicU64,
    /// Connections that are up.
    pub connected: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// What this side answers to a ping; kept up to date by the owner.
#[derive(Debug, Default)]
pub struct Load {
    /// Hops that wait to be run.
    pub queue: AtomicU32,
    /// Hops under way.
    pub active: AtomicU32,
}

/// All connections of one owner; cheap to clone. When the receiver of events is dropped, they all end.
#[derive(Clone)]
pub struct Links {
    owner: Arc<Owner>,
}

struct Owner {
    hello: Hello,
    options: LinkOptions,
    events: mpsc::Sender<LinkEvent>,
    stats: LinkStats,
    load: Load,
}

impl Links {
    /// For an owner that introduces itself with `hello`.
    pub fn new(hello: Hello, options: LinkOptions) -> (Links, mpsc::Receiver<LinkEvent>) {
        debug_assert_eq!(hello.protocol, PROTOCOL);
        let (events, receiver) = mpsc::channel(options.events.max(1));
        let (stats, load) = (LinkStats::default(), Load::default());
        (Links { owner: Arc::new(Owner { hello, options, events, stats, load }) }, receiver)
    }

    /// Listens on `host:port`; port 0 chooses one. Connections are accepted until the listener is dropped.
    pub async fn listen(&self, address: &str) -> Result<Listener, LinkError> {
        Listener::bind(Arc::clone(&self.owner), address).await
    }

    /// Connects to `host:port`, and again whenever the connection is lost, until the dialler is dropped.
    pub fn dial(&self, address: impl Into<String>) -> Dialer {
        Dialer::start(Arc::clone(&self.owner), address.into())
    }

    /// Speaks over a stream that is there already, such as one half of `tokio::io::duplex`.
    pub fn over(&self, stream: impl AsyncRead + AsyncWrite + Send + 'static, peer: impl Into<String>) {
        let connection = Connection::new(Arc::clone(&self.owner), peer.into(), None);
        tokio::spawn(async move { connection.run(stream).await });
    }

    /// Counters over all connections.
    pub fn stats(&self) -> &LinkStats {
        &self.owner.stats
    }

    /// What pings are answered with.
    pub fn load(&self) -> &Load {
        &self.owner.load
    }
}

/// The handle of one connection that is up; cheap to clone. Dropping it does not close the connection.
#[derive(Clone)]
pub struct Link {
    shared: Arc<Shared>,
}

/// What the handles of a connection and its task share.
struct Shared {
    id: u64,
    peer: String,
    dialled: bool,
    outgoing: Outgoing,
}

impl Link {
    /// The connection's number; never used twice in one process.
    pub fn id(&self) -> u64 {
        self.shared.id
    }

    /// The peer's address; of a connection that this side dialled, the address as it was dialled.
    pub fn peer(&self) -> &str {
        &self.shared.peer
    }

    /// Whether this side dialled it.
    pub fn dialled(&self) -> bool {
        self.shared.dialled
    }

    /// Queues a message to be sent; waits while the queue is full. Acknowledgements are merged, and say nothing about
    /// their size.
    pub async fn send(&self, message: &Message) -> Result<EncodedSizes, LinkError> {
        loop {
            match self.try_send(message) {
                Err(LinkError::Full { .. }) => self.shared.outgoing.room().await,
                done => return done,
            }
        }
    }

    /// The same, but [`LinkError::Full`] instead of waiting.
    pub fn try_send(&self, message: &Message) -> Result<EncodedSizes, LinkError> {
        self.shared.outgoing.push(message).map_err(|refusal| {
            let peer = self.shared.peer.clone();
            match refusal {
                outgoing::Refusal::Closed => LinkError::Closed { peer },
                outgoing::Refusal::Full(bytes) => LinkError::Full { peer, bytes },
                outgoing::Refusal::Unsendable(error) => LinkError::Unsendable { peer, error },
            }
        })
    }

    /// Sends what is queued and ends the connection.
    pub fn close(&self) {
        self.shared.outgoing.close();
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Link({} to {})", self.shared.id, self.shared.peer)
    }
}
