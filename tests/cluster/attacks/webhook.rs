//! Attacks on the delete guard and on the rights that hooks imply: with a stolen agent token, as a tenant, and
//! through the webhook's port. Nodes and pods are objects only; nothing runs them.

use std::fs::File;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::api_server::ApiServer;
use crate::cluster::block_on;
use crate::support::panics;
use crate::support::parts::Parts;
use crate::support::ports::free_port;
use crate::support::process::Process;
use crate::support::wait::{WAIT_LIMIT, eventually_slowly};

const AGENT: &str = "--as=system:serviceaccount:inplace-system:inplace-agent";
const TAINT_MANAGER: &str = "system:serviceaccount:kube-system:node-controller";
/// The memory limit of the controller in the manifests.
const MEMORY: f64 = 256.0;
/// In an answer to be asked for again: an API server that is overloaded has answered the controller too late.
const LATE: &str = "cannot be determined now";

struct Fixture {
    server: ApiServer,
    folder: tempfile::TempDir,
    port: u16,
    controller: Child,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let ended = self.controller.try_wait();
        let _ = self.controller.kill();
        let _ = self.controller.wait();
        // A second panic would hide the first.
        if !thread::panicking() {
            assert!(matches!(ended, Ok(None)), "the controller has ended: {ended:?}\n{}", self.log());
        }
        panics::assert_none(|| self.log());
    }
}

impl Fixture {
    /// Sets up a controller with the rights of the manifests and active webhooks, a namespace, two nodes, two
    /// guarded pods and their hook. `before` creates an object before all of that.
    async fn new(before: impl FnOnce(&ApiServer, &Value) -> Value) -> Self {
        Self::with(&[], before).await
    }

