//! Restart of a group after a failure: whether a failed container of one pod restarts all pods of its group.
//!
//! A failure is open until its container has been started again by an operation, which a later group restart does for all
//! failures before it. One that was begun answers all failures before its new containers start, also if it ends before
//! that. So each failure begins at most one group restart, and soon or never: what was left to its kubelet is not
//! restarted hours later. Pure: reads no clock, and creates nothing.

use jiff::{SignedDuration, Timestamp};

use crate::api::annotation::GROUP_RESTART_POLICY;
use crate::api::group::TogetherTerms;
use crate::api::group_failure::{FailurePolicy, GroupFailure, OPEN_FOR};
use crate::api::request::fingerprint;
use crate::podtask::time::later;

/// A pod of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPod {
    /// The name of the pod.
    pub name: String,
    /// The uid of the pod.
    pub uid: String,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// The last failure that its agent has reported, if it is open.
    pub failure: Option<GroupFailure>,
    /// The text of its policy.
    pub policy: String,
    /// The uid of the rollout that has restarted the pod last, if the failure came after that.
    pub restarted_by: Option<String>,
}

/// A group restart that was begun after a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Earlier {
    /// The name of its rollout.
    pub name: String,
    /// The uid of its rollout.
    pub uid: String,
    /// When it was created.
    pub created: Timestamp,
    /// When the agents were asked to prepare: pods that were created until then are members.
    pub prepared: Option<Timestamp>,
    /// When the agents were asked to start the new containers.
    pub started: Option<Timestamp>,
    /// When it ended, or was deleted before its end.
    pub ended: Option<Timestamp>,
}

impl Earlier {
    /// The failures until then are part of it.
    fn until(&self) -> Option<Timestamp> {
        Some(self.started.or(self.ended)?.max(self.created))
    }
}

/// What follows for a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The group restart to begin.
    pub restart: Option<Restart>,
    /// When to decide again, if nothing changes before.
    pub again_at: Option<Timestamp>,
    /// The failures that restart nothing.
    pub left: Vec<Left>,
}

/// What follows from one failure.
enum Step {
    Nothing,
    Wait(Timestamp),
    Restart(Restart),
    Leave(Left),
}

/// A failure that restarts nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// The pod.
    pub pod: String,
    /// Its uid.
    pub uid: String,
    /// The failure.
    pub failure: GroupFailure,
    /// The reason of the event.
    pub reason: &'static str,
    /// What happened, and what to do.
    pub message: String,
    /// True if the failure never restarts the group, whatever the policy says later.
    pub for_good: bool,
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
    /// The barrier and the times that the pods have.
    pub terms: TogetherTerms,
    /// Whether the environment of the new containers may have values of `ConfigMaps` and Secrets that have changed since.
    pub allow_stale_env: bool,
}

/// The longest beginning of a rollout's name that the name of the group gives, in bytes.
const STEM: usize = 38;
/// The pause between the beginnings of the first two group restarts of a window. Each later one is twice as long.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_secs(5);
/// The longest such pause.
const MAX_PAUSE: SignedDuration = SignedDuration::from_mins(5);

/// What follows for the pods of the group with this label value.
pub fn decide(group: &str, pods: &[GroupPod], earlier: &[Earlier], now: Timestamp) -> Decision {
    let mut decision = Decision::default();
    let mut open: Vec<_> = pods.iter().filter_map(|pod| Some((pod, pod.failure.as_ref()?))).collect();
    // A group restart in progress restarts the containers of all failures before it.
    if open.is_empty() || earlier.iter().any(|one| one.ended.is_none()) {
        return decision;
    }
    open.sort_by_key(|(pod, failure)| (failure.finished_at, &pod.name));
    // Whoever may create a pod of the group must not loosen the limit of the others.
    let differing = pods.iter().find(|other| other.policy != pods[0].policy);
    for (pod, failure) in open {
        let case = Case { group, pod, failure };
        let step = match differing {
            Some(other) => case.differs_from(other, &pods[0]),
            None => case.step(earlier, now),
        };
        match step {
            Step::Nothing => {}
            Step::Wait(until) => decision.again_at = decision.again_at.max(Some(until)),
            Step::Leave(left) => decision.left.push(left),
            // The first one is enough. One that restarts nothing hides no later one.
            Step::Restart(restart) => decision.restart = decision.restart.or(Some(restart)),
        }
    }
    decision
}

/// An open failure of a pod.
#[derive(Clone, Copy)]
struct Case<'a> {
    group: &'a str,
    pod: &'a GroupPod,
    failure: &'a GroupFailure,
}

