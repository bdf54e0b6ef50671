//! Creates and starts a pod. If a step fails, everything that was created is removed.
//!
//! Must not print the manifest: it contains environment values.

use std::time::Duration;

use super::{BadFile, Dirs, RmError, config, files, owned_by, rm};
use crate::api::manifest::{Container, Manifest, PullPolicy, Volume, VolumeSource};
use crate::api::pod_ref::PodRef;
use crate::cri::client::Client;
use crate::cri::convert::owner;
use crate::cri::error::Error;
use crate::cri::proto::v1;
use crate::process::random;

/// A pod that was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// The identity of the pod.
    pub pod: PodRef,
    /// The runtime's ID of the sandbox.
    pub sandbox_id: String,
    /// The address of the pod; empty in the node's network.
    pub ip: String,
    /// The containers, in the order of the manifest.
    pub containers: Vec<StartedContainer>,
}

/// A container that was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartedContainer {
    /// The container's name in the manifest.
    pub name: String,
    /// The runtime's ID of the container.
    pub id: String,
    /// The exit code, if the container had exited by the time all containers were started.
    pub exited: Option<i32>,
}

/// Why a pod was not started. Unless it is [`RunError::Unclean`], nothing was left behind.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A pod of that name exists.
    #[error("pod {pod} exists: {owner}")]
    Exists {
        /// The pod as `namespace/name`.
        pod: String,
        /// The creator of the pod, and how to remove it.
        owner: &'static str,
    },
    /// The name is claimed and no sandbox exists.
    #[error(
        "another `inplace node run` of {0} is running or did not end: wait, or clean up with `inplace node rm {0}`"
    )]
    Claimed(String),
    /// Another pod has the uid.
    #[error("uid {uid} belongs to pod {pod}: remove metadata.uid from the manifest")]
    UidTaken {
        /// The uid of the manifest.
        uid: String,
        /// The other pod as `namespace/name`.
        pod: String,
    },
    /// A file or folder could not be created.
    #[error(transparent)]
    File(#[from] BadFile),
    /// No uid could be generated.
    #[error("no uid can be generated: {0}; set metadata.uid")]
    NoUid(#[source] std::io::Error),
    /// The image is not on the node and must not be pulled.
    #[error(
        "container {container}: image {image} is not on this node, and imagePullPolicy is Never: import it, or \
         change the policy"
    )]
    NoImage {
        /// The name of the container.
        container: String,
        /// The image of the container.
        image: String,
    },
    /// The image was pulled and is not on the node.
    #[error(
        "container {container}: the runtime pulled {image}, but no longer has it: another program may be removing images"
    )]
    Vanished {
        /// The name of the container.
        container: String,
        /// The image of the container.
        image: String,
    },
    /// The runtime did not find a memory volume.
    #[error(
        "volume {volume}: the runtime does not see the memory that was mounted for it: run this command in the \
         mount namespace of the runtime (the node's, not a container's)"
    )]
    HiddenMemory {
        /// The name of the volume.
        volume: String,
    },
    /// A call for one of the containers failed.
    #[error("container {container}: {source}")]
    Container {
        /// The name of the container.
        container: String,
        /// The error of the runtime.
        source: Error,
    },
    /// A call to the runtime failed.
    #[error(transparent)]
    Runtime(#[from] Error),
    /// The start failed, and so did the cleanup.
    #[error("{why}; the cleanup failed as well: {then}; run `inplace node rm {pod}` again")]
    Unclean {
        /// The pod as `namespace/name`.
        pod: String,
        /// Why the pod was not started.
        why: Box<RunError>,
        /// Why the cleanup failed.
        then: Box<RmError>,
    },
}

/// Runs a pod that does not exist yet. Each image pull is limited to `pull_within`.
///
/// An interrupted call (kill, power loss) leaves objects behind. They hold the name, and [`super::rm()`] removes
/// them.
pub async fn run(
    client: &Client,
    manifest: &Manifest,
    dirs: &Dirs,
    pull_within: Duration,
) -> Result<Started, RunError> {
    let pod = PodRef {
        namespace: manifest.namespace.clone(),
        name: manifest.name.clone(),
        uid: manifest.uid.clone().map_or_else(new_uid, Ok)?,
    };
    free(client, &pod, dirs).await?;
    if !files::claim(dirs, &pod.namespace, &pod.name, &pod.uid)? {
        return Err(RunError::Claimed(pod.to_string()));
    }
    let why = match Box::pin(make(client, manifest, &pod, dirs, pull_within)).await {
        Ok(started) => return Ok(started),
        Err(why) => why,
    };
    match rm::clear(client, &pod, dirs).await {
        Ok(_) => Err(why),
        Err(then) => {
            Err(RunError::Unclean { pod: pod.to_string(), why: Box::new(why), then: Box::new(then) })
        }
    }
}

