//! The health scripts for Argo CD: what they say about each state that a controller reports, and that the `ConfigMap` has every
//! script. The other tests of the controllers call [`agrees`] with the objects that a controller has written.

mod actions;
mod lua;

use std::collections::BTreeSet;
use std::fs;

use inplace::api::game_deployment::GameDeployment;
use inplace::api::game_stateful_set::GameStatefulSet;
use inplace::api::hook_run::{HookPhase, HookRun};
use inplace::api::in_place_rollout::{InPlaceRollout, RolloutPhase};
use inplace::api::kstatus::ObjectState;
use inplace::api::workload::{PauseCondition, PauseReason};
use inplace::workload::health::Health;
use inplace::workload::report::Report;
use jiff::Timestamp;
use kube::CustomResourceExt;
use serde_json::{Value, json};

/// The folder of the scripts of a kind.
fn folder(kind: &str) -> &'static str {
    match kind {
        "GameDeployment" | "GameStatefulSet" => "game-workload",
        "InPlaceRollout" => "in-place-rollout",
        "HookRun" => "hook-run",
        _ => panic!("no scripts for {kind}"),
    }
}

/// The health of an object: the word for Argo CD, and the message.
fn health(object: &Value) -> (String, String) {
    let script = format!("{}/health", folder(object["kind"].as_str().unwrap()));
    let found = lua::run(&script, object);
    let text = |field: &str| found[field].as_str().unwrap().to_owned();
    (text("status"), text("message"))
}

/// The health of an object that a controller has written is what its conditions say to kstatus.
pub(crate) fn agrees(object: &Value) {
    let (word, message) = health(object);
    let is = |kind: &str| {
        let conditions = object["status"]["conditions"].as_array().unwrap();
        conditions.iter().find(|condition| condition["type"] == kind).unwrap()["status"] == "True"
    };
    let expected: &[&str] = match () {
        () if is("Stalled") => &["Degraded"],
        () if is("Ready") => &["Healthy"],
        () if is("Reconciling") => &["Progressing", "Suspended"],
        () => &["Progressing"],
    };
    assert!(expected.contains(&word.as_str()), "{word}: {message}\n{object:#}");
    let paused = object["spec"]["paused"] == true || object["spec"]["updateStrategy"]["paused"] == true;
    let waits = object["status"]["pauseConditions"].is_array();
    assert!(word != "Suspended" || paused || waits, "{message}\n{object:#}");
}

/// A workload with this state and reason in its three conditions.
fn workload(kind: &str, state: ObjectState, reason: &'static str, steps: &[PauseReason]) -> Value {
    let mut report = Report { generation: 3, update_revision: "web-5d9".to_owned(), ..Report::default() };
    let health = Health { state, reason, message: "as it is".to_owned() };
    report.set_health(&health, Timestamp::UNIX_EPOCH);
    report.steps.index = Some(1);
    let pause = |reason: &PauseReason| PauseCondition {
        reason: *reason,
        start_time: Timestamp::UNIX_EPOCH,
        user_paused: false,
    };
    report.steps.pauses = steps.iter().map(pause).collect();
    let status = match kind {
        "GameDeployment" => json!(report.deployment()),
        _ => json!(report.stateful_set()),
    };
    json!({
        "apiVersion": "tkex.tencent.com/v1alpha1", "kind": kind,
        "metadata": {"namespace": "shop", "name": "web", "uid": "u", "generation": 3, "annotations": {"team": "a"}},
        "spec": {"replicas": 3, "serviceName": "web", "selector": {"matchLabels": {"app": "web"}},
            "updateStrategy": {"type": "InplaceUpdate", "paused": false,
                "canary": {"steps": [{"partition": 2}, {"pause": {}}, {"pause": {"duration": 60}}]}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"volumes": [{"name": "data", "emptyDir": {}}],
                "containers": [{"name": "app", "image": "app:2"}, {"name": "side", "image": "side:1"}]}}},
        "status": status,
    })
}

