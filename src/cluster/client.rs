//! Selects the API server and the credentials: a kubeconfig by kubectl's rules, else the service account of this
//! pod.
//!
//! Creates a client that never retries a call by itself; the callers decide what is retried.

use std::path::PathBuf;
use std::time::Duration;

use kube::config::{Config, KubeConfigOptions, Kubeconfig, KubeconfigError};

use crate::cluster::error::Error;
use crate::cluster::overrides::Overrides;
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
    /// What replaces the settings of the kubeconfig.
    pub overrides: Overrides,
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
    let ConnectOptions { kubeconfig, context, overrides } = target;
    let file = match kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let file = match file {
        Ok(file) => file,
        // With the server's URL no kubeconfig is needed.
        Err(error) if kubeconfig.is_none() && is_absent(&error) && overrides.server.is_some() => {
            Kubeconfig::default()
        }
        Err(error) => return without_file(target, &error),
    };
    if let Some(user) = overrides.missing_user(&file) {
        return Err(wrong(format!("the kubeconfig cannot be used: it has no user {user}")));
    }
    let mut options = KubeConfigOptions { context: context.clone(), ..Default::default() };
    let mut changed = file;
    overrides.apply(&mut changed, &mut options);
    match Config::from_custom_kubeconfig(changed, &options).await {
        Ok(config) => Ok(config),
        Err(error) => without_file(target, &error),
    }
}

/// The service account of this pod, if no kubeconfig was named and there is none.
fn without_file(target: &ConnectOptions, error: &KubeconfigError) -> Result<Config, Error> {
    let ConnectOptions { kubeconfig, context, overrides } = target;
    // A service account has no contexts, clusters and users, so such a name requires a kubeconfig.
    let named = [context, &overrides.cluster, &overrides.user].into_iter().any(Option::is_some);
    if kubeconfig.is_some() || named || !is_absent(error) {
        return Err(unusable(error));
    }
    let config = Config::incluster().map_err(|_| {
        wrong(
            "no kubeconfig (--kubeconfig, KUBECONFIG, ~/.kube/config), and this is not a pod with a service account"
                .to_owned(),
        )
    });
    let mut config = config?;
    config.auth_info = overrides.of_user(config.auth_info);
    Ok(config)
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
    wrong(format!("the kubeconfig cannot be used: {error}"))
}

fn wrong(message: String) -> Error {
    Error::own(DOING, Class::Final, message)
}
