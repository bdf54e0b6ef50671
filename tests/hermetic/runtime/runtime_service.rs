//! The sandbox and container calls of the interface.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use inplace::cri::proto::v1 as cri;
use inplace::cri::proto::v1::runtime_service_server::RuntimeService;
use tokio::time::{sleep, timeout};
use tonic::{Request, Response, Status};

use super::containers::{missing, not_running};
use super::messages::{container_status, listed_container, listed_sandbox, sandbox_status, state_of};
use super::model::Model;
use super::parts::{Container, Sandbox, about};
use super::server::Service;
use super::verbose;

/// What each container uses, in bytes.
const WORKING_SET: u64 = 1 << 20;

type Answer<T> = Result<Response<T>, Status>;

impl Service {
    /// The readable form of a container's ID.
    fn about(&self, id: &str) -> String {
        self.0.read(|model| model.container(id).map_or_else(|| id.to_owned(), Container::about))
    }

    fn pod(&self, id: &str) -> String {
        self.0.read(|model| model.sandbox(id).map_or_else(|| id.to_owned(), |s| pod(&s.config)))
    }
}

fn pod(config: &cri::PodSandboxConfig) -> String {
    let metadata = config.metadata.clone().unwrap_or_default();
    format!("{}/{}", metadata.namespace, metadata.name)
}

#[tonic::async_trait]
impl RuntimeService for Service {
    async fn version(&self, _: Request<cri::VersionRequest>) -> Answer<cri::VersionResponse> {
        let effect = || async {
            Ok(self.0.read(|model| cri::VersionResponse {
                version: "0.1.0".to_owned(),
                runtime_name: model.runtime_name.clone(),
                runtime_version: model.runtime_version.clone(),
                runtime_api_version: "v1".to_owned(),
            }))
        };
        self.0.call("Version", "", "", effect).await
    }

