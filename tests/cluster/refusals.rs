//! Requests that cannot be carried out: their refusal messages, and that nothing is changed.

use inplace::api::{
    annotation::{REQUEST, STATUS},
    status::{Phase, Status},
};
use k8s_openapi::api::core::v1::Event;
use serde_json::json;

use crate::{
    agent::{Agent, status},
    cluster::Cluster,
    pod::{PAIR, Pod, annotation, container},
    request::{spec_image, swap},
    support::wait::eventually,
};

/// Waits for the event with the same message as the status.
fn event(pod: &Pod<'_>, reported: &Status) -> Event {
    eventually(&format!("an event that says: {}", reported.message), || {
        let says = |event: &Event| event.message.as_deref() == Some(&*reported.message);
        pod.events().into_iter().find(says)
    })
}

#[test]
fn what_cannot_be_done_is_refused_with_what_to_change_and_touches_nothing() {
    Agent::shared();
    let cluster = Cluster::shared();
    let pod = Pod::run(cluster, "refuses", PAIR);
    let before = pod.facts();
    let spec = pod.get().spec;
    for (text, reason, says) in [
        ("restart db", "UnknownContainer", "has no container db; it has app, side"),
        ("reboot app", "InvalidRequest", "write `restart NAME[,NAME]`"),
        ("restart app side", "InvalidRequest", "separate containers by commas"),
        (r#"{"containers":[{"name":"app"}]"#, "InvalidRequest", "the request is not valid"),
        (
            r#"{"containers":[{"name":"app"}],"graceSeconds":3}"#,
            "InvalidRequest",
            "unknown field `graceSeconds`",
        ),
        (r#"{"containers":[{"name":"app","image":"Repo:v1"}]}"#, "InvalidRequest", "containers[0].image"),
        (r#"{"containers":[{"name":"app"}],"gracePeriodSeconds":5}"#, "NoReadinessGate", "add the gate"),
        (
            r#"{"containers":[{"name":"app"}],"preHook":{"templateName":"t"}}"#,
            "HookTemplateMissing",
            "create it in namespace default",
        ),
        (r#"{"containers":[{"name":"app"}],"deadlineSeconds":2}"#, "DeadlineTooShort", "may take"),
        (
            r#"{"containers":[{"name":"app","image":"repo/app:v9"}],"engine":"Stop"}"#,
            "EngineUnavailable",
            "it starts the same image again",
        ),
    ] {
        pod.annotate(REQUEST, Some(text));
        let reported =
            pod.reported(text, |status| status.phase == Phase::Refused && status.message.contains(says));
        assert_eq!(reported.reason, reason, "{text}: {reported:#?}");
        assert!(reported.message.ends_with("Nothing was touched"), "{}", reported.message);
        assert!(reported.finished_at.is_some() && reported.containers.is_empty(), "{reported:#?}");
        let event = event(&pod, &reported);
        assert_eq!(
            (event.reason.as_deref(), event.type_.as_deref()),
            (Some("InPlaceRefused"), Some("Warning")),
            "{text}"
        );
    }
    assert_eq!(pod.facts(), before);
    assert_eq!(pod.get().spec, spec);
    // The pod is still served.
    pod.ask("restart app", Phase::Succeeded);
}

/// Its kubelet refuses such an image as well, but after it has stopped the container.
#[test]
fn an_image_of_root_stops_nothing_where_the_spec_refuses_root() {
    Agent::shared();
    let cluster = Cluster::shared();
    let spec = "
terminationGracePeriodSeconds: 2
securityContext: {runAsNonRoot: true}
containers:
- {name: app, image: lab/app:user}
";
    let pod = Pod::run(cluster, "not-root", spec);
    let before = pod.facts();
    let status = swap(&pod, "lab/app:v2", json!({}), Phase::Failed);
    assert_eq!(status.reason, "PullFailed", "{status:#?}");
    assert!(status.message.contains("runAsNonRoot"), "{}", status.message);
    assert_eq!(pod.facts(), before);
    assert_eq!(spec_image(&pod.get(), "app"), cluster.image("app:user"));
}

#[test]
fn an_id_that_has_ended_is_not_run_again() {
    Agent::shared();
    let pod = Pod::run(Cluster::shared(), "again", PAIR);
    let ask = |id: &str, name: &str| json!({"id": id, "containers": [{"name": name}]}).to_string();
    let first = pod.ask(&ask("one", "app"), Phase::Succeeded);
    // The id is written with another content, removed and written again: it already has its status.
    pod.annotate(REQUEST, Some(&ask("one", "side")));
    pod.annotate(REQUEST, None);
    pod.annotate(REQUEST, Some(&ask("one", "app")));
    // A later request is carried out, so the earlier one would have been carried out by now.
    let second = pod.ask(&ask("two", "side"), Phase::Succeeded);
    assert_eq!(second.containers[0].to.as_ref().unwrap().attempt, 1);
    // The status of the first request has been replaced meanwhile, so its id is refused.
    pod.request(&ask("one", "app"));
    let refused =
        pod.reported("it is refused", |status| status.id == "one" && status.phase == Phase::Refused);
    assert_eq!(refused.reason, "AlreadyEnded");
    assert!(refused.message.contains("use another id"), "{}", refused.message);
    event(&pod, &refused);
    let last = pod.ask(&ask("three", "app"), Phase::Succeeded);
    let facts = pod.facts().settled();
    let ids = [&facts.running("app").id, &last.containers[0].to.as_ref().unwrap().container_id];
    assert_eq!(ids[0], ids[1]);
    assert_eq!((facts.running("app").attempt, facts.running("side").attempt), (2, 1));
    assert_eq!(first.containers[0].to, Some(last.containers[0].from.clone()));
}

#[test]
fn a_pod_of_another_node_is_left_to_its_agent() {
    Agent::shared();
    let cluster = Cluster::shared();
    let node = format!("elsewhere-{}", std::process::id());
    cluster.apply(&format!("apiVersion: v1\nkind: Node\nmetadata: {{name: {node}}}\n"));
    let theirs = Pod::create(cluster, "theirs", &format!("nodeName: {node}\n{PAIR}"));
    theirs.request("restart app");
    // A pod that is not bound to a node yet, with an invalid request.
    let nobodys = Pod::create(cluster, "nobodys", &format!("nodeSelector: {{no: such}}\n{PAIR}"));
    nobodys.request("nonsense");
    let ours = Pod::run(cluster, "ours", PAIR);
    ours.ask("restart app", Phase::Succeeded);
    for pod in [&theirs, &nobodys] {
        let object = pod.get();
        assert_eq!((annotation(&object, STATUS), status(&object)), (None, None));
        assert!(
            pod.events().iter().all(|reported| !reported.reason.as_ref().unwrap().starts_with("InPlace"))
        );
    }
    // Deleted by force, because no kubelet ends it.
    cluster.kubectl(&["delete", "pod", &theirs.name, "--force", "--grace-period=0"]);
    cluster.kubectl(&["delete", "node", &node]);
}

/// As in a Job whose init containers still run: the kubelet would treat the end of the init container as that of
/// the pod.
#[test]
fn an_init_container_is_refused_and_runs_on() {
    Agent::shared();
    let cluster = Cluster::shared();
    let spec = "
restartPolicy: Never
terminationGracePeriodSeconds: 1
initContainers: [{name: setup, image: lab/app:v1}]
containers: [{name: app, image: lab/app:v1}]
";
    let pod = Pod::create(cluster, "gets-ready", spec);
    pod.wait("its init container runs", |pod| {
        let state = container(pod, "setup").and_then(|status| status.state.as_ref());
        state.is_some_and(|state| state.running.is_some())
    });
    let before = pod.facts();
    let image = cluster.image("app:v2");
    for text in [
        "restart setup".to_owned(),
        format!("swap setup={image}"),
        r#"{"containers":[{"name":"setup"}],"engine":"Recreate"}"#.to_owned(),
        r#"{"containers":[{"name":"setup"}],"engine":"Stop"}"#.to_owned(),
    ] {
        let status = pod.ask(&text, Phase::Refused);
        assert_eq!(status.reason, "UndeclaredContainer", "{text}: {status:#?}");
        assert!(status.message.contains("can be replaced in place: app"), "{}", status.message);
    }
    assert_eq!(pod.facts(), before);
}
