//! `strategy: Together` on two nodes: the pods of a workload are prepared, stopped and started together, whatever happens
//! to the controller, an agent or a pod.

use std::collections::BTreeMap;
use std::time::Duration;

use inplace::api::annotation;
use inplace::api::status::Status;
use jiff::Timestamp;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::{Fixture, Load, person, restarts};
use crate::{
    agent::{Agent, Setup, samples},
    cluster::{Cluster, Node, block_on},
    pod::{Pod, is_ready},
    support::{
        facts::observe,
        parts::Parts,
        wait::{eventually, eventually_within},
    },
};

const COUNT: usize = 6;
/// The period of the liveness probe of a pod: twice as long as the longest start that was measured on a busy machine, 15 s.
const PROBE_SECONDS: i64 = 30;
/// How long pods wait at the barrier where a part waits for its end: so long that a probe is due meanwhile.
const SHORT_BARRIER_SECONDS: i64 = PROBE_SECONDS + 2;
/// The same in the other parts with faults: longer than an agent takes to start again on a busy machine.
const BARRIER_SECONDS: i64 = 60;
const LONG: Duration = Duration::from_secs(300);
/// Time for agents on a busy machine to prepare their pods.
const PREPARE: &[&str] = &["--prepare-timeout", "2m"];

/// Two nodes, and what runs on them.
struct Group<'a> {
    fixture: &'a Fixture<'a>,
    load: Load<'a>,
    nodes: [Node; 2],
}

#[test]
fn the_pods_of_a_group_stop_before_one_of_them_starts() {
    let cluster = Cluster::own();
    let nodes = [cluster.node(), cluster.add_node("node-2")];
    let mut agents: Vec<_> =
        nodes.iter().map(|node| Agent::start_on(&cluster, node, &Setup::default())).collect();
    let mut controller = Agent::controller(&cluster, "one");
    let fixture = Fixture { cluster: &cluster, person: person(&cluster) };
    let load = Load { fixture: &fixture, kind: "Deployment", name: "train" };
    let group = Group { fixture: &fixture, load, nodes };
    group.create();
    let parts = Parts::default();
    parts.run("a restart", || {
        group.all_stop_before_one_starts();
        for agent in &agents {
            assert!(!samples(&agent.metrics(), &["inplace_operations_total", "Succeeded"]).is_empty());
        }
    });
    parts.run("without a barrier", || group.each_starts_at_once_without_a_barrier());
    parts.run("a dead worker", || group.a_container_that_died_is_restarted_with_the_others());
    parts.run("a pod that cannot wait", || group.a_pod_that_cannot_be_prepared_ends_it());
    parts.run("a worker that fails", || group.a_failure_restarts_the_group());
    // Stops take long from here on.
    drop(agents);
    let slow = Setup { env: &[("INPLACE_FAULT_DELAY", "Stop=2500")], ..Setup::default() };
    let start = |node: &Node| Agent::start_on(&cluster, node, &slow);
    agents = group.nodes.iter().map(start).collect();
    parts.run("a dead controller", || {
        let probed = group.probed();
        let rollout = group.begin_until_stop(SHORT_BARRIER_SECONDS);
        controller.kill();
        group.all_start_by_themselves(&rollout);
        controller = Agent::controller(&cluster, "two");
        let status = group.end_of(&rollout);
        // The next parts expect the pods of the workload alone.
        cluster.kubectl(&["delete", "pod", &probed.name, "--wait=true"]);
        assert_eq!(
            (&status["phase"], &status["done"]),
            (&json!("Succeeded"), &json!(COUNT + 1)),
            "{status:#}"
        );
    });
    parts.run("a dead agent", || {
        let rollout = group.begin_until_stop(BARRIER_SECONDS);
        agents[1].kill();
        agents[1] = start(&group.nodes[1]);
        let status = group.end_of(&rollout);
        assert_eq!((&status["phase"], &status["done"]), (&json!("Succeeded"), &json!(COUNT)), "{status:#}");
        group.stop_before_start();
    });
    parts.run("an agent that restarts while its pods are prepared", || {
        let before = group.load.pods();
        agents[1].kill();
        let rollout = group.begin(BARRIER_SECONDS);
        group.wait_until_prepared(&group.nodes[0]);
        agents[0].kill();
        agents[0] = start(&group.nodes[0]);
        agents[1] = start(&group.nodes[1]);
        let status = group.end_of(&rollout);
        assert_eq!((&status["phase"], &status["done"]), (&json!("Succeeded"), &json!(COUNT)), "{status:#}");
        for (name, pod) in group.load.pods() {
            assert_eq!(pod["metadata"]["uid"], before[&name]["metadata"]["uid"]);
            // One of them was killed in an earlier part, and its kubelet may have started it once more.
            assert_eq!(restarts(&pod), restarts(&before[&name]) + 1, "{name}: {:#}", pod["status"]);
        }
    });
    // Each pod has the request of the first part still, and a status of group restarts.
    parts.run("a rollout afterwards", || {
        let restart =
            ["restart", "deploy/train", "-c", "app", "--max-unavailable", "100%", "--allow-stale-env"];
        fixture.through(&restart, COUNT);
    });
    let denied = cluster.denied();
    assert!(denied.is_empty(), "{denied:#?}");
}

