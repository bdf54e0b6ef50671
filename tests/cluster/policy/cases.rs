//! The changes by an agent that the admission policy must allow or deny: the same cases for a real API server and
//! for the expressions alone (`hermetic`).

use inplace::api::status::{Action, ContainerInstance, ContainerReport, Engine, Phase, Status, Step};
use serde_json::{Value, json};

/// The node of the agent that makes the change.
pub(super) const OWN: &str = "node-a";
/// The digest of all running images.
pub(super) const V1: &str = "sha256:1111111111111111111111111111111111111111111111111111111111111111";
pub(super) const OTHER: &str = "sha256:2222222222222222222222222222222222222222222222222222222222222222";

/// A pod as it is created.
pub(super) fn manifest(name: &str, node: &str, request: &str, reported: Option<&str>) -> Value {
    let mut pod = json!({
        "metadata": {"name": name, "labels": {"app": "web"}, "annotations": {"inplace.dev/request": request, "team": "a"}},
        "spec": {
            "nodeName": node,
            "automountServiceAccountToken": false,
            "containers": [{"name": "app", "image": "repo/app:v1"}, {"name": "side", "image": format!("host:5000/side@{V1}")}],
            "initContainers": [{"name": "mesh", "image": "repo/mesh:v1", "restartPolicy": "Always"}],
        }
    });
    if let Some(reported) = reported {
        pod["metadata"]["annotations"]["inplace.dev/status"] = reported.into();
    }
    pod
}

/// The status that its kubelet then reports.
pub(super) fn running() -> Value {
    let container = |name: &str, repository: &str| json!({"name": name, "image": repository, "imageID": format!("{repository}@{V1}"), "ready": true, "restartCount": 0});
    json!({
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [container("app", "repo/app"), container("side", "host:5000/side")],
        "initContainerStatuses": [container("mesh", "repo/mesh")],
    })
}

/// The endpoint of a patch.
#[derive(Clone, Copy)]
pub(super) enum Part {
    Pod,
    Status,
}

/// A pod of `node` with a request and possibly a status, a patch by the agent of [`OWN`], and the expected
/// verdict.
pub(super) struct Case {
    pub(super) what: &'static str,
    pub(super) node: &'static str,
    pub(super) request: &'static str,
    pub(super) note: Option<String>,
    pub(super) part: Part,
    pub(super) patch: Value,
    /// A part of the message; `None`: the patch is allowed.
    pub(super) denied: Option<&'static str>,
}

fn case(what: &'static str, request: &'static str, patch: Value, denied: Option<&'static str>) -> Case {
    Case { what, node: OWN, request, note: None, part: Part::Pod, patch, denied }
}

pub(super) fn cases() -> Vec<Case> {
    let mut all = images();
    all.extend(rollbacks());
    all.extend(metadata());
    all.extend(statuses());
    all
}

