//! The actions for Argo CD: which of them are offered in each state, that each does what the command of this project does, and
//! that admission accepts the result.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use inplace::api::annotation;
use inplace::api::in_place_rollout::{InPlaceRollout, RolloutPhase};
use inplace::api::kstatus::ObjectState;
use inplace::api::workload::PauseReason;
use inplace::api::workload_key::{RESUME_STEP, RETRY};
use inplace::workload::spec::WorkloadSpec;
use inplace::{rollout, workload};
use serde_json::{Value, json};

use super::{WORKLOADS, folder, lua, workload as object_of};
use crate::api_server::ApiServer;

/// The names of the actions that have a script.
pub(super) fn of(folder: &str) -> Vec<String> {
    let scripts = fs::read_dir(format!("daemonset/argocd/{folder}")).unwrap();
    let names = scripts.map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned());
    let mut names: Vec<_> = names.filter(|name| name != "health" && name != "discovery").collect();
    names.sort();
    names
}

/// The actions that are offered for an object. All that have a script are listed.
fn offered(object: &Value) -> Vec<String> {
    let folder = folder(object["kind"].as_str().unwrap());
    let found = lua::run(&format!("{folder}/discovery"), object);
    let found = found.as_object().unwrap();
    assert_eq!(found.keys().cloned().collect::<BTreeSet<_>>(), of(folder).into_iter().collect());
    assert!(found.values().all(|action| action["displayName"].is_string()), "{found:?}");
    let enabled = found.iter().filter(|(_, action)| action["disabled"] == false);
    let mut enabled: Vec<_> = enabled.map(|(name, _)| name.clone()).collect();
    enabled.sort();
    enabled
}

/// The object after an action.
fn after(action: &str, object: &Value) -> Value {
    let folder = folder(object["kind"].as_str().unwrap());
    lua::with_maps_of(lua::run(&format!("{folder}/{action}"), object), object)
}

/// What admission refuses of a change, and the specs before and after it as the controller reads them.
fn admitted(old: &Value, new: &Value) -> (Vec<String>, WorkloadSpec) {
    let read = |value: &Value| value.to_string();
    if new["kind"] == "GameDeployment" {
        let (old, new) =
            (serde_json::from_str(&read(old)).unwrap(), serde_json::from_str(&read(new)).unwrap());
        (workload::check::deployment(Some(&old), &new, true), WorkloadSpec::of_deployment(&new))
    } else {
        let (old, new) =
            (serde_json::from_str(&read(old)).unwrap(), serde_json::from_str(&read(new)).unwrap());
        (workload::check::stateful_set(Some(&old), &new, true), WorkloadSpec::of_stateful_set(&new))
    }
}

#[test]
fn an_action_is_offered_when_it_has_an_effect() {
    for kind in WORKLOADS {
        let of_state = |state, reason| object_of(kind, state, reason, &[]);
        assert_eq!(offered(&of_state(ObjectState::Ready, "Complete")), ["pause", "restart"]);
        assert_eq!(
            offered(&of_state(ObjectState::Stalled, "TooManyFailures")),
            ["pause", "restart", "retry"]
        );
        let mut failed = of_state(ObjectState::Reconciling, "Updating");
        failed["status"]["conditions"].as_array_mut().unwrap().push(
            json!({"type": "UpdateFailed", "status": "True", "reason": "PodsFailed", "message": "one"}),
        );
        assert_eq!(offered(&failed), ["pause", "restart", "retry"]);
        let waits =
            object_of(kind, ObjectState::Reconciling, "Paused", &[PauseReason::PausedByCanaryPauseStep]);
        assert_eq!(offered(&waits), ["pause", "restart", "resume"]);
        let paused = after("pause", &of_state(ObjectState::Ready, "Complete"));
        assert_eq!(offered(&paused), ["restart", "resume"]);
        let mut new = of_state(ObjectState::Ready, "Complete");
        new.as_object_mut().unwrap().remove("status");
        new["spec"].as_object_mut().unwrap().remove("updateStrategy");
        assert_eq!(offered(&new), ["pause", "restart"]);
    }
    let rollout = |paused: bool, phase: RolloutPhase| {
        let finished = phase.is_terminal().then_some("2026-01-01T00:00:00Z");
        offered(&json!({"kind": "InPlaceRollout", "metadata": {}, "spec": {"paused": paused},
            "status": {"phase": phase, "finishedAt": finished}}))
    };
    assert_eq!(rollout(false, RolloutPhase::Running), ["pause"]);
    assert_eq!(rollout(true, RolloutPhase::Paused), ["resume"]);
    assert!(
        rollout(false, RolloutPhase::Failed).is_empty() && rollout(true, RolloutPhase::Succeeded).is_empty()
    );
    let run = |phase: Value, approved: bool| {
        let annotations = if approved { json!({annotation::APPROVE: "true"}) } else { json!({}) };
        offered(&json!({"kind": "HookRun", "metadata": {"annotations": annotations}, "spec": {"metrics": []},
            "status": {"phase": phase}}))
    };
    assert_eq!(run(Value::Null, false), ["approve", "terminate"]);
    assert_eq!(run(json!("Running"), true), ["terminate"]);
    assert_eq!(run(json!("Failed"), false), ["approve"]);
    assert!(run(json!("Successful"), false).is_empty());
}

