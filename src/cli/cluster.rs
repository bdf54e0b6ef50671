//! What every command that asks an API server has in common: which one, for how long, and how a no ends the command.
//!
//! Makes the connection; what is asked is the commands' own.

use std::fmt::Debug;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use kube::api::ListParams;
use kube::{Api, Client};
use serde::de::DeserializeOwned;

use crate::cli::exit::Exit;
use crate::cluster;
use crate::cluster::client::{Target, connect};
use crate::cluster::error::Error;
use crate::operation::effect::Class;

/// How long one call may take.
const CALL: Duration = Duration::from_secs(10);
/// Objects per page of a list.
pub(super) const PAGE: u32 = 500;

/// Which cluster, as kubectl has it.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Cluster")]
pub(super) struct ClusterArgs {
    /// The namespace [default: the context's]
    #[arg(short, long, value_name = "NAME")]
    pub(super) namespace: Option<String>,
    /// The context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// The kubeconfig [default: $KUBECONFIG, ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

impl ClusterArgs {
    /// Connects as kubectl would; the namespace is from `-n`, else the kubeconfig's context.
    pub(super) async fn connect(&self) -> Result<(Client, String), Failed> {
        let target = Target { kubeconfig: self.kubeconfig.clone(), context: self.context.clone() };
        let (client, default) = connect(&target).await?;
        Ok((client, self.namespace.clone().unwrap_or(default)))
    }
}

/// Why a command has no result of its own kind.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    /// The API server's no, or its silence.
    #[error(transparent)]
    Cluster(#[from] cluster::error::Error),
    /// A wrong command line that clap could not know of.
    #[error("{0}")]
    Usage(String),
    /// It cannot be done as written.
    #[error("{0}")]
    Refused(String),
    /// Something else.
    #[error("{0}")]
    Other(String),
}

impl Failed {
    pub(super) fn exit(&self) -> Exit {
        match self {
            Self::Cluster(error) => match error.class() {
                Class::Away | Class::Unreached => Exit::ClusterAway,
                Class::Gone | Class::Denied | Class::Final => Exit::Refused,
                Class::NameTaken | Class::Credentials | Class::Refused => Exit::Failed,
            },
            Self::Usage(_) => Exit::Usage,
            Self::Refused(_) => Exit::Refused,
            Self::Other(_) => Exit::Failed,
        }
    }
}

/// `call` within its time, as `doing`.
pub(super) async fn bounded<T>(
    doing: &str,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Failed> {
    let answer = match tokio::time::timeout(CALL, call).await {
        Ok(answer) => answer.map_err(|error| Error::of(doing, error)),
        Err(_) => Err(Error::late(doing, CALL)),
    };
    Ok(answer?)
}

/// All that `params` ask for, page by page, each within its time.
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
