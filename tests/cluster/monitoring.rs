//! A real Prometheus scrapes an agent and a controller while they work: every query of the dashboard can be evaluated and
//! returns data, and the alert for closed pods fires and ends.

use std::fs;

use inplace::api::annotation::GATE;
use inplace::api::status::Phase;
use serde_json::{Value, json};

use crate::{
    agent::Agent,
    cluster::Cluster,
    pod::{Pod, is_ready},
    support::{prometheus::Prometheus, wait::eventually_or},
};

/// The alert for pods that a failed operation has left closed.
const CLOSED: &str = "InPlacePodClosed";
/// Other alerts that may fire on a busy machine, because here no rule waits: a scrape, a lease or a call came too late.
const LATE: [&str; 4] =
    ["InPlaceAgentDown", "InPlaceNoLeader", "InPlaceWritesFail", "InPlaceRuntimeUnavailable"];
/// Parts of the queries that have no data where nothing is wrong, no image is pulled ahead, or no trace is sent.
const QUIET: [&str; 5] = [
    "result!=\"Ok\"",
    "inplace_pending_answers",
    "inplace_prefetches_total",
    "inplace_traces_total",
    "inplace_hook_measurements_total",
];

#[test]
fn the_dashboard_has_data_and_a_closed_pod_fires_its_alert() {
    let cluster = Cluster::leased();
    let agent = Agent::start(&cluster, &[]);
    let (cert, key) = certificate(&cluster);
    let webhooks = ["--webhook-listen", "127.0.0.1:0", "--webhook-cert", &cert, "--webhook-key", &key];
    let controller = Agent::controller_with(&cluster, "monitored", &webhooks);
    let prometheus = started(&cluster, &agent, &controller);
    let workload = Workload::new(&cluster);
    let [pod, other] = ["one", "two"].map(|name| Pod::make(&cluster, name, gated(&cluster)));
    for pod in [&pod, &other] {
        pod.wait("it is Ready", is_ready);
    }
    pod.ask("restart app", Phase::Succeeded);
    for (name, strategy) in [("monitored-rolling", "Rolling"), ("monitored-together", "Together")] {
        rolled_out(&cluster, name, strategy);
    }
    let swap = |image: &str| {
        json!({"containers": [{"name": "app", "image": cluster.image(image)}], "gracePeriodSeconds": 1,
            "readyTimeoutSeconds": 2, "onFailure": "Keep"})
        .to_string()
    };
    // With v3 the container never becomes Ready.
    pod.ask(&swap("app:v3"), Phase::Failed);
    workload.updated();
    let closed =
        eventually_or("the alert", || closed_pods(&prometheus)?.ok_or_else(|| "it does not fire".to_owned()));
    assert_eq!(closed["labels"]["node"], cluster.node().name.as_str(), "{closed:#}");
    assert_eq!(closed["annotations"]["runbook"], "docs/runbooks.md#inplacepodclosed");
    eventually_or("data in all panels", || without_data(&prometheus));
    pod.ask(&swap("app:v2"), Phase::Succeeded);
    eventually_or("the end of the alert", || {
        // Without a scrape no alert fires either.
        let zero = prometheus.query("inplace_closed_pods == 0")?;
        let closed = closed_pods(&prometheus)?;
        if closed.is_none() && !zero.is_empty() { Ok(()) } else { Err(format!("{closed:?} {zero:?}")) }
    });
    for name in ["monitored-rolling", "monitored-together"] {
        cluster.kubectl(&["delete", "inplacerollout", name]);
    }
    assert_eq!(cluster.denied(), Vec::<Value>::new());
}

/// A Prometheus with the shipped rules, which do not wait before they fire.
fn started(cluster: &Cluster, agent: &Agent, controller: &Agent) -> Prometheus {
    let folder = cluster.lab().dir.join("prometheus");
    fs::create_dir_all(&folder).unwrap();
    let rules = fs::read_to_string("daemonset/monitoring/alerts.yaml").unwrap();
    let rules: Vec<_> = rules.lines().filter(|line| !line.trim_start().starts_with("for: ")).collect();
    let rules_file = folder.join("alerts.yaml");
    fs::write(&rules_file, rules.join("\n")).unwrap();
    let scrape = |job: &str, process: &Agent, labels: Value| {
        let targets = [format!("127.0.0.1:{}", process.port())];
        json!({"job_name": job, "static_configs": [{"targets": targets, "labels": labels}]})
    };
    let config = json!({
        "global": {"scrape_interval": "3s", "scrape_timeout": "3s", "evaluation_interval": "3s"},
        "rule_files": [rules_file],
        "scrape_configs": [
            scrape("inplace-agent", agent, json!({"node": cluster.node().name})),
            scrape("inplace-controller", controller, json!({})),
        ],
    });
    Prometheus::start(&folder, &config.to_string())
}

/// The alert for closed pods, if it fires. `Err` while one fires that a busy machine does not explain, and without an answer.
fn closed_pods(prometheus: &Prometheus) -> Result<Option<Value>, String> {
    let firing = prometheus.firing()?;
    let names: Vec<_> = firing.iter().map(|alert| alert["labels"]["alertname"].as_str().unwrap()).collect();
    if !names.iter().all(|name| *name == CLOSED || LATE.contains(name)) {
        return Err(format!("{names:?}"));
    }
    Ok(firing.into_iter().find(|alert| alert["labels"]["alertname"] == CLOSED))
}

