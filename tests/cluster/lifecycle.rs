//! Changes to a pod, or to its request, in every step of an operation: the request is withdrawn, replaced or
//! written again, the pod is deleted or evicted, its node is drained.
//! An operation that has touched nothing ends without a trace; one that has touched something is completed, or
//! ends with its pod.

use std::{fs, thread, time::Duration};

use inplace::{
    api::{
        annotation::{OPERATION, REQUEST},
        status::{Engine, Phase, Status},
    },
    cri::proto::v1::{Container, ContainerState},
};
use k8s_openapi::api::core::v1::{Event, Pod as Object};
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::{
    agent::{Agent, state, status},
    cluster::{Cluster, block_on},
    ongoing::{
        ENGINES, FIRST, MOMENTS, Moment, OngoingOperation, containers, has_sandbox, is_fence, is_running,
        remove_sandboxes, running_fence, slow_to_stop, watch_it_go,
    },
    pod::{GOING, Pod, is_ready},
    support::wait::{eventually, eventually_or, eventually_within},
};

/// Time limit from a pod's deletion to its end on a busy machine: its kubelet may be about to replace the container whose
/// handler runs, and then stops that one too.
const GOES: Duration = Duration::from_secs(90);

const SECOND: &str = "second";

/// Runs the same test for every moment of both engines, in parallel. The test begins the operation.
fn in_every_moment(cluster: &Cluster, does: impl Fn(&OngoingOperation<'_>) + Sync) {
    thread::scope(|scope| {
        for (engine, moment) in ENGINES.iter().flat_map(|engine| MOMENTS.map(|moment| (*engine, moment))) {
            let does = &does;
            scope.spawn(move || does(&OngoingOperation::prepare(cluster, engine, moment)));
        }
    });
}

/// The statuses that the pod has had for this id.
fn reported(pod: &Pod<'_>, id: &str) -> Vec<Status> {
    pod.seen().versions().filter_map(status).filter(|status| status.id == id).collect()
}

/// The event for the end of a request.
fn event(phase: Phase) -> String {
    format!("InPlace{phase}")
}

fn has_event(pod: &Pod<'_>, phase: Phase) -> bool {
    pod.events().iter().any(|reported| reported.reason.as_deref() == Some(&event(phase)))
}

/// Waits for the event at the end of the first request.
fn await_event(ongoing: &OngoingOperation<'_>, phase: Phase) {
    eventually_or(&format!("the event {phase} of {ongoing:?}"), || {
        let pod = &ongoing.pod;
        let reasons = || pod.events().into_iter().map(|event| event.reason.unwrap()).collect::<Vec<_>>();
        if has_event(pod, phase) {
            Ok(())
        } else {
            Err(format!("{:?} {:#?}", reasons(), reported(pod, FIRST)))
        }
    });
}

/// Waits for the event at the end of the first request, which is rolled back; returns how it ended, and the message. The pod may
/// never have the status of that end: the next request takes its place if it begins before that status is written.
fn end_of_rollback(ongoing: &OngoingOperation<'_>) -> (Phase, String) {
    eventually(&format!("the event at the end of {ongoing:?}"), || {
        let events = ongoing.pod.events();
        [Phase::RolledBack, Phase::Failed].into_iter().find_map(|phase| {
            let is_its = |reported: &&Event| reported.reason.as_deref() == Some(&event(phase));
            Some((phase, events.iter().find(is_its)?.message.clone()?))
        })
    })
}

#[test]
fn a_request_that_is_withdrawn_is_cancelled_until_it_touches_something() {
    Agent::shared();
    in_every_moment(Cluster::shared(), |ongoing| {
        ongoing.begin();
        ongoing.pod.annotate(REQUEST, None);
        let status = ongoing.pod.answer(FIRST);
        ongoing.check_engine(&status);
        if ongoing.is_lost_to_kubelet(status.phase, &status.message) {
            return;
        }
        let facts = ongoing.settled(ongoing.version());
        if ongoing.untouched() {
            assert_eq!((status.phase, &*status.reason), (Phase::Cancelled, "RequestDeleted"), "{ongoing:?}");
            assert_eq!(facts, ongoing.before, "{ongoing:?}");
            await_event(ongoing, Phase::Cancelled);
        } else {
            assert_eq!(status.phase, ongoing.end(), "{ongoing:?}: {status:#?}");
        }
    });
}

#[test]
fn a_request_that_is_replaced_gives_way_until_it_touches_something_and_the_new_one_is_done() {
    Agent::shared();
    in_every_moment(Cluster::shared(), |ongoing| {
        ongoing.begin();
        let second = json!({"id": SECOND, "containers": [{"name": "app"}]}).to_string();
        if ongoing.moment == Moment::Rollback {
            ongoing.pod.request(&second);
            let (phase, message) = end_of_rollback(ongoing);
            if ongoing.is_lost_to_kubelet(phase, &message) {
                return;
            }
        }
        let status = ongoing.pod.ask(&second, Phase::Succeeded);
        // A kubelet that is faster than the agent starts the image that the tag refers to by now.
        let pulled = (ongoing.engine, ongoing.moment) == (Engine::Recreate, Moment::Drain);
        let anew = if pulled { &["v1", "v2"][..] } else { &[ongoing.version()][..] };
        let facts = ongoing.settled_as(anew);
        let container = &status.containers[0];
        let newest = ongoing.before.running("app").attempt;
        if ongoing.untouched() {
            assert_eq!(container.from.container_id, ongoing.before.running("app").id, "{ongoing:?}");
            assert_eq!(facts.running("app").attempt, newest + 1, "{ongoing:?}");
            assert!(!reported(&ongoing.pod, FIRST).iter().any(|status| status.phase == Phase::Succeeded));
            await_event(ongoing, Phase::Cancelled);
        } else {
            // The event was written when the first operation was done.
            await_event(ongoing, ongoing.end());
            let instances = if ongoing.moment == Moment::Rollback { 2 } else { 1 };
            assert_eq!(container.from.attempt, newest + instances, "{ongoing:?}: {status:#?}");
            assert_eq!(facts.running("app").attempt, newest + instances + 1, "{ongoing:?}");
        }
    });
}

#[test]
fn a_request_written_anew_under_its_id_is_the_same_one() {
    Agent::shared();
    thread::scope(|scope| {
        for (engine, moment) in [(Engine::Recreate, Moment::Verify), (Engine::Respec, Moment::Swap)] {
            scope.spawn(move || {
                let ongoing = OngoingOperation::set(Cluster::shared(), engine, moment);
                let anew =
                    json!({"id": FIRST, "containers": [{"name": "app"}], "reason": "a change of mind"});
                let status = ongoing.pod.ask(&anew.to_string(), Phase::Succeeded);
                ongoing.check_engine(&status);
                let facts = ongoing.settled("v2");
                // No operation follows: the next request is the next operation.
                let next = ongoing.pod.ask("restart app #next", Phase::Succeeded);
                assert_eq!(next.containers[0].from.container_id, facts.running("app").id);
            });
        }
    });
}

/// Deletes a pod as `kubectl delete` does, without a process whose start takes long on a busy machine.
fn delete(pod: &Pod<'_>) {
    block_on(pod.api.delete(&pod.name, &DeleteParams::default())).unwrap();
}

/// The version of evictions that the API server knows.
fn eviction_version(cluster: &Cluster) -> &'static str {
    // Debian's build has an empty `minor`.
    let release = block_on(cluster.client.apiserver_version()).unwrap().git_version;
    let minor: u32 = release.split('.').nth(1).unwrap().parse().unwrap();
    if minor < 22 { "policy/v1beta1" } else { "policy/v1" }
}

