//! Failures of a rollout, and conflicts with other rollouts, users and controllers.

use serde_json::{Value, json};

use super::{Fixture, Load, is_ready, limit, restarts};
use crate::{agent::Agent, support::wait::eventually};

fn phase_of(fixture: &Fixture<'_>, name: &str) -> Value {
    fixture.rollout(name)["status"]["phase"].clone()
}

/// Waits until one pod of the workload has the request of a rollout and drains.
fn drains(load: &Load<'_>) {
    eventually(&format!("a pod of {} drains", load.name), || {
        load.pods().values().any(|pod| !is_ready(pod)).then_some(())
    });
}

pub(super) fn one_failed_pod_stops_it_and_has_its_image_back(fixture: &Fixture<'_>) {
    let load = Load { fixture, kind: "Deployment", name: "broken" };
    load.apply(3, false);
    let before = load.pods();
    let image = format!("app={}", fixture.cluster.image("app:crash"));
    let refused = fixture.inplace(&["swap", "deploy/broken", &image]).output().unwrap();
    let reported = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(3), "{reported}");
    assert!(reported.contains("--allow-template-drift"), "{reported}");

    // On a busy node the runtime may report the exit only after the second that a swap is observed otherwise.
    let wait = limit("--wait", 2);
    let flags = ["--allow-template-drift", "--max-unavailable", "1", "--min-ready", "5s", wait.as_str()];
    let output =
        fixture.inplace(&[&["swap", "deploy/broken", &image][..], &flags].concat()).output().unwrap();
    let reported = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{reported}{}", String::from_utf8_lossy(&output.stderr));
    assert!(reported.contains("Failed: ") && reported.contains("0/3 done, 0 busy, 1 failed"), "{reported}");
    let after = load.pods();
    let touched: Vec<_> = after.iter().filter(|(_, pod)| restarts(pod) > 0).map(|(name, _)| name).collect();
    assert_eq!(touched.len(), 1, "{touched:?}");
    assert!(reported.contains(&format!("  pod/{}: RolledBack: ", touched[0])), "{reported}");
    let images = |pods: &std::collections::BTreeMap<String, Value>| -> Vec<_> {
        pods.values().map(|pod| pod["spec"]["containers"][0]["image"].clone()).collect()
    };
    assert_eq!(images(&after), images(&before));
}

pub(super) fn the_newer_one_of_two_takes_over(fixture: &Fixture<'_>) {
    let load = Load { fixture, kind: "Deployment", name: "twice" };
    load.apply(2, false);
    let before = load.pods();
    let first = fixture.begin(&["restart", "deploy/twice", "--max-unavailable", "1", "--grace", "120s"]);
    drains(&load);
    let follower = fixture.follow(&first, 1);
    let second = fixture
        .inplace(&["restart", "deploy/twice", "--max-unavailable", "1", &limit("--wait", 2)])
        .output()
        .unwrap();
    let reported = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(0), "{reported}");
    assert!(reported.contains(&format!("ipr/{first} is in progress")), "{reported}");
    let (code, reported) = follower.end();
    assert_eq!(code, Some(5), "{reported}");
    assert!(
        reported.contains("Superseded: ") && reported.contains("is newer and has the same target"),
        "{reported}"
    );
    load.same_but_restarted(&before, 1);
}

pub(super) fn a_target_that_is_deleted_ends_it(fixture: &Fixture<'_>) {
    let load = Load { fixture, kind: "Deployment", name: "doomed" };
    load.apply(2, false);
    let name = fixture.begin(&["restart", "deploy/doomed", "--max-unavailable", "1", "--grace", "120s"]);
    drains(&load);
    let follower = fixture.follow(&name, 1);
    fixture.cluster.kubectl(&["delete", "deployment", "doomed", "--wait=false"]);
    let (code, reported) = follower.end();
    assert_eq!(code, Some(1), "{reported}");
    assert_eq!(fixture.rollout(&name)["status"]["reason"], "TargetGone", "{reported}");

    // A rollout waits for a target that has never existed, and reports that.
    let never = json!({"apiVersion": "inplace.dev/v1alpha1", "kind": "InPlaceRollout",
        "metadata": {"name": "never", "namespace": "default"},
        "spec": {"target": {"workloadRef": {"kind": "Deployment", "name": "never"}}, "containers": [{"name": "app"}]}});
    fixture.cluster.apply(&never.to_string());
    eventually("it is reported that the target is not there", || {
        let status = fixture.rollout("never")["status"].clone();
        let reported = status["message"]
            .as_str()
            .is_some_and(|message| message.contains("the target Deployment/never does not exist"));
        (reported && status["phase"] == "Pending").then_some(())
    });
    fixture.cluster.kubectl(&["delete", "ipr", "never"]);
}

pub(super) fn what_has_not_begun_when_it_is_cancelled_never_begins(fixture: &Fixture<'_>) {
    let load = Load { fixture, kind: "StatefulSet", name: "regretted" };
    load.apply(2, false);
    let before = load.pods();
    let name = fixture.begin(&["restart", "sts/regretted", "--max-unavailable", "1", "--grace", "120s"]);
    drains(&load);
    let follower = fixture.follow(&name, 1);
    let cancelled = fixture.inplace(&["cancel", &format!("ipr/{name}")]).output().unwrap();
    assert!(cancelled.status.success(), "{}", String::from_utf8_lossy(&cancelled.stderr));
    let (code, reported) = follower.end();
    assert_eq!(code, Some(5), "{reported}");
    assert!(reported.contains("was deleted; no further pod is started"), "{reported}");
    load.same_but_restarted(&before, 0);
    for (name, pod) in &load.pods() {
        assert!(
            pod["metadata"]["annotations"]["inplace.dev/request"].is_null(),
            "{name}: {:#}",
            pod["metadata"]
        );
    }
}

pub(super) fn nobody_is_restarted_twice_by_two_controllers(fixture: &Fixture<'_>, first: &Agent) {
    let load = Load { fixture, kind: "Deployment", name: "handed" };
    load.apply(6, false);
    let before = load.pods();
    let name = fixture.begin(&["restart", "deploy/handed", "--max-unavailable", "2", "--grace", "2s"]);
    let follower = fixture.follow(&name, before.len());
    eventually("some are through and some are not", || {
        let restarted = load.pods().values().filter(|pod| restarts(pod) > 0).count();
        (restarted > 0).then_some(())
    });
    first.kill();
    assert_ne!(phase_of(fixture, &name), "Succeeded", "it was killed too late to show anything");
    let _second = Agent::controller(fixture.cluster, "two");
    let (code, reported) = follower.end();
    assert_eq!(code, Some(0), "{reported}");
    load.same_but_restarted(&before, 1);
}
