//! A failed container of a pod whose group is restarted together: what its agent reports, and what the pods of the group
//! ask for.
//!
//! Types and parsing only: `group_restart` decides what follows.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::api::group::TogetherTerms;
use crate::api::request::is_dns_label;
use crate::api::status::{ContainerReport, Phase, Status};

/// The number of group restarts within [`WINDOW`] unless the policy has its own.
const MAX_RESTARTS: usize = 10;
/// The time over which group restarts are counted unless the policy has its own.
const WINDOW: SignedDuration = SignedDuration::from_hours(1);
/// The longest time that a stopped container may wait for the others, in seconds.
const MAX_BARRIER_SECONDS: i32 = 300;
/// The longest time that the preparation of all pods may take, in seconds. With the longest wait at the barrier it is shorter
/// than the deadline of a request.
const MAX_PREPARE_SECONDS: i32 = 240;
/// The longest window, in seconds: rollouts are kept for a day.
const MAX_WINDOW_SECONDS: i64 = 86_400;
/// A failure that is older restarts nothing: the clocks of nodes and of the controller differ less.
pub const OPEN_FOR: SignedDuration = SignedDuration::from_mins(10);
/// Maximum number of entries in a list.
const MAX_LISTED: usize = 64;

/// A container that ended with a failure, in an annotation of its pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupFailure {
    /// The name of the container.
    pub container: String,
    /// The runtime's id of the container.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// The exit code, which is not 0.
    pub exit_code: i32,
    /// When it ended, by the runtime's clock.
    pub finished_at: Timestamp,
}

impl GroupFailure {
    /// True once an operation has started the container again, or a group restart the others of its pod, as `status`
    /// reports.
    pub fn is_over(&self, status: &Status) -> bool {
        let in_group = status.group.is_some() && status.phase == Phase::Succeeded;
        let counts = |report: &&ContainerReport| in_group || report.name == self.container;
        let mut starts = status.containers.iter().filter(counts).filter_map(|report| report.started_at);
        starts.any(|started| started >= self.finished_at)
    }

    /// True if the group restart of `status` has started containers of the pod, all of them before this failure.
    pub fn follows(&self, status: &Status) -> bool {
        let last = status.containers.iter().filter_map(|report| report.started_at).max();
        status.group.is_some() && last.is_some_and(|started| started < self.finished_at)
    }

    /// True if the failure may restart the group: nothing has restarted it, and no operation is at work on the pod.
    pub fn is_open(&self, status: Option<&Status>) -> bool {
        is_dns_label(&self.container)
            && status.is_none_or(|status| status.phase.is_terminal() && !self.is_over(status))
    }

    /// True if this failure may still restart the group, and `newer`, the next one of the pod, does not: the restart that
    /// is about to follow would be lost with the annotation.
    pub fn outlasts(&self, newer: &Self, policy: &FailurePolicy, status: Option<&Status>) -> bool {
        policy.restarts(self.exit_code)
            && !policy.restarts(newer.exit_code)
            && self.is_open(status)
            && newer.finished_at.duration_since(self.finished_at) < OPEN_FOR
    }
}

/// Which failures restart the group, and how: the annotation `inplace.dev/group-restart-policy` of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailurePolicy {
    /// The number of group restarts within the window, after which a failure is left to its kubelet.
    pub max_restarts: usize,
    /// The time over which group restarts are counted.
    pub window: SignedDuration,
    /// The exit codes that restart the group; empty: every code that is not in `fail_codes`.
    pub exit_codes: Vec<i32>,
    /// The exit codes that do not restart the group: a restart would not help.
    pub fail_codes: Vec<i32>,
    /// The containers that are restarted in every pod, in this order; empty: the one that failed.
    pub containers: Vec<String>,
    /// The barrier and the times that the pods have.
    pub terms: TogetherTerms,
    /// True if the environment of the new containers may have values of `ConfigMaps` and Secrets that have changed since.
    pub allow_stale_env: bool,
}

impl Default for FailurePolicy {
    fn default() -> Self {
        Self {
            max_restarts: MAX_RESTARTS,
            window: WINDOW,
            exit_codes: Vec::new(),
            fail_codes: Vec::new(),
            containers: Vec::new(),
            terms: TogetherTerms::default(),
            allow_stale_env: false,
        }
    }
}

/// A policy that cannot be parsed. The message says what to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPolicy {
    /// An entry of the list is malformed.
    #[error(
        "`{0}` is not valid: write max-restarts=10, window=1h, exit-codes=1+137, fail-codes=2, containers=app+side, \
         barrier=false, prepare-timeout=30s, barrier-timeout=60s or allow-stale-env=true, separated by commas"
    )]
    Entry(String),
    /// A key is named twice.
    #[error("{0} is named twice")]
    Twice(String),
}

