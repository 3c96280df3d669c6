//! The node agent: an actor beside a cache node that runs hops there and hands job states on.
//!
//! | file | answers |
//! | --- | --- |
//! | `actor.rs` | how the rules of [`crate::chain::hop`] meet the outbox, the links and the hops under way |
//! | `hop_run.rs` | how one hop is worked off |
//! | `crash_point.rs` | where tests let it die |
//! | `metrics.rs` | what it is counted as |
//! | `presence.rs` | how coordinators find the agent |

mod actor;
mod crash_point;
mod hop_run;
mod metrics;
mod presence;

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::DuplexStream;

use self::actor::{AgentActor, Setup};
use self::hop_run::Tools;
pub use self::metrics::AgentMetrics;
use crate::actors::hop_outbox::HopOutboxError;
use crate::actors::link::LinkError;
use crate::actors::{ActorError, ActorRef, ActorSystem, Escalation, Restart, Spec, Stage};
use crate::chain::hop::HopInput;
use crate::node::{NativeJobs, Presence, RedisAccess};

/// How an agent is to run.
#[derive(Debug, Clone)]
pub struct AgentOptions {
    /// Where to listen, `host:port`; port 0 chooses one. `None`: nobody connects from outside (direct mode).
    pub listen: Option<String>,
    /// The address that others reach it at, where that is not the one it listens on.
    pub advertise: Option<String>,
    /// The node that it stands beside, `host:port`: there it makes itself known to coordinators.
    pub redis: Option<String>,
    /// The zone that it and its node are in: chains stay within one where they can.
    pub zone: Option<String>,
    /// The rack, likewise.
    pub rack: Option<String>,
    /// How to reach the nodes.
    pub access: RedisAccess,
    /// Rust jobs that it can run.
    pub natives: NativeJobs,
    /// Where its outbox lives. `None`: nothing survives the process. As long as the disk syncs in less than a
    /// millisecond the agent's own thread waits for it, since waking another one takes as long.
    pub data_dir: Option<PathBuf>,
    /// Listen on addresses that other machines can reach. There is no authentication yet: everybody who reaches the
    /// port can run jobs.
    pub allow_remote: bool,
    /// How many hops run at once on one node.
    pub per_node: usize,
    /// Where it is counted; `None`: nowhere.
    pub metrics: Option<AgentMetrics>,
}

impl Default for AgentOptions {
    fn default() -> Self {
        AgentOptions {
            listen: Some("127.0.0.1:0".into()),
            advertise: None,
            redis: None,
            zone: None,
            rack: None,
            access: RedisAccess::default(),
            natives: NativeJobs::default(),
            data_dir: None,
            allow_remote: false,
            per_node: 1,
            metrics: None,
        }
    }
}

/// Why an agent cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// Its outbox cannot be used.
    #[error(transparent)]
    Outbox(#[from] HopOutboxError),
    /// It cannot listen.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The system does not take it.
    #[error(transparent)]
    System(#[from] ActorError),
    /// An address is no address.
    #[error("agent address {address:?} cannot be used: {reason}")]
    Address {
        /// The address.
        address: String,
        /// What is wrong.
        reason: String,
    },
}

/// A running agent; cheap to clone. It ends with [`NodeAgent::stop`] or with the system.
#[derive(Clone, Debug)]
pub struct NodeAgent {
    actor: ActorRef<AgentActor>,
    address: String,
}

impl NodeAgent {
    /// Starts an agent in `system` and returns when it listens.
    ///
    /// # Errors
    /// When its outbox cannot be opened (another process has it, it is damaged) or its address not be listened on.
    pub async fn start(system: &ActorSystem, options: AgentOptions) -> Result<Self, AgentError> {
        let listen = options.listen.as_deref().map(fixed_port).transpose()?;
        let address = match (&options.advertise, &listen) {
            (Some(address), _) | (None, Some(address)) => address.clone(),
            (None, None) => DIRECT.to_owned(),
        };
        let presence = Presence { address: address.clone(), zone: options.zone, rack: options.rack };
        let name = presence.to_name().ok_or_else(|| AgentError::Address {
            address: format!("{presence:?}"),
            reason: "address, zone and rack are plain text without spaces and semicolons".into(),
        })?;
        let setup = Arc::new(Setup {
            address: address.clone(),
            name,
            listen,
            redis: options.redis,
            data_dir: options.data_dir,
            allow_remote: options.allow_remote,
            per_node: options.per_node.max(1),
            metrics: options.metrics,
            tools: Arc::new(Tools::new(options.access, options.natives, address.clone())),
        });
        let name = format!("agent {address} {}", uuid::Uuid::now_v7().simple());
        let spec = Spec::with_scope(name, move |scope| AgentActor::new(Arc::clone(&setup), scope))
            .label("agent")
            .mailbox(1024)
            .stage(Stage::Work)
            // A disk that fails stays failed: give up soon, and say so, rather than serve without it.
            .restart(Restart::at_most(3, Duration::from_secs(60)))
            .escalation(Escalation::MarkFailed);
        let agent = NodeAgent { actor: system.spawn(spec)?, address };
        match agent.actor.ask(Ready).await {
            Ok(Ok(())) => Ok(agent),
            Ok(Err(error)) => {
                agent.actor.stop();
                Err(error)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The address under which others know it.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A connection within the process, for a coordinator that stands beside it.
    pub(crate) async fn connect(&self) -> Result<DuplexStream, ActorError> {
        let (ours, theirs) = tokio::io::duplex(256 << 10);
        self.actor.ask(AgentInput::Join(theirs)).await?;
        Ok(ours)
    }

    /// As [`NodeAgent::stop`], without waiting.
    pub(crate) fn end(&self) {
        self.actor.stop();
    }

    /// Ends it: hops under way stop after the call at hand, and go on from their last checkpoint at the next start.
    pub async fn stop(&self) {
        self.actor.stop();
        self.actor.ended().await;
    }

    /// Waits until it has ended.
    pub async fn ended(&self) {
        self.actor.ended().await;
    }
}

/// The name of the agent in a coordinator's own process.
pub(crate) const DIRECT: &str = "direct";

/// Port 0 becomes a free one now, so that the agent keeps its address when it is restarted.
fn fixed_port(address: &str) -> Result<String, AgentError> {
    let refuse = |reason: String| AgentError::Address { address: address.to_owned(), reason };
    let (host, port) = address.rsplit_once(':').ok_or_else(|| refuse("write host:port".into()))?;
    let port: u16 = port.parse().map_err(|_| refuse(format!("{port:?} is not a port")))?;
    if port != 0 {
        return Ok(address.to_owned());
    }
    let free = TcpListener::bind(address).and_then(|listener| listener.local_addr());
    let free: SocketAddr = free.map_err(|error| refuse(error.to_string()))?;
    Ok(format!("{host}:{}", free.port()))
}

/// "Are you up?": answered when the agent listens, or cannot.
pub(crate) struct Ready;

impl actix::Message for Ready {
    type Result = Result<(), AgentError>;
}

/// What an agent is told from inside the process.
pub(crate) enum AgentInput {
    /// By a hop under way.
    Hop(HopInput),
    /// A coordinator beside it connects.
    Join(DuplexStream),
}

impl actix::Message for AgentInput {
    type Result = ();
}
