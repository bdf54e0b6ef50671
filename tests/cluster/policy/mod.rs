//! The shipped RBAC and admission policy against a real API server: what the agent of one node may change, with tokens as a
//! kubelet would hand them to it. Needs etcd and kube-apiserver, no node: the pods are objects that nobody runs.
//!
//! The policy needs Kubernetes 1.30. With older binaries the test asserts that the API for it is not there, and says so.

use std::io::Write;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Node, Pod, Secret};
use kube::Error;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::time::Instant;

use self::cases::{Part, cases};
use self::world::{NAMESPACE, OWN, World, manifest};
use crate::api_server::ApiServer;

mod cases;
mod hooks;
mod world;

/// The first minor release of Kubernetes 1 with the policy API.
const POLICY_SINCE: u32 = 30;

#[tokio::test]
async fn rbac_gives_the_agent_pods_events_and_nothing_else() {
    let server = ApiServer::start().await;
    server.apply("daemonset/crds");
    server.apply("daemonset/base");
    let world = World::new(&server).await;
    let pod = world.pod(OWN, "restart app", None).await;
    let agent = world.agent(OWN).await;
    let pods = Api::<Pod>::namespaced(agent.clone(), NAMESPACE);
    pods.get(&pod).await.unwrap();
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
    forbidden("create", pods.create(&PostParams::default(), &manifest("made", OWN, "", None)).await);
    forbidden("list nodes", Api::<Node>::all(agent.clone()).list(&ListParams::default()).await);
    let secrets = Api::<Secret>::namespaced(agent.clone(), NAMESPACE);
    forbidden("read a secret", secrets.get("registry").await);

    // The separate manifest: by name, and not the whole list.
    server.apply("daemonset/pull-secrets");
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        match secrets.get("registry").await {
            Err(Error::Api(status)) if status.code == 404 => break,
            other => assert!(Instant::now() < end, "no right to read secrets: {other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    forbidden("list secrets", secrets.list(&ListParams::default()).await);
}

#[tokio::test]
async fn the_policy_keeps_an_agent_to_its_node_and_to_what_was_asked_for() {
    let server = ApiServer::start().await;
    let admin = server.admin().await;
    let version = admin.apiserver_version().await.unwrap();
    // Not from its field "minor", which some builds leave empty.
    let minor: u32 = version.git_version.split('.').nth(1).unwrap().parse().unwrap();
    let known = admin.list_api_group_resources("admissionregistration.k8s.io/v1").await.unwrap();
    let known = known.resources.iter().any(|resource| resource.name == "validatingadmissionpolicies");
    if minor < POLICY_SINCE {
        assert!(!known, "{} has the policy API, so the policy is to be tested", version.git_version);
        let told = format!(
            "\nNOT EXERCISED: the admission policy needs Kubernetes 1.{POLICY_SINCE}, this is {}: give newer ones in KUBE_BIN\n",
            version.git_version
        );
        std::io::stderr().write_all(told.as_bytes()).unwrap();
        return;
    }
    assert!(known, "{} lacks the policy API", version.git_version);
    server.apply("daemonset/crds");
    server.apply("daemonset/base");
    // No controller is there that could be asked about HookRuns.
    assert!(server.kubectl(&["delete", "validatingwebhookconfiguration", "inplace"], "").status.success());
    server.apply("daemonset/admission-policy");
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
                let told = &status.message;
                assert!(
                    told.contains("'inplace-agent'") && told.contains(why),
                    "{}: denied otherwise: {told}",
                    case.what
                );
                assert_eq!(status.code, 403, "{}", case.what);
            }
            (_, Err(error)) => panic!("{}: {error}", case.what),
            (Some(_), Ok(_)) => panic!("{}: was let through", case.what),
        }
    }

    let pod = world.pod(OWN, "restart app", None).await;
    // Tokens that are of no node: of the account alone.
    let stray = world.server.client(&world.token(None).await).await;
    let denied = note(&Api::namespaced(stray, NAMESPACE), &pod, "x").await.unwrap_err().to_string();
    assert!(denied.contains("belongs to no node"), "{denied}");
    // The neighbour's agent.
    let neighbour = world.agent("node-b").await;
    let denied = note(&Api::namespaced(neighbour, NAMESPACE), &pod, "x").await.unwrap_err().to_string();
    assert!(denied.contains("not on node node-b"), "{denied}");
    // Everybody else is none of the policy's business.
    let label = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    Api::<Pod>::namespaced(admin, NAMESPACE).patch(&pod, &PatchParams::default(), &label).await.unwrap();
    hooks::only_of_its_own_node(&world, &agent).await;
    world.large(&agent).await;
    world.with_every_right(&agent).await;
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
