//! Draining: traffic leaves a pod before its container is stopped and returns when it serves again, and no
//! request to the Service fails meanwhile. Also the gate itself: who opens it, when, and which closed gates the
//! agent leaves alone.

#![expect(clippy::print_stderr, reason = "the figures are wanted, not only that they are good enough")]

use inplace::{
    api::{annotation::GATE, status::Phase},
    cri::proto::v1::Container,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod as Object, PodCondition};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::{
    agent::{Agent, USER, status},
    cluster::{Cluster, block_on},
    ongoing::{await_stops, containers, end_process, is_running, slow_to_stop},
    pod::{PAIR, Pod, is, is_ready},
    support::wait::eventually,
    traffic::{SERVING, Traffic, now, service},
};

/// [`PAIR`] with the readiness gate.
fn gated() -> String {
    format!("readinessGates: [{{conditionType: {GATE}}}]\n{}", PAIR.trim_start())
}

/// The gate's condition in a version of a pod.
fn gate(pod: &Object) -> Option<&PodCondition> {
    pod.status.as_ref()?.conditions.iter().flatten().find(|condition| condition.type_ == GATE)
}

fn gate_is(pod: &Object, status: &str, reason: &str) -> bool {
    gate(pod).is_some_and(|gate| gate.status == status && gate.reason.as_deref() == Some(reason))
}

/// The sequence of the gate's states, as status and reason of the condition.
fn cycles(pod: &Pod<'_>) -> Vec<String> {
    let reported =
        |gate: &PodCondition| format!("{} {}", gate.status, gate.reason.as_deref().unwrap_or_default());
    let mut cycles: Vec<_> = pod.seen().versions().filter_map(|pod| gate(pod).map(reported)).collect();
    cycles.dedup();
    cycles
}

/// The agent's writes about the pod, including its events.
fn writes(pod: &Pod<'_>) -> Vec<Value> {
    let mut writes = pod.cluster.writes();
    writes.retain(|write| {
        let object = &write["objectRef"];
        let about = object["name"]
            .as_str()
            .is_some_and(|name| name == pod.name || name.starts_with(&format!("{}.", pod.name)));
        write["user"]["username"] == USER && about
    });
    writes
}

fn restart(id: &str, grace: u32) -> String {
    json!({"id": id, "containers": [{"name": "app"}], "gracePeriodSeconds": grace}).to_string()
}

/// A grace period in seconds within which, on a busy machine too, the endpoints and their client follow the gate and the
/// requests in progress end.
const DRAIN: u32 = 10;
/// How long an agent waits for a kubelet to take a pod out of traffic: `NOTICE` in `src/operation/drain.rs`.
const NOTICE: SignedDuration = SignedDuration::from_secs(5);
/// How often a pod is restarted until its kubelet takes it out of traffic in time.
const TRIES: usize = 8;

/// Two pods behind a Service that receives requests all the time.
struct Served {
    pods: [Pod<'static>; 2],
    traffic: Traffic,
    service: String,
}

impl Served {
    fn new(name: &str, gates: &str) -> Self {
        let cluster = Cluster::shared();
        let service_name = format!("{name}-{}", std::process::id());
        service(cluster, &service_name);
        let spec = format!(
            "terminationGracePeriodSeconds: 2\nreadinessGates: {gates}\ncontainers:\n- name: app{}",
            SERVING.trim_end()
        );
        let spec: Value = serde_saphyr::from_str(&cluster.named(&spec)).unwrap();
        let manifest = json!({"metadata": {"labels": {"app": service_name}}, "spec": spec});
        let pods = [(); 2].map(|()| Pod::make(cluster, name, manifest.clone()));
        for pod in &pods {
            pod.wait("it is Ready", is_ready);
        }
        let traffic = Traffic::to(cluster, &service_name, 2);
        Self { pods, traffic, service: service_name }
    }