/// Refuses if a pod of that name or uid exists, whatever created it.
async fn free(client: &Client, pod: &PodRef, dirs: &Dirs) -> Result<(), RunError> {
    for sandbox in client.sandboxes(None).await? {
        let Some(metadata) = &sandbox.metadata else { continue };
        if metadata.namespace == pod.namespace && metadata.name == pod.name {
            return Err(RunError::Exists { pod: pod.to_string(), owner: owned_by(owner(&sandbox)) });
        }
        if metadata.uid == pod.uid {
            let other = format!("{}/{}", metadata.namespace, metadata.name);
            return Err(RunError::UidTaken { uid: pod.uid.clone(), pod: other });
        }
    }
    // The volumes of a pod whose sandbox is gone and that was not removed.
    let volumes = dirs.volumes(&pod.uid);
    if volumes.exists() {
        return Err(RunError::UidTaken { uid: pod.uid.clone(), pod: format!("of {}", volumes.display()) });
    }
    Ok(())
}

async fn make(
    client: &Client,
    manifest: &Manifest,
    pod: &PodRef,
    dirs: &Dirs,
    pull_within: Duration,
) -> Result<Started, RunError> {
    files::make(manifest, &pod.uid, dirs)?;
    let sandbox = config::sandbox_config(manifest, &pod.uid, dirs);
    let mut images = Vec::new();
    for container in &manifest.containers {
        images.push(Box::pin(image(client, container, &sandbox, pull_within)).await?);
    }
    let sandbox_id = Box::pin(client.run_sandbox(sandbox.clone())).await?;
    let mut containers = Vec::new();
    for (container, image_id) in manifest.containers.iter().zip(&images) {
        let config = config::container_config(manifest, container, image_id, &pod.uid, dirs);
        let named = |source| RunError::Container { container: container.name.clone(), source };
        let id = Box::pin(client.create(&sandbox_id, config, sandbox.clone()))
            .await
            .map_err(|error| hidden(manifest, &pod.uid, dirs, &error).unwrap_or_else(|| named(error)))?;
        client.start(&id).await.map_err(named)?;
        containers.push(StartedContainer { name: container.name.clone(), id, exited: None });
    }
    for container in &mut containers {
        let seen = client.container(&container.id, false).await?.and_then(|answer| answer.status);
        let ended = seen.filter(|status| status.state == i32::from(v1::ContainerState::ContainerExited));
        container.exited = ended.map(|status| status.exit_code);
    }
    let seen = client.sandbox(&sandbox_id, false).await?.and_then(|answer| answer.status);
    let ip = seen.and_then(|status| status.network).unwrap_or_default().ip;
    Ok(Started { pod: pod.clone(), sandbox_id, ip, containers })
}

/// Recognizes the failure of a runtime that does not see a memory volume: its error names the volume's path; see
/// `files`.
fn hidden(manifest: &Manifest, uid: &str, dirs: &Dirs, error: &Error) -> Option<RunError> {
    let memory = |volume: &&Volume| {
        let path = files::host_path(volume, uid, dirs).display().to_string();
        volume.source == VolumeSource::Memory && error.message.contains(&path)
    };
    let volume = manifest.volumes.iter().find(memory)?.name.clone();
    Some(RunError::HiddenMemory { volume })
}

/// Ensures that a container's image is on the node, and returns the image ID.
async fn image(
    client: &Client,
    container: &Container,
    sandbox: &v1::PodSandboxConfig,
    pull_within: Duration,
) -> Result<String, RunError> {
    let named = |source| RunError::Container { container: container.name.clone(), source };
    let reference = container.image.as_str();
    let (name, image) = (container.name.clone(), reference.to_owned());
    if container.pull != PullPolicy::Always {
        if let Some(id) = local(client, reference).await.map_err(named)? {
            return Ok(id);
        }
        if container.pull == PullPolicy::Never {
            return Err(RunError::NoImage { container: name, image });
        }
    }
    let pulled = Box::pin(client.pull(reference, Some(sandbox.clone()), pull_within)).await.map_err(named)?;
    let found = local(client, &pulled).await.map_err(named)?;
    found.ok_or(RunError::Vanished { container: name, image })
}

async fn local(client: &Client, reference: &str) -> Result<Option<String>, Error> {
    let answer = client.image(reference, false).await?;
    Ok(answer.and_then(|answer| answer.image).map(|image| image.id).filter(|id| !id.is_empty()))
}

fn new_uid() -> Result<String, RunError> {
    random::uuid().map_err(RunError::NoUid)
}