    /// The same with these arguments of the controller.
    async fn with(args: &[&str], before: impl FnOnce(&ApiServer, &Value) -> Value) -> Self {
        let server = ApiServer::start().await;
        server.know_our_kinds().await;
        // Without the admission policies, so that only the webhook is tested.
        server.apply("daemonset/before-1.30");
        // The webhook does not answer yet.
        let name = ["validatingwebhookconfiguration", "inplace"];
        let shipped = server.kubectl(&["get", name[0], name[1], "-o", "json"], "").stdout;
        assert!(server.kubectl(&["delete", name[0], name[1]], "").status.success());
        let make = |object: &Value| {
            let output = server.kubectl(&["create", "-o", "json", "-f", "-"], &object.to_string());
            assert!(output.status.success(), "{object}: {}", String::from_utf8_lossy(&output.stderr));
            serde_json::from_slice::<Value>(&output.stdout).unwrap()
        };
        make(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}));
        make(
            &json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "shop"}}),
        );
        for (node, taints) in [
            ("calm", json!([])),
            ("tainted", json!([{"key": "gone", "value": "yes", "effect": "NoExecute"}])),
        ] {
            make(
                &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}, "spec": {"taints": taints}}),
            );
        }
        make(&hook("HookTemplate", "leave", &json!({"web": {"url": "http://{{ args.PodIP }}/leave"}})));
        let victim = make(&guarded("victim-0", "calm"));
        make(&guarded("evicted-1", "tainted"));
        let forged = before(&server, &victim);
        if !forged.is_null() {
            make(&forged);
        }
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        let controller = controller(&server, folder.path(), port, args).await;
        let fixture = Self { server, folder, port, controller };
        let mut shipped: Value = serde_json::from_slice(&shipped).unwrap();
        shipped["metadata"] = json!({"name": name[1]});
        for webhook in shipped["webhooks"].as_array_mut().unwrap() {
            let path = webhook["clientConfig"]["service"]["path"].as_str().unwrap();
            webhook["clientConfig"] = json!({"url": format!("https://127.0.0.1:{port}{path}")});
        }
        fixture.done(&["create", "-f", "-"], &shipped.to_string());
        fixture.until("the webhooks are in force", || {
            fixture
                .tried(&["delete", "pod", "evicted-1", "-n", "shop", "--dry-run=server"], "")
                .1
                .contains("is guarded")
        });
        fixture
    }

    /// Whether the command succeeded, and its output.
    fn tried(&self, args: &[&str], input: &str) -> (bool, String) {
        let output = self.server.kubectl(args, input);
        (output.status.success(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    }

    fn done(&self, args: &[&str], input: &str) -> String {
        let (done, reported) = self.tried(args, input);
        assert!(done, "{args:?}: {reported}\n{}", self.log());
        reported
    }

    fn refused(&self, args: &[&str], input: &str, says: &str) {
        let refusal = || {
            let (done, reported) = self.tried(args, input);
            assert!(!done, "{args:?} must be refused with {says:?}: {reported}");
            (!reported.contains(LATE)).then_some(reported)
        };
        let reported = eventually_slowly(WAIT_LIMIT, "an answer in time", refusal, || self.log());
        assert!(reported.contains(says), "{args:?} must be refused with {says:?}: {reported}");
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        eventually_slowly(WAIT_LIMIT, what, || condition().then_some(()), || self.log());
    }

    /// Gives the user `mallory` these rights in the namespace, and no others.
    fn may(&self, verbs: &str, resource: &str) {
        let name = format!("{verbs}-{resource}").replace(['/', ','], "-").replace('.', "-");
        self.done(&["create", "role", &name, "-n", "shop", "--verb", verbs, "--resource", resource], "");
        self.done(&["create", "rolebinding", &name, "-n", "shop", "--role", &name, "--user", "mallory"], "");
    }

    fn runs(&self) -> Vec<Value> {
        let list = self.done(&["get", "hookruns", "-n", "shop", "-o", "json"], "");
        serde_json::from_str::<Value>(&list).unwrap()["items"].as_array().unwrap().clone()
    }

    fn run_of(&self, pod: &str) -> Value {
        let prefix = format!("pre-delete-hook-{pod}-");
        let is_its = |run: &Value| run["metadata"]["name"].as_str().unwrap().starts_with(&prefix);
        let first = || self.runs().into_iter().find(is_its);
        eventually_slowly(WAIT_LIMIT, &format!("a HookRun {prefix}"), first, || self.log())
    }

    fn is_leaving(&self, pod: &str) -> bool {
        let at = "jsonpath={.metadata.deletionTimestamp}";
        !self.done(&["get", "pod", pod, "-n", "shop", "-o", at], "").is_empty()
    }

    /// Marks the hook of `pod` as successful.
    async fn succeeds(&self, pod: &str) {
        let run = self.run_of(pod);
        let at = inplace::process::clock::now().to_string();
        let status = json!({"status": {"phase": "Successful", "metricResults": [{"name": "m", "phase": "Successful",
            "measurements": [{"phase": "Successful", "startedAt": at, "finishedAt": at}]}]}});
        let name = run["metadata"]["name"].as_str().unwrap();
        let path = format!("/apis/tkex.tencent.com/v1alpha1/namespaces/shop/hookruns/{name}/status");
        let request = axum::http::Request::patch(path).header("content-type", "application/merge-patch+json");
        let request = request.body(status.to_string().into_bytes()).unwrap();
        self.server.admin().await.request_text(request).await.unwrap();
    }

    /// An eviction by a taint: it is refused at first, and the controller completes it.
    async fn evicted_by_taint(&self) {
        let by = format!("--as={TAINT_MANAGER}");
        self.refused(&["delete", "pod", "evicted-1", "-n", "shop", "--wait=false", &by], "", "is guarded");
        self.succeeds("evicted-1").await;
        self.until("the evicted pod is deleted", || self.is_leaving("evicted-1"));
    }

    /// Posts to the webhook's port without authentication. Returns the status code and the answer.
    fn posted(&self, path: &str, body: &[u8]) -> (String, Value) {
        let mut curl = Command::new("curl");
        curl.args(["-ks", "-m", "30", "-H", "Expect:", "-w", "\n%{http_code}", "--data-binary", "@-"]);
        curl.arg(format!("https://127.0.0.1:{}/{path}", self.port));
        let mut curl = curl.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // The server may refuse before everything is sent.
        let _ = curl.stdin.take().unwrap().write_all(body);
        let reported = String::from_utf8(curl.wait_with_output().unwrap().stdout).unwrap();
        let (answer, code) = reported.rsplit_once('\n').unwrap();
        (code.to_owned(), serde_json::from_str(answer).unwrap_or_default())
    }

    /// The controller's peak memory in mebibytes.
    fn peak(&self) -> f64 {
        Process(self.controller.id()).peak()
    }
}

async fn controller(server: &ApiServer, folder: &std::path::Path, port: u16, args: &[&str]) -> Child {
    let accounts: Api<ServiceAccount> = Api::namespaced(server.admin().await, "inplace-system");
    let request: TokenRequest = serde_json::from_value(json!({"spec": {"audiences": []}})).unwrap();
    let token = accounts.create_token_request("inplace-controller", &PostParams::default(), &request).await;
    let kubeconfig = server.kubeconfig_of(&token.unwrap().status.unwrap().token);
    let log = File::create(folder.join("log")).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", env!("CARGO_BIN_EXE_inplace"), "controller"]);
    command.args(["--namespace", "inplace-system", "--identity", "here", "--listen", "127.0.0.1:0"]);
    command.args(["--webhook-listen", &format!("127.0.0.1:{port}"), "--webhook-names", "127.0.0.1"]);
    command.arg("--kubeconfig").arg(kubeconfig).args(args).stdin(Stdio::null());
    command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap()
}

fn guarded(name: &str, node: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", "labels": {"inplace.dev/delete-guard": "true"},
            "annotations": {"inplace.dev/pre-delete-hook": "leave"}},
        "spec": {"nodeName": node, "automountServiceAccountToken": false, "containers": [{"name": "app", "image": "app:1"}]}})
}

