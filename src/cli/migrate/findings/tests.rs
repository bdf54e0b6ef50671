//! The findings about workloads as a bk-bcs operator leaves them.

use serde_json::json;

use super::*;

fn now() -> Timestamp {
    "2026-01-01T00:10:00Z".parse().unwrap()
}

fn spec() -> Value {
    json!({"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "updateStrategy": {"type": "RollingUpdate"},
        "template": {"metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "app", "image": "app:1", "resources": {"limits": {"cpu": "1000m"}}}]}}})
}

fn of(spec: &Value) -> Workload {
    let object = json!({"apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameDeployment",
        "metadata": {"name": "web", "namespace": "shop", "uid": "u"}, "spec": spec});
    Workload {
        kind: "GameDeployment".to_owned(),
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
        uid: "u".to_owned(),
        labels: BTreeMap::new(),
        spec: serde_json::from_value(object).ok().map(|object| WorkloadSpec::of_deployment(&object)),
        raw: spec.clone(),
        managed: Vec::new(),
    }
}

/// A revision of a bk-bcs operator with this image.
fn recorded(image: &str) -> ControllerRevision {
    let template = json!({"$patch": "replace", "metadata": {"creationTimestamp": null, "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "app", "image": image, "resources": {"limits": {"cpu": "1"}}}]}});
    let revision =
        json!({"metadata": {"name": "web-5d8"}, "revision": 1, "data": {"spec": {"template": template}}});
    serde_json::from_value(revision).unwrap()
}

fn pod(change: impl FnOnce(&mut Value)) -> Pod {
    let mut pod = json!({"metadata": {"name": "web-a", "labels": {"controller-revision-hash": "web-5d8"}},
        "spec": {"containers": [{"name": "app", "image": "app:1"}]}});
    change(&mut pod);
    serde_json::from_value(pod).unwrap()
}

fn run(change: impl FnOnce(&mut Value)) -> HookRun {
    let mut run = json!({"apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookRun", "metadata": {"name": "hook"},
        "spec": {"metrics": []}, "status": {"phase": "Running"}});
    change(&mut run);
    serde_json::from_value(run).unwrap()
}

/// The levels and messages about a workload with these objects.
fn about(
    spec: &Value,
    pods: &[Pod],
    revisions: &[ControllerRevision],
    runs: &[HookRun],
) -> Vec<(Level, String)> {
    let owned = Owned {
        pods: pods.iter().collect(),
        revisions: revisions.iter().collect(),
        runs: runs.iter().collect(),
    };
    workload(&of(spec), &owned, now()).into_iter().map(|found| (found.level, found.message)).collect()
}

fn one(found: &[(Level, String)], level: Level, parts: &[&str]) {
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(found[0].0, level, "{found:#?}");
    for part in parts {
        assert!(found[0].1.contains(part), "{part}: {found:#?}");
    }
}

#[test]
fn a_workload_at_rest_has_no_findings() {
    assert_eq!(about(&spec(), &[pod(|_| {})], &[recorded("app:1")], &[]), []);
}

#[test]
fn a_template_that_would_move_pods_is_to_resolve_unless_it_is_paused() {
    let found = about(&spec(), &[pod(|_| {})], &[recorded("app:0")], &[]);
    one(&found, Level::Resolve, &["image of app", "1 pods are created again", "updateStrategy.paused"]);
    one(&about(&spec(), &[pod(|_| {})], &[], &[]), Level::Resolve, &["no ControllerRevision"]);
    let mut paused = spec();
    paused["updateStrategy"]["paused"] = json!(true);
    one(&about(&paused, &[pod(|_| {})], &[recorded("app:0")], &[]), Level::Note, &["no longer paused"]);
    let other = pod(|pod| pod["metadata"]["labels"]["controller-revision-hash"] = json!("web-old"));
    one(&about(&spec(), &[other], &[recorded("app:1")], &[]), Level::Note, &["1 of 1 pods", "continues"]);
}

#[test]
fn fields_without_an_effect_are_named_by_their_paths() {
    let mut odd = spec();
    odd["serviceNam"] = json!("web");
    odd["updateStrategy"]["maxUnavailabel"] = json!(1);
    let found = about(&odd, &[], &[], &[]);
    one(&found, Level::Note, &["spec.serviceNam", "spec.updateStrategy.maxUnavailabel"]);
    let mut typo = spec();
    typo["template"]["spec"]["containers"][0]["imagePullPolcy"] = json!("Always");
    one(&about(&typo, &[], &[], &[]), Level::Note, &["spec.template.spec.containers[0].imagePullPolcy"]);
    let mut untyped = spec();
    untyped["updateStrategy"].as_object_mut().unwrap().remove("type");
    one(&about(&untyped, &[], &[], &[]), Level::Note, &["updateStrategy.type"]);
    let mut wrong = spec();
    wrong["template"]["spec"]["containers"] = json!("none");
    assert!(about(&wrong, &[], &[], &[]).iter().any(|(level, _)| *level == Level::Resolve));
}

#[test]
fn a_deletion_that_bk_bcs_refused_is_not_refused_any_more() {
    let mut labelled = of(&spec());
    labelled.labels = [("io.tencent.bcs.dev/deletion-allow".to_owned(), "Cascading".to_owned())].into();
    let owned = Owned { pods: Vec::new(), revisions: Vec::new(), runs: Vec::new() };
    let found = workload(&labelled, &owned, now());
    let found: Vec<_> = found.into_iter().map(|found| (found.level, found.message)).collect();
    one(&found, Level::Note, &["io.tencent.bcs.dev/deletion-allow", "RBAC"]);
}

#[test]
fn updates_and_hooks_under_way_are_named() {
    let state = json!({"updateTimestamp": "2026-01-01T00:09:00Z", "lastContainerStatuses": {"app": {"imageID": "old"}}});
    let begun = |began: &str| {
        let text = state.to_string().replace("2026-01-01T00:09:00Z", began);
        pod(|pod| {
            pod["metadata"]["annotations"] = json!({"inplace-update-state": text});
            pod["status"] = json!({"conditions": [{"type": "InPlaceUpdateReady", "status": "False", "reason": "StartInPlaceUpdate"}]});
        })
    };
    let found = about(&spec(), &[begun("2026-01-01T00:09:00Z")], &[recorded("app:1")], &[]);
    one(&found, Level::Note, &["web-a", "kubelet restarts app"]);
    let found = about(&spec(), &[begun("2025-01-01T00:09:00Z")], &[recorded("app:1")], &[]);
    one(&found, Level::Resolve, &["web-a", "does not end"]);

    one(&about(&spec(), &[], &[], &[run(|_| {})]), Level::Resolve, &["HookRun hook is not complete"]);
    let over = run(|run| run["status"]["phase"] = json!("Failed"));
    let own = run(|run| run["metadata"]["annotations"] = json!({"inplace.dev/pod-uid": "p"}));
    assert_eq!(about(&spec(), &[], &[], &[over, own]), []);
}

#[test]
fn an_operator_that_runs_is_found_by_its_lock_and_by_its_writes() {
    let record = |holder: &str, renewed: &str| {
        let record = json!({"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed});
        Leader::read("gamedeployment-controller", &record.to_string())
    };
    let held = record("op-1", "2026-01-01T00:09:50Z").unwrap();
    let found = operators(&[held], now());
    assert!(found[0].message.contains("op-1 holds the lock gamedeployment-controller"), "{found:?}");
    assert_eq!(operators(&[record("op-1", "2026-01-01T00:00:00Z").unwrap()], now()), []);
    assert_eq!(record("", "2026-01-01T00:09:50Z"), None);
    assert_eq!(Leader::read("x", "{"), None);

    let entry = json!({"manager": "operator", "operation": "Update", "time": "2026-01-01T00:09:30Z",
        "fieldsV1": {"f:status": {"f:replicas": {}}}});
    let mut watched = of(&spec());
    watched.managed = vec![serde_json::from_value(entry).unwrap()];
    let owned = Owned { pods: Vec::new(), revisions: Vec::new(), runs: Vec::new() };
    assert_eq!(workload(&watched, &owned, now())[0].level, Level::Resolve);
    watched.spec = None;
    assert_eq!(workload(&watched, &owned, now()).len(), 2, "it cannot be decoded");
}
