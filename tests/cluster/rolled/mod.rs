//! `inplace restart|swap` of workloads of every kind, end to end: the controller and agents with their shipped
//! rights, a user with no more rights than docs/install.md names, and real pods on two nodes.

mod aborted;
pub(crate) mod budget;
mod dead_node;
mod failures;
mod grouped;
mod hooked;
mod kinds;
mod together;

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read},
    path::PathBuf,
    process::{Child, ChildStderr, Command, Stdio},
    thread,
};

use inplace::api::{
    annotation::GATE,
    workload_kind::{KINDS, Kind},
};
use serde_json::{Value, json};

use crate::{
    agent::{Agent, Setup},
    cluster::Cluster,
    support::{
        parts::Parts,
        wait::{WAIT_LIMIT, eventually},
    },
    traffic::{SERVING, Traffic, service},
};
use budget::Budget;

/// A part of the test.
type Part = fn(&Fixture<'_>);

#[test]
fn the_pods_of_any_workload_are_restarted_in_place_under_a_budget() {
    let cluster = Cluster::own();
    let other = cluster.add_node("node-2");
    let _agents = [Agent::start(&cluster, &[]), Agent::start_on(&cluster, &other, &Setup::default())];
    let controller = Agent::controller(&cluster, "one");
    let fixture = Fixture { cluster: &cluster, person: person(&cluster) };
    let (fixture, parts) = (&fixture, Parts::default());
    let kinds = [("Deployment", 3), ("StatefulSet", 3), ("DaemonSet", 2)];
    parts.run_all(kinds.map(|(kind, count)| (kind, move || no_request_is_refused(fixture, kind, count))));
    let failures: [(_, Part); 5] = [
        ("a failed pod", failures::one_failed_pod_stops_it_and_has_its_image_back),
        ("an aborted rollout", aborted::pods_with_the_new_image_go_back_after_a_failure),
        ("a newer rollout", failures::the_newer_one_of_two_takes_over),
        ("a deleted target", failures::a_target_that_is_deleted_ends_it),
        ("a cancelled rollout", failures::what_has_not_begun_when_it_is_cancelled_never_begins),
    ];
    parts.run_all(failures.map(|(name, part)| (name, move || part(fixture))));
    thread::scope(|scope| {
        let parts = &parts;
        let owners = ["ReplicaSet", "GameDeployment", "GameStatefulSet"];
        let owners = owners.map(|kind| (kind, move || kinds::an_owner_has_nothing_to_do(fixture, kind)));
        let jobs = [("Job, Never", "Never"), ("Job, OnFailure", "OnFailure")];
        let jobs = jobs.map(|(name, policy)| (name, move || kinds::a_job_goes_on(fixture, policy)));
        let others: [(_, Part); 5] = [
            ("labels", kinds::labels_mean_pods_of_any_owner),
            ("a pod without a node", kinds::a_pod_that_cannot_be_scheduled_ends_nothing),
            ("hooks", hooked::each_pod_passes_its_hooks_before_and_after),
            ("a failed hook", hooked::a_pod_whose_hook_fails_is_not_touched_and_the_last),
            ("groups", grouped::the_pods_of_a_group_are_updated_before_the_next_group),
        ];
        scope.spawn(move || parts.run_all(owners));
        scope.spawn(move || parts.run_all(jobs));
        scope.spawn(move || parts.run_all(others.map(|(name, part)| (name, move || part(fixture)))));
    });
    parts.run("two controllers", || {
        failures::nobody_is_restarted_twice_by_two_controllers(fixture, &controller);
    });
    // No write exceeded the shipped rights.
    let denied = cluster.denied();
    assert!(denied.is_empty(), "{denied:#?}");
}

/// A rolling restart with a drain, behind a Service that receives requests all the time, and with a disruption
/// budget that is stricter than `--max-unavailable`.
fn no_request_is_refused(fixture: &Fixture<'_>, kind: &str, count: usize) {
    let name = kind.to_lowercase();
    let load = Load { fixture, kind, name: &name };
    service(fixture.cluster, &name);
    load.apply(count, true);
    fixture.cluster.apply(
        &json!({"apiVersion": budget::interface(fixture.cluster), "kind": "PodDisruptionBudget",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"minAvailable": count - 1, "selector": {"matchLabels": {"app": name}}}})
        .to_string(),
    );
    let budget = Budget::watch(fixture.cluster, &name, count);
    let traffic = Traffic::to(fixture.cluster, &name, count);
    let before = load.pods();
    let sets = load.replica_sets();

    let target = format!("{name}/{name}");
    // A fixed drain does not wait for a kubelet that is late. The time counts from the EndpointSlices; the requests follow the
    // Endpoints, which on a busy machine change seconds before or after these.
    let drain = ["--drain", "confirmed", "--grace", "10s"];
    let args = [&["restart", &target, "-c", "app", "--max-unavailable", "2"][..], &drain].concat();
    let (status, reported) = fixture.through(&args, count);
    assert!(status["downtimeMs"]["most"].as_i64() > Some(0), "{status:#}");
    for pod in before.keys() {
        assert!(reported.contains(&format!("pod/{pod}: Running")), "{pod} was shown: {reported}");
    }

    load.same_but_restarted(&before, 1);
    assert_eq!(load.replica_sets(), sets, "its owner has noticed nothing");
    assert_eq!(traffic.failed(), Vec::<String>::new(), "{kind}: of {}", traffic.served());
    assert!(traffic.served() > 20, "{kind}: {} requests are no proof", traffic.served());
    budget.was_never_broken(count - 1);
}

