//! The end of a pod that `run` made: containers, sandbox, volumes, logs, and at last its name.
//!
//! Each step may have been done before, so a call that was cut off is finished by the next one. Must not touch what
//! `run` did not make.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::task::JoinSet;

use super::{BadFile, Dirs, files, owned_by};
use crate::api::annotation;
use crate::cri::client::Client;
use crate::cri::convert::{owner, sandboxes_of};
use crate::cri::error::Error;
use crate::cri::proto::v1;
use crate::operation::effect::Class;
use crate::operation::snapshot::{Owner, PodRef};

/// What Kubernetes gives a container to stop unless told otherwise.
const GRACE: Duration = Duration::from_secs(30);
/// How often a refused call is made, and how long apart: about ten seconds.
const TRIES: u32 = 50;
/// The same for a stop, each of which may take the whole grace.
const STOP_TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(200);

/// What was there and is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Sandboxes.
    pub sandboxes: usize,
    /// Containers, whether they ran or not.
    pub containers: usize,
    /// The name was taken, with or without a sandbox.
    pub claim: bool,
}

impl Removed {
    /// There was no such pod.
    pub fn nothing(self) -> bool {
        self == Self::default()
    }
}

/// Why a pod is still there, or a part of it.
#[derive(Debug, thiserror::Error)]
pub enum RmError {
    /// Another pod of that name.
    #[error("pod {pod} was not made by node run: {owner}")]
    NotOurs {
        /// `namespace/name`.
        pod: String,
        /// Who made it and what to do.
        owner: &'static str,
    },
    /// Its files are elsewhere.
    #[error("pod {pod} keeps its files in {dir}: call again with --state-dir {dir}")]
    OtherState {
        /// `namespace/name`.
        pod: String,
        /// The state directory it was made with.
        dir: String,
    },
    /// Not a name, or not a uid; it is not used as a path.
    #[error("`{0}` is not the name of a pod that node run can have made: letters, digits and `-`")]
    Name(String),
    /// A file or folder.
    #[error("{0}; call again when that is solved")]
    File(#[from] BadFile),
    /// A call.
    #[error("{0}; what is gone is gone, call again for the rest")]
    Runtime(#[from] Error),
}

/// Removes a pod. That there is none is no error.
pub async fn rm(client: &Client, namespace: &str, name: &str, dirs: &Dirs) -> Result<Removed, RmError> {
    let shown = || format!("{namespace}/{name}");
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
            return Err(RmError::OtherState { pod: shown(), dir: dir.clone() });
        }
    }
    if let (Some(other), true, None) = (others.first(), ours.is_empty(), &claimed) {
        return Err(RmError::NotOurs { pod: shown(), owner: owned_by(owner(other)) });
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

/// Removes everything of one pod that `run` made.
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
    // All get their full time, also when one of them fails.
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

/// Stops one container with the grace it was made with.
///
/// This is where its preStop handler (annotation [`annotation::PRE_STOP`]) belongs: first the handler, then the stop
/// with what the handler left of the grace, two seconds at least.
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
        // It had its time; the end of the sandbox is the end of it too.
        Err(error) if error.class != Class::Away => Ok(()),
        result => result,
    }
}

/// Repeats a call that the runtime refuses: it does so while a start that was cut off is still on its way (a second
/// was seen), and for a container that ends by itself at that moment. What is gone is done.
async fn patient(client: &Client, id: &str, step: Step) -> Result<(), Error> {
    let mut tries = if let Step::Stop(_) = step { STOP_TRIES } else { TRIES };
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

/// A call of the way down.
#[derive(Clone, Copy)]
enum Step {
    Stop(Duration),
    StopSandbox,
    Remove,
    RemoveSandbox,
}

/// What becomes part of a path.
fn check(part: &str) -> Result<(), RmError> {
    if part.is_empty() || !part.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
        return Err(RmError::Name(part.to_owned()));
    }
    Ok(())
}