/// Evicts a pod as `kubectl drain` does.
fn evict(pod: &Pod<'_>, version: &str) {
    let eviction = json!({
        "apiVersion": version, "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
    });
    let path = format!("/api/v1/namespaces/{}/pods/{}/eviction", pod.namespace, pod.name);
    let request = http::Request::post(path).header("content-type", "application/json");
    let request = request.body(eviction.to_string().into_bytes()).unwrap();
    let answer: Value = block_on(pod.cluster.client.request(request)).unwrap();
    assert_eq!(answer["status"], "Success", "{answer}");
}

#[test]
fn a_pod_that_is_deleted_goes_in_every_moment() {
    Agent::shared();
    in_every_moment(Cluster::shared(), |ongoing| {
        ongoing.hold();
        ongoing.begin();
        delete(&ongoing.pod);
        watch_it_go(ongoing, GOES);
    });
}

/// A kubelet that finds a fence among the containers to stop fails, and retries after ten seconds or more (1.36).
#[test]
fn of_a_pod_that_is_deleted_the_fence_goes_before_its_container_has_ended() {
    let cluster = Cluster::shared();
    Agent::shared();
    let (pod, _) = stopping(cluster, "fence-goes", 45);
    delete(&pod);
    eventually("the fence to go", || running_fence(&pod).is_none().then_some(()));
    let facts = pod.facts();
    assert_eq!(facts.running("app").attempt, 0);
    assert!(!facts.lines("stops").contains(&"ends"), "{:?}", facts.lines("stops"));
    fs::write(format!("/proc/{}/root/dev/shm/end", facts.running("app").pid), "").unwrap();
    pod.await_gone();
}

