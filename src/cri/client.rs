//! The calls to the runtime: one method per call, each with a deadline; all failures are classified in `cri::error`.
//!
//! Must not repeat a call, interpret an answer beyond whether the object exists, or print a request: requests
//! contain secrets.

use std::cmp::min;
use std::sync::Arc;
use std::time::Duration;

use tonic::transport::Channel;
use tonic::{Response, Status};

use crate::cri::endpoint::Endpoint;
use crate::cri::error::{self, Error};
use crate::cri::log_path;
use crate::cri::proto::v1::{self, image_service_client as image, runtime_service_client as runtime};
use crate::failure::Class;
use crate::operation::preflight::Runtime;

/// Maximum size of an answer, as in the kubelet. The verbose status of a container with a large environment is large.
const MAX_ANSWER_BYTES: usize = 16 << 20;
/// Time limit of a query. The runtime answers queries from memory; a runtime that takes longer is unhealthy.
const ASK: Duration = Duration::from_secs(10);
/// Time limit of a mutating call, which may have to wait for a slow disk. The kubelet's limit is the same.
const CHANGE: Duration = Duration::from_secs(120);
/// Time limit of a sandbox call, since network plugins may take long. The kubelet's limit is the same.
const SANDBOX: Duration = Duration::from_secs(240);
/// Time that an exec gets beyond its own limit: the runtime enforces that limit, and its answer has to arrive.
const EXEC_SPARE: Duration = Duration::from_secs(10);

/// Callback for every call that has ended: its name, duration and result.
pub type Observer = Arc<dyn Fn(&'static str, Duration, Result<(), Class>) + Send + Sync>;

/// An answer about an object that may not exist.
pub type Maybe<T> = Result<Option<T>, Error>;

/// The runtime's own report on whether it can run containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// The runtime is ready.
    Ready,
    /// The runtime is not ready, for this reason.
    NotReady(String),
}

/// A client of a runtime. Clones share one connection, which is opened on demand and reopened after a failure.
#[derive(Clone)]
pub struct Client {
    runtime: runtime::RuntimeServiceClient<Channel>,
    images: image::ImageServiceClient<Channel>,
    path: Arc<str>,
    limit: Duration,
    observe: Option<Observer>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("path", &self.path).finish_non_exhaustive()
    }
}

/// The generated clients need a mutable borrow, and are cheap to clone.
macro_rules! call {
    ($self:ident.$service:ident.$method:ident, $name:literal, $limit:expr, $request:expr) => {
        // Boxed: the state of a call is large, and every caller's future would reserve space for each of its calls.
        $self.timed($name, $limit, Box::pin($self.$service.clone().$method($request))).await
    };
}

