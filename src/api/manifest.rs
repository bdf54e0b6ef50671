//! The pod that `inplace node run` starts, in YAML: a subset of a Kubernetes Pod; fields outside it are errors.
//!
//! The fields of the subset have the meaning that Kubernetes gives them. One error lists all unsupported fields by path.
//! Pure: `node::launch` checks whether images, folders and the runtime exist. An error or debug output must not contain
//! values of environment variables.
//!
//! There are two deviations from Kubernetes. `restartPolicy` must be absent or `Never`, because no kubelet restarts the
//! containers. The name of a pod is a DNS label, without dots.

mod check;
mod document;
mod pods_file;
pub(in crate::api) mod yaml;

use std::collections::BTreeMap;
use std::fmt;

use crate::api::image::ImageRef;

pub use document::{ContainerPort, ExecAction, Handler, Header, HttpGet, Port, Sleep, TcpSocket};
pub use pods_file::{InvalidPodsFile, PodEntry};
pub use yaml::BadYaml;

/// A valid pod, the result of [`Manifest::parse`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// `default` if the manifest has none.
    pub namespace: String,
    /// A DNS label.
    pub name: String,
    /// Letters, digits and `-`, because it is also the name of a folder. Absent: one is generated.
    pub uid: Option<String>,
    /// The pod's labels.
    pub labels: BTreeMap<String, String>,
    /// The pod's annotations.
    pub annotations: BTreeMap<String, String>,
    /// At least one; the names are unique.
    pub containers: Vec<Container>,
    /// The names are unique.
    pub volumes: Vec<Volume>,
    /// True if the containers share one PID namespace.
    pub share_process_namespace: bool,
    /// True if the pod uses the node's network and has no address of its own.
    pub host_network: bool,
    /// Seconds that a container may take to stop.
    pub grace_seconds: u32,
}

/// One container of the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// A DNS label.
    pub name: String,
    /// The image, as in the manifest.
    pub image: ImageRef,
    /// The pull policy of the manifest, or the default of Kubernetes for the image.
    pub pull: PullPolicy,
    /// Replaces the image's entry point unless empty. `$(NAME)` is not yet expanded.
    pub command: Vec<String>,
    /// Replaces the image's arguments unless empty. `$(NAME)` is not yet expanded.
    pub args: Vec<String>,
    /// The working directory; empty: that of the image.
    pub working_dir: String,
    /// In the order of the manifest. `$(NAME)` is not yet expanded.
    pub env: Vec<EnvVar>,
    /// The ports and their names. They are not published on the node.
    pub ports: Vec<ContainerPort>,
    /// The volumes in the container. Each names a volume of the pod.
    pub mounts: Vec<VolumeMount>,
    /// The handler that runs before the container gets its stop signal.
    pub pre_stop: Option<Handler>,
}

/// When the image is pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullPolicy {
    /// On every start; the default for the tag `latest` and for no tag.
    Always,
    /// If the node does not have the image.
    IfNotPresent,
    /// Never; the image must be on the node.
    Never,
}

/// An environment variable. Its `Debug` does not show the value.
#[derive(Clone, PartialEq, Eq)]
pub struct EnvVar {
    /// Without `=`.
    pub name: String,
    /// Often a secret.
    pub value: String,
}

impl fmt::Debug for EnvVar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=...", self.name)
    }
}

/// The mount of a volume in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeMount {
    /// The name of a volume of the pod.
    pub name: String,
    /// The absolute path in the container.
    pub mount_path: String,
    /// True if the container cannot write to it.
    pub read_only: bool,
}

/// A volume of the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// A DNS label.
    pub name: String,
    /// The source of the volume.
    pub source: VolumeSource,
}

/// The source of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeSource {
    /// A folder on disk that is deleted with the pod.
    Directory,
    /// A folder in memory that is deleted with the pod.
    Memory,
    /// A path of the node.
    Host {
        /// Absolute, without `..`.
        path: String,
        /// What must exist at the path.
        kind: HostPathKind,
    },
}

/// What must exist at a host path: the values of `hostPath.type` in Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostPathKind {
    /// Anything; a runtime creates a folder if there is nothing.
    Any,
    /// A folder; it is created if there is nothing.
    DirectoryOrCreate,
    /// A folder.
    Directory,
    /// A file; it is created if there is nothing.
    FileOrCreate,
    /// A file.
    File,
    /// A Unix socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

/// Why a text is not a valid pod. Contains no values of environment variables.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidManifest {
    /// The text is not YAML, or a value has the wrong type.
    #[error("the manifest is not valid: {0}")]
    Yaml(#[from] BadYaml),
    /// The object has another kind.
    #[error("the manifest is {api_version} {kind}: `inplace node run` accepts apiVersion v1, kind Pod")]
    NotAPod {
        /// The `apiVersion` of the object.
        api_version: String,
        /// The `kind` of the object.
        kind: String,
    },
    /// Fields that are not in the subset, by path.
    #[error("{}", unsupported(.0))]
    Unsupported(Vec<String>),
    /// Invalid values, each with its path.
    #[error("{}", .0.join("\n"))]
    Values(Vec<String>),
}

fn unsupported(paths: &[String]) -> String {
    let lines: Vec<_> =
        paths.iter().map(|path| format!("{path} is not supported by `inplace node run`")).collect();
    lines.join("\n")
}

impl Manifest {
    /// Parses the only YAML document of `text`.
    pub fn parse(text: &str) -> Result<Self, InvalidManifest> {
        let (document, unknown) = yaml::one::<document::Document>(text)?;
        if document.api_version != "v1" || document.kind != "Pod" {
            let (api_version, kind) = (document.api_version, document.kind);
            return Err(InvalidManifest::NotAPod { api_version, kind });
        }
        if !unknown.is_empty() {
            return Err(InvalidManifest::Unsupported(unknown));
        }
        check::checked(document).map_err(InvalidManifest::Values)
    }
}

#[cfg(test)]
mod tests;
