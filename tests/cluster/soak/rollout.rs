//! Operations on the pods of a Deployment through an InPlaceRollout, as a user of the command line tool starts them.

use std::collections::{BTreeMap, BTreeSet};

use inplace::api::{
    annotation::{GATE, RESTART_ON_CHANGE, RESTART_ON_CHANGE_SEEN},
    in_place_rollout::{InPlaceRollout, InPlaceRolloutStatus, RolloutPhase},
    request::DEADLINE_SECONDS,
    status::Phase,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;
use tokio::time::timeout;

use super::{
    checker::wrong_number,
    excuse::explains,
    history::{FaultSpan, Last, SECOND, Settled},
    operate::{CALL, write},
    plan::Operation as Op,
    run::{LIMIT, Run},
    watch::clock,
};
use crate::{agent::status, cluster::block_on, support::wait::eventually};

/// The deadline of the requests of a rollout, in nanoseconds.
const DEADLINE: i64 = DEADLINE_SECONDS as i64 * SECOND;
pub(super) const NAME: &str = "soak-rolled";
/// One on each node.
pub(super) const COUNT: usize = 2;

/// Creates the Deployment.
pub(super) fn create(run: &Run<'_>) {
    let labels = json!({"app": NAME});
    let spread = json!([{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": labels}}]);
    let spec = json!({"replicas": COUNT, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"terminationGracePeriodSeconds": 2,
            "readinessGates": [{"conditionType": GATE}], "topologySpreadConstraints": spread,
            "volumes": [{"name": "settings", "configMap": {"name": NAME}}],
            "containers": [{"name": "app", "image": "lab/app:v1",
                "volumeMounts": [{"name": "settings", "mountPath": "/settings"}]}]}}});
    let annotations = json!({RESTART_ON_CHANGE: format!("configmap/{NAME}")});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": NAME, "namespace": "default", "annotations": annotations}, "spec": spec});
    let settings = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"level": "0"},
        "metadata": {"name": NAME, "namespace": "default"}});
    run.cluster.apply(&settings.to_string());
    run.cluster.apply(&deployment.to_string());
    // A content that the controller sees for the first time restarts nothing.
    eventually("the controller has seen the configuration", || {
        let seen = run.cluster.read(&format!("/apis/apps/v1/namespaces/default/deployments/{NAME}"));
        seen["metadata"]["annotations"][RESTART_ON_CHANGE_SEEN].is_string().then_some(())
    });
}

/// The pods of the Deployment by name; or why they are not settled.
pub(super) fn is_settled(run: &Run<'_>) -> Result<BTreeMap<String, Settled>, String> {
    let names: Vec<String> = {
        let pods = run.watch.pods.lock().unwrap();
        pods.by_name.keys().filter(|name| name.starts_with(NAME)).cloned().collect()
    };
    if names.len() != COUNT {
        return Err(format!("its pods are {names:?}"));
    }
    let one = |name: String| match run.is_settled(&name) {
        Ok(settled) => Ok((name, settled)),
        Err(why) => Err(format!("{name}: {why}")),
    };
    names.into_iter().map(one).collect()
}

/// Waits until the pods are settled; otherwise the last reason why they are not.
pub(super) fn settled(run: &Run<'_>) -> Result<BTreeMap<String, Settled>, String> {
    let mut last = String::new();
    run.within(LIMIT, || is_settled(run).map_err(|why| last = why).ok()).ok_or(last)
}

/// Compares the pods with what they were after the last operation.
pub(super) fn compare(run: &Run<'_>, now: &BTreeMap<String, Settled>) {
    for (pod, settled) in now {
        run.compare(pod, node_index(run, pod), settled);
    }
    // The pod that replaces one has another name.
    let mut last = run.last.lock().unwrap();
    let gone: Vec<String> = last.keys().filter(|pod| pod.starts_with(NAME)).cloned().collect();
    last.retain(|pod, _| !pod.starts_with(NAME));
    drop(last);
    for pod in gone {
        run.violation(format!("{pod} is gone: the pods are {:?}", now.keys()));
    }
}

