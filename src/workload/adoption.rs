//! Whose a pod or a revision is: taken in, let go, kept or left alone, as `ReplicaSet`s and `StatefulSet`s do it.

use std::collections::BTreeMap;

use crate::workload::spec::{Kind, WorkloadSpec};
use crate::workload::{revision, selector};

/// A pod, as far as its owner matters.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its labels.
    pub labels: &'a BTreeMap<String, String>,
    /// The uid of its controller.
    pub controller: Option<&'a str>,
    /// True when it is on its way out.
    pub deleting: bool,
}

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It is the workload's own.
    Own,
    /// Write the workload into it as its controller.
    Adopt,
    /// Take the workload out of it.
    Release,
    /// It is somebody else's.
    Leave,
}

/// Decides for one pod of the workload's namespace.
pub fn claim(spec: &WorkloadSpec, pod: Candidate<'_>) -> Claim {
    let matches = selector::matches(&spec.selector, pod.labels) && is_named_like_one(spec, pod.name);
    match pod.controller {
        Some(uid) if uid == spec.uid && matches => Claim::Own,
        // What is on its way out counts until it is gone; a workload that is on its way out keeps what it has.
        Some(uid) if uid == spec.uid && (pod.deleting || spec.deleting) => Claim::Own,
        Some(uid) if uid == spec.uid => Claim::Release,
        None if matches && !pod.deleting && !spec.deleting => Claim::Adopt,
        _ => Claim::Leave,
    }
}

/// True when the workload becomes the controller of a revision that nobody controls: it was made for a workload of this name
/// and has the labels of its pods. Pods that were orphaned with it stay at it then.
pub fn adopts_revision(spec: &WorkloadSpec, name: &str, labels: &BTreeMap<String, String>) -> bool {
    !spec.deleting && revision::is_named_for(&spec.name, name) && selector::matches(&spec.selector, labels)
}

/// Pods with ordinals are known by their names.
fn is_named_like_one(spec: &WorkloadSpec, name: &str) -> bool {
    match spec.kind {
        Kind::Deployment(_) => true,
        Kind::StatefulSet(_) => ordinal(&spec.name, name).is_some(),
    }
}

/// The ordinal in the name of a pod of `set`.
pub fn ordinal(set: &str, name: &str) -> Option<u32> {
    let digits = name.strip_prefix(set)?.strip_prefix('-')?;
    let plain =
        digits.bytes().all(|byte| byte.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    digits.parse().ok().filter(|_| plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::fixtures;

    fn of(spec: &WorkloadSpec, name: &str, app: &str, controller: Option<&str>, deleting: bool) -> Claim {
        let labels = BTreeMap::from([("app".to_owned(), app.to_owned())]);
        claim(spec, Candidate { name, labels: &labels, controller, deleting })
    }

    #[test]
    fn a_pod_is_adopted_released_kept_or_left_alone() {
        let spec = fixtures::deployment().spec();
        let own = spec.uid.clone();
        assert_eq!(of(&spec, "x", "web", Some(&own), false), Claim::Own);
        assert_eq!(of(&spec, "x", "web", None, false), Claim::Adopt);
        assert_eq!(of(&spec, "x", "web", None, true), Claim::Leave, "it goes anyway");
        assert_eq!(of(&spec, "x", "db", Some(&own), false), Claim::Release);
        assert_eq!(of(&spec, "x", "db", Some(&own), true), Claim::Own, "it counts until it is gone");
        assert_eq!(of(&spec, "x", "web", Some("other"), false), Claim::Leave);
        assert_eq!(of(&spec, "x", "db", None, false), Claim::Leave);
        let leaving = WorkloadSpec { deleting: true, ..spec };
        assert_eq!(of(&leaving, "x", "web", None, false), Claim::Leave);
    }

    #[test]
    fn a_set_takes_only_what_is_named_like_its_pods() {
        let spec = fixtures::stateful_set().spec();
        assert_eq!(of(&spec, "web-3", "web", None, false), Claim::Adopt);
        assert_eq!(of(&spec, "web-x", "web", None, false), Claim::Leave);
    }

    #[test]
    fn a_revision_that_nobody_controls_is_adopted_by_its_name_and_its_labels() {
        let spec = fixtures::deployment().spec();
        let labels = |app: &str| BTreeMap::from([("app".to_owned(), app.to_owned())]);
        let own = fixtures::deployment().revision().name;
        assert!(adopts_revision(&spec, &own, &labels("web")));
        assert!(!adopts_revision(&spec, &own, &labels("db")), "of other pods");
        for other in ["web", "web-", "web-db-5d7", "db-5d7", "webs-5d7"] {
            assert!(!adopts_revision(&spec, other, &labels("web")), "{other}");
        }
        assert!(!adopts_revision(&WorkloadSpec { deleting: true, ..spec }, &own, &labels("web")));
    }
}
