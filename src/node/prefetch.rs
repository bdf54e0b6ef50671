//! Pulls an image that a later request for a pod will need, so that the request finds it on the node.
//!
//! Must not decide which images these are, must not touch a container, and must not use the permits of operations.

use std::time::Duration;

use crate::api::pod_ref::PodRef;
use crate::cri::identity;
use crate::cri::proto::v1;
use crate::failure::Class;
use crate::node::image::{self, Wanted};
use crate::node::{Node, pull_source};
use crate::operation::effect::EffectError;

/// Time limit of one pull.
const LIMIT: Duration = Duration::from_secs(1800);

/// What a prefetch found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefetched {
    /// The image was on the node already.
    Present,
    /// The image was pulled.
    Pulled,
}

/// Pulls `reference` with the credentials and the sandbox configuration of `pod`, unless the image is on the node. A
/// dropped future cancels the pull.
///
/// # Errors
/// If the pod has no running sandbox on this node, the disk has or gets too little free space, or the pull fails.
pub async fn prefetch(node: &Node, pod: &PodRef, reference: &str) -> Result<Prefetched, EffectError> {
    // A tag that moves is pulled again by its request: only the name has to be on the node here.
    if node.client.image(reference, false).await?.is_some() {
        return Ok(Prefetched::Present);
    }
    let sandbox_id = sandbox_id(node, pod).await?;
    let declared = node.cluster.as_ref().and_then(|pods| pods.declared(pod));
    let credentials = match (&node.cluster, &declared) {
        (Some(pods), Some(declared)) if declared.has_pull_secrets && node.allow_pull_secrets => {
            pull_source::credentials(pods, pod, reference).await?
        }
        _ => Vec::new(),
    };
    let running = declared.iter().flat_map(|declared| &declared.containers).next();
    let wanted = Wanted {
        reference,
        like: running.map_or("", |container| container.image.as_str()),
        anew: false,
        sandbox: &pull_source::sandbox_config(&node.client, &sandbox_id).await?,
        credentials: &credentials,
        limit: LIMIT,
        reserve: node.image_reserve,
        floor: node.image_reserve,
    };
    image::fetch(&node.client, wanted, &|_| {}).await.map(|_| Prefetched::Pulled)
}

/// The running sandbox of `pod`.
async fn sandbox_id(node: &Node, pod: &PodRef) -> Result<String, EffectError> {
    let refused = |message: String| EffectError { class: Class::Gone, message };
    let listed = node.client.sandboxes(Some((crate::api::annotation::POD_UID, &pod.uid))).await?;
    let own = identity::own(&node.asked(pod), listed).map_err(|mismatch| refused(mismatch.to_string()))?;
    let ready = own.into_iter().find(|sandbox| sandbox.state() == v1::PodSandboxState::SandboxReady);
    ready.map(|sandbox| sandbox.id).ok_or_else(|| refused(format!("pod {pod} has no running sandbox")))
}
