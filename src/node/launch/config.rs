//! Converts the manifest to the configurations that the runtime receives. Pure; must not read anything from the
//! node.

use std::collections::HashMap;

use super::{Dirs, expand, files};
use crate::api::annotation;
use crate::api::manifest::{Container, Manifest};
use crate::cri::proto::v1;
use v1::security_profile::ProfileType;

/// The paths that the kubelet hides from containers that are not privileged.
const MASKED: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
/// The paths that the kubelet makes read-only for such containers.
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The configuration of the pod's sandbox.
pub fn sandbox_config(manifest: &Manifest, uid: &str, dirs: &Dirs) -> v1::PodSandboxConfig {
    let mut labels: HashMap<_, _> = manifest.labels.clone().into_iter().collect();
    labels.extend(pod_labels(manifest, uid));
    labels.insert(annotation::NODE_RUN.to_owned(), "true".to_owned());
    let mut annotations: HashMap<_, _> = manifest.annotations.clone().into_iter().collect();
    annotations.insert(annotation::STATE_DIR.to_owned(), dirs.state().display().to_string());
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: manifest.name.clone(),
            namespace: manifest.namespace.clone(),
            uid: uid.to_owned(),
            attempt: 0,
        }),
        hostname: if manifest.host_network { String::new() } else { manifest.name.clone() },
        log_directory: dirs.logs(&manifest.namespace, &manifest.name, uid).display().to_string(),
        labels,
        annotations,
        linux: Some(v1::LinuxPodSandboxConfig {
            security_context: Some(v1::LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces(manifest)),
                seccomp: Some(profile(ProfileType::RuntimeDefault)),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// The configuration of attempt 0 of a container, from the image with the ID `image_id`.
pub fn container_config(
    manifest: &Manifest,
    container: &Container,
    image_id: &str,
    uid: &str,
    dirs: &Dirs,
) -> v1::ContainerConfig {
    let variables = expand::variables(&container.env);
    let values: HashMap<_, _> = variables.iter().cloned().collect();
    let expanded = |words: &[String]| words.iter().map(|word| expand::expand(word, &values)).collect();
    let mut labels: HashMap<_, _> = pod_labels(manifest, uid).into();
    labels.insert(annotation::CONTAINER_NAME.to_owned(), container.name.clone());
    let paths = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect();
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: container.name.clone(), attempt: 0 }),
        image: Some(v1::ImageSpec {
            image: image_id.to_owned(),
            user_specified_image: container.image.as_str().to_owned(),
            ..Default::default()
        }),
        command: expanded(&container.command),
        args: expanded(&container.args),
        working_dir: container.working_dir.clone(),
        mounts: mounts(manifest, container, uid, dirs),
        labels,
        annotations: annotations(manifest, container),
        log_path: format!("{}/0.log", container.name),
        linux: Some(v1::LinuxContainerConfig {
            resources: Some(v1::LinuxContainerResources::default()),
            security_context: Some(v1::LinuxContainerSecurityContext {
                namespace_options: Some(namespaces(manifest)),
                seccomp: Some(profile(ProfileType::Unconfined)),
                masked_paths: paths(&MASKED),
                readonly_paths: paths(&READ_ONLY),
                ..Default::default()
            }),
        }),
        envs: variables
            .into_iter()
            .map(|(key, value)| v1::KeyValue { key: key.to_owned(), value: value.into_bytes() })
            .collect(),
        ..Default::default()
    }
}

fn pod_labels(manifest: &Manifest, uid: &str) -> [(String, String); 3] {
    [
        (annotation::POD_NAME.to_owned(), manifest.name.clone()),
        (annotation::POD_NAMESPACE.to_owned(), manifest.namespace.clone()),
        (annotation::POD_UID.to_owned(), uid.to_owned()),
    ]
}

/// Without the hash of the spec, which only a kubelet needs, and without a termination log, which does not exist
/// here.
fn annotations(manifest: &Manifest, container: &Container) -> HashMap<String, String> {
    let mut annotations = HashMap::from([
        (annotation::RESTART_COUNT.to_owned(), "0".to_owned()),
        (annotation::TERMINATION_GRACE.to_owned(), manifest.grace_seconds.to_string()),
    ]);
    if let Some(json) = container.pre_stop.as_ref().and_then(|handler| serde_json::to_string(handler).ok()) {
        annotations.insert(annotation::PRE_STOP.to_owned(), json);
    }
    if !container.ports.is_empty()
        && let Ok(json) = serde_json::to_string(&container.ports)
    {
        annotations.insert(annotation::PORTS.to_owned(), json);
    }
    annotations
}

/// Mounts in the order of their depth, so that no mount hides one below it.
fn mounts(manifest: &Manifest, container: &Container, uid: &str, dirs: &Dirs) -> Vec<v1::Mount> {
    let mut mounts: Vec<_> = container
        .mounts
        .iter()
        .filter_map(|mount| {
            let volume = manifest.volumes.iter().find(|volume| volume.name == mount.name)?;
            Some(v1::Mount {
                container_path: mount.mount_path.clone(),
                host_path: files::host_path(volume, uid, dirs).display().to_string(),
                readonly: mount.read_only,
                ..Default::default()
            })
        })
        .collect();
    mounts.sort_by_key(|mount| mount.container_path.matches('/').count());
    mounts
}

/// IPC is always the pod's, so shared memory outlives each container instance.
fn namespaces(manifest: &Manifest) -> v1::NamespaceOption {
    use v1::NamespaceMode::{Container, Node, Pod};
    v1::NamespaceOption {
        network: if manifest.host_network { Node } else { Pod }.into(),
        pid: if manifest.share_process_namespace { Pod } else { Container }.into(),
        ipc: Pod.into(),
        ..Default::default()
    }
}

fn profile(kind: ProfileType) -> v1::SecurityProfile {
    v1::SecurityProfile { profile_type: kind.into(), ..Default::default() }
}