fn hook(kind: &str, name: &str, provider: &Value) -> Value {
    let args =
        if kind == "HookTemplate" { json!([{"name": "PodIP", "value": "10.0.0.7"}]) } else { json!([]) };
    json!({"apiVersion": "tkex.tencent.com/v1alpha1", "kind": kind, "metadata": {"name": name, "namespace": "shop"},
        "spec": {"args": args, "metrics": [{"name": "m", "count": 1, "successCondition": "true", "provider": provider}]}})
}

/// A HookRun of an operation that claims to be the hook before the deletion of `pod`.
fn forged(name: &str, pod: &Value) -> Value {
    let mut run = hook("HookRun", name, &json!({"exec": {"container": "app", "command": ["true"]}}));
    run["metadata"]["labels"] = json!({"inplace.dev/node": "other", "inplace.dev/operation": "x",
        "inplace.dev/delete-guard": "finish", "hookrun-type": "pre-delete-step", "instance-id": "0"});
    run["metadata"]["annotations"] = json!({"inplace.dev/approve": "true", "inplace.dev/task": "DeleteGuard/leave//1",
        "inplace.dev/pod-uid": pod["metadata"]["uid"]});
    run["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Pod", "name": "victim-0", "uid": pod["metadata"]["uid"]}]);
    run
}

#[tokio::test]
async fn s2_the_token_of_an_agent_deletes_no_pod_past_the_guard() {
    // One forged HookRun was stored before the webhook was active: it must have no effect either.
    let fixture = Fixture::new(|_, victim| forged("stored-before", victim)).await;
    let victim = fixture.done(&["get", "pod", "victim-0", "-n", "shop", "-o", "json"], "");
    let victim: Value = serde_json::from_str(&victim).unwrap();
    let create = ["create", "-f", "-", AGENT];
    let run = forged("by-token", &victim);
    fixture.refused(&create, &run.to_string(), "may be set on a HookRun only by the controller");
    let mut plain = run.clone();
    plain["metadata"]["labels"] = json!({"inplace.dev/node": "other", "inplace.dev/operation": "x"});
    plain["metadata"]["annotations"] = json!({"inplace.dev/approve": "true"});
    fixture.refused(&create, &plain.to_string(), "an agent must not approve a HookRun");
    plain["metadata"]["annotations"] = json!({});
    fixture.done(&create, &plain.to_string());
    let label = ["label", "hookrun", "by-token", "-n", "shop", AGENT, "inplace.dev/delete-guard=finish"];
    fixture.refused(&label, "", "may be set on a HookRun only by the controller");
    let move_it = ["label", "hookrun", "by-token", "-n", "shop", AGENT, "inplace.dev/operation-"];
    fixture.refused(&move_it, "", "an agent must not change the spec, the node or the operation");
    fixture.refused(&["delete", "pod", "victim-0", "-n", "shop", "--wait=false"], "", "is guarded");
    // The controller completes the eviction, and reconciles the forged HookRun in the same pass.
    fixture.evicted_by_taint().await;
    assert!(!fixture.is_leaving("victim-0"), "a forged HookRun deleted the pod");
}