impl Case<'_> {
    fn step(self, earlier: &[Earlier], now: Timestamp) -> Step {
        let Self { group, pod, failure } = self;
        let ended = self.ended();
        let policy = match FailurePolicy::parse(&pod.policy) {
            Ok(policy) => policy,
            Err(error) => {
                let message = format!(
                    "{ended}, and its group is not restarted: annotation {GROUP_RESTART_POLICY}: {error}"
                );
                return self.leave("InvalidGroupRestartPolicy", message, false);
            }
        };
        let name = self.name();
        if self.is_answered(&name, earlier) {
            return Step::Nothing;
        }
        if !policy.restarts(failure.exit_code) {
            let message = format!("{ended}, a code that does not restart the group {group} by its policy");
            return self.leave("GroupNotRestarted", message, true);
        }
        if now.duration_since(failure.finished_at).abs() > OPEN_FOR {
            let message = format!(
                "{ended} at {}, which is not now by the clock of the controller: restart the group {group} with `inplace restart --together` if it \
                 waits for this container",
                failure.finished_at
            );
            return self.leave("GroupNotRestarted", message, true);
        }
        let since = now.checked_sub(policy.window).unwrap_or(Timestamp::MIN);
        let counted = || earlier.iter().map(|one| one.created).filter(|created| *created > since);
        let count = counted().count();
        if count >= policy.max_restarts {
            let message = format!(
                "{ended}, and {count} group restarts of {group} were begun within {}: its kubelet restarts this \
                 container alone. Find the cause, then restart the group with `inplace restart --together`",
                span(policy.window)
            );
            return self.leave("GroupRestartLimit", message, true);
        }
        let until = counted().max().map(|last| later(last, pause(count)));
        if let Some(until) = until.filter(|until| now < *until) {
            return Step::Wait(until);
        }
        let containers =
            if policy.containers.is_empty() { vec![failure.container.clone()] } else { policy.containers };
        let (pod, uid) = (pod.name.clone(), pod.uid.clone());
        Step::Restart(Restart {
            pod,
            uid,
            failure: failure.clone(),
            name,
            containers,
            terms: policy.terms,
            allow_stale_env: policy.allow_stale_env,
        })
    }

    /// True if a group restart was begun for this failure, whose rollout has this name, or for one that it is part of.
    fn is_answered(self, name: &str, earlier: &[Earlier]) -> bool {
        let Self { pod, failure, .. } = self;
        // Clocks of nodes differ: what fails in a pod that a group restart has started is never part of that one.
        let own = earlier.iter().find(|one| pod.restarted_by.as_ref() == Some(&one.uid));
        let last = own.map(|one| one.created);
        earlier.iter().any(|one| {
            let is_part = one.until().is_some_and(|until| failure.finished_at <= until);
            // A pod that was created later is no member.
            let is_member = pod.created <= Some(one.prepared.unwrap_or(one.created));
            one.name == name || is_part && is_member && last < Some(one.created)
        })
    }

    fn differs_from(self, one: &GroupPod, other: &GroupPod) -> Step {
        let message = format!(
            "{}, and the group {} is not restarted: pods {} and {} have different values of the annotation \
             {GROUP_RESTART_POLICY}: give all pods of the group the same",
            self.ended(),
            self.group,
            one.name,
            other.name
        );
        self.leave("InvalidGroupRestartPolicy", message, false)
    }

    fn leave(self, reason: &'static str, message: String, for_good: bool) -> Step {
        let (pod, uid, failure) = (self.pod.name.clone(), self.pod.uid.clone(), self.failure.clone());
        Step::Leave(Left { pod, uid, failure, reason, message, for_good })
    }

    fn ended(self) -> String {
        format!("container {} exited with code {}", self.failure.container, self.failure.exit_code)
    }

    fn name(self) -> String {
        let Self { group, pod, failure } = self;
        let cause = format!("{}/{}/{}", pod.uid, failure.container, failure.finished_at.as_nanosecond());
        let fits = |letter: &char| matches!(letter, 'a'..='z' | '0'..='9' | '-');
        let group = group.to_ascii_lowercase();
        let stem: String = group.chars().filter(fits).take(STEM).collect();
        let stem = match stem.trim_matches('-') {
            "" => "group",
            stem => stem,
        };
        format!("{stem}{NAME_PART}{:016x}", fingerprint(&cause))
    }
}

/// The part of the name of each rollout that is created after a failure.
pub const NAME_PART: &str = "-failed-";

/// The pause after the beginning of the last of `count` group restarts; none before the second one.
fn pause(count: usize) -> SignedDuration {
    let doubled = u32::try_from(count).unwrap_or(u32::MAX).saturating_sub(1).min(16);
    FIRST_PAUSE.saturating_mul(1 << doubled).min(MAX_PAUSE)
}

fn span(window: SignedDuration) -> String {
    let seconds = window.as_secs();
    if seconds % 3600 == 0 { format!("{} h", seconds / 3600) } else { format!("{seconds} s") }
}

#[cfg(test)]
mod tests;
