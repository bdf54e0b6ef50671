//! Tests of the objects built for new pods.

use serde_json::json;

use super::*;
use crate::workload::fixtures::{deployment, stateful_set};

fn new_pod<'a>(name: &str, instance: &str, index: Option<u32>) -> NewPod<'a> {
    NewPod { name: name.to_owned(), revision: "web-5d7", instance: instance.to_owned(), index, surge: false }
}

#[test]
fn a_pod_is_its_template_with_an_owner_labels_and_the_gate() {
    let draft = deployment()
        .with("/template/metadata/annotations", json!({"note": "x"}))
        .with("/template/metadata/creationTimestamp", json!(null))
        .with("/template/spec/fieldOfTomorrow", json!({"a": 1}));
    let spec = draft.spec();
    let pod = pod(&spec, &new_pod("web-q78jd", "q78jd", None), &spec.template);
    assert_eq!(pod["metadata"]["name"], "web-q78jd");
    assert_eq!(
        pod["metadata"]["labels"],
        json!({"app": "web", "controller-revision-hash": "web-5d7", "tkex.bkbcs.tencent.com/gamedeployment-instance-id": "q78jd"})
    );
    assert_eq!(pod["metadata"]["annotations"], json!({"note": "x"}));
    assert!(pod["metadata"].get("creationTimestamp").is_none());
    assert_eq!(pod["spec"]["readinessGates"], json!([{"conditionType": "InPlaceUpdateReady"}]));
    assert_eq!(pod["spec"]["fieldOfTomorrow"], json!({"a": 1}), "newer than this program");
    let owner = &pod["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["controller"], &owner["uid"]),
        (&json!("GameDeployment"), &json!(true), &json!("uid-web"))
    );
}

#[test]
fn the_gate_is_there_once_and_not_where_the_user_does_not_want_it() {
    let gates = json!([{"conditionType": "InPlaceUpdateReady"}, {"conditionType": "mine"}]);
    let spec = deployment().with("/template/spec/readinessGates", gates.clone()).spec();
    let made = pod(&spec, &new_pod("web-a", "a", None), &spec.template);
    assert_eq!(made["spec"]["readinessGates"], gates);
    let spec = deployment().with("/disableReadinessGate", json!(true)).spec();
    assert!(pod(&spec, &new_pod("web-a", "a", None), &spec.template)["spec"].get("readinessGates").is_none());
}

#[test]
fn a_pod_of_a_set_has_its_name_its_host_name_and_its_claims() {
    let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}});
    let draft = stateful_set().with("/volumeClaimTemplates", json!([claim])).with(
        "/template/spec/volumes",
        json!([{"name": "data", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]),
    );
    let spec = draft.spec();
    let made = pod(&spec, &new_pod("web-3", "3", None), &spec.template);
    assert_eq!((&made["spec"]["hostname"], &made["spec"]["subdomain"]), (&json!("web-3"), &json!("web")));
    assert_eq!(
        made["spec"]["volumes"],
        json!([{"name": "tmp", "emptyDir": {}}, {"name": "data", "persistentVolumeClaim": {"claimName": "data-web-3"}}])
    );
    assert_eq!(made["metadata"]["labels"]["gamestatefulset.kubernetes.io/pod-ordinal"], "3");
    assert_eq!(made["metadata"]["labels"]["gamestatefulset.kubernetes.io/pod-name"], "web-3");
    let claims = claims(&spec, spec.stateful().unwrap(), "3");
    assert_eq!(claims[0].0, "data-web-3");
    assert_eq!(claims[0].1["metadata"]["labels"], json!({"app": "web"}));
    assert!(claims[0].1["metadata"].get("ownerReferences").is_none(), "it outlives the pod");
}

#[test]
fn a_number_of_its_own_is_in_every_container() {
    let spec = deployment()
        .with(
            "/template/spec/containers/0/env",
            json!([{"name": "POD_INDEX", "value": "old"}, {"name": "A", "value": "$(POD_INDEX)"}]),
        )
        .spec();
    let made = pod(&spec, &new_pod("web-a", "a", Some(100)), &spec.template);
    let env = &made["spec"]["containers"][0]["env"];
    assert_eq!(env[0], json!({"name": "POD_INDEX", "value": "100"}), "first, so that others can refer to it");
    assert_eq!(env.as_array().unwrap().len(), 2);
    assert_eq!(made["metadata"]["annotations"]["tkex.bkbcs.tencent.com/gamedeployment-index-id"], "100");
}

#[test]
fn only_a_surge_pod_has_the_surge_label_whatever_the_template_says() {
    let spec = deployment()
        .with("/template/metadata/labels", json!({"app": "web", "inplace.dev/surge": "true"}))
        .spec();
    let label = |surge: bool| {
        let pod = pod(&spec, &NewPod { surge, ..new_pod("web-a", "a", None) }, &spec.template);
        pod["metadata"]["labels"]["inplace.dev/surge"].clone()
    };
    assert_eq!((label(true), label(false)), (json!("true"), json!(null)));
}