/// True for a write of an event by an agent.
fn is_event_of_agent(write: &Value) -> bool {
    let is_agent = write["user"]["username"].as_str().is_some_and(|user| user.contains("inplace-agent"));
    is_agent && write["objectRef"]["resource"] == "events"
}

impl Group<'_> {
    fn create(&self) {
        let labels = json!({"matchLabels": {"app": self.load.name}});
        let mut template = self.load.template(false);
        // Without the permission of each request, only its kubelet could start it.
        template["spec"]["containers"][0]["envFrom"] =
            json!([{"configMapRef": {"name": "kube-root-ca.crt"}}]);
        template["spec"]["topologySpreadConstraints"] = json!([{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule", "labelSelector": labels}]);
        self.load.make(COUNT, &json!({"replicas": COUNT, "selector": labels, "template": template}));
    }

    /// A request in the annotation of each pod, which ends before the first group restart.
    fn restart_each_by_annotation(&self) {
        let request = format!("{}=restart app #1", annotation::REQUEST);
        self.fixture.cluster.kubectl(&["annotate", "pods", "-l", "app=train", &request]);
        eventually("the requests have ended", || {
            let pods = self.load.pods();
            let ended = |pod: &Value| {
                let text = pod["metadata"]["annotations"][annotation::STATUS].as_str()?;
                serde_json::from_str::<Status>(text).ok().filter(|status| status.phase.is_terminal())
            };
            pods.values().all(|pod| ended(pod).is_some()).then_some(())
        });
        // An agent writes the event of the end after the status.
        eventually("an event for each request", || {
            let mut writes = self.fixture.cluster.writes();
            writes.retain(|write| is_event_of_agent(write) && Cluster::is_done(write));
            let has_event = |pod: &String| {
                // The name of an event begins with its pod's name.
                let of_pod = format!("{pod}.");
                let name = |write: &Value| write["objectRef"]["name"].as_str().unwrap_or_default().to_owned();
                writes.iter().any(|write| name(write).starts_with(&of_pod))
            };
            self.load.pods().keys().all(has_event).then_some(())
        });
    }

    fn restart(&self, more: &[&str]) -> (Value, String) {
        let args = ["restart", "deploy/train", "-c", "app", "--together", "--allow-stale-env"];
        self.fixture.through(&[&args, PREPARE, more].concat(), COUNT)
    }

    fn all_stop_before_one_starts(&self) {
        self.restart_each_by_annotation();
        let before = self.load.pods();
        let (pods, begun) = (before.keys().cloned().collect::<Vec<_>>(), self.fixture.cluster.writes().len());
        let (status, reported) = self.restart(&[]);
        assert_eq!(status["group"]["phase"], "Start", "{status:#}");
        let epoch = status["group"]["epoch"].as_i64().unwrap().to_string();
        assert!(reported.contains("group restart: "), "{reported}");
        // The request in the annotation had ended, and is not carried out again.
        self.load.same_but_restarted(&before, 2);
        self.stop_before_start();
        for pod in self.load.pods().values() {
            assert_eq!(pod["metadata"]["annotations"][annotation::GROUP_EPOCH], epoch, "{pod:#}");
        }
        // Kubelets write the status of their pods, whoever restarts a container.
        let writes = &self.fixture.cluster.writes()[begun..];
        let own = |write: &&Value| {
            let user = write["user"]["username"].as_str().unwrap_or_default();
            let is_about_pod = write["objectRef"]["resource"] == "pods";
            user.contains("inplace") && is_about_pod && Cluster::is_done(write)
        };
        for pod in pods {
            let of_pod: Vec<_> =
                writes.iter().filter(own).filter(|write| write["objectRef"]["name"] == *pod).collect();
            assert_eq!(of_pod.len(), 3, "prepared, stopped, ended: {of_pod:#?}");
        }
        let events: Vec<_> = writes.iter().filter(|write| is_event_of_agent(write)).collect();
        assert!(events.is_empty(), "agents write no events: {events:#?}");
    }

    fn each_starts_at_once_without_a_barrier(&self) {
        let before = self.load.pods();
        let (status, _) = self.restart(&["--no-barrier"]);
        let first: i64 = before.values().next().unwrap()["metadata"]["annotations"][annotation::GROUP_EPOCH]
            .as_str()
            .unwrap()
            .parse()
            .unwrap();
        let group = &status["group"];
        assert!(group["epoch"].as_i64().unwrap() > first && group["stopAt"].is_null(), "{status:#}");
        self.load.same_but_restarted(&before, 3);
    }

    fn a_container_that_died_is_restarted_with_the_others(&self) {
        let before = self.load.pods();
        let (name, pod) = before.iter().next().unwrap();
        let (other, _) = before.iter().next_back().unwrap();
        self.kill(pod);
        self.restart(&[]);
        self.stop_before_start();
        let after = self.load.pods();
        assert_eq!(restarts(&after[other]), 4, "{:#}", after[other]["status"]);
        // Its kubelet may have started the container once in between.
        assert!([4, 5].contains(&restarts(&after[name])), "{:#}", after[name]["status"]);
        assert_eq!(after[name]["metadata"]["uid"], before[name]["metadata"]["uid"]);
    }

    fn a_failure_restarts_the_group(&self) {
        let cluster = self.fixture.cluster;
        let (label, policy) = (annotation::GROUP_RESTART, annotation::GROUP_RESTART_POLICY);
        cluster.kubectl(&[
            "annotate",
            "pods",
            "-l",
            "app=train",
            &format!("{policy}=max-restarts=1,allow-stale-env=true,prepare-timeout=2m"),
        ]);
        cluster.kubectl(&["label", "pods", "-l", "app=train", &format!("{label}=train")]);
        let begun = || {
            let rollouts = "/apis/inplace.dev/v1alpha1/namespaces/default/inplacerollouts";
            let list = cluster.read(&format!("{rollouts}?labelSelector={label}%3Dtrain"));
            list["items"].as_array().unwrap().clone()
        };
        // What has ended before in these pods is no failure: operations have ended it.
        let before = self.load.pods();
        let name = before.keys().next().unwrap();
        self.kill(&before[name]);
        let rollout = eventually("a group restart has begun", || begun().pop());
        let status = self.end_of(rollout["metadata"]["name"].as_str().unwrap());
        assert_eq!((&status["phase"], &status["done"]), (&json!("Succeeded"), &json!(COUNT)), "{status:#}");
        self.stop_before_start();
        for (each, pod) in self.load.pods() {
            let more = restarts(&pod) - restarts(&before[&each]);
            // Its kubelet may have started it once in between.
            assert!(more == 1 || more == 2 && each == *name, "{each}: {:#}", pod["status"]);
        }
        let reported = |reason: &str| {
            eventually(reason, || (!cluster.events(name, reason).is_empty()).then_some(()));
        };
        reported("GroupRestarted");
        self.kill(&self.load.pods()[name]);
        reported("GroupRestartLimit");
        cluster.kubectl(&[
            "annotate",
            "pods",
            "-l",
            "app=train",
            "--overwrite",
            &format!("{policy}=fail-codes=137"),
        ]);
        // A failure that was left to its kubelet stays so.
        self.kill(&self.load.pods()[name]);
        reported("GroupNotRestarted");
        assert_eq!(begun().len(), 1);
        cluster.kubectl(&["label", "pods", "-l", "app=train", &format!("{label}-")]);
    }

    /// Ends the process of a pod.
    fn kill(&self, pod: &Value) {
        let node = self.nodes.iter().find(|node| pod["spec"]["nodeName"] == *node.name).unwrap();
        let uid = pod["metadata"]["uid"].as_str().unwrap();
        // Its kubelet delays it more each time it is killed (back-off).
        let process = eventually_within(LONG, "it runs", || {
            let facts = block_on(observe(&node.endpoint, uid));
            facts.of("app").map(|instance| instance.pid).find(|pid| *pid > 0).ok_or("")
        });
        kill(Pid::from_raw(process.cast_signed()), Signal::SIGKILL).unwrap();
    }

    /// A container with a postStart handler is started by its kubelet, so that it cannot wait.
    fn a_pod_that_cannot_be_prepared_ends_it(&self) {
        let restarts_before: Vec<_> = self.load.pods().values().map(restarts).collect();
        let odd = json!({"metadata": {"labels": {"app": "train", "odd": "1"}}, "spec": {"terminationGracePeriodSeconds": 1,
            "containers": [{"name": "app", "image": self.fixture.cluster.image("app:v1"),
                "lifecycle": {"postStart": {"exec": {"command": ["/bin/true"]}}}}]}});
        let odd = Pod::make(self.fixture.cluster, "odd", odd);
        let args =
            ["restart", "-l", "app=train", "-c", "app", "--together", "--allow-stale-env", "--wait=4m"];
        let output = self.fixture.inplace(&[&args, &["-o", "json"][..]].concat()).output().unwrap();
        let rollout: Value = serde_json::from_slice(&output.stdout).unwrap();
        let status = &rollout["status"];
        assert_eq!(
            (output.status.success(), &status["phase"], &status["reason"]),
            (false, &json!("Failed"), &json!("PodsUnprepared")),
            "{status:#}"
        );
        assert!(status["message"].as_str().unwrap().contains("No container was stopped"), "{status:#}");
        self.fixture.cluster.kubectl(&["delete", "pod", &odd.name, "--wait=true"]);
        eventually("no agent works on the pods", || {
            let ended = |status: &Status| status.phase.is_terminal();
            self.statuses().values().all(ended).then_some(())
        });
        assert_eq!(self.load.pods().values().map(restarts).collect::<Vec<_>>(), restarts_before);
    }

    /// A pod of the group whose kubelet evaluates a liveness probe while its container waits at the barrier. A probe that is due
    /// between the creation and the start of an instance ends it (`docs/limits.md`). The period is longer than a start, so that
    /// the next instance has started before the next probe: a shorter one ended four instances in a row.
    fn probed(&self) -> Pod<'_> {
        let probe =
            json!({"exec": {"command": ["true"]}, "periodSeconds": PROBE_SECONDS, "timeoutSeconds": 30});
        let probed = json!({"metadata": {"labels": {"app": "train"}}, "spec": {"terminationGracePeriodSeconds": 2,
            "containers": [{"name": "app", "image": self.fixture.cluster.image("app:v1"), "livenessProbe": probe}]}});
        let pod = Pod::make(self.fixture.cluster, "probed", probed);
        pod.wait("it is Ready", is_ready);
        pod
    }

    /// Waits until the agent of this node has reported that its pods are prepared.
    fn wait_until_prepared(&self, node: &Node) {
        eventually("the pods of a node are prepared", || {
            let pods = self.load.pods();
            let statuses = self.statuses();
            let mut own = pods.iter().filter(|(_, pod)| pod["spec"]["nodeName"] == *node.name);
            let is_prepared = |name: &String| {
                let status = &statuses[name];
                let group = status.group.as_ref().filter(|_| !status.phase.is_terminal());
                group.is_some_and(|group| group.prepared_at.is_some())
            };
            own.all(|(name, _)| is_prepared(name)).then_some(())
        });
    }

    /// Begins a group restart, and returns its name once the agents were asked to stop the containers.
    fn begin_until_stop(&self, barrier_seconds: i64) -> String {
        let name = self.begin(barrier_seconds);
        eventually("the agents are to stop", || {
            let phase = self.phase(&name);
            (phase == "Stop" || phase == "Start").then_some(())
        });
        name
    }

    /// The phase of a group restart.
    fn phase(&self, rollout: &str) -> Value {
        self.fixture.rollout(rollout)["status"]["group"]["phase"].clone()
    }

    /// Begins a group restart, and returns its name.
    fn begin(&self, barrier_seconds: i64) -> String {
        let together = json!({"prepareTimeoutSeconds": 120, "barrierTimeoutSeconds": barrier_seconds});
        let manifest = json!({"apiVersion": "inplace.dev/v1alpha1", "kind": "InPlaceRollout",
            "metadata": {"generateName": "train-", "namespace": "default"},
            "spec": {"target": {"selector": {"matchLabels": {"app": "train"}}}, "containers": [{"name": "app"}],
                "strategy": "Together", "together": together, "pod": {"allowStaleEnv": true}}});
        let path = self.fixture.cluster.lab().dir.join("train.json");
        std::fs::write(&path, manifest.to_string()).unwrap();
        let name = self.fixture.cluster.kubectl(&["create", "-o", "name", "-f", path.to_str().unwrap()]);
        name.trim().rsplit('/').next().unwrap().to_owned()
    }

    fn end_of(&self, rollout: &str) -> Value {
        eventually_within(LONG, "the group restart has ended", || {
            let status = self.fixture.rollout(rollout)["status"].clone();
            if status["finishedAt"].is_string() { Ok(status) } else { Err(format!("{status:#}")) }
        })
    }

    fn statuses(&self) -> BTreeMap<String, Status> {
        let status = |pod: &Value| {
            let text = pod["metadata"]["annotations"][annotation::STATUS].as_str().unwrap();
            serde_json::from_str(text).unwrap()
        };
        self.load.pods().iter().map(|(name, pod)| (name.clone(), status(pod))).collect()
    }

    /// Without a controller each pod waits for the whole time of the barrier, and is started then: on a busy machine after some
    /// seconds, in which fences go and containers are created.
    fn all_start_by_themselves(&self, rollout: &str) {
        eventually_within(LONG, "all pods have started", || {
            let statuses = self.statuses();
            let open: Vec<_> = statuses
                .iter()
                .filter(|(_, status)| !status.phase.is_terminal())
                .map(|(name, _)| name)
                .collect();
            if open.is_empty() { Ok(()) } else { Err(format!("{open:?}")) }
        });
        // The controller may have opened the barrier just before it was killed.
        if self.phase(rollout) == "Start" {
            return;
        }
        let waited = SHORT_BARRIER_SECONDS * 1000 - 500..(SHORT_BARRIER_SECONDS + 60) * 1000;
        for (name, status) in self.statuses() {
            let down = status.containers[0].downtime_ms.unwrap();
            assert!(waited.contains(&down), "{name}: {down} ms");
        }
    }

    /// By the runtimes' clock, which the nodes of this machine share: the last container has stopped before the first one
    /// starts.
    fn stop_before_start(&self) {
        let statuses = self.statuses();
        let times =
            |at: fn(&Status) -> Option<Timestamp>| statuses.values().filter_map(at).collect::<Vec<_>>();
        let stopped = times(|status| status.containers[0].stopped_at);
        let started = times(|status| status.containers[0].started_at);
        assert_eq!((stopped.len(), started.len()), (COUNT, COUNT));
        assert!(stopped.iter().max() <= started.iter().min(), "{stopped:?} {started:?}");
    }
}
