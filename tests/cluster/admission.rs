//! The admission webhooks with a real API server, which calls the controller on this machine by URL. The
//! controller has the rights of the shipped manifests, and the webhook configuration is the shipped one except
//! for that URL.

mod definitions;

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use crate::api_server::ApiServer;
use crate::support::panics;
use crate::support::ports::free_port;
use crate::support::wait::{WAIT_LIMIT, eventually_slowly};

/// All published examples.
const EXAMPLES: [&str; 11] = [
    include_str!("examples/gamedeployment-hotpatch-update.yaml"),
    include_str!("examples/gamedeployment-inplace-update.yaml"),
    include_str!("examples/gamedeployment-preDeleteHook-gamedeployment-args.yaml"),
    include_str!("examples/gamedeployment-preDeleteHook-gamedeployment.yaml"),
    include_str!("examples/gamedeployment-preDeleteHook-hook-template-args.yaml"),
    include_str!("examples/gamedeployment-preDeleteHook-hook-template-fail.yaml"),
    include_str!("examples/gamedeployment-preDeleteHook-hook-template-success.yaml"),
    include_str!("examples/gamedeployment-rolling-update.yaml"),
    include_str!("examples/gamestatefulset-hotpatch-update.yaml"),
    include_str!("examples/gamestatefulset-inplace-update.yaml"),
    include_str!("examples/gamestatefulset-rolling-update.yaml"),
];

/// A selector that does not match the template.
const INVALID: &str = "
apiVersion: tkex.tencent.com/v1alpha1
kind: GameDeployment
metadata: {name: invalid, namespace: default}
spec:
  selector: {matchLabels: {app: other}}
  updateStrategy: {maxSurge: many}
  template:
    metadata: {labels: {app: invalid}}
    spec: {containers: [{name: app, image: 'app:1'}]}
";
const HOOK: &str = "
apiVersion: tkex.tencent.com/v1alpha1
kind: HookTemplate
metadata: {name: bad, namespace: default}
spec: {metrics: [{name: webtest, count: 3, provider: {web: {url: 'http://127.0.0.1', jsonPath: '{$.age}'}}}]}
";

/// An invalid kind, image and amount, and a grace period that exceeds the deadline.
const ROLLOUT: &str = "
apiVersion: inplace.dev/v1alpha1
kind: InPlaceRollout
metadata: {name: bad, namespace: default}
spec:
  target: {workloadRef: {kind: Gadget, name: web}}
  containers: [{name: app, image: 'Not An Image'}]
  maxUnavailable: many
  pod: {gracePeriodSeconds: 900}
";

/// A controller process; killed when dropped.
struct Controller {
    process: Child,
    log: PathBuf,
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        panics::assert_none(|| fs::read_to_string(&self.log).unwrap());
    }
}

struct Fixture {
    server: ApiServer,
    log: tempfile::TempDir,
}

