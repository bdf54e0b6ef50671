//! A workload in a namespace of its own, used as by a user: published manifests, `kubectl` to apply, change and
//! list, and a watch on all changes.
//! Two things of a manifest are changed: images come from the lab's registry, and hooks call the lab's server,
//! because nothing may be sent to a public address. Each test names any other change.

use std::{
    io::Write,
    process::{Command, Output, Stdio},
    sync::Arc,
    time::Duration,
};

use inplace::api::{
    annotation::{GATE, REQUEST},
    game_deployment::GameDeployment,
    game_stateful_set::GameStatefulSet,
    hook_run::{HookPhase, HookRun},
    workload::Condition,
};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::watched::{All, Watched};
use crate::{
    agent::{Agent, Setup},
    cluster::Cluster,
    hook_runs::measurements::published_server,
    pod::{annotation, is, is_ready},
    support::wait::{eventually, eventually_or},
    support::{http_server::HttpServer, parts::Parts},
};

/// Time limit of an expected event on a busy machine.
const LONG: Duration = Duration::from_secs(300);
/// The address that the published hooks call.
const PUBLIC: &str = "1.1.1.1";

pub(super) const DEPLOYMENT: &str = "gamedeployment/test-gamedeployment";
pub(super) const SET: &str = "gamestatefulset/test-gamestatefulset";

/// A test case with the name of its namespace.
type Named = (&'static str, fn(&UpdateCase<'_>));

/// A cluster with an agent, controllers, and the server that hooks call.
pub(super) struct Fixture {
    /// Dropped before the cluster.
    pub(super) controllers: Vec<Agent>,
    _agent: Agent,
    hooks: HttpServer,
    pub(super) cluster: Cluster,
}

impl Fixture {
    pub(super) fn new(controllers: &[&str]) -> Self {
        let cluster = Cluster::own();
        let node = cluster.node();
        let hooks = published_server(&node.ip);
        let agent = Agent::start_on(&cluster, &node, &Setup::default());
        let controllers = controllers.iter().map(|name| Agent::controller(&cluster, name)).collect();
        let fixture = Self { controllers, _agent: agent, hooks, cluster };
        fixture.show_agent();
        fixture
    }

    /// The agent runs as a process. This pod represents it, because the controller checks by pods whether a node
    /// has an agent that runs its hooks.
    fn show_agent(&self) {
        let labels = json!({"app.kubernetes.io/name": "inplace", "app.kubernetes.io/component": "agent"});
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "stand-in", "namespace": "inplace-system", "labels": labels},
            "spec": {
                "nodeName": self.cluster.node().name, "automountServiceAccountToken": false,
                "containers": [{"name": "app", "image": "lab/app:v1"}],
            },
        });
        self.cluster.apply(&pod.to_string());
        let ready =
            ["wait", "--for=condition=Ready", "--timeout=120s", "pod/stand-in", "-n", "inplace-system"];
        self.cluster.kubectl(&ready);
    }

    /// Runs the test cases in parallel, each in its own namespace.
    pub(super) fn cases(&self, cases: &[Named]) {
        Parts::default()
            .run_all(cases.iter().map(|&(name, case)| (name, move || case(&UpdateCase::new(self, name)))));
    }
}

/// The namespace of a test case, and the watches on it.
pub(super) struct UpdateCase<'a> {
    pub(super) fixture: &'a Fixture,
    namespace: String,
    pub(super) pods: Watched<Pod>,
    pub(super) runs: Watched<HookRun>,
    deployments: Watched<GameDeployment>,
    sets: Watched<GameStatefulSet>,
}

impl<'a> UpdateCase<'a> {
    fn new(fixture: &'a Fixture, namespace: &str) -> Self {
        let client = || fixture.cluster.client.clone();
        fixture.cluster.kubectl(&["create", "namespace", namespace]);
        eventually("the namespace's account", || {
            let accounts = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
            fixture.cluster.find(&accounts, "default").map(drop)
        });
        Self {
            fixture,
            namespace: namespace.to_owned(),
            pods: Watched::of(client(), namespace),
            runs: Watched::of(client(), namespace),
            deployments: Watched::of(client(), namespace),
            sets: Watched::of(client(), namespace),
        }
    }

    // ---- actions of a user ----

    /// `kubectl apply` of a manifest; the output must be "created".
    pub(super) fn create(&self, manifest: &str) {
        assert_eq!(self.apply(manifest), format!("{} created\n", kubectl_name(manifest)));
    }