/// Starts the rollout, waits for its end, and checks it.
pub(super) fn operate(run: &Run<'_>, operation: Op, number: usize) {
    let before = match settled(run) {
        Ok(settled) => settled,
        Err(why) => return run.stuck(format!("{NAME} does not settle before {operation:?}: {why}")),
    };
    compare(run, &before);
    let asked = clock();
    let ended = match operation {
        Op::Configure => configure(run, number),
        _ => roll_out(run, operation, number),
    };
    let Some((name, phase)) = ended else { return };
    let after = match settled(run) {
        Ok(settled) => settled,
        Err(why) => return run.stuck(format!("{NAME} does not settle after {operation:?} {name}: {why}")),
    };
    let (faults, ended) = (run.faults(), clock());
    let usual = if operation == Op::Abort { RolloutPhase::Aborted } else { RolloutPhase::Succeeded };
    let failures = if phase == usual { Vec::new() } else { failures(run, &before, asked, &faults) };
    let reasons: Vec<_> = failures.iter().map(|(_, text)| format!("/{text}")).collect();
    let count = format!("{phase:?}{}", reasons.concat());
    run.report.lock().unwrap().count(&format!("{operation:?}"), &count);
    let is_explained = !failures.is_empty() && failures.iter().all(|(is_explained, _)| *is_explained);
    if phase != usual && !is_explained {
        run.violation(format!("{operation:?} {name} ended as {count}: {}", describe(run, &name)));
    }
    for (pod, old) in &before {
        let Some(new) = after.get(pod).filter(|new| new.uid == old.uid) else {
            run.violation(format!("{pod} is another pod after {operation:?} {name}"));
            continue;
        };
        if new.image != old.image {
            run.violation(format!(
                "{pod} has the image {} after {operation:?} {name}, not {}",
                new.image, old.image
            ));
        }
        let started = run.watch.history.lock().unwrap().started(&old.uid, "app", asked).len();
        let node = node_index(run, pod);
        if phase == RolloutPhase::Succeeded && wrong_number(started, node, asked, ended, &faults) {
            run.violation(format!("{pod}: {started} instances were started by {operation:?} {name}"));
        }
    }
    // After a rollout that has failed, a kubelet may restart a container late, as after a rollback.
    let phase = if phase == RolloutPhase::Succeeded { Phase::Succeeded } else { Phase::RolledBack };
    let last = after.into_iter().map(|(pod, settled)| (pod, Last { settled, phase, at: ended }));
    run.last.lock().unwrap().extend(last);
}

/// The requests on the pods that have failed: reason and the fault that explains it, and whether there is one.
fn failures(
    run: &Run<'_>,
    pods: &BTreeMap<String, Settled>,
    asked: i64,
    faults: &[FaultSpan],
) -> Vec<(bool, String)> {
    let failure = |pod: &String| {
        let status = run.watch.pod(pod).as_ref().and_then(status)?;
        let has_failed = matches!(status.phase, Phase::Failed | Phase::RolledBack);
        let fault = explains(&status.reason, node_index(run, pod), (asked, clock()), DEADLINE, faults);
        let text = fault.map_or_else(String::new, |span| format!(" by {:?}", span.fault));
        has_failed.then(|| (fault.is_some(), format!("{}{text}", status.reason)))
    };
    pods.keys().filter_map(failure).collect()
}

/// The number of the pod's node.
fn node_index(run: &Run<'_>, pod: &str) -> usize {
    let name = run.watch.pod(pod).and_then(|pod| pod.spec?.node_name);
    run.nodes.iter().position(|node| Some(&node.name) == name.as_ref()).unwrap_or_default()
}

