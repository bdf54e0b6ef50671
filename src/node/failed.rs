//! Finds containers of some pods that have ended with a failure, from the runtime's list of ended containers.
//!
//! What an operation has ended is no failure. Must not report to the API server.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use crate::api::annotation;
use crate::api::group_failure::GroupFailure;
use crate::api::pod_ref::PodRef;
use crate::cluster::pod::Pod;
use crate::cri::convert;
use crate::cri::error::Error;
use crate::cri::proto::v1::Container;
use crate::failure::Class;
use crate::node::Node;
use crate::process::backoff::Backoff;
use crate::process::clock;

/// A container that ended longer ago, when it is looked at first, is no news.
const RECENT: SignedDuration = SignedDuration::from_mins(5);
/// The pauses before a container is looked at again, while an operation is at work on its pod, or a report fails.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));

/// The pods to look at.
pub type Members = HashMap<PodRef, Arc<Pod>>;

/// Finds each failure once.
#[derive(Debug, Default)]
pub struct Failed {
    /// The ended containers, by ID.
    looks: HashMap<String, Look>,
    /// The pods of the last look; `None` before the first one.
    known: Option<HashSet<PodRef>>,
}

/// What is known about an ended container.
#[derive(Clone, Copy, Debug)]
enum Look {
    /// It needs no look any more.
    Over,
    /// It is looked at again at this time, after this number of attempts.
    Again(Instant, u32),
}

/// A failure of a container of this pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The pod.
    pub pod: PodRef,
    /// The failed container.
    pub failure: GroupFailure,
}

impl Failed {
    /// The state of a program that has had no member so far.
    pub fn of_running() -> Self {
        Self { known: Some(HashSet::new()), ..Self::default() }
    }

    /// The failures in the `members` that were not handled yet. Of a pod that becomes a member while this program runs,
    /// only failures from then on.
    ///
    /// # Errors
    /// When the runtime does not answer.
    pub async fn find(&mut self, node: &Node, members: &Members) -> Result<Vec<Found>, Error> {
        let ended = node.client.ended_containers().await?;
        let there: HashSet<_> = ended.iter().map(|container| container.id.clone()).collect();
        self.looks.retain(|id, _| there.contains(id));
        let before = self.known.replace(members.keys().cloned().collect());
        let mut found = Vec::new();
        for (pod, name, container) in newest(ended, members) {
            let is_new = before.as_ref().is_some_and(|before| !before.contains(&pod));
            if is_new {
                self.looks.insert(container.id.clone(), Look::Over);
            }
            let is_first = match self.looks.get(&container.id) {
                None => true,
                Some(Look::Again(at, _)) if *at <= Instant::now() => false,
                Some(_) => continue,
            };
            match failure(node, &pod, name, &container, is_first).await {
                Ok(Verdict::Failure(failure)) => found.push(Found { pod, failure }),
                Ok(Verdict::None) => self.handled(&container.id),
                Ok(Verdict::Busy) => drop(self.again(&container.id)),
                Err(error) if error.class == Class::NotSent => return Err(error),
                Err(error) => {
                    tracing::debug!(%pod, %error, "an ended container cannot be read: retrying");
                    self.again(&container.id);
                }
            }
        }
        found.sort_by_key(|found| found.failure.finished_at);
        Ok(found)
    }

    /// Records that a container needs no look any more.
    pub fn handled(&mut self, id: &str) {
        self.looks.insert(id.to_owned(), Look::Over);
    }

    /// Records that a container is looked at again after a pause. True at the first time.
    pub fn again(&mut self, id: &str) -> bool {
        let before = match self.looks.get(id) {
            Some(Look::Again(_, attempts)) => *attempts,
            _ => 0,
        };
        let at = Instant::now() + BACKOFF.after(before);
        self.looks.insert(id.to_owned(), Look::Again(at, before.saturating_add(1)));
        before == 0
    }
}

/// Whether a container has failed.
enum Verdict {
    Failure(GroupFailure),
    None,
    /// An operation is at work on the pod, or that is not known.
    Busy,
}

async fn failure(
    node: &Node,
    pod: &PodRef,
    name: String,
    container: &Container,
    is_first: bool,
) -> Result<Verdict, Error> {
    let Some(status) = node.client.container(&container.id, false).await?.and_then(|answer| answer.status)
    else {
        return Ok(Verdict::None);
    };
    let finished_at = Timestamp::from_millisecond(status.finished_at / 1_000_000).unwrap_or(Timestamp::MIN);
    let is_old = clock::now().duration_since(finished_at) >= RECENT;
    // Without a start it is what an operation or a kubelet could not start.
    if status.exit_code == 0 || status.started_at == 0 || is_first && is_old {
        return Ok(Verdict::None);
    }
    Ok(match is_replaced(node, pod, &name, container, status.finished_at).await? {
        None => Verdict::Busy,
        Some(true) => Verdict::None,
        Some(false) => {
            let (container_id, exit_code) = (container.id.clone(), status.exit_code);
            Verdict::Failure(GroupFailure { container: name, container_id, exit_code, finished_at })
        }
    })
}

/// The newest ended container of each name.
fn newest(ended: Vec<Container>, members: &Members) -> Vec<(PodRef, String, Container)> {
    let mut newest: HashMap<(PodRef, String), Container> = HashMap::new();
    for container in ended {
        let Some(name) = container.labels.get(annotation::CONTAINER_NAME).cloned() else { continue };
        let pod = convert::pod(&container);
        if !members.get(&pod).is_some_and(|pod| pod.containers().iter().any(|one| one.name == name)) {
            continue;
        }
        let of = newest.entry((pod, name)).or_insert_with(|| container.clone());
        if container.created_at > of.created_at {
            *of = container;
        }
    }
    newest.into_iter().map(|((pod, name), container)| (pod, name, container)).collect()
}

/// Whether an operation has ended the container, or has created or started it again since it ended, at `ended` in
/// nanoseconds since 1970. `None` while an operation is in progress, or when that is not known.
async fn is_replaced(
    node: &Node,
    pod: &PodRef,
    name: &str,
    container: &Container,
    ended: i64,
) -> Result<Option<bool>, Error> {
    let Ok(lock) = node.hold(pod).await else { return Ok(None) };
    let Ok(entry) = node.load(pod).await else { return Ok(None) };
    // An operation that begins from here on replaces the container as well.
    drop(lock);
    if entry.open.is_some() || entry.foreign.is_some() {
        return Ok(None);
    }
    let last = entry.ended(name);
    let started = last.as_ref().and_then(|last| last.started_at);
    if last.is_some_and(|last| last.id == container.id)
        || started.is_some_and(|at| at.as_nanosecond() >= ended.into())
    {
        return Ok(Some(true));
    }
    let mut instances = node.client.containers(Some((annotation::POD_UID, pod.uid.as_str()))).await?;
    instances.retain(|one| one.labels.get(annotation::CONTAINER_NAME).is_some_and(|of| of == name));
    let newest = instances.into_iter().max_by_key(|one| one.created_at);
    let is_ours = |one: &Container| one.created_at >= ended && one.labels.contains_key(annotation::OPERATION);
    Ok(Some(newest.is_some_and(|one| is_ours(&one))))
}
