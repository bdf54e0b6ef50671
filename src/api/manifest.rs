//! The pod that `inplace node run` starts: an honest subset of a Kubernetes Pod in YAML.
//!
//! What is understood is understood as Kubernetes does; everything else is refused by its path, all of it at once,
//! never skipped. Pure: whether images, folders and the runtime are there is for `node::launch`. Values of
//! environment variables must not get into an error or into debug output.
//!
//! Two deviations. `restartPolicy` may only say `Never`, or nothing: without a kubelet nothing starts a container
//! again by itself, and `Always` would promise it. A pod's name is a DNS label, without dots.

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

/// A checked pod. Made by [`Manifest::parse`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// `default` when the manifest names none.
    pub namespace: String,
    /// A DNS label.
    pub name: String,
    /// Letters, digits and `-`, so that it can be a folder's name; absent: one is made up.
    pub uid: Option<String>,
    /// The pod's labels.
    pub labels: BTreeMap<String, String>,
    /// The pod's annotations.
    pub annotations: BTreeMap<String, String>,
    /// At least one, no name twice.
    pub containers: Vec<Container>,
    /// No name twice.
    pub volumes: Vec<Volume>,
    /// Containers see each other's processes.
    pub share_process_namespace: bool,
    /// The pod lives in the node's network and has no address of its own.
    pub host_network: bool,
    /// How long a container may take to stop.
    pub grace_seconds: u32,
}

/// One container of the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// A DNS label.
    pub name: String,
    /// As written.
    pub image: ImageRef,
    /// As written, or what Kubernetes takes for an image without one.
    pub pull: PullPolicy,
    /// Replaces the image's entry point unless empty. `$(NAME)` is not expanded yet.
    pub command: Vec<String>,
    /// Replaces the image's arguments unless empty. `$(NAME)` is not expanded yet.
    pub args: Vec<String>,
    /// Empty: the image's.
    pub working_dir: String,
    /// In the order of the manifest. `$(NAME)` is not expanded yet.
    pub env: Vec<EnvVar>,
    /// Names for ports; nothing is published.
    pub ports: Vec<ContainerPort>,
    /// Every one names a volume of the pod.
    pub mounts: Vec<VolumeMount>,
    /// What to do before the container is asked to stop.
    pub pre_stop: Option<Handler>,
}

/// When to pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullPolicy {
    /// On every start; the default for the tag `latest` and for no tag.
    Always,
    /// When the node has no such image.
    IfNotPresent,
    /// Not at all.
    Never,
}

/// An environment variable. Its debug output leaves the value out.
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

/// Where a volume is seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeMount {
    /// A volume of the pod.
    pub name: String,
    /// Absolute, in the container.
    pub mount_path: String,
    /// Not writable from this container.
    pub read_only: bool,
}

/// A volume of the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// A DNS label.
    pub name: String,
    /// What it is.
    pub source: VolumeSource,
}

/// What a volume is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeSource {
    /// A folder that lives as long as the pod.
    Directory,
    /// The same in memory.
    Memory,
    /// Something of the node.
    Host {
        /// Absolute, without `..`.
        path: String,
        /// What has to be there.
        kind: HostPathKind,
    },
}

/// What has to be at a host path, in Kubernetes' words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostPathKind {
    /// Anything; a runtime makes a folder where there is nothing.
    Any,
    /// A folder, made if there is nothing.
    DirectoryOrCreate,
    /// A folder.
    Directory,
    /// A file, made if there is nothing.
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

/// Why a text is no pod that can be run. Holds no environment values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidManifest {
    /// Not YAML, or a value of the wrong type.
    #[error("the manifest is not valid: {0}")]
    Yaml(#[from] BadYaml),
    /// Another kind of object.
    #[error("the manifest is {api_version} {kind}: `inplace node run` accepts apiVersion v1, kind Pod")]
    NotAPod {
        /// As written.
        api_version: String,
        /// As written.
        kind: String,
    },
    /// Fields that are not in the subset, by path.
    #[error("{}", unsupported(.0))]
    Unsupported(Vec<String>),
    /// Values that cannot be, each with its path.
    #[error("{}", .0.join("\n"))]
    Values(Vec<String>),
}

fn unsupported(paths: &[String]) -> String {
    let lines: Vec<_> =
        paths.iter().map(|path| format!("{path} is not supported by `inplace node run`")).collect();
    lines.join("\n")
}

impl Manifest {
    /// Reads one YAML document.
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