/// A pod whose old container takes `seconds` to stop, or until there is a file `end`, and a request on the pod that waits for
/// that. The fence runs.
fn stopping<'a>(cluster: &'a Cluster, name: &str, seconds: u32) -> (Pod<'a>, String) {
    let mut spec = slow_to_stop(&cluster.image("app:v1"));
    spec["terminationGracePeriodSeconds"] = json!(2 * seconds);
    let sleep = format!("for i in $(seq {seconds}); do [ -e /dev/shm/end ] || sleep 1; done");
    let handler = format!("echo begins >>/dev/shm/stops; {sleep}; echo ends >>/dev/shm/stops");
    spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"] = json!(["sh", "-c", handler]);
    // A kubelet that starts while its node lacks memory does not admit a pod without a memory request.
    spec["containers"][0]["resources"] = json!({"requests": {"memory": "1Mi"}});
    let pod = Pod::make(cluster, name, json!({"spec": spec}));
    pod.wait("it is Ready", is_ready);
    let id = pod.request("restart app");
    eventually("the handler beside the fence", || {
        (running_fence(&pod).is_some() && !pod.facts().lines("stops").is_empty()).then_some(())
    });
    (pod, id)
}

/// Waits until the kubelet has ended the pod, and asserts that the operation neither created nor started anything in it
/// meanwhile. The runtime is asked all the time, because a kubelet removes the exited containers of a pod that it evicts.
fn ends_for_good(pod: &Pod<'_>, id: &str, why: &str) {
    // The fence runs, and the replacement may have been created ahead.
    let before: Vec<_> = containers(pod).into_iter().map(|container| container.id).collect();
    let untouched = |container: &Container| {
        let replacement = container.labels.contains_key(OPERATION) && !is_fence(container);
        let created = container.state() == ContainerState::ContainerCreated;
        before.contains(&container.id) && (!replacement || created)
    };
    let object = eventually_within(GOING, "the end of the pod", || {
        let containers = containers(pod);
        assert!(containers.iter().all(untouched), "{containers:#?}");
        let object = pod.get();
        let ended = phase(&object) == "Failed" && !containers.iter().any(is_running);
        if ended { Ok(object) } else { Err(format!("{containers:#?}")) }
    });
    assert_eq!(object.status.unwrap().reason.as_deref(), Some(why));
    let status = pod.answer(id);
    assert_eq!((status.phase, &*status.reason), (Phase::Failed, "SandboxGone"), "{status:#?}");
    eventually("nothing of the operation to be left", || {
        let ours = |container: &Container| container.labels.contains_key(OPERATION) || is_fence(container);
        (!containers(pod).iter().any(ours)).then_some(())
    });
}