impl Fixture {
    /// Whether the command succeeded, and its output.
    fn kubectl(&self, args: &[&str], input: &str) -> (bool, String) {
        let output = self.server.kubectl(args, input);
        (output.status.success(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    }

    fn done(&self, args: &[&str], input: &str) -> String {
        let (done, reported) = self.kubectl(args, input);
        assert!(done, "{args:?}: {reported}\n{}", self.log());
        reported
    }

    /// The command must be refused, and its output must contain all of `says`.
    fn refused(&self, args: &[&str], input: &str, says: &[&str]) {
        let (done, reported) = self.kubectl(args, input);
        assert!(!done, "{args:?} was accepted: {reported}");
        assert!(says.iter().all(|words| reported.contains(words)), "{args:?}: {reported}");
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.log.path().join("log")).unwrap_or_default()
    }

    /// Starts a controller with the token of its service account.
    async fn controller(&self, port: u16) -> Controller {
        let admin = self.server.admin().await;
        let accounts: Api<ServiceAccount> = Api::namespaced(admin, "inplace-system");
        let request: TokenRequest = serde_json::from_value(json!({"spec": {"audiences": []}})).unwrap();
        let token =
            accounts.create_token_request("inplace-controller", &PostParams::default(), &request).await;
        let kubeconfig = self.server.kubeconfig_of(&token.unwrap().status.unwrap().token);
        let path = self.log.path().join("log");
        let log = File::options().create(true).append(true).open(&path).unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", env!("CARGO_BIN_EXE_inplace"), "controller"]);
        command.args(["--namespace", "inplace-system", "--identity", "here", "--listen", "127.0.0.1:0"]);
        command.args(["--webhook-listen", &format!("127.0.0.1:{port}"), "--webhook-names", "127.0.0.1"]);
        command.arg("--kubeconfig").arg(kubeconfig).stdin(Stdio::null());
        let process = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        Controller { process, log: path }
    }

    /// Applying the manifests again removes nothing that the leader has written.
    fn applied_again(&self) {
        let written = || {
            let path = "jsonpath={.webhooks[0].clientConfig.caBundle}";
            let trust = self.done(&["get", "validatingwebhookconfiguration", "inplace", "-o", path], "");
            let path = "jsonpath={.data}";
            (trust, self.done(&["get", "secret", "inplace-webhook", "-n", "inplace-system", "-o", path], ""))
        };
        let is_written = || Some(written()).filter(|(trust, _)| !trust.is_empty());
        let before = eventually_slowly(WAIT_LIMIT, "the authority is written", is_written, || self.log());
        assert!(before.1.contains("tls.key"));
        self.server.apply("daemonset/base");
        assert!(written() == before, "what the leader wrote was taken away");
        let log = self.log();
        assert!(!log.contains("PRIVATE KEY") && log.contains("serves a new certificate"), "{log}");
    }

    /// The program exits with the code for "refused", and its output contains `says`.
    fn undo_is_refused(&self, name: &str, to: &str, says: &str) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_inplace"));
        let output = command.args(["rollout", "undo", name, "--to-revision", to, "--kubeconfig"]);
        let output = output.arg(self.server.kubeconfig()).output().unwrap();
        let reported = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{reported}");
        assert!(reported.contains(says), "{reported}");
    }

    /// Waits until the API server calls the webhook and trusts its certificate.
    fn in_force(&self) {
        let refused = || self.kubectl(&["create", "--dry-run=server", "-f", "-"], INVALID).1;
        let poll = || refused().contains("spec.selector").then_some(());
        eventually_slowly(WAIT_LIMIT, "the webhook is called", poll, || {
            format!("{}\n{}", refused(), self.log())
        });
    }
}

