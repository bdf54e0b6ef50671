//! Reads the revisions of a workload, and selects the one that an undo restores. Pure.

use k8s_openapi::api::apps::v1::ControllerRevision;

use crate::api::pod_template::PodTemplate;
use crate::workload::revision::{self, Revision};

/// Annotation in which people and tools record the reason of a change; kubectl shows it, too.
pub(in crate::cli) const CAUSE: &str = "kubernetes.io/change-cause";

/// A revision and the recorded reason of its change.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Past {
    pub(super) revision: Revision,
    pub(super) cause: Option<String>,
}

/// What an undo has to do.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Way<'a> {
    /// Nothing: the template already equals this revision.
    There(&'a Past),
    /// Restore the template of this revision.
    Back(&'a Past),
}

/// The revisions that `uid` controls, oldest first. A revision without a template is ignored.
pub(super) fn of(uid: &str, all: Vec<ControllerRevision>) -> Vec<Past> {
    let is_its = |found: &ControllerRevision| {
        let owners = found.metadata.owner_references.iter().flatten();
        owners.into_iter().any(|owner| owner.controller == Some(true) && owner.uid == uid)
    };
    let read = |found: ControllerRevision| {
        let template = revision::template(&found.data?.0)?;
        let cause = found.metadata.annotations.and_then(|mut annotations| annotations.remove(CAUSE));
        let revision =
            Revision { name: found.metadata.name.unwrap_or_default(), number: found.revision, template };
        Some(Past { revision, cause })
    };
    let mut past: Vec<_> = all.into_iter().filter(is_its).filter_map(read).collect();
    past.sort_by_key(|past| past.revision.number);
    past
}

/// Selects the revision of an undo: the one with the given number, or else the newest whose template differs from
/// `now`.
pub(super) fn way<'a>(past: &'a [Past], now: &PodTemplate, wanted: Option<i64>) -> Result<Way<'a>, String> {
    let is_now = |past: &Past| revision::equal(&past.revision.template, now);
    match wanted {
        Some(number) => {
            let found = numbered(past, number)?;
            Ok(if is_now(found) { Way::There(found) } else { Way::Back(found) })
        }
        None => past
            .iter()
            .rfind(|past| !is_now(past))
            .map(Way::Back)
            .ok_or_else(|| "there is no earlier revision to roll back to".to_owned()),
    }
}

/// The revision with this number.
pub(super) fn numbered(past: &[Past], number: i64) -> Result<&Past, String> {
    past.iter().find(|past| past.revision.number == number).ok_or_else(|| {
        let known: Vec<_> = past.iter().map(|past| past.revision.number.to_string()).collect();
        match known.as_slice() {
            [] => format!("there is no revision {number}, and there are no other revisions"),
            known => format!("there is no revision {number}; the revisions are {}", known.join(", ")),
        }
    })
}

/// `app=repo/app:v2,side=repo/side:v1`.
pub(in crate::cli) fn images(template: &PodTemplate) -> String {
    template.images().map(|(name, image)| format!("{name}={image}")).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template(image: &str) -> PodTemplate {
        PodTemplate(json!({"spec": {"containers": [{"name": "app", "image": image}]}}))
    }

    fn revision(name: &str, number: i64, owner: &str, image: &str) -> ControllerRevision {
        serde_json::from_value(json!({
            "metadata": {
                "name": name, "annotations": {"kubernetes.io/change-cause": format!("to {image}")},
                "ownerReferences": [{"apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameDeployment", "name": "web",
                    "uid": owner, "controller": true}],
            },
            "revision": number, "data": revision::data(&template(image)),
        }))
        .unwrap()
    }

    fn past() -> Vec<Past> {
        let all = vec![
            revision("web-b", 2, "u", "app:2"),
            revision("db-a", 3, "other", "app:9"),
            revision("web-a", 1, "u", "app:1"),
            revision("web-c", 3, "u", "app:3"),
        ];
        of("u", all)
    }

    #[test]
    fn revisions_are_the_workloads_own_and_in_order() {
        let past = past();
        let reported: Vec<_> =
            past.iter().map(|past| (past.revision.name.as_str(), past.cause.as_deref())).collect();
        assert_eq!(
            reported,
            [("web-a", Some("to app:1")), ("web-b", Some("to app:2")), ("web-c", Some("to app:3"))]
        );
        assert_eq!(images(&past[0].revision.template), "app=app:1");
    }

    #[test]
    fn an_undo_goes_to_the_number_or_else_to_the_newest_that_differs() {
        let past = past();
        for (now, wanted, expect) in [
            ("app:3", None, Ok(Way::Back(&past[1]))),
            ("app:1", None, Ok(Way::Back(&past[2]))),
            ("app:4", None, Ok(Way::Back(&past[2]))),
            ("app:3", Some(1), Ok(Way::Back(&past[0]))),
            ("app:3", Some(3), Ok(Way::There(&past[2]))),
            ("app:3", Some(7), Err("there is no revision 7; the revisions are 1, 2, 3".to_owned())),
        ] {
            assert_eq!(way(&past, &template(now), wanted), expect, "{now} {wanted:?}");
        }
        assert!(way(&past[..1], &template("app:1"), None).unwrap_err().contains("no earlier revision"));
        assert!(way(&[], &template("app:1"), Some(1)).unwrap_err().contains("no other revisions"));
    }
}
