//! What a killed agent leaves behind: a fence, which a kubelet collects sooner or later. A kubelet that collects
//! a container without a log path deletes the files of its own working directory; here these files are bait (see
//! `cluster.sh`).

use std::{fs, path::PathBuf, time::Duration};

use inplace::cri::{
    client::Client,
    clone::sandbox_config,
    endpoint::Endpoint,
    proto::v1::{
        Container, ContainerConfig, ContainerMetadata, CreateContainerRequest, LinuxContainerConfig,
        LinuxContainerSecurityContext, NamespaceMode, NamespaceOption, StartContainerRequest, UserNamespace,
        runtime_service_client::RuntimeServiceClient,
    },
};
use k8s_openapi::api::core::v1::Pod as Object;
use kube::api::DeleteParams;

use crate::{
    agent::{Agent, Setup, status},
    cluster::{Cluster, block_on},
    ongoing::{containers, end_process, is_fence, raw_channel, running_fence},
    pod::{GOING, Pod, container, is_ready},
    request::ONE,
    support::hold::Holds,
    support::wait::{eventually, eventually_within},
};

/// The fault point at which the operation has started the replacement, and has not removed the fence yet.
const FENCED: &str = "after effect Start";

#[test]
fn an_orphaned_fence_costs_no_file_of_the_node_and_no_pod_for_long() {
    let cluster = Cluster::leased();
    let holds = Holds::below(&cluster.node().dir);
    let setup = [("INPLACE_FAULT_HOLD", holds.folder())];
    let agent = Agent::start_with(&cluster, &Setup { env: &setup, ..Setup::default() });
    let pods = ["deleted", "crashes", "rebooted"].map(|name| Pod::run(&cluster, name, ONE));
    let [deleted, crashes, rebooted] = &pods;
    let ids = [deleted, crashes, rebooted].map(|pod| {
        holds.set(&pod.uid, FENCED);
        pod.request("restart app")
    });
    for (pod, mut id) in pods.iter().zip(ids) {
        let mut times = 1;
        eventually("the replacement to run beside the fence", || {
            // On a busy node the kubelet may have started the replacement itself: then the request is repeated.
            if status(&pod.get()).is_some_and(|status| status.id == id && status.phase.is_terminal()) {
                times += 1;
                id = pod.request(&format!("restart app #{times}"));
            }
            holds.held(&pod.uid)
        });
        assert!(running_fence(pod).is_some(), "{:#?}", containers(pod));
    }

    let like = running_fence(crashes).unwrap();

    // The agent is frozen, a pod is deleted, and the agent is killed.
    agent.freeze();
    block_on(deleted.api.delete(&deleted.name, &DeleteParams::default())).unwrap();
    agent.kill();
    deleted.until(GOING, "it goes", |seen| seen.gone);

    // While the fence runs, its name is taken: a container that exits is not started again.
    let replacement = crashes.facts().running("app").clone();
    end_process(&cluster, &replacement.id);
    crashes.wait("its kubelet cannot create the next attempt", is_refused);
    // The fence would end by itself eventually; here its process is killed, as by the OOM killer. The
    // kubelet collects it, once a minute, and may delay the container (back-off).
    end_process(&cluster, &running_fence(crashes).unwrap().id);
    crashes.wait_for(Duration::from_secs(300), "its kubelet has started it again", is_ready);
    assert_eq!(crashes.facts().running("app").attempt, replacement.attempt + 1);

    // After a reboot of the node the fence has exited, like everything else.
    let ids: Vec<_> = containers(rebooted).into_iter().map(|container| container.id).collect();
    let sandbox = rebooted.facts().sandbox;
    cluster.kill("kubelet");
    ids.iter().chain([&sandbox]).for_each(|id| end_process(&cluster, id));
    cluster.start("kubelet");
    rebooted.wait_for(GOING, "it is back in another sandbox", |object| {
        is_ready(object) && container(object, "app").is_some_and(|app| app.restart_count >= 2)
    });

    for round in 1..=2 {
        collection(&cluster, round);
        cluster.assert_unharmed();
    }
    // A fence whose log file is deleted with it, and one of release 0.1.0, which has no log path.
    make_fence(crashes, &like, 8, "app/inplace-fence-8.log");
    make_fence(crashes, &like, 9, "");
    assert_eq!(fence_logs(&pods).len(), 1);
    let _next = Agent::start(&cluster, &[]);
    eventually("the next agent to remove what is left", || {
        let left = |pod: &&Pod<'_>| containers(pod).iter().any(is_fence);
        // The log file is deleted after the container.
        (!pods.iter().any(|pod| left(&pod)) && fence_logs(&pods).is_empty()).then_some(())
    });
}