    /// Restarts a pod for the given time, with a fixed drain. Returns when its address left the endpoints, when its container
    /// stopped, and when the address was back. `None`, with new traffic, if the address left so late after the gate was closed
    /// that requests to it may fail: a fixed drain does not wait for a kubelet that is late.
    fn restarted(&mut self, index: usize, number: usize) -> Option<[Timestamp; 3]> {
        assert_eq!(self.traffic.failed(), Vec::<String>::new(), "of {}", self.traffic.served());
        let pod = &self.pods[index];
        let since = now();
        let status = pod.ask(&restart(&format!("restart-{number}"), DRAIN), Phase::Succeeded);
        let ip = pod.get().status.unwrap().pod_ip.unwrap();
        let (left, back) = self.traffic.absence(&ip, since);
        let container = &status.containers[0];
        let (stopped, started) = (container.stopped_at.unwrap(), container.started_at.unwrap());
        let seen = pod.seen();
        let closed = closed_at(seen.versions().rfind(|pod| gate_is(pod, "False", "InPlaceDrain")).unwrap());
        let grace = SignedDuration::from_secs(i64::from(DRAIN));
        assert!(closed + grace <= stopped && started < back, "{closed} {stopped} {started} {back}");
        assert_eq!(container.to.as_ref().unwrap().attempt, u32::try_from(number).unwrap());
        // Half of the time is for the requests in progress.
        if left > closed + NOTICE + grace / 2 {
            let of_pod = format!("{ip} at ");
            let mut others = self.traffic.failed();
            others.retain(|request| !request.starts_with(&of_pod));
            assert_eq!(others, Vec::<String>::new(), "of {}", self.traffic.served());
            self.traffic = Traffic::to(pod.cluster, &self.service, 2);
            return None;
        }
        assert!(left < stopped, "{closed} {left} {stopped}");
        Some([left, stopped, back])
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.pods[0].cluster.kubectl(&["delete", "service", &self.service]);
        }
    }
}

#[test]
fn no_request_is_refused_over_restarts_with_a_drain() {
    const RESTARTS: usize = 4;
    Agent::shared();
    let mut served = Served::new("drained", &format!("[{{conditionType: {GATE}}}]"));
    let (mut left_early, mut away) = (Vec::new(), Vec::new());
    let mut restarts = [0; 2];
    for cycle in 0..RESTARTS {
        let index = cycle % 2;
        let in_time = (0..TRIES).find_map(|_| {
            restarts[index] += 1;
            served.restarted(index, restarts[index])
        });
        let [left, stopped, back] =
            in_time.unwrap_or_else(|| panic!("an address has left the endpoints too late {TRIES} times"));
        left_early.push(stopped.duration_since(left).as_millis());
        away.push(back.duration_since(left).as_millis());
    }
    left_early.sort_unstable();
    away.sort_unstable();
    eprintln!(
        "{RESTARTS} restarts with a drain of {DRAIN} s, {} requests: out of the endpoints {} to {} ms before the stop, away for \
         {} ms at the median",
        served.traffic.served(),
        left_early[0],
        left_early[RESTARTS - 1],
        away[RESTARTS / 2]
    );
    assert_eq!(served.traffic.failed(), Vec::<String>::new(), "of {}", served.traffic.served());
    for (pod, restarts) in served.pods.iter().zip(restarts) {
        let mut expected = vec!["True InPlaceReady"];
        expected.extend(["False InPlaceDrain", "True InPlaceReady"].repeat(restarts));
        assert_eq!(cycles(pod), expected);
        let events = eventually("the events", || {
            let events = pod.events();
            let ended = events.iter().filter(|event| event.reason.as_deref() == Some("InPlaceSucceeded"));
            (ended.count() == restarts).then_some(events)
        });
        let others = |reported: &&str| reported.starts_with("InPlace") && *reported != "InPlaceSucceeded";
        assert_eq!(events.iter().filter_map(|event| event.reason.as_deref()).find(others), None);
        // One more write opened the gate of the new pod. A step that takes long, as on a busy machine, is
        // reported too.
        let mut reported: Vec<_> = pod.seen().versions().filter_map(status).collect();
        reported.dedup();
        let steps = reported.iter().filter(|status| !status.phase.is_terminal()).count() - restarts;
        let all = writes(pod);
        assert!(all.iter().all(|write| write["responseStatus"]["code"] != 403), "{all:#?}");
        let written: Vec<_> = all.into_iter().filter(Cluster::is_done).collect();
        eprintln!(
            "{} writes for {restarts} restarts, {steps} of them of a step that lasted",
            written.len() - 1
        );
        assert!(written.len() <= 1 + steps + 5 * restarts, "{written:#?}");
    }
}

