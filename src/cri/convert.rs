//! Converts the runtime's answers to a snapshot in the types of `operation`.
//!
//! Must not decide anything, nor pass on environment values or configurations. Called every few milliseconds while a
//! container is being replaced: two queries, and one more for each container of interest, or two on CRI-O before 1.28.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use tokio::task::JoinSet;

use crate::api::annotation;
use crate::api::pod_ref::PodRef;
use crate::cri::client::Client;
use crate::cri::error::{Error, is_canceled_start};
use crate::cri::identity::{self, Asked};
use crate::cri::proto::v1;
use crate::operation::port::Port;
use crate::operation::snapshot::{Container, Owner, Sandbox, Snapshot, StartError, State};

/// The reason that containerd reports for a container whose start has failed (`errorStartReason` in its CRI plugin).
const START_ERROR: &str = "StartError";
/// Kubernetes' default grace period.
const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// Observes the pod `asked`. A sandbox of another pod is treated as absent. With `names`, only these containers get
/// the data that need a query of their own: start, end, exit code, the image by name. The others get what the list
/// contains.
pub async fn observe(client: &Client, asked: &Asked, names: Option<&[&str]>) -> Result<Snapshot, Error> {
    let Ok(Some((newest, listed))) = identity::look_up(client, asked).await? else {
        return Ok(Snapshot::of_runtime(None, Vec::new()));
    };
    let mut containers = Vec::with_capacity(listed.len());
    // Concurrently: a container may be down while the caller waits for the answers.
    let mut answers = JoinSet::new();
    for listed in listed {
        let mut seen = container(listed);
        let wanted = names.is_none_or(|names| names.contains(&seen.name.as_str()));
        if wanted && !seen.fence {
            resolve(client, &mut seen.image_id).await?;
        }
        // The status of a container that never ran adds nothing.
        if wanted && !seen.fence && seen.state != State::Created {
            let client = client.clone();
            answers
                .spawn(async move { client.container(&seen.id, false).await.map(|answer| (seen, answer)) });
        } else {
            containers.push(seen);
        }
    }
    for answered in answers.join_all().await {
        let (mut seen, answer) = answered?;
        // `None`: the container has disappeared since it was listed.
        if let Some(status) = answer.and_then(|answer| answer.status) {
            refine(&mut seen, status);
            containers.push(seen);
        }
    }
    Ok(Snapshot::of_runtime(Some(sandbox(newest, &asked.pod)), containers))
}

/// The same as [`observe`] for answers that are there already. A container without a status has disappeared.
#[cfg(any(fuzzing, feature = "faults"))]
pub fn observed(
    asked: &Asked,
    sandboxes: Vec<v1::PodSandbox>,
    containers: Vec<v1::Container>,
    statuses: &[v1::ContainerStatus],
) -> Snapshot {
    let Ok(Some((newest, listed))) = identity::belonging(asked, sandboxes, containers) else {
        return Snapshot::of_runtime(None, Vec::new());
    };
    let containers = listed.into_iter().map(container).filter_map(|mut seen| {
        if !seen.fence && seen.state != State::Created {
            let status = statuses.iter().find(|status| status.id == seen.id)?;
            refine(&mut seen, status.clone());
        }
        Some(seen)
    });
    Snapshot::of_runtime(Some(sandbox(newest, &asked.pod)), containers.collect())
}

/// The pods of this name, newest first: after a pod is recreated, there are two for a while.
pub async fn find_pod(client: &Client, namespace: &str, name: &str) -> Result<Vec<PodRef>, Error> {
    let mut pods = pods(client.sandboxes(Some((annotation::POD_NAME, name))).await?);
    pods.retain(|pod| pod.namespace == namespace && pod.name == name);
    Ok(pods)
}

/// All pods on this node, newest first.
pub async fn list_pods(client: &Client) -> Result<Vec<PodRef>, Error> {
    Ok(pods(client.sandboxes(None).await?))
}

fn pods(mut sandboxes: Vec<v1::PodSandbox>) -> Vec<PodRef> {
    sandboxes.sort_by_key(|sandbox| std::cmp::Reverse(sandbox.created_at));
    let mut seen = BTreeSet::new();
    sandboxes.iter().filter_map(identity::pod_of).filter(|pod| seen.insert(pod.clone())).collect()
}