#[test]
fn an_action_changes_its_own_field_and_nothing_else() {
    for kind in WORKLOADS {
        let object =
            object_of(kind, ObjectState::Reconciling, "Paused", &[PauseReason::PausedByCanaryPauseStep]);
        let mut expected = object.clone();
        expected["spec"]["updateStrategy"]["paused"] = json!(true);
        let paused = after("pause", &object);
        assert_eq!(paused, expected);
        assert_eq!(admitted(&object, &paused).0, Vec::<String>::new());
        // A manifest without annotations and without a strategy.
        let mut bare = object.clone();
        bare["metadata"].as_object_mut().unwrap().remove("annotations");
        let mut expected = bare.clone();
        expected["metadata"]["annotations"] = json!({RETRY: "true"});
        let retried = after("retry", &bare);
        assert_eq!(retried, expected);
        let (problems, spec) = admitted(&bare, &retried);
        assert!(problems.is_empty() && spec.update.retry, "{problems:?}");
        expected["metadata"]["annotations"] = json!({RESUME_STEP: "web-5d9/1"});
        let resumed = after("resume", &bare);
        assert_eq!(resumed, expected);
        let (problems, spec) = admitted(&bare, &resumed);
        assert_eq!((problems, spec.update.resume_step.as_deref()), (Vec::new(), Some("web-5d9/1")));
    }
    let run = json!({"kind": "HookRun", "metadata": {"name": "one"}, "spec": {"metrics": []}, "status": {}});
    assert_eq!(after("approve", &run)["metadata"]["annotations"], json!({annotation::APPROVE: "true"}));
    assert_eq!(after("terminate", &run)["spec"]["terminate"], true);
}

/// A shell command of this project on an object of the API server.
fn inplace(api: &ApiServer, args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_inplace"))
        .args(args)
        .arg("--kubeconfig")
        .arg(api.kubeconfig())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn pause_and_resume_write_what_the_commands_write() {
    let api = ApiServer::start().await;
    let plural = "gamedeployments";
    let stored = || api.get(plural, "shop", "web").unwrap();
    // What a command may change, and the server does not.
    let parts = |object: &Value| (object["spec"].clone(), object["metadata"]["annotations"].clone());
    let waits = [PauseReason::PausedByCanaryPauseStep];
    for (verb, pauses, paused) in [
        ("pause", &waits[..], false),
        ("resume", &waits, false),
        ("resume", &waits, true),
        ("resume", &[], true),
    ] {
        let mut object = object_of("GameDeployment", ObjectState::Reconciling, "Paused", pauses);
        object["spec"]["updateStrategy"]["paused"] = json!(paused);
        api.put(object);
        let before = stored();
        inplace(&api, &["rollout", verb, "gamedeployment/web"]);
        assert_eq!(parts(&after(verb, &before)), parts(&stored()), "{verb} {paused} {pauses:?}");
        api.store(|store| store.remove_of(plural, "shop", "web"));
    }
    let rollout = json!({"apiVersion": "inplace.dev/v1alpha1", "kind": "InPlaceRollout",
        "metadata": {"namespace": "shop", "name": "one", "generation": 1},
        "spec": {"target": {"workloadRef": {"kind": "Deployment", "name": "web"}}, "containers": [{"name": "app"}], "paused": false}});
    api.put(rollout);
    for verb in ["pause", "resume"] {
        let before = api.get("inplacerollouts", "shop", "one").unwrap();
        inplace(&api, &["rollout", verb, "ipr/one"]);
        let now = api.get("inplacerollouts", "shop", "one").unwrap();
        assert_ne!(before["spec"], now["spec"]);
        assert_eq!(parts(&after(verb, &before)), parts(&now));
    }
}

#[tokio::test]
async fn a_restart_creates_the_rollout_that_the_command_creates() {
    let api = ApiServer::start().await;
    let object = object_of("GameDeployment", ObjectState::Ready, "Complete", &[]);
    api.put(object.clone());
    let args = [
        "restart",
        "gamedeployment/web",
        "-c",
        "app",
        "-c",
        "side",
        "-n",
        "shop",
        "--dry-run=client",
        "-o",
        "json",
    ];
    let drafted: InPlaceRollout = serde_json::from_str(&inplace(&api, &args)).unwrap();
    for kind in WORKLOADS {
        let object = object_of(kind, ObjectState::Ready, "Complete", &[]);
        let made = lua::run("game-workload/restart", &object);
        let [made] = made.as_array().unwrap().as_slice() else { panic!("{made}") };
        assert_eq!(made["operation"], "create");
        let made: InPlaceRollout = serde_json::from_value(made["resource"].clone()).unwrap();
        assert_eq!(rollout::check::rollout(None, &made), Vec::<String>::new());
        let name = made.metadata.name.as_deref().unwrap();
        let number = name.strip_prefix("web-restart-").unwrap();
        assert!(number.len() == 14 && number.bytes().all(|c| c.is_ascii_digit()), "{name}");
        assert_eq!(made.metadata.namespace.as_deref(), Some("shop"));
        let owner = &made.metadata.owner_references.as_ref().unwrap()[0];
        assert_eq!((owner.kind.as_str(), owner.uid.as_str(), owner.controller), (kind, "u", None));
        let mut expected = drafted.spec.clone();
        expected.target.workload_ref.as_mut().unwrap().kind = kind.to_owned();
        assert_eq!(made.spec, expected);
    }
}