/// Starts a rollout with the command line tool. Returns its name and how it ended.
fn roll_out(run: &Run<'_>, operation: Op, number: usize) -> Option<(String, RolloutPhase)> {
    let image = format!("app={}", run.cluster.image("app:crash"));
    let target = format!("deploy/{NAME}");
    let fixed = ["-n", "default", "--max-unavailable", "1", "-o", "name"];
    let abort = ["--allow-template-drift", "--min-ready", "6s", "--on-rollout-failure", "abort"];
    let what = match operation {
        Op::Abort => [&["swap", &target, &image][..], &abort, &fixed].concat(),
        _ => [&["restart", &target, "-c", "app"][..], &fixed].concat(),
    };
    let Some(before) = run.within(LIMIT, || rollouts(run)) else {
        run.stuck(format!("cannot list the rollouts before {operation:?} {number}"));
        return None;
    };
    let mut said = String::new();
    let name = run.within(LIMIT, || {
        // A command that got no answer may have begun one: another one would restart its pods again.
        if let Some(begun) = rollouts(run)?.into_iter().find(|name| !before.contains(name)) {
            return Some(begun);
        }
        let output = run.cluster.inplace(&what).output().unwrap();
        said = String::from_utf8_lossy(&output.stderr).into_owned();
        let name = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success().then_some(name)
    });
    let Some(name) = name else {
        run.stuck(format!("cannot start {operation:?} {number}: {said}"));
        return None;
    };
    end(run, operation, number, name.rsplit('/').next().unwrap_or_default().to_owned())
}

/// Waits for the end of the rollout. Returns its name and how it ended.
fn end(run: &Run<'_>, operation: Op, number: usize, name: String) -> Option<(String, RolloutPhase)> {
    let ended = run.within(2 * LIMIT, || phase(run, &name).filter(|phase| phase.is_terminal()));
    if ended.is_none() {
        run.stuck(format!("{operation:?} {number} {name} has not ended: {:?}", phase(run, &name)));
    }
    ended.map(|phase| (name, phase))
}

/// Changes the configuration, and waits for the rollout that the controller creates. Returns its name and how it
/// ended.
fn configure(run: &Run<'_>, number: usize) -> Option<(String, RolloutPhase)> {
    let Some(before) = run.within(LIMIT, || rollouts(run)) else {
        run.stuck(format!("cannot list the rollouts before the change {number} of the configuration"));
        return None;
    };
    let api: Api<ConfigMap> = Api::namespaced(run.cluster.client.clone(), "default");
    let patch = json!({"data": {"level": number.to_string()}});
    let is_written = write(run, "change the configuration", || {
        let (api, patch) = (api.clone(), patch.clone());
        async move { api.patch(NAME, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop) }
    });
    let created = || rollouts(run)?.into_iter().find(|name| !before.contains(name));
    let Some(name) = is_written.then(|| run.within(2 * LIMIT, created)).flatten() else {
        run.stuck(format!("the change {number} of the configuration begins no rollout"));
        return None;
    };
    end(run, Op::Configure, number, name)
}

/// The names of all rollouts: only those of this Deployment are begun in a run.
fn rollouts(run: &Run<'_>) -> Option<BTreeSet<String>> {
    let api: Api<InPlaceRollout> = Api::namespaced(run.cluster.client.clone(), "default");
    let list = block_on(async { timeout(CALL, api.list(&ListParams::default())).await }).ok()?.ok()?;
    Some(list.items.into_iter().filter_map(|rollout| rollout.metadata.name).collect())
}

fn phase(run: &Run<'_>, name: &str) -> Option<RolloutPhase> {
    Some(read(run, name)?.phase)
}

/// Why the rollout ended.
fn describe(run: &Run<'_>, name: &str) -> String {
    read(run, name).map_or_else(String::new, |status| format!("{} {:?}", status.reason, status.message))
}

fn read(run: &Run<'_>, name: &str) -> Option<InPlaceRolloutStatus> {
    let api: Api<InPlaceRollout> = Api::namespaced(run.cluster.client.clone(), "default");
    block_on(async { timeout(CALL, api.get(name)).await }).ok()?.ok()?.status
}