/// A flag with the time for this number of operations one after the other, in seconds.
fn limit(flag: &str, operations: usize) -> String {
    format!("{flag}={}", WAIT_LIMIT.as_secs() * operations as u64)
}

/// A cluster, and a user with the rights of docs/install.md.
struct Fixture<'a> {
    cluster: &'a Cluster,
    person: PathBuf,
}

impl Fixture<'_> {
    /// The program with that user's rights.
    fn inplace(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_inplace"));
        command.args(args).env("KUBECONFIG", &self.person).args(["-n", "default"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn rollout(&self, name: &str) -> Value {
        self.cluster.read(&format!("/apis/inplace.dev/v1alpha1/namespaces/default/inplacerollouts/{name}"))
    }

    /// Starts a rollout and returns its name.
    fn begin(&self, args: &[&str]) -> String {
        let output = self.inplace(&[args, &["-o", "name"]].concat()).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        text.trim().strip_prefix("inplacerollout.inplace.dev/").unwrap().to_owned()
    }

    /// Runs a command with `--wait`, which must succeed with this number of pods. Returns the status, and the
    /// output during the wait.
    fn through(&self, args: &[&str], count: usize) -> (Value, String) {
        let wait = limit("--wait", count);
        let output = self.inplace(&[args, &[wait.as_str(), "-o", "json"]].concat()).output().unwrap();
        let reported = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}: {reported}");
        let rollout: Value = serde_json::from_slice(&output.stdout).unwrap();
        let status = &rollout["status"];
        assert_eq!(
            (&status["phase"], &status["done"], &status["failed"]),
            (&json!("Succeeded"), &json!(count), &json!(0)),
            "{args:?}: {status:#}"
        );
        (status.clone(), reported)
    }

    /// Follows a rollout from another process, until this number of operations must have ended one after the other; some
    /// progress was printed there when this returns.
    fn follow(&self, name: &str, operations: usize) -> Follower {
        let timeout = limit("--timeout", operations);
        let mut command = self.inplace(&["rollout", "status", &format!("ipr/{name}"), &timeout]);
        let mut child = command.spawn().unwrap();
        let (mut lines, mut reported) = (BufReader::new(child.stderr.take().unwrap()), String::new());
        assert!(lines.read_line(&mut reported).unwrap() > 0, "{name}: {child:?} says nothing");
        Follower { child, lines, reported }
    }
}

struct Follower {
    child: Child,
    lines: BufReader<ChildStderr>,
    reported: String,
}

impl Follower {
    /// The exit code and the whole output.
    fn end(mut self) -> (Option<i32>, String) {
        self.lines.read_to_string(&mut self.reported).unwrap();
        let output = self.child.wait_with_output().unwrap();
        (output.status.code(), self.reported + &String::from_utf8_lossy(&output.stdout))
    }
}

/// A kubeconfig with the rights of docs/install.md, and no others.
fn person(cluster: &Cluster) -> PathBuf {
    let rule = |group: &str, resources: Value, verbs: Value| json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
    let mut rules = vec![
        rule(
            "inplace.dev",
            json!(["inplacerollouts"]),
            json!(["create", "get", "list", "watch", "patch", "delete"]),
        ),
        rule("", json!(["pods"]), json!(["list", "watch"])),
    ];
    rules.extend(KINDS.map(|kind| rule(kind.group, json!([kind.plural()]), json!(["get"]))));
    let name = json!({"name": "person", "namespace": "default"});
    for object in [
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": name}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": name, "rules": rules}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": name,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "person"},
            "subjects": [{"kind": "ServiceAccount", "name": "person", "namespace": "default"}]}),
    ] {
        cluster.apply(&object.to_string());
    }
    cluster.kubeconfig_of("default", "person")
}

