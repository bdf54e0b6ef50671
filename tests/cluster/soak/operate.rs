//! Carries out one operation on a pod as a user would, waits for its end, and hands what was observed to the checker.
//! Every write is tried again while the API server does not answer; none is made twice with another meaning.

use std::{future::Future, time::Duration};

use inplace::api::{annotation::REQUEST, status::Status};
use k8s_openapi::api::core::v1::Pod as Object;
use kube::{
    Api, Error,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    checker::{end_of, wrong_end},
    deletion,
    history::{Ended, Last, SECOND, Settled},
    plan::{Operation as Op, PodKind, kind_of, node_of},
    run::{LIMIT, Run, name_of},
    watch::clock,
};
use crate::{agent::status, cluster::block_on};

/// The deadline of a request, in seconds.
const DEADLINE: u64 = 120;
/// The deadline of one whose image is missing. Without a fault the third pull ends it.
const SHORT_DEADLINE: u64 = 60;
/// A call that takes longer is made again.
pub(super) const CALL: Duration = Duration::from_secs(10);

const PLAIN: &str = "
terminationGracePeriodSeconds: 2
containers:
- {name: app, image: lab/app:v1}
- {name: side, image: lab/app:v1}
";

const GATED: &str = "
terminationGracePeriodSeconds: 2
readinessGates: [{conditionType: InPlaceUpdateReady}]
containers:
- name: app
  image: lab/app:v1
  readinessProbe: {exec: {command: ['true']}, periodSeconds: 2, timeoutSeconds: 20}
  lifecycle: {preStop: {exec: {command: [sleep, '0.2']}}}
";

/// Creates the pod.
pub(super) fn create(run: &Run<'_>, pod: usize) {
    let spec = match kind_of(pod) {
        PodKind::Plain => PLAIN,
        PodKind::Gated => GATED,
        PodKind::Served => crate::start_first::SHARED,
    };
    let mut spec: Value = serde_saphyr::from_str(&run.cluster.named(spec)).unwrap();
    spec["nodeName"] = run.nodes[node_of(pod)].name.clone().into();
    let object = json!({"metadata": {"name": name_of(pod)}, "spec": spec});
    let object: Object = serde_json::from_value(object).unwrap();
    let api = api(run);
    write(run, "create a pod", || {
        let (api, object) = (api.clone(), object.clone());
        async move { api.create(&PostParams::default(), &object).await.map(drop) }
    });
}

/// Carries out the operation. `number` is that of the move, and makes the request's id.
pub(super) fn operate(run: &Run<'_>, pod: usize, operation: Op, number: usize) {
    let before = match run.settled(pod) {
        Ok(settled) => settled,
        Err(why) => {
            run.stuck(format!("{} does not settle before {operation:?}: {why}", name_of(pod)));
            return;
        }
    };
    run.compare(&name_of(pod), node_of(pod), &before);
    match operation {
        Op::Delete | Op::Evict | Op::Guard => deletion::operate(run, pod, operation, number),
        _ => request(run, pod, operation, number, &before),
    }
}

pub(super) fn api(run: &Run<'_>) -> Api<Object> {
    Api::namespaced(run.cluster.client.clone(), "default")
}

/// Makes a call until the API server answers. An answer that a call that was cut off has been carried out counts.
pub(super) fn write<F: Future<Output = Result<(), Error>>>(
    run: &Run<'_>,
    what: &str,
    call: impl Fn() -> F,
) -> bool {
    let mut last = String::new();
    let done = run.within(LIMIT, || match block_on(async { timeout(CALL, call()).await }) {
        Ok(Ok(())) => Some(()),
        Ok(Err(Error::Api(status))) if status.code == 404 || status.code == 409 => Some(()),
        Ok(Err(error)) => {
            last = error.to_string();
            None
        }
        Err(_) => None,
    });
    if done.is_none() {
        run.stuck(format!("cannot {what}: {last}"));
    }
    done.is_some()
}

