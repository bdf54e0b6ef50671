//! Selects the API server and the credentials: a kubeconfig by kubectl's rules, else the service account of this
//! pod.
//!
//! Creates a client that never retries a call by itself; the callers decide what is retried.

use std::path::PathBuf;
use std::time::Duration;

use kube::config::{Config, KubeConfigOptions, Kubeconfig, KubeconfigError};

use crate::cluster::error::Error;
use crate::failure::Class;

/// The limit for TCP connect and TLS handshake. If it takes longer, the load balancer in front of the API server is
/// faulty.
const CONNECT: Duration = Duration::from_secs(5);
/// The operation that errors of this module name.
const DOING: &str = "connecting to the cluster";

/// The cluster to connect to.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// The kubeconfig file. `None`: `KUBECONFIG`, `~/.kube/config`, the service account, in this order.
    pub kubeconfig: Option<PathBuf>,
    /// The context in the kubeconfig; `None` for its current context.
    pub context: Option<String>,
}

/// Creates a client, and returns it with the default namespace. Does not contact the server yet.
///
/// # Errors
/// `Final` if no configuration is found or it cannot be used.
pub async fn connect(target: &ConnectOptions) -> Result<(kube::Client, String), Error> {
    let mut config = config(target).await?;
    config.connect_timeout = Some(CONNECT);
    config.default_retry = false;
    let namespace = config.default_namespace.clone();
    let client = kube::Client::try_from(config).map_err(|error| {
        Error::own(DOING, Class::Final, format!("the configuration cannot be used: {error}"))
    })?;
    Ok((client, namespace))
}

async fn config(target: &ConnectOptions) -> Result<Config, Error> {
    let options = KubeConfigOptions { context: target.context.clone(), ..Default::default() };
    if let Some(path) = &target.kubeconfig {
        let file = Kubeconfig::read_from(path).map_err(|error| unusable(&error))?;
        return Config::from_custom_kubeconfig(file, &options).await.map_err(|error| unusable(&error));
    }
    let by_file = Config::from_kubeconfig(&options).await;
    match by_file {
        Ok(config) => Ok(config),
        // A service account has no contexts, so a named context requires a kubeconfig.
        Err(error) if target.context.is_some() || !is_absent(&error) => Err(unusable(&error)),
        Err(_) => Config::incluster().map_err(|_| {
            let message =
                "no kubeconfig (--kubeconfig, KUBECONFIG, ~/.kube/config), and this is not a pod with a \
                           service account"
                    .to_owned();
            Error::own(DOING, Class::Final, message)
        }),
    }
}

/// True if there is no kubeconfig, or an empty one.
fn is_absent(error: &KubeconfigError) -> bool {
    match error {
        KubeconfigError::ReadConfig(error, _) => error.kind() == std::io::ErrorKind::NotFound,
        KubeconfigError::FindPath | KubeconfigError::CurrentContextNotSet => true,
        _ => false,
    }
}

fn unusable(error: &KubeconfigError) -> Error {
    Error::own(DOING, Class::Final, format!("the kubeconfig cannot be used: {error}"))
}