    /// `kubectl apply`; returns its output.
    pub(super) fn apply(&self, manifest: &str) -> String {
        let apply = ["apply", "-n", &self.namespace, "-f", "-"];
        printed(&mut self.fixture.cluster.kubectl_command(&apply), &self.local(manifest))
    }

    /// The manifest with the lab's registry and server.
    fn local(&self, manifest: &str) -> String {
        let server = self.fixture.hooks.address.ip().to_string();
        let text =
            manifest.replace(PUBLIC, &server).replace("image: ", &format!("image: {}", self.image("")));
        assert!(!text.contains(PUBLIC));
        text
    }

    /// An image of the lab's registry, under its published name.
    pub(super) fn image(&self, name: &str) -> String {
        self.fixture.cluster.image(name)
    }

    /// `kubectl` in the namespace; returns its output.
    pub(super) fn kubectl(&self, args: &[&str]) -> String {
        self.fixture.cluster.kubectl(&[args, &["-n", &self.namespace]].concat())
    }

    /// A JSON patch of one field.
    pub(super) fn replace(&self, what: &str, path: &str, value: impl Into<Value>) {
        let change = json!([{"op": "replace", "path": path, "value": value.into()}]).to_string();
        let watched = self.kubectl(&["patch", what, "--type=json", "-p", &change]);
        let (kind, name) = what.split_once('/').unwrap();
        assert_eq!(watched.trim_end(), format!("{kind}.tkex.tencent.com/{name} patched"));
    }

    /// Sets the image of the first container, as the documents do.
    pub(super) fn set_image(&self, what: &str, image: &str) {
        self.replace(what, "/spec/template/spec/containers/0/image", self.image(image));
    }

    /// A merge patch.
    pub(super) fn merge(&self, what: &str, patch: &Value) {
        self.kubectl(&["patch", what, "--type=merge", "-p", &patch.to_string()]);
    }

    pub(super) fn scale(&self, what: &str, replicas: u32) {
        let watched = self.kubectl(&["scale", &format!("--replicas={replicas}"), what]);
        let (kind, name) = what.split_once('/').unwrap();
        assert_eq!(watched.trim_end(), format!("{kind}.tkex.tencent.com/{name} scaled"));
    }

    // ---- observations of a user ----

    /// The output of `kubectl get`: the words of each line.
    pub(super) fn listed(&self, kind: &str) -> Vec<Vec<String>> {
        let watched = self.kubectl(&["get", kind]);
        watched.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    }

    /// Waits until the workload has these counters, and asserts that `kubectl get` prints them below its header. The time limit
    /// is for each change of the counters: the pods come one after the other.
    pub(super) fn shows(&self, what: &str, counters: &str) {
        let (kind, name) = what.split_once('/').unwrap();
        let header = if what == DEPLOYMENT {
            let of =
                |all: &All<GameDeployment>| all.get(name).map_or_else(String::new, |object| numbers(object));
            self.found(counters, self.deployments.wait_through(LONG, of, counters));
            "NAME DESIRED UPDATED UPDATED_READY READY TOTAL AGE"
        } else {
            let of = |all: &All<GameStatefulSet>| {
                all.get(name).map_or_else(String::new, |object| set_numbers(object))
            };
            self.found(counters, self.sets.wait_through(LONG, of, counters));
            "NAME REPLICAS READYREPLICAS CURRENTREPLICAS UPDATEDREPLICAS UPDATEDREADY_REPLICAS AGE"
        };
        // The counters may have these values more than once: a pod whose update was running counts again when it
        // ends.
        let row = format!("{name} {counters}");
        eventually_or("kubectl to print the counters", || {
            let printed = self.listed(kind);
            assert_eq!(printed[0].join(" "), header);
            if printed[1][..6].join(" ") == row { Ok(()) } else { Err(format!("{row}: {}", self.all())) }
        });
    }

    /// READY, STATUS and RESTARTS of each pod in `kubectl get pods`, by name.
    pub(super) fn pod_rows(&self) -> Vec<(String, String)> {
        let rows = self.listed("pods");
        assert_eq!(rows[0].join(" "), "NAME READY STATUS RESTARTS AGE");
        rows[1..].iter().map(|row| (row[0].clone(), row[1..4].join(" "))).collect()
    }

    /// Waits until this number of pods is listed as running with one restart, and the others with none.
    pub(super) fn restarted(&self, updated: usize) {
        let is = |pod: &Pod, count: i32| is_ready(pod) && restarts(pod) == count;
        let count = |pods: &All<Pod>, restarts| pods.values().filter(|pod| is(pod, restarts)).count();
        let pods = self.wait_pods(&format!("{updated} have restarted once"), |pods| {
            count(pods, 1) == updated && count(pods, 0) == pods.len() - updated
        });
        for (name, row) in self.pod_rows() {
            assert_eq!(row, format!("1/1 Running {}", restarts(&pods[&name])), "{name}");
        }
    }

