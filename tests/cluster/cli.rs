//! The command line against a real API server. For tests that need every possible answer, the test writes the
//! agent's statuses: its pods are bound to a Node object without kubelet and agent. Plans are made from a real
//! kubelet's reports, and the last test has a real agent.

use std::{
    io::{BufRead, BufReader},
    ops::Deref,
    os::unix::fs::symlink,
    process::{Child, Command, Output, Stdio},
};

use k8s_openapi::api::core::v1::{Event, Pod as Object};
use kube::{Api, api::PostParams};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::{
    agent::Agent,
    cluster::{Cluster, block_on},
    pod::{Pod, annotation, container, is_ready},
    support::wait::eventually,
};

const REQUEST: &str = "inplace.dev/request";
const STATUS: &str = "inplace.dev/status";

/// `app` has an image of its own repository; `side` reads a `ConfigMap`, so it cannot be cloned.
const SPEC: &str = "
terminationGracePeriodSeconds: 2
readinessGates: [{conditionType: InPlaceUpdateReady}]
containers:
- {name: app, image: lab/app:v1}
- {name: side, image: lab/app:v1, envFrom: [{configMapRef: {name: kube-root-ca.crt}}]}
";

/// A pod whose containers run. It is not Ready unless an agent opens its gate.
fn running<'a>(cluster: &'a Cluster, name: &str) -> Pod<'a> {
    let pod = Pod::create(cluster, name, SPEC);
    pod.wait("both containers run", both_run);
    pod
}

fn both_run(pod: &Object) -> bool {
    let reported = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    reported.filter(|status| status.ready).count() == 2
}

/// A pod on a node without kubelet and agent: only the test writes its status.
struct Fixture {
    pod: Pod<'static>,
    node: String,
}

impl Deref for Fixture {
    type Target = Pod<'static>;

    fn deref(&self) -> &Self::Target {
        &self.pod
    }
}

impl Fixture {
    fn set(name: &str) -> Self {
        let cluster = Cluster::any();
        let node = format!("nobody-{name}-{}", std::process::id());
        cluster.apply(&format!("apiVersion: v1\nkind: Node\nmetadata: {{name: {node}}}\n"));
        let pod = Pod::create(cluster, name, &format!("nodeName: {node}\n{SPEC}"));
        Self { pod, node }
    }

