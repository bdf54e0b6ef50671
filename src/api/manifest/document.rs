//! The types of the YAML document, before its values are checked.
//!
//! They accept invalid values, so that `check` can report all of them in one error. Ports and preStop handlers, which a
//! kubelet writes as JSON into annotations, have the same JSON form here.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

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

/// A port of a container, with the JSON form of Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerPort {
    /// The name that a handler can use; may be empty.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub name: String,
    /// The port on which the container listens.
    pub container_port: i32,
    /// `TCP`, `UDP` or `SCTP`.
    #[serde(deserialize_with = "or_default")]
    pub protocol: String,
}

/// The handler that runs before a container gets its stop signal, with the JSON form of Kubernetes. Exactly one field is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Handler {
    /// A command in the container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecAction>,
    /// A GET request from the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_get: Option<HttpGet>,
    /// Opens a TCP connection. Kubernetes keeps the field for backward compatibility only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp_socket: Option<TcpSocket>,
    /// Waits for a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sleep: Option<Sleep>,
}

/// A command in the container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecAction {
    /// The program and its arguments; no shell is used.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
}

/// A GET request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpGet {
    /// The path, with the leading `/`.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub path: String,
    /// The port of the server.
    pub port: Port,
    /// The host; empty: the pod's address.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub host: String,
    /// `HTTP` or `HTTPS`.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub scheme: String,
    /// The headers of the request.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    pub http_headers: Vec<Header>,
}

/// A header of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Header {
    /// The name of the header.
    pub name: String,
    /// The value of the header.
    pub value: String,
}

/// Opens a TCP connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TcpSocket {
    /// The port of the server.
    pub port: Port,
    /// The host; empty: the pod's address.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub host: String,
}

/// Waits for a time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sleep {
    /// The time in seconds.
    pub seconds: i64,
}

/// A port, by number or by the name of a container port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Port {
    /// A number; after the check 1 to 65535.
    Number(i64),
    /// A name; after the check that of a port of the container.
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

/// Treats null (`field:` without a value) as an absent field, as Kubernetes does.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(field: D) -> Result<T, D::Error> {
    Option::deserialize(field).map(Option::unwrap_or_default)
}