/// The pod runs `repo/app:v1`, `host:5000/side@<V1>` and the sidecar `repo/mesh:v1`, each with the digest V1.
fn images() -> Vec<Case> {
    let app = |image: &str| json!({"spec": {"containers": [{"name": "app", "image": image}]}});
    let side = |image: &str| json!({"spec": {"containers": [{"name": "side", "image": image}]}});
    let mesh = |image: &str| json!({"spec": {"initContainers": [{"name": "mesh", "image": image}]}});
    let no = Some("names no image");
    let spread = "{\n  \"id\": \"a 1\", \"containers\": [ {\"image\" : \"repo\\/app:v2\",\n\"name\":\t\"app\"}, {\"name\":\"side\"} ] }";
    vec![
        case("an image named in a line", "swap app=repo/app:v2", app("repo/app:v2"), None),
        case("the second in a line", " swap  side=x:1,app=other/app:v9 #3", app("other/app:v9"), None),
        case(
            "an image named in JSON",
            r#"{"containers":[{"name":"app","image":"repo/app:v2"}]}"#,
            app("repo/app:v2"),
            None,
        ),
        case("JSON as others write it", spread, app("repo/app:v2"), None),
        case("an image of a sidecar", "swap mesh=repo/mesh:v2", mesh("repo/mesh:v2"), None),
        case("an image that is not named", "swap app=repo/app:v2", app("repo/app:v3"), no),
        case("the beginning of one that is named", "swap app=repo/app:v22", app("repo/app:v2"), no),
        case("an image named for another container", "swap side=repo/app:v2", app("repo/app:v2"), no),
        case("an image without a request", "", app("repo/app:v2"), no),
        case("a sidecar that is not named", "swap app=repo/mesh:v2", mesh("repo/mesh:v2"), no),
        case(
            "what only looks like an entry",
            r#"{"containers":[{"name":"side"}],"reason":"{\"name\":\"app\",\"image\":\"repo/app:v2\"}"}"#,
            app("repo/app:v2"),
            no,
        ),
        case("a restart by digest", "restart app", app(&format!("repo/app@{V1}")), None),
        case("the same with the tag kept", "restart app", app(&format!("repo/app:v1@{V1}")), None),
        case(
            "a restart asked for in JSON",
            r#"{"containers":[{"name":"side"},{"name":"app"}]}"#,
            app(&format!("repo/app@{V1}")),
            None,
        ),
        case("a digest that does not run", "restart app", app(&format!("repo/app@{OTHER}")), no),
        case("a digest of another repository", "restart app", app(&format!("evil/app@{V1}")), no),
        case("a digest that nobody asked for", "restart side", app(&format!("repo/app@{V1}")), no),
        case("another tag", "restart app", app("repo/app:v2"), no),
        case("from a digest to a tag", "restart side", side("host:5000/side:v1"), None),
        case(
            "from a digest to the same with a tag",
            "restart side",
            side(&format!("host:5000/side:v1@{V1}")),
            None,
        ),
        case("from a digest to another", "restart side", side(&format!("host:5000/side@{OTHER}")), no),
        case("from a digest to a tag elsewhere", "restart side", side("host:5001/side:v1"), no),
        case("from a digest to a tag, unasked", "restart app", side("host:5000/side:v1"), no),
    ]
}

/// Rollbacks, to the image that the status reports to have run before.
fn rollbacks() -> Vec<Case> {
    let to = |image: &str| json!({"spec": {"containers": [{"name": "app", "image": image}]}});
    let write = |text: String| json!({"metadata": {"annotations": {"inplace.dev/status": text}}});
    let back = |what, from: &str, image: &str, denied| Case {
        note: Some(answer("app", from)),
        ..case(what, "swap app=repo/app:v1", to(image), denied)
    };
    let made_up = Some("that this container does not have");
    let named = Some("names no image");
    vec![
        back("back to what ran before", "old/app:v0", "old/app:v0", None),
        back("back to what did not", "old/app:v0", "old/app:v9", named),
        Case {
            note: Some(answer("side", "old/app:v0")),
            ..case("back to what another container ran", "restart app", to("old/app:v0"), named)
        },
        case("the present image as the one before", "restart app", write(answer("app", "repo/app:v1")), None),
        case("no image as the one before", "restart app", write(answer("app", "")), None),
        case("an image before that is made up", "restart app", write(answer("app", "evil/app:v1")), made_up),
        case("another container's", "restart app", write(answer("app", "repo/mesh:v1")), made_up),
        Case {
            note: Some(answer("app", "old/app:v0")),
            ..case(
                "what it said before",
                "restart app",
                write(answer("app", "old/app:v0").replace("Running", "Failed")),
                None,
            )
        },
        case(
            "an image made up in the change itself",
            "restart app",
            json!({"metadata": {"annotations": {"inplace.dev/status": answer("app", "evil/app:v1")}},
                "spec": {"containers": [{"name": "app", "image": "evil/app:v1"}]}}),
            made_up,
        ),
        case(
            "image and status in one",
            "swap app=other/app:v2",
            json!({"metadata": {"annotations": {"inplace.dev/status": answer("app", "repo/app:v1")}},
                "spec": {"containers": [{"name": "app", "image": "other/app:v2"}]}}),
            None,
        ),
    ]
}