#[tokio::test]
async fn what_could_not_be_carried_out_is_refused_and_everything_else_passes() {
    let fixture = Fixture { server: ApiServer::start().await, log: tempfile::tempdir().unwrap() };
    fixture.server.know_our_kinds().await;
    fixture.server.apply("daemonset/base");
    let port = free_port();
    let by_url = json!([{"op": "replace", "path": "/webhooks/0/clientConfig",
        "value": {"url": format!("https://127.0.0.1:{port}/validate")}}]);
    let older = definitions::Older::apply(&fixture);
    let controller = fixture.controller(port).await;
    older.await_report_and_replace();
    fixture.applied_again();
    fixture.done(
        &["patch", "validatingwebhookconfiguration/inplace", "--type=json", "-p", &by_url.to_string()],
        "",
    );
    // The patch removed the CA bundle; the leader writes it again.
    fixture.in_force();

    for example in EXAMPLES {
        // Some examples share a name, so each is deleted before the next is applied.
        fixture.done(&["apply", "-f", "-"], example);
        fixture.done(&["delete", "-f", "-"], example);
    }
    let create = &["create", "-f", "-"];
    fixture.refused(
        create,
        INVALID,
        &["GameDeployment \"invalid\" is invalid", "spec.selector: ", "spec.updateStrategy.maxSurge: "],
    );
    fixture.refused(
        create,
        HOOK,
        &["spec.metrics[webtest].interval: it is needed for a count of more than 1"],
    );

    fixture.refused(
        create,
        ROLLOUT,
        &["spec.target.workloadRef.kind: ", "spec.maxUnavailable: ", "spec.containers[0].image: "],
    );
    let late = ROLLOUT.replace("Gadget", "Deployment").replace("Not An Image", "app:1").replace("many", "1");
    fixture.refused(create, &late, &["spec.pod.gracePeriodSeconds: "]);
    let good = late.replace("gracePeriodSeconds: 900", "minReadySeconds: 1");
    fixture.done(create, &good);
    fixture.refused(create, &good.replace("name: app", "nam: app"), &["spec.containers"]);
    let patch = |change: &'static str| ["patch", "ipr/bad", "--type=merge", "-p", change];
    fixture.refused(&patch(r#"{"spec":{"containers":[{"name":"side"}]}}"#), "", &["spec.containers: "]);
    fixture.done(&patch(r#"{"spec":{"maxUnavailable":"50%","paused":true}}"#), "");

    fixture.done(&["apply", "-f", "-"], EXAMPLES[1]);
    fixture.done(&["apply", "-f", "-"], EXAMPLES[9]);
    let (deployment, set) = ("gamedeployment/test-gamedeployment", "gamestatefulset/test-gamestatefulset");
    let change = |name: &'static str, change: &'static str| ["patch", name, "--type=merge", "-p", change];
    fixture.refused(
        &change(set, r#"{"spec":{"serviceName":"other","podManagementPolicy":"Parallel"}}"#),
        "",
        &["spec.serviceName: cannot be changed", "spec.podManagementPolicy: cannot be changed"],
    );
    fixture.refused(
        &change(deployment, r#"{"spec":{"updateStrategy":{"maxUnavailable":0}}}"#),
        "",
        &["spec.updateStrategy.maxUnavailable: it and maxSurge are 0"],
    );
    for workload in [deployment, set] {
        let selector = r#"{"spec":{"selector":{"matchLabels":{"other":"label"}}}}"#;
        fixture.refused(&change(workload, selector), "", &["spec.selector: cannot be changed"]);
    }
    let host_network = r#"{"spec":{"template":{"spec":{"hostNetwork":true}}}}"#;
    fixture.refused(
        &change(deployment, host_network),
        "",
        &["spec.template: spec.hostNetwork cannot be changed"],
    );
    let limits = r#"[{"op":"add","path":"/spec/template/spec/containers/0/resources","value":{"limits":{"cpu":"1"}}}]"#;
    fixture.refused(
        &["patch", deployment, "--type=json", "-p", limits],
        "",
        &["limits.cpu (the QoS class of the pod would change from BestEffort to Burstable) cannot be changed"],
    );
    let image = r#"[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"python:3.7"}]"#;
    fixture.done(&["patch", deployment, "--type=json", "-p", image], "");

    let object: Value = serde_json::from_str(&fixture.done(&["get", deployment, "-o", "json"], "")).unwrap();
    // Pods are created without a field that Kubernetes does not have, so the user is warned.
    let mut typo = object.clone();
    typo["metadata"] = json!({"name": "typo"});
    typo["spec"]["template"]["spec"]["hostNetwrk"] = json!(true);
    let created = fixture.done(&["create", "--dry-run=server", "-f", "-"], &typo.to_string());
    assert!(created.contains("unknown field spec.template.spec.hostNetwrk: pods are"), "{created}");
    // A revision whose template cannot be restored in place.
    let mut template = object["spec"]["template"].clone();
    template["spec"]["hostNetwork"] = json!(true);
    let revision = json!({
        "apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 100, "data": {"spec": {"template": template}},
        "metadata": {"name": "by-hand", "ownerReferences": [{"apiVersion": object["apiVersion"], "kind": object["kind"],
            "name": object["metadata"]["name"], "uid": object["metadata"]["uid"], "controller": true}]},
    });
    fixture.done(create, &revision.to_string());
    fixture.undo_is_refused(deployment, "100", "spec.template: spec.hostNetwork cannot be changed");

    // Without a controller, creations of this project's kinds are refused; scaling, deletion and all other kinds
    // work.
    drop(controller);
    fixture.refused(create, INVALID, &["failed calling webhook \"validate.inplace.dev\""]);
    fixture.done(&["scale", deployment, "--replicas=3"], "");
    fixture.done(&["delete", set, "--cascade=background"], "");
    fixture.done(&["create", "configmap", "other", "--from-literal=a=b"], "");
    // The next controller uses the stored certificate.
    let _controller = fixture.controller(port).await;
    fixture.in_force();
    definitions::is_this_release(&fixture);
}
