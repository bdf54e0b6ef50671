//! Removes containers that belong to no open operation: fences, also those of earlier releases without a log path, standbys
//! beside a container that serves, and containers of an operation that were created and never started. Also deletes the journals of pods that are gone.
//!
//! A fence that stays would prevent a kubelet from ever starting that attempt. Fences of a pod whose journal cannot
//! be read are therefore removed as well, unless a process works on that pod.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use crate::api::annotation;
use crate::api::pod_ref::PodRef;
use crate::cri::client::Client;
use crate::cri::convert::{self, is_fence, is_standby};
use crate::cri::error::Error;
use crate::cri::proto::v1::{Container, ContainerState, ContainerStatus};
use crate::failure::Class;
use crate::node::fence;
use crate::node::journal::{File, Journal, JournalError};
use crate::node::pre_stop;
use crate::operation::standby::serves_after;
use crate::process::clock;

/// Time limit of one call. A container that cannot be removed now is tried again in the next sweep.
const LIMIT: Duration = Duration::from_secs(10);

/// The longest time that a sweep waits for an orphaned standby to stop.
const MAX_GRACE: Duration = Duration::from_secs(30);
/// The time that a standby has between SIGTERM and SIGKILL, however long its preStop handler takes.
const MIN_GRACE: Duration = Duration::from_secs(2);
/// How long a standby with ports is kept while its container runs and ends again. An older one may hold something that the
/// container needs to stay up.
const SHARES_FOR: SignedDuration = SignedDuration::from_secs(3600);

/// Removes all orphans, either of one pod whose journal the caller has locked or of all pods, and returns their
/// number.
pub async fn sweep(client: &Client, journal: &Journal, held: Option<&PodRef>) -> Result<usize, Error> {
    let client = &client.within(LIMIT);
    let filter = held.map(|pod| (annotation::POD_UID, pod.uid.as_str()));
    let mut removed = remove_unsafe_fences(client, held).await?;
    for container in client.containers(filter).await? {
        let pod = convert::pod(&container);
        if held.is_some_and(|held| *held != pod) || !is_ours(&container.labels, container.state()) {
            continue;
        }
        // An operation that begins meanwhile manages all containers of its pod itself.
        let _lock = match held {
            Some(_) => None,
            None => match journal.hold_async(&pod).await {
                Ok(lock) => Some(lock),
                Err(_) => continue,
            },
        };
        if has_no_operation(journal, &pod).await && is_still_ours(client, &pod, &container.id).await? {
            let serves = is_standby(&container.labels) && may_run(&container);
            if serves && !stop_standby(client, &pod, &container).await? {
                continue;
            }
            removed += usize::from(
                remove(client, &pod, &container.id, "removed an orphaned fence or standby").await,
            );
        }
    }
    Ok(removed)
}

/// Removes the fences of earlier releases that have no log path, of one pod or of all, and returns their number. A
/// kubelet that collects such a fence deletes the files of its own working directory (see [`crate::cri::log_path`]).
/// They are removed whatever the journal holds: an operation that needs a fence creates another one.
async fn remove_unsafe_fences(client: &Client, only: Option<&PodRef>) -> Result<usize, Error> {
    let filter = only.map(|pod| (annotation::POD_UID, pod.uid.as_str()));
    let mut removed = 0;
    for container in client.containers(filter).await? {
        let pod = convert::pod(&container);
        if only.is_some_and(|only| *only != pod) || !is_fence(&container.labels) {
            continue;
        }
        let status = read(client, &pod, &container.id).await?;
        if status.is_some_and(|status| status.log_path.is_empty()) {
            let done = "removed an unsafe fence of an earlier release: it had no log path";
            removed += usize::from(remove(client, &pod, &container.id, done).await);
        }
    }
    Ok(removed)
}

/// Stops an orphaned standby within the grace period of its pod, at most [`MAX_GRACE`], in which its preStop handler runs
/// first. False if it stays: nothing else may serve, or it does not stop now.
async fn stop_standby(client: &Client, pod: &PodRef, standby: &Container) -> Result<bool, Error> {
    let name = standby.labels.get(annotation::STANDBY);
    let containers = client.containers(Some((annotation::POD_UID, pod.uid.as_str()))).await?;
    let now = clock::now();
    let is_replaced = |other: &&Container| other.labels.get(annotation::CONTAINER_NAME) == name;
    let shares =
        standby.annotations.contains_key(annotation::PORTS) && !is_past(standby.created_at, SHARES_FOR, now);
    let mut runs_or_ran = false;
    for other in containers.iter().filter(is_replaced) {
        runs_or_ran |= match other.state() {
            ContainerState::ContainerRunning => {
                let ahead = SignedDuration::from_nanos(other.created_at.saturating_sub(standby.created_at));
                is_past(other.created_at, serves_after(ahead), now)
            }
            // One that has ended beside the standby may need what the standby holds. One that never started does not, and
            // neither does one whose ports the standby shares, and serves.
            ContainerState::ContainerExited if !shares && other.created_at > standby.created_at => {
                read(client, pod, &other.id).await?.is_some_and(|status| status.started_at > 0)
            }
            _ => false,
        };
    }
    if !runs_or_ran {
        return Ok(false);
    }
    let grace =
        standby.annotations.get(annotation::TERMINATION_GRACE).and_then(|seconds| seconds.parse().ok());
    let grace = grace.map_or(MAX_GRACE, Duration::from_secs).min(MAX_GRACE);
    let (client, began) = (client.within(grace + LIMIT), Instant::now());
    // As a kubelet does: without a grace period the handler is not run.
    let handled = if grace.is_zero() {
        None
    } else {
        pre_stop::run(&client, &standby.pod_sandbox_id, &standby.id, grace).await?
    };
    if let Some(Err(why)) = handled {
        tracing::warn!(%pod, standby.id, why, "the preStop handler of an orphaned standby failed");
    }
    let left = grace.saturating_sub(began.elapsed()).max(MIN_GRACE);
    let stopped = client.stop(&standby.id, left).await;
    if let Err(error) = &stopped {
        tracing::warn!(%pod, standby.id, %error, "an orphaned standby does not stop now: the next sweep retries");
    }
    Ok(stopped.is_ok())
}