    /// Asserts that `kubectl get hookrun` finds none.
    pub(super) fn no_runs(&self) {
        self.wait_runs("there is none", All::is_empty);
        let mut get = self.fixture.cluster.kubectl_command(&["get", "hookrun", "-n", &self.namespace]);
        let watched = String::from_utf8(get.output().unwrap().stderr).unwrap();
        assert_eq!(watched.trim_end(), format!("No resources found in {} namespace.", self.namespace));
    }

    /// Waits until this number of HookRuns exists, all in that phase, and asserts that they are printed so, under
    /// their published names.
    pub(super) fn runs(&self, count: usize, phase: HookPhase) -> All<HookRun> {
        let runs = self.wait_runs(&format!("{count} are {phase:?}"), |runs| {
            runs.len() == count && runs.values().all(|run| phase_of(run) == Some(phase))
        });
        let printed = self.listed("hookrun");
        assert_eq!(printed[0].join(" "), "NAME PHASE AGE");
        let rows: Vec<_> = printed[1..].iter().map(|row| row[..2].join(" ")).collect();
        let expected: Vec<_> = runs.keys().map(|name| format!("{name} {phase:?}")).collect();
        assert_eq!(rows, expected);
        runs
    }

    /// The workload as JSON from `kubectl`.
    pub(super) fn json(&self, what: &str) -> Value {
        serde_json::from_str(&self.kubectl(&["get", what, "-o", "json"])).unwrap()
    }

    // ---- waiting ----

    pub(super) fn wait_deployment(
        &self,
        what: &str,
        wanted: impl Fn(&GameDeployment) -> bool,
    ) -> Arc<GameDeployment> {
        let seen = self
            .deployments
            .wait(LONG, |all| all.get("test-gamedeployment").is_some_and(|object| wanted(object)));
        self.found(what, seen).remove("test-gamedeployment").unwrap()
    }

    pub(super) fn wait_pods(&self, what: &str, wanted: impl Fn(&All<Pod>) -> bool) -> All<Pod> {
        self.found(what, self.pods.wait(LONG, wanted))
    }

    pub(super) fn wait_runs(&self, what: &str, wanted: impl Fn(&All<HookRun>) -> bool) -> All<HookRun> {
        self.found(what, self.runs.wait(LONG, wanted))
    }

    fn found<T>(&self, what: &str, seen: Option<T>) -> T {
        seen.unwrap_or_else(|| panic!("{}: never seen: {what}\n{}", self.namespace, self.all()))
    }

    /// All objects, for the message of a failed test.
    pub(super) fn all(&self) -> String {
        let kinds = "gamedeployments,gamestatefulsets,hookruns,controllerrevisions,pods";
        let lists = self.kubectl(&["get", kinds, "-o", "wide"]);
        let status = "jsonpath={range .items[*]}{.kind} {.status}{\"\\n\"}{end}";
        let status = self.kubectl(&["get", "gamedeployments,gamestatefulsets,hookruns", "-o", status]);
        let pods = "jsonpath={range .items[*]}{.metadata.name} {.metadata.annotations}{\"\\n\"}{end}";
        let pods = self.kubectl(&["get", "pods", "-o", pods]);
        let events = self.kubectl(&["get", "events", "--sort-by=.lastTimestamp"]);
        format!("{lists}\n{status}\n{pods}\n{events}")
    }

    // ---- invariants ----

    /// Asserts that at no time since the `from`th change more than `most` of the workload's pods were out of
    /// traffic or terminating.
    pub(super) fn never_more_than(&self, most: usize, from: usize) {
        for pods in &self.pods.history()[from..] {
            let out: Vec<_> = pods.values().filter(|pod| !serves(pod)).map(|pod| name(pod)).collect();
            assert!(out.len() <= most, "{}: out of traffic at once: {out:?}\n{}", self.namespace, self.all());
        }
    }

    /// The number of changes of pods so far.
    pub(super) fn mark(&self) -> usize {
        self.pods.history().len() - 1
    }

