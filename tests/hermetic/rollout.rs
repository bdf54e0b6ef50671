//! `inplace rollout` against an API server that misbehaves: concurrent writes of other clients, watches that break
//! off, objects that disappear.

use std::process::{Child, Command, Output, Stdio};

use inplace::api::pod_template::PodTemplate;
use inplace::workload::revision;
use serde_json::{Value, json};

use super::api_server::ApiServer;

fn command(api: &ApiServer, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_inplace"));
    command.arg("rollout").args(args).arg("--kubeconfig").arg(api.kubeconfig());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn rollout(api: &ApiServer, args: &[&str]) -> (Option<i32>, String) {
    reported(&command(api, args).output().unwrap())
}

fn reported(output: &Output) -> (Option<i32>, String) {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

fn ended(child: Child) -> (Option<i32>, String) {
    reported(&child.wait_with_output().unwrap())
}

fn template(image: &str) -> Value {
    json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "app", "image": image}]}})
}

/// `shop/web` at `app:2`, whose revision 1 had `app:1`.
fn web(api: &ApiServer) {
    api.put(json!({
        "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameDeployment",
        "metadata": {"namespace": "shop", "name": "web", "uid": "u", "generation": 2},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template("app:2"),
            "updateStrategy": {"type": "InplaceUpdate", "paused": false}},
        "status": progress("Updating", 2),
    }));
    for (number, owner) in [(1, "u"), (2, "u"), (3, "other")] {
        let name = format!("web-{number}");
        let data = revision::data(&PodTemplate(template(&format!("app:{number}"))));
        api.put(json!({
            "apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": number, "data": data,
            "metadata": {"namespace": "shop", "name": name, "ownerReferences": [{"apiVersion": "tkex.tencent.com/v1alpha1",
                "kind": "GameDeployment", "name": "web", "uid": owner, "controller": true}]},
        }));
    }
}

fn progress(reason: &str, generation: i64) -> Value {
    let message = format!("{reason} it is");
    json!({"observedGeneration": generation, "conditions": [
        {"type": "Progressing", "status": "True", "reason": reason, "message": message}]})
}

fn edit(api: &ApiServer, change: impl FnOnce(&mut Value)) {
    api.edit_of("gamedeployments", "shop", "web", change);
}

#[tokio::test]
async fn an_undo_reads_again_after_a_conflict() {
    let api = ApiServer::start().await;
    web(&api);
    // A change between the read and the patch.
    api.before("PATCH gamedeployment", |store| {
        store.edit_of("gamedeployments", "shop", "web", |object| object["spec"]["replicas"] = json!(7));
    });
    let (code, text) = rollout(&api, &["undo", "gamedeployment/web"]);
    assert_eq!(code, Some(0), "{text}");
    let says =
        "gamedeployment.tkex.tencent.com/web rolled back to revision 1 (web-1): app=app:2 -> app=app:1";
    assert_eq!(text.trim_end(), says);
    let object = api.get("gamedeployments", "shop", "web").unwrap();
    assert_eq!(object["spec"]["template"], template("app:1"));
    assert_eq!(object["spec"]["replicas"], 7, "the other one's change stays");
    assert_eq!(api.count("PATCH gamedeployment"), 2);

    let (code, text) = rollout(&api, &["undo", "gamedeployment/web", "--to-revision=1", "-o", "json"]);
    assert_eq!(code, Some(0), "{text}");
    let undone: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&undone["changed"], &undone["revision"]), (&json!(false), &json!(1)));
    let (code, text) = rollout(&api, &["undo", "gamedeployment/web", "--to-revision=3"]);
    assert_eq!(code, Some(3), "another workload's: {text}");
    assert!(text.contains("no revision 3; the revisions are 1, 2; nothing was changed"), "{text}");
    assert_eq!(api.count("PATCH gamedeployment"), 2);
}

