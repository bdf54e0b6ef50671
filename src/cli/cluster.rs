//! The parts that all commands with an API server share: the flags for the server and the namespace, the timeout of a
//! call, and the exit code of an error.
//! Only connects and bounds calls; each command makes its own requests.

use std::fmt::Debug;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use kube::api::ListParams;
use kube::{Api, Client};
use serde::de::DeserializeOwned;

use crate::cli::completion;
use crate::cli::connection::{self, ConnectionArgs};
use crate::cli::exit::Exit;
use crate::cluster;
use crate::cluster::error::Error;
use crate::failure::Class;

/// The field manager of every write of the command line.
pub(super) const MANAGER: &str = "inplace-cli";
/// Objects per page of a list request.
pub(super) const PAGE: u32 = 500;

/// The flags for the cluster, as in kubectl.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Cluster")]
pub(super) struct ClusterArgs {
    /// The namespace [default: the context's]
    #[arg(short, long, value_name = "NAME", add = ArgValueCompleter::new(completion::namespaces))]
    pub(super) namespace: Option<String>,
    #[command(flatten)]
    connection: ConnectionArgs,
}

impl ClusterArgs {
    /// Connects as kubectl does. The namespace is that of `-n`, or else that of the kubeconfig's context.
    pub(super) async fn connect(&self) -> Result<(Client, String), Failed> {
        let (client, default) = self.connection.connect().await?;
        Ok((client, self.namespace.clone().unwrap_or(default)))
    }

    /// The flags that say where, with a space before each: for a command that the user is to run next. Without them it would
    /// concern an object of the same name in another namespace or cluster.
    pub(super) fn repeated(&self) -> String {
        let namespace = self.namespace.as_ref().map(|name| format!(" -n {}", connection::quoted(name)));
        namespace.unwrap_or_default() + &self.connection.repeated()
    }
}

/// The value of a label selector. A blank one, as of a variable that is not set in a script, would select every object.
pub(super) fn label_selector(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err(
            "is empty and would select every pod; leave it out, or use --all where the command has it"
                .to_owned(),
        );
    }
    Ok(text.to_owned())
}

/// Error that ends a command before it has a result.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    /// The API server returned an error, or did not answer in time.
    #[error(transparent)]
    Cluster(#[from] cluster::error::Error),
    /// A write was not answered in time, or its answer was lost: whether it took effect is unknown. `then` says what to do.
    #[error("{error}; {then}")]
    Unknown {
        /// The error of the write.
        error: Box<cluster::error::Error>,
        /// What the user does next.
        then: String,
    },
    /// The command line, or the kubeconfig that it names, is wrong in a way that clap cannot check.
    #[error("{0}")]
    Usage(String),
    /// The request cannot be carried out as written.
    #[error("{0}")]
    Refused(String),
    /// Any other error.
    #[error("{0}")]
    Other(String),
}

impl Failed {
    pub(super) fn exit(&self) -> Exit {
        match self {
            Self::Cluster(error) => match error.class() {
                Class::Unavailable | Class::NotSent => Exit::ClusterAway,
                Class::Gone | Class::Denied | Class::Final => Exit::Refused,
                Class::NameTaken | Class::Credentials | Class::Refused => Exit::Failed,
            },
            Self::Unknown { .. } => Exit::ClusterAway,
            Self::Usage(_) => Exit::Usage,
            Self::Refused(_) => Exit::Refused,
            Self::Other(_) => Exit::Failed,
        }
    }
}

/// Awaits `call` for at most the time of `--request-timeout`. `doing` names the call in the error.
pub(super) async fn bounded<T>(
    doing: &str,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Failed> {
    let limit = connection::call_limit();
    let answer = match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer.map_err(|error| Error::of(doing, error)),
        Err(_) => Err(Error::late(doing, limit)),
    };
    Ok(answer?)
}

/// Returns all objects that match `params`, page by page; each page has its own timeout.
pub(super) async fn listed<K>(doing: &str, api: &Api<K>, params: ListParams) -> Result<Vec<K>, Failed>
where
    K: Clone + Debug + DeserializeOwned,
{
    let (mut found, mut params) = (Vec::new(), params.limit(PAGE));
    loop {
        let page = bounded(doing, api.list(&params)).await?;
        found.extend(page.items);
        match page.metadata.continue_.filter(|more| !more.is_empty()) {
            Some(more) => params.continue_token = Some(more),
            None => return Ok(found),
        }
    }
}
