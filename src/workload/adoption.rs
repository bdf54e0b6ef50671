//! Ownership of pods and revisions: adopt, release, own or leave alone, as `ReplicaSet`s and `StatefulSet`s do it.

use std::collections::BTreeMap;

use crate::podtask::pod::ordinal;
use crate::workload::revision;
use crate::workload::spec::{Kind, WorkloadSpec};

/// What ownership of a pod depends on.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Name of the pod.
    pub name: &'a str,
    /// Labels of the pod.
    pub labels: &'a BTreeMap<String, String>,
    /// The uid of its controller.
    pub controller: Option<&'a str>,
    /// True when it is being deleted.
    pub deleting: bool,
}

/// What to do about ownership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodOwnership {
    /// The workload owns the pod.
    Own,
    /// Write the workload into the pod as its controller.
    Adopt,
    /// Remove the workload from the pod's owners.
    Release,
    /// The pod belongs to another owner, or to none.
    Leave,
}

/// Decides for one pod in the workload's namespace.
pub fn ownership(spec: &WorkloadSpec, pod: Candidate<'_>) -> PodOwnership {
    let matches = spec.selects(pod.labels) && is_named_like_one(spec, pod.name);
    match pod.controller {
        Some(uid) if uid == spec.uid && matches => PodOwnership::Own,
        // A pod that is being deleted counts until it is gone; a workload that is being deleted keeps its pods.
        Some(uid) if uid == spec.uid && (pod.deleting || spec.deleting) => PodOwnership::Own,
        Some(uid) if uid == spec.uid => PodOwnership::Release,
        None if matches && !pod.deleting && !spec.deleting => PodOwnership::Adopt,
        _ => PodOwnership::Leave,
    }
}

/// True when the workload becomes the controller of a revision without one: the revision was created for a workload
/// of this name and has the labels of its pods. Pods that were orphaned together with the revision then stay at it.
pub fn adopts_revision(spec: &WorkloadSpec, name: &str, labels: &BTreeMap<String, String>) -> bool {
    !spec.deleting && revision::is_named_for(&spec.name, name) && spec.selects(labels)
}

/// Pods with ordinals are identified by their names.
fn is_named_like_one(spec: &WorkloadSpec, name: &str) -> bool {
    match spec.kind {
        Kind::Deployment(_) => true,
        Kind::StatefulSet(_) => ordinal(&spec.name, name).is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::fixtures;

    fn of(
        spec: &WorkloadSpec,
        name: &str,
        app: &str,
        controller: Option<&str>,
        deleting: bool,
    ) -> PodOwnership {
        let labels = BTreeMap::from([("app".to_owned(), app.to_owned())]);
        ownership(spec, Candidate { name, labels: &labels, controller, deleting })
    }

    #[test]
    fn a_pod_is_adopted_released_kept_or_left_alone() {
        let spec = fixtures::deployment().spec();
        let own = spec.uid.clone();
        assert_eq!(of(&spec, "x", "web", Some(&own), false), PodOwnership::Own);
        assert_eq!(of(&spec, "x", "web", None, false), PodOwnership::Adopt);
        assert_eq!(of(&spec, "x", "web", None, true), PodOwnership::Leave, "it goes anyway");
        assert_eq!(of(&spec, "x", "db", Some(&own), false), PodOwnership::Release);
        assert_eq!(of(&spec, "x", "db", Some(&own), true), PodOwnership::Own, "it counts until it is gone");
        assert_eq!(of(&spec, "x", "web", Some("other"), false), PodOwnership::Leave);
        assert_eq!(of(&spec, "x", "db", None, false), PodOwnership::Leave);
        let mut leaving = spec.clone();
        leaving.deleting = true;
        assert_eq!(of(&leaving, "x", "web", None, false), PodOwnership::Leave);
    }

    #[test]
    fn a_set_takes_only_what_is_named_like_its_pods() {
        let spec = fixtures::stateful_set().spec();
        assert_eq!(of(&spec, "web-3", "web", None, false), PodOwnership::Adopt);
        assert_eq!(of(&spec, "web-x", "web", None, false), PodOwnership::Leave);
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
        let mut leaving = spec.clone();
        leaving.deleting = true;
        assert!(!adopts_revision(&leaving, &own, &labels("web")));
    }
}