    /// The names of the pods in the order of their requests since then, each once.
    pub(super) fn asked_since(&self, mark: usize) -> Vec<String> {
        let history = self.pods.history();
        let request = |pods: &All<Pod>, name: &str| annotation(pods.get(name)?, REQUEST).map(str::to_owned);
        let mut asked = Vec::new();
        for pods in &history[mark..] {
            for name in pods.keys() {
                let now = request(pods, name);
                if now.is_some() && now != request(&history[mark], name) && !asked.contains(name) {
                    asked.push(name.clone());
                }
            }
        }
        asked
    }
}

/// The output of the command with this input; it must succeed.
fn printed(command: &mut Command, input: &str) -> String {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

/// The name of a manifest's object in the output of `kubectl apply`.
fn kubectl_name(manifest: &str) -> String {
    let object: Value = serde_saphyr::from_str(manifest).unwrap();
    let kind = object["kind"].as_str().unwrap().to_lowercase();
    format!("{kind}.tkex.tencent.com/{}", object["metadata"]["name"].as_str().unwrap())
}

/// The numbers of `kubectl get`, from DESIRED to TOTAL; empty while the status is not of this generation.
fn numbers(object: &GameDeployment) -> String {
    let Some(status) = &object.status else { return String::new() };
    if object.metadata.generation != Some(status.observed_generation) {
        return String::new();
    }
    let watched =
        [status.updated_replicas, status.updated_ready_replicas, status.ready_replicas, status.replicas];
    format!("{} {}", object.spec.replicas, watched.map(|count| count.to_string()).join(" "))
}

/// The same for a `GameStatefulSet`, from REPLICAS on.
fn set_numbers(object: &GameStatefulSet) -> String {
    let Some(status) = &object.status else { return String::new() };
    if object.metadata.generation != Some(status.observed_generation) {
        return String::new();
    }
    let watched = [
        status.ready_replicas,
        status.current_replicas,
        status.updated_replicas,
        status.updated_ready_replicas,
    ];
    format!("{} {}", object.spec.replicas, watched.map(|count| count.to_string()).join(" "))
}

pub(super) fn name(pod: &Pod) -> String {
    pod.metadata.name.clone().unwrap()
}

/// What an update in place must preserve of each pod.
pub(super) fn identity(pods: &All<Pod>) -> Vec<[String; 4]> {
    let of = |pod: &Pod| {
        let (spec, status) = (pod.spec.as_ref().unwrap(), pod.status.as_ref().unwrap());
        [
            name(pod),
            pod.metadata.uid.clone().unwrap(),
            status.pod_ip.clone().unwrap(),
            spec.node_name.clone().unwrap(),
        ]
    };
    pods.values().map(|pod| of(pod)).collect()
}

/// The restart counts of the pod's containers, added up.
pub(super) fn restarts(pod: &Pod) -> i32 {
    let status = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    status.into_iter().flatten().map(|container| container.restart_count).sum()
}

/// The pod is Ready and not terminating.
pub(super) fn serves(pod: &Pod) -> bool {
    is_ready(pod) && pod.metadata.deletion_timestamp.is_none()
}

/// The pod of a HookRun by the run's name: `pre-delete-hook-<revision>-<instance>-test`.
pub(super) fn pod_of(revision: &str, run: &str) -> String {
    let instance = run.strip_prefix("pre-delete-hook-").and_then(|rest| rest.strip_prefix(revision));
    let instance = instance.and_then(|rest| rest.strip_prefix('-')?.strip_suffix("-test"));
    format!("test-gamedeployment-{}", instance.unwrap_or_else(|| panic!("{run} of {revision}")))
}

/// True when the pod's gate was closed after it had been open.
pub(super) fn was_drained(history: &[All<Pod>], pod: &str) -> bool {
    let gate = |pods: &All<Pod>| pods.get(pod).map(|pod| is(pod, GATE));
    let mut open = history.iter().map(gate).skip_while(|open| *open != Some(true));
    open.any(|open| open == Some(false))
}

pub(super) fn phase_of(run: &HookRun) -> Option<HookPhase> {
    run.status.as_ref()?.phase
}

/// A condition by its type.
pub(super) fn condition<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.kind == kind)
}

/// A `GameDeployment` with this strategy, whose pods stop immediately on SIGTERM.
pub(super) fn small(replicas: u32, strategy: &Value) -> String {
    format!(
        "
apiVersion: tkex.tencent.com/v1alpha1
kind: GameDeployment
metadata: {{name: test-gamedeployment}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: test}}}}
  updateStrategy: {strategy}
  template:
    metadata: {{labels: {{app: test}}}}
    spec:
      terminationGracePeriodSeconds: 2
      containers:
      - name: app
        image: app:v1
"
    )
}