/// An `EndpointSlice` created by hand: it sends traffic to the pod until it is deleted.
pub(crate) fn slice(pod: &Pod<'_>, name: &str) -> String {
    let cluster = pod.cluster;
    let versions = cluster.kubectl(&["api-versions"]);
    let v1 = versions.lines().any(|version| version == "discovery.k8s.io/v1");
    let (ip, uid) = (pod.get().status.unwrap().pod_ip.unwrap(), &pod.uid);
    let slice = json!({
        "apiVersion": if v1 { "discovery.k8s.io/v1" } else { "discovery.k8s.io/v1beta1" },
        "kind": "EndpointSlice", "metadata": {"name": name}, "addressType": "IPv4",
        "endpoints": [{"addresses": [ip], "conditions": {"ready": true},
            "targetRef": {"kind": "Pod", "namespace": "default", "name": pod.name, "uid": uid}}],
    });
    cluster.apply(&slice.to_string());
    name.to_owned()
}

#[test]
fn a_confirmed_drain_waits_for_every_slice_and_refuses_no_request() {
    let confirmed = |id: &str, grace: u32, deadline: u32| {
        json!({"id": id, "containers": [{"name": "app"}], "gracePeriodSeconds": grace, "drain": "Confirmed",
            "deadlineSeconds": deadline})
        .to_string()
    };
    Agent::shared();
    let cluster = Cluster::shared();
    let served = Served::new("confirmed", &format!("[{{conditionType: {GATE}}}]"));
    let [held, other] = &served.pods;
    let before = held.facts();
    let by_hand = slice(held, &format!("by-hand-{}", std::process::id()));
    let id = held.request(&confirmed("held", 1, 300));
    held.wait("it drains", |pod| gate_is(pod, "False", "InPlaceDrain") && !is_ready(pod));
    // Longer than a fixed drain would have taken, whatever the kubelet reports.
    let since = now();
    eventually("a fixed drain to be over", || {
        (now().duration_since(since) >= SignedDuration::from_secs(8)).then_some(())
    });
    assert_eq!(held.facts(), before);
    let gone = now();
    cluster.kubectl(&["delete", "endpointslice", &by_hand]);
    let status = held.answer(&id);
    assert_eq!(status.phase, Phase::Succeeded, "{status:#?}");
    let stopped = status.containers[0].stopped_at.unwrap();
    assert!(stopped >= gone + SignedDuration::from_secs(1), "{gone} {stopped}");
    held.wait("it is Ready again", is_ready);
    // With the slices of the cluster's own controller alone.
    for (cycle, pod) in served.pods.iter().enumerate() {
        pod.ask(&confirmed(&format!("cycle-{cycle}"), DRAIN, 300), Phase::Succeeded);
        pod.wait("it is Ready again", is_ready);
        let ip = pod.get().status.unwrap().pod_ip.unwrap();
        served.traffic.until("it is back", |cycles| cycles.last().unwrap().addresses.contains(&ip));
    }
    // A Service that publishes addresses that are not ready never removes the pod.
    let peers = format!("peers-{}", std::process::id());
    let ports = json!([{"port": 8080}]);
    let selector = json!({"app": served.service});
    let spec =
        json!({"clusterIP": "None", "publishNotReadyAddresses": true, "selector": selector, "ports": ports});
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": peers}, "spec": spec});
    cluster.apply(&service.to_string());
    let selected = format!("kubernetes.io/service-name={peers}");
    eventually("its slice", || {
        let listed = cluster.kubectl(&["get", "endpointslices", "-l", &selected, "-o", "json"]);
        listed.contains(&other.uid).then_some(())
    });
    // Its kubelet may collect the previous instance meanwhile.
    let running = || other.facts().settled().running("app").clone();
    let before = running();
    let failed = other.ask(&confirmed("never", 1, 25), Phase::Failed);
    assert_eq!(failed.reason, "DrainNotConfirmed", "{failed:#?}");
    assert!(failed.message.contains(&format!("EndpointSlice {peers}-")), "{}", failed.message);
    other.wait("it takes traffic again", |pod| gate_is(pod, "True", "InPlaceReady") && is_ready(pod));
    assert_eq!(running(), before);
    cluster.kubectl(&["delete", "service", &peers]);
    assert_eq!(served.traffic.failed(), Vec::<String>::new(), "of {}", served.traffic.served());
}

