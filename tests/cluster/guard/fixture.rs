//! A cluster with the webhooks of the delete guard, and what a test does and observes there. Decides nothing about the
//! guard.

use std::process::{Child, Stdio};

use inplace::controller::admission::{CONFIGURATION, GATE_CONFIGURATION};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::DeleteParams};
use serde_json::{Value, json};

use super::{GUARD, LATE, LONG};
use crate::{
    agent::Agent,
    cluster::Cluster,
    support::{hook_server::HookServer, wait::eventually_slowly},
    traffic::now,
};

/// The port of the webhooks, at the address of the first node: no other process listens there while no controller runs.
const WEBHOOKS: u16 = 9443;
/// The controller's time limit of a TLS handshake, after which it closes the connection.
const HANDSHAKE: SignedDuration = SignedDuration::from_secs(5);

pub(super) struct Fixture<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) hook_server: HookServer,
}

impl<'a> Fixture<'a> {
    pub(super) fn new(cluster: &'a Cluster) -> Self {
        Self { cluster, hook_server: HookServer::open() }
    }

    pub(super) fn controller(&self, name: &str) -> Agent {
        controller(self.cluster, name)
    }

    /// Installs the shipped configurations with URLs, and two hook templates: one that is polled until it
    /// succeeds, one that is measured once.
    pub(super) fn installed(&self) {
        install_webhooks(self.cluster, "base", "validatingwebhookconfiguration", CONFIGURATION);
        let gate = "readiness-gate";
        install_webhooks(self.cluster, gate, "mutatingwebhookconfiguration", GATE_CONFIGURATION);
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

    pub(super) fn template(&self, namespace: &str, name: &str, more: &Value) {
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

    /// The pod of the Deployment that is guarded now: its hook is being polled, and it is not terminating.
    pub(super) fn held(&self) -> String {
        self.until("a pod is held", || {
            self.web().into_iter().find(|name| !self.hook_server.queries(name).is_empty())
        })
    }

    /// The pods of the Deployment that run and are not terminating.
    pub(super) fn web(&self) -> Vec<String> {
        let stays = |(_, pod): &(String, Value)| {
            pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null()
        };
        self.cluster.pods("app=web").into_iter().filter(stays).map(|(name, _)| name).collect()
    }

    /// How long the pod has been Ready.
    pub(super) fn ready_for(&self, pod: &str) -> SignedDuration {
        let at = "jsonpath={.status.conditions[?(@.type==\"Ready\")].lastTransitionTime}";
        let since: Timestamp = self.kubectl(&["get", "pod", pod, "-o", at]).trim().parse().unwrap();
        now().duration_since(since)
    }

    /// Waits until the pod is terminating or gone.
    pub(super) fn gone(&self, pod: &str) {
        self.until(&format!("{pod} is gone"), || {
            let stays = |pod: Value| pod["metadata"]["deletionTimestamp"].is_null();
            let found = self.cluster.find("/api/v1/namespaces/default/pods", pod);
            (!found.is_some_and(stays)).then_some(())
        });
    }

    pub(super) fn runs(&self, pod: &str) -> Vec<Value> {
        let list = self.cluster.read("/apis/tkex.tencent.com/v1alpha1/namespaces/default/hookruns");
        let mut items = list["items"].as_array().unwrap().clone();
        items.retain(|run| run["metadata"]["ownerReferences"][0]["name"] == pod);
        items
    }

    pub(super) fn events(&self, pod: &str, reason: &str) -> String {
        self.until(&format!("the event {reason}"), || {
            let reported = self.cluster.events(pod, reason);
            (!reported.is_empty()).then(|| json!(reported).to_string())
        })
    }

    // ---- actions ----

    /// Runs a pod that is guarded by this hook; an empty name means an unguarded pod.
    pub(super) fn run(&self, name: &str, hook: &str) {
        self.run_in("default", name, hook);
    }

    pub(super) fn run_in(&self, namespace: &str, name: &str, hook: &str) {
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
        self.kubectl(&["wait", "--for=condition=Ready", "pod", name, "-n", namespace, "--timeout=180s"]);
    }

    /// Deletes a pod; again while a machine that is overloaded does not call the guard in time.
    pub(super) async fn deleted(&self, pod: &str) -> Result<(), (u16, String)> {
        let api: Api<Pod> = Api::namespaced(self.cluster.client.clone(), "default");
        let end = now() + LONG;
        loop {
            let began = now();
            let answer = api.delete(pod, &DeleteParams::default()).await.map(drop).map_err(said);
            let took = now().duration_since(began);
            let is_late = matches!(&answer, Err((500, reported)) if is_called_too_slowly(reported, took));
            if !is_late || now() > end {
                return answer;
            }
        }
    }

    /// Uses kubectl, because kube's client would retry a 429 itself.
    pub(super) fn evicted(&self, pod: &str, dry_run: bool) -> (bool, String) {
        let file = self.cluster.lab().dir.join(format!("{pod}.eviction.json"));
        std::fs::write(&file, json!({"metadata": {"name": pod, "namespace": "default"}}).to_string())
            .unwrap();
        let dry = if dry_run { "?dryRun=All" } else { "" };
        let url = format!("/api/v1/namespaces/default/pods/{pod}/eviction{dry}");
        self.tried(&["create", "--raw", &url, "-f", file.to_str().unwrap()])
    }

    pub(super) fn kubectl(&self, args: &[&str]) -> String {
        self.cluster.kubectl(args)
    }

    /// Whether the command succeeded, and its output.
    pub(super) fn tried(&self, args: &[&str]) -> (bool, String) {
        let output = self.cluster.kubectl_command(args).output().unwrap();
        (output.status.success(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    }

    /// The command must be refused, and its output must contain all of `says`. It is repeated while a machine that is overloaded
    /// does not call the guard in time, or answers the guard too late.
    pub(super) fn refused(&self, args: &[&str], says: &[&str]) -> String {
        let reported = self.until("an answer in time", || {
            let began = now();
            let (done, reported) = self.tried(args);
            assert!(!done, "{args:?}: {reported}");
            let took = now().duration_since(began);
            let is_late = reported.contains(LATE) || is_called_too_slowly(&reported, took);
            (!is_late).then_some(reported)
        });
        assert!(says.iter().all(|words| reported.contains(words)), "{args:?}, {says:?}: {reported}");
        reported
    }

    pub(super) fn background(&self, args: &[&str]) -> Child {
        self.cluster.kubectl_command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    pub(super) fn until<T>(&self, what: &str, poll: impl FnMut() -> Option<T>) -> T {
        eventually_slowly(LONG, what, poll, || self.kubectl(&["get", "pods,hookruns,events", "-A"]))
    }
}

/// Starts a controller that serves webhooks.
pub(crate) fn controller(cluster: &Cluster, name: &str) -> Agent {
    let ip = &cluster.node().ip;
    let listen = format!("{ip}:{WEBHOOKS}");
    Agent::controller_with(cluster, name, &["--webhook-listen", &listen, "--webhook-names", ip])
}

/// Installs a shipped webhook configuration, with the URLs of [`controller`].
pub(crate) fn install_webhooks(cluster: &Cluster, folder: &str, kind: &str, name: &str) {
    let ip = cluster.node().ip;
    let file = format!("{}/daemonset/{folder}/webhook.yaml", env!("CARGO_MANIFEST_DIR"));
    cluster.kubectl(&["apply", "-f", &file]);
    let configuration: Value =
        serde_json::from_str(&cluster.kubectl(&["get", kind, name, "-o", "json"])).unwrap();
    let webhooks = configuration["webhooks"].as_array().unwrap();
    let by_url = |(at, webhook): (usize, &Value)| {
        let config = format!("/webhooks/{at}/clientConfig");
        let path = webhook["clientConfig"]["service"]["path"].as_str().unwrap();
        let url = format!("https://{ip}:{WEBHOOKS}{path}");
        [
            json!({"op": "remove", "path": format!("{config}/service")}),
            json!({"op": "add", "path": format!("{config}/url"), "value": url}),
        ]
    };
    let patch: Vec<_> = webhooks.iter().enumerate().flat_map(by_url).collect();
    cluster.kubectl(&["patch", kind, name, "--type=json", "-p", &json!(patch).to_string()]);
}

/// True for the answer, after this time, of an API server that has called a webhook and exceeded a time limit: that of the call,
/// that of its own handshake, or that of the controller's handshake. Only after the latter may a connection have been closed.
fn is_called_too_slowly(reported: &str, took: SignedDuration) -> bool {
    let says = |words: &&str| reported.contains(words);
    let exceeded = ["context deadline exceeded", "TLS handshake timeout"].iter().any(says);
    let closed = took >= HANDSHAKE && ["EOF", "connection reset by peer"].iter().any(says);
    reported.contains("failed calling webhook") && (exceeded || closed)
}

/// Status code and message of an error.
fn said(error: kube::Error) -> (u16, String) {
    match error {
        kube::Error::Api(status) => (status.code, status.message.clone()),
        other => (0, other.to_string()),
    }
}