fn phase(object: &Object) -> &str {
    object.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

#[test]
fn in_a_pod_that_is_past_its_deadline_nothing_is_started() {
    Agent::shared();
    let (pod, id) = stopping(Cluster::shared(), "past-deadline", 40);
    pod.merge(&json!({"spec": {"activeDeadlineSeconds": 1}}));
    ends_for_good(&pod, &id, "DeadlineExceeded");
}

/// A kubelet before 1.22 reports an eviction before it ends the containers. Later ones report it afterwards
/// (docs/security.md).
#[test]
fn in_a_pod_that_is_evicted_for_the_node_nothing_is_started() {
    let cluster = Cluster::own();
    let _agent = Agent::start(&cluster, &[]);
    // Longer than a kubelet takes to start and to evict. The eviction ends the handler.
    let (pod, id) = stopping(&cluster, "evicted", 150);
    cluster.kill("kubelet");
    let config = cluster.node().dir.join("kubelet.yaml");
    let text = fs::read_to_string(&config).unwrap();
    // No node has that much memory to spare.
    let short = text.replace("memory.available: \"0%\"", "memory.available: \"99.9%\"");
    assert_ne!(short, text);
    fs::write(&config, short).unwrap();
    cluster.start("kubelet");
    ends_for_good(&pod, &id, "Evicted");
}

/// Creates a `StatefulSet` with one pod.
fn first_of(name: &str, cluster: &Cluster) {
    let set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name},
        "spec": {
            "serviceName": name, "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": slow_to_stop(&cluster.image("app:v1")),
            },
        },
    });
    // kubectl parses text that begins with a brace as JSON.
    cluster.apply(&set.to_string());
}

#[test]
fn a_node_is_drained_in_the_middle_and_a_pod_that_is_made_again_is_a_new_one() {
    let cluster = Cluster::leased();
    let agent = Agent::start(&cluster, &[]);
    let node = cluster.node();
    first_of("set", &cluster);
    let old = Pod::existing(&cluster, "default", "set-0");
    old.wait("it is Ready", is_ready);
    let restart = |grace: u32| {
        json!({"id": FIRST, "containers": [{"name": "app"}], "gracePeriodSeconds": grace}).to_string()
    };
    old.request(&restart(300));
    old.reported("it drains", |status| status.phase == Phase::Running);
    let ongoing_operations: Vec<_> = thread::scope(|scope| {
        let setting = MOMENTS.map(|moment| {
            let engine = if moment == Moment::Rollback { Engine::Respec } else { Engine::Recreate };
            let cluster = &cluster;
            scope.spawn(move || OngoingOperation::prepare(cluster, engine, moment))
        });
        setting.map(|ongoing| ongoing.join().unwrap()).into()
    });
    cluster.kubectl(&["cordon", &node.name]);
    let version = eviction_version(&cluster);
    evict(&old, version);
    thread::scope(|scope| {
        for ongoing in &ongoing_operations {
            scope.spawn(|| {
                ongoing.hold();
                ongoing.begin();
                evict(&ongoing.pod, version);
                watch_it_go(ongoing, GOES);
            });
        }
    });
    old.await_gone();
    cluster.kubectl(&["uncordon", &node.name]);
    let new = Pod::existing(&cluster, "default", "set-0");
    assert_ne!(new.uid, old.uid);
    new.wait("it is Ready", is_ready);
    // An id is finished for a pod, not for a name.
    let status = new.ask(&restart(1), Phase::Succeeded);
    assert_eq!(status.containers[0].to.as_ref().unwrap().attempt, 1);
    assert_eq!(new.facts().settled().running("app").version, "v1");
    // A kubelet removes the sandboxes of deleted pods after a while; then the journal forgets the pods.
    agent.stop();
    let journal = state(&node).join("journal");
    let gone: Vec<_> = ongoing_operations.iter().map(|ongoing| &ongoing.pod).chain([&old]).collect();
    let known = |pod: &Pod<'_>| journal.join(format!("{}.json", pod.uid)).exists();
    // A pod without a sandbox may already be forgotten.
    assert!(gone.iter().all(|pod| known(pod) || !has_sandbox(pod)));
    for pod in &gone {
        remove_sandboxes(pod);
    }
    let _agent = Agent::start(&cluster, &[]);
    eventually("the journal to forget them", || (!gone.iter().any(|pod| known(pod))).then_some(()));
    assert!(known(&new));
    cluster.kubectl(&["delete", "statefulset", "set"]);
}
