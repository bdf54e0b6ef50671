//! `InPlaceRollout`s from the command line: what is created, what is refused before, and how they are followed,
//! paused and cancelled. No controller runs: the test writes what a controller would.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::api_server::{ApiServer, Fault, pods};

const ROLLOUTS: &str = "inplacerollouts";

fn command(api: &ApiServer, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_inplace"));
    command.args(args).arg("--kubeconfig").arg(api.kubeconfig());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn inplace(api: &ApiServer, args: &[&str]) -> (Option<i32>, String, String) {
    reported(&command(api, args).output().unwrap())
}

fn reported(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn ended(child: Child) -> (Option<i32>, String, String) {
    reported(&child.wait_with_output().unwrap())
}

/// A cluster with the Deployment `shop/web` of two containers, and one pod of it.
async fn shop() -> ApiServer {
    let api = ApiServer::start().await;
    for name in ["web", "api"] {
        api.put(json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "shop", "name": name},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": {"metadata": {"labels": {"app": "web"}},
                "spec": {"initContainers": [{"name": "setup", "image": "s:1"}, {"name": "proxy", "image": "p:1", "restartPolicy": "Always"}],
                    "containers": [{"name": "app", "image": "repo/app:v1"}, {"name": "side", "image": "side:1"}]}}},
        }));
    }
    api.put(pods::pod("shop", "web-0", "node-1"));
    api
}

/// The only rollout.
fn made(api: &ApiServer) -> Value {
    let all: Vec<_> = api.store(|store| store.all(ROLLOUTS).cloned().collect());
    assert_eq!(all.len(), 1, "{all:#?}");
    all.into_iter().next().unwrap()
}

/// Writes a status as a controller would.
fn report(api: &ApiServer, name: &str, status: &Value) {
    api.edit_of(ROLLOUTS, "shop", name, |object| object["status"] = status.clone());
}

fn status(phase: &str, done: u32, failures: &Value) -> Value {
    json!({"observedGeneration": 1, "phase": phase, "message": format!("so it is {phase}"), "pods": 2, "wanted": 2,
        "done": done, "failed": failures.as_array().map_or(0, Vec::len), "failures": failures,
        "downtimeMs": {"median": 61, "most": 95}})
}