/// Parts on one controller. The last one deletes the pod of [`Fixture::new`].
#[test]
fn s3_s6_s10_neither_a_client_of_the_port_nor_a_tenant_gets_past_the_webhooks() {
    let parts = Parts::default();
    let fixture = block_on(Fixture::new(|_, _| Value::Null));
    let all: [(_, fn(&Fixture)); 3] = [
        ("s6", s6_hooks_and_rollouts_need_the_rights_that_they_amount_to),
        ("s10", s10_a_label_stops_no_preemption_and_still_stops_an_accident),
        ("s3", s3_whoever_reaches_the_port_deletes_no_pod_and_ends_no_controller),
    ];
    for (name, part) in all {
        parts.run(name, || part(&fixture));
    }
}

fn s3_whoever_reaches_the_port_deletes_no_pod_and_ends_no_controller(fixture: &Fixture) {
    let victim = fixture.done(&["get", "pod", "victim-0", "-n", "shop", "-o", "json"], "");
    let victim: Value = serde_json::from_str(&victim).unwrap();
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u",
        "operation": "DELETE", "name": "victim-0", "namespace": "shop", "userInfo": {"username": TAINT_MANAGER},
        "kind": {"group": "", "version": "v1", "kind": "Pod"}, "object": null, "oldObject": victim}});
    let review = review.to_string();
    let answer = || {
        let (code, answer) = fixture.posted("guard", review.as_bytes());
        (!answer.to_string().contains(LATE)).then_some((code, answer))
    };
    let (code, answer) = eventually_slowly(WAIT_LIMIT, "an answer in time", answer, || fixture.log());
    assert_eq!((code.as_str(), &answer["response"]["allowed"]), ("200", &json!(false)), "{answer}");
    assert!(fixture.run_of("victim-0")["metadata"]["labels"].get("inplace.dev/delete-guard").is_none());
    block_on(fixture.succeeds("victim-0"));
    block_on(fixture.evicted_by_taint());
    assert!(!fixture.is_leaving("victim-0"), "a made-up eviction deleted the pod");

    // The largest bodies that are read, each as expensive as possible, many at once; and larger ones.
    let body = |size: usize| {
        let head = r#"{"request":{"uid":"u","operation":"CREATE","kind":{"group":"tkex.tencent.com","version":"v1alpha1","kind":"GameDeployment"},"object":{"metadata":{"name":"x"},"spec":{"template":{"spec":{"x":["#;
        let tail = "0]}}}}}}";
        let middle = "[],".repeat((size - head.len() - tail.len()) / 3);
        format!("{head}{middle}{tail}").into_bytes()
    };
    let (fits, large) = (body(3 << 20), body(8 << 20));
    let codes = thread::scope(|scope| {
        let posts: Vec<_> = (0..24)
            .map(|number| {
                let body = if number % 2 == 0 { &fits } else { &large };
                scope.spawn(|| fixture.posted("validate", body).0)
            })
            .collect();
        posts.into_iter().map(|post| post.join().unwrap()).collect::<Vec<_>>()
    });
    // A client that is refused while it sends may be disconnected before it reads the answer.
    let is_refused = |code: &String| code == "413" || code == "000";
    assert!(codes.iter().skip(1).step_by(2).all(is_refused), "{codes:?}");
    assert!(codes.iter().any(|code| code == "413"), "{codes:?}");
    assert!(codes.iter().step_by(2).any(|code| code == "200"), "{codes:?}");
    // Bodies that need many times their size in memory: a container has 2 KiB in memory and two bytes in a body,
    // a group 24.
    let costly = |head: &str, entry: &str, tail: &str| {
        format!("{head}{}{tail}", entry.repeat(((3 << 20) - head.len() - tail.len()) / entry.len()))
            .into_bytes()
    };
    let head = r#"{"request":{"uid":"u","operation":"CREATE","kind":{"group":"tkex.tencent.com","version":"v1alpha1","kind":"#;
    let bodies = [
        costly(
            &format!(r#"{head}"HookRun"}},"object":{{"spec":{{"metrics":[]}}}},"userInfo":{{"groups":["#),
            "\"\",",
            r#"""]}}}"#,
        ),
        costly(
            &format!(
                r#"{head}"GameDeployment"}},"object":{{"spec":{{"selector":{{}},"template":{{"spec":{{"containers":["#
            ),
            "{},",
            "{}]}}}}}}",
        ),
    ];
    let codes = thread::scope(|scope| {
        let posts: Vec<_> = (0..24)
            .map(|number| {
                let body = &bodies[number % 2];
                scope.spawn(|| fixture.posted("validate", body))
            })
            .collect();
        posts.into_iter().map(|post| post.join().unwrap()).collect::<Vec<_>>()
    });
    for (number, (code, answer)) in codes.iter().enumerate() {
        let refused =
            if number % 2 == 0 { code == "413" } else { answer["response"]["status"]["code"] == 413 };
        assert!(refused || code == "408" || code == "000", "{number}: {code} {answer}");
    }
    assert!(codes.iter().any(|(code, _)| code == "413"), "{codes:?}");
    assert!(fixture.peak() < MEMORY, "{} MiB", fixture.peak());
    // The controller still answers: the hook of the victim has succeeded.
    let delete = ["delete", "pod", "victim-0", "-n", "shop", "--wait=false"];
    fixture.until("the controller allows the deletion", || fixture.tried(&delete, "").0);
}