/// Creates a running fence in the pod, without an agent.
fn make_fence(pod: &Pod<'_>, like: &Container, attempt: u32, log_path: &str) {
    let endpoint = Endpoint::parse(&pod.cluster.node().endpoint).unwrap();
    let sandbox_id = pod.facts().sandbox;
    block_on(async {
        let sandbox = Client::new(&endpoint, None).sandbox(&sandbox_id, true).await.unwrap().unwrap();
        let config = ContainerConfig {
            metadata: Some(ContainerMetadata { attempt, ..like.metadata.clone().unwrap() }),
            image: like.image.clone(),
            labels: like.labels.clone(),
            annotations: like.annotations.clone(),
            log_path: log_path.to_owned(),
            linux: Some(LinuxContainerConfig {
                security_context: Some(of_node()),
                ..LinuxContainerConfig::default()
            }),
            ..ContainerConfig::default()
        };
        let request = CreateContainerRequest {
            pod_sandbox_id: sandbox_id,
            config: Some(config),
            sandbox_config: Some(sandbox_config(&sandbox.info).unwrap()),
        };
        // The project's own client refuses to create such a container.
        let mut runtime = RuntimeServiceClient::new(raw_channel(pod.cluster));
        let container_id = runtime.create_container(request).await.unwrap().into_inner().container_id;
        runtime.start_container(StartContainerRequest { container_id }).await.unwrap();
    });
}

/// The user namespace of the node, as kubelets since 1.25 name it: newer runtimes refuse a container whose sandbox names
/// another one.
fn of_node() -> LinuxContainerSecurityContext {
    let userns_options = Some(UserNamespace { mode: NamespaceMode::Node.into(), ..UserNamespace::default() });
    let namespace_options = Some(NamespaceOption { userns_options, ..NamespaceOption::default() });
    LinuxContainerSecurityContext { namespace_options, ..LinuxContainerSecurityContext::default() }
}

fn is_refused(object: &Object) -> bool {
    let waiting = container(object, "app").and_then(|app| app.state.as_ref()?.waiting.as_ref());
    waiting.is_some_and(|waiting| waiting.reason.as_deref() == Some("CreateContainerError"))
}

/// Waits until the kubelet has collected once more: it removes the logs of a deleted pod.
pub(crate) fn collection(cluster: &Cluster, round: u32) {
    let pod = Pod::run(cluster, &format!("collected-{round}"), ONE);
    let folder = logs(&pod);
    assert!(folder.exists());
    pod.delete();
    eventually_within(GOING, "the kubelet to collect", || if folder.exists() { Err("") } else { Ok(()) });
}

/// The folder with the logs of a pod on the first node.
fn logs(pod: &Pod<'_>) -> PathBuf {
    pod.cluster.node().dir.join(format!("var/log/pods/{}_{}_{}", pod.namespace, pod.name, pod.uid))
}

/// The logs of fences of these pods.
fn fence_logs(pods: &[Pod<'_>]) -> Vec<PathBuf> {
    let below =
        |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let logs = pods.iter().map(logs).flat_map(below).flat_map(below);
    logs.filter(|log| inplace::cri::log_path::is_temporary(log)).collect()
}
