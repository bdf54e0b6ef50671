//! The group restarts that agents cache: those in progress, whatever number of rollouts a namespace has.

use inplace::api::annotation;
use inplace::api::group::GroupPhase;
use inplace::api::pod_ref::PodRef;
use inplace::cluster::client::{ConnectOptions, connect};
use inplace::cluster::groups::GroupRestarts;
use inplace::cluster::server::Server;
use inplace::operation::snapshot::GroupSignal;
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::super::api_server::ApiServer;

const PREPARE: GroupSignal = GroupSignal::Phase(GroupPhase::Prepare);
const STOP: GroupSignal = GroupSignal::Phase(GroupPhase::Stop);
/// More than what a namespace may have in the cache, if each of them took the memory of a small object.
const MANY: u32 = 2000;

/// A rollout of the namespace `shop`, which begins a group restart; its uid is its name.
fn rollout(name: &str, phase: &str) -> Value {
    json!({"apiVersion": "inplace.dev/v1alpha1", "kind": "InPlaceRollout",
        "metadata": {"namespace": "shop", "name": name, "uid": name, "labels": {(annotation::TOGETHER): "true"}},
        "spec": {"target": {"selector": {"matchLabels": {"app": "train"}}}, "strategy": "Together",
            "containers": [{"name": "app"}]},
        "status": {"phase": phase, "group": {"epoch": 1, "phase": "Prepare", "prepareAt": "2026-11-20T10:00:00Z"}}})
}

/// Makes a rollout as large as this many bytes and a little more.
fn fill(rollout: &mut Value, bytes: usize) {
    rollout["metadata"]["annotations"]["filler"] = json!("x".repeat(bytes));
}

/// What is known about the group restart of a rollout, for a pod of this namespace.
fn signal(groups: &GroupRestarts, namespace: &str, rollout: &str) -> GroupSignal {
    let pod = PodRef { namespace: namespace.to_owned(), name: "train-0".to_owned(), uid: "uid-0".to_owned() };
    groups.signal(rollout, &pod)
}

async fn watch(api: &ApiServer) -> (GroupRestarts, DropGuard) {
    let target = ConnectOptions { kubeconfig: Some(api.kubeconfig()), ..ConnectOptions::default() };
    let (client, _) = connect(&target).await.unwrap();
    let stop = CancellationToken::new();
    let groups = GroupRestarts::watch(Server::new(client), stop.clone());
    until(api, &groups, "the cache is current", GroupRestarts::is_current).await;
    (groups, stop.drop_guard())
}

/// Waits until the watch has delivered what `condition` requires.
async fn until(
    api: &ApiServer,
    groups: &GroupRestarts,
    what: &str,
    condition: impl Fn(&GroupRestarts) -> bool,
) {
    let mut groups = groups.clone();
    let coming = async {
        while !condition(&groups) {
            groups.changed().await;
        }
    };
    api.patiently(what, coming).await;
}

#[tokio::test]
async fn rollouts_that_have_ended_leave_room_for_one_in_progress() {
    let api = ApiServer::start().await;
    for number in 0..MANY {
        api.put(rollout(&format!("listed-{number}"), "Succeeded"));
    }
    let (groups, _stop) = watch(&api).await;
    for number in 0..MANY {
        api.put(rollout(&format!("watched-{number}"), "Failed"));
    }
    api.put(rollout("train", "Running"));
    let is = |wanted: GroupSignal| move |groups: &GroupRestarts| signal(groups, "shop", "train") == wanted;
    until(&api, &groups, "it is prepared", is(PREPARE)).await;
    let in_progress = groups.in_progress();
    let names: Vec<_> = in_progress.iter().map(|group| group.task.rollout.as_str()).collect();
    assert_eq!(names, ["train"]);
    api.edit_of("inplacerollouts", "shop", "train", |train| {
        train["status"]["group"]["phase"] = json!("Stop");
    });
    until(&api, &groups, "it stops", is(STOP)).await;
    api.edit_of("inplacerollouts", "shop", "train", |train| train["status"]["phase"] = json!("Succeeded"));
    until(&api, &groups, "it is over", is(GroupSignal::Over)).await;
    assert!(groups.in_progress().is_empty());
}

/// Pods that wait for the others of the group would start before these have stopped.
#[tokio::test]
async fn a_group_restart_that_is_too_large_to_be_cached_is_not_over() {
    let api = ApiServer::start().await;
    for number in 0..11 {
        let mut rollout = rollout(&format!("large-{number:02}"), "Running");
        fill(&mut rollout, 100_000);
        api.put(rollout);
    }
    let (groups, _stop) = watch(&api).await;
    assert_eq!((signal(&groups, "shop", "large-00"), groups.in_progress().len()), (PREPARE, 10));
    assert_eq!(signal(&groups, "shop", "large-10"), GroupSignal::Unknown, "the list has more than is cached");
    assert_eq!(signal(&groups, "bank", "large-99"), GroupSignal::Over, "another namespace has room");
    // A newer version that is larger: there is no room for it any more.
    api.edit_of("inplacerollouts", "shop", "large-00", |large| {
        large["status"]["group"]["phase"] = json!("Stop");
        fill(large, 200_000);
    });
    let is_prepared = |groups: &GroupRestarts| signal(groups, "shop", "large-00") == PREPARE;
    until(&api, &groups, "the change was seen", |groups| !is_prepared(groups)).await;
    assert_eq!(signal(&groups, "shop", "large-00"), GroupSignal::Unknown);
    // Once there is room, the next list has all of them.
    for number in 1..4 {
        api.store(|store| store.remove_of("inplacerollouts", "shop", &format!("large-{number:02}")));
    }
    api.compact();
    let has_stopped = |groups: &GroupRestarts| signal(groups, "shop", "large-00") == STOP;
    until(&api, &groups, "all are cached", has_stopped).await;
    until(&api, &groups, "the watch is connected again", GroupRestarts::is_current).await;
    assert_eq!(signal(&groups, "shop", "large-10"), PREPARE);
    assert_eq!(signal(&groups, "shop", "large-01"), GroupSignal::Over);
}

/// Pods of the others would otherwise not know for days that theirs is over.
#[tokio::test]
async fn once_what_was_not_cached_is_gone_all_of_the_namespace_are_known_again() {
    let api = ApiServer::start().await;
    let put = |name: &str| {
        let mut rollout = rollout(name, "Running");
        fill(&mut rollout, 100_000);
        api.put(rollout);
    };
    for number in 0..11 {
        put(&format!("large-{number:02}"));
    }
    let (groups, _stop) = watch(&api).await;
    let is = |wanted: GroupSignal| move |groups: &GroupRestarts| signal(groups, "shop", "gone") == wanted;
    assert!(is(GroupSignal::Unknown)(&groups), "the list has more than is cached");
    api.store(|store| store.remove_of("inplacerollouts", "shop", "large-10"));
    until(&api, &groups, "it is deleted", is(GroupSignal::Over)).await;
    put("large-11");
    until(&api, &groups, "a new one is not cached", is(GroupSignal::Unknown)).await;
    api.edit_of("inplacerollouts", "shop", "large-11", |large| large["status"]["phase"] = json!("Failed"));
    until(&api, &groups, "it has ended", is(GroupSignal::Over)).await;
}
