//! The shipped agent: from its image, as a pod of its `DaemonSet`, with the shipped rights and, where the API
//! server supports it, under the shipped admission policy.

use std::{fs, time::Duration};

use inplace::{
    api::{
        annotation::POD_UID,
        status::{Engine, Phase, Status, Step},
    },
    cri::{client::Client, endpoint::Endpoint},
};
use k8s_openapi::api::core::v1::Pod as Object;
use kube::{
    Api, Error,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::{
    agent::{samples, status},
    cluster::{Cluster, Node, block_on},
    drain,
    installed::{
        AGENT, NAMESPACE, agent_on, install, metrics, rolled_out, upgrade_by_chart, with_token_of, writes,
    },
    ongoing::{containers, running_fence},
    pod::{PAIR, Pod, container, is, is_ready},
    readme::first_restart,
    request::{request, restored},
    start_first::{self, SHARED},
    support::{
        parts::Parts,
        release::{self, POLICY_SINCE},
        wait::{WAIT_LIMIT, eventually},
    },
};

const GATE: &str = "InPlaceUpdateReady";

/// Like [`PAIR`], with the readiness gate.
const GATED: &str = "
terminationGracePeriodSeconds: 2
readinessGates: [{conditionType: InPlaceUpdateReady}]
containers:
- {name: app, image: lab/app:v1}
- {name: side, image: lab/app:v1}
";

/// The runtime does not report all of its sources, so it is not cloned.
const ODD: &str = "
terminationGracePeriodSeconds: 2
containers:
- {name: app, image: lab/app:v1, envFrom: [{configMapRef: {name: kube-root-ca.crt}}]}
";

/// The kubelet would not start it again.
const ONCE: &str = "
restartPolicy: Never
terminationGracePeriodSeconds: 2
containers:
- {name: app, image: lab/app:v1}
";

/// Like [`PAIR`]. An instance of a version is not Ready while the pod's shared memory has a file `hold-VERSION`.
const HELD: &str = "
terminationGracePeriodSeconds: 2
containers:
- name: app
  image: lab/app:v1
  readinessProbe:
    exec: {command: [sh, -c, 'test ! -e /dev/shm/hold-$(cat /etc/version)']}
    periodSeconds: 1
    timeoutSeconds: 30
- {name: side, image: lab/app:v1}
";

/// It stops slowly enough to be observed.
const SLOW: &str = "
terminationGracePeriodSeconds: 10
containers:
- {name: app, image: lab/app:v1, lifecycle: {preStop: {exec: {command: [sleep, \"8\"]}}}}
";

#[test]
fn the_daemonset_does_what_is_asked_for_with_the_rights_it_has() {
    let cluster = Cluster::own();
    install(&cluster, "one");
    let cluster = &cluster;
    let parts = Parts::default();
    let all: [(_, fn(&Cluster)); 8] = [
        ("plain", plain),
        ("gated", gated),
        ("odd", odd),
        ("once", once),
        ("fixed", fixed),
        ("fenced", fenced),
        ("beside", beside),
        ("the first restart of the README", first_restart),
    ];
    parts.run_all(all.map(|(name, part)| (name, move || part(cluster))));
    // The agent attempts nothing beyond its rights.
    let writes = writes(cluster);
    let denied: Vec<_> = writes.iter().filter(|write| write["responseStatus"]["code"] == 403).collect();
    assert!(denied.is_empty(), "{denied:#?}");
    let patches = writes.iter().filter(|write| write["verb"] == "patch").count();
    assert!(patches > 20, "{writes:#?}");
    may_no_more(cluster);
}

fn plain(cluster: &Cluster) {
    let pod = Pod::run(cluster, "plain", PAIR);
    let done = pod.ask("restart app", Phase::Succeeded);
    assert_eq!(engines(&done), [Engine::Recreate]);
    pod.ask("restart app,side #2", Phase::Succeeded);
    let swap = |image: &str, cycle: u32| format!("swap app={} #{cycle}", cluster.image(image));
    let done = pod.ask(&swap("app:v2", 1), Phase::Succeeded);
    assert_eq!(engines(&done), [Engine::Respec]);
    let back = pod.ask(&swap("app:crash", 2), Phase::RolledBack);
    restored(&pod, &back.containers[0], "lab/app:v2");
    pod.ask(&swap("nowhere:v1", 3), Phase::Failed);
    pod.ask("restart nobody", Phase::Refused);
    let stop = json!({"id": "stop", "containers": [{"name": "side"}], "engine": "Stop"});
    pod.ask(&stop.to_string(), Phase::Succeeded);
    let facts = pod.facts().settled();
    assert_eq!(facts.running("app").version, "v2");
    eventually("the events", || {
        let events = pod.events();
        let reported = |reason: &str| events.iter().any(|event| event.reason.as_deref() == Some(reason));
        let wanted =
            ["InPlaceStarted", "InPlaceSucceeded", "InPlaceRolledBack", "InPlaceRefused", "InPlaceFailed"];
        wanted.into_iter().all(reported).then_some(())
    });
}

/// The fence is a process from the agent's own image.
fn fenced(cluster: &Cluster) {
    let pod = Pod::run(cluster, "fenced", SLOW);
    pod.request("restart app #1");
    let fence = eventually("a fence that runs", || running_fence(&pod));
    let uid = agent_on(cluster, &cluster.node()).metadata.uid.unwrap();
    let endpoint = Endpoint::parse(&cluster.node().endpoint).unwrap();
    let own =
        block_on(async { Client::new(&endpoint, None).containers(Some((POD_UID, &uid))).await.unwrap() });
    assert!(own.iter().any(|agent| agent.image_ref == fence.image_ref), "{fence:#?}");
    pod.wait("it has restarted", |pod| status(pod).is_some_and(|status| status.phase == Phase::Succeeded));
    assert!(containers(&pod).iter().all(|container| container.id != fence.id));
}

/// The program in the agent's own image counts the sockets, inside the pod.
fn beside(cluster: &Cluster) {
    let pod = Pod::run(cluster, "beside", SHARED);
    let client = start_first::Client::of(&pod);
    let image = Some("lab/app:v2");
    pod.ask(&request(cluster, &[("app", image)], json!({"order": "StartFirst"})), Phase::Succeeded);
    assert_eq!(pod.facts().settled().running("app").version, "v2");
    client.was_always_served("the agent in its DaemonSet");
}

fn gated(cluster: &Cluster) {
    let pod = Pod::run(cluster, "gated", GATED);
    let restart = json!({"id": "drain", "containers": [{"name": "app"}], "gracePeriodSeconds": 10});
    let swap = json!({"id": "swap", "containers": [{"name": "app", "image": cluster.image("app:v2")}], "gracePeriodSeconds": 10});
    for request in [restart, swap] {
        let before = pod.seen().versions().len();
        pod.ask(&request.to_string(), Phase::Succeeded);
        pod.wait("it is Ready again", |pod| is(pod, GATE) && is_ready(pod));
        let seen = pod.seen();
        assert!(
            seen.versions().skip(before).any(|version| !is(version, GATE) && !is_ready(version)),
            "{seen:#?}"
        );
    }
    pod.facts().settled();
}

fn odd(cluster: &Cluster) {
    let pod = Pod::run(cluster, "odd", ODD);
    let (v1, v2) = (cluster.image("app:v1"), cluster.image("app:v2"));
    // Two restarts change the image reference and change it back, each time to an equivalent reference.
    let done = pod.ask("restart app", Phase::Succeeded);
    assert_eq!(engines(&done), [Engine::Respec]);
    assert_ne!(image_of(&pod.get(), "app"), v1);
    pod.ask("restart app #2", Phase::Succeeded);
    pod.ask(&format!("swap app={v2}"), Phase::Succeeded);
    pod.ask("restart app #3", Phase::Succeeded);
    // Rolls back to an image that only the status still names.
    let image = image_of(&pod.get(), "app");
    let back = pod.ask(&format!("swap app={}", cluster.image("app:crash")), Phase::RolledBack);
    assert_eq!(restored(&pod, &back.containers[0], &image).version, "v2");
}

fn once(cluster: &Cluster) {
    let pod = Pod::run(cluster, "once", ONCE);
    let done = pod.ask("restart app", Phase::Succeeded);
    assert_eq!(engines(&done), [Engine::Respec]);
    pod.wait("the kubelet has taken it over", |pod| restarts(pod, "app") == 1);
    pod.facts().settled();
}

/// A static pod: the API server has a copy, whose spec cannot be changed.
fn fixed(cluster: &Cluster) {
    let node = cluster.node();
    let file = node.dir.join("manifests/fixed.yaml");
    let head = "apiVersion: v1\nkind: Pod\nmetadata: {name: fixed, namespace: default}\nspec:\n  ";
    fs::write(&file, format!("{head}{}", cluster.named(PAIR.trim()).replace('\n', "\n  "))).unwrap();
    let pod = Pod::existing(cluster, "default", &format!("fixed-{}", node.name));
    pod.wait("it is Ready", is_ready);
    let done = pod.ask("restart app", Phase::Succeeded);
    assert_eq!(engines(&done), [Engine::Recreate]);
    pod.wait("the kubelet has taken it over", |pod| restarts(pod, "app") == 1);
    pod.ask(&format!("swap app={}", cluster.image("app:v2")), Phase::Refused);
    fs::remove_file(&file).unwrap();
    pod.await_gone();
}

/// What the agent's token must not do, by the role and by the policy.
fn may_no_more(cluster: &Cluster) {
    let kubeconfig = cluster.kubeconfig_of(NAMESPACE, "inplace-agent");
    let can = |verb: &str, what: &str| {
        let mut ask = cluster.kubectl_command(&["auth", "can-i", verb, what]);
        let output = ask.arg("--kubeconfig").arg(&kubeconfig).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    for (verb, what) in [
        ("create", "pods"),
        ("delete", "pods"),
        ("update", "pods"),
        ("create", "pods/exec"),
        ("create", "pods/eviction"),
        ("get", "secrets"),
        ("list", "secrets"),
        ("get", "nodes"),
        ("get", "configmaps"),
    ] {
        assert_eq!(can(verb, what), "no", "{verb} {what}");
    }
    for (verb, what) in [("watch", "pods"), ("patch", "pods"), ("patch", "pods/status"), ("create", "events")]
    {
        assert_eq!(can(verb, what), "yes", "{verb} {what}");
    }
    let version = block_on(cluster.client.apiserver_version()).unwrap().git_version;
    if !release::has("the admission policies", POLICY_SINCE, &version) {
        return;
    }
    let pod = Pod::run(cluster, "forged", PAIR);
    let thief: Api<Object> = Api::namespaced(with_token_of(cluster, &cluster.node()), "default");
    let image = cluster.image("app:v2");
    let forged = json!({"spec": {"containers": [{"name": "app", "image": image}]}});
    match block_on(thief.patch(&pod.name, &PatchParams::default(), &Patch::Strategic(&forged))) {
        Err(Error::Api(status)) => assert!(status.message.contains("names no image"), "{status:?}"),
        other => panic!("{other:?}"),
    }
}

/// Pods of a node whose operations are in different steps.
struct Busy<'a> {
    node: &'a Node,
    drains: Pod<'a>,
    stops: Pod<'a>,
    proves: Pod<'a>,
    cycle: u32,
}

impl<'a> Busy<'a> {
    fn on(cluster: &'a Cluster, node: &'a Node) -> Self {
        let make = |name: &str, spec: &str| {
            Pod::create(cluster, name, &format!("nodeName: {}\n{}", node.name, spec.trim()))
        };
        let slow = PAIR.replacen(
            "image: lab/app:v1}",
            "image: lab/app:v1, lifecycle: {preStop: {exec: {command: [sleep, '4']}}}}",
            1,
        );
        let slow = slow.replace("terminationGracePeriodSeconds: 2", "terminationGracePeriodSeconds: 10");
        let busy = Self {
            node,
            drains: make("drains", GATED),
            stops: make("stops", &slow),
            proves: make("proves", HELD),
            cycle: 0,
        };
        for pod in busy.all() {
            pod.wait("it is Ready", is_ready);
        }
        busy
    }

    fn all(&self) -> [&Pod<'a>; 3] {
        [&self.drains, &self.stops, &self.proves]
    }

    /// Starts another operation on each, and waits until all are running. Those that an agent may leave when it is asked to end
    /// stay open until [`Self::finish`].
    fn begin(&mut self) {
        self.cycle += 1;
        let id = self.id();
        let app = [json!({"name": "app"})];
        drain::slice(&self.drains, &self.slice());
        let request = json!({"id": id, "containers": app, "gracePeriodSeconds": 1, "drain": "Confirmed"});
        self.drains.request(&request.to_string());
        fs::write(self.hold(), "").unwrap();
        let image = self.proves.cluster.image(&format!("app:{}", self.version()));
        let swap = [json!({"name": "app", "image": image})];
        let request = json!({"id": id, "containers": swap, "minReadySeconds": 2, "readyTimeoutSeconds": 300});
        self.proves.request(&request.to_string());
        self.was_in(&self.drains, Step::Drain);
        self.was_in(&self.proves, Step::Verify);
        self.stops.request(&json!({"id": id, "containers": app}).to_string());
        self.was_in(&self.stops, Step::Swap);
    }

    /// Waits until the operation of the pod is, or has been, in that step.
    fn was_in(&self, pod: &Pod<'_>, step: Step) {
        let id = self.id();
        let is_in =
            |status: Status| (&status.id, status.phase, status.step) == (&id, Phase::Running, Some(step));
        pod.until(WAIT_LIMIT, &format!("{id} was in {step:?}"), |seen| {
            seen.versions().filter_map(status).any(is_in)
        });
    }

    /// The version to which `proves` is swapped.
    fn version(&self) -> &'static str {
        if self.cycle % 2 == 1 { "v2" } else { "v1" }
    }

    /// The file with which the new instance of `proves` is not Ready.
    fn hold(&self) -> String {
        let facts = self.proves.facts_on(self.node);
        format!("/proc/{}/root/dev/shm/hold-{}", facts.running("side").pid, self.version())
    }

    /// The name of the slice with which the drain of `drains` is not confirmed.
    fn slice(&self) -> String {
        format!("{}-held", self.drains.name)
    }

    fn id(&self) -> String {
        format!("cycle-{}", self.cycle)
    }

    /// Lets the operations go on under the agent in that pod. Asserts that everything that was started is finished, once, and
    /// that this agent has finished what was held.
    fn finish(&self, agent: &Object) {
        let agent = container(agent, "agent").and_then(|agent| agent.state.as_ref()?.running.as_ref());
        let began = agent.unwrap().started_at.as_ref().unwrap().0;
        fs::remove_file(self.hold()).unwrap();
        self.drains.cluster.kubectl(&["delete", "endpointslice", &self.slice()]);
        let cycle = self.cycle.cast_signed();
        for pod in self.all() {
            let answer = pod.answer_within(Duration::from_secs(120), &self.id());
            assert_eq!(answer.phase, Phase::Succeeded, "{pod:?}: {answer:#?}");
            let was_held = pod.uid != self.stops.uid;
            assert!(!was_held || answer.finished_at.unwrap() > began, "{pod:?}, {began}: {answer:#?}");
            pod.wait("the kubelet reports the same", |pod| {
                is_ready(pod) && (restarts(pod, "app"), restarts(pod, "side")) == (cycle, 0)
            });
            let facts = pod.facts_on(self.node).settled();
            assert_eq!(facts.running("app").attempt, self.cycle, "{facts:#?}");
            // Each request has one terminal status, and it does not change afterwards.
            let answers: Vec<_> =
                pod.seen().versions().filter_map(status).filter(|status| status.id == self.id()).collect();
            let end = answers.iter().position(|status| status.phase.is_terminal()).unwrap();
            assert!(answers[end..].iter().all(|status| *status == answers[end]), "{answers:#?}");
        }
        assert!(is(&self.drains.get(), GATE));
    }
}

#[test]
fn an_agent_that_is_replaced_loses_no_operation_and_serves_its_own_node() {
    let cluster = Cluster::own();
    let nodes = [cluster.node(), cluster.add_node("node-2")];
    install(&cluster, "one");
    let mut busy = nodes.each_ref().map(|node| Busy::on(&cluster, node));

    // An upgrade, one node after the other.
    busy.iter_mut().for_each(Busy::begin);
    upgrade_by_chart(&cluster, "two");
    rolled_out(&cluster, AGENT);
    for busy in &busy {
        let agent = agent_on(&cluster, busy.node);
        assert_eq!(image_of(&agent, "agent"), cluster.image("inplace:two"));
        busy.finish(&agent);
    }

    // The same agent as a new pod, on both nodes at once, without a graceful stop.
    busy.iter_mut().for_each(Busy::begin);
    let agents = nodes.each_ref().map(|node| agent_on(&cluster, node).metadata);
    for agent in &agents {
        let name = agent.name.as_deref().unwrap();
        cluster.kubectl(&["delete", "pod", "--force", "--grace-period=0", "-n", NAMESPACE, name]);
    }
    for (busy, before) in busy.iter().zip(&agents) {
        let agent = agent_on(&cluster, busy.node);
        assert_ne!(agent.metadata.uid, before.uid);
        busy.finish(&agent);
    }

    // Two more operations on one node: the agent of the other node does nothing.
    let served = || {
        nodes
            .each_ref()
            .map(|node| samples(&metrics(node), &["inplace_operations_total"]).iter().sum::<f64>())
    };
    let before = served();
    for pod in busy[1].all() {
        pod.ask("restart side", Phase::Succeeded);
    }
    let after = served();
    assert_eq!((after[0] - before[0], after[1] - before[1]), (0.0, 3.0), "{before:?} {after:?}");
    let denied: Vec<_> =
        writes(&cluster).into_iter().filter(|write| write["responseStatus"]["code"] == 403).collect();
    assert!(denied.is_empty(), "{denied:#?}");
}

fn engines(status: &Status) -> Vec<Engine> {
    status.containers.iter().map(|report| report.engine).collect()
}

/// The image in the spec.
fn image_of(pod: &Object, name: &str) -> String {
    let containers = &pod.spec.as_ref().unwrap().containers;
    containers.iter().find(|container| container.name == name).unwrap().image.clone().unwrap()
}

/// The kubelet's restart count of a container.
fn restarts(pod: &Object, name: &str) -> i32 {
    container(pod, name).map_or(-1, |container| container.restart_count)
}