impl Client {
    /// Creates a client without connecting, so it never fails. It needs a tokio runtime, and must not outlive that
    /// runtime.
    pub fn new(endpoint: &Endpoint, observe: Option<Observer>) -> Self {
        let channel = endpoint.address().connect_lazy();
        Self {
            runtime: runtime::RuntimeServiceClient::new(channel.clone())
                .max_decoding_message_size(MAX_ANSWER_BYTES)
                .max_encoding_message_size(MAX_ANSWER_BYTES),
            images: image::ImageServiceClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES),
            path: Arc::from(endpoint.path()),
            limit: Duration::MAX,
            observe,
        }
    }

    /// The same client, with every call bounded by `limit` in addition to its own limit.
    #[must_use]
    pub fn within(&self, limit: Duration) -> Self {
        Self { limit: min(limit, self.limit), ..self.clone() }
    }

    /// The name and version of the runtime. Also the cheapest check that the runtime answers.
    pub async fn version(&self) -> Result<Runtime, Error> {
        let request = v1::VersionRequest { version: "v1".to_owned() };
        let answer = call!(self.runtime.version, "Version", ASK, request)?;
        Ok(Runtime { name: answer.runtime_name, version: answer.runtime_version })
    }

    /// Whether the runtime reports itself able to run containers.
    pub async fn status(&self) -> Result<Readiness, Error> {
        let answer = call!(self.runtime.status, "Status", ASK, v1::StatusRequest { verbose: false })?;
        let conditions = answer.status.unwrap_or_default().conditions;
        Ok(match conditions.into_iter().find(|condition| condition.r#type == "RuntimeReady") {
            Some(condition) if condition.status => Readiness::Ready,
            Some(condition) => Readiness::NotReady(format!("{}: {}", condition.reason, condition.message)),
            None => Readiness::NotReady("the runtime reports no condition RuntimeReady".to_owned()),
        })
    }

    /// The sandboxes with this label, or all sandboxes.
    pub async fn sandboxes(&self, label: Option<(&str, &str)>) -> Result<Vec<v1::PodSandbox>, Error> {
        let filter = v1::PodSandboxFilter { label_selector: selector(label), ..Default::default() };
        let request = v1::ListPodSandboxRequest { filter: Some(filter) };
        Ok(call!(self.runtime.list_pod_sandbox, "ListPodSandbox", ASK, request)?.items)
    }

    /// A sandbox; `None` if it does not exist. `verbose` adds its configuration.
    pub async fn sandbox(&self, id: &str, verbose: bool) -> Maybe<v1::PodSandboxStatusResponse> {
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose };
        there(call!(self.runtime.pod_sandbox_status, "PodSandboxStatus", ASK, request))
    }

    /// The containers with this label, or all containers.
    pub async fn containers(&self, label: Option<(&str, &str)>) -> Result<Vec<v1::Container>, Error> {
        let filter = v1::ContainerFilter { label_selector: selector(label), ..Default::default() };
        let request = v1::ListContainersRequest { filter: Some(filter) };
        Ok(call!(self.runtime.list_containers, "ListContainers", ASK, request)?.containers)
    }

    /// The containers that have ended.
    pub async fn ended_containers(&self) -> Result<Vec<v1::Container>, Error> {
        let state = Some(v1::ContainerStateValue { state: v1::ContainerState::ContainerExited.into() });
        let filter = v1::ContainerFilter { state, ..Default::default() };
        let request = v1::ListContainersRequest { filter: Some(filter) };
        Ok(call!(self.runtime.list_containers, "ListContainers", ASK, request)?.containers)
    }

    /// What the containers of a sandbox use now.
    pub async fn container_stats(&self, sandbox: &str) -> Result<Vec<v1::ContainerStats>, Error> {
        let filter = v1::ContainerStatsFilter { pod_sandbox_id: sandbox.to_owned(), ..Default::default() };
        let request = v1::ListContainerStatsRequest { filter: Some(filter) };
        Ok(call!(self.runtime.list_container_stats, "ListContainerStats", ASK, request)?.stats)
    }

    /// A container; `None` if it does not exist: it may disappear after it was listed. `verbose` adds its
    /// configuration.
    pub async fn container(&self, id: &str, verbose: bool) -> Maybe<v1::ContainerStatusResponse> {
        let request = v1::ContainerStatusRequest { container_id: id.to_owned(), verbose };
        there(call!(self.runtime.container_status, "ContainerStatus", ASK, request))
    }

    /// Creates a container and returns its ID. Beside a kubelet, a container without a log path of its own is
    /// refused here, for every caller (see [`log_path`]).
    pub async fn create(
        &self,
        sandbox_id: &str,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Result<String, Error> {
        log_path::check(&config, &sandbox_config)
            .map_err(|error| Error::forbidden("CreateContainer", &error))?;
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox_id.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        let id = call!(self.runtime.create_container, "CreateContainer", CHANGE, request)?.container_id;
        named("CreateContainer", id)
    }

    /// Starts a created container. The call goes on when the caller stops waiting: containerd keeps a half-made task of a
    /// start that is cancelled, refuses to remove its container, and so reserves the name until the pod is gone.
    pub async fn start(&self, id: &str) -> Result<(), Error> {
        let request = v1::StartContainerRequest { container_id: id.to_owned() };
        let mut runtime = self.runtime.clone();
        let call = async move { runtime.start_container(request).await };
        let started = tokio::spawn(tokio::time::timeout(CHANGE, call));
        let answer = async {
            match started.await {
                Ok(Ok(answer)) => answer,
                Ok(Err(late)) => Err(Status::deadline_exceeded(late.to_string())),
                Err(ended) => Err(Status::cancelled(ended.to_string())),
            }
        };
        self.timed(error::START, CHANGE, answer).await.map(drop)
    }

    /// Stops a container: sends its stop signal, waits `grace` (whole seconds, rounded up), then sends SIGKILL.
    /// Succeeds if the container is stopped already or does not exist.
    pub async fn stop(&self, id: &str, grace: Duration) -> Result<(), Error> {
        let request = v1::StopContainerRequest { container_id: id.to_owned(), timeout: seconds(grace) };
        let limit = grace.saturating_add(CHANGE);
        // containerd 2 succeeds if there is nothing to stop; containerd 1.6 reports an error.
        there(call!(self.runtime.stop_container, "StopContainer", limit, request)).map(drop)
    }

    /// Removes a container. A running container is killed first, so the caller must check its state before.
    pub async fn remove(&self, id: &str) -> Result<(), Error> {
        let request = v1::RemoveContainerRequest { container_id: id.to_owned() };
        call!(self.runtime.remove_container, "RemoveContainer", CHANGE, request).map(drop)
    }

    /// Runs a command inside a container to its end, for at most `timeout` (whole seconds, rounded up).
    pub async fn exec(
        &self,
        id: &str,
        command: Vec<String>,
        timeout: Duration,
    ) -> Result<v1::ExecSyncResponse, Error> {
        // Zero would mean no limit.
        let request = v1::ExecSyncRequest {
            container_id: id.to_owned(),
            cmd: command,
            timeout: seconds(timeout).max(1),
        };
        let limit = timeout.saturating_add(EXEC_SPARE);
        call!(self.runtime.exec_sync, "ExecSync", limit, request)
    }

    /// Same as [`Self::exec`], but an answer larger than `largest` bytes is not read: the error's status is
    /// `OutOfRange`.
    pub async fn exec_bounded(
        &self,
        id: &str,
        command: Vec<String>,
        timeout: Duration,
        largest: usize,
    ) -> Result<v1::ExecSyncResponse, Error> {
        let runtime = self.runtime.clone().max_decoding_message_size(largest);
        Self { runtime, ..self.clone() }.exec(id, command, timeout).await
    }

    /// An image by its reference or ID, with the field `image` set; `None` if it is not on the node.
    pub async fn image(&self, reference: &str, verbose: bool) -> Maybe<v1::ImageStatusResponse> {
        let request = v1::ImageStatusRequest { image: Some(image_named(reference)), verbose };
        let answer = call!(self.images.image_status, "ImageStatus", ASK, request);
        Ok(there(answer)?.filter(|answer| answer.image.is_some()))
    }

    /// Pulls an image within `deadline`, with the runtime's own credentials, and returns the reference under which
    /// the runtime stores it.
    pub async fn pull(
        &self,
        reference: &str,
        sandbox_config: Option<v1::PodSandboxConfig>,
        deadline: Duration,
    ) -> Result<String, Error> {
        self.pull_as(None, reference, sandbox_config, deadline).await
    }

    /// Same as [`Self::pull`], with `auth` instead of the runtime's own credentials.
    pub async fn pull_as(
        &self,
        auth: Option<v1::AuthConfig>,
        reference: &str,
        sandbox_config: Option<v1::PodSandboxConfig>,
        deadline: Duration,
    ) -> Result<String, Error> {
        let request = v1::PullImageRequest { image: Some(image_named(reference)), auth, sandbox_config };
        let pulled = call!(self.images.pull_image, "PullImage", deadline, request)?.image_ref;
        named("PullImage", pulled)
    }

    /// The file systems that hold the images.
    pub async fn images_fs(&self) -> Result<Vec<v1::FilesystemUsage>, Error> {
        let request = v1::ImageFsInfoRequest {};
        Ok(call!(self.images.image_fs_info, "ImageFsInfo", ASK, request)?.image_filesystems)
    }

    /// Creates a sandbox and returns its ID.
    pub async fn run_sandbox(&self, config: v1::PodSandboxConfig) -> Result<String, Error> {
        let request = v1::RunPodSandboxRequest { config: Some(config), runtime_handler: String::new() };
        let answer = call!(self.runtime.run_pod_sandbox, "RunPodSandbox", SANDBOX, request)?;
        named("RunPodSandbox", answer.pod_sandbox_id)
    }

    /// Stops a sandbox, and kills what still runs in it.
    pub async fn stop_sandbox(&self, id: &str) -> Result<(), Error> {
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        call!(self.runtime.stop_pod_sandbox, "StopPodSandbox", SANDBOX, request).map(drop)
    }

    /// Removes a sandbox and all its containers.
    pub async fn remove_sandbox(&self, id: &str) -> Result<(), Error> {
        let request = v1::RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
        call!(self.runtime.remove_pod_sandbox, "RemovePodSandbox", SANDBOX, request).map(drop)
    }

    /// Waits for one answer, no longer than `limit`, and reports the result to the observer.
    async fn timed<T>(
        &self,
        call: &'static str,
        limit: Duration,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Error> {
        let limit = min(limit, self.limit);
        let began = tokio::time::Instant::now();
        let result = match tokio::time::timeout(limit, answer).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(Error::from_status(call, &self.path, status)),
            Err(_) => Err(Error::late(call, &self.path, limit)),
        };
        if let Some(observe) = &self.observe {
            observe(call, began.elapsed(), result.as_ref().map(drop).map_err(|error| error.class));
        }
        result
    }
}