/// `Err` with the queries of the dashboard that have no data yet, or with one that is not answered yet or cannot be evaluated.
fn without_data(prometheus: &Prometheus) -> Result<(), String> {
    let board = fs::read_to_string("daemonset/monitoring/dashboard.json").unwrap();
    let board: Value = serde_json::from_str(&board).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let queries = targets.map(|target| target["expr"].as_str().unwrap().replace("$__rate_interval", "1m"));
    let mut empty = Vec::new();
    for query in queries {
        let samples = prometheus.query(&query)?;
        if samples.is_empty() && !QUIET.iter().any(|part| query.contains(part)) {
            empty.push(query);
        }
    }
    if empty.is_empty() { Ok(()) } else { Err(empty.join("\n")) }
}

/// A certificate for the webhooks, and its key.
fn certificate(cluster: &Cluster) -> (String, String) {
    let dir = &cluster.lab().dir;
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let [cert, key] =
        ["monitored.crt", "monitored.key"].map(|name| dir.join(name).to_str().unwrap().to_owned());
    fs::write(&cert, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    (cert, key)
}

/// A pod with the readiness gate. It is not Ready with `app:v3`.
fn gated(cluster: &Cluster) -> Value {
    json!({"metadata": {"labels": {"app": "monitored"}}, "spec": {
        "terminationGracePeriodSeconds": 2,
        "readinessGates": [{"conditionType": GATE}],
        "containers": [{"name": "app", "image": cluster.image("app:v1"), "imagePullPolicy": "IfNotPresent",
            "readinessProbe": {"exec": {"command": ["grep", "-qv", "v3", "/etc/version"]}, "periodSeconds": 1, "timeoutSeconds": 30}}],
    }})
}

/// A rollout over the pods, with a hook where the strategy permits one.
fn rolled_out(cluster: &Cluster, name: &str, strategy: &str) {
    let hook = json!({"apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookTemplate",
        "metadata": {"name": "monitored", "namespace": "default"},
        "spec": {"metrics": [{"name": "runs", "provider": {"exec": {"container": "app", "command": ["true"]}}}]}});
    cluster.apply(&hook.to_string());
    let mut rollout = json!({"apiVersion": "inplace.dev/v1alpha1", "kind": "InPlaceRollout",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"target": {"selector": {"matchLabels": {"app": "monitored"}}}, "containers": [{"name": "app"}],
            "strategy": strategy, "maxUnavailable": "100%"}});
    if strategy == "Rolling" {
        rollout["spec"]["pod"] = json!({"preHook": {"templateName": "monitored"}});
    } else {
        // A busy machine may not prepare the pods within the default of 30 s.
        rollout["spec"]["together"] = json!({"prepareTimeoutSeconds": 120});
    }
    cluster.apply(&rollout.to_string());
    eventually_or(name, || {
        let path = format!("/apis/inplace.dev/v1alpha1/namespaces/default/inplacerollouts/{name}");
        let status = &cluster.read(&path)["status"];
        assert_ne!(status["phase"], "Failed", "{status:#}");
        if status["phase"] == "Succeeded" { Ok(()) } else { Err(status.to_string()) }
    });
}

/// A `GameDeployment` whose pod is updated in place; deleted on drop.
struct Workload<'a>(&'a Cluster);

impl<'a> Workload<'a> {
    fn new(cluster: &'a Cluster) -> Self {
        let workload = Self(cluster);
        workload.apply("lab/app:v1");
        workload
    }

    fn apply(&self, image: &str) {
        let labels = json!({"app": "monitored-game"});
        let object = json!({"apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameDeployment",
            "metadata": {"name": "monitored", "namespace": "default"},
            "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "updateStrategy": {"type": "InplaceUpdate"},
                "template": {"metadata": {"labels": labels}, "spec": {
                    "terminationGracePeriodSeconds": 2, "readinessGates": [{"conditionType": GATE}],
                    "containers": [{"name": "app", "image": image}]}}}});
        self.0.apply(&object.to_string());
    }

    /// Updates the pod, and waits until this is done.
    fn updated(&self) {
        self.ready("");
        self.apply("lab/app:v2");
        self.ready("app:v2");
    }

    /// Waits until the pod is Ready with an image of this name.
    fn ready(&self, image: &str) {
        eventually_or("the pod of the GameDeployment", || {
            let pods = self.0.pods("app=monitored-game");
            let status = pods.values().next().map_or(&Value::Null, |pod| &pod["status"]);
            let is_ready = status["containerStatuses"][0]["ready"] == true;
            let runs =
                status["containerStatuses"][0]["image"].as_str().is_some_and(|name| name.contains(image));
            if is_ready && runs { Ok(()) } else { Err(status.to_string()) }
        });
    }
}

impl Drop for Workload<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.0.kubectl(&["delete", "gamedeployment", "monitored"]);
        }
    }
}