const WORKLOADS: [&str; 2] = ["GameDeployment", "GameStatefulSet"];

/// The reasons of the conditions of a workload, from the page of all reasons.
fn reasons() -> Vec<&'static str> {
    let page = fs::read_to_string("docs/reference/events.md").unwrap();
    let begin = "## Conditions of a GameDeployment or GameStatefulSet";
    let section = page.split(begin).nth(1).unwrap().split("\n## ").next().unwrap().to_owned();
    let rows = section.leak().lines().filter(|line| line.contains("` True") || line.contains("` False"));
    let reasons: Vec<_> = rows.map(|row| row.split('`').nth(1).unwrap()).collect();
    assert!(reasons.len() > 20 && reasons.contains(&"Aborting"), "{reasons:?}");
    reasons
}

#[test]
fn each_state_of_a_workload_has_a_health() {
    let states =
        [ObjectState::Ready, ObjectState::Reconciling, ObjectState::Stalled, ObjectState::Unavailable];
    for kind in WORKLOADS {
        for (state, reason) in
            states.into_iter().flat_map(|state| reasons().into_iter().map(move |of| (state, of)))
        {
            // A state that is new does not compile here.
            let expected = match state {
                ObjectState::Ready => "Healthy",
                ObjectState::Stalled => "Degraded",
                // Without a wait of a canary step this reason is that of the user's pause.
                ObjectState::Reconciling if reason == "Paused" => "Suspended",
                ObjectState::Reconciling | ObjectState::Unavailable => "Progressing",
            };
            let object = workload(kind, state, reason, &[]);
            let (word, message) = health(&object);
            assert_eq!((word.as_str(), message), (expected, format!("{reason}: as it is")), "{object:#}");
        }
    }
}

#[test]
fn only_what_a_person_has_to_end_is_suspended() {
    use PauseReason::{PausedByCanaryPauseStep as Pause, PausedByStepBasedHook as Hook};
    for kind in WORKLOADS {
        let health_of = |reason: &'static str, pauses: &[PauseReason], step: i32, paused: bool| {
            let mut object = workload(kind, ObjectState::Reconciling, reason, pauses);
            object["status"]["currentStepIndex"] = json!(step);
            object["spec"]["updateStrategy"]["paused"] = json!(paused);
            health(&object).0
        };
        assert_eq!(health_of("Paused", &[Pause], 1, false), "Suspended");
        assert_eq!(health_of("Paused", &[Pause], 2, false), "Progressing", "its duration ends it");
        assert_eq!(health_of("Paused", &[Hook], 2, false), "Suspended");
        assert_eq!(health_of("Paused", &[Pause], 2, true), "Suspended", "the user's pause stays");
        assert_eq!(health_of("Aborting", &[], 0, true), "Suspended");
        assert_eq!(health_of("Aborting", &[], 0, false), "Progressing");
        assert_eq!(health_of("Scaling", &[], 0, true), "Progressing", "a pause does not stop that");
    }
}

#[test]
fn an_object_that_no_controller_has_observed_is_in_progress() {
    let new = |kind: &str| {
        let mut object = workload(kind, ObjectState::Ready, "Complete", &[]);
        object.as_object_mut().unwrap().remove("status");
        object
    };
    for kind in WORKLOADS {
        let mut changed = workload(kind, ObjectState::Ready, "Complete", &[]);
        assert_eq!(health(&changed).0, "Healthy");
        changed["metadata"]["generation"] = json!(4);
        // A status of a bk-bcs operator.
        let mut foreign = new(kind);
        foreign["status"] = json!({"observedGeneration": 3, "replicas": 3});
        let mut bare = new(kind);
        bare["spec"].as_object_mut().unwrap().remove("updateStrategy");
        for object in [new(kind), changed, foreign, bare] {
            assert_eq!(health(&object).0, "Progressing", "{object:#}");
        }
    }
    for (kind, spec) in [("InPlaceRollout", json!({"target": {}})), ("HookRun", json!({"metrics": []}))] {
        let object = json!({"kind": kind, "metadata": {"name": "one", "generation": 1}, "spec": spec});
        assert_eq!(health(&object).0, "Progressing");
    }
}