#[test]
fn without_a_drain_requests_are_refused() {
    Agent::shared();
    let served = Served::new("cut", "[]");
    for cycle in 0..4 {
        served.pods[cycle % 2].ask(&restart(&format!("cycle-{cycle}"), 0), Phase::Succeeded);
    }
    let failed = served.traffic.failed();
    eprintln!("4 restarts without a drain: {} of {} requests failed", failed.len(), served.traffic.served());
    assert!(!failed.is_empty());
}

#[test]
fn a_new_pod_is_let_in_before_it_runs_and_one_without_a_gate_is_left_alone() {
    Agent::shared();
    let cluster = Cluster::shared();
    let slow = "initContainers: [{name: slow, image: lab/app:v1, command: [sleep, '20']}]";
    let new = Pod::create(cluster, "new", &format!("{slow}\n{}", gated()));
    let plain = Pod::run(cluster, "plain", PAIR);
    new.wait("it is Ready", is_ready);
    let seen = new.seen();
    let let_in = seen.versions().find(|pod| gate_is(pod, "True", "InPlaceReady")).unwrap();
    assert!(!is(let_in, "Initialized"));
    assert_eq!(cycles(&new), ["True InPlaceReady"]);
    assert!(plain.seen().versions().all(|pod| gate(pod).is_none()));
    assert_eq!(writes(&plain), Vec::<Value>::new());
    // A drain on a pod without the gate is refused.
    let before = plain.facts();
    let refused = plain.ask(&restart("drain", 2), Phase::Refused);
    assert_eq!(refused.reason, "NoReadinessGate");
    assert!(refused.message.contains("remove gracePeriodSeconds, or add the gate"), "{}", refused.message);
    assert_eq!(plain.facts(), before);
    assert_eq!(gate(&plain.get()), None);
}

/// Sets the gate as another user.
fn cycle(pod: &Pod<'_>, status: &str, reason: &str) {
    let condition = json!({"type": GATE, "status": status, "reason": reason, "lastTransitionTime": "2026-11-20T10:00:00Z"});
    let body = json!({"status": {"conditions": [condition]}});
    block_on(pod.api.patch_status(&pod.name, &PatchParams::default(), &Patch::Strategic(&body))).unwrap();
}

#[test]
fn a_gate_that_somebody_else_closed_stays_closed_and_one_left_behind_is_opened() {
    Agent::shared();
    let [theirs, left] = ["theirs", "left"].map(|name| Pod::create(Cluster::shared(), name, &gated()));
    for pod in [&theirs, &left] {
        pod.wait("it is Ready", is_ready);
    }
    cycle(&theirs, "False", "Maintenance");
    theirs.wait("it is closed", |pod| gate_is(pod, "False", "Maintenance"));
    // The state that a forgotten drain leaves behind.
    cycle(&left, "False", "InPlaceDrain");
    let opened = ["True InPlaceReady", "False InPlaceDrain", "True InPlaceReady"];
    eventually("it is opened", || (cycles(&left) == opened).then_some(()));
    assert_eq!(cycles(&theirs), ["True InPlaceReady", "False Maintenance"]);
    // A request without a drain does not change that either.
    theirs.ask("restart app", Phase::Succeeded);
    assert_eq!(cycles(&theirs), ["True InPlaceReady", "False Maintenance"]);
}

#[test]
fn after_a_failure_the_gate_stays_closed_until_something_succeeds() {
    Agent::shared();
    let cluster = Cluster::shared();
    let swap = |image: &str, grace: u32, timeout: u32| {
        let (containers, keep) = (json!([{"name": "app", "image": cluster.image(image)}]), "Keep");
        json!({"containers": containers, "gracePeriodSeconds": grace, "readyTimeoutSeconds": timeout, "onFailure": keep})
            .to_string()
    };
    // In this pod v3 never becomes Ready.
    let spec = slow_to_stop(&cluster.image("app:v1"));
    let pods = ["failed", "failed-too"].map(|name| Pod::make(cluster, name, json!({"spec": spec})));
    for (pod, grace) in pods.iter().zip([1, 0]) {
        pod.wait("it is Ready", is_ready);
        let failed = pod.ask(&swap("app:v3", 1, 3), Phase::Failed);
        assert_eq!(failed.reason, "NotReady", "{failed:#?}");
        pod.wait("the gate is left closed", |pod| gate_is(pod, "False", "InPlaceFailed"));
        // The next swap may drain or not: the pod receives no traffic anyway.
        pod.ask(&swap("app:v2", grace, 120), Phase::Succeeded);
        pod.wait("it is Ready again", is_ready);
        let cycles = cycles(pod);
        assert_eq!(cycles.first().unwrap(), "True InPlaceReady");
        assert_eq!(cycles.last().unwrap(), "True InPlaceReady");
        assert_eq!(pod.facts().settled().running("app").version, "v2");
    }
}

