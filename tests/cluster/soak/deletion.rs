//! Deletes pods: plainly, by an eviction, and under the delete guard, whose hook refuses at first. Each is created again
//! under its name when it is gone.

use std::{fs, time::Duration};

use inplace::{
    api::annotation::{DELETE_GUARD, PRE_DELETE_HOOK},
    controller::admission::CONFIGURATION,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{Error, api::DeleteParams};
use serde_json::json;
use tokio::time::timeout;

use super::{
    checker::unapproved,
    history::{DeleteCall, GuardedDeletion, SECOND},
    operate::{CALL, api, create, merge, write},
    plan::Operation as Op,
    run::{LIMIT, Run, name_of},
    watch::clock,
};
use crate::{cluster::block_on, guard::fixture::install_webhooks, pod::GOING, support::hook_server::Query};

/// The template of the hook that guards pods.
const TEMPLATE: &str = "soak-guard";
/// The time between two deletions of a pod that is guarded.
const PAUSE: Duration = Duration::from_millis(200);

/// Installs the delete guard, with a hook that is polled until it approves.
pub(super) fn install(run: &Run<'_>) {
    let kind = "validatingwebhookconfiguration";
    install_webhooks(run.cluster, "base", kind, CONFIGURATION);
    let url = format!("http://{}:{}/{{{{ args.PodName }}}}", run.nodes[0].ip, run.hooks.port);
    let metric = json!({"name": "webtest", "interval": "200ms", "successfulLimit": 1,
        "successCondition": "asInt(result) == 1", "provider": {"web": {"url": url, "jsonPath": "{$.done}"}}});
    let template = json!({"apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookTemplate",
        "metadata": {"name": TEMPLATE, "namespace": "default"}, "spec": {"metrics": [metric]}});
    // Until the controller has written the certificate, the webhooks cannot be called.
    let applied = run.within(LIMIT, || run.cluster.try_apply(&[], &template.to_string()).ok());
    assert!(applied.is_some(), "the webhooks do not answer");
}

/// Deletes the pod, and creates it again when it is gone.
pub(super) fn operate(run: &Run<'_>, pod: usize, operation: Op, number: usize) {
    let name = name_of(pod);
    let is_deleted = match operation {
        Op::Evict => evict(run, &name, number),
        Op::Guard => delete_guarded(run, &name),
        _ => delete(run, &name),
    };
    if !is_deleted {
        return;
    }
    // A kubelet that was restarted removes the pod when it collects.
    if run.within(GOING + LIMIT, || run.watch.pod(&name).is_none().then_some(())).is_none() {
        run.stuck(format!("{name} is not gone after {operation:?}"));
        return;
    }
    create(run, pod);
    match run.settled(pod) {
        Ok(_) => run.report.lock().unwrap().count(&format!("{operation:?}"), "Created"),
        Err(why) => run.stuck(format!("{name} does not settle after {operation:?}: {why}")),
    }
}

fn delete(run: &Run<'_>, name: &str) -> bool {
    let api = api(run);
    write(run, "delete a pod", || {
        let api = api.clone();
        async move { api.delete(name, &DeleteParams::default()).await.map(drop) }
    })
}

/// Deletes the pod again and again: until the hook approves, that must not succeed.
fn delete_guarded(run: &Run<'_>, name: &str) -> bool {
    run.hooks.say(name, 0);
    let asked = run.hooks.queries(name).len();
    let guard =
        json!({"metadata": {"labels": {DELETE_GUARD: "true"}, "annotations": {PRE_DELETE_HOOK: TEMPLATE}}});
    merge(run, name, &guard);
    let mut calls = Vec::new();
    let mut attempt = || {
        let call = try_delete(run, name);
        calls.push(call);
        if !call.is_deleted {
            std::thread::sleep(PAUSE);
        }
        call.is_deleted
    };
    // That the first calls delete the pod is a violation, and is found below.
    let Some(is_early) = run.within(LIMIT, || {
        let is_deleted = attempt();
        (is_deleted || run.hooks.queries(name).len() > asked).then_some(is_deleted)
    }) else {
        run.stuck(format!("the hook of {name} was never asked"));
        return false;
    };
    if !is_early {
        run.hooks.say(name, 1);
        if run.within(LIMIT, || attempt().then_some(())).is_none() {
            run.stuck(format!("{name} cannot be deleted, although its hook approves"));
            return false;
        }
    }
    let answer = |query: &Query| (i64::try_from(query.at.as_nanosecond()).unwrap(), query.said == 1);
    let answers = run.hooks.queries(name).iter().skip(asked).map(answer).collect();
    let deletion = GuardedDeletion { pod: name.to_owned(), calls, answers };
    if let Some(what) = unapproved(&deletion) {
        run.violation(what);
    }
    true
}

/// Makes one call. Without an answer, the pod as it was shown last says whether it was carried out.
fn try_delete(run: &Run<'_>, name: &str) -> DeleteCall {
    let api = api(run);
    let answer = block_on(async { timeout(CALL, api.delete(name, &DeleteParams::default())).await });
    let (is_deleted, pod) = match answer {
        Ok(Ok(deleted)) => (true, deleted.left()),
        Ok(Err(Error::Api(status))) if status.code == 404 => (true, run.watch.pod(name)),
        _ => (false, run.watch.pod(name)),
    };
    let marked = pod.as_ref().and_then(marked);
    DeleteCall { looked: clock(), is_deleted: is_deleted || marked.is_some(), marked }
}

/// The second in which the API server marked the pod as deleted: its deletion timestamp is later by the grace period.
fn marked(pod: &Pod) -> Option<i64> {
    let ends = i64::try_from(pod.metadata.deletion_timestamp.as_ref()?.0.as_nanosecond()).unwrap();
    Some(ends - pod.metadata.deletion_grace_period_seconds.unwrap_or_default() * SECOND)
}

/// Uses kubectl, because the versions of the eviction differ between releases of Kubernetes.
fn evict(run: &Run<'_>, name: &str, number: usize) -> bool {
    let file = run.cluster.lab().dir.join(format!("{name}-{number}.eviction.json"));
    fs::write(&file, json!({"metadata": {"name": name, "namespace": "default"}}).to_string()).unwrap();
    let url = format!("/api/v1/namespaces/default/pods/{name}/eviction");
    let args = ["create", "--request-timeout=10s", "--raw", &url, "-f", file.to_str().unwrap()];
    let is_leaving = || run.watch.pod(name).is_none_or(|pod| pod.metadata.deletion_timestamp.is_some());
    let evicted = run.within(LIMIT, || {
        let output = run.cluster.kubectl_command(&args).output().unwrap();
        (output.status.success() || is_leaving()).then_some(())
    });
    if evicted.is_none() {
        run.stuck(format!("cannot evict {name}"));
    }
    let _ = fs::remove_file(file);
    evicted.is_some()
}