/// Writes the request, waits for its end, and checks it.
fn request(run: &Run<'_>, pod: usize, operation: Op, number: usize, before: &Settled) {
    let name = name_of(pod);
    let id = format!("soak-{number}");
    let first = format!("{id}-first");
    let wanted = wanted(run, operation, before);
    if operation == Op::HookPasses || operation == Op::HookFails {
        run.hooks.say(&name, u32::from(operation == Op::HookPasses));
    }
    let asked = clock();
    if operation == Op::Replaced {
        annotate(run, &name, &body(operation, &first, None));
    }
    annotate(run, &name, &body(operation, &id, wanted.as_deref()));
    let ended = |status: &Status| status.id == id && status.phase.is_terminal();
    let Some(answer) = run.within(LIMIT + Duration::from_secs(DEADLINE), || {
        run.watch.pod(&name).as_ref().and_then(status).filter(ended)
    }) else {
        let last = run.watch.pod(&name).as_ref().and_then(status);
        run.stuck(format!("{operation:?} {id} on {name} has not ended: {last:?}"));
        return;
    };
    let seen = clock();
    let after = match run.settled(pod) {
        Ok(after) => after,
        Err(why) => {
            run.stuck(format!("{name} does not settle after {operation:?} {id}, {answer:?}: {why}"));
            return;
        }
    };
    if after.uid != before.uid {
        run.violation(format!("{name} is another pod after {operation:?} {id}"));
        return;
    }
    let last = Last { settled: after.clone(), phase: answer.phase, at: clock() };
    run.last.lock().unwrap().insert(name.clone(), last);
    let started = run.watch.history.lock().unwrap().started(&before.uid, "app", asked).len();
    let wanted = wanted.unwrap_or_else(|| before.image.clone());
    let ended = Ended {
        operation,
        pod: name,
        node: node_of(pod),
        id,
        phase: answer.phase,
        reason: answer.reason,
        message: answer.message,
        deadline: i64::try_from(deadline(operation)).unwrap() * SECOND,
        asked,
        ended: seen,
        settled: clock(),
        started,
        first: run.watch.end(&before.uid, &first),
        images: [before.image.clone(), wanted, after.image],
    };
    let faults = run.faults();
    run.report.lock().unwrap().count(&format!("{operation:?}"), &end_of(&ended, &faults));
    if let Some(what) = wrong_end(&ended, &faults) {
        run.violation(what);
    }
}

/// The image that a swap names.
fn wanted(run: &Run<'_>, operation: Op, before: &Settled) -> Option<String> {
    let name = match operation {
        Op::Swap | Op::StartFirstSwap if before.image.ends_with(":v1") => "app:v2",
        Op::Swap | Op::StartFirstSwap => "app:v1",
        Op::SwapToCrash | Op::StartFirstCrash => "app:crash",
        Op::SwapToMissing => "app:none",
        _ => return None,
    };
    Some(run.cluster.image(name))
}

/// The deadline of the request, in seconds.
fn deadline(operation: Op) -> u64 {
    if operation == Op::SwapToMissing { SHORT_DEADLINE } else { DEADLINE }
}

/// The text of the request.
fn body(operation: Op, id: &str, image: Option<&str>) -> String {
    let container = if operation == Op::Unknown { "nobody" } else { "app" };
    let mut target = json!({"name": container});
    if let Some(image) = image {
        target["image"] = image.into();
    }
    let mut body = json!({"id": id, "containers": [target], "deadlineSeconds": deadline(operation)});
    match operation {
        Op::SwapToCrash => body["minReadySeconds"] = 6.into(),
        Op::Stop => body["engine"] = "Stop".into(),
        Op::Drain => body["gracePeriodSeconds"] = 1.into(),
        Op::HookPasses | Op::HookFails => body["preHook"] = json!({"templateName": TEMPLATE}),
        Op::StartFirstRestart | Op::StartFirstSwap | Op::StartFirstCrash => {
            body["order"] = "StartFirst".into();
        }
        _ => {}
    }
    body.to_string()
}

fn annotate(run: &Run<'_>, name: &str, text: &str) {
    merge(run, name, &json!({"metadata": {"annotations": {REQUEST: text}}}));
}

/// Applies a merge patch to the pod.
pub(super) fn merge(run: &Run<'_>, name: &str, patch: &Value) {
    let api = api(run);
    write(run, "patch a pod", || {
        let (api, patch) = (api.clone(), patch.clone());
        async move { api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop) }
    });
}

/// The template of the hooks of this run.
const TEMPLATE: &str = "soak";

/// Applies the template of the hooks: one measurement of what the hook server has for the pod.
pub(super) fn apply_template(run: &Run<'_>) {
    let url = format!("http://{{{{ args.HostIP }}}}:{}/{{{{ args.PodName }}}}", run.hooks.port);
    let metric = json!({"name": "webtest", "count": 1, "successCondition": "asInt(result) == 1",
        "provider": {"web": {"url": url, "jsonPath": "{$.done}"}}});
    let template = json!({"apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookTemplate",
        "metadata": {"name": TEMPLATE, "namespace": "default"}, "spec": {"metrics": [metric]}});
    run.cluster.apply(&template.to_string());
}
