//! The delete guard on a real cluster: each way in which a pod is deleted, what holds the deletion and what
//! releases it, also when processes are killed meanwhile. The controller has the rights of the manifests, and the
//! webhook configurations are the shipped ones except for their URLs, because the API server of this lab cannot
//! reach a Service.

pub(crate) mod fixture;

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use futures_util::future::join_all;
use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::{
    agent::Agent,
    cluster::{Cluster, block_on},
    support::parts::Parts,
    traffic::{End, now},
};
use fixture::Fixture;

/// Longer than the pauses between the retries of control loops.
const LONG: Duration = Duration::from_secs(240);
const GUARD: &str = "inplace.dev/delete-guard";
const OVERRIDE: &str = "inplace.dev/delete-guard-override";
/// In the answer of the guard when an API server that is overloaded answers the guard too late.
const LATE: &str = "takes too long to answer. Try again";

#[test]
fn a_guarded_pod_goes_gracefully_or_not_at_all() {
    let cluster = Cluster::own();
    let _agent = Agent::start(&cluster, &[]);
    let fixture = Fixture::new(&cluster);
    let first = fixture.controller("one");
    fixture.installed();
    let controller = fixture.a_deletion_is_held_until_the_hook_has_succeeded_whoever_dies(&first);
    let (fixture, parts) = (&fixture, Parts::default());
    let (over, lost) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        let end = End(&over);
        // The rest runs while the certificate is replaced and another thread sends requests all the time.
        scope.spawn(|| fixture.asks_all_the_time(&over, &lost));
        let rotated = fixture.certificates_change();
        let all: [(_, fn(&Fixture<'_>)); 4] = [
            ("a failed hook", |fixture| fixture.a_failed_hook_holds_until_a_person_says_something()),
            ("a namespace", |fixture| fixture.a_namespace_goes_when_a_person_says_so()),
            ("the readiness gate", |fixture| fixture.new_pods_get_the_gate()),
            ("control loops", |fixture| fixture.control_loops_come_back_until_they_may()),
        ];
        parts.run_all(all.map(|(name, part)| (name, move || part(fixture))));
        fixture.until("the next certificate is served", || (fixture.serving() != rotated).then_some(()));
        drop(end);
    });
    let lost = lost.into_inner().unwrap();
    assert!(lost.is_empty(), "{lost:?}");
    let log = controller.log();
    assert!(!log.contains("PRIVATE KEY") && log.contains("the webhook serves a new certificate"), "{log}");
}