#[test]
fn each_phase_of_a_rollout_has_a_health() {
    let cases = [
        (RolloutPhase::Pending, false, ObjectState::Reconciling, "Progressing"),
        (RolloutPhase::Running, false, ObjectState::Reconciling, "Progressing"),
        (RolloutPhase::Running, true, ObjectState::Reconciling, "Progressing"),
        (RolloutPhase::Paused, true, ObjectState::Reconciling, "Suspended"),
        (RolloutPhase::Paused, false, ObjectState::Ready, "Healthy"),
        (RolloutPhase::Aborting, false, ObjectState::Reconciling, "Progressing"),
        (RolloutPhase::Aborting, true, ObjectState::Reconciling, "Suspended"),
        (RolloutPhase::Succeeded, true, ObjectState::Ready, "Healthy"),
        (RolloutPhase::Failed, false, ObjectState::Stalled, "Degraded"),
        (RolloutPhase::Superseded, false, ObjectState::Stalled, "Degraded"),
        (RolloutPhase::Aborted, false, ObjectState::Stalled, "Degraded"),
        (RolloutPhase::AbortFailed, true, ObjectState::Stalled, "Degraded"),
    ];
    for (phase, paused, state, expected) in cases {
        let conditions = state.conditions().map(|(kind, is)| {
            json!({"type": kind, "status": if is { "True" } else { "False" }, "reason": format!("{phase:?}")})
        });
        let finished = phase.is_terminal().then_some(Timestamp::UNIX_EPOCH);
        let object = json!({"kind": "InPlaceRollout", "metadata": {"name": "one", "generation": 2},
            "spec": {"target": {}, "paused": paused},
            "status": {"observedGeneration": 2, "phase": phase, "message": "so it is", "conditions": conditions, "finishedAt": finished}});
        let reported = (expected.to_owned(), format!("{phase:?}: so it is"));
        assert_eq!(health(&object), reported);
        let mut changed = object;
        changed["metadata"]["generation"] = json!(3);
        let after = if phase.is_terminal() { expected } else { "Progressing" };
        assert_eq!(health(&changed).0, after, "a rollout that has ended does not read its spec again");
    }
}

#[test]
fn each_phase_of_a_hook_run_has_a_health() {
    for phase in [
        HookPhase::Successful,
        HookPhase::Running,
        HookPhase::Pending,
        HookPhase::Inconclusive,
        HookPhase::Error,
        HookPhase::Failed,
    ] {
        let expected = match phase {
            HookPhase::Successful => "Healthy",
            HookPhase::Running | HookPhase::Pending => "Progressing",
            HookPhase::Inconclusive | HookPhase::Error | HookPhase::Failed => "Degraded",
        };
        let object = json!({"kind": "HookRun", "metadata": {"name": "one"}, "spec": {"metrics": []},
            "status": {"phase": phase, "message": "so it is"}});
        assert_eq!(health(&object), (expected.to_owned(), format!("{phase:?}: so it is")));
    }
}

/// Kustomize compares three ways and replaces lists: a default inside of a list would be a difference for ever.
#[test]
fn no_list_of_a_kind_has_defaults_that_a_manifest_lacks() {
    fn walk(schema: &Value, in_list: bool, path: &str, found: &mut Vec<String>) {
        if in_list && schema.get("default").is_some() {
            found.push(path.to_owned());
        }
        for (name, below) in schema["properties"].as_object().into_iter().flatten() {
            walk(below, in_list, &format!("{path}.{name}"), found);
        }
        if let Some(items) = schema.get("items") {
            walk(items, true, &format!("{path}[]"), found);
        }
    }
    let (mut found, mut outside) = (Vec::new(), Vec::new());
    for (_, definition) in inplace::api::crd::all().unwrap() {
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        walk(schema, false, "spec", &mut found);
        walk(schema, true, "spec", &mut outside);
    }
    assert_eq!(found, Vec::<String>::new());
    assert!(outside.len() > 10, "there are defaults outside of lists: {outside:?}");
}

