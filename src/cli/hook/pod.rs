//! The pod that a hook runs for: the values that are injected into the hook, from the API server or from this
//! node's runtime. Reads only.

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};

use crate::api::annotation::{CONTAINER_NAME, POD_UID};
use crate::cli::cluster::bounded;
use crate::cli::hook::Failed;
use crate::cri::identity::{self, Origin};
use crate::cri::proto::v1::PodSandboxState;
use crate::cri::{self, convert};
use crate::hook::args::Injected;
use crate::hook::place::{HookPod, Place};

/// Reads the pod from the API server.
pub(super) async fn in_cluster(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<(Place, Injected), Failed> {
    let doing = format!("reading pod {namespace}/{name}");
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let pod = bounded(&doing, pods.get(name)).await?;
    let (spec, status) = (pod.spec.unwrap_or_default(), pod.status.unwrap_or_default());
    let injected = Injected {
        pod_name: name.to_owned(),
        pod_namespace: namespace.to_owned(),
        pod_ip: status.pod_ip.unwrap_or_default(),
        host_ip: status.host_ip.unwrap_or_default(),
        containers: spec.containers.into_iter().map(|container| container.name).collect(),
        modified: Vec::new(),
    };
    let uid = pod.metadata.uid.unwrap_or_default();
    Ok((place(namespace, name, uid, Origin::Api), injected))
}

/// Reads the pod from the runtime. Its containers are ordered by creation.
pub(super) async fn on_node(
    client: &cri::client::Client,
    namespace: &str,
    name: &str,
) -> Result<(Place, Injected), Failed> {
    let sandboxes = convert::sandboxes_of(client, namespace, name).await?;
    let ready = |state| state == i32::from(PodSandboxState::SandboxReady);
    let sandbox = sandboxes
        .into_iter()
        .filter(|sandbox| ready(sandbox.state))
        .max_by_key(|sandbox| sandbox.created_at)
        .and_then(|sandbox| Some((identity::pod_of(&sandbox)?, sandbox)));
    let Some((pod, sandbox)) = sandbox else {
        return Err(Failed::Refused(format!("no pod {namespace}/{name} runs on this node")));
    };
    let status = client.sandbox(&sandbox.id, false).await?.and_then(|answer| answer.status);
    let mut containers = client.containers(Some((POD_UID, &pod.uid))).await?;
    containers.retain(|container| container.pod_sandbox_id == sandbox.id);
    containers.sort_by_key(|container| container.created_at);
    let mut names: Vec<String> = Vec::new();
    for container in containers {
        let name = container.labels.get(CONTAINER_NAME).cloned().unwrap_or_default();
        if !name.is_empty() && !names.contains(&name) {
            names.push(name);
        }
    }
    let injected = Injected {
        pod_name: name.to_owned(),
        pod_namespace: namespace.to_owned(),
        pod_ip: status.and_then(|status| status.network).map(|network| network.ip).unwrap_or_default(),
        host_ip: String::new(),
        containers: names,
        modified: Vec::new(),
    };
    Ok((place(namespace, name, pod.uid, Origin::Unknown), injected))
}

fn place(namespace: &str, name: &str, uid: String, origin: Origin) -> Place {
    let pod = Some(HookPod { name: name.to_owned(), uid, origin });
    Place { namespace: namespace.to_owned(), pod, ..Place::default() }
}