/// Creates a rollout with `--wait`; returns its name once both watches are open.
async fn waiting(api: &ApiServer, more: &[&str]) -> (Child, String) {
    let (watches, pods) = (api.count("WATCH inplacerollouts"), api.count("WATCH pods"));
    let args = [&["restart", "deploy/web", "-c", "app", "--wait"], more].concat();
    let child = command(api, &args).spawn().unwrap();
    api.arrived("WATCH inplacerollouts", watches + 1).await;
    api.arrived("WATCH pods", pods + 1).await;
    (child, made(api)["metadata"]["name"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn a_workload_gets_a_rollout_with_all_that_the_flags_say() {
    let api = shop().await;
    let flags = "--max-unavailable 10% --partition 1 --failure-threshold 2 --rollout-deadline 2h --progress-deadline 15m --ttl 10m --grace 5s --drain confirmed \
                 --pre-hook drain --hook-arg k=v --min-ready 3 --ready-timeout 1m --deadline 5m --on-failure keep --engine stop \
                 --allow-stale-env --reason ticket --allow-template-drift --paused";
    let line = format!("swap deploy/web app=repo/app:v2 {flags}");
    let (code, out, err) = inplace(&api, &line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(code, Some(0), "{err}");
    let rollout = made(&api);
    let name = rollout["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("web-swap-"), "{name}");
    assert_eq!(out, format!("inplacerollout.inplace.dev/{name} created\n"));
    assert!(err.contains(&format!("`inplace rollout status ipr/{name} --kubeconfig ")), "{err}");
    assert_eq!(
        rollout["spec"],
        json!({
            "target": {"workloadRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}},
            "containers": [{"name": "app", "image": "repo/app:v2"}],
            "prefetch": true,
            "maxUnavailable": "10%", "partition": 1, "paused": true, "failureThreshold": 2, "onFailure": "Pause", "allowTemplateDrift": true,
            "deadlineSeconds": 7200, "progressDeadlineSeconds": 900, "ttlSecondsAfterFinished": 600,
            "pod": {"eachReady": false, "gracePeriodSeconds": 5, "drain": "Confirmed",
                "preHook": {"templateName": "drain", "args": [{"name": "k", "value": "v"}]}, "minReadySeconds": 3,
                "readyTimeoutSeconds": 60, "deadlineSeconds": 300, "onFailure": "Keep", "engine": "Stop", "allowStaleEnv": true,
                "reason": "ticket"},
        })
    );
    // The next rollout of the same target reports its effect on the first, and has the default values.
    let (code, out, err) = inplace(&api, &["restart", "deploy/web", "-c", "proxy,app", "-o", "json"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(
        err.contains(&format!(
            "ipr/{name} is in progress for deployment.apps/web: the new rollout replaces it"
        )),
        "{err}"
    );
    let second: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(second["spec"]["containers"], json!([{"name": "proxy"}, {"name": "app"}]));
    assert_eq!(
        (
            &second["spec"]["maxUnavailable"],
            &second["spec"]["failureThreshold"],
            &second["spec"]["ttlSecondsAfterFinished"]
        ),
        (&json!("25%"), &json!(1), &json!(86_400))
    );
    let (_, out, err) = inplace(&api, &["restart", "-l", "app=web", "--ttl", "never", "-o", "name"]);
    assert!(out.starts_with("inplacerollout.inplace.dev/pods-restart-"), "{out}{err}");
    assert!(!err.contains("takes its place"), "another target: {err}");
    let third = api.get(ROLLOUTS, "shop", out.trim().split_once('/').unwrap().1).unwrap();
    assert_eq!(third["spec"]["target"], json!({"selector": {"matchLabels": {"app": "web"}}}));
    assert_eq!(third["spec"]["ttlSecondsAfterFinished"], Value::Null);
}

#[tokio::test]
async fn what_is_wrong_is_reported_with_what_there_is_and_nothing_is_created() {
    let api = shop().await;
    for (line, code, says) in [
        (
            "restart deploy/wbe -c app",
            3,
            "there is no deployment.apps/wbe in namespace shop; there are api, web",
        ),
        (
            "restart deploy/web -c db",
            3,
            "the template of deployment.apps/web has no container db; it has app, side, proxy",
        ),
        ("restart deploy/web -c setup", 3, "has no container setup"),
        ("restart deploy/web", 2, "select with -c (app, side, proxy)"),
        ("swap deploy/web app=repo/app:v2", 3, "names app=repo/app:v1, not repo/app:v2"),
        ("swap deploy/web app=repo/app:v2", 3, "--allow-template-drift"),
        ("swap deploy/web", 2, "the image is missing"),
        ("restart deploy/web deploy/api -c app", 2, "only one workload per command"),
        ("restart deploy/web web-0 -c app", 2, "pods and workloads cannot be combined"),
        ("restart deploy/web -c app -l app=web", 2, "only one workload per command"),
        ("restart deploy/web -c app --id x", 2, "--id is for pods"),
        ("restart web-0 -c app --max-unavailable 1", 2, "--max-unavailable is for workloads"),
        ("restart web-0 -c app --paused", 2, "--paused is for workloads"),
        ("swap web-0 app=repo/app:v2 --allow-template-drift", 2, "--allow-template-drift is for workloads"),
        ("restart web-0 -c app -o go-template={{.x}}", 2, "the form `go-template` is not supported"),
        ("restart -l app=web -c db", 3, "pod/web-0 has no container db; it has app"),
        ("restart -l app=nobody -c app", 3, "no pod in namespace shop has the labels app=nobody"),
        ("restart deploy/web -c app --grace 20m", 3, "deadlineSeconds 600"),
        ("plan deploy/web -c app", 2, "`plan` accepts only pods"),
        ("plan deploy/web -f new.yaml", 2, "accepts gamedeployment/NAME and gamestatefulset/NAME"),
        ("plan web-0 -f new.yaml", 2, "-f needs one gamedeployment/NAME"),
        ("plan gdeploy/web -f /nowhere/new.yaml", 3, "/nowhere/new.yaml cannot be read"),
    ] {
        let (ended, out, err) = inplace(&api, &line.split_whitespace().collect::<Vec<_>>());
        assert_eq!(ended, Some(code), "{line}: {err}");
        assert!(err.contains(says) && out.is_empty(), "{line}: {err}");
    }
    api.on("LIST inplacerollouts")
        .fault(Fault::Answer(404, "the server could not find the requested resource"));
    let (code, _, err) = inplace(&api, &["restart", "deploy/web", "-c", "app"]);
    assert_eq!(code, Some(3), "{err}");
    assert!(err.contains("`inplace crds | kubectl apply -f -`"), "{err}");
    let (code, out, err) = inplace(&api, &["restart", "deploy/web", "-c", "app", "--dry-run"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("kind: InPlaceRollout") && err.contains("nothing was created"), "{out}{err}");
    assert!(api.store(|store| store.all(ROLLOUTS).next().is_none()), "nothing was made");
}

#[tokio::test]
async fn a_rollout_is_followed_through_broken_watches_to_its_end() {
    let api = shop().await;
    let (child, name) = waiting(&api, &[]).await;
    let uid = made(&api)["metadata"]["uid"].as_str().unwrap().to_owned();
    report(&api, &name, &status("Running", 0, &json!([])));
    api.edit("shop", "web-0", |pod| {
        let answer = json!({"id": uid, "phase": "Running", "step": "Drain", "reason": "", "message": "Drain is in progress",
            "startedAt": null, "finishedAt": null, "containers": []});
        pod["metadata"]["labels"]["inplace.dev/rollout-uid"] = json!(uid);
        pod["metadata"]["annotations"]["inplace.dev/rollout"] = json!(uid);
        pod["metadata"]["annotations"]["inplace.dev/status"] = json!(answer.to_string());
    });
    let (watches, pods) = (api.count("WATCH inplacerollouts"), api.count("WATCH pods"));
    api.end_watches();
    api.compact();
    api.arrived("WATCH inplacerollouts", watches + 1).await;
    api.arrived("WATCH pods", pods + 1).await;
    report(&api, &name, &status("Succeeded", 2, &json!([])));
    let (code, out, err) = ended(child);
    assert_eq!(code, Some(0), "{err}");
    let far = "2/2 done, 0 busy, 0 failed, median down 61 ms, most 95 ms";
    assert_eq!(out, format!("inplacerollout.inplace.dev/{name}: Succeeded: so it is Succeeded; {far}\n"));
    assert!(err.contains("pod/web-0: Running: Drain is in progress\n"), "{err}");
    assert!(err.contains("Running: so it is Running; 0/2 done"), "{err}");
    assert_eq!(err.lines().filter(|line| line.contains("has not observed")).count(), 1, "said once: {err}");
}

#[tokio::test]
async fn a_wait_ends_with_a_code_of_its_own_and_names_who_failed() {
    let api = shop().await;
    let failed = json!([{"pod": "web-0", "uid": "u", "reason": "RolledBack", "message": "app: it crashed"}]);
    for (end, code, says) in [
        (status("Failed", 1, &failed), 1, "  pod/web-0: RolledBack: app: it crashed\n"),
        (status("Superseded", 1, &json!([])), 5, "Superseded: so it is Superseded"),
    ] {
        let (child, name) = waiting(&api, &[]).await;
        report(&api, &name, &end);
        let (ended, out, err) = ended(child);
        assert_eq!(ended, Some(code), "{err}");
        assert!(out.contains(says), "{out}");
        api.store(|store| store.remove_of(ROLLOUTS, "shop", &name));
    }
    // A rollout that has ended and is deleted at once counts as ended.
    let (child, name) = waiting(&api, &["-o", "json"]).await;
    let done = status("Succeeded", 2, &json!([]));
    api.store(|store| {
        store.edit_of(ROLLOUTS, "shop", &name, |object| object["status"] = done.clone());
        store.remove_of(ROLLOUTS, "shop", &name);
    });
    let (code, out, err) = ended(child);
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["status"]["phase"], "Succeeded");

    let (child, name) = waiting(&api, &[]).await;
    api.store(|store| store.remove_of(ROLLOUTS, "shop", &name));
    let (code, _, err) = ended(child);
    assert_eq!(code, Some(5), "{err}");
    assert!(err.contains("was deleted; no further pod is started"), "{err}");

    let (code, _, err) = inplace(&api, &["restart", "deploy/web", "-c", "app", "--wait=1s"]);
    assert_eq!(code, Some(8), "{err}");
    assert!(err.contains("it continues"), "{err}");
}

#[tokio::test]
async fn an_interrupt_leaves_it_running_and_says_how_to_look_again() {
    let api = shop().await;
    let (mut child, name) = waiting(&api, &[]).await;
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("has not observed the latest change yet")));
    kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGINT).unwrap();
    assert!(lines.any(|line| line.contains(&format!("`inplace rollout status ipr/{name} --kubeconfig "))));
    assert_eq!(child.wait().unwrap().code(), Some(5));
    made(&api);
}

#[tokio::test]
async fn a_rollout_is_reported_held_and_ended() {
    let api = shop().await;
    inplace(&api, &["restart", "deploy/web", "-c", "app"]);
    let name = made(&api)["metadata"]["name"].as_str().unwrap().to_owned();
    let rollout = format!("ipr/{name}");
    report(&api, &name, &status("Running", 1, &json!([])));
    for (verb, says, paused) in [
        ("pause", "paused: pods in progress are completed", true),
        ("pause", "was already paused", true),
        ("resume", "resumed: it continues", false),
    ] {
        let (code, out, err) = inplace(&api, &["rollout", verb, &rollout]);
        assert_eq!(code, Some(0), "{err}");
        assert!(out.contains(says), "{out}");
        assert_eq!(made(&api)["spec"]["paused"], paused);
    }
    assert_eq!(api.count("PATCH inplacerollout"), 2);
    let (code, out, err) = inplace(&api, &["rollout", "status", "inplacerollout", &name, "--watch=false"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("has not observed the latest change yet"), "the generation has moved on: {out}");
    for verb in ["undo", "history"] {
        let (code, _, err) = inplace(&api, &["rollout", verb, &rollout]);
        assert_eq!(code, Some(2), "{err}");
        assert!(err.contains("an InPlaceRollout is not undone"), "{err}");
    }
    let (code, out, err) = inplace(&api, &["cancel", &rollout]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("no further pod is started"), "{out}");
    assert!(api.get(ROLLOUTS, "shop", &name).is_none());

    inplace(&api, &["restart", "deploy/web", "-c", "app"]);
    let name = made(&api)["metadata"]["name"].as_str().unwrap().to_owned();
    report(&api, &name, &status("Succeeded", 2, &json!([])));
    let rollout = format!("ipr/{name}");
    for args in [&["cancel", &*rollout][..], &["rollout", "pause", &rollout]] {
        let (code, _, err) = inplace(&api, args);
        assert_eq!(code, Some(3), "{err}");
        assert!(err.contains("has ended (Succeeded): nothing was changed"), "{err}");
    }
    let (code, out, _) = inplace(&api, &["rollout", "status", &rollout, "-o", "json"]);
    assert_eq!(
        (code, serde_json::from_str::<Value>(&out).unwrap()["status"]["done"].clone()),
        (Some(0), json!(2))
    );
    let (code, _, err) = inplace(&api, &["rollout", "status", "ipr/nobody"]);
    assert_eq!(code, Some(3), "{err}");
}

#[tokio::test]
async fn several_rollouts_are_cancelled_one_after_the_other() {
    let api = shop().await;
    let make = || {
        let (code, out, err) = inplace(&api, &["restart", "deploy/web", "-c", "app", "-o", "name"]);
        assert_eq!(code, Some(0), "{err}");
        out.trim().split_once('/').unwrap().1.to_owned()
    };
    let [first, over, last] = [(); 3].map(|()| make());
    report(&api, &over, &status("Succeeded", 2, &json!([])));
    let [one, two, three] = [&first, &over, &last].map(|name| format!("ipr/{name}"));
    for (args, says) in [
        (&["cancel", &*one, "web-0"][..], "pods and InPlaceRollouts cannot be combined: use two commands"),
        (&["cancel", &*one, &*three, "--id", "a"], "--id is for pods"),
    ] {
        let (code, _, err) = inplace(&api, args);
        assert_eq!(code, Some(2), "{args:?}: {err}");
        assert!(err.contains(says), "{args:?}: {err}");
    }
    assert_eq!(api.count("DELETE"), 0);
    let (code, out, err) = inplace(&api, &["cancel", &one, &two, &three, "-o", "name"]);
    assert_eq!(code, Some(3), "one of them has ended: {err}");
    assert!(err.contains(&format!("{over} has ended (Succeeded): nothing was changed")), "{err}");
    let [first, last] = [&first, &last].map(|name| format!("inplacerollout.inplace.dev/{name}\n"));
    assert_eq!(out, first + &last);
    assert_eq!(made(&api)["metadata"]["name"], over.as_str());
}

/// Its name is not known then, so the command lists all rollouts.
#[tokio::test]
async fn a_creation_whose_answer_is_lost_says_how_to_look_for_the_rollout() {
    let api = shop().await;
    api.on("POST inplacerollout").fault(Fault::CutAfterEffect);
    let (code, out, err) = inplace(&api, &["restart", "deploy/web", "-c", "app", "-n", "shop"]);
    assert_eq!((code, out.as_str()), (Some(6), ""), "{err}");
    assert!(err.contains("`kubectl get inplacerollouts -n shop --kubeconfig "), "{err}");
    made(&api);
}

#[tokio::test]
async fn the_plan_of_a_new_manifest_says_field_by_field_what_it_costs() {
    let api = shop().await;
    let object = |image: &str, more: &Value| {
        let mut pods = json!({"initContainers": [{"name": "proxy", "image": "p:1", "restartPolicy": "Always"}],
            "containers": [{"name": "app", "image": image}]});
        pods.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameDeployment",
            "metadata": {"namespace": "shop", "name": "game"},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "game"}},
                "updateStrategy": {"type": "InplaceUpdate"},
                "template": {"metadata": {"labels": {"app": "game"}}, "spec": pods}}})
    };
    api.put(object("app:1", &json!({})));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("new.yaml");
    let plan = |new: &Value| {
        std::fs::write(&file, format!("---\nkind: Service\n---\n{new}\n")).unwrap();
        inplace(&api, &["plan", "gamedeployment/game", "-f", file.to_str().unwrap()])
    };
    let (code, out, err) = plan(&object("app:1", &json!({})));
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert!(out.contains("the pods do not change"), "{out}");

    let sidecar = json!({"initContainers": [{"name": "proxy", "image": "p:2", "restartPolicy": "Always"}]});
    let (code, out, err) = plan(&object("app:2", &sidecar));
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    for (field, container) in [("containers[0]", "app"), ("initContainers[0]", "proxy")] {
        let line = format!(
            "spec.template.spec.{field}.image: in place, restarts a container: container {container} is swapped"
        );
        assert!(out.contains(&line), "{out}");
    }

    let (code, out, _) = plan(&object("app:2", &json!({"nodeName": "other"})));
    assert_eq!(code, Some(3), "{out}");
    assert!(
        out.contains("spec.template.spec.nodeName: refused: cannot be changed in a running pod"),
        "{out}"
    );
    assert!(!out.contains("other") && out.ends_with("nothing was touched\n"), "{out}");

    let limited =
        json!({"containers": [{"name": "app", "image": "app:1", "resources": {"limits": {"cpu": "1"}}}]});
    let (code, out, _) = plan(&object("app:1", &limited));
    assert_eq!(code, Some(3), "{out}");
    let line = "spec.template.spec.containers[0].resources.limits.cpu: refused: cannot be changed in a running pod: \
                the QoS class of the pod would change from BestEffort to Burstable, so it needs new pods";
    assert!(out.contains(line) && out.ends_with("nothing was touched\n"), "{out}");

    let (code, _, err) = plan(&json!({"kind": "GameDeployment"}));
    assert_eq!(code, Some(3), "{err}");
    assert!(err.contains("it has no GameDeployment game"), "{err}");
    assert!(api.writes().is_empty(), "{:#?}", api.writes());
}
