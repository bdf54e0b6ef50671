//! Restart of a group after a failure: whether a failed container of one pod restarts all pods of its group.
//!
//! A failure is open until its container has been started again by an operation, which a later group restart does for all
//! failures before it. Each failure begins at most one group restart. Pure: reads no clock, and creates nothing.

use jiff::{SignedDuration, Timestamp};

use crate::api::group_failure::{FailurePolicy, GroupFailure, InvalidPolicy};
use crate::api::request::fingerprint;
use crate::api::status::Status;

/// A pod of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPod {
    /// The name of the pod.
    pub name: String,
    /// The uid of the pod.
    pub uid: String,
    /// The last failure that its agent has reported.
    pub failure: Option<GroupFailure>,
    /// The last status that its agent has reported.
    pub status: Option<Status>,
    /// The text of its policy.
    pub policy: String,
}

/// A group restart that was begun after a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Earlier {
    /// The name of its rollout.
    pub name: String,
    /// When it was created.
    pub created: Timestamp,
    /// True once it has ended.
    pub has_ended: bool,
}

/// What follows for a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing, until something changes.
    Nothing,
    /// Begin a group restart.
    Restart(Restart),
    /// The failure of this pod restarts nothing, for this reason.
    Leave {
        /// The pod.
        pod: String,
        /// Its uid.
        uid: String,
        /// The reason of the event.
        reason: &'static str,
        /// What happened, and what to do.
        message: String,
    },
}

/// A group restart to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restart {
    /// The pod that failed.
    pub pod: String,
    /// Its uid.
    pub uid: String,
    /// How it failed.
    pub failure: GroupFailure,
    /// The name of the rollout, which is the same for each decision about this failure.
    pub name: String,
    /// The containers to restart in every pod.
    pub containers: Vec<String>,
    /// Whether no container is started before all have stopped.
    pub barrier: bool,
}

/// The longest beginning of a rollout's name that the name of the group gives, in bytes.
const STEM: usize = 38;

/// What follows for the pods of the group with this label value.
pub fn decide(group: &str, pods: &[GroupPod], earlier: &[Earlier], now: Timestamp) -> Step {
    let mut open: Vec<_> = pods.iter().filter_map(|pod| Some((pod, open_failure(pod)?))).collect();
    open.sort_by_key(|(pod, failure)| (failure.finished_at, &pod.name));
    // A group restart in progress restarts the containers of all failures before it.
    if open.is_empty() || earlier.iter().any(|one| !one.has_ended) {
        return Step::Nothing;
    }
    // Whoever may create a pod of the group must not loosen the limit of the others.
    let other = |pod: &GroupPod| pods.iter().find(|other| other.policy != pod.policy);
    let steps = open.into_iter().map(|(pod, failure)| match other(pod) {
        Some(other) => differs(group, pod, other),
        None => step(group, pod, failure, earlier, now),
    });
    // A failure that restarts nothing must not hide a later one that does.
    let (mut restarts, others): (Vec<_>, Vec<_>) = steps.partition(|step| matches!(step, Step::Restart(_)));
    if restarts.is_empty() {
        return others.into_iter().find(|step| *step != Step::Nothing).unwrap_or(Step::Nothing);
    }
    restarts.swap_remove(0)
}

fn step(group: &str, pod: &GroupPod, failure: &GroupFailure, earlier: &[Earlier], now: Timestamp) -> Step {
    let leave =
        |reason, message| Step::Leave { pod: pod.name.clone(), uid: pod.uid.clone(), reason, message };
    let ended = format!("container {} exited with code {}", failure.container, failure.exit_code);
    let policy = match FailurePolicy::parse(&pod.policy) {
        Ok(policy) => policy,
        Err(error) => return leave("InvalidGroupRestartPolicy", invalid(&ended, &error)),
    };
    if !policy.restarts(failure.exit_code) {
        let message = format!("{ended}, a code that does not restart the group {group} by its policy");
        return leave("GroupNotRestarted", message);
    }
    let name = name(group, pod, failure);
    if earlier.iter().any(|one| one.name == name) {
        return Step::Nothing;
    }
    let since = now.checked_sub(policy.window).unwrap_or(Timestamp::MIN);
    let count = earlier.iter().filter(|one| one.created > since).count();
    if count >= policy.max_restarts {
        let message = format!(
            "{ended}, and the group {group} was restarted {count} times within {}: its kubelet restarts this container alone. \
             Find the cause, then restart the group with `inplace restart --together`, or raise max-restarts",
            span(policy.window)
        );
        return leave("GroupRestartLimit", message);
    }
    let containers =
        if policy.containers.is_empty() { vec![failure.container.clone()] } else { policy.containers };
    let (pod, uid) = (pod.name.clone(), pod.uid.clone());
    Step::Restart(Restart { pod, uid, failure: failure.clone(), name, containers, barrier: policy.barrier })
}

fn differs(group: &str, pod: &GroupPod, other: &GroupPod) -> Step {
    let message = format!(
        "a container has failed, and the group {group} is not restarted: pods {} and {} have different values of the \
         annotation inplace.dev/group-restart-policy: give all pods of the group the same",
        pod.name, other.name
    );
    Step::Leave { pod: pod.name.clone(), uid: pod.uid.clone(), reason: "InvalidGroupRestartPolicy", message }
}

/// The failure of a pod, unless an operation has started the container since, or is at work on the pod.
fn open_failure(pod: &GroupPod) -> Option<&GroupFailure> {
    let failure = pod.failure.as_ref()?;
    let Some(status) = &pod.status else { return Some(failure) };
    (status.phase.is_terminal() && !failure.is_over(status)).then_some(failure)
}

fn name(group: &str, pod: &GroupPod, failure: &GroupFailure) -> String {
    let cause = format!("{}/{}/{}", pod.uid, failure.container, failure.finished_at.as_nanosecond());
    let group = group.to_ascii_lowercase().replace('_', "-");
    let stem = group.get(..STEM).unwrap_or(&group).trim_end_matches(['-', '.']);
    format!("{stem}-failed-{:016x}", fingerprint(&cause))
}

fn invalid(ended: &str, error: &InvalidPolicy) -> String {
    format!("{ended}, and its group is not restarted: annotation inplace.dev/group-restart-policy: {error}")
}

fn span(window: SignedDuration) -> String {
    let seconds = window.as_secs();
    if seconds % 3600 == 0 { format!("{} h", seconds / 3600) } else { format!("{seconds} s") }
}

#[cfg(test)]
mod tests;
