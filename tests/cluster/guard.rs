//! The delete guard on a real cluster: each way in which a pod is deleted, what holds the deletion and what
//! releases it, also when processes are killed meanwhile. The controller has the rights of the manifests, and the
//! webhook configurations are the shipped ones except for their URLs, because the API server of this lab cannot
//! reach a Service.

use std::{
    net::TcpListener,
    process::{Child, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use futures_util::future::join_all;
use inplace::controller::admission::{CONFIGURATION, GATE_CONFIGURATION};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::DeleteParams};
use serde_json::{Value, json};

use crate::{
    agent::Agent,
    cluster::{Cluster, block_on},
    hook_server::HookServer,
    traffic::{End, now},
};

/// Longer than the pauses between the retries of control loops.
const LONG: Duration = Duration::from_secs(120);
const GUARD: &str = "inplace.dev/delete-guard";
const OVERRIDE: &str = "inplace.dev/delete-guard-override";

#[test]
fn a_guarded_pod_goes_gracefully_or_not_at_all() {
    let cluster = Cluster::own();
    let _agent = Agent::start(&cluster, &[]);
    let fixture = Fixture::new(&cluster);
    let first = fixture.controller("one");
    fixture.installed();
    let controller = fixture.a_deletion_is_held_until_the_hook_has_succeeded_whoever_dies(&first);
    let fixture = &fixture;
    let (over, lost) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        let end = End(&over);
        // The rest runs while the certificate is replaced and another thread sends requests all the time.
        scope.spawn(|| fixture.asks_all_the_time(&over, &lost));
        let rotated = fixture.certificates_change();
        let parts = [
            scope.spawn(|| fixture.a_failed_hook_holds_until_a_person_says_something()),
            scope.spawn(|| fixture.a_namespace_goes_when_a_person_says_so()),
            scope.spawn(|| fixture.new_pods_get_the_gate()),
        ];
        fixture.control_loops_come_back_until_they_may();
        let ended: Vec<_> = parts.into_iter().map(thread::ScopedJoinHandle::join).collect();
        fixture.until("the next certificate is served", || (fixture.serving() != rotated).then_some(()));
        drop(end);
        assert!(ended.iter().all(Result::is_ok), "a part failed");
    });
    let lost = lost.into_inner().unwrap();
    assert!(lost.is_empty(), "{lost:?}");
    let log = controller.log();
    assert!(!log.contains("PRIVATE KEY") && log.contains("the webhook serves a new certificate"), "{log}");
}

struct Fixture<'a> {
    cluster: &'a Cluster,
    hook_server: HookServer,
    /// The port of the webhooks.
    port: u16,
}

impl<'a> Fixture<'a> {
    fn new(cluster: &'a Cluster) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Self { cluster, hook_server: HookServer::open(), port }
    }

    fn controller(&self, name: &str) -> Agent {
        let listen = format!("127.0.0.1:{}", self.port);
        Agent::controller_with(
            self.cluster,
            name,
            &["--webhook-listen", &listen, "--webhook-names", "127.0.0.1"],
        )
    }

    /// Installs the shipped configurations with URLs, and two hook templates: one that is polled until it
    /// succeeds, one that is measured once.
    fn installed(&self) {
        for (folder, kind, name) in [
            ("base", "validatingwebhookconfiguration", CONFIGURATION),
            ("readiness-gate", "mutatingwebhookconfiguration", GATE_CONFIGURATION),
        ] {
            let file = format!("{}/daemonset/{folder}/webhook.yaml", env!("CARGO_MANIFEST_DIR"));
            self.kubectl(&["apply", "-f", &file]);
            let configuration: Value =
                serde_json::from_str(&self.kubectl(&["get", kind, name, "-o", "json"])).unwrap();
            let webhooks = configuration["webhooks"].as_array().unwrap();
            let by_url = |(at, webhook): (usize, &Value)| {
                let config = format!("/webhooks/{at}/clientConfig");
                let path = webhook["clientConfig"]["service"]["path"].as_str().unwrap();
                let url = format!("https://127.0.0.1:{}{path}", self.port);
                [
                    json!({"op": "remove", "path": format!("{config}/service")}),
                    json!({"op": "add", "path": format!("{config}/url"), "value": url}),
                ]
            };
            let patch: Vec<_> = webhooks.iter().enumerate().flat_map(by_url).collect();
            self.kubectl(&["patch", kind, name, "--type=json", "-p", &json!(patch).to_string()]);
        }
        // Waits until the API server calls the webhook and trusts its certificate.
        self.run("probe", "nothing");
        self.until("the guard is in force", || {
            let (_, reported) = self.tried(&["delete", "pod", "probe", "--dry-run=server"]);
            reported
                .contains("HookTemplate default/nothing of its pre-delete hook does not exist")
                .then_some(())
        });
        for namespace in ["default", "closing"] {
            let space = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
            self.cluster.apply(&space.to_string());
            self.template(namespace, "leave", &json!({"interval": "200ms", "successfulLimit": 1}));
            self.template(namespace, "once", &json!({"count": 1}));
        }
    }

