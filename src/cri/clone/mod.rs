//! A container's configuration as reported by its runtime, and the configurations that are derived from it.
//!
//! A configuration that cannot be passed back in full is refused. Must not print a value: environments contain
//! secrets, so messages name only fields and variables.

mod fence;
mod files;
mod live;
mod user;

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

pub use self::files::{TerminationLog, fresh_termination_log, legacy_log_link};
pub use self::user::ImageUser;
use crate::api::annotation;
use crate::api::pod_template::asks_own_pod;
use crate::cri::convert::is_id;
use crate::cri::log_path;
use crate::cri::proto::{strict_value, v1};
use crate::operation::effect::ImageChoice;

/// What the annotations begin with that name the devices of a container in an earlier form of the Container Device Interface
/// (its package `pkg/cdi`, `AnnotationPrefix`).
const CDI_ANNOTATION: &str = "cdi.k8s.io/";

/// The configuration of one container, with its present environment and limits.
#[derive(Clone, PartialEq)]
pub struct Source {
    config: v1::ContainerConfig,
}

/// Why a configuration cannot be passed back in full.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotCloneable {
    /// The verbose status does not contain the configuration.
    #[error("this runtime does not report the configuration (not containerd?)")]
    NotReported,
    /// A field that this program does not know, and would lose.
    #[error("the configuration has a field that this version of inplace does not know and would lose: {0}")]
    UnknownField(String),
    /// The configuration does not match the interface.
    #[error("the configuration cannot be read: {0}")]
    Unreadable(String),
    /// A configured variable that is missing in the process's environment, or whose value is lost.
    #[error("the runtime does not report the value of environment variable {0}")]
    Environment(String),
    /// Windows containers are not supported.
    #[error("it is a Windows container")]
    Windows,
    /// containerd writes the folder of the mounted image into the configuration, and refuses one that has it.
    #[error("it mounts an image as a volume: the runtime does not accept the configuration that it reports")]
    ImageVolume,
    /// The runtime would choose another level for a clone, and take the volumes from the container with it.
    #[error("the runtime does not report its SELinux level, which its options do not name")]
    SelinuxLevel,
}

/// The part of `info["info"]` that is read. The rest is not needed, and may have any form.
#[derive(Deserialize)]
struct Info<T> {
    config: Option<T>,
    #[serde(rename = "runtimeSpec")]
    runtime_spec: Option<live::RuntimeSpec>,
}

/// The configuration of a container, before the strict check of the `rest`. Only the environment can be larger than the
/// specification of a pod, so its variables are checked one by one: all of them as JSON take ten times their memory.
#[derive(Deserialize)]
struct Unchecked {
    envs: Option<Vec<Strict<v1::KeyValue>>>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// A message that is parsed by [`strict_value`].
struct Strict<T>(T);

impl<'de, T: DeserializeOwned> Deserialize<'de> for Strict<T> {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        strict_value(Value::deserialize(input)?).map(Self).map_err(D::Error::custom)
    }
}

impl Source {
    /// Reads the configuration from a verbose container status.
    pub fn read(status: &v1::ContainerStatus, info: &HashMap<String, String>) -> Result<Self, NotCloneable> {
        let (Unchecked { envs, rest }, spec) = parse(info)?;
        let mut config: v1::ContainerConfig =
            strict_value(Value::Object(rest)).map_err(|error| refusal(&error))?;
        config.envs = envs.unwrap_or_default().into_iter().map(|Strict(env)| env).collect();
        if config.windows.is_some() {
            return Err(NotCloneable::Windows);
        }
        if config.metadata.as_ref().is_none_or(|metadata| metadata.name.is_empty()) {
            return Err(NotCloneable::Unreadable("it has no name".to_owned()));
        }
        if config.mounts.iter().any(|mount| mount.image.is_some()) {
            return Err(NotCloneable::ImageVolume);
        }
        live::environment(&mut config.envs, &spec)?;
        live::resources(&mut config, &spec, status);
        live::selinux_level(&mut config, &spec)?;
        pin(&mut config, status);
        Ok(Self { config })
    }

    /// The container's name.
    pub fn name(&self) -> &str {
        self.config.metadata.as_ref().map_or("", |metadata| &metadata.name)
    }

    /// True when the container uses the network of its node, where other pods listen too.
    pub fn uses_host_network(&self) -> bool {
        let linux = self.config.linux.as_ref();
        let security = linux.and_then(|linux| linux.security_context.as_ref());
        let namespaces = security.and_then(|security| security.namespace_options.as_ref());
        namespaces.is_some_and(|namespaces| namespaces.network() == v1::NamespaceMode::Node)
    }

    /// True when the preStop handler of the container connects to the pod.
    pub fn asks_own_pod(&self) -> bool {
        let handler = self.config.annotations.get(annotation::PRE_STOP);
        let handler = handler.and_then(|text| serde_json::from_str::<Value>(text).ok());
        handler.as_ref().is_some_and(asks_own_pod)
    }

    /// True when the container has devices or block volumes of its own, from a device plugin, from a claim of Dynamic Resource
    /// Allocation, or from a volume.
    pub fn uses_devices(&self) -> bool {
        let by_annotation = self.config.annotations.keys().any(|key| key.starts_with(CDI_ANNOTATION));
        by_annotation || !self.config.devices.is_empty() || !self.config.cdi_devices.is_empty()
    }

