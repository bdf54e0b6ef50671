//! Containers are restarted when the configuration of their workload changes: once per change, and only where the
//! configuration can be read.

use clap::Parser as _;
use inplace::api::annotation;
use inplace::controller;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::api_server::{ApiServer, Fault, Store, pods};

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    args: controller::Args,
}

/// A controller; it is aborted when this is dropped, as if killed.
struct Running(JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn start() -> ApiServer {
    // `main` does the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
    ApiServer::start().await
}

/// A controller that leads at once, whichever process led before.
fn lead(api: &ApiServer) -> Running {
    api.store(|store| {
        if store.get("leases", "inplace-system", "inplace-controller").is_some() {
            store.remove_of("leases", "inplace-system", "inplace-controller");
        }
    });
    let config = api.kubeconfig();
    let words =
        ["x", "--namespace=inplace-system", "--listen=127.0.0.1:0", "--kubeconfig", config.to_str().unwrap()];
    let args = Line::parse_from(words).args;
    Running(tokio::spawn(async move { controller::run(args).await.unwrap() }))
}

/// `shop/NAME`, whose container `web` has environment values from `configmap/app`.
fn deployment(api: &ApiServer, name: &str, annotation: &str) {
    let from = json!([{ "configMapRef": { "name": "app" } }]);
    let template = json!({ "metadata": { "labels": { "app": name } },
        "spec": { "containers": [{ "name": "web", "image": "web:1", "envFrom": from }, { "name": "side", "image": "side:1" }] } });
    api.put(json!({ "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "namespace": "shop", "name": name, "annotations": { annotation::RESTART_ON_CHANGE: annotation } },
        "spec": { "selector": { "matchLabels": { "app": name } }, "template": template } }));
}

fn config(kind: &str, name: &str, data: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": kind, "metadata": { "namespace": "shop", "name": name }, "data": data })
}

fn seen(store: &Store, name: &str) -> Option<Value> {
    let deployment = store.get("deployments", "shop", name)?;
    serde_json::from_str(deployment["metadata"]["annotations"][annotation::RESTART_ON_CHANGE_SEEN].as_str()?)
        .ok()
}

fn rollouts(store: &Store) -> Vec<Value> {
    store.all("inplacerollouts").cloned().collect()
}

#[tokio::test]
async fn a_change_touches_the_pods_and_then_makes_one_rollout() {
    let api = start().await;
    api.put(config("ConfigMap", "app", &json!({ "a": "1" })));
    api.put(config("Secret", "tls", &json!({ "key": "c2VjcmV0" })));
    deployment(&api, "web", "configmap/app,secret/tls=side");
    for name in ["web-0", "web-1"] {
        api.put(pods::pod("shop", name, "node-1"));
    }
    let first = lead(&api);
    api.until("what there is is written down", |store| seen(store, "web").is_some()).await;
    let before = api.store(|store| seen(store, "web")).unwrap();
    assert_eq!(before.as_object().unwrap().len(), 2);
    assert!(!before.to_string().contains("c2VjcmV0"));
    // Two changes, and another process leads before a restart is due: the change is observed again.
    api.edit_of("configmaps", "shop", "app", |map| map["data"]["a"] = json!("2"));
    drop(first);
    api.edit_of("configmaps", "shop", "app", |map| map["data"]["a"] = json!("3"));
    // A conflict that is not about the name, as that of a quota, leaves no rollout.
    api.on("POST inplacerollout")
        .fault(Fault::Answer(409, "Operation cannot be fulfilled on resourcequotas"));
    let second = lead(&api);
    let touched = |pod: &Value| pod["metadata"]["annotations"][annotation::CONFIGURATION].is_string();
    api.until("the pods are annotated", |store| store.pods().all(touched)).await;
    assert_eq!(api.store(|store| rollouts(store)), Vec::<Value>::new());
    api.until("a rollout", |store| !rollouts(store).is_empty()).await;
    let rollout = &api.store(|store| rollouts(store))[0];
    let spec = &rollout["spec"];
    assert_eq!(
        spec["target"]["workloadRef"],
        json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" })
    );
    assert_eq!(spec["containers"], json!([{ "name": "web" }]));
    assert_eq!((&spec["maxUnavailable"], &spec["ttlSecondsAfterFinished"]), (&json!("25%"), &json!(86_400)));
    assert_eq!(spec["pod"]["reason"], "configmap/app changed");
    assert_eq!(rollout["metadata"]["ownerReferences"][0]["name"], "web");
    api.until("it is handled", |store| seen(store, "web").is_some_and(|now| now != before)).await;
    let after = api.store(|store| seen(store, "web")).unwrap();
    assert_eq!(after["secret/tls"], before["secret/tls"]);
    // A later leader does not repeat it.
    drop(second);
    deployment(&api, "other", "configmap/app,configmaps/b");
    let _third = lead(&api);
    api.until("an event", |store| {
        store.events.iter().any(|event| event["reason"] == "InvalidRestartOnChange")
    })
    .await;
    assert_eq!(api.store(|store| rollouts(store)).len(), 1);
    let event = api.events().into_iter().find(|event| event["reason"] == "InvalidRestartOnChange").unwrap();
    assert_eq!((&event["type"], &event["involvedObject"]["name"]), (&json!("Warning"), &json!("other")));
    assert!(event["message"].as_str().unwrap().contains("`configmaps/b` is not valid"), "{event}");
}

/// The container `web` of `files` mounts the `ConfigMap`, that of `values` has environment values from it. Both are to be
/// started first.
#[tokio::test]
async fn only_a_container_without_an_environment_from_the_object_is_restarted_with_start_first() {
    let api = start().await;
    api.put(config("ConfigMap", "app", &json!({ "a": "1" })));
    for name in ["files", "values"] {
        deployment(&api, name, "configmap/app=web");
        api.edit_of("deployments", "shop", name, |deployment| {
            deployment["metadata"]["annotations"][annotation::RESTART_ON_CHANGE_ORDER] = json!("StartFirst");
            let pod = &mut deployment["spec"]["template"]["spec"];
            if name == "files" {
                pod["containers"][0]["envFrom"] = json!([]);
                pod["containers"][0]["volumeMounts"] = json!([{ "name": "conf", "mountPath": "/conf" }]);
                pod["volumes"] = json!([{ "name": "conf", "configMap": { "name": "app" } }]);
                pod["terminationGracePeriodSeconds"] = json!(600);
            }
        });
    }
    let mut pod = pods::pod("shop", "files-0", "node-1");
    pod["metadata"]["labels"]["app"] = json!("files");
    api.put(pod);
    let _controller = lead(&api);
    let is_seen = |store: &Store| ["files", "values"].iter().all(|name| seen(store, name).is_some());
    api.until("what there is is written down", is_seen).await;
    let before = api.store(|store| seen(store, "values")).unwrap();
    api.edit_of("configmaps", "shop", "app", |map| map["data"]["a"] = json!("2"));
    let touched = |pod: &Value| pod["metadata"]["annotations"][annotation::CONFIGURATION].is_string();
    api.until("the pod is annotated", |store| store.pods().all(touched)).await;
    api.until("both are handled", |store| {
        ["files", "values"].iter().all(|name| seen(store, name).is_some_and(|now| now != before))
    })
    .await;
    let rollouts = api.store(|store| rollouts(store));
    assert_eq!(rollouts.len(), 1, "{rollouts:#?}");
    let spec = &rollouts[0]["spec"];
    assert_eq!(
        (&spec["target"]["workloadRef"]["name"], &spec["pod"]["order"]),
        (&json!("files"), &json!("StartFirst"))
    );
    assert!(spec["pod"]["deadlineSeconds"].as_u64().unwrap() > 4 * 600, "the stops fit: {spec:#}");
    api.until("an event", |store| store.events.iter().any(|event| event["reason"] == "CannotStartFirst"))
        .await;
    let event = api.events().into_iter().find(|event| event["reason"] == "CannotStartFirst").unwrap();
    assert_eq!((&event["type"], &event["involvedObject"]["name"]), (&json!("Warning"), &json!("values")));
    let message = event["message"].as_str().unwrap();
    assert!(message.contains("container web has an environment from a ConfigMap"), "{message}");
    // The next change has the same message, and is reported as well.
    api.edit_of("configmaps", "shop", "app", |map| map["data"]["a"] = json!("3"));
    let count = |store: &Store| {
        let same = store.events.iter().filter(|event| event["reason"] == "CannotStartFirst");
        same.map(|event| event["count"].as_u64().unwrap_or(1)).sum::<u64>()
    };
    api.until("it is reported again", |store| count(store) == 2).await;
}

/// A policy may refuse to annotate a pod. Its kubelet refreshes the volume in its own time.
#[tokio::test]
async fn a_pod_that_may_not_be_annotated_holds_up_no_restart() {
    let api = start().await;
    let _controller = two_configurations(&api).await;
    api.on("PATCH pod").times(1000).fault(Fault::Answer(403, "denied by a policy"));
    api.edit_of("configmaps", "shop", "app", |map| map["data"]["a"] = json!("2"));
    api.until("a rollout", |store| rollouts(store).len() == 1).await;
    let event = api.events().into_iter().find(|event| event["reason"] == "RestartOnChangeFailed").unwrap();
    assert!(event["message"].as_str().unwrap().contains("denied by a policy"), "{event}");
    assert!(api.count("PATCH pod ") < 10, "{:#?}", api.calls());
}

/// The `Deployment` `web` with one pod, whose containers use one `ConfigMap` each, once the controller has seen both.
async fn two_configurations(api: &ApiServer) -> Running {
    api.put(config("ConfigMap", "app", &json!({ "a": "1" })));
    api.put(config("ConfigMap", "proxy", &json!({ "a": "1" })));
    deployment(api, "web", "configmap/app=web,configmap/proxy=side");
    let owner = |kind: &str, name: &str, uid: &Value| json!([{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid, "controller": true}]);
    let uid = api.store(|store| store.get("deployments", "shop", "web").unwrap()["metadata"]["uid"].clone());
    let labels = json!({ "app": "web" });
    let set = api.put(json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": { "namespace": "shop", "name": "web-1", "labels": labels, "ownerReferences": owner("Deployment", "web", &uid) },
        "spec": { "selector": { "matchLabels": labels } } }));
    // Its agent does not answer: a rollout goes on until that counts as a failure.
    let mut pod = pods::pod("shop", "web-1-0", "node-1");
    pod["metadata"]["labels"] = labels;
    pod["metadata"]["ownerReferences"] = owner("ReplicaSet", "web-1", &set["metadata"]["uid"]);
    pod["spec"]["containers"] =
        json!([{ "name": "web", "image": "web:1" }, { "name": "side", "image": "side:1" }]);
    api.put(pod);
    let controller = lead(api);
    api.until("what there is is written down", |store| seen(store, "web").is_some()).await;
    controller
}

