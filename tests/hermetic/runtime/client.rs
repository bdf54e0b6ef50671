//! Short helpers around the generated client.

use inplace::cri::proto::strict;
use inplace::cri::proto::v1 as cri;
use inplace::cri::proto::v1::runtime_service_client::RuntimeServiceClient;
use serde_json::Value;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use super::Fake;

pub(super) type Client = RuntimeServiceClient<Channel>;

pub(super) fn channel(fake: &Fake) -> Channel {
    Endpoint::from_shared(fake.endpoint()).unwrap().connect_lazy()
}

pub(super) fn member(info: &str, name: &str) -> String {
    let info: Value = serde_json::from_str(info).unwrap();
    info[name].to_string()
}

pub(super) async fn details(client: &mut Client, id: &str) -> Result<cri::ContainerStatusResponse, Status> {
    let request = cri::ContainerStatusRequest { container_id: id.to_owned(), verbose: true };
    Ok(client.container_status(request).await?.into_inner())
}

/// Creates the next attempt of a container, only from what the runtime reports.
pub(super) async fn clone(client: &mut Client, id: &str, attempt: u32) -> Result<String, Status> {
    let info = details(client, id).await?.info;
    let mut config: cri::ContainerConfig = strict(&member(&info["info"], "config")).unwrap();
    config.metadata.as_mut().unwrap().attempt = attempt;
    let sandbox: String = serde_json::from_str(&member(&info["info"], "sandboxID")).unwrap();
    let request = cri::PodSandboxStatusRequest { pod_sandbox_id: sandbox.clone(), verbose: true };
    let info = client.pod_sandbox_status(request).await?.into_inner().info;
    let request = cri::CreateContainerRequest {
        pod_sandbox_id: sandbox,
        config: Some(config),
        sandbox_config: Some(strict(&member(&info["info"], "config")).unwrap()),
    };
    let created = Box::pin(client.create_container(request)).await?;
    Ok(created.into_inner().container_id)
}

pub(super) async fn start(client: &mut Client, id: &str) -> Result<(), Status> {
    let request = cri::StartContainerRequest { container_id: id.to_owned() };
    client.start_container(request).await.map(drop)
}

pub(super) async fn stop(client: &mut Client, id: &str, timeout: i64) -> Result<(), Status> {
    let request = cri::StopContainerRequest { container_id: id.to_owned(), timeout };
    client.stop_container(request).await.map(drop)
}

pub(super) async fn remove(client: &mut Client, id: &str) -> Result<(), Status> {
    let request = cri::RemoveContainerRequest { container_id: id.to_owned() };
    client.remove_container(request).await.map(drop)
}

pub(super) async fn list(client: &mut Client) -> Result<Vec<cri::Container>, Status> {
    let response = client.list_containers(cri::ListContainersRequest::default()).await?;
    Ok(response.into_inner().containers)
}