/// The pod of a container, from the container's labels. A kubelet writes these labels itself and does not copy the
/// pod's labels to a container. A missing label yields an empty field.
pub fn pod(container: &v1::Container) -> PodRef {
    let label = |key| container.labels.get(key).cloned().unwrap_or_default();
    PodRef {
        namespace: label(annotation::POD_NAMESPACE),
        name: label(annotation::POD_NAME),
        uid: label(annotation::POD_UID),
    }
}

/// The owner of a sandbox. The kubelet's annotation takes precedence, because users may set labels on any pod.
pub fn owner(sandbox: &v1::PodSandbox) -> Owner {
    let node_run = sandbox.labels.get(annotation::NODE_RUN).is_some_and(|mark| mark == "true");
    match sandbox.annotations.get(annotation::CONFIG_SOURCE).map_or("", String::as_str) {
        "" if node_run => Owner::NodeRun,
        "" => Owner::Nobody,
        "file" | "http" => Owner::KubeletStatic,
        // `api`, and values that later kubelets may add.
        _ => Owner::Kubelet,
    }
}

/// All sandboxes of pods with this name.
pub async fn sandboxes_of(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<Vec<v1::PodSandbox>, Error> {
    let mut sandboxes = client.sandboxes(Some((annotation::POD_NAME, name))).await?;
    sandboxes.retain(|sandbox| {
        identity::pod_of(sandbox).is_some_and(|pod| pod.namespace == namespace && pod.name == name)
    });
    Ok(sandboxes)
}

fn sandbox(sandbox: v1::PodSandbox, pod: &PodRef) -> Sandbox {
    let owner = owner(&sandbox);
    Sandbox {
        pod: pod.clone(),
        ready: sandbox.state() == v1::PodSandboxState::SandboxReady,
        id: sandbox.id,
        owner,
    }
}

/// Whether a container with these labels is a fence. A user can give a container this name, but cannot set the labels of a
/// container.
pub(crate) fn is_fence(labels: &HashMap<String, String>) -> bool {
    let is_ours = labels.contains_key(annotation::OPERATION);
    is_ours && labels.get(annotation::CONTAINER_NAME).is_some_and(|name| name == annotation::FENCE_NAME)
}

/// Whether a container with these labels is a standby, whose name users can give as well.
pub(crate) fn is_standby(labels: &HashMap<String, String>) -> bool {
    let is_ours = labels.contains_key(annotation::STANDBY) && labels.contains_key(annotation::OPERATION);
    is_ours && labels.get(annotation::CONTAINER_NAME).is_some_and(|name| name == annotation::STANDBY_NAME)
}

/// The TCP and UDP ports in the kubelet's annotation. A port without a protocol is a TCP port. Text that cannot be read
/// declares no port: the ports only add a condition.
fn ports(text: &str) -> Vec<Port> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Declared {
        container_port: u16,
        #[serde(default)]
        protocol: String,
    }
    let declared: Vec<Declared> = serde_json::from_str(text).unwrap_or_default();
    declared.iter().filter_map(|port| Port::declared(port.container_port, &port.protocol)).collect()
}

/// Converts an entry of the container list.
fn container(listed: v1::Container) -> Container {
    let state = state(listed.state());
    let metadata = listed.metadata.unwrap_or_default();
    let labelled = listed.labels.get(annotation::CONTAINER_NAME);
    let fence = is_fence(&listed.labels);
    let standby = is_standby(&listed.labels);
    let labelled = if standby { listed.labels.get(annotation::STANDBY) } else { labelled.filter(|_| !fence) };
    let name = labelled.cloned().unwrap_or(metadata.name);
    let image = listed.image.unwrap_or_default();
    let annotations = &listed.annotations;
    let grace = annotations.get(annotation::TERMINATION_GRACE).and_then(|seconds| seconds.parse().ok());
    Container {
        id: listed.id,
        name,
        fence,
        holder: listed.labels.contains_key(annotation::HOLDER),
        standby,
        attempt: metadata.attempt,
        state,
        image_id: first_filled([listed.image_id, listed.image_ref, image.image.clone()]),
        image: first_filled([image.user_specified_image, image.image]),
        spec_hash: annotations.get(annotation::SPEC_HASH).cloned().unwrap_or_default(),
        operation: listed.labels.get(annotation::OPERATION).cloned(),
        created_at: time(listed.created_at).unwrap_or(Timestamp::UNIX_EPOCH),
        started_at: None,
        finished_at: None,
        exit_code: 0,
        start_error: None,
        grace: grace.map_or(DEFAULT_GRACE, Duration::from_secs),
        has_pre_stop: annotations.contains_key(annotation::PRE_STOP),
        ports: annotations.get(annotation::PORTS).map(|text| ports(text)).unwrap_or_default(),
    }
}