/// A workload with its pods, which have the label `app: NAME`.
struct Load<'a> {
    fixture: &'a Fixture<'a>,
    kind: &'a str,
    name: &'a str,
}

impl Load<'_> {
    /// Creates the workload, and waits until its pods are Ready.
    fn apply(&self, count: usize, serves: bool) {
        let mut spec =
            json!({"selector": {"matchLabels": {"app": self.name}}, "template": self.template(serves)});
        match self.kind {
            "DaemonSet" => {}
            "StatefulSet" | "GameStatefulSet" => {
                spec["replicas"] = count.into();
                spec["serviceName"] = self.name.into();
                spec["podManagementPolicy"] = "Parallel".into();
            }
            _ => spec["replicas"] = count.into(),
        }
        self.make(count, &spec);
    }

    /// The same with a given spec.
    fn make(&self, count: usize, spec: &Value) {
        let version = Kind::read(self.kind).unwrap().api_version();
        self.fixture.cluster.apply(
            &json!({"apiVersion": version, "kind": self.kind, "metadata": {"name": self.name, "namespace": "default"},
                "spec": spec})
            .to_string(),
        );
        eventually(&format!("{count} pods of {} are Ready", self.name), || {
            let pods = self.pods();
            (pods.len() == count && pods.values().all(is_ready)).then_some(())
        });
    }

    /// The template of pods with the readiness gate.
    fn template(&self, serves: bool) -> Value {
        let containers = if serves {
            serde_saphyr::from_str::<Value>(&format!("- name: app{}", SERVING.trim_end())).unwrap()
        } else {
            json!([{"name": "app", "image": "lab/app:v1"}])
        };
        json!({"metadata": {"labels": {"app": self.name}}, "spec": {"terminationGracePeriodSeconds": 2,
            "readinessGates": [{"conditionType": GATE}], "containers": containers}})
    }

    fn pods(&self) -> BTreeMap<String, Value> {
        self.fixture.cluster.pods(&format!("app={}", self.name))
    }

    /// Names and template hashes of the workload's `ReplicaSet`s; other kinds have none.
    fn replica_sets(&self) -> String {
        let labels = format!("app={}", self.name);
        let columns =
            "custom-columns=N:.metadata.name,H:.metadata.labels.pod-template-hash,G:.metadata.generation";
        self.fixture.cluster.kubectl(&["get", "rs", "-l", &labels, "-o", columns])
    }

    /// Asserts that these are the same pods at the same addresses, Ready, and that each container was restarted
    /// this number of times.
    fn same_but_restarted(&self, before: &BTreeMap<String, Value>, instances: u64) {
        let kept = |pods: &BTreeMap<String, Value>| -> Vec<_> {
            pods.iter()
                .map(|(name, pod)| {
                    (name.clone(), pod["metadata"]["uid"].clone(), pod["status"]["podIP"].clone())
                })
                .collect()
        };
        let after = eventually(&format!("all of {} are Ready again", self.name), || {
            let pods = self.pods();
            pods.values().all(is_ready).then_some(pods)
        });
        assert_eq!(kept(&after), kept(before));
        for (name, pod) in &after {
            assert_eq!(restarts(pod), instances, "{name}: {:#}", pod["status"]);
        }
    }
}

fn restarts(pod: &Value) -> u64 {
    pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or_default()
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|one| one["type"] == "Ready" && one["status"] == "True")
}
