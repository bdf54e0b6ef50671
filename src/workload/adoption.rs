//! Whose a pod or a revision is: taken in, let go, kept or left alone, as `ReplicaSet`s and `StatefulSet`s do it.

use std::collections::BTreeMap;

use crate::workload::wish::{Kind, Wish};
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
pub fn claim(wish: &Wish, pod: Candidate<'_>) -> Claim {
    let matches = selector::matches(&wish.selector, pod.labels) && is_named_like_one(wish, pod.name);
    match pod.controller {
        Some(uid) if uid == wish.uid && matches => Claim::Own,
        // What is on its way out counts until it is gone; a workload that is on its way out keeps what it has.
        Some(uid) if uid == wish.uid && (pod.deleting || wish.deleting) => Claim::Own,
        Some(uid) if uid == wish.uid => Claim::Release,
        None if matches && !pod.deleting && !wish.deleting => Claim::Adopt,
        _ => Claim::Leave,
    }
}

/// True when the workload becomes the controller of a revision that nobody controls: it was made for a workload of this name
/// and has the labels of its pods. Pods that were orphaned with it stay at it then.
pub fn adopts_revision(wish: &Wish, name: &str, labels: &BTreeMap<String, String>) -> bool {
    !wish.deleting && revision::is_named_for(&wish.name, name) && selector::matches(&wish.selector, labels)
}

/// Pods with ordinals are known by their names.
fn is_named_like_one(wish: &Wish, name: &str) -> bool {
    match wish.kind {
        Kind::Deployment(_) => true,
        Kind::StatefulSet(_) => ordinal(&wish.name, name).is_some(),
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

    fn of(wish: &Wish, name: &str, app: &str, controller: Option<&str>, deleting: bool) -> Claim {
        let labels = BTreeMap::from([("app".to_owned(), app.to_owned())]);
        claim(wish, Candidate { name, labels: &labels, controller, deleting })
    }

    #[test]
    fn a_pod_is_adopted_released_kept_or_left_alone() {
        let wish = fixtures::deployment().wish();
        let own = wish.uid.clone();
        assert_eq!(of(&wish, "x", "web", Some(&own), false), Claim::Own);
        assert_eq!(of(&wish, "x", "web", None, false), Claim::Adopt);
        assert_eq!(of(&wish, "x", "web", None, true), Claim::Leave, "it goes anyway");
        assert_eq!(of(&wish, "x", "db", Some(&own), false), Claim::Release);
        assert_eq!(of(&wish, "x", "db", Some(&own), true), Claim::Own, "it counts until it is gone");
        assert_eq!(of(&wish, "x", "web", Some("other"), false), Claim::Leave);
        assert_eq!(of(&wish, "x", "db", None, false), Claim::Leave);
        let leaving = Wish { deleting: true, ..wish };
        assert_eq!(of(&leaving, "x", "web", None, false), Claim::Leave);
    }

    #[test]
    fn a_set_takes_only_what_is_named_like_its_pods() {
        let wish = fixtures::stateful_set().wish();
        assert_eq!(of(&wish, "web-3", "web", None, false), Claim::Adopt);
        assert_eq!(of(&wish, "web-x", "web", None, false), Claim::Leave);
    }

    #[test]
    fn a_revision_that_nobody_controls_is_adopted_by_its_name_and_its_labels() {
        let wish = fixtures::deployment().wish();
        let labels = |app: &str| BTreeMap::from([("app".to_owned(), app.to_owned())]);
        let own = fixtures::deployment().revision().name;
        assert!(adopts_revision(&wish, &own, &labels("web")));
        assert!(!adopts_revision(&wish, &own, &labels("db")), "of other pods");
        for other in ["web", "web-", "web-db-5d7", "db-5d7", "webs-5d7"] {
            assert!(!adopts_revision(&wish, other, &labels("web")), "{other}");
        }
        assert!(!adopts_revision(&Wish { deleting: true, ..wish }, &own, &labels("web")));
    }
}