/// The runtime's ID of the image of a listed container.
pub fn image_id(listed: v1::Container) -> String {
    container(listed).image_id
}

/// Replaces the name of an image by its ID, by which images are compared. CRI-O before 1.28 lists the image of a
/// container by a digest of its repository. A name that the runtime does not know stays.
async fn resolve(client: &Client, image: &mut String) -> Result<(), Error> {
    if image.is_empty() || is_id(image) {
        return Ok(());
    }
    let known = match client.image(image, false).await {
        Err(error) if !error.class.is_unavailable() => None,
        answer => answer?.and_then(|answer| answer.image),
    };
    if let Some(known) = known {
        *image = known.id;
    }
    Ok(())
}

/// Adds the data that only the container's own status contains, which is also newer than the list.
fn refine(container: &mut Container, status: v1::ContainerStatus) {
    container.state = state(status.state());
    container.started_at = time(status.started_at);
    container.finished_at = time(status.finished_at);
    container.exit_code = status.exit_code;
    let failed = status.reason == START_ERROR && !status.message.is_empty();
    container.start_error =
        failed.then(|| StartError { canceled: is_canceled_start(&status.message), message: status.message });
    // If the container was created from an image ID, containerd lists that ID; containerd 1.6 loses the name from
    // the pod's spec.
    let named = status.image.unwrap_or_default();
    if !named.user_specified_image.is_empty() {
        container.image = named.user_specified_image;
    } else if is_id(&container.image) && !named.image.is_empty() {
        container.image = named.image;
    }
}