impl FailurePolicy {
    /// Parses `max-restarts=10,window=1h,exit-codes=1+137,fail-codes=2,containers=app+side,barrier=false`. Each entry may be
    /// left out.
    ///
    /// # Errors
    /// If the text has any other form.
    pub fn parse(text: &str) -> Result<Self, InvalidPolicy> {
        let mut policy = Self::default();
        let mut seen: Vec<&str> = Vec::new();
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let invalid = || InvalidPolicy::Entry(entry.chars().take(64).collect());
            let (key, value) = entry.split_once('=').ok_or_else(invalid)?;
            if seen.contains(&key) {
                return Err(InvalidPolicy::Twice(key.to_owned()));
            }
            policy.set(key, value).ok_or_else(invalid)?;
            seen.push(key);
        }
        Ok(policy)
    }

    fn set(&mut self, key: &str, value: &str) -> Option<()> {
        match key {
            "max-restarts" => self.max_restarts = value.parse::<u16>().ok()?.into(),
            "window" => self.window = span(value, MAX_WINDOW_SECONDS)?,
            "prepare-timeout" => self.terms.prepare_timeout_seconds = seconds(value, MAX_PREPARE_SECONDS)?,
            "barrier-timeout" => self.terms.barrier_timeout_seconds = seconds(value, MAX_BARRIER_SECONDS)?,
            "exit-codes" => self.exit_codes = codes(value)?,
            "fail-codes" => self.fail_codes = codes(value)?,
            "containers" => {
                self.containers = list(value, |name| is_dns_label(name).then(|| name.to_owned()))?;
            }
            "barrier" => self.terms.barrier = value.parse().ok()?,
            "allow-stale-env" => self.allow_stale_env = value.parse().ok()?,
            _ => return None,
        }
        Some(())
    }

    /// Whether a container that ended with this code restarts its group.
    pub fn restarts(&self, exit_code: i32) -> bool {
        !self.fail_codes.contains(&exit_code)
            && (self.exit_codes.is_empty() || self.exit_codes.contains(&exit_code))
    }
}

/// A whole number of seconds, minutes or hours, for example `90s`; at most `longest` seconds.
fn span(text: &str, longest: i64) -> Option<SignedDuration> {
    let unit = match text.chars().last()? {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        _ => return None,
    };
    let number: i64 = text.get(..text.len().checked_sub(1)?)?.parse().ok()?;
    let seconds = number.checked_mul(unit).filter(|seconds| (1..=longest).contains(seconds))?;
    Some(SignedDuration::from_secs(seconds))
}

/// The same as a number of seconds.
fn seconds(text: &str, longest: i32) -> Option<i32> {
    i32::try_from(span(text, longest.into())?.as_secs()).ok()
}

fn codes(text: &str) -> Option<Vec<i32>> {
    list(text, |code| code.parse().ok().filter(|code| (1..=255).contains(code)))
}

fn list<T>(text: &str, read: impl Fn(&str) -> Option<T>) -> Option<Vec<T>> {
    let list: Option<Vec<T>> = text.split('+').map(read).collect();
    list.filter(|list| list.len() <= MAX_LISTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_entry_may_be_left_out() {
        assert_eq!(FailurePolicy::parse(" "), Ok(FailurePolicy::default()));
        let whole = "max-restarts=3, window=90s,exit-codes=1+137,fail-codes=2,containers=app+side,barrier=false,\
             prepare-timeout=3m,barrier-timeout=2m,allow-stale-env=true";
        let policy = FailurePolicy::parse(whole).unwrap();
        assert_eq!((policy.max_restarts, policy.window), (3, SignedDuration::from_secs(90)));
        let terms = policy.terms;
        assert_eq!((policy.containers, terms.barrier), (vec!["app".to_owned(), "side".to_owned()], false));
        assert_eq!((terms.prepare_timeout_seconds, terms.barrier_timeout_seconds), (180, 120));
        assert_eq!((policy.exit_codes, policy.fail_codes), (vec![1, 137], vec![2]));
        assert!(policy.allow_stale_env);
    }

    #[test]
    fn what_is_malformed_is_named() {
        let wrong = [
            "on-failure",
            "max-restarts=-1",
            "window=1",
            "window=0s",
            "window=25h",
            "prepare-timeout=5m",
            "barrier-timeout=6m",
            "exit-codes=0",
            "barrier=no",
        ];
        for text in wrong.into_iter().chain(["exit-codes=1,2", "containers=A", "exit-codes=", "window=µ"]) {
            let error = FailurePolicy::parse(text).unwrap_err();
            assert!(matches!(error, InvalidPolicy::Entry(_)), "{text}: {error}");
        }
        let twice = FailurePolicy::parse("window=1h,window=2h").unwrap_err();
        assert_eq!(twice.to_string(), "window is named twice");
    }

    /// The policy names one code, and the container of the pod ends with another one while the group cannot be restarted yet.
    #[test]
    fn a_failure_that_restarts_the_group_is_not_replaced_by_one_that_does_not() {
        let failure = |exit_code, second| GroupFailure {
            container: "app".to_owned(),
            container_id: format!("c-{second}"),
            exit_code,
            finished_at: Timestamp::from_second(second).unwrap(),
        };
        let policy = FailurePolicy::parse("exit-codes=137").unwrap();
        let first = failure(137, 1000);
        assert!(first.outlasts(&failure(1, 1010), &policy, None));
        assert!(!first.outlasts(&failure(137, 1010), &policy, None), "the newer one restarts it as well");
        assert!(!failure(1, 1000).outlasts(&failure(2, 1010), &policy, None));
        assert!(!first.outlasts(&failure(1, 1600), &policy, None), "too old");
        let report = serde_json::json!({"name": "app", "action": "Restart", "engine": "Recreate",
            "from": {"image": "", "imageID": "", "containerID": "c-1000", "attempt": 0}, "startedAt": "1970-01-01T00:17:00Z"});
        let status = serde_json::json!({"id": "a", "phase": "Succeeded", "reason": "", "message": "", "startedAt": null,
            "finishedAt": null, "containers": [report]});
        let status = serde_json::from_value(status).unwrap();
        assert!(!first.outlasts(&failure(1, 1030), &policy, Some(&status)), "the group was restarted");
    }

    #[test]
    fn exit_codes_decide_whether_the_group_is_restarted() {
        let restarts = |text: &str| {
            let policy = FailurePolicy::parse(text).unwrap();
            [1, 2, 137].map(|code| policy.restarts(code))
        };
        assert_eq!(restarts(""), [true; 3]);
        assert_eq!(restarts("fail-codes=2"), [true, false, true]);
        assert_eq!(restarts("exit-codes=137+2,fail-codes=2"), [false, false, true]);
    }
}