fn metadata() -> Vec<Case> {
    let status = || json!({"metadata": {"annotations": {"inplace.dev/status": "{}"}}});
    let note = Some("no annotation but");
    let frozen = Some("no labels, finalizers and owners");
    vec![
        case("its answer", "restart app", status(), None),
        Case {
            node: "node-b",
            ..case("another node's pod", "restart app", status(), Some("not on node node-a"))
        },
        Case {
            node: "",
            ..case("a pod without a node", "restart app", status(), Some("not on node node-a"))
        },
        case("another annotation", "restart app", json!({"metadata": {"annotations": {"a": "b"}}}), note),
        case(
            "the request",
            "restart app",
            json!({"metadata": {"annotations": {"inplace.dev/request": "restart side"}}}),
            note,
        ),
        case(
            "no request",
            "restart app",
            json!({"metadata": {"annotations": {"inplace.dev/request": null}}}),
            note,
        ),
        case("a label", "restart app", json!({"metadata": {"labels": {"a": "b"}}}), frozen),
        case("no label", "restart app", json!({"metadata": {"labels": {"app": null}}}), frozen),
        case("a finalizer", "restart app", json!({"metadata": {"finalizers": ["a.dev/b"]}}), frozen),
        case(
            "an owner",
            "restart app",
            json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]}}),
            frozen,
        ),
        case(
            "a deadline",
            "restart app",
            json!({"spec": {"activeDeadlineSeconds": 1}}),
            Some("spec but images"),
        ),
        case("a toleration", "restart app", tolerations(), Some("spec but images")),
    ]
}

/// The default tolerations of every pod and one more: the API server does not allow the removal of any.
fn tolerations() -> Value {
    let given = ["not-ready", "unreachable"].map(|what| {
        let key = format!("node.kubernetes.io/{what}");
        json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})
    });
    let mut all = given.to_vec();
    all.push(json!({"operator": "Exists"}));
    json!({"spec": {"tolerations": all}})
}

fn statuses() -> Vec<Case> {
    let condition = |kind: &str, is: &str| json!({"status": {"conditions": [{"type": kind, "status": is}]}});
    let to_status =
        |what, patch, denied| Case { part: Part::Status, ..case(what, "restart app", patch, denied) };
    let own = || condition("InPlaceUpdateReady", "False");
    let with = |status: Value| json!({"status": status});
    let other = Some("no condition but InPlaceUpdateReady");
    vec![
        to_status("its condition", own(), None),
        Case {
            node: "node-b",
            ..to_status("its condition on another node's pod", own(), Some("not on node"))
        },
        to_status("Ready", condition("Ready", "False"), other),
        to_status("a new condition", condition("example.dev/x", "True"), other),
        to_status(
            "no Ready",
            json!({"status": {"conditions": [{"$patch": "delete", "type": "Ready"}]}}),
            other,
        ),
        to_status("the phase", with(json!({"phase": "Failed"})), Some("status but its own condition")),
        to_status(
            "the address",
            with(json!({"podIP": "10.0.0.9", "podIPs": [{"ip": "10.0.0.9"}]})),
            Some("status but"),
        ),
        to_status(
            "no status of a container",
            with(json!({"containerStatuses": []})),
            Some("no status of a container"),
        ),
        to_status(
            "an annotation by way of status",
            json!({"metadata": {"annotations": {"a": "b"}}}),
            Some("no annotation but"),
        ),
        to_status("a label by way of status", json!({"metadata": {"labels": {"a": "b"}}}), Some("no labels")),
        to_status(
            "condition and answer in one",
            json!({"metadata": {"annotations": {"inplace.dev/status": answer("app", "repo/app:v1")}},
                "status": {"conditions": [{"type": "InPlaceUpdateReady", "status": "True"}]}}),
            None,
        ),
    ]
}

/// A status as the agent writes it, of an operation on `container`, which ran `image` before.
pub(super) fn answer(container: &str, image: &str) -> String {
    serde_json::to_string(&answered(vec![report("mesh", "repo/mesh:v1"), report(container, image)])).unwrap()
}

pub(super) fn answered(containers: Vec<ContainerReport>) -> Status {
    Status {
        id: "web-1".to_owned(),
        phase: Phase::Running,
        step: Some(Step::Swap),
        reason: String::new(),
        message: "app: {\"name\":\"app\"} is on its way".to_owned(),
        started_at: None,
        finished_at: None,
        group: None,
        containers,
    }
}

/// The report of a swap of the container `name`, which ran `image` before.
pub(super) fn report(name: &str, image: &str) -> ContainerReport {
    ContainerReport {
        name: name.to_owned(),
        action: Action::Swap,
        engine: Engine::Respec,
        from: ContainerInstance {
            container_id: "4f5c".repeat(16),
            attempt: 3,
            image: image.to_owned(),
            image_id: V1.to_owned(),
        },
        to: None,
        stopped_at: None,
        started_at: None,
        ready_at: None,
        downtime_ms: None,
    }
}