    async fn status(&self, request: Request<cri::StatusRequest>) -> Answer<cri::StatusResponse> {
        let verbose = request.get_ref().verbose;
        let effect = || async { Ok(self.0.read(|model| status(model, verbose))) };
        self.0.call("Status", "", "", effect).await
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<cri::ListPodSandboxRequest>,
    ) -> Answer<cri::ListPodSandboxResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let wanted = |s: &&Sandbox| {
            s.id.starts_with(&filter.id)
                && filter.state.as_ref().is_none_or(|state| state.state == i32::from(state_of(s)))
                && labelled(&s.config.labels, &filter.label_selector)
        };
        let effect = || async {
            let items =
                self.0.read(|model| model.sandboxes.iter().filter(wanted).map(listed_sandbox).collect());
            Ok(cri::ListPodSandboxResponse { items })
        };
        self.0.call("ListPodSandbox", &filter.id, "", effect).await
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<cri::PodSandboxStatusRequest>,
    ) -> Answer<cri::PodSandboxStatusResponse> {
        let cri::PodSandboxStatusRequest { pod_sandbox_id: id, verbose } = &request.into_inner();
        let effect = || async {
            self.0.read(|model| match model.sandbox(id) {
                Some(sandbox) => Ok(sandbox_status(model, sandbox, *verbose)),
                None => Err(Status::not_found(format!(
                    "an error occurred when try to find sandbox: sandbox {id:?}: not found"
                ))),
            })
        };
        self.0.call("PodSandboxStatus", id, &self.pod(id), effect).await
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<cri::RunPodSandboxRequest>,
    ) -> Answer<cri::RunPodSandboxResponse> {
        let cri::RunPodSandboxRequest { config, runtime_handler } = request.into_inner();
        let config = config.unwrap_or_default();
        let effect = || async {
            let ran = self.0.change(|model| model.run_sandbox(config.clone(), &runtime_handler));
            ran.map(|pod_sandbox_id| cri::RunPodSandboxResponse { pod_sandbox_id })
        };
        self.0.call("RunPodSandbox", "", &pod(&config), effect).await
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<cri::StopPodSandboxRequest>,
    ) -> Answer<cri::StopPodSandboxResponse> {
        let id = &request.into_inner().pod_sandbox_id;
        let effect = || async {
            self.0.change(|model| model.stop_sandbox(id));
            Ok(cri::StopPodSandboxResponse {})
        };
        self.0.call("StopPodSandbox", id, &self.pod(id), effect).await
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<cri::RemovePodSandboxRequest>,
    ) -> Answer<cri::RemovePodSandboxResponse> {
        let id = &request.into_inner().pod_sandbox_id;
        let effect = || async {
            let removed = self.0.change(|model| model.remove_sandbox(id));
            removed.map(|()| cri::RemovePodSandboxResponse {})
        };
        self.0.call("RemovePodSandbox", id, &self.pod(id), effect).await
    }

    async fn list_containers(
        &self,
        request: Request<cri::ListContainersRequest>,
    ) -> Answer<cri::ListContainersResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let wanted = |c: &&Container| {
            c.id.starts_with(&filter.id)
                && c.sandbox_id.starts_with(&filter.pod_sandbox_id)
                && filter.state.as_ref().is_none_or(|state| state.state == i32::from(c.state))
                && labelled(&c.config.labels, &filter.label_selector)
        };
        let effect = || async {
            Ok(self.0.read(|model| {
                let containers = model
                    .containers
                    .iter()
                    .filter(wanted)
                    .map(|container| listed_container(model, container));
                cri::ListContainersResponse { containers: containers.collect() }
            }))
        };
        self.0.call("ListContainers", &filter.pod_sandbox_id, "", effect).await
    }

    async fn container_status(
        &self,
        request: Request<cri::ContainerStatusRequest>,
    ) -> Answer<cri::ContainerStatusResponse> {
        let cri::ContainerStatusRequest { container_id: id, verbose } = &request.into_inner();
        let effect = || async {
            self.0.read(|model| {
                let container = model.container(id).ok_or_else(|| missing(id))?;
                let info = if *verbose { verbose::container(model, container) } else { HashMap::new() };
                Ok(cri::ContainerStatusResponse { status: Some(container_status(model, container)), info })
            })
        };
        self.0.call("ContainerStatus", id, &self.about(id), effect).await
    }

    async fn create_container(
        &self,
        request: Request<cri::CreateContainerRequest>,
    ) -> Answer<cri::CreateContainerResponse> {
        let cri::CreateContainerRequest { pod_sandbox_id: id, config, sandbox_config } = request.into_inner();
        let (config, pod) = (config.unwrap_or_default(), sandbox_config.unwrap_or_default());
        let effect = || async {
            let created = self.0.change(|model| model.create(&id, config.clone(), pod.clone()));
            created.map(|container_id| cri::CreateContainerResponse { container_id })
        };
        self.0.call("CreateContainer", &id, &about(&config), effect).await
    }

    async fn start_container(
        &self,
        request: Request<cri::StartContainerRequest>,
    ) -> Answer<cri::StartContainerResponse> {
        let id = &request.into_inner().container_id;
        let effect = || async {
            self.0.change(|model| model.start(id))?;
            Ok(cri::StartContainerResponse {})
        };
        self.0.call("StartContainer", id, &self.about(id), effect).await
    }

    /// As in containerd, a caller that disconnects prevents the SIGKILL, and a repeated call sends no second signal.
    async fn stop_container(
        &self,
        request: Request<cri::StopContainerRequest>,
    ) -> Answer<cri::StopContainerResponse> {
        let cri::StopContainerRequest { container_id: id, timeout: grace } = &request.into_inner();
        let effect = || async {
            if self.0.change(|model| model.begin_stop(id, *grace)) {
                let stopped = self.0.until(|model| {
                    let running = model.container(id).is_some_and(Container::is_running);
                    (!running).then_some(())
                });
                let grace = Duration::from_secs(grace.unsigned_abs());
                if timeout(grace, stopped).await.is_err() {
                    self.0.change(|model| model.kill(id));
                }
            }
            Ok(cri::StopContainerResponse {})
        };
        self.0.call("StopContainer", id, &self.about(id), effect).await
    }

    async fn remove_container(
        &self,
        request: Request<cri::RemoveContainerRequest>,
    ) -> Answer<cri::RemoveContainerResponse> {
        let id = &request.into_inner().container_id;
        let effect = || async {
            self.0.change(|model| model.remove(id));
            Ok(cri::RemoveContainerResponse {})
        };
        self.0.call("RemoveContainer", id, &self.about(id), effect).await
    }

    async fn exec_sync(&self, request: Request<cri::ExecSyncRequest>) -> Answer<cri::ExecSyncResponse> {
        let cri::ExecSyncRequest { container_id: id, cmd, timeout: limit } = &request.into_inner();
        let effect = || async {
            let answer = self.0.change(|model| {
                let container = model.container(id).cloned().ok_or_else(|| missing(id))?;
                if !container.is_running() {
                    return Err(not_running(&container));
                }
                model.history.push(format!("ran {} in {}", cmd.join(" "), container.about()));
                Ok((model.exec)(&container, cmd))
            })?;
            let limit = Duration::from_secs(limit.unsigned_abs());
            if limit > Duration::ZERO && answer.takes > limit {
                sleep(limit).await;
                return Err(Status::deadline_exceeded(format!(
                    "failed to exec in container: timeout {limit:?} exceeded: context deadline exceeded"
                )));
            }
            sleep(answer.takes).await;
            Ok(cri::ExecSyncResponse {
                stdout: answer.stdout.into_bytes(),
                stderr: answer.stderr.into_bytes(),
                exit_code: answer.exit_code,
            })
        };
        self.0.call("ExecSync", id, &self.about(id), effect).await
    }

    async fn list_container_stats(
        &self,
        request: Request<cri::ListContainerStatsRequest>,
    ) -> Answer<cri::ListContainerStatsResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let wanted = |c: &&Container| c.is_running() && c.sandbox_id.starts_with(&filter.pod_sandbox_id);
        let stats = |c: &Container| cri::ContainerStats {
            attributes: Some(cri::ContainerAttributes {
                id: c.id.clone(),
                metadata: c.config.metadata.clone(),
                labels: c.config.labels.clone(),
                annotations: c.config.annotations.clone(),
            }),
            memory: Some(cri::MemoryUsage {
                working_set_bytes: Some(cri::UInt64Value { value: WORKING_SET }),
                ..Default::default()
            }),
            ..Default::default()
        };
        let effect = || async {
            let stats = self.0.read(|model| model.containers.iter().filter(wanted).map(stats).collect());
            Ok(cri::ListContainerStatsResponse { stats })
        };
        self.0.call("ListContainerStats", &filter.pod_sandbox_id, &filter.pod_sandbox_id, effect).await
    }

    async fn reopen_container_log(
        &self,
        request: Request<cri::ReopenContainerLogRequest>,
    ) -> Answer<cri::ReopenContainerLogResponse> {
        let id = &request.into_inner().container_id;
        let effect = || async {
            self.0.read(|model| model.container(id).map(drop).ok_or_else(|| missing(id)))?;
            Ok(cri::ReopenContainerLogResponse {})
        };
        self.0.call("ReopenContainerLog", id, &self.about(id), effect).await
    }
}

fn labelled(labels: &HashMap<String, String>, wanted: &HashMap<String, String>) -> bool {
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}

fn status(model: &Model, verbose: bool) -> cri::StatusResponse {
    let condition = |r#type: &str, status: bool| cri::RuntimeCondition {
        r#type: r#type.to_owned(),
        status,
        reason: if status { "" } else { "NotYet" }.to_owned(),
        message: String::new(),
    };
    let conditions =
        vec![condition("RuntimeReady", model.runtime_ready), condition("NetworkReady", model.network_ready)];
    let info = BTreeMap::from([("config".to_owned(), "{}".to_owned())]);
    cri::StatusResponse {
        status: Some(cri::RuntimeStatus { conditions }),
        info: if verbose { info.into_iter().collect() } else { HashMap::new() },
        runtime_handlers: Vec::new(),
        features: None,
    }
}
