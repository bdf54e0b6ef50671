//! HookRuns on a real API server: the published templates, the stored and displayed status of a run, and that a
//! run continues when its runner is killed.

pub(crate) mod measurements;

use std::time::Duration;

use inplace::{
    api::{hook_template::HookTemplateSpec, request::HookArg},
    hook::check::prepare,
};
use serde_json::{Value, json};

use crate::{
    agent::{Agent, Setup},
    cluster::{Cluster, Node, block_on},
    kinds::{await_kinds, definitions},
    support::wait::eventually,
    support::{http_server::HttpServer, parts::Parts, wait::eventually_slowly},
};
use measurements::published_server;

/// The published templates, verbatim; all three are named `test`.
const TEMPLATES: [&str; 3] = [
    include_str!("template-success.yaml"),
    include_str!("template-fail.yaml"),
    include_str!("template-args.yaml"),
];
/// Longer than a lease, a fence and the grace of a node together.
const LONG: Duration = Duration::from_secs(240);

#[test]
fn hook_runs_end_as_published_and_survive_whoever_runs_them() {
    let cluster = Cluster::own();
    let fixture = Fixture::new(&cluster);
    let agent = fixture.agent();
    let parts = Parts::default();
    parts.run("the published templates", || fixture.published_templates());
    let agent = parts.run("a killed agent", || fixture.a_killed_agent_resumes(agent));
    let agent = agent.unwrap_or_else(|| fixture.agent());
    let controllers = || ["one", "two"].map(|name| Agent::controller(&cluster, name));
    let leaders =
        parts.run("without a node", || fixture.without_a_node_the_controller_runs_it(controllers()));
    let leaders = leaders.unwrap_or_else(controllers);
    let leaders = parts.run("a killed leader", || fixture.a_killed_leader_is_followed(leaders));
    let leaders = leaders.unwrap_or_else(controllers);
    parts.run("an agent that is away", || fixture.an_agent_that_is_away_is_stood_in_for(&agent, &leaders));
    // Before the processes end: they print their logs if the test fails.
    drop(parts);
}

struct Fixture<'a> {
    cluster: &'a Cluster,
    node: Node,
    published: HttpServer,
}

impl<'a> Fixture<'a> {
    fn new(cluster: &'a Cluster) -> Self {
        cluster.kubectl(&["apply", "--server-side", "-k", &definitions()]);
        block_on(await_kinds(cluster.client.clone()));
        let node = cluster.node();
        let published = published_server(&node.ip);
        Self { cluster, node, published }
    }

    fn agent(&self) -> Agent {
        Agent::start_on(self.cluster, &self.node, &Setup::default())
    }

