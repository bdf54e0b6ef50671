//! Finds containers of some pods that have ended with a failure, from the runtime's list of ended containers.
//!
//! What an operation has ended is no failure. Must not report to the API server.

use std::collections::{HashMap, HashSet};

use jiff::{SignedDuration, Timestamp};

use crate::api::annotation;
use crate::api::group_failure::GroupFailure;
use crate::api::pod_ref::PodRef;
use crate::cri::convert;
use crate::cri::error::Error;
use crate::cri::proto::v1::Container;
use crate::node::Node;
use crate::node::journal::File;
use crate::process::clock;

/// A container that ended longer ago is no news: an agent that was away that long does not report it.
const RECENT: SignedDuration = SignedDuration::from_mins(5);

/// Finds each failure once.
#[derive(Debug, Default)]
pub struct Failed {
    /// The IDs of ended containers that need no look any more.
    seen: HashSet<String>,
}

/// A failure, and the ID of its container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The pod.
    pub pod: PodRef,
    /// The failed container.
    pub failure: GroupFailure,
    id: String,
}

impl Failed {
    /// The failures of the `named` containers of pods that were not [`Self::handle`]d yet.
    ///
    /// # Errors
    /// When the runtime does not answer.
    pub async fn find(
        &mut self,
        node: &Node,
        named: &HashMap<PodRef, HashSet<String>>,
    ) -> Result<Vec<Found>, Error> {
        let ended = node.client.ended_containers().await?;
        let there: HashSet<_> = ended.iter().map(|container| container.id.clone()).collect();
        self.seen.retain(|id| there.contains(id));
        let mut found = Vec::new();
        for (pod, name, container) in newest(ended, named) {
            if self.seen.contains(&container.id) {
                continue;
            }
            let Some(status) =
                node.client.container(&container.id, false).await?.and_then(|answer| answer.status)
            else {
                continue;
            };
            let Ok(finished_at) = Timestamp::from_millisecond(status.finished_at / 1_000_000) else {
                continue;
            };
            let is_recent = clock::now().duration_since(finished_at) < RECENT;
            if status.exit_code != 0 && is_recent {
                match is_replaced(node, &pod, &name, status.finished_at).await? {
                    None => continue,
                    Some(true) => {}
                    Some(false) => {
                        let failure =
                            GroupFailure { container: name, exit_code: status.exit_code, finished_at };
                        found.push(Found { pod, failure, id: container.id });
                        continue;
                    }
                }
            }
            self.seen.insert(container.id);
        }
        Ok(found)
    }

    /// Records that a failure needs no look any more.
    pub fn handle(&mut self, found: &Found) {
        self.seen.insert(found.id.clone());
    }
}

/// The newest ended container of each name.
fn newest(
    ended: Vec<Container>,
    named: &HashMap<PodRef, HashSet<String>>,
) -> Vec<(PodRef, String, Container)> {
    let mut newest: HashMap<(PodRef, String), Container> = HashMap::new();
    for container in ended {
        let Some(name) = container.labels.get(annotation::CONTAINER_NAME).cloned() else { continue };
        let pod = convert::pod(&container.labels);
        if !named.get(&pod).is_some_and(|names| names.contains(&name)) {
            continue;
        }
        let of = newest.entry((pod, name)).or_insert_with(|| container.clone());
        if container.created_at > of.created_at {
            *of = container;
        }
    }
    newest.into_iter().map(|((pod, name), container)| (pod, name, container)).collect()
}

/// Whether an operation has created or started the container again since it ended, at `ended` in nanoseconds since 1970:
/// it has ended the container, or has restarted it since. `None` while an operation is in progress, or when that is not
/// known.
async fn is_replaced(node: &Node, pod: &PodRef, name: &str, ended: i64) -> Result<Option<bool>, Error> {
    let of = pod.clone();
    let lock = node.journal.run_blocking(File::Lock, &pod.uid, move |journal| journal.hold(&of)).await;
    let Ok(_lock) = lock else { return Ok(None) };
    let Ok(entry) = node.journal.load_async(pod).await else { return Ok(None) };
    if entry.open.is_some() || entry.foreign.is_some() {
        return Ok(None);
    }
    let report = entry.last.as_ref().and_then(|last| last.containers.iter().find(|one| one.name == name));
    if report.and_then(|one| one.started_at).is_some_and(|at| at.as_nanosecond() >= ended.into()) {
        return Ok(Some(true));
    }
    let mut instances = node.client.containers(Some((annotation::POD_UID, pod.uid.as_str()))).await?;
    instances.retain(|one| one.labels.get(annotation::CONTAINER_NAME).is_some_and(|of| of == name));
    let newest = instances.into_iter().max_by_key(|one| one.created_at);
    let is_ours = |one: &Container| one.created_at >= ended && one.labels.contains_key(annotation::OPERATION);
    Ok(Some(newest.is_some_and(|one| is_ours(&one))))
}
