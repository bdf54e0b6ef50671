//! Converts sandboxes and containers to the messages of the interface, with the field choices of containerd.

use std::collections::HashMap;

use inplace::cri::proto::v1 as cri;

use super::model::Model;
use super::parts::{Container, Sandbox};
use super::verbose;

pub(super) fn state_of(sandbox: &Sandbox) -> cri::PodSandboxState {
    if sandbox.ready { cri::PodSandboxState::SandboxReady } else { cri::PodSandboxState::SandboxNotready }
}

pub(super) fn listed_sandbox(sandbox: &Sandbox) -> cri::PodSandbox {
    cri::PodSandbox {
        id: sandbox.id.clone(),
        metadata: sandbox.config.metadata.clone(),
        state: state_of(sandbox).into(),
        created_at: sandbox.created_at,
        labels: sandbox.config.labels.clone(),
        annotations: sandbox.config.annotations.clone(),
        runtime_handler: sandbox.runtime_handler.clone(),
    }
}

pub(super) fn sandbox_status(
    model: &Model,
    sandbox: &Sandbox,
    verbose: bool,
) -> cri::PodSandboxStatusResponse {
    let context = sandbox.config.linux.as_ref().and_then(|linux| linux.security_context.clone());
    let options = context.and_then(|context| context.namespace_options);
    cri::PodSandboxStatusResponse {
        status: Some(cri::PodSandboxStatus {
            id: sandbox.id.clone(),
            metadata: sandbox.config.metadata.clone(),
            state: state_of(sandbox).into(),
            created_at: sandbox.created_at,
            network: Some(cri::PodSandboxNetworkStatus {
                ip: if sandbox.ready { sandbox.ip.clone() } else { String::new() },
                additional_ips: Vec::new(),
            }),
            linux: Some(cri::LinuxPodSandboxStatus { namespaces: Some(cri::Namespace { options }) }),
            labels: sandbox.config.labels.clone(),
            annotations: sandbox.config.annotations.clone(),
            runtime_handler: sandbox.runtime_handler.clone(),
        }),
        info: if verbose { verbose::sandbox(model, sandbox) } else { HashMap::new() },
        containers_statuses: Vec::new(),
        timestamp: 0,
    }
}

pub(super) fn listed_container(model: &Model, container: &Container) -> cri::Container {
    let named = container.config.image.clone().map(|image| {
        if !model.is_crio() || image.user_specified_image.is_empty() {
            return image;
        }
        // The image name in the pod's spec.
        cri::ImageSpec { image: image.user_specified_image, ..cri::ImageSpec::default() }
    });
    let (image_ref, image_id) = model.listed_image(&container.image_id);
    cri::Container {
        id: container.id.clone(),
        pod_sandbox_id: container.sandbox_id.clone(),
        metadata: container.config.metadata.clone(),
        state: container.state.into(),
        image: named,
        image_ref,
        image_id,
        created_at: container.created_at,
        labels: container.config.labels.clone(),
        annotations: container.config.annotations.clone(),
    }
}

/// The image is named by its first tag and digest, whatever reference the container was created from.
pub(super) fn container_status(model: &Model, container: &Container) -> cri::ContainerStatus {
    let image = model.local_image(&container.image_id);
    let spec = match image.and_then(|image| image.repo_tags.first()) {
        Some(tag) => Some(cri::ImageSpec { image: tag.clone(), ..cri::ImageSpec::default() }),
        None => container.config.image.clone(),
    };
    let digest = image.and_then(|image| image.repo_digests.first());
    let exited = container.state == cri::ContainerState::ContainerExited;
    let reason = match (exited && container.reason.is_empty(), container.exit_code) {
        (false, _) => container.reason.as_str(),
        (true, 0) => "Completed",
        (true, _) => "Error",
    };
    let folder = container.pod_config.log_directory.as_str();
    cri::ContainerStatus {
        id: container.id.clone(),
        metadata: container.config.metadata.clone(),
        state: container.state.into(),
        created_at: container.created_at,
        started_at: container.started_at,
        finished_at: container.finished_at,
        exit_code: container.exit_code,
        reason: reason.to_owned(),
        message: container.message.clone(),
        image: spec,
        image_ref: digest.unwrap_or(&container.image_id).clone(),
        image_id: model.listed_image(&container.image_id).1,
        labels: container.config.labels.clone(),
        annotations: container.config.annotations.clone(),
        mounts: container.config.mounts.clone(),
        log_path: log_path(folder, &container.config.log_path),
        resources: Some(cri::ContainerResources { linux: container.resources.clone(), windows: None }),
        user: None,
        stop_signal: 0,
    }
}

/// Without a folder or a file there is no log path.
fn log_path(folder: &str, file: &str) -> String {
    if folder.is_empty() || file.is_empty() { String::new() } else { format!("{folder}/{file}") }
}