    fn template(&self, namespace: &str, name: &str, more: &Value) {
        let url =
            format!("http://{}:{}/{{{{ args.PodName }}}}", self.cluster.node().ip, self.hook_server.port);
        let mut metric = json!({"name": "webtest", "successCondition": "asInt(result) == 1",
            "provider": {"web": {"url": url, "jsonPath": "{$.done}"}}});
        metric.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.cluster.apply(
            &json!({"apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookTemplate",
            "metadata": {"name": name, "namespace": namespace}, "spec": {"metrics": [metric]}})
            .to_string(),
        );
    }

    // ---- the parts ----

    fn a_deletion_is_held_until_the_hook_has_succeeded_whoever_dies(&self, controller: &Agent) -> Agent {
        self.run("warm", "leave");
        self.run("plain", "");
        let delete = ["delete", "pod", "warm", "--wait=false"];
        self.refused(
            &["delete", "pod", "warm", "--dry-run=server"],
            &["(Forbidden)", "would be started as HookRun"],
        );
        assert_eq!(self.runs("warm"), Vec::<Value>::new());
        self.refused(&delete, &["(Forbidden)", "guard-delete.inplace.dev", "HookRun pre-delete-hook-warm-"]);
        self.until("the hook is polled", || (self.hook_server.asked("warm").len() > 2).then_some(()));
        self.refused(&delete, &["is Running since", "webtest"]);
        // Fifty deletions at once, and an eviction.
        for deleted in block_on(join_all((0..50).map(|_| self.deleted("warm")))) {
            let deleted = deleted.unwrap_err();
            assert!(deleted.0 == 403 && deleted.1.contains("is Running"), "{deleted:?}");
        }
        let (evicted, reported) = self.evicted("warm", false);
        assert!(
            !evicted && reported.contains("(TooManyRequests)") && reported.contains("is Running"),
            "{reported}"
        );
        // An eviction does not have the labels of its pod, so a webhook with an objectSelector is not called for
        // it: the dry run evicts the pod.
        let proof = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "proof"}, "webhooks": [{"name": "proof.example.com", "admissionReviewVersions": ["v1"],
                "sideEffects": "None", "failurePolicy": "Fail", "clientConfig": {"url": "https://127.0.0.1:1/"},
                "objectSelector": {"matchLabels": {GUARD: "true"}}, "rules": [{"apiGroups": [""], "apiVersions": ["v1"],
                    "resources": ["pods", "pods/eviction"], "operations": ["CREATE", "DELETE"]}]}]});
        self.cluster.apply(&proof.to_string());
        self.until("the proof is in force", || {
            let (_, reported) = self.tried(&["delete", "pod", "probe", "--dry-run=server"]);
            reported.contains("proof.example.com").then_some(())
        });
        self.kubectl(&["annotate", "pod", "probe", &format!("{OVERRIDE}=for the proof")]);
        assert!(self.evicted("probe", true).0);
        self.kubectl(&["delete", "validatingwebhookconfiguration", "proof"]);

        // Without a controller only guarded pods are held, and evictions in namespaces with the label.
        controller.kill();
        let down = ["failed calling webhook \"guard-delete.inplace.dev\""];
        self.refused(&delete, &down);
        assert!(self.evicted("plain", true).0);
        self.kubectl(&["label", "namespace", "default", &format!("{GUARD}=true")]);
        self.until("evictions are held", || {
            let (_, reported) = self.evicted("plain", true);
            reported.contains("failed calling webhook \"guard-evict.inplace.dev\"").then_some(())
        });
        self.kubectl(&["label", "namespace", "default", &format!("{GUARD}-")]);
        // An agent's operation runs its hook and ends without a controller: its HookRun, which the
        // controller would have to admit, is only for display.
        self.hook_server.say("plain", 1);
        let request =
            json!({"id": "hooked", "containers": [{"name": "app"}], "preHook": {"templateName": "once"}});
        self.kubectl(&["annotate", "pod", "plain", &format!("inplace.dev/request={request}")]);
        self.until("the operation ends without a controller", || {
            let pod: Value =
                serde_json::from_str(&self.kubectl(&["get", "pod", "plain", "-o", "json"])).unwrap();
            let reported =
                pod["metadata"]["annotations"]["inplace.dev/status"].as_str().unwrap_or_default().to_owned();
            assert!(!["Failed", "Refused"].iter().any(|bad| reported.contains(bad)), "{reported}");
            reported.contains("Succeeded").then_some(())
        });
        assert_eq!((self.runs("plain").len(), self.hook_server.asked("plain").len()), (0, 1));
        self.kubectl(&["delete", "pod", "plain", "--wait=false"]);
        // A running hook continues, and the next controller finds it.
        self.hook_server.say("warm", 1);
        let next = self.controller("two");
        self.until("it may go", || self.tried(&delete).0.then_some(()));
        let asked = self.events("warm", "DeleteGuardAsked");
        assert!(
            asked.contains(reported.split("HookRun ").nth(1).unwrap().split(['.', ' ']).next().unwrap()),
            "{asked}"
        );
        assert!(self.events("warm", "DeleteGuardPassed").contains("has succeeded"));
        assert_eq!(self.hook_server.asked("warm").iter().filter(|asked| asked.said == 1).count(), 1);
        self.gone("warm");
        next
    }

    fn a_failed_hook_holds_until_a_person_says_something(&self) {
        let pod = "cold";
        self.run(pod, "once");
        let delete = ["delete", "pod", pod, "--wait=false"];
        self.refused(&delete, &["HookRun pre-delete-hook-cold-"]);
        let failed = || {
            self.until("it has failed", || self.tried(&delete).1.contains("is Failed since").then_some(()));
        };
        failed();
        self.kubectl(&["annotate", "pod", pod, "inplace.dev/delete-guard-retry=1"]);
        self.refused(&delete, &["HookRun pre-delete-hook-cold-"]);
        failed();
        assert_eq!((self.runs(pod).len(), self.hook_server.asked(pod).len()), (2, 2));
        self.kubectl(&["annotate", "pod", pod, &format!("{OVERRIDE}=ticket 42")]);
        self.kubectl(&delete);
        let reported = self.events(pod, "DeleteGuardOverridden");
        assert!(
            reported.contains("Warning") && reported.contains("as the pod says: ticket 42"),
            "{reported}"
        );
    }

    fn a_namespace_goes_when_a_person_says_so(&self) {
        self.run_in("closing", "stays", "leave");
        self.kubectl(&["delete", "namespace", "closing", "--wait=false"]);
        let delete = ["delete", "pod", "stays", "-n", "closing", "--wait=false"];
        self.refused(
            &delete,
            &["kubectl annotate namespace closing inplace.dev/delete-guard-override=REASON"],
        );
        self.until("the namespace says what holds it", || {
            let reported = self.kubectl(&["get", "namespace", "closing", "-o", "json"]);
            reported.contains("delete-guard-override=REASON").then_some(())
        });
        self.kubectl(&["annotate", "namespace", "closing", &format!("{OVERRIDE}=closing down")]);
        self.until("it is gone", || {
            self.kubectl(&["get", "namespace", "closing", "--ignore-not-found"]).is_empty().then_some(())
        });
    }

    fn new_pods_get_the_gate(&self) {
        let space = json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": "gated", "labels": {"inplace.dev/readiness-gate": "true"}}});
        self.cluster.apply(&space.to_string());
        let create = |namespace: &str| {
            let image = self.cluster.image("app:v1");
            let args = ["run", "new", "-n", namespace, "--image", &image, "--dry-run=server", "-o", "json"];
            self.tried(&args).1
        };
        self.until("the gate is added", || create("gated").contains("InPlaceUpdateReady").then_some(()));
        assert!(!create("default").contains("InPlaceUpdateReady"));
    }

    fn control_loops_come_back_until_they_may(&self) {
        let template = json!({
            "metadata": {"labels": {"app": "web", GUARD: "true"}, "annotations": {"inplace.dev/pre-delete-hook": "leave"}},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "app", "image": self.cluster.image("app:v1")}]},
        });
        self.cluster.apply(
            &json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": template}})
            .to_string(),
        );
        self.kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"]);
        // A ReplicaSet deletes the pod that has been Ready for less time, in whole seconds. If two are equal,
        // each attempt may select another one.
        let first = self.web().remove(0);
        self.until("its next pod is younger", || {
            (self.ready_for(&first) >= SignedDuration::from_secs(2)).then_some(())
        });
        self.kubectl(&["scale", "deployment/web", "--replicas=2"]);
        self.kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"]);

        // Scaling in.
        self.kubectl(&["scale", "deployment/web", "--replicas=1"]);
        let leaving = self.held();
        assert_eq!(self.web().len(), 2);
        self.hook_server.say(&leaving, 1);
        self.gone(&leaving);

        // A rollout: the new pod exists already, and the old one stays until its deletion is allowed.
        let old = self.web().remove(0);
        self.kubectl(&["rollout", "restart", "deployment/web"]);
        assert_eq!(self.held(), old);
        self.hook_server.say(&old, 1);
        self.gone(&old);
        self.kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"]);

        // `kubectl drain` retries until its timeout.
        let node = self.cluster.node().name;
        let old = self.web().remove(0);
        let drain = self.background(&["drain", &node, "--pod-selector=app=web", "--timeout=100s"]);
        assert_eq!(self.held(), old);
        self.hook_server.say(&old, 1);
        let drained = drain.wait_with_output().unwrap();
        let reported = String::from_utf8([drained.stdout, drained.stderr].concat()).unwrap();
        assert!(
            drained.status.success()
                && reported.contains("will retry after 5s")
                && reported.contains("is guarded"),
            "{reported}"
        );
        self.gone(&old);
        self.kubectl(&["uncordon", &node]);
        self.kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"]);

        // An eviction by a taint is not retried by its sender; the controller completes it.
        let old = self.web().remove(0);
        self.kubectl(&["taint", "node", &node, "gone=yes:NoExecute"]);
        assert_eq!(self.held(), old);
        self.hook_server.say(&old, 1);
        self.gone(&old);
        self.kubectl(&["taint", "node", &node, "gone-"]);
    }

    /// Announces that the certificate is about to expire. Returns the certificate that is served until then.
    fn certificates_change(&self) -> String {
        let before = self.serving();
        let soon = now() + SignedDuration::from_hours(24);
        let note = format!("inplace.dev/webhook-until={soon}");
        self.kubectl(&[
            "annotate",
            "--overwrite",
            "secret",
            "inplace-webhook",
            "-n",
            "inplace-system",
            &note,
        ]);
        before
    }

    fn serving(&self) -> String {
        let data = "jsonpath={.data.tls\\.crt}";
        self.kubectl(&["get", "secret", "inplace-webhook", "-n", "inplace-system", "-o", data])
    }

    /// Deletes a held pod again and again; records every answer that is not the guard's.
    fn asks_all_the_time(&self, over: &AtomicBool, lost: &Mutex<Vec<String>>) {
        self.run("asked", "leave");
        while !over.load(Ordering::Relaxed) {
            match block_on(self.deleted("asked")) {
                Err((403, reported)) if reported.contains("is guarded") => {}
                other => lost.lock().unwrap().push(format!("{other:?}")),
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    // ---- observations ----

    /// The pod of the Deployment that is guarded now: its hook is being polled, and it is not terminating.
    fn held(&self) -> String {
        self.until("a pod is held", || {
            self.web().into_iter().find(|name| !self.hook_server.asked(name).is_empty())
        })
    }

    /// The pods of the Deployment that run and are not terminating.
    fn web(&self) -> Vec<String> {
        let list: Value =
            serde_json::from_str(&self.kubectl(&["get", "pods", "-l", "app=web", "-o", "json"])).unwrap();
        let stays = |pod: &&Value| {
            pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null()
        };
        let name = |pod: &Value| pod["metadata"]["name"].as_str().unwrap().to_owned();
        list["items"].as_array().unwrap().iter().filter(stays).map(name).collect()
    }

    /// How long the pod has been Ready.
    fn ready_for(&self, pod: &str) -> SignedDuration {
        let at = "jsonpath={.status.conditions[?(@.type==\"Ready\")].lastTransitionTime}";
        let since: Timestamp = self.kubectl(&["get", "pod", pod, "-o", at]).trim().parse().unwrap();
        now().duration_since(since)
    }

    fn is_leaving(&self, pod: &str) -> bool {
        let at = "jsonpath={.metadata.deletionTimestamp}";
        !self.kubectl(&["get", "pod", pod, "-o", at, "--ignore-not-found"]).is_empty()
    }

    /// Waits until the pod is terminating or gone.
    fn gone(&self, pod: &str) {
        self.until(&format!("{pod} is gone"), || {
            let there = !self.kubectl(&["get", "pod", pod, "--ignore-not-found"]).is_empty();
            (!there || self.is_leaving(pod)).then_some(())
        });
    }

    fn runs(&self, pod: &str) -> Vec<Value> {
        let list: Value = serde_json::from_str(&self.kubectl(&["get", "hookruns", "-o", "json"])).unwrap();
        let mut items = list["items"].as_array().unwrap().clone();
        items.retain(|run| run["metadata"]["ownerReferences"][0]["name"] == pod);
        items
    }

    fn events(&self, pod: &str, reason: &str) -> String {
        let select = format!("involvedObject.name={pod},reason={reason}");
        self.until(&format!("the event {reason}"), || {
            let reported = self.kubectl(&["get", "events", "--field-selector", &select, "--no-headers"]);
            reported.contains(reason).then_some(reported)
        })
    }

    // ---- actions ----

    /// Runs a pod that is guarded by this hook; an empty name means an unguarded pod.
    fn run(&self, name: &str, hook: &str) {
        self.run_in("default", name, hook);
    }

    fn run_in(&self, namespace: &str, name: &str, hook: &str) {
        let guarded = if hook.is_empty() { json!({}) } else { json!({GUARD: "true"}) };
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": guarded,
                "annotations": {"inplace.dev/pre-delete-hook": hook}},
            "spec": {"terminationGracePeriodSeconds": 1,
                "containers": [{"name": "app", "image": self.cluster.image("app:v1")}]}});
        // The service account may not exist yet.
        self.until("the pod is made", || {
            let file = self.cluster.lab().dir.join(format!("{name}.json"));
            std::fs::write(&file, pod.to_string()).unwrap();
            self.tried(&["apply", "-f", file.to_str().unwrap()]).0.then_some(())
        });
        self.kubectl(&["wait", "--for=condition=Ready", "pod", name, "-n", namespace, "--timeout=60s"]);
    }

    async fn deleted(&self, pod: &str) -> Result<(), (u16, String)> {
        let api: Api<Pod> = Api::namespaced(self.cluster.client.clone(), "default");
        api.delete(pod, &DeleteParams::default()).await.map(drop).map_err(said)
    }

    /// Uses kubectl, because kube's client would retry a 429 itself.
    fn evicted(&self, pod: &str, dry_run: bool) -> (bool, String) {
        let file = self.cluster.lab().dir.join(format!("{pod}.eviction.json"));
        std::fs::write(&file, json!({"metadata": {"name": pod, "namespace": "default"}}).to_string())
            .unwrap();
        let dry = if dry_run { "?dryRun=All" } else { "" };
        let url = format!("/api/v1/namespaces/default/pods/{pod}/eviction{dry}");
        self.tried(&["create", "--raw", &url, "-f", file.to_str().unwrap()])
    }

    fn kubectl(&self, args: &[&str]) -> String {
        self.cluster.kubectl(args)
    }

    /// Whether the command succeeded, and its output.
    fn tried(&self, args: &[&str]) -> (bool, String) {
        let output = self.cluster.kubectl_command(args).output().unwrap();
        (output.status.success(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    }

    /// The command must be refused, and its output must contain all of `says`.
    fn refused(&self, args: &[&str], says: &[&str]) -> String {
        let (done, reported) = self.tried(args);
        assert!(!done && says.iter().all(|words| reported.contains(words)), "{args:?}, {says:?}: {reported}");
        reported
    }

    fn background(&self, args: &[&str]) -> Child {
        self.cluster.kubectl_command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn until<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let end = now() + LONG;
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(
                now() < end,
                "never happened: {what}: {}",
                self.kubectl(&["get", "pods,hookruns,events", "-A"])
            );
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Status code and message of an error.
fn said(error: kube::Error) -> (u16, String) {
    match error {
        kube::Error::Api(status) => (status.code, status.message.clone()),
        other => (0, other.to_string()),
    }
}
