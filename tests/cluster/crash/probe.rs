//! A kubelet that observes the new container between its creation and its start, while a liveness probe is due. It
//! counts the probe as failed and ends the container after the start. The agent replaces the container once more.

use inplace::api::status::Status;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod as Object;
use serde_json::json;

use crate::{
    agent::status,
    crash::{CrashFixture, TRIES},
    pod::{Pod, container},
    request::{ended_by_probe, request, restart_probed},
    support::facts::Instance,
    support::wait::eventually,
    traffic::now,
};

/// Its probe never fails. Its period is longer than a start takes, so that a probe is seldom due before the next start as well.
const PROBED: &str = "
terminationGracePeriodSeconds: 2
containers:
- name: app
  image: lab/app:v1
  livenessProbe: {exec: {command: ['true']}, periodSeconds: 10, timeoutSeconds: 30, failureThreshold: 3}
";
const PERIOD: SignedDuration = SignedDuration::from_secs(10);

#[test]
fn an_instance_that_was_probed_before_its_start_is_replaced() {
    let crash_fixture = CrashFixture::open();
    let _agent = crash_fixture.agent();
    let pod = Pod::run(&crash_fixture.cluster, "probed", PROBED);
    // A kubelet that is faster than the agent starts the container itself, and no probe is due before that.
    let is_replaced = (1..=TRIES).any(|_| {
        let (_, status) = restart_probed(&pod, "app", |before| restart_held(&crash_fixture, &pod, before));
        ended_by_probe(&status) > 0
    });
    assert!(is_replaced, "no probe was due before a start: {:#?}", pod.events());
    drop(pod);
    crash_fixture.close();
}

/// Restarts `app`. Its start is held until a probe was due.
fn restart_held(crash_fixture: &CrashFixture, pod: &Pod<'_>, before: &Instance) -> Status {
    crash_fixture.holds.set(&pod.uid, "before effect Start");
    let id = pod.request(&request(pod.cluster, &[("app", None)], json!({})));
    let has_ended = |object: &Object| status(object).is_some_and(|status| status.has_ended(&id));
    let object = pod.wait("its kubelet reports the new container as not started, or the end", |object| {
        let is_unstarted = container(object, "app").is_some_and(|app| {
            let is_new = app.container_id.as_ref().is_some_and(|id| !id.ends_with(&before.id));
            is_new && app.state.as_ref().is_some_and(|state| state.running.is_none())
        });
        is_unstarted || has_ended(object)
    });
    if !has_ended(&object) {
        // A kubelet reports no probe of a container that does not run: only the time shows that one was due.
        let since = now();
        eventually("a period of the probe to pass", || (now().duration_since(since) > PERIOD).then_some(()));
    }
    crash_fixture.holds.release();
    pod.answer(&id)
}
