//! `onFailure: Abort`: the pods that were swapped before another one failed go back in place.

use serde_json::{Value, json};

use super::{
    Fixture, Load,
    hooked::{asks, template},
    limit, restarts,
};
use crate::support::{hook_server::HookServer, wait::eventually};

pub(super) fn pods_with_the_new_image_go_back_after_a_failure(fixture: &Fixture<'_>) {
    let hook_server = HookServer::open();
    let mut once = asks(fixture, &hook_server);
    once["count"] = 1.into();
    template(fixture, "accepted", &[once]);
    let load = Load { fixture, kind: "Deployment", name: "aborted" };
    load.apply(4, false);
    let before = load.pods();
    // Pods are begun in the order of their names: two pass the hook after the swap, and the third one does not.
    let names: Vec<_> = before.keys().map(String::as_str).collect();
    for name in &names[..2] {
        hook_server.say(name, 1);
    }
    let image = format!("app={}", fixture.cluster.image("app:v2"));
    let flags = ["--allow-template-drift", "--max-unavailable", "1", "--post-hook", "accepted"];
    // Three swaps, the rollback of the last one, and the ways back of the others.
    let wait = limit("--wait", 6);
    let abort = ["--on-rollout-failure", "abort", wait.as_str(), "-o", "json"];
    let args = [&["swap", "deploy/aborted", &image][..], &flags, &abort].concat();
    let output = fixture.inplace(&args).output().unwrap();
    let reported = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{reported}");
    let rollout: Value = serde_json::from_slice(&output.stdout).unwrap();
    let (status, abort) = (&rollout["status"], &rollout["status"]["abort"]);
    assert_eq!(
        (&status["phase"], &status["reason"]),
        (&json!("Aborted"), &json!("FailureThreshold")),
        "{status:#}"
    );
    assert_eq!(
        (&abort["pods"], &abort["returned"], &abort["failed"], &abort["skipped"]),
        (&json!(2), &json!(2), &json!(0), &json!(0)),
        "{status:#}"
    );
    assert_eq!((&status["done"], &status["failed"]), (&json!(0), &json!(1)), "{status:#}");
    assert_eq!(status["failures"][0]["pod"], names[2], "{status:#}");
    // The same pods at the same addresses run the image from before, and the last one was never touched.
    let kept = |pod: &Value| {
        let container = &pod["status"]["containerStatuses"][0];
        json!([
            pod["metadata"]["uid"],
            pod["status"]["podIP"],
            pod["spec"]["containers"][0]["image"],
            container["imageID"]
        ])
    };
    let after = load.pods();
    for (name, pod) in &before {
        assert_eq!(kept(&after[name]), kept(pod), "{name}");
    }
    let restarted: Vec<_> = after.values().map(restarts).collect();
    // A kubelet that receives the spec of a rollback late stops and starts that container once more (docs/limits.md).
    assert!(matches!(restarted[..], [2, 2, 2 | 3, 0]), "{restarted:?}");
    // Each pod was asked for its own hook on both ways.
    let asked: Vec<_> = names.iter().map(|name| hook_server.queries(name).len()).collect();
    assert_eq!(asked, [2, 2, 1, 0]);
    let name = rollout["metadata"]["name"].as_str().unwrap();
    // Events are written after the status.
    for reason in ["RolloutStarted", "PodFailed", "RolloutAborting", "RolloutAborted"] {
        eventually(reason, || (!fixture.cluster.events(name, reason).is_empty()).then_some(()));
    }
    let table = fixture.cluster.kubectl(&["get", "ipr", name, "-o", "wide"]);
    assert!(table.contains("Aborted") && table.contains("RETURNED"), "{table}");
}
