//! `inplace node ...`: carries out operations on this node through the runtime's socket, without an API server. Only
//! parses, locks and reports; `crate::node` carries out the operations.

use clap::{Args, Subcommand};

use crate::api::pod_ref::PodRef;
use crate::api::status::{Phase, Status};
use crate::cli::exit::Exit;
use crate::cli::output::{self, message};
use crate::failure::Class;
use crate::node::launch::{RmError, RunError};
use crate::node::lock::{LockError, NodeLock};
use crate::node::settings::NodeArgs;
use crate::node::{self, Node};
use crate::operation::report;
use crate::process::clock;
use crate::process::log::chain;

mod live;
mod operate;
mod plan;
mod pods;
mod ps;

/// Operate on this node's containers directly
#[derive(Debug, Args)]
pub struct NodeCommand {
    #[command(flatten)]
    settings: NodeArgs,
    /// Form of the result
    #[arg(short, long, global = true, value_enum, default_value_t)]
    output: Format,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show pods, their containers, and what was last done to them
    Ps(ps::Ps),
    /// Restart containers of a running pod in place
    Restart(operate::Restart),
    /// Swap the image of containers of a running pod, with a rollback on failure
    Swap(operate::Swap),
    /// Show what a restart or swap would do, and touch nothing
    Plan(plan::PlanArgs),
    /// Run a pod from a manifest, on a node without a kubelet
    Run(pods::Run),
    /// Remove a pod that `node run` made
    Rm(pods::Rm),
}

/// The form of the result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// The name of a pod: `NAMESPACE/NAME`, or `NAME` in the namespace `default`.
#[derive(Clone, Debug)]
struct PodName {
    namespace: String,
    name: String,
}

impl std::str::FromStr for PodName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
        if namespace.is_empty() || name.is_empty() || name.contains('/') {
            return Err("write NAMESPACE/NAME");
        }
        Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
    }
}

/// Error that ends a command before it has a result.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Endpoint(#[from] crate::cri::endpoint::NoEndpoint),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Node(#[from] node::Error),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Rm(#[from] RmError),
    #[error("{0}")]
    Manifest(String),
    #[error("{0}")]
    Other(String),
}

impl From<node::journal::JournalError> for Failed {
    fn from(error: node::journal::JournalError) -> Self {
        Self::Node(error.into())
    }
}

impl From<crate::cri::error::Error> for Failed {
    fn from(error: crate::cri::error::Error) -> Self {
        Self::Node(error.into())
    }
}

impl Failed {
    fn exit(&self) -> Exit {
        match self {
            Self::Lock(LockError::Held { .. }) => Exit::Busy,
            Self::Endpoint(_) | Self::Lock(LockError::NoFolder(_) | LockError::Io { .. }) => {
                Exit::RuntimeAway
            }
            Self::Manifest(_) | Self::Node(node::Error::Refused(_)) => Exit::Refused,
            Self::Run(
                RunError::Exists { .. }
                | RunError::Claimed(_)
                | RunError::UidTaken { .. }
                | RunError::NoImage { .. },
            )
            | Self::Rm(RmError::NotOurs { .. } | RmError::OtherState { .. } | RmError::Name(_)) => {
                Exit::Refused
            }
            Self::Run(RunError::Runtime(error) | RunError::Container { source: error, .. })
            | Self::Rm(RmError::Runtime(error))
                if error.class == Class::Unavailable =>
            {
                Exit::RuntimeAway
            }
            Self::Node(node::Error::Interrupted) => Exit::Interrupted,
            Self::Node(error) => match error.reason() {
                "RuntimeAway" => Exit::RuntimeAway,
                "Busy" => Exit::Busy,
                _ => Exit::Failed,
            },
            Self::Run(_) | Self::Rm(_) | Self::Other(_) => Exit::Failed,
        }
    }

    /// The error with its causes. The message of a failed call is complete without them.
    fn text(&self) -> String {
        match self {
            Self::Node(error @ (node::Error::Runtime(_) | node::Error::Hook(_))) => error.to_string(),
            _ => chain(self),
        }
    }

    /// The error as a status object, so that a script gets this object for every kind of end.
    fn status(&self, id: &str) -> Status {
        let exit = self.exit();
        let phase = match exit {
            Exit::Refused => Phase::Refused,
            Exit::Interrupted => Phase::Running,
            _ => Phase::Failed,
        };
        let reason = match (self, exit) {
            (Self::Node(error), _) => error.reason(),
            (Self::Manifest(_), _) => "InvalidManifest",
            (_, Exit::Busy) => "Busy",
            (_, Exit::RuntimeAway) => "RuntimeAway",
            (_, Exit::Refused) => "Refused",
            _ => "Failed",
        };
        let why = self.text();
        let status = report::not_begun(id, phase, reason, &why, clock::now());
        match self {
            // Not an end: the remaining work is in the journal.
            Self::Node(node::Error::Interrupted) => Status { message: why, finished_at: None, ..status },
            // These errors already say what was created and removed again.
            Self::Run(_) | Self::Rm(_) | Self::Other(_) => Status { message: why, ..status },
            _ => status,
        }
    }

    /// Prints the error as text and, with JSON output, as a status. Returns the exit code.
    fn reported(&self, format: Format, id: &str) -> Exit {
        if format == Format::Json {
            output::json(&self.status(id));
        }
        message(&format!("inplace: {}", self.text()));
        self.exit()
    }
}

impl NodeCommand {
    /// Runs the command and returns its exit code.
    pub async fn run(self) -> Exit {
        let Self { settings, output, verb } = self;
        let ended = match verb {
            Verb::Ps(args) => ps::run(&settings, output, &args).await,
            Verb::Restart(args) => return operate::restart(&settings, output, args).await,
            Verb::Swap(args) => return operate::swap(&settings, output, args).await,
            Verb::Plan(args) => plan::run(&settings, output, args).await,
            Verb::Run(args) => pods::run(&settings, output, args).await,
            Verb::Rm(args) => pods::rm(&settings, output, args).await,
        };
        ended.unwrap_or_else(|failed| failed.reported(output, ""))
    }
}

/// The node for one command. A command pulls one image at a time.
fn open_node(settings: &NodeArgs) -> Result<Node, Failed> {
    let client = settings.client(None)?;
    Ok(Node::new(client, &settings.state_dir, 1, settings.image_reserve)?)
}

/// Locks the node against an agent and other commands. A missing runtime is reported as such.
fn lock(settings: &NodeArgs) -> Result<NodeLock, Failed> {
    Ok(NodeLock::for_command(std::path::Path::new(settings.endpoint()?.path()))?)
}

async fn find(node: &Node, pod: &PodName) -> Result<PodRef, node::Error> {
    node.find(&pod.namespace, &pod.name).await
}
