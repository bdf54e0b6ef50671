//! The numbers of the pods of a `GameDeployment` (`POD_INDEX`): the range that they are from.

use crate::workload::check;

use super::*;

fn numbered(range: &str) -> Draft {
    deployment().annotated(workload_key::INDEX_ON, "true").annotated(workload_key::INDEX_RANGE, range)
}

#[test]
fn the_end_of_the_index_range_is_no_number_and_an_absent_start_is_zero() {
    for (range, expected) in [
        (r#"{"podStartIndex":100,"podEndIndex":103}"#, ["100", "101", "102"]),
        (r#"{"podEndIndex":3}"#, ["0", "1", "2"]),
    ] {
        let draft = numbered(range);
        let decision = sight(&[], &draft.revision()).decide(&draft);
        let number = |action: &Action| match action {
            Action::CreatePod { body, .. } => {
                body["metadata"]["annotations"][workload_key::INDEX].as_str().map(str::to_owned)
            }
            _ => None,
        };
        assert_eq!(decision.actions.iter().filter_map(number).collect::<Vec<_>>(), expected);
        assert_eq!(condition(&decision, "ScaleFailed").0, "False");
        assert_eq!(check::deployment(None, &draft.object(), false), Vec::<String>::new());
    }
}

#[test]
fn no_pod_is_created_without_a_number_that_it_should_have() {
    let missing = deployment().annotated(workload_key::INDEX_ON, "true");
    for (draft, why) in [
        (missing, "is missing"),
        (numbered("100-110"), "not a range such as"),
        (numbered(r#"{"podStartIndex":-1,"podEndIndex":9}"#), "`-1`"),
        (numbered(r#"{"podStartIndex":110,"podEndIndex":100}"#), "has to be greater than podStartIndex"),
        (numbered(r#"{"podStartIndex":100,"podEndIndex":100}"#), "has to be greater than podStartIndex"),
        (numbered(r#"{"podStartIndex":100}"#), "has to be greater than podStartIndex"),
    ] {
        let decision = sight(&["web-a"], &draft.revision()).decide(&draft);
        assert!(decision.created().is_empty(), "{:#?}", decision.actions);
        let (status, reason, message) = condition(&decision, "ScaleFailed");
        assert_eq!((status.as_str(), reason.as_str()), ("True", "Blocked"));
        assert!(message.contains(why), "{message}");
        assert_eq!(check::deployment(None, &draft.object(), false), [message]);
        let off = draft.annotated(workload_key::INDEX_ON, "false");
        assert_eq!(sight(&["web-a"], &off.revision()).decide(&off).created().len(), 2);
        assert_eq!(check::deployment(None, &off.object(), false), Vec::<String>::new());
    }
}

/// As many pods as there are numbers are created, also in the place of one that is lost.
#[test]
fn too_few_numbers_are_named_and_used() {
    let draft = numbered(r#"{"podStartIndex":100,"podEndIndex":102}"#);
    let mut sight = sight(&["web-a"], &draft.revision());
    sight.pods[0].index = Some(100);
    let decision = sight.decide(&draft);
    assert_eq!(decision.created().len(), 1, "{:#?}", decision.actions);
    let (status, reason, message) = condition(&decision, "ScaleFailed");
    assert_eq!((status.as_str(), reason.as_str()), ("True", "Blocked"));
    assert!(message.contains("has fewer numbers than spec.replicas"), "{message}");
    assert_eq!(check::deployment(None, &draft.object(), false), [message]);
}