/// True for an image that is named by its bare ID.
pub(super) fn is_id(image: &str) -> bool {
    let digits = image.strip_prefix("sha256:").unwrap_or(image);
    digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn first_filled<const N: usize>(texts: [String; N]) -> String {
    texts.into_iter().find(|text| !text.is_empty()).unwrap_or_default()
}

fn state(state: v1::ContainerState) -> State {
    match state {
        v1::ContainerState::ContainerCreated => State::Created,
        v1::ContainerState::ContainerRunning => State::Running,
        v1::ContainerState::ContainerExited => State::Exited,
        v1::ContainerState::ContainerUnknown => State::Unknown,
    }
}

/// Converts nanoseconds; zero and negative values mean "not yet".
fn time(nanoseconds: i64) -> Option<Timestamp> {
    (nanoseconds > 0).then(|| Timestamp::from_nanosecond(i128::from(nanoseconds)).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "sha256:642f3ece003ef7680770cc2fb77723cc79d7f57496ef46156ce0352ea02f3e84";

    fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn listed(name: &str, image: &str) -> v1::Container {
        v1::Container {
            id: "c1".to_owned(),
            metadata: Some(v1::ContainerMetadata { name: "app".to_owned(), attempt: 3 }),
            image: Some(v1::ImageSpec { image: image.to_owned(), ..Default::default() }),
            image_ref: ID.to_owned(),
            state: v1::ContainerState::ContainerRunning.into(),
            created_at: 1_795_182_010_209_957_245,
            labels: map(&[(annotation::CONTAINER_NAME, name), (annotation::OPERATION, "op-1")]),
            annotations: map(&[(annotation::TERMINATION_GRACE, "5"), (annotation::PRE_STOP, "{}")]),
            ..Default::default()
        }
    }

    #[test]
    fn a_container_and_the_fence_before_it() {
        let app = container(listed("app", ID));
        assert_eq!((app.name.as_str(), app.fence, app.attempt, app.state), ("app", false, 3, State::Running));
        assert_eq!((app.grace.as_secs(), app.has_pre_stop), (5, true));
        assert_eq!(app.operation.as_deref(), Some("op-1"));
        assert_eq!(app.image_id, ID);
        assert_eq!(app.created_at.as_nanosecond(), 1_795_182_010_209_957_245);
        let fence = container(listed(annotation::FENCE_NAME, ID));
        assert!(fence.fence && fence.name == "app");
        let mut bare = listed("app", ID);
        bare.labels.clear();
        bare.annotations.clear();
        let bare = container(bare);
        assert_eq!((bare.name.as_str(), bare.grace, bare.has_pre_stop), ("app", DEFAULT_GRACE, false));
    }

    #[test]
    fn the_image_is_called_what_the_pod_calls_it() {
        let status = |image: &str, user: &str| v1::ContainerStatus {
            image: Some(v1::ImageSpec {
                image: image.to_owned(),
                user_specified_image: user.to_owned(),
                ..Default::default()
            }),
            finished_at: 7,
            exit_code: 3,
            reason: "Error".to_owned(),
            message: "it ended".to_owned(),
            ..Default::default()
        };
        for (listed_as, image, user, expected) in [
            (ID, "app:v1", "", "app:v1"),
            (ID, "app:v1", "app:stable", "app:stable"),
            ("app:v0", "app:v1", "", "app:v0"),
            (ID, "", "", ID),
            (ID, ID, "", ID),
        ] {
            let mut seen = container(listed("app", listed_as));
            refine(&mut seen, status(image, user));
            assert_eq!(seen.image, expected);
            assert_eq!((seen.state, seen.exit_code, seen.started_at), (State::Created, 3, None));
            assert_eq!(seen.finished_at.map(Timestamp::as_nanosecond), Some(7));
            assert_eq!(seen.start_error, None);
        }
    }

    #[test]
    fn a_start_that_failed_has_an_error_and_says_whether_its_caller_went_away() {
        let task = "failed to create containerd task: ";
        for (message, canceled) in [
            ("failed to create shim task: context canceled: unknown", true),
            ("failed to start shim: start failed: : signal: killed: unknown", true),
            ("failed to create shim task: context deadline exceeded: unknown", false),
            ("failed to create shim task: OCI runtime create failed: hook: context canceled: unknown", false),
            (
                "failed to create shim task: OCI runtime create failed: exec: \"app\": not found: unknown",
                false,
            ),
        ] {
            let mut seen = container(listed("app", ID));
            let message = format!("{task}{message}");
            let status = v1::ContainerStatus {
                exit_code: 128,
                reason: "StartError".to_owned(),
                message: message.clone(),
                ..Default::default()
            };
            refine(&mut seen, status);
            assert_eq!(seen.start_error, Some(StartError { message, canceled }));
        }
    }

    #[test]
    fn pods_are_reported_newest_first_and_their_sandboxes_have_an_owner() {
        let made = |uid: &str, attempt, created_at, source: &str| v1::PodSandbox {
            id: uid.to_owned(),
            metadata: Some(v1::PodSandboxMetadata {
                name: "web".to_owned(),
                namespace: "shop".to_owned(),
                uid: uid.to_owned(),
                attempt,
            }),
            created_at,
            labels: map(&[
                (annotation::POD_UID, uid),
                (annotation::POD_NAME, "web"),
                (annotation::POD_NAMESPACE, "shop"),
            ]),
            annotations: map(&[(annotation::CONFIG_SOURCE, source)]),
            ..Default::default()
        };
        let all = || vec![made("a", 0, 9, "api"), made("c", 1, 2, "file"), made("b", 1, 1, "")];
        let [api, file, nobody] = <[_; 3]>::try_from(all()).unwrap();
        assert_eq!(owner(&file), Owner::KubeletStatic);
        assert_eq!(owner(&nobody), Owner::Nobody);
        assert_eq!(owner(&api), Owner::Kubelet);
        let mut marked = api;
        marked.labels.insert(annotation::NODE_RUN.to_owned(), "true".to_owned());
        assert_eq!(owner(&marked), Owner::Kubelet);
        marked.annotations.clear();
        assert_eq!(owner(&marked), Owner::NodeRun);
        let order: Vec<_> = pods(all()).into_iter().map(|pod| pod.uid).collect();
        assert_eq!(order, ["a", "c", "b"]);
    }
}