fn s6_hooks_and_rollouts_need_the_rights_that_they_amount_to(fixture: &Fixture) {
    fixture.may("create,get,patch,update", "hookruns.tkex.tencent.com");
    fixture.may("create,get,patch,update", "hooktemplates.tkex.tencent.com");
    fixture.may("create,get,patch,update", "inplacerollouts.inplace.dev");
    let create = ["create", "-f", "-", "--as=mallory"];
    let exec = json!({"exec": {"container": "app", "command": ["cat", "/proc/1/environ"]}});
    let web = json!({"web": {"url": "https://10.0.0.1:10250/"}});
    let field = json!([{"path": "metadata.annotations.a", "value": "b"}]);
    let patch = json!({"kubernetes": {"function": "patch", "fields": field}});
    let rollout = json!({"apiVersion": "inplace.dev/v1alpha1", "kind": "InPlaceRollout",
        "metadata": {"name": "swap", "namespace": "shop"},
        "spec": {"target": {"selector": {"matchLabels": {"app": "web"}}}, "containers": [{"name": "app", "image": "evil:1"}]}});
    let objects = |at: usize| {
        [
            (hook("HookRun", &format!("exec-{at}"), &exec), "in namespace shop: create pods/exec"),
            (hook("HookTemplate", &format!("web-{at}"), &web), "in namespace shop: create pods/exec"),
            (hook("HookRun", &format!("patch-{at}"), &patch), "in namespace shop: patch pods"),
            (rollout.clone(), "in namespace shop: patch pods"),
        ]
    };
    for (object, says) in objects(1) {
        fixture.refused(&create, &object.to_string(), says);
    }
    // The template was created by a user with the required rights, and is changed by a user without them.
    let change = json!({"spec": {"metrics": [{"name": "m", "count": 1, "successCondition": "true", "provider": exec}]}});
    let change = change.to_string();
    let patched =
        ["patch", "hooktemplate", "leave", "-n", "shop", "--as=mallory", "--type=merge", "-p", &change];
    fixture.refused(&patched, "", "in namespace shop: create pods/exec");
    fixture.may("create", "pods/exec");
    fixture.may("patch", "pods");
    fixture.until("the rights are known", || fixture.tried(&create, &objects(2)[0].0.to_string()).0);
    for (object, _) in &objects(3)[..] {
        fixture.until("it is written by somebody who may", || {
            let (done, reported) = fixture.tried(&create, &object.to_string());
            assert!(done || reported.contains("may not"), "{reported}");
            done
        });
    }
    // A user with `patch` on HookRuns may approve one (docs/hooks.md), but may not tie one to a pod.
    fixture.done(
        &["annotate", "hookrun", "exec-3", "-n", "shop", "--as=mallory", "inplace.dev/approve=true"],
        "",
    );
    let tie = [
        "annotate",
        "hookrun",
        "exec-3",
        "-n",
        "shop",
        "--as=mallory",
        "inplace.dev/task=DeleteGuard/leave//1",
    ];
    fixture.refused(&tie, "", "may be set on a HookRun only by the controller");
}

fn s10_a_label_stops_no_preemption_and_still_stops_an_accident(fixture: &Fixture) {
    fixture.done(&["create", "-f", "-"], &guarded("preempted-2", "calm").to_string());
    let delete = ["delete", "pod", "preempted-2", "-n", "shop", "--wait=false"];
    fixture.refused(&delete, "", "is guarded");
    let by_scheduler = [&delete[..], &["--as=system:kube-scheduler"]].concat();
    fixture.until("the pod is preempted", || fixture.tried(&by_scheduler, "").0);
    assert!(fixture.is_leaving("preempted-2"));
}