#[tokio::test]
async fn a_status_is_followed_through_broken_watches_to_the_end() {
    let api = ApiServer::start().await;
    web(&api);
    let child = command(&api, &["status", "gamedeployment/web"]).spawn().unwrap();
    api.arrived("WATCH gamedeployments", 1).await;
    api.end_watches();
    api.compact();
    api.arrived("WATCH gamedeployments", 2).await;
    edit(&api, |object| object["status"] = progress("Complete", 2));
    let (code, text) = ended(child);
    assert_eq!(code, Some(0), "{text}");
    let lines: Vec<_> = text.lines().filter(|line| line.starts_with("game")).collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(
        lines[0].contains("waiting: Updating it is") && lines[1].contains("successfully rolled out"),
        "{text}"
    );
}

#[tokio::test]
async fn a_status_ends_with_a_code_of_its_own() {
    let api = ApiServer::start().await;
    web(&api);
    for (change, code, says) in [
        (progress("Updating", 1), Some(8), "not done within the time of --timeout"),
        (progress("OnDelete", 2), Some(1), "waits until the pods that are not updated are deleted"),
    ] {
        edit(&api, |object| object["status"] = change);
        let (ended, text) = rollout(&api, &["status", "gamedeployment/web", "--timeout=1s"]);
        assert_eq!(ended, code, "{text}");
        assert!(text.contains(says), "{text}");
    }
    // Without a watch the state is printed once, also in JSON.
    edit(&api, |object| object["status"] = progress("Updating", 2));
    let (code, text) = rollout(&api, &["status", "gamedeployment/web", "--watch=false", "-o", "json"]);
    let seen: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &seen["state"], &seen["wanted"]), (Some(0), &json!("Going"), &json!(2)), "{text}");

    let watches = api.count("WATCH gamedeployments");
    let child = command(&api, &["status", "gamedeployment/web"]).spawn().unwrap();
    api.arrived("WATCH gamedeployments", watches + 1).await;
    api.store(|store| store.remove_of("gamedeployments", "shop", "web"));
    let (code, text) = ended(child);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("it was deleted or recreated"), "{text}");
    let (code, text) = rollout(&api, &["status", "gamedeployment/web"]);
    assert_eq!(code, Some(3), "{text}");
}

#[tokio::test]
async fn a_pause_is_written_once() {
    let api = ApiServer::start().await;
    web(&api);
    for (verb, says, paused) in [
        ("pause", "web paused: updates in progress", true),
        ("pause", "was already paused", true),
        ("resume", "web resumed: updates continue", false),
        ("resume", "is not paused, and no canary step waits", false),
    ] {
        let (code, text) = rollout(&api, &[verb, "gamedeployment", "web"]);
        assert_eq!(code, Some(0), "{text}");
        assert!(text.contains(says), "{text}");
        let object = api.get("gamedeployments", "shop", "web").unwrap();
        assert_eq!(object["spec"]["updateStrategy"]["paused"], paused);
    }
    assert_eq!(api.count("PATCH gamedeployment"), 2);
}

#[tokio::test]
async fn a_resume_is_for_the_canary_step_that_waits_when_it_is_written() {
    let api = ApiServer::start().await;
    web(&api);
    let waits = |step: u32| {
        let pause = json!({"reason": "PausedByCanaryPauseStep", "startTime": "2026-11-20T10:00:00Z"});
        json!({"observedGeneration": 2, "updateRevision": "web-2", "currentStepIndex": step, "pauseConditions": [pause]})
    };
    edit(&api, |object| object["status"] = waits(1));
    // The step ends between the read and the patch, and the next one waits.
    api.before("PATCH gamedeployment", move |store| {
        store.edit_of("gamedeployments", "shop", "web", |object| object["status"] = waits(3));
    });
    let (code, text) = rollout(&api, &["resume", "gamedeployment/web", "-o", "json"]);
    assert_eq!(code, Some(0), "{text}");
    let reported: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&reported["changed"], &reported["resumedStep"]), (&json!(true), &json!(3)), "{text}");
    let object = api.get("gamedeployments", "shop", "web").unwrap();
    assert_eq!(object["metadata"]["annotations"], json!({"inplace.dev/resume-step": "web-2/3"}));
    assert_eq!(object["spec"]["updateStrategy"]["paused"], false);
    assert_eq!(api.count("PATCH gamedeployment"), 2);
}
