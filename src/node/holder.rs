//! Finds the image for the process that holds a container name while the container is replaced: an image that
//! contains this program and is already on the node. In a DaemonSet that is the agent's own image.
//!
//! Pulls nothing. If no image is found, or the image is no longer on the node, the search is repeated for the next
//! fence. Without such an image, containers that are created and not started hold the names.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::api::annotation;
use crate::cri::client::Client;
use crate::cri::convert;
use crate::cri::error::Error;
use crate::cri::proto::v1::ContainerState;

/// The name of the agent's container in the shipped manifests.
const AGENT: &str = "agent";

/// How an agent finds the image.
#[derive(Clone, Debug, clap::Args)]
pub struct HolderArgs {
    /// Image on the node that contains this program as /inplace, for the fence process that reserves a container's
    /// name during its replacement [default: the agent's own image, if the agent is a pod]
    #[arg(long, env = "INPLACE_HOLDER_IMAGE", value_name = "IMAGE")]
    pub holder_image: Option<String>,
    /// The uid of the agent's own pod.
    #[arg(long, env = "INPLACE_POD_UID", hide = true)]
    pub pod_uid: Option<String>,
}

/// The image for fence processes. It is searched for on demand, until it is found, and again once it is gone.
#[derive(Clone, Debug)]
pub struct Holder {
    wanted: HolderArgs,
    found: Arc<Mutex<Option<String>>>,
    /// Whether the absence of an image was logged.
    reported: Arc<AtomicBool>,
}

impl Holder {
    /// Uses the image that `wanted` names, or that of the agent's own pod.
    pub fn new(wanted: HolderArgs) -> Self {
        Self { wanted, found: Arc::default(), reported: Arc::default() }
    }

    /// The runtime's ID of the image, if the image is on the node.
    pub(super) async fn image(&self, client: &Client) -> Result<Option<String>, Error> {
        let known = self.found().clone();
        if known.is_some() {
            return Ok(known);
        }
        let image = self.find(client).await?;
        self.found().clone_from(&image);
        Ok(image)
    }

    /// Searches for the image again next time: `image` is gone.
    pub(super) fn forget(&self, image: &str) {
        let mut found = self.found();
        if found.as_deref() == Some(image) {
            *found = None;
        }
    }

    fn found(&self) -> MutexGuard<'_, Option<String>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn find(&self, client: &Client) -> Result<Option<String>, Error> {
        let found = match (&self.wanted.holder_image, &self.wanted.pod_uid) {
            (Some(image), _) => {
                client.image(image, false).await?.and_then(|answer| answer.image).map(|image| image.id)
            }
            (None, Some(uid)) => own_image(client, uid).await?,
            (None, None) => None,
        };
        if let Some(image) = &found {
            tracing::info!(image, "fence processes use this image");
        } else if !self.reported.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                wanted = ?self.wanted,
                "no image for fence processes is on the node (--holder-image): a kubelet that removes dead \
                 containers during a start may start a second instance"
            );
        }
        Ok(found)
    }
}

/// The image of the running agent container in the pod with this uid.
async fn own_image(client: &Client, uid: &str) -> Result<Option<String>, Error> {
    let running = i32::from(ContainerState::ContainerRunning);
    let mut containers = client.containers(Some((annotation::POD_UID, uid))).await?;
    containers.retain(|container| {
        container.state == running
            && container.labels.get(annotation::CONTAINER_NAME).is_some_and(|name| name == AGENT)
    });
    Ok(containers.pop().map(convert::image_id))
}