fn containers(rollout: &Value) -> &Value {
    &rollout["spec"]["containers"]
}

/// Changes the `ConfigMap`, and waits until the volumes of the pod are refreshed for it.
async fn change(api: &ApiServer, name: &str) {
    let refreshed = |store: &Store| {
        store.pod("shop", "web-1-0").unwrap()["metadata"]["annotations"][annotation::CONFIGURATION].clone()
    };
    let before = api.store(|store| refreshed(store));
    api.edit_of("configmaps", "shop", name, |map| map["data"]["a"] = json!("2"));
    api.until("the pod is annotated", |store| refreshed(store) != before).await;
}

/// The second rollout supersedes the first one.
#[tokio::test]
async fn a_second_change_restarts_the_containers_of_the_first_too() {
    let api = start().await;
    let _controller = two_configurations(&api).await;
    change(&api, "app").await;
    api.until("the first rollout", |store| rollouts(store).len() == 1).await;
    assert_eq!(containers(&api.store(|store| rollouts(store))[0]), &json!([{ "name": "web" }]));
    change(&api, "proxy").await;
    api.until("the second rollout", |store| rollouts(store).len() == 2).await;
    let all = api.store(|store| rollouts(store));
    assert!(
        all.iter().any(|one| *containers(one) == json!([{ "name": "web" }, { "name": "side" }])),
        "{all:#?}"
    );
}

