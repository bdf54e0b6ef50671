//! The shipped RBAC and admission policy against a real API server: what the agent of one node may change, with
//! tokens as a kubelet would issue them. Needs etcd and kube-apiserver, no node: the pods are objects only.
//! The policies need Kubernetes 1.30. With older binaries the tests assert that the policy API does not exist,
//! and print that; the hermetic tests evaluate the same cases against the expressions themselves.

use std::path::Path;

use inplace::api::hook_run::HookRun;
use inplace::cluster::confinement::Confinement;
use inplace::cluster::server::Server;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{Event, Node, Pod, Secret};
use kube::Error;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use self::cases::{OWN, Part, cases};
use self::world::{NAMESPACE, World, object};
use crate::api_server::ApiServer;
use crate::support::release::{self, POLICY_SINCE};
use crate::support::wait::{WAIT_LIMIT, eventually_async};

mod cases;
mod hook_cases;
mod hooks;
mod webhook_cases;
mod world;

#[tokio::test]
async fn rbac_gives_the_agent_pods_events_and_nothing_else() {
    let server = ApiServer::start().await;
    server.know_our_kinds().await;
    server.apply("daemonset/base");
    let world = World::new(&server).await;
    let pod = world.pod(OWN, "restart app", None).await;
    let agent = world.agent(OWN).await;
    let pods = Api::<Pod>::namespaced(agent.clone(), NAMESPACE);
    // Rights take effect a moment after they are written.
    eventually_async(WAIT_LIMIT, "the rights of the agent", async || pods.get(&pod).await).await;
    pods.list(&ListParams::default()).await.unwrap();
    note(&pods, &pod, "answer").await.unwrap();
    let event = json!({
        "metadata": {"generateName": "web-"},
        "involvedObject": {"kind": "Pod", "name": pod, "namespace": NAMESPACE},
    });
    let event: Event = serde_json::from_value(event).unwrap();
    Api::namespaced(agent.clone(), NAMESPACE).create(&PostParams::default(), &event).await.unwrap();

    let whole = pods.get(&pod).await.unwrap();
    forbidden("delete", pods.delete(&pod, &DeleteParams::default()).await);
    forbidden("update", pods.replace(&pod, &PostParams::default(), &whole).await);
    forbidden("create", pods.create(&PostParams::default(), &object("made", OWN, "", None)).await);
    forbidden("list nodes", Api::<Node>::all(agent.clone()).list(&ListParams::default()).await);
    let secrets = Api::<Secret>::namespaced(agent.clone(), NAMESPACE);
    forbidden("read a secret", secrets.get("registry").await);

    // The separate manifest gives access by name, and not to the whole list.
    server.apply("daemonset/pull-secrets");
    eventually_async(WAIT_LIMIT, "the right to read secrets", async || match secrets.get("registry").await {
        Err(Error::Api(status)) if status.code == 404 => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    forbidden("list secrets", secrets.list(&ListParams::default()).await);
}

#[tokio::test]
async fn the_policy_keeps_an_agent_to_its_node_and_to_what_was_asked_for() {
    let Some(server) = with_policies().await else { return };
    let admin = server.admin().await;
    server.know_our_kinds().await;
    server.apply("daemonset/base");
    // There is no controller that could answer the webhook for HookRuns.
    assert!(server.kubectl(&["delete", "validatingwebhookconfiguration", "inplace"], "").status.success());
    let world = World::new(&server).await;
    let agent = world.agent(OWN).await;
    world.in_force(&agent).await;

    for case in cases() {
        let pod = world.pod(case.node, case.request, case.note.as_deref()).await;
        let pods = Api::<Pod>::namespaced(agent.clone(), NAMESPACE);
        let patch = Patch::Strategic(case.patch);
        let done = match case.part {
            Part::Pod => pods.patch(&pod, &PatchParams::default(), &patch).await,
            Part::Status => pods.patch_status(&pod, &PatchParams::default(), &patch).await,
        };
        match (case.denied, done) {
            (None, Ok(_)) => {}
            (Some(why), Err(Error::Api(status))) => {
                let reported = &status.message;
                assert!(
                    reported.contains("'inplace-agent'") && reported.contains(why),
                    "{}: denied otherwise: {reported}",
                    case.what
                );
                assert_eq!(status.code, 403, "{}", case.what);
            }
            (_, Err(error)) => panic!("{}: {error}", case.what),
            (Some(_), Ok(_)) => panic!("{}: was let through", case.what),
        }
    }

    let pod = world.pod(OWN, "restart app", None).await;
    // A token that is bound to no node: that of the account alone.
    let unconfined = world.server.client(&world.token(None).await).await;
    let denied = note(&Api::namespaced(unconfined, NAMESPACE), &pod, "x").await.unwrap_err().to_string();
    assert!(denied.contains("belongs to no node"), "{denied}");
    // The agent of the other node.
    let neighbour = world.agent("node-b").await;
    let denied = note(&Api::namespaced(neighbour, NAMESPACE), &pod, "x").await.unwrap_err().to_string();
    assert!(denied.contains("not on node node-b"), "{denied}");
    // The policy does not apply to other users.
    let label = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    Api::<Pod>::namespaced(admin, NAMESPACE).patch(&pod, &PatchParams::default(), &label).await.unwrap();
    hooks::only_of_its_own_node(&world, &agent).await;
    world.large(&agent).await;
    world.with_every_right(&agent).await;
}

#[tokio::test]
async fn an_agent_detects_whether_a_policy_restricts_it_to_its_node() {
    let server = ApiServer::start().await;
    server.know_our_kinds().await;
    server.apply("daemonset/before-1.30");
    let world = World::new(&server).await;
    let tried = Server::new(world.agent(OWN).await);
    let until = async |wanted: Confinement| {
        eventually_async(WAIT_LIMIT, &format!("{wanted:?}"), async || {
            let found = tried.confinement(NAMESPACE).await;
            if found == wanted { Ok(()) } else { Err(format!("instead of {found:?}")) }
        })
        .await;
    };
    // With a webhook that does not answer, and without one.
    until(Confinement::Open).await;
    assert!(server.kubectl(&["delete", "validatingwebhookconfiguration", "inplace"], "").status.success());
    until(Confinement::Open).await;
    let runs = Api::<HookRun>::all(server.admin().await);
    assert_eq!(runs.list(&ListParams::default()).await.unwrap().items.len(), 0, "something was left");
    if exercised(&server).await {
        server.apply("daemonset/base");
        until(Confinement::Confined).await;
    }
}

/// The policies work in any namespace of the installation.
#[tokio::test]
async fn in_another_namespace_the_policies_mean_the_accounts_that_are_there() {
    let Some(server) = with_policies().await else { return };
    server.know_our_kinds().await;
    let folder = tempfile::tempdir().unwrap();
    let up = "../".repeat(folder.path().canonicalize().unwrap().components().count() - 1);
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("daemonset/base").canonicalize().unwrap();
    let base = format!("{up}{}", base.strip_prefix("/").unwrap().display());
    let overlay = json!({"namespace": "elsewhere", "resources": [base]});
    std::fs::write(folder.path().join("kustomization.yaml"), overlay.to_string()).unwrap();
    server.apply(folder.path().to_str().unwrap());
    let mut world = World::new(&server).await;
    world.home = "elsewhere";
    let agent = world.agent(OWN).await;
    world.in_force(&agent).await;
    let pods = Api::<Pod>::namespaced(agent, NAMESPACE);
    let (own, other) =
        (world.pod(OWN, "restart app", None).await, world.pod("node-b", "restart app", None).await);
    note(&pods, &own, "answer").await.unwrap();
    let denied = note(&pods, &other, "answer").await.unwrap_err().to_string();
    assert!(denied.contains("not on node node-a"), "{denied}");
}

#[tokio::test]
async fn of_the_webhooks_a_controller_changes_whom_is_trusted_alone() {
    let Some(server) = with_policies().await else { return };
    server.apply("daemonset/base");
    let token = server.token_of("inplace-system", "inplace-controller");
    let (controller, admin) = (server.client(&token).await, server.admin().await);
    let [controller, admin] = [controller, admin].map(Api::<ValidatingWebhookConfiguration>::all);
    let shipped = serde_json::to_value(admin.get("inplace").await.unwrap()).unwrap();
    let try_it = PatchParams { dry_run: true, ..PatchParams::default() };
    let patch = |field: &str, value: &Value| {
        let op = if shipped.pointer(field).is_some() { "replace" } else { "add" };
        Patch::Json::<()>(serde_json::from_value(json!([{"op": op, "path": field, "value": value}])).unwrap())
    };
    eventually_async(WAIT_LIMIT, "the policy to come into force", async || {
        let emptied = controller.patch("inplace", &try_it, &patch("/webhooks", &json!([]))).await;
        if emptied.is_ok() { Err("it is allowed") } else { Ok(()) }
    })
    .await;
    for case in webhook_cases::cases() {
        let patch = patch(case.field, &case.value);
        match (case.denied, controller.patch("inplace", &try_it, &patch).await) {
            (None, Ok(_)) => {}
            (Some(why), Err(Error::Api(status))) => {
                let reported = &status.message;
                assert!(
                    reported.contains("'inplace-controller-webhooks'") && reported.contains(why),
                    "{}: {reported}",
                    case.what
                );
            }
            (_, Err(error)) => panic!("{}: {error}", case.what),
            (Some(_), Ok(_)) => panic!("{}: was let through", case.what),
        }
        // The policy restricts the controller, not the change: an administrator may make it.
        if case.denied.is_some() && case.what != "no webhook" {
            admin
                .patch("inplace", &try_it, &patch)
                .await
                .unwrap_or_else(|error| panic!("{}: {error}", case.what));
        }
    }
}

/// An API server of a release with policies; `None` otherwise, which is printed. The first caller finds out, and only
/// that one has started a server for nothing.
async fn with_policies() -> Option<ApiServer> {
    static WITHOUT: OnceCell<Option<String>> = OnceCell::const_new();
    let mut first = None;
    let find_out = async || {
        let server = ApiServer::for_policies().await;
        let without = without_policies(&server).await;
        first = Some(server);
        without
    };
    if let Some(version) = WITHOUT.get_or_init(find_out).await {
        not_exercised(version);
        return None;
    }
    Some(match first {
        Some(server) => server,
        None => ApiServer::for_policies().await,
    })
}

/// Whether this API server has policies. If not, that is printed.
async fn exercised(server: &ApiServer) -> bool {
    let without = without_policies(server).await;
    if let Some(version) = &without {
        not_exercised(version);
    }
    without.is_none()
}

/// The version of this API server if it has no policies.
async fn without_policies(server: &ApiServer) -> Option<String> {
    let admin = server.admin().await;
    let version = admin.apiserver_version().await.unwrap().git_version;
    let known = admin.list_api_group_resources("admissionregistration.k8s.io/v1").await.unwrap();
    let known = known.resources.iter().any(|resource| resource.name == "validatingadmissionpolicies");
    assert_eq!(known, release::minor(&version) >= POLICY_SINCE, "{version} and the policy API");
    (!known).then_some(version)
}

fn not_exercised(version: &str) {
    release::not_exercised("the admission policies", POLICY_SINCE, version);
}

async fn note(pods: &Api<Pod>, pod: &str, text: &str) -> Result<(), Error> {
    let patch = Patch::Merge(json!({"metadata": {"annotations": {"inplace.dev/status": text}}}));
    pods.patch(pod, &PatchParams::default(), &patch).await.map(|_| ())
}

fn forbidden<T>(what: &str, done: Result<T, Error>) {
    match done {
        Err(Error::Api(status)) => {
            assert!(status.code == 403 && status.message.contains("cannot"), "{what}: {}", status.message);
        }
        Err(error) => panic!("{what}: {error}"),
        Ok(_) => panic!("{what}: the agent may"),
    }
}
