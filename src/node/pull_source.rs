//! Reads what a pull takes from the pod that the image is for: credentials for the registry and the configuration of
//! the sandbox.
//!
//! Must not store credentials: they are in memory only, and go to the runtime only.

use crate::api::pod_ref::PodRef;
use crate::cluster::credentials::{self, Credential};
use crate::cluster::pods::NodePods;
use crate::cri::client::Client;
use crate::cri::clone;
use crate::cri::proto::v1;
use crate::failure::Class;
use crate::operation::effect::EffectError;

/// Credentials for `reference` from the image pull secrets of `pod`, in the order in which to try them.
pub(super) async fn credentials(
    pods: &NodePods,
    pod: &PodRef,
    reference: &str,
) -> Result<Vec<v1::AuthConfig>, EffectError> {
    let all = pods.pull_credentials(pod).await?;
    let auth = |credential: &Credential| v1::AuthConfig {
        username: credential.username.clone(),
        password: credential.password.clone(),
        ..v1::AuthConfig::default()
    };
    Ok(credentials::for_image(&all, reference).into_iter().map(auth).collect())
}

/// The sandbox configuration to send with a pull. If the runtime does not report the configuration, the metadata,
/// labels and annotations that every runtime reports are used; these suffice to choose a policy or a snapshotter.
pub(super) async fn sandbox_config(client: &Client, id: &str) -> Result<v1::PodSandboxConfig, EffectError> {
    let lost = || EffectError { class: Class::Gone, message: "the sandbox is gone".to_owned() };
    let answer = client.sandbox(id, true).await?.ok_or_else(lost)?;
    if let Ok(config) = clone::sandbox_config(&answer.info) {
        return Ok(config);
    }
    let v1::PodSandboxStatus { metadata, labels, annotations, .. } = answer.status.ok_or_else(lost)?;
    Ok(v1::PodSandboxConfig { metadata, labels, annotations, ..Default::default() })
}
