//! Removes a pod that `run` created: containers, sandbox, volumes, logs, and finally the claim on its name.
//!
//! Every step is idempotent, so a second call completes one that was interrupted. Must not touch what `run` did not
//! create.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::task::JoinSet;

use super::{BadFile, Dirs, files, owned_by};
use crate::api::annotation;
use crate::api::pod_ref::PodRef;
use crate::cri::client::Client;
use crate::cri::convert::{owner, sandboxes_of};
use crate::cri::error::Error;
use crate::cri::proto::v1;
use crate::failure::Class;
use crate::operation::snapshot::Owner;

/// Kubernetes' default termination grace period.
const GRACE: Duration = Duration::from_secs(30);
/// How often a refused call is repeated; with [`PAUSE`] about ten seconds in all.
const MAX_TRIES: u32 = 50;
/// How often a refused stop is made; each may take the whole grace period.
const MAX_STOP_TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(200);

/// The objects that existed and are removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// The number of sandboxes.
    pub sandboxes: usize,
    /// The number of containers, whether they ran or not.
    pub containers: usize,
    /// Whether the name was claimed, with or without a sandbox.
    pub claim: bool,
}

impl Removed {
    /// True if there was no such pod.
    pub fn nothing(self) -> bool {
        self == Self::default()
    }
}