/// A canary that is paused would otherwise be superseded, and half of the pods left with its image.
#[tokio::test]
async fn a_change_waits_for_the_rollout_of_a_user() {
    let api = start().await;
    let _controller = two_configurations(&api).await;
    let canary = json!({"apiVersion": "inplace.dev/v1alpha1", "kind": "InPlaceRollout",
        "metadata": {"namespace": "shop", "name": "canary", "generation": 1, "creationTimestamp": inplace::process::clock::now()},
        "spec": {"target": {"workloadRef": {"kind": "Deployment", "name": "web"}}, "paused": true,
            "containers": [{"name": "web", "image": "web:2"}], "allowTemplateDrift": true}});
    api.put(canary);
    api.edit_of("configmaps", "shop", "app", |map| map["data"]["a"] = json!("2"));
    let waits = |event: &Value| event["reason"] == "ConfigurationChangeWaits";
    api.until("it waits", |store| store.events.iter().any(waits)).await;
    assert_eq!(api.store(|store| rollouts(store)).len(), 1);
    let event = api.events().into_iter().find(waits).unwrap();
    assert!(event["message"].as_str().unwrap().contains("InPlaceRollout canary"), "{event}");
    let is_refreshed = |store: &Store| {
        store.pod("shop", "web-1-0").unwrap()["metadata"]["annotations"][annotation::CONFIGURATION]
            .is_string()
    };
    assert!(!api.store(|store| is_refreshed(store)), "not long before it is restarted");
    api.store(|store| store.remove_of("inplacerollouts", "shop", "canary"));
    api.until("the pod is annotated", is_refreshed).await;
    api.until("a rollout", |store| rollouts(store).len() == 1).await;
    assert_eq!(containers(&api.store(|store| rollouts(store))[0]), &json!([{ "name": "web" }]));
}

