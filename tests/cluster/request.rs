//! Builds requests with new ids, and checks the pod after a request has ended.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use inplace::{
    api::status::{ContainerReport, Phase, Status},
    cri::proto::v1::ContainerState,
};
use k8s_openapi::api::core::v1::Pod as Object;
use serde_json::{Value, json};

use crate::{
    cluster::Cluster,
    pod::{Pod, container, is_ready},
    support::facts::Instance,
    support::wait::{eventually, eventually_within},
};

/// How long a kubelet may take until a container runs again: its longest back-off is 300 s.
const KUBELET_STARTS_WITHIN: Duration = Duration::from_secs(480);
/// How often a restart is requested whose new instance its kubelet ends because of a probe.
const PROBED_TRIES: u32 = 6;

/// One container, `app`, that stops immediately on SIGTERM.
pub(crate) const ONE: &str = "
terminationGracePeriodSeconds: 2
containers:
- {name: app, image: lab/app:v1}
";

/// A request: images of the registry by container (none for a restart), and further fields.
pub(crate) fn request(cluster: &Cluster, images: &[(&str, Option<&str>)], more: Value) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let target = |(name, image): &(&str, Option<&str>)| match image {
        Some(image) => json!({"name": name, "image": cluster.named(image)}),
        None => json!({"name": name}),
    };
    let containers: Vec<_> = images.iter().map(target).collect();
    let id = format!("asked-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let mut request = json!({"id": id, "containers": containers});
    let Value::Object(more) = more else { panic!("{more} is no object") };
    request.as_object_mut().unwrap().extend(more);
    request.to_string()
}

/// Swaps `app`, and waits for the end.
pub(crate) fn swap(pod: &Pod<'_>, image: &str, more: Value, phase: Phase) -> Status {
    pod.ask(&request(pod.cluster, &[("app", Some(image))], more), phase)
}

/// Restarts one container, and waits for the end.
pub(crate) fn restart(pod: &Pod<'_>, name: &str, more: Value, phase: Phase) -> Status {
    pod.ask(&request(pod.cluster, &[(name, None)], more), phase)
}

/// The same, whatever the end is.
pub(crate) fn answered(pod: &Pod<'_>, name: &str) -> Status {
    pod.answer(&pod.request(&request(pod.cluster, &[(name, None)], json!({}))))
}

/// Restarts a container with a liveness or startup probe. Returns the instance before, the new one, and the status.
///
/// A probe may be due before the start of the new instance (see `crash::probe`): then its kubelet ends that one, and the
/// operation replaces it. If the operation cannot know that in time, it fails, or it has ended before. The kubelet starts the
/// next instance then (docs/limits.md), and the restart is requested again.
pub(crate) fn restart_probed(
    pod: &Pod<'_>,
    name: &str,
    mut ask: impl FnMut(&Instance) -> Status,
) -> ([Instance; 2], Status) {
    for _ in 0..PROBED_TRIES {
        let (before, object) = shown(pod, name);
        let status = ask(&before);
        let (after, object_after) = shown(pod, name);
        let own = before.attempt + 1 + u32::try_from(ended_by_probe(&status)).unwrap();
        let has_exited = (status.phase, status.reason.as_str()) == (Phase::Failed, "Exited");
        let ended_later = status.phase == Phase::Succeeded && after.attempt > own;
        if !after.by_operation && (has_exited || ended_later) {
            continue;
        }
        assert_eq!(status.phase, Phase::Succeeded, "{status:#?}, {:#?}", pod.events());
        let report = &status.containers[0];
        assert_eq!(report.from.container_id, before.id, "{status:#?}");
        assert_eq!(report.to.as_ref().unwrap().container_id, after.id, "{status:#?}");
        assert_eq!(after.attempt, own, "{status:#?}, {:#?}", pod.events());
        assert_eq!(spec_image(&object_after, name), spec_image(&object, name));
        return ([before, after], status);
    }
    panic!("{pod:?}: its kubelet has ended {PROBED_TRIES} instances of {name}: {:#?}", pod.events());
}

/// The image in the pod's spec.
pub(crate) fn spec_image(object: &Object, name: &str) -> String {
    let spec = object.spec.as_ref().unwrap();
    let mut containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    containers.find(|container| container.name == name).unwrap().image.clone().unwrap()
}

/// Waits until the kubelet reports the running container as Ready, and checks that it runs alone and as the spec
/// says.
pub(crate) fn adopted(pod: &Pod<'_>, name: &str, image: &str) -> Instance {
    adopted_without_lost(pod, name, image, 0)
}

/// The same beside so many containers that the kubelet created and could not start, because it or the runtime was killed.
pub(crate) fn adopted_without_lost(pod: &Pod<'_>, name: &str, image: &str, lost: u32) -> Instance {
    let instance = pod.facts().without_lost(lost).settled().running(name).clone();
    let object = pod.wait("the kubelet shows it", |pod| is_shown(pod, &instance));
    assert_eq!(spec_image(&object, name), pod.cluster.named(image));
    instance
}

/// The same for a container after a rollback. A kubelet that receives the spec late may stop the restored instance once more,
/// and starts the next one by itself (docs/limits.md): then that one is returned.
pub(crate) fn restored(pod: &Pod<'_>, report: &ContainerReport, image: &str) -> Instance {
    let (instance, object) = shown(pod, &report.name);
    let restored = report.to.as_ref().unwrap();
    let by_kubelet = instance.attempt > restored.attempt && !instance.by_operation;
    assert!(instance.id == restored.container_id || by_kubelet, "{report:#?}: {instance:#?}");
    assert_eq!(spec_image(&object, &report.name), pod.cluster.named(image));
    instance
}

/// Waits until one instance of the container runs, and the kubelet reports it and the pod as Ready. No operation is in progress.
fn shown(pod: &Pod<'_>, name: &str) -> (Instance, Object) {
    eventually_within(KUBELET_STARTS_WITHIN, &format!("the kubelet shows {name} of {pod:?}"), || {
        let (facts, object) = (pod.facts(), pod.get());
        // Only an operation would leave these.
        let is_left = |other: &Instance| {
            let is_created = other.by_operation && other.state == ContainerState::ContainerCreated;
            is_created || other.name.starts_with("inplace-standby")
        };
        assert!(facts.fences.is_empty() && !facts.instances.iter().any(is_left), "{facts:#?}");
        let running: Vec<_> = facts.of(name).filter(|instance| instance.pid != 0).collect();
        match running[..] {
            [instance] if is_shown(&object, instance) => Ok((instance.clone(), object)),
            _ => Err(format!("{facts:#?}")),
        }
    })
}

/// True when the kubelet reports the pod, and this instance in it, as Ready.
fn is_shown(pod: &Object, instance: &Instance) -> bool {
    let id = format!("containerd://{}", instance.id);
    let shown = container(pod, &instance.name).is_some_and(|shown| {
        shown.ready
            && shown.container_id.as_ref() == Some(&id)
            && shown.restart_count.unsigned_abs() == instance.attempt
    });
    shown && is_ready(pod)
}

/// How many instances the kubelet ended because a probe was due before their start, as the message says.
pub(crate) fn ended_by_probe(status: &Status) -> usize {
    status.message.matches("a probe of it was due before its start").count()
}

/// Waits for an event about the pod with this reason, because events are written after the status. Returns its
/// message.
pub(crate) fn event(pod: &Pod<'_>, reason: &str) -> String {
    eventually(&format!("an event {reason}"), || {
        let events = pod.events().into_iter().rev();
        events.into_iter().find(|event| event.reason.as_deref() == Some(reason))?.message
    })
}