/// Why a pod, or a part of it, is not removed.
#[derive(Debug, thiserror::Error)]
pub enum RmError {
    /// The pod of that name was not created by `run`.
    #[error("pod {pod} was not created by `inplace node run`: {owner}")]
    NotOurs {
        /// The pod as `namespace/name`.
        pod: String,
        /// The creator of the pod, and how to remove it.
        owner: &'static str,
    },
    /// The pod's files are in another state directory.
    #[error("the files of pod {pod} are in {dir}: run the command again with --state-dir {dir}")]
    OtherState {
        /// The pod as `namespace/name`.
        pod: String,
        /// The state directory with which the pod was created.
        dir: String,
    },
    /// The text is no valid name or uid; it is not used as a path.
    #[error(
        "`{0}` is not a name or uid of a pod of `inplace node run`: only letters, digits and `-` are allowed"
    )]
    Name(String),
    /// A file or folder cannot be removed.
    #[error("{0}; fix this and run the command again")]
    File(#[from] BadFile),
    /// A call to the runtime failed.
    #[error("{0}; the pod may be partly removed: run the command again")]
    Runtime(#[from] Error),
}

/// Removes a pod. A missing pod is not an error.
pub async fn rm(client: &Client, namespace: &str, name: &str, dirs: &Dirs) -> Result<Removed, RmError> {
    let display_name = || format!("{namespace}/{name}");
    for part in [namespace, name] {
        check(part)?;
    }
    let claimed = files::claimed(dirs, namespace, name)?;
    let (ours, others): (Vec<_>, Vec<_>) = sandboxes_of(client, namespace, name)
        .await?
        .into_iter()
        .partition(|sandbox| owner(sandbox) == Owner::NodeRun);
    for sandbox in &ours {
        let dir = sandbox.annotations.get(annotation::STATE_DIR);
        if let Some(dir) = dir.filter(|dir| Some(dir.as_str()) != dirs.state().to_str()) {
            return Err(RmError::OtherState { pod: display_name(), dir: dir.clone() });
        }
    }
    if let (Some(other), true, None) = (others.first(), ours.is_empty(), &claimed) {
        return Err(RmError::NotOurs { pod: display_name(), owner: owned_by(owner(other)) });
    }
    let uids: BTreeSet<_> =
        ours.iter().filter_map(|one| one.labels.get(annotation::POD_UID).cloned()).chain(claimed).collect();
    let mut removed = Removed::default();
    for uid in uids {
        let pod = PodRef { namespace: namespace.to_owned(), name: name.to_owned(), uid };
        let more = clear(client, &pod, dirs).await?;
        removed.sandboxes += more.sandboxes;
        removed.containers += more.containers;
        removed.claim |= more.claim;
    }
    Ok(removed)
}

/// Removes everything of one pod that `run` created.
pub(super) async fn clear(client: &Client, pod: &PodRef, dirs: &Dirs) -> Result<Removed, RmError> {
    check(&pod.uid)?;
    let mut sandboxes = sandboxes_of(client, &pod.namespace, &pod.name).await?;
    sandboxes.retain(|sandbox| {
        owner(sandbox) == Owner::NodeRun && sandbox.labels.get(annotation::POD_UID) == Some(&pod.uid)
    });
    let mut containers = client.containers(Some((annotation::POD_UID, &pod.uid))).await?;
    containers.retain(|container| sandboxes.iter().any(|sandbox| sandbox.id == container.pod_sandbox_id));
    let mut stops = JoinSet::new();
    for container in &containers {
        stops.spawn(stop(client.clone(), container.clone()));
    }
    // Wait for all stops, so that each container gets its full grace period even if another stop fails.
    stops.join_all().await.into_iter().collect::<Result<(), Error>>()?;
    for sandbox in &sandboxes {
        patient(client, &sandbox.id, Step::StopSandbox).await?;
    }
    for container in &containers {
        patient(client, &container.id, Step::Remove).await?;
    }
    for sandbox in &sandboxes {
        patient(client, &sandbox.id, Step::RemoveSandbox).await?;
    }
    files::remove(dirs, &pod.namespace, &pod.name, &pod.uid)?;
    let claim = files::claimed(dirs, &pod.namespace, &pod.name)?.as_deref() == Some(&pod.uid);
    if claim {
        files::release(dirs, &pod.namespace, &pod.name)?;
    }
    Ok(Removed { sandboxes: sandboxes.len(), containers: containers.len(), claim })
}

/// Stops one container with the grace period of its creation.
///
/// The preStop handler (annotation [`annotation::PRE_STOP`]) is not run yet. Its place is here: first the handler,
/// then the stop with the rest of the grace period, at least two seconds.
async fn stop(client: Client, container: v1::Container) -> Result<(), Error> {
    if matches!(
        v1::ContainerState::try_from(container.state),
        Ok(v1::ContainerState::ContainerCreated | v1::ContainerState::ContainerExited)
    ) {
        return Ok(());
    }
    let grace = container.annotations.get(annotation::TERMINATION_GRACE);
    let grace = grace.and_then(|text| text.parse().ok()).map_or(GRACE, Duration::from_secs);
    match patient(&client, &container.id, Step::Stop(grace)).await {
        // The container had its grace period; the removal of the sandbox ends it.
        Err(error) if error.class != Class::Unavailable => Ok(()),
        result => result,
    }
}

/// Repeats a call that the runtime refuses. The runtime refuses calls while an interrupted start is still in
/// progress (one second was observed), and for a container that exits at that moment. A missing object counts as
/// done.
async fn patient(client: &Client, id: &str, step: Step) -> Result<(), Error> {
    let mut tries = if let Step::Stop(_) = step { MAX_STOP_TRIES } else { MAX_TRIES };
    loop {
        tries -= 1;
        let result = match step {
            Step::Stop(grace) => client.stop(id, grace).await,
            Step::StopSandbox => client.stop_sandbox(id).await,
            Step::Remove => client.remove(id).await,
            Step::RemoveSandbox => client.remove_sandbox(id).await,
        };
        match result {
            Err(error) if error.class == Class::Gone => return Ok(()),
            Err(error) if error.class == Class::Refused && tries > 0 => tokio::time::sleep(PAUSE).await,
            result => return result,
        }
    }
}

/// A call of the removal.
#[derive(Clone, Copy)]
enum Step {
    Stop(Duration),
    StopSandbox,
    Remove,
    RemoveSandbox,
}

/// Verifies that `part` is safe as a part of a path.
fn check(part: &str) -> Result<(), RmError> {
    if part.is_empty() || !part.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
        return Err(RmError::Name(part.to_owned()));
    }
    Ok(())
}