    /// True if the container may run on certain CPUs only.
    pub fn has_assigned_cpus(&self) -> bool {
        let resources = self.config.linux.as_ref().and_then(|linux| linux.resources.as_ref());
        resources.is_some_and(|resources| !resources.cpuset_cpus.is_empty())
    }

    /// The configuration of the container instance `attempt` that replaces this one.
    pub fn replacement(
        &self,
        attempt: u32,
        image: Option<&ImageChoice>,
        operation_id: &str,
    ) -> v1::ContainerConfig {
        let mut config = self.with(attempt, image, operation_id);
        // The source may be a fence, if only the fence is left.
        let name = self.name().to_owned();
        if let Some(label) = config.labels.get_mut(annotation::CONTAINER_NAME) {
            *label = name;
        }
        if let Some(count) = config.annotations.get_mut(annotation::RESTART_COUNT) {
            *count = attempt.to_string();
        }
        config
    }

    /// Gives `config`, which is for the same container, the limits of this instance.
    pub fn limit(&self, config: &mut v1::ContainerConfig) {
        if let Some(limits) = self.config.linux.as_ref().and_then(|linux| linux.resources.clone()) {
            config.linux.get_or_insert_default().resources = Some(limits);
        }
    }

    /// The host file for the termination message, if a kubelet created it: a kubelet creates one for each container
    /// instance.
    pub fn termination_log(&self) -> Option<TerminationLog> {
        let inside = match self.config.annotations.get(annotation::TERMINATION_MESSAGE_PATH) {
            Some(path) => path.as_str(),
            None => files::DEFAULT_TERMINATION_LOG,
        };
        let uid = self.config.labels.get(annotation::POD_UID)?;
        let mount = self.config.mounts.iter().find(|mount| mount.container_path == inside)?;
        let old = Path::new(&mount.host_path);
        files::is_kubelets(old, uid, self.name()).then(|| TerminationLog { old: PathBuf::from(old) })
    }

    fn with(&self, attempt: u32, image: Option<&ImageChoice>, operation_id: &str) -> v1::ContainerConfig {
        let mut config = self.config.clone();
        let old = self.config.metadata.as_ref().map_or(0, |metadata| metadata.attempt);
        config.metadata.get_or_insert_default().attempt = attempt;
        config.log_path = log_path::next(&config.log_path, old, attempt);
        if let Some(choice) = image {
            let spec = config.image.get_or_insert_default();
            spec.image.clone_from(&choice.id);
            spec.user_specified_image.clone_from(&choice.reference);
            spec.image_ref.clear();
            if let Some(hash) = &choice.spec_hash {
                config.annotations.insert(annotation::SPEC_HASH.to_owned(), hash.clone());
            }
        }
        config.labels.insert(annotation::OPERATION.to_owned(), operation_id.to_owned());
        config
    }
}

/// Prints names and counts, no values.
impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source")
            .field("metadata", &self.config.metadata)
            .field("image", &self.config.image)
            .field("envs", &self.config.envs.len())
            .finish_non_exhaustive()
    }
}

/// The sandbox configuration from a verbose sandbox status, to be passed back to the runtime unchanged.
#[expect(clippy::implicit_hasher, reason = "what the interface's maps are")]
pub fn sandbox_config(info: &HashMap<String, String>) -> Result<v1::PodSandboxConfig, NotCloneable> {
    let (Strict(config), _) = parse(info)?;
    Ok(config)
}

/// Pins the image of a clone to the ID of the running image, because a tag may have moved since.
fn pin(config: &mut v1::ContainerConfig, status: &v1::ContainerStatus) {
    let Some(image) = &mut config.image else { return };
    let known = [&status.image_id, &status.image_ref].into_iter().find(|known| !known.is_empty());
    let Some(known) = known.filter(|_| !is_id(&image.image)) else { return };
    let named = std::mem::replace(&mut image.image, known.clone());
    if image.user_specified_image.is_empty() {
        image.user_specified_image = named;
    }
}

/// The configuration, and what the container really runs with.
fn parse<T: DeserializeOwned>(
    info: &HashMap<String, String>,
) -> Result<(T, live::RuntimeSpec), NotCloneable> {
    let text = info.get("info").ok_or(NotCloneable::NotReported)?;
    let info: Info<T> = serde_json::from_str(text).map_err(|error| refusal(&error))?;
    Ok((info.config.ok_or(NotCloneable::NotReported)?, info.runtime_spec.unwrap_or_default()))
}

/// The part of a parse error that may be published. An error text quotes values, except in these two places.
fn refusal(error: &serde_json::Error) -> NotCloneable {
    let text = error.to_string();
    if let Some((field, _)) = text.strip_prefix("unknown field `").and_then(|rest| rest.split_once('`')) {
        return NotCloneable::UnknownField(field.to_owned());
    }
    NotCloneable::Unreadable(match text.rsplit_once(", expected ") {
        Some((_, expected)) if error.is_data() => {
            let (expected, _position) = expected.split_once(" at line ").unwrap_or((expected, ""));
            format!("a field is not {expected}")
        }
        _ => "it is not the expected JSON".to_owned(),
    })
}

#[cfg(test)]
mod tests;
