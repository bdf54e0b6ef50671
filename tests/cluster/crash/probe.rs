//! A kubelet that observes the new container between its creation and its start, while a liveness probe is due. It
//! counts the probe as failed and ends the container after the start. The agent replaces the container once more.

use inplace::api::status::Phase;

use crate::{
    agent::status,
    crash::{CrashFixture, TRIES},
    pod::{Pod, container},
    request::{adopted, ended_by_probe, shown_alone},
    support::facts::Instance,
    support::wait::eventually,
};

/// Its probe is due every second and never fails.
const PROBED: &str = "
terminationGracePeriodSeconds: 2
containers:
- name: app
  image: lab/app:v1
  livenessProbe: {exec: {command: ['true']}, periodSeconds: 1, timeoutSeconds: 30, failureThreshold: 3}
";

/// Waits until one instance of the container runs, and the kubelet reports it as Ready.
fn running(pod: &Pod<'_>) -> Instance {
    eventually("a container that is Ready", || shown_alone(&pod.facts(), &pod.get(), "app").cloned())
}

#[test]
fn an_instance_that_was_probed_before_its_start_is_replaced() {
    let crash_fixture = CrashFixture::open();
    let _agent = crash_fixture.agent();
    let pod = Pod::run(&crash_fixture.cluster, "probed", PROBED);
    let mut replaced = false;
    // In some attempts no probe is due until the kubelet observes the runtime again.
    for times in 1..=TRIES {
        let before = running(&pod);
        crash_fixture.holds.set(&pod.uid, "before effect Start");
        let id = pod.request(&format!("restart app #{times}"));
        // A kubelet that is faster than the agent starts the container itself: the request ends, and nothing is held.
        pod.wait("its kubelet reports the new container as not started, or the end", |object| {
            let is_unstarted = container(object, "app").is_some_and(|app| {
                let is_new = app.container_id.as_ref().is_some_and(|id| !id.ends_with(&before.id));
                is_new && app.state.as_ref().is_some_and(|state| state.running.is_none())
            });
            is_unstarted || status(object).is_some_and(|status| status.has_ended(&id))
        });
        crash_fixture.holds.release();
        let status = pod.answer(&id);
        let after = running(&pod);
        // The kubelet's report may reach the agent too late (docs/limits.md).
        if (status.phase, status.reason.as_str()) == (Phase::Failed, "Exited") {
            continue;
        }
        assert_eq!(status.phase, Phase::Succeeded, "{status:#?}, {:#?}", pod.events());
        // On a busy machine a probe may be due before the next start, too.
        let ended = ended_by_probe(&status);
        let own = before.attempt + 1 + u32::try_from(ended).unwrap();
        // The kubelet may end the container after the end of the operation (docs/limits.md), and starts the next one.
        if !after.by_operation && after.attempt > own {
            continue;
        }
        assert_eq!(status.containers[0].to.as_ref().unwrap().container_id, after.id);
        assert_eq!(after.attempt, own, "{status:#?}, {:#?}", pod.events());
        if ended > 0 {
            replaced = true;
            break;
        }
    }
    assert!(replaced, "no probe was due before a start: {:#?}", pod.events());
    adopted(&pod, "app", "lab/app:v1");
    drop(pod);
    crash_fixture.close();
}