    /// Applies the published templates. A run of each, with shorter intervals, must end as published.
    fn published_templates(&self) {
        // The pod that the arguments name.
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-0", "namespace": "default"},
            "spec": {
                "nodeName": self.node.name, "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "app", "image": "lab/app:v1"}],
            },
        });
        self.cluster.apply(&pod.to_string());
        for (template, name, phase) in [
            (TEMPLATES[0], "published-success", "Successful"),
            (TEMPLATES[1], "published-fail", "Failed"),
            (TEMPLATES[2], "published-args", "Successful"),
        ] {
            let applied = self.cluster.apply(template);
            assert!(applied.contains("hooktemplate.tkex.tencent.com/test"), "{applied}");
            let stored: Value =
                serde_json::from_str(&self.cluster.kubectl(&["get", "hooktemplate", "test", "-o", "json"]))
                    .unwrap();
            let local = stored["spec"].to_string().replace("1.1.1.1", &self.node.ip).replace("60s", "1s");
            let template: HookTemplateSpec = serde_json::from_str(&local).unwrap();
            let given =
                |(name, value): (&str, &str)| HookArg { name: name.to_owned(), value: value.to_owned() };
            let args = [
                ("PodIP", self.node.ip.as_str()),
                ("PodName", "web-0"),
                ("PodNamespace", "default"),
                ("service-name", "web"),
            ];
            let spec = prepare(&template, &args.map(given), None).unwrap();
            self.make(name, &serde_json::to_value(spec).unwrap(), Some(&self.node.name));
            let run = self.ended(name);
            assert_eq!(run["status"]["phase"], phase, "{run:#}");
            let result = &run["status"]["metricResults"][0];
            assert_eq!(result["measurements"].as_array().unwrap().len(), 3, "{run:#}");
            let yaml = self.cluster.kubectl(&["get", "hookrun", name, "-o", "yaml"]);
            assert_eq!(yaml.matches("value: \"45\"").count(), 3, "{yaml}");
            let absent = if phase == "Failed" { "successful" } else { "failed" };
            for counter in [absent, "inconclusive", "error", "consecutiveError"] {
                assert!(!yaml.contains(&format!(" {counter}: ")), "{counter}: {yaml}");
            }
            let listed = self.cluster.kubectl(&["get", "hookrun", name]);
            let words: Vec<Vec<_>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
            assert_eq!(words[0], ["NAME", "PHASE", "AGE"], "{listed}");
            assert_eq!(words[1][..2], [name, phase], "{listed}");
            let reason = if phase == "Failed" { "Failed" } else { "Complete" };
            eventually("the event", || self.events(name).contains(reason).then_some(()));
        }
    }

    fn a_killed_agent_resumes(&self, agent: Agent) -> Agent {
        self.polling("resumed", 4, "2s", Some(&self.node.name));
        self.stored("resumed");
        agent.kill();
        drop(agent);
        let lost = self.lost("resumed");
        let agent = self.agent();
        let run = self.ended("resumed");
        assert_eq!(run["status"]["phase"], "Successful", "{run:#}");
        assert_eq!(run["status"]["metricResults"][0]["measurements"].as_array().unwrap().len(), 4, "{run:#}");
        self.was_made_once("resumed", lost);
        agent
    }

    fn without_a_node_the_controller_runs_it(&self, leaders: [Agent; 2]) -> [Agent; 2] {
        self.polling("central", 2, "1s", None);
        let run = self.ended("central");
        assert_eq!(run["status"]["phase"], "Successful", "{run:#}");
        assert_eq!(runner(&run), "controller");
        // A controller that waits for the lease is ready, too.
        for leader in &leaders {
            assert_eq!(leader.get("/readyz").unwrap().0, 200);
        }
        eventually("one leader", || {
            (leaders.iter().filter(|controller| leads(controller)).count() == 1).then_some(())
        });
        leaders
    }

    fn a_killed_leader_is_followed(&self, leaders: [Agent; 2]) -> [Agent; 2] {
        self.polling("followed", 4, "3s", None);
        self.stored("followed");
        // A leader that cannot renew its lease for long, as on a busy machine, loses it: the one that leads now is killed.
        let leader = eventually("a leader", || leaders.iter().position(leads));
        let [one, two] = leaders;
        let (first, second) = if leader == 0 { (one, two) } else { (two, one) };
        first.kill();
        let lost = self.lost("followed");
        let run = self.ended("followed");
        assert_eq!(run["status"]["phase"], "Successful", "{run:#}");
        self.was_made_once("followed", lost);
        eventually("the second leads", || leads(&second).then_some(()));
        // A controller that is stopped releases the lease, so that the next one need not wait until it expires.
        let third = Agent::controller(self.cluster, "three");
        // Unless it has just lost the lease.
        let led = leads(&second);
        second.stop();
        let log = second.log();
        assert!(!led || log.contains("given back"), "{log}");
        eventually("the third leads", || leads(&third).then_some(()));
        [third, Agent::controller(self.cluster, "four")]
    }

    /// The run of a node moves to the controller when the node's agent is gone, and back, without two
    /// measurements at once.
    fn an_agent_that_is_away_is_stood_in_for(&self, agent: &Agent, leaders: &[Agent; 2]) {
        self.agent_pod(true);
        self.polling("moved", 10_000, "1s", Some(&self.node.name));
        self.measured("moved", 2);
        assert_eq!(runner(&self.get("moved")), format!("node/{}", self.node.name));
        self.an_annotation_is_set_by_the_controller();
        agent.kill();
        let lost = self.unstored("moved").max(1);
        self.agent_pod(false);
        self.wait("the controller has it", "moved", |run| runner(run) == "controller");
        let known = self.total("moved");
        self.wait("the controller measures", "moved", |run| total(run) >= known + 2);
        let _back = self.agent();
        self.agent_pod(true);
        let own = format!("node/{}", self.node.name);
        self.wait("the agent has it again", "moved", |run| runner(run) == own);
        let known = self.total("moved");
        self.wait("the agent measures", "moved", |run| total(run) >= known + 2);
        self.cluster.kubectl(&["annotate", "hookrun", "moved", "inplace.dev/approve=true"]);
        let run = self.ended("moved");
        assert_eq!(run["status"]["phase"], "Successful", "{run:#}");
        // Measurements in progress are not stored: at the kill, where more of them may have ended and be written later, when the
        // agent takes the run back, and at the approval.
        let (seen, stored) = (self.published.count("/moved"), total(&run));
        assert!(
            stored <= seen && seen <= stored + lost + 2,
            "{seen} were made, {stored} are stored, {lost} were lost at the kill"
        );
        assert_eq!(self.published.most_at_once("/moved"), 1);
        for leader in leaders {
            assert!(!leader.has_ended(), "{}", leader.log());
        }
    }

    /// Also on a node with an agent, because the agent does not have this right.
    fn an_annotation_is_set_by_the_controller(&self) {
        let field = json!({"path": "metadata.annotations.example.dev/leaves", "value": "yes"});
        let patch = json!({"kubernetes": {"function": "patch", "fields": [field]}});
        let metric = json!({"name": "marks", "count": 1, "provider": patch});
        let spec = json!({"metrics": [metric], "args": [{"name": "PodName", "value": "web-0"}]});
        self.make("marked", &spec, Some(&self.node.name));
        let run = self.ended("marked");
        assert_eq!(run["status"]["phase"], "Successful", "{run:#}");
        assert_eq!(runner(&run), "controller");
        let output = "jsonpath={.metadata.annotations.example\\.dev/leaves}";
        assert_eq!(self.cluster.kubectl(&["get", "pod", "web-0", "-o", output]), "yes");
    }

    // ---- actions ----

    fn make(&self, name: &str, spec: &Value, node: Option<&str>) {
        let labels = node.map_or_else(|| json!({}), |node| json!({"inplace.dev/node": node}));
        let run = json!({
            "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookRun",
            "metadata": {"name": name, "namespace": "default", "labels": labels},
            "spec": spec,
        });
        self.cluster.apply(&run.to_string());
    }

    /// Creates a run with this number of measurements, at its own path.
    fn polling(&self, name: &str, times: u32, interval: &str, node: Option<&str>) {
        let url = format!("http://{}/{name}", self.published.address);
        let metric = json!({"name": "poll", "count": times, "interval": interval, "successCondition": "asInt(result) > 30",
            "provider": {"web": {"url": url, "jsonPath": "{$.age}"}}});
        // A pod of the node, which `published_templates` has created.
        let args = json!([{"name": "PodName", "value": "web-0"}]);
        self.make(name, &json!({"metrics": [metric], "args": args}), node);
    }

    fn get(&self, name: &str) -> Value {
        self.cluster.read(&format!("/apis/tkex.tencent.com/v1alpha1/namespaces/default/hookruns/{name}"))
    }

    fn wait(&self, what: &str, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let poll = || Some(self.get(name)).filter(&wanted);
        eventually_slowly(LONG, what, poll, || format!("{:#}", self.get(name)))
    }

    fn ended(&self, name: &str) -> Value {
        self.wait("it has ended", name, has_ended)
    }

    fn measured(&self, name: &str, times: u64) {
        self.wait("it has measured", name, |run| total(run) >= times);
    }

    /// Waits until a measurement is stored, and none is in progress: a runner does not wait for its writes, so that a busy API
    /// server may have more than one of them still to store.
    fn stored(&self, name: &str) {
        let all = |run: &Value| total(run) == self.published.count(&format!("/{name}"));
        self.wait("all that was measured is stored", name, |run| total(run) >= 1 && all(run));
    }

    /// Number of measurements that were requested and are not stored.
    fn unstored(&self, name: &str) -> u64 {
        let stored = self.total(name);
        self.published.count(&format!("/{name}")) - stored
    }

    /// Number of measurements that were in progress when the runner died, at most one: requested and not stored.
    fn lost(&self, name: &str) -> u64 {
        let lost = self.unstored(name);
        assert!(lost <= 1, "{lost} measurements were made and not stored");
        lost
    }

    /// Asserts that of four measurements none was made again except one that was lost. The last write of the runner that died may
    /// be stored after the measurement was counted as lost.
    fn was_made_once(&self, name: &str, lost: u64) {
        let made = self.published.count(&format!("/{name}"));
        assert!((4..=4 + lost).contains(&made), "{made} measurements, {lost} lost: one was made again");
    }

    fn total(&self, name: &str) -> u64 {
        total(&self.get(name))
    }

    fn events(&self, name: &str) -> String {
        let about = format!("involvedObject.kind=HookRun,involvedObject.name={name}");
        self.cluster.kubectl(&["get", "events", "--field-selector", &about])
    }

    /// Creates or deletes a pod that counts as the agent's pod when the controller checks whether the node has an
    /// agent.
    fn agent_pod(&self, there: bool) {
        if !there {
            let delete = ["delete", "pod", "stand-in", "-n", "inplace-system", "--grace-period=1"];
            self.cluster.kubectl(&delete);
            return;
        }
        let labels = json!({"app.kubernetes.io/name": "inplace", "app.kubernetes.io/component": "agent"});
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "stand-in", "namespace": "inplace-system", "labels": labels},
            "spec": {
                "nodeName": self.node.name, "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "app", "image": "lab/app:v1"}],
            },
        });
        self.cluster.apply(&pod.to_string());
        let ready =
            ["wait", "--for=condition=Ready", "--timeout=180s", "pod/stand-in", "-n", "inplace-system"];
        self.cluster.kubectl(&ready);
    }
}

fn leads(controller: &Agent) -> bool {
    controller.metric(&["inplace_leader"]) > 0.0
}

/// Whether a run has a verdict.
pub(crate) fn has_ended(run: &Value) -> bool {
    !matches!(run["status"]["phase"].as_str(), None | Some("Pending" | "Running"))
}

fn runner(run: &Value) -> &str {
    run["metadata"]["annotations"]["inplace.dev/runner"].as_str().unwrap_or_default()
}

/// The number of finished measurements, including those that the status no longer lists.
fn total(run: &Value) -> u64 {
    run["status"]["metricResults"][0]["successful"].as_u64().unwrap_or(0)
}