#[tokio::test]
async fn held_a_pod_goes_when_its_time_is_over_and_nobody_makes_that_earlier() {
    let fixture = Fixture::with(&["--guard-longest-hold", "20s"], |_, _| Value::Null).await;
    fixture.may("create,get,patch,update,delete", "pods");
    fixture.may("create", "pods/exec");
    fixture.may("create,get,patch,update", "hookruns.tkex.tencent.com");
    // A user with write access to pods creates one whose hook cannot be started, and claims that it has been held
    // since long ago.
    let since = json!([{"type": "inplace.dev/DeleteGuardHeld", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}]);
    let mut pod = guarded("forged-2", "calm");
    pod["metadata"]["annotations"]["inplace.dev/pre-delete-hook"] = json!("nobody-made-it");
    pod["status"] = json!({"conditions": since});
    fixture.until("the rights are known", || {
        fixture.tried(&["create", "-f", "-", "--as=mallory"], &pod.to_string()).0
    });
    let change = json!({"status": {"conditions": since}}).to_string();
    fixture.tried(
        &["patch", "pod", "forged-2", "-n", "shop", "--as=mallory", "--type=merge", "-p", &change],
        "",
    );
    let delete = |pod| ["delete", "pod", pod, "-n", "shop", "--wait=false", "--as=mallory"];
    let began = Instant::now();
    fixture.refused(&delete("forged-2"), "", "does not exist: create it");
    let at = r#"jsonpath={.status.conditions[?(@.type=="inplace.dev/DeleteGuardHeld")].lastTransitionTime}"#;
    let held = fixture.done(&["get", "pod", "forged-2", "-n", "shop", "-o", at], "");
    assert!(!held.is_empty() && !held.starts_with("2020"), "held since {held:?}");
    fixture.until("the pod goes", || fixture.tried(&delete("forged-2"), "").0);
    assert!(began.elapsed() > Duration::from_secs(18), "it was let go after {:?}", began.elapsed());

    // A user takes the name that the guard's hook will have.
    let victim =
        fixture.done(&["get", "pod", "victim-0", "-n", "shop", "-o", "jsonpath={.metadata.uid}"], "");
    let uid: String = victim.chars().filter(|c| *c != '-').take(8).collect();
    let name = format!("pre-delete-hook-victim-0-{uid}-leave-1");
    let run = hook("HookRun", &name, &json!({"exec": {"container": "app", "command": ["true"]}}));
    let create = ["create", "-f", "-", "--as=mallory"];
    fixture.until("the name is taken", || fixture.tried(&create, &run.to_string()).0);
    fixture.refused(&delete("victim-0"), "", &format!("pre-delete-hook-victim-0-{uid}-leave-2"));
    let mut made = fixture.runs();
    made.retain(|run| run["metadata"]["annotations"]["inplace.dev/pod-uid"] == victim.as_str());
    assert_eq!(made.len(), 1, "{made:#?}");
    assert_eq!(made[0]["metadata"]["name"], format!("pre-delete-hook-victim-0-{uid}-leave-2"));
    // Even a user with all rights cannot create a HookRun that is approved or belongs to an operation.
    let mut approved =
        hook("HookRun", "approved", &json!({"exec": {"container": "app", "command": ["true"]}}));
    approved["metadata"]["annotations"] = json!({"inplace.dev/approve": "true"});
    fixture.refused(&create, &approved.to_string(), "create the HookRun without this annotation");
    approved["metadata"] =
        json!({"name": "shown", "namespace": "shop", "labels": {"inplace.dev/operation": "x"}});
    fixture.refused(&create, &approved.to_string(), "may be set on a HookRun only by the agents");
    // A status in the created object is not stored: the API server keeps the status in a subresource.
    let mut ended = hook("HookRun", "ended", &json!({"exec": {"container": "app", "command": ["true"]}}));
    ended["status"] = json!({"phase": "Successful"});
    if fixture.tried(&create, &ended.to_string()).0 {
        let phase = ["get", "hookrun", "ended", "-n", "shop", "-o", "jsonpath={.status.phase}"];
        assert_ne!(fixture.done(&phase, ""), "Successful");
    }
}
