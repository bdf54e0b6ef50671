//! Removing what belongs to no open operation: fences, and containers of ours that were created and never started.
//!
//! Also forgets what is known of pods that are gone.
//!
//! A fence that stays would keep a kubelet from ever starting that attempt, so those of a pod whose journal cannot be read
//! are removed as well, unless somebody is at work on that pod.

use std::collections::HashSet;

use crate::api::annotation;
use crate::cri::client::Client;
use crate::cri::convert;
use crate::cri::error::Error;
use crate::cri::proto::v1::{Container, ContainerState};
use crate::node::journal::{Journal, JournalError};
use crate::operation::snapshot::PodRef;

/// Removes everything forgotten, of one pod or of all, and returns how many there were.
pub async fn sweep(client: &Client, journal: &Journal, only: Option<&PodRef>) -> Result<usize, Error> {
    let filter = only.map(|pod| (annotation::POD_UID, pod.uid.as_str()));
    let mut removed = 0;
    for container in client.containers(filter).await? {
        if !is_forgotten(journal, &container) {
            continue;
        }
        let pod = convert::pod(&container.labels);
        match client.remove(&container.id).await {
            Ok(()) => {
                removed += 1;
                tracing::warn!(%pod, container = name(&container), id = container.id, "removed a forgotten fence");
            }
            Err(error) => tracing::warn!(%pod, id = container.id, %error, "a forgotten fence stays for now"),
        }
    }
    Ok(removed)
}

/// Forgets the pods that are gone: a uid never comes back. What is open or cannot be read stays for a person to see.
pub async fn forget_gone(client: &Client, journal: &Journal) -> Result<(), Error> {
    let there: HashSet<_> = convert::list_pods(client).await?.into_iter().map(|pod| pod.uid).collect();
    for entry in journal.all().into_iter().flatten().flatten() {
        if entry.open.is_some() || there.contains(&entry.pod.uid) {
            continue;
        }
        match journal.forget(&entry.pod) {
            Ok(()) => tracing::debug!(pod = %entry.pod, "forgot a pod that is gone"),
            Err(error) => tracing::warn!(pod = %entry.pod, %error, "a pod that is gone cannot be forgotten"),
        }
    }
    Ok(())
}

fn is_forgotten(journal: &Journal, container: &Container) -> bool {
    let label = |key: &str| container.labels.get(key).map(String::as_str);
    let fence = label(annotation::CONTAINER_NAME) == Some(annotation::FENCE_NAME);
    let ours = label(annotation::OPERATION).is_some();
    let never_ran = container.state == i32::from(ContainerState::ContainerCreated);
    if !(fence || ours && never_ran) {
        return false;
    }
    let pod = convert::pod(&container.labels);
    match journal.load(&pod) {
        // An operation that is open takes care of everything of its pod itself.
        Ok(entry) => entry.open.is_none(),
        // No operation can be begun or resumed from such a file, but one may be under way that has written it.
        Err(JournalError::Damaged { .. } | JournalError::Version { .. }) => {
            !matches!(journal.hold(&pod), Err(JournalError::Busy(_)))
        }
        Err(_) => false,
    }
}

fn name(container: &Container) -> &str {
    container.metadata.as_ref().map_or("", |metadata| metadata.name.as_str())
}