impl Fixture<'_> {
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
        self.until("the hook is polled", || (self.hook_server.queries("warm").len() > 2).then_some(()));
        self.refused(&delete, &["is Running since", "webtest"]);
        // Fifty deletions at once, and an eviction.
        for deleted in block_on(join_all((0..50).map(|_| self.deleted("warm")))) {
            let (code, message) = deleted.unwrap_err();
            let says = message.contains("is Running") || message.contains(LATE);
            assert!(code == 403 && says, "{code} {message}");
        }
        // In this namespace an eviction whose review takes too long is allowed: the guard must be fast again.
        self.refused(&delete, &["is Running since"]);
        let reported = self.until("an answer to the eviction in time", || {
            let (evicted, reported) = self.evicted("warm", false);
            assert!(!evicted && reported.contains("(TooManyRequests)"), "{reported}");
            (!reported.contains(LATE)).then_some(reported)
        });
        assert!(reported.contains("is Running"), "{reported}");
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
            let pod = self.cluster.read("/api/v1/namespaces/default/pods/plain");
            let reported =
                pod["metadata"]["annotations"]["inplace.dev/status"].as_str().unwrap_or_default().to_owned();
            assert!(!["Failed", "Refused"].iter().any(|bad| reported.contains(bad)), "{reported}");
            reported.contains("Succeeded").then_some(())
        });
        assert_eq!((self.runs("plain").len(), self.hook_server.queries("plain").len()), (0, 1));
        self.kubectl(&["delete", "pod", "plain", "--wait=false"]);
        // A running hook continues, and the next controller finds it.
        self.hook_server.say("warm", 1);
        let next = self.controller("two");
        self.until("it may go", || block_on(self.deleted("warm")).ok());
        let asked = self.events("warm", "DeleteGuardAsked");
        assert!(
            asked.contains(reported.split("HookRun ").nth(1).unwrap().split(['.', ' ']).next().unwrap()),
            "{asked}"
        );
        assert!(self.events("warm", "DeleteGuardPassed").contains("has succeeded"));
        assert_eq!(self.hook_server.queries("warm").iter().filter(|query| query.said == 1).count(), 1);
        self.gone("warm");
        next
    }

    fn a_failed_hook_holds_until_a_person_says_something(&self) {
        let pod = "cold";
        self.run(pod, "once");
        let delete = ["delete", "pod", pod, "--wait=false"];
        self.refused(&delete, &["HookRun pre-delete-hook-cold-"]);
        let failed = || {
            self.until("it has failed", || {
                block_on(self.deleted(pod))
                    .is_err_and(|(_, said)| said.contains("is Failed since"))
                    .then_some(())
            });
        };
        failed();
        self.kubectl(&["annotate", "pod", pod, "inplace.dev/delete-guard-retry=1"]);
        self.refused(&delete, &["HookRun pre-delete-hook-cold-"]);
        failed();
        assert_eq!((self.runs(pod).len(), self.hook_server.queries(pod).len()), (2, 2));
        self.kubectl(&["annotate", "pod", pod, &format!("{OVERRIDE}=ticket 42")]);
        self.kubectl(&delete);
        let reported = self.events(pod, "DeleteGuardOverridden");
        assert!(
            reported.contains("Warning") && reported.contains("of the pod allows it: ticket 42"),
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
            let reported = self.cluster.read("/api/v1/namespaces/closing").to_string();
            reported.contains("delete-guard-override=REASON").then_some(())
        });
        self.kubectl(&["annotate", "namespace", "closing", &format!("{OVERRIDE}=closing down")]);
        self.until("it is gone", || {
            self.cluster.find("/api/v1/namespaces", "closing").is_none().then_some(())
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
        self.kubectl(&["rollout", "status", "deployment/web", "--timeout=180s"]);
        // A ReplicaSet deletes the pod that has been Ready for less time, in whole seconds. If two are equal,
        // each attempt may select another one.
        let first = self.web().remove(0);
        self.until("its next pod is younger", || {
            (self.ready_for(&first) >= SignedDuration::from_secs(2)).then_some(())
        });
        self.kubectl(&["scale", "deployment/web", "--replicas=2"]);
        self.kubectl(&["rollout", "status", "deployment/web", "--timeout=180s"]);

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
        self.kubectl(&["rollout", "status", "deployment/web", "--timeout=180s"]);

        // `kubectl drain` retries until its timeout, and waits until the pod is gone: a kubelet may remove it when it collects.
        let node = self.cluster.node().name;
        let old = self.web().remove(0);
        let timeout = format!("--timeout={}s", LONG.as_secs());
        let drain = self.background(&["drain", &node, "--pod-selector=app=web", &timeout]);
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
        self.kubectl(&["rollout", "status", "deployment/web", "--timeout=180s"]);

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
        let secret = self.cluster.read("/api/v1/namespaces/inplace-system/secrets/inplace-webhook");
        secret["data"]["tls.crt"].as_str().unwrap_or_default().to_owned()
    }

    /// Deletes a held pod again and again; records every answer that is not the guard's.
    fn asks_all_the_time(&self, over: &AtomicBool, lost: &Mutex<Vec<String>>) {
        self.run("asked", "leave");
        while !over.load(Ordering::Relaxed) {
            match block_on(self.deleted("asked")) {
                Err((403, reported)) if reported.contains("is guarded") || reported.contains(LATE) => {}
                other => lost.lock().unwrap().push(format!("{other:?}")),
            }
            thread::sleep(Duration::from_millis(250));
        }
    }
}