/// Converts "not found" from an error into `None`.
fn there<T>(answer: Result<T, Error>) -> Maybe<T> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.class == Class::Gone => Ok(None),
        Err(error) => Err(error),
    }
}

/// Treats an empty ID as an error: no later call could use it.
fn named(call: &'static str, id: String) -> Result<String, Error> {
    if id.is_empty() { Err(Error::nonsense(call)) } else { Ok(id) }
}

fn selector(label: Option<(&str, &str)>) -> std::collections::HashMap<String, String> {
    label.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn image_named(reference: &str) -> v1::ImageSpec {
    v1::ImageSpec { image: reference.to_owned(), ..Default::default() }
}

/// Whole seconds, rounded up: half a second of grace must not become zero.
pub(super) fn seconds(duration: Duration) -> i64 {
    let whole = duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0));
    i64::try_from(whole).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_round_up() {
        assert_eq!(seconds(Duration::ZERO), 0);
        assert_eq!(seconds(Duration::from_millis(1)), 1);
        assert_eq!(seconds(Duration::MAX), i64::MAX);
    }

    #[tokio::test]
    async fn a_socket_that_is_not_there_is_away_and_observed() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("none.sock");
        let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        let observe: Observer = Arc::new(move |call, _, how| log.lock().unwrap().push((call, how)));
        let endpoint = Endpoint::parse(socket.to_str().unwrap()).unwrap();
        let client = Client::new(&endpoint, Some(observe)).within(Duration::from_secs(5));
        let error = client.version().await.unwrap_err();
        assert_eq!(error.class, Class::Unavailable);
        assert!(error.message.contains("no such file"), "{error}");
        assert_eq!(*seen.lock().unwrap(), [("Version", Err(Class::Unavailable))]);
    }
}