/// As after a reboot: the kubelet starts everything in a new sandbox, which fulfils the request.
#[test]
fn a_pod_whose_sandbox_ends_in_the_middle_of_an_operation_takes_traffic_again() {
    let cluster = Cluster::shared();
    Agent::shared();
    let mut spec = slow_to_stop(&cluster.image("app:v1"));
    let handler = "cat /etc/version >>/dev/shm/stops; sleep 8";
    spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"] = json!(["sh", "-c", handler]);
    let pod = Pod::make(cluster, "sandbox-ends", json!({"spec": spec}));
    pod.wait("it is Ready", is_ready);
    let before = pod.facts().settled();
    let id = pod.request(&restart("moved", 1));
    await_stops(cluster, &before.sandbox, &["v1"]);
    end_process(cluster, &before.sandbox);
    let status = pod.answer(&id);
    assert_eq!(status.phase, Phase::Succeeded, "{status:#?}");
    pod.wait("it takes traffic", |pod| gate_is(pod, "True", "InPlaceReady") && is_ready(pod));
    assert_eq!(cycles(&pod), ["True InPlaceReady", "False InPlaceDrain", "True InPlaceReady"]);
    let running = running(&pod);
    let [app] = &running[..] else { panic!("{running:#?}") };
    assert_ne!(app.pod_sandbox_id, before.sandbox);
    // The operation ended in the new sandbox.
    assert_eq!(status.containers[0].to.as_ref().unwrap().container_id, app.id, "{status:#?}");
}

/// The running containers of a pod, in any sandbox.
fn running(pod: &Pod<'_>) -> Vec<Container> {
    let mut containers = containers(pod);
    containers.retain(is_running);
    containers
}

#[test]
fn a_drain_goes_on_where_a_killed_agent_left_it() {
    const GRACE: SignedDuration = SignedDuration::from_secs(40);
    let cluster = Cluster::leased();
    let agent = Agent::start(&cluster, &[]);
    let pod = Pod::run(&cluster, "cut-short", &gated());
    let before = pod.facts();
    let id = pod.request(&restart("cut", 40));
    let closed = pod.wait("it drains", |pod| gate_is(pod, "False", "InPlaceDrain"));
    let closed = closed_at(&closed);
    agent.kill();
    // Long enough to distinguish the rest of the grace period from the whole of it, also on a busy node.
    eventually("three quarters of the grace period to pass", || {
        (now().duration_since(closed) >= GRACE / 4 * 3).then_some(())
    });
    assert_eq!(pod.facts(), before);
    let second = now();
    let _agent = Agent::start(&cluster, &[]);
    let status = pod.answer(&id);
    assert_eq!(status.phase, Phase::Succeeded, "{status:#?}");
    let stopped = status.containers[0].stopped_at.unwrap();
    eprintln!("closed {closed}, the second agent {second}, stopped {stopped}");
    assert!(stopped >= closed + GRACE && stopped < second + GRACE, "{closed} {second} {stopped}");
    pod.wait("it is Ready", is_ready);
    assert_eq!(cycles(&pod), ["True InPlaceReady", "False InPlaceDrain", "True InPlaceReady"]);
    let of_gate = |write: &Value| Cluster::is_done(write) && write["objectRef"]["subresource"] == "status";
    // A watch may deliver a change before the API server has written it to the log.
    let written = eventually("the record of each change of the gate", || {
        Some(writes(&pod).into_iter().filter(of_gate).count()).filter(|written| *written >= 3)
    });
    assert_eq!(written, 3);
    assert_eq!(pod.facts().settled().running("app").attempt, 1);
}

/// When the gate was changed, rounded down to whole seconds.
fn closed_at(pod: &Object) -> Timestamp {
    gate(pod).unwrap().last_transition_time.as_ref().unwrap().0
}