fn may_run(container: &Container) -> bool {
    matches!(container.state(), ContainerState::ContainerRunning | ContainerState::ContainerUnknown)
}

/// Whether `created_at`, in nanoseconds since 1970, is more than `age` before `now`.
fn is_past(created_at: i64, age: SignedDuration, now: Timestamp) -> bool {
    i128::from(created_at) + age.as_nanos() <= now.as_nanosecond()
}

/// A fence that cannot be removed is tried again in the next sweep.
async fn remove(client: &Client, pod: &PodRef, id: &str, done: &str) -> bool {
    let removed = fence::remove(client, id).await;
    match &removed {
        Ok(()) => tracing::warn!(%pod, id, "{done}"),
        Err(error) => {
            tracing::warn!(%pod, id, %error, "a fence cannot be removed now: the next sweep retries");
        }
    }
    removed.is_ok()
}

/// Deletes the journals of pods that are gone, and locks without a journal: a uid is never used again. Files that are
/// open or cannot be read stay for a person to inspect.
pub async fn remove_gone(client: &Client, journal: &Journal) -> Result<(), Error> {
    let mut gone = match closed(journal).await {
        Ok(closed) => closed,
        Err(error) => {
            tracing::warn!(%error, "the journal cannot be listed: the journals of deleted pods are removed later");
            return Ok(());
        }
    };
    // Listed after the files: a pod that has appeared since has none of them.
    let there: HashSet<_> = convert::list_pods(client).await?.into_iter().map(|pod| pod.uid).collect();
    gone.retain(|pod| !there.contains(&pod.uid));
    for pod in gone {
        // Another process may have begun to work on it.
        let Ok(lock) = journal.hold_async(&pod).await else { continue };
        if !has_no_operation(journal, &pod).await {
            continue;
        }
        let of = pod.clone();
        // The lock stays with the thread, which may outlast this call.
        let forget = move |journal: &Journal| {
            let _lock = lock;
            journal.forget(&of)
        };
        match journal.run_blocking(File::Entry, &pod.uid, forget).await {
            Ok(()) => tracing::debug!(%pod, uid = pod.uid, "removed the journal of a deleted pod"),
            Err(error) => {
                tracing::warn!(%pod, uid = pod.uid, %error, "the journal of a deleted pod cannot be removed");
            }
        }
    }
    Ok(())
}

/// The pods that have files and no open operation. Only the uid is known of a pod whose request was never begun.
async fn closed(journal: &Journal) -> Result<Vec<PodRef>, JournalError> {
    let only = |uid| PodRef { namespace: String::new(), name: String::new(), uid };
    let without_entry = journal.without_entry().await?.into_iter().map(only);
    let entries = journal.all().await?.into_iter().flatten().filter(|entry| entry.open.is_none());
    Ok(entries.map(|entry| entry.pod).chain(without_entry).collect())
}

/// True for a fence, and for a container that an operation created and that was not started.
fn is_ours(labels: &HashMap<String, String>, state: ContainerState) -> bool {
    is_fence(labels)
        || is_standby(labels)
        || labels.contains_key(annotation::OPERATION) && state == ContainerState::ContainerCreated
}

/// Whether no operation manages the pod, whose journal must be locked. An open operation manages all containers of
/// its pod itself; from a file that cannot be read, no operation can begin or resume.
async fn has_no_operation(journal: &Journal, pod: &PodRef) -> bool {
    match journal.load_async(pod).await {
        Ok(entry) => entry.open.is_none(),
        Err(error) => matches!(error, JournalError::Damaged { .. } | JournalError::Version { .. }),
    }
}

/// Whether the container is still to be removed: it may have been started since the list was read.
async fn is_still_ours(client: &Client, pod: &PodRef, id: &str) -> Result<bool, Error> {
    let status = read(client, pod, id).await?;
    Ok(status.is_some_and(|status| is_ours(&status.labels, status.state())))
}

/// The runtime's status of a container. Also `None` if the runtime fails for this one container, so that the others
/// can still be removed.
///
/// # Errors
/// When the runtime cannot be reached.
async fn read(client: &Client, pod: &PodRef, id: &str) -> Result<Option<ContainerStatus>, Error> {
    match client.container(id, false).await {
        Ok(answer) => Ok(answer.and_then(|answer| answer.status)),
        Err(error) if error.class == Class::NotSent => Err(error),
        Err(error) => {
            tracing::warn!(%pod, id, %error, "the status of a container cannot be read now: the sweep skips it");
            Ok(None)
        }
    }
}