/// Group and kind, as the keys of the `ConfigMap` have them.
fn kinds() -> [String; 4] {
    let name = |definition: k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition| {
        format!("{}_{}", definition.spec.group, definition.spec.names.kind)
    };
    [
        name(GameDeployment::crd()),
        name(GameStatefulSet::crd()),
        name(HookRun::crd()),
        name(InPlaceRollout::crd()),
    ]
}

/// The text of a script, indented.
fn indented(script: &str, by: usize) -> String {
    let text = fs::read_to_string(format!("daemonset/argocd/{script}.lua")).unwrap();
    let line =
        |line: &str| if line.is_empty() { "\n".to_owned() } else { format!("{}{line}\n", " ".repeat(by)) };
    text.lines().map(line).collect()
}

/// The `ConfigMap` with all scripts.
fn config_map() -> String {
    let mut parts = vec![HEAD.to_owned()];
    for name in kinds() {
        let folder = folder(name.rsplit('_').next().unwrap());
        parts.push(format!("  resource.customizations.health.{name}: |\n"));
        parts.push(indented(&format!("{folder}/health"), 4));
        parts.push(format!("  resource.customizations.actions.{name}: |\n    discovery.lua: |\n"));
        parts.push(indented(&format!("{folder}/discovery"), 6));
        parts.push("    definitions:\n".to_owned());
        for action in actions::of(folder) {
            parts.push(format!("    - name: {action}\n      action.lua: |\n"));
            parts.push(indented(&format!("{folder}/{action}"), 8));
        }
    }
    parts.concat()
}

const HEAD: &str = "\
# Generated from the scripts of this folder by `make reference`; do not edit. Adds them to the settings of Argo CD:
#   kubectl -n argocd patch configmap argocd-cm --patch-file daemonset/argocd/argocd-cm.yaml
apiVersion: v1
kind: ConfigMap
metadata:
  name: argocd-cm
  namespace: argocd
data:
";

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "the environment says whether pages are written, as in `make reference`"
)]
fn reference_of_the_config_map_has_every_script() {
    let (path, made) = ("daemonset/argocd/argocd-cm.yaml", config_map());
    if std::env::var_os("INPLACE_WRITE_REFERENCE").is_some() {
        fs::write(path, &made).unwrap();
    }
    assert!(
        fs::read_to_string(path).unwrap_or_default() == made,
        "{path} is not from the scripts: run `make reference`"
    );
    // Read as Argo CD reads it: the texts of the scripts.
    let read: Value = serde_saphyr::from_str(&made).unwrap();
    let data = read["data"].as_object().unwrap();
    assert_eq!(data.len(), 2 * kinds().len());
    for name in kinds() {
        let folder = folder(name.rsplit('_').next().unwrap());
        let file =
            |script: &str| fs::read_to_string(format!("daemonset/argocd/{folder}/{script}.lua")).unwrap();
        assert_eq!(data[&format!("resource.customizations.health.{name}")], file("health"));
        let text = data[&format!("resource.customizations.actions.{name}")].as_str().unwrap();
        let actions: Value = serde_saphyr::from_str(text).unwrap();
        assert_eq!(actions["discovery.lua"], file("discovery"));
        for definition in actions["definitions"].as_array().unwrap() {
            assert_eq!(definition["action.lua"], file(definition["name"].as_str().unwrap()));
        }
    }
    let used: BTreeSet<_> = kinds().iter().map(|name| folder(name.rsplit('_').next().unwrap())).collect();
    assert_eq!(used.len(), 3);
}
