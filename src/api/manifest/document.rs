//! The shape of the YAML, before anything is checked.
//!
//! Loose on purpose: wrong values are found by `check`, which reports all of them at once. What
//! a kubelet also writes as JSON (ports, preStop) serialises here exactly as Kubernetes does.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A Pod.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Document {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) metadata: Metadata,
    pub(super) spec: Spec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Metadata {
    pub(super) name: String,
    pub(super) namespace: Option<String>,
    pub(super) uid: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) annotations: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Spec {
    #[serde(deserialize_with = "or_default")]
    pub(super) containers: Vec<Container>,
    #[serde(deserialize_with = "or_default")]
    pub(super) volumes: Vec<Volume>,
    pub(super) share_process_namespace: Option<bool>,
    pub(super) host_network: Option<bool>,
    pub(super) termination_grace_period_seconds: Option<i64>,
    pub(super) restart_policy: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Container {
    pub(super) name: String,
    pub(super) image: String,
    pub(super) image_pull_policy: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) command: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) args: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) working_dir: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) env: Vec<EnvVar>,
    #[serde(deserialize_with = "or_default")]
    pub(super) ports: Vec<ContainerPort>,
    #[serde(deserialize_with = "or_default")]
    pub(super) volume_mounts: Vec<VolumeMount>,
    #[serde(deserialize_with = "or_default")]
    pub(super) lifecycle: Lifecycle,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct EnvVar {
    pub(super) name: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) value: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct VolumeMount {
    pub(super) name: String,
    pub(super) mount_path: String,
    pub(super) read_only: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Lifecycle {
    pub(super) pre_stop: Option<Handler>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Volume {
    pub(super) name: String,
    pub(super) empty_dir: Option<EmptyDir>,
    pub(super) host_path: Option<HostPath>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct EmptyDir {
    pub(super) medium: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct HostPath {
    pub(super) path: String,
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
}

/// A named port of a container, in Kubernetes' JSON spelling.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerPort {
    /// What a handler calls it; may be empty.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub name: String,
    /// Where the container listens.
    pub container_port: i32,
    /// `TCP`, `UDP` or `SCTP`.
    #[serde(deserialize_with = "or_default")]
    pub protocol: String,
}

/// What runs before a container is asked to stop, in Kubernetes' JSON spelling: exactly one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Handler {
    /// A command in the container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecAction>,
    /// A GET request from the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_get: Option<HttpGet>,
    /// Opens a connection. Kubernetes keeps it for old objects only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp_socket: Option<TcpSocket>,
    /// Waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sleep: Option<Sleep>,
}

/// A command in the container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecAction {
    /// Program and arguments, no shell.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
}

/// A GET request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpGet {
    /// With the leading `/`.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub path: String,
    /// Where.
    pub port: Port,
    /// Empty: the pod's address.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub host: String,
    /// `HTTP` or `HTTPS`.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub scheme: String,
    /// Sent along.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    pub http_headers: Vec<Header>,
}

/// A header of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Header {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// Opens a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TcpSocket {
    /// Where.
    pub port: Port,
    /// Empty: the pod's address.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub host: String,
}

/// Waits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sleep {
    /// How long.
    pub seconds: i64,
}

/// A port by number or by the name the container gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Port {
    /// 1 to 65535 once checked.
    Number(i64),
    /// One of the container's ports once checked.
    Name(String),
}

impl Default for Port {
    fn default() -> Self {
        Self::Number(0)
    }
}

impl Serialize for Port {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => serializer.serialize_i64(*number),
            Self::Name(name) => serializer.serialize_str(name),
        }
    }
}

impl<'de> Deserialize<'de> for Port {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl de::Visitor<'_> for Either {
            type Value = Port;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a port number or the name of a port")
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Port, E> {
                Ok(Port::Number(number))
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Port, E> {
                Ok(Port::Number(i64::try_from(number).unwrap_or(i64::MAX)))
            }
            fn visit_str<E: de::Error>(self, name: &str) -> Result<Port, E> {
                Ok(Port::Name(name.to_owned()))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// Kubernetes takes `field:` with nothing behind it for an absent field.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(field: D) -> Result<T, D::Error> {
    Option::deserialize(field).map(Option::unwrap_or_default)
}
