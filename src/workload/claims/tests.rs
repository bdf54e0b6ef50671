//! Owners and growth of claims, one by one.

use serde_json::json;

use super::*;
use crate::workload::fixtures::{Draft, pod, stateful_set};

fn draft(deleted: &str, scaled: &str) -> Draft {
    stateful_set()
        .with("/volumeClaimTemplates", json!([template("1Gi").0]))
        .with("/persistentVolumeClaimRetentionPolicy", json!({"whenDeleted": deleted, "whenScaled": scaled}))
}

fn template(storage: &str) -> ClaimTemplate {
    ClaimTemplate(json!({"metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage}}}}))
}

/// A bound claim of the set.
fn claim() -> Claim {
    Claim {
        uid: "c".into(),
        labels: [("app".into(), "web".into())].into(),
        bound: true,
        storage: Some("1Gi".into()),
        class: Some("fast".into()),
        ..Claim::default()
    }
}

fn owner(is_pod: bool, name: &str, uid: &str) -> ClaimOwner {
    ClaimOwner { is_pod, name: name.into(), uid: uid.into() }
}

/// Kinds that are added, and uids that are removed.
fn change(draft: &Draft, claim: &Claim, scaled_in: bool) -> (Vec<String>, Vec<String>) {
    let (spec, pod) = (draft.spec(), pod("web-0", &draft.revision()));
    let change = claim.owner_change(&spec, spec.stateful().unwrap(), &pod, scaled_in).unwrap_or_default();
    (change.add.iter().map(|owner| owner["kind"].as_str().unwrap().to_owned()).collect(), change.remove)
}

#[test]
fn the_policy_decides_who_owns_a_claim() {
    let (set, pod) = (owner(false, "web", "uid-web"), owner(true, "web-0", "uid-web-0"));
    let none: (Vec<String>, Vec<String>) = Default::default();
    let add = |kind: &str| (vec![kind.to_owned()], Vec::new());
    for (deleted, scaled, stays, leaves) in [
        ("Retain", "Retain", none.clone(), none.clone()),
        ("Delete", "Retain", add("GameStatefulSet"), add("GameStatefulSet")),
        ("Retain", "Delete", none.clone(), add("Pod")),
        ("Delete", "Delete", add("GameStatefulSet"), add("Pod")),
    ] {
        let draft = draft(deleted, scaled);
        assert_eq!(change(&draft, &claim(), false), stays, "{deleted} {scaled}");
        assert_eq!(change(&draft, &claim(), true), leaves, "{deleted} {scaled}");
        // What is not wanted is taken away again: the policy was changed, or the scale-in was taken back.
        let both = Claim { owners: vec![set.clone(), pod.clone(), owner(false, "x", "other")], ..claim() };
        let removed = |kinds: &[String]| {
            let of = |kind: &str, uid: &str| (!kinds.contains(&kind.to_owned())).then(|| uid.to_owned());
            [of("GameStatefulSet", "uid-web"), of("Pod", "uid-web-0")]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
        };
        assert_eq!(change(&draft, &both, false), (Vec::new(), removed(&stays.0)), "{deleted} {scaled}");
        assert_eq!(change(&draft, &both, true), (Vec::new(), removed(&leaves.0)), "{deleted} {scaled}");
    }
    let absent = stateful_set().with("/volumeClaimTemplates", json!([template("1Gi").0]));
    assert_eq!(change(&absent, &claim(), true), none, "nothing changes without the field");
}

#[test]
fn a_claim_of_another_user_is_not_touched() {
    let draft = draft("Delete", "Delete");
    for other in [
        Claim { labels: BTreeMap::new(), ..claim() },
        Claim { controller: Some("another".into()), ..claim() },
        Claim { terminating: true, ..claim() },
    ] {
        assert_eq!(change(&draft, &other, true), Default::default(), "{other:?}");
    }
    let own = Claim { controller: Some("uid-web".into()), ..claim() };
    assert_ne!(change(&draft, &own, true), Default::default());
    let foreign = Claim { labels: BTreeMap::new(), ..claim() };
    let classes = [("fast".to_owned(), StorageClass::Read { expands: true })].into();
    let refused = foreign.growth("data-web-0", &draft.spec(), &template("2Gi"), &classes).unwrap_err();
    assert!(refused.contains("spec.selector.matchLabels"), "{refused}");
}

#[test]
fn a_claim_of_an_earlier_pod_is_about_to_be_deleted() {
    let of = |uid: &str| Claim { owners: vec![owner(true, "web-0", uid)], ..claim() };
    assert!(
        of("gone").is_owned_by_earlier_pod("web-0", None)
            && of("gone").is_owned_by_earlier_pod("web-0", Some("uid-web-0"))
    );
    assert!(!of("uid-web-0").is_owned_by_earlier_pod("web-0", Some("uid-web-0")));
    assert!(!claim().is_owned_by_earlier_pod("web-0", None));
    assert!(!of("gone").is_owned_by_earlier_pod("web-1", None), "a pod that this set does not know");
}

#[test]
fn a_claim_grows_where_its_class_allows_it_and_never_shrinks() {
    let spec = draft("Retain", "Retain").spec();
    let read = |name: &str, expands| (name.to_owned(), StorageClass::Read { expands });
    let classes: StorageClasses = [
        read("fast", true),
        read("slow", false),
        ("gone".to_owned(), StorageClass::Absent),
        ("hidden".to_owned(), StorageClass::Unread("forbidden".to_owned())),
    ]
    .into();
    let grows = |claim: &Claim, to: &str| claim.growth("data-web-0", &spec, &template(to), &classes);
    assert_eq!(grows(&claim(), "2Gi"), Ok(Some("2Gi".into())));
    for same in ["1Gi", "1024Mi", "512Mi", "x"] {
        assert_eq!(grows(&claim(), same), Ok(None), "{same}");
    }
    assert_eq!(grows(&Claim { bound: false, ..claim() }, "2Gi"), Ok(None), "it waits for its volume");
    for (claim, says) in [
        (
            Claim { class: Some("slow".into()), ..claim() },
            "storage class slow does not allow expansion: set allowVolumeExpansion",
        ),
        (Claim { class: Some("gone".into()), ..claim() }, "storage class gone does not exist"),
        (
            Claim { class: Some("hidden".into()), ..claim() },
            "storage class hidden could not be read: forbidden",
        ),
        (Claim { class: None, ..claim() }, "has no storage class"),
    ] {
        let refused = grows(&claim, "2Gi").unwrap_err();
        assert!(
            refused.starts_with("claim data-web-0 stays at 1Gi and not 2Gi: ") && refused.contains(says),
            "{refused}"
        );
    }
}

#[test]
fn of_the_templates_only_storage_requests_can_be_raised() {
    let problems = |new: Vec<ClaimTemplate>| template_problems(&[template("1Gi")], &new).join("; ");
    assert_eq!(problems(vec![template("1Gi")]), "");
    assert_eq!(problems(vec![template("1.5Gi")]), "");
    assert!(
        problems(vec![template("1023Mi")])
            .contains("[0].spec.resources.requests.storage: cannot become smaller")
    );
    assert!(problems(vec![template("much")]).contains("is not a quantity"));
    let mut other = template("2Gi");
    other.0["spec"]["accessModes"] = json!(["ReadWriteMany"]);
    for other in [vec![other], vec![], vec![template("1Gi"), template("1Gi")]] {
        assert!(problems(other).contains("only storage requests can be changed"));
    }
}