#[tokio::test]
async fn a_secret_that_may_not_be_read_is_reported_and_nothing_is_done() {
    let api = start().await;
    api.put(config("Secret", "tls", &json!({ "key": "c2VjcmV0" })));
    api.on("LIST secrets").times(1000).fault(Fault::Answer(403, "secrets is forbidden"));
    deployment(&api, "web", "secret/tls");
    let _controller = lead(&api);
    let reported =
        |store: &Store| store.events.iter().any(|event| event["reason"] == "ConfigurationUnreadable");
    api.until("the event", reported).await;
    let message = api.events()[0]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("secret/tls") && message.contains("daemonset/change-secrets"), "{message}");
    assert_eq!(api.store(|store| seen(store, "web")), None);
    assert_eq!(api.store(|store| rollouts(store)), Vec::<Value>::new());
}

/// A Role with `list` alone.
#[tokio::test]
async fn an_object_that_may_only_be_listed_holds_up_no_other_one() {
    let api = start().await;
    api.put(config("ConfigMap", "app", &json!({ "a": "1" })));
    api.put(config("Secret", "tls", &json!({ "key": "c2VjcmV0" })));
    api.on("WATCH secrets").times(1000).fault(Fault::Answer(403, "secrets is forbidden"));
    deployment(&api, "web", "configmap/app,secret/tls");
    let _controller = lead(&api);
    let reported = |event: &Value| {
        let message = event["message"].as_str().unwrap_or_default();
        event["reason"] == "ConfigurationUnreadable" && message.contains("needs the verb watch")
    };
    api.until("the event", |store| store.events.iter().any(reported)).await;
    api.until("the other object is watched", |store| seen(store, "web").is_some()).await;
    api.edit_of("configmaps", "shop", "app", |map| map["data"]["a"] = json!("2"));
    api.until("a rollout", |store| rollouts(store).len() == 1).await;
}