    /// Deletes the pod by force, because no kubelet ends it.
    fn clear(&self) {
        let force = ["delete", "pod", &self.name, "--force", "--grace-period=0", "--ignore-not-found"];
        self.cluster.kubectl(&force);
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.clear();
            self.cluster.kubectl(&["delete", "node", &self.node]);
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs the program to its end.
fn inplace(args: &[&str]) -> Output {
    Cluster::any().inplace(args).output().unwrap()
}

/// Starts the program with piped output.
fn begin(args: &[&str]) -> Child {
    let mut command: Command = Cluster::any().inplace(args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The request on the pod, once it has the id.
fn written(pod: &Pod<'_>, id: &str) -> Value {
    let read = |text: &str| serde_json::from_str::<Value>(text).ok().filter(|request| request["id"] == id);
    let object = pod.wait("the request is written", |pod| annotation(pod, REQUEST).and_then(read).is_some());
    annotation(&object, REQUEST).and_then(read).unwrap()
}

/// Writes a status as the agent would.
fn answer(pod: &Pod<'_>, id: &str, phase: &str, step: &str, message: &str) {
    let status = json!({
        "id": id, "phase": phase, "step": step, "reason": "", "message": message,
        "startedAt": "2026-11-20T10:00:00.000Z", "finishedAt": null, "containers": [],
    });
    pod.annotate(STATUS, Some(&status.to_string()));
}

#[test]
fn a_request_is_written_followed_and_ends_with_the_answers_exit_code() {
    let pod = Fixture::set("ends");
    let version = |pod: &Pod<'_>| pod.get().metadata.resource_version;
    for (id, phase, code) in [
        ("ends-1", "Succeeded", 0),
        ("ends-2", "Failed", 1),
        ("ends-3", "Refused", 3),
        ("ends-4", "RolledBack", 4),
        ("ends-5", "Cancelled", 5),
    ] {
        let flags = ["--grace", "5s", "--reason", "a test", "--id", id, "--wait=60s"];
        let child = begin(&[&["restart", &pod.name, "-c", "side,app"], &flags[..]].concat());
        let request = written(&pod, id);
        assert_eq!(request["containers"], json!([{"name": "side"}, {"name": "app"}]));
        assert_eq!((&request["gracePeriodSeconds"], &request["reason"]), (&json!(5), &json!("a test")));
        answer(&pod, id, "Running", "Drain", "waiting for the grace period");
        answer(&pod, id, phase, "Ready", "so it ended");
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{phase}: {}", text(&output.stderr));
        assert_eq!(text(&output.stdout), format!("pod/{}: {phase}: so it ended\n", pod.name));
        assert!(text(&output.stderr).contains(&format!("request {id} is written")));
    }
    let before = version(&pod);
    let again = inplace(&["restart", &pod.name, "-c", "app", "--id", "ends-5"]);
    assert_eq!((again.status.code(), text(&again.stderr).contains("is not run again")), (Some(5), true));
    assert_eq!(version(&pod), before, "an id that has ended is not written again");
}

#[test]
fn the_wait_is_for_its_own_id_behind_another_one() {
    let pod = Fixture::set("queue");
    answer(&pod, "before", "Running", "Swap", "");
    let child =
        begin(&["swap", &format!("pod/{}", pod.name), "app=repo/app:v2", "--id", "mine", "--wait=60"]);
    assert_eq!(written(&pod, "mine")["containers"], json!([{"name": "app", "image": "repo/app:v2"}]));
    answer(&pod, "before", "Failed", "Swap", "the other one failed");
    answer(&pod, "mine", "Succeeded", "Verify", "done");
    let output = child.wait_with_output().unwrap();
    let reported = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{reported}");
    assert!(
        reported.contains("before is in progress (Running, Swap): the new request waits until it has ended"),
        "{reported}"
    );
}

#[test]
fn a_request_that_nobody_answers_stays_until_it_is_cancelled() {
    let pod = Fixture::set("alone");
    let waited = inplace(&["restart", &pod.name, "-c", "app", "--id", "lost", "--wait=1s"]);
    let reported = text(&waited.stderr);
    assert_eq!(waited.status.code(), Some(8), "{reported}");
    assert!(
        reported.contains(&format!("check that the inplace agent is running on node {}:", pod.node)),
        "{reported}"
    );
    let wrong = inplace(&["cancel", &pod.name, "--id", "other"]);
    assert_eq!((wrong.status.code(), text(&wrong.stderr).contains("is lost, not other")), (Some(3), true));
    assert!(annotation(&pod.get(), REQUEST).is_some());
    let cancelled = inplace(&["cancel", &pod.name]);
    assert_eq!(cancelled.status.code(), Some(0), "{}", text(&cancelled.stderr));
    assert_eq!(annotation(&pod.get(), REQUEST), None);
    assert_eq!(inplace(&["cancel", &pod.name]).status.code(), Some(3));
}

#[test]
fn cancelling_ends_the_wait_of_another_terminal() {
    let pod = Fixture::set("withdrawn");
    let child = begin(&["restart", &pod.name, "-c", "app", "--id", "away", "--wait=60s"]);
    written(&pod, "away");
    assert_eq!(inplace(&["cancel", &pod.name]).status.code(), Some(0));
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(5));
    assert!(text(&output.stderr).contains("the request was withdrawn"), "{}", text(&output.stderr));
}

#[test]
fn an_interrupt_ends_the_wait_and_not_the_request() {
    let pod = Fixture::set("interrupted");
    let mut child = begin(&["restart", &pod.name, "-c", "app", "--id", "stays", "--wait=60s"]);
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    // The interrupt is sent only after this message; before it Ctrl-C would end the process as usual.
    assert!(lines.any(|line| line.ends_with("waiting for the agent")));
    let process = Pid::from_raw(child.id().try_into().unwrap());
    kill(process, Signal::SIGINT).unwrap();
    assert!(lines.any(|line| line.contains(&format!("`inplace cancel pod/{}`", pod.name))));
    assert_eq!(child.wait().unwrap().code(), Some(5));
    written(&pod, "stays");
}

#[test]
fn a_pod_that_is_deleted_ends_the_wait() {
    let pod = Fixture::set("deleted");
    let child = begin(&["restart", &pod.name, "-c", "app", "--id", "gone", "--wait=60s"]);
    written(&pod, "gone");
    pod.clear();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("the pod is gone"), "{}", text(&output.stderr));
}

#[test]
fn a_plan_names_engine_and_reason_and_touches_nothing() {
    let pod = running(Cluster::any(), "planned");
    // Its kubelet and an agent may write to its status meanwhile.
    let stored = || {
        let pod = pod.get();
        (pod.spec, pod.metadata.annotations)
    };
    let before = stored();
    let plan = |args: &[&str]| {
        let output = inplace(&[&["plan", &pod.name, "-o", "json"], args].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()[0].take()
    };
    let restart = plan(&["-c", "app"]);
    assert_eq!(restart["containers"][0]["engine"], "Recreate", "{restart}");
    assert_eq!(
        (&restart["containers"][0]["restarts"], &restart["containers"][0]["restartsThen"]),
        (&json!(0), &json!(1))
    );
    let respec = plan(&["-c", "side"]);
    assert_eq!(respec["containers"][0]["engine"], "Respec", "{respec}");
    let digest = respec["containers"][0]["specImage"].as_str().unwrap().to_owned();
    assert!(digest.starts_with(&Cluster::any().image("app@sha256:")), "{digest}");
    let image = Cluster::any().image("app:v2");
    let swap = plan(&[&format!("app={image}"), "--grace", "5"]);
    assert_eq!(
        (&swap["containers"][0]["engine"], &swap["containers"][0]["toImage"]),
        (&json!("Respec"), &json!(image))
    );
    assert!(swap["steps"].as_array().unwrap().contains(&json!("Drain")), "{swap}");
    // In these tests the user may read every node, so nothing about the node is assumed.
    assert!(!swap["decidedOnTheNode"].to_string().contains("assumed"));
    let dry = inplace(&["restart", &pod.name, "-c", "app", "--dry-run"]);
    assert!(text(&dry.stdout).ends_with("nothing was touched\n"), "{}", text(&dry.stdout));
    assert_eq!(stored(), before);
}

#[test]
fn a_slip_in_one_name_changes_no_pod() {
    let pod = Fixture::set("slip");
    for (args, code, says) in [
        (["restart", &pod.name, "no-such-pod", "-c", "app"], 3, "no-such-pod"),
        (["restart", &pod.name, &pod.name, "-c", "db"], 3, "has no container db; it has app, side"),
        (["restart", &pod.name, &pod.name, "--grace", "3s"], 2, "select with -c (app, side)"),
        (["swap", &pod.name, &pod.name, "--grace", "3s"], 2, "the image is missing"),
        (["restart", &pod.name, &pod.name, "--context", "none"], 2, "kubeconfig"),
    ] {
        let output = inplace(&args);
        let reported = text(&output.stderr);
        assert!(output.status.code() == Some(code) && reported.contains(says), "{args:?}: {reported}");
        assert!(output.stdout.is_empty());
    }
    assert_eq!(annotation(&pod.get(), REQUEST), None);
}

#[test]
fn status_lists_and_follows() {
    let (pod, other) = (Fixture::set("watched"), Fixture::set("unasked"));
    answer(&pod, "one", "Running", "Pull", "Pull is in progress");
    let mut child = begin(&["status", &pod.name, "--watch"]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().starts_with("POD"));
    assert!(lines.next().unwrap().contains("Pull is in progress"));
    answer(&pod, "one", "Succeeded", "Verify", "done");
    let last = lines.find(|line| line.contains("Succeeded")).unwrap();
    assert!(last.contains("one") && last.ends_with("done"), "{last}");
    child.kill().unwrap();
    child.wait().unwrap();
    let listed = text(&inplace(&["status", "-A", "-o", "wide"]).stdout);
    assert!(listed.contains(&pod.name) && !listed.contains(&other.name), "{listed}");
    let named = inplace(&["status", &format!("po/{}", other.name), "-o", "json"]);
    let named: Value = serde_json::from_slice(&named.stdout).unwrap();
    assert_eq!((&named[0]["name"], &named[0]["status"]), (&json!(other.name), &Value::Null));
}

#[test]
fn the_flags_of_kubectl_mean_what_they_mean_there() {
    let (pod, other) = (Fixture::set("chosen"), Fixture::set("elsewhere"));
    let before = pod.get().metadata.resource_version;
    let node = format!("spec.nodeName={}", pod.node);
    let listed = inplace(&["status", "--all", "--field-selector", &node, "-o", "jsonpath={.items[*].name}"]);
    assert_eq!(text(&listed.stdout), pod.name, "{}", text(&listed.stderr));
    let checked = inplace(&["restart", "--node", &pod.node, "-c", "app", "--dry-run=server", "-o", "name"]);
    assert_eq!(text(&checked.stdout), format!("pod/{}\n", pod.name), "{}", text(&checked.stderr));
    assert_eq!(pod.get().metadata.resource_version, before, "nothing is stored");
    // A user without rights: the API server knows who asks.
    let denied = inplace(&["status", "--as", "nobody-of-this-test", "--as-group", "system:authenticated"]);
    let said = text(&denied.stderr);
    assert!(denied.status.code() == Some(3) && said.contains("nobody-of-this-test"), "{said}");
    let denied = inplace(&["status", "--token", "a-token-that-is-not-valid"]);
    assert!(!denied.status.success(), "{}", text(&denied.stdout));
    let chosen = inplace(&["restart", "--node", &pod.node, "-c", "app"]);
    assert_eq!(chosen.status.code(), Some(0), "{}", text(&chosen.stderr));
    assert!(annotation(&pod.get(), REQUEST).is_some() && annotation(&other.get(), REQUEST).is_none());
    let withdrawn = inplace(&["cancel", "--field-selector", &node]);
    assert_eq!(withdrawn.status.code(), Some(0), "{}", text(&withdrawn.stderr));
    assert_eq!(annotation(&pod.get(), REQUEST), None);
}

#[test]
fn history_prints_the_events_of_a_pod_oldest_first_also_when_it_is_gone() {
    let pod = Fixture::set("reported");
    let events: Api<Event> = Api::namespaced(Cluster::any().client.clone(), "default");
    for (reason, at) in
        [("InPlaceSucceeded", "10:00:05"), ("InPlaceStarted", "10:00:00"), ("Unrelated", "10:00:01")]
    {
        let event = json!({
            "metadata": {"generateName": "reported-"},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": pod.name, "uid": pod.uid},
            "reason": reason, "message": format!("said {reason}"), "type": "Normal",
            "eventTime": format!("2026-11-20T{at}.000000Z"), "action": "Test",
            "reportingComponent": "test", "reportingInstance": "test",
        });
        block_on(events.create(&PostParams::default(), &serde_json::from_value(event).unwrap())).unwrap();
    }
    answer(&pod, "one", "Succeeded", "Verify", "all is well");
    let reported = text(&inplace(&["history", &pod.name]).stdout);
    let at = |what: &str| reported.find(what).unwrap_or_else(|| panic!("{what} is missing in {reported}"));
    assert!(at("said InPlaceStarted") < at("said InPlaceSucceeded"));
    assert!(at("said InPlaceSucceeded") < at("now: request one: Succeeded, Verify: all is well"));
    assert!(!reported.contains("Unrelated"));
    pod.clear();
    let reported = text(&inplace(&["history", &pod.name]).stdout);
    assert!(
        reported.contains("said InPlaceStarted") && reported.contains("now: the pod is gone"),
        "{reported}"
    );
}

#[test]
fn as_a_plugin_it_is_kubectl_inplace() {
    let pod = Fixture::set("plugin");
    let folder = tempfile::tempdir().unwrap();
    symlink(env!("CARGO_BIN_EXE_inplace"), folder.path().join("kubectl-inplace")).unwrap();
    // kubectl finds its plugins in PATH, and passes them all arguments after their name.
    let path =
        format!("{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", folder.path().display());
    let kubectl = |args: &[&str]| {
        let mut command = Command::new("kubectl");
        command.arg("inplace").args(args).env("PATH", &path).env("KUBECONFIG", &Cluster::any().kubeconfig);
        command.output().unwrap()
    };
    let status = kubectl(&["status", &pod.name, "-n", "default"]);
    assert!(status.status.success() && text(&status.stdout).contains(&pod.name), "{}", text(&status.stderr));
    assert!(text(&kubectl(&["swap", "--help"]).stdout).contains("Usage: kubectl inplace swap"));
}

#[test]
fn with_an_agent_what_was_planned_is_what_happens() {
    let cluster = Cluster::leased();
    let _agent = Agent::start(&cluster, &[]);
    let pod = running(&cluster, "real");
    pod.wait("the agent opens its gate", is_ready);
    let command = |args: &[&str]| cluster.inplace(args).output().unwrap();
    let data = |args: &[&str]| {
        let output = command(&[args, &["-o", "json"]].concat());
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", text(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()[0].take()
    };
    let mut watch = cluster.inplace(&["status", &pod.name, "-w"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut changes = BufReader::new(watch.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(changes.next().unwrap().starts_with("POD"));
    let image = cluster.image("app:v2");
    let swap = format!("app={image}");
    for (verb, words) in [
        ("restart", vec!["-c", "app"]),
        ("restart", vec!["-c", "side"]),
        ("swap", vec![&*swap, "--grace", "1"]),
    ] {
        let words = [&[&*pod.name], &words[..]].concat();
        let plan = data(&[&["plan"], &words[..]].concat());
        let done = data(&[&[verb], &words[..], &["--wait"]].concat());
        let (planned, report) = (&plan["containers"][0], &done["status"]["containers"][0]);
        assert_eq!(done["status"]["phase"], "Succeeded", "{done}");
        assert_eq!((&planned["name"], &planned["engine"]), (&report["name"], &report["engine"]), "{done}");
        assert_eq!(planned["restartsThen"], report["to"]["attempt"], "{done}");
        let id = done["request"]["id"].as_str().unwrap().to_owned();
        let last = changes.find(|line| line.contains(&id) && line.contains("Succeeded"));
        assert!(
            last.is_some_and(|line| line.contains("restarted in place") || line.contains("swapped in place"))
        );
    }
    watch.kill().unwrap();
    watch.wait().unwrap();
    let object = pod.wait("the kubelet reports the new image", |pod| {
        container(pod, "app").is_some_and(|app| app.image == image && app.ready)
    });
    assert_eq!(container(&object, "app").unwrap().restart_count, 2);
    // An event is written after the status.
    let history = eventually("three ends in the history", || {
        let history = text(&command(&["history", &pod.name]).stdout);
        (history.matches("InPlaceSucceeded").count() >= 3).then_some(history)
    });
    assert_eq!(history.matches("InPlaceSucceeded").count(), 3, "{history}");
    assert!(history.find("app restarted").unwrap() < history.find("app swapped").unwrap(), "{history}");
    // During the grace period a request can still be cancelled.
    let child = cluster
        .inplace(&["restart", &pod.name, "-c", "app", "--grace", "300s", "--id", "regretted", "--wait"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    pod.wait("it drains", |pod| annotation(pod, STATUS).is_some_and(|status| status.contains("regretted")));
    assert_eq!(command(&["cancel", &pod.name, "--id", "regretted"]).status.code(), Some(0));
    let ended = child.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), text(&ended.stdout).contains("Cancelled")), (Some(5), true));
    pod.wait("it takes traffic again", is_ready);
}
