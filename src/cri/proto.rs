//! The runtime's interface (CRI) as Rust types, and the strict parser of the JSON in which a runtime reports the
//! configuration of a container or a sandbox.
//!
//! Must not interpret what it reads, accept a field that it does not know, or put a value into an error of its own:
//! some values are secrets.

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::{Error, Value};

/// Generated from `proto/runtime.proto`.
#[allow(
    missing_docs,
    unreachable_pub,
    rustdoc::all,
    clippy::all,
    clippy::pedantic,
    reason = "generated: the comments are in the interface file"
)]
pub mod v1 {
    tonic::include_proto!("runtime.v1");
}

/// Parses a configuration, and refuses one that could not be passed back in full.
///
/// Go writes an absent list, map or message as `null` unless it omits it. A `null` member is therefore treated as
/// absent, even if its name is unknown: it carries nothing that could be lost. Inside a list, `null` stays an error.
///
/// # Errors
/// Invalid JSON, a value of another type, or a field this program does not know; the error names that field.
pub fn strict<T: DeserializeOwned>(json: &str) -> Result<T, Error> {
    strict_value(serde_json::from_str(json)?)
}

/// Same as [`strict`], for parsed JSON.
pub(super) fn strict_value<T: DeserializeOwned>(mut value: Value) -> Result<T, Error> {
    drop_null_members(&mut value);
    T::deserialize(value)
}

/// The recursion is bounded by the parser's own limit of 128 levels.
fn drop_null_members(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(drop_null_members);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_null_members),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Reads the text of an environment value unchanged.
///
/// The text does not show whether it is the value itself (containerd 1.6, 1.7) or its base64 form (newer releases).
/// The caller decides, by comparison with the environment that the container really has.
pub(crate) fn raw_text<'de, D: Deserializer<'de>>(text: D) -> Result<Vec<u8>, D::Error> {
    String::deserialize(text).map(String::into_bytes)
}

/// Prints the key only: values are often secrets.
impl fmt::Debug for v1::KeyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyValue").field("key", &self.key).finish_non_exhaustive()
    }
}

/// Prints the server address only: the rest are credentials.
impl fmt::Debug for v1::AuthConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthConfig").field("server_address", &self.server_address).finish_non_exhaustive()
    }
}

/// Omits `info`, which contains the whole configuration.
impl fmt::Debug for v1::ContainerStatusResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContainerStatusResponse").field("status", &self.status).finish_non_exhaustive()
    }
}

/// Omits `info`, which contains the whole configuration.
impl fmt::Debug for v1::PodSandboxStatusResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PodSandboxStatusResponse").field("status", &self.status).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::v1::{ContainerConfig, NamespaceMode, PodSandboxConfig, Signal};
    use super::*;

    const CONTAINER: &str = r#"{
        "metadata": {"name": "web", "attempt": 2},
        "image": {
            "image": "sha256:4f5c", "user_specified_image": "registry.example/web:1",
            "annotations": {"a": "b"}
        },
        "command": ["/web"],
        "args": ["--port", "80"],
        "envs": [{"key": "PLAIN", "value": "some text"}, {"key": "CODED", "value": "dGV4dA=="}, {"key": "NONE"}],
        "mounts": [
            {"container_path": "/data", "host_path": "/var/lib/x", "propagation": 1, "selinux_relabel": true,
             "uidMappings": [{"host_id": 65536, "length": 65536}], "gidMappings": [{"host_id": 7, "length": 1}]},
            {"container_path": "/model", "readonly": true, "image": {"image": "m"}, "image_sub_path": "s"}
        ],
        "devices": [{"container_path": "/dev/fuse", "host_path": "/dev/fuse", "permissions": "rwm"}],
        "labels": {"io.kubernetes.container.name": "web"},
        "annotations": {"io.kubernetes.container.restartCount": "2"},
        "log_path": "web/2.log",
        "tty": true,
        "linux": {
            "resources": {
                "cpu_period": 100000, "cpu_shares": 102, "oom_score_adj": 1000,
                "memory_limit_in_bytes": 9007199254740993,
                "hugepage_limits": [{"page_size": "2MB"}], "unified": {"memory.oom.group": "1"}
            },
            "security_context": {
                "capabilities": {"drop_capabilities": ["ALL"]},
                "namespace_options": {"pid": 1, "userns_options": {"mode": 2}},
                "run_as_user": {"value": 1000}, "run_as_group": {},
                "supplemental_groups": [1, 2],
                "apparmor_profile": "runtime/default",
                "seccomp": {"profile_type": 2, "localhost_ref": "p.json"}
            }
        },
        "CDI_devices": [{"name": "vendor.com/gpu=0"}],
        "stop_signal": 23
    }"#;

    fn refusal<T: DeserializeOwned + std::fmt::Debug>(json: &str) -> String {
        strict::<T>(json).unwrap_err().to_string()
    }

    #[test]
    fn a_container_reads_in_full() {
        let config: ContainerConfig = strict(CONTAINER).unwrap();
        assert_eq!(config.metadata.unwrap().attempt, 2);
        assert_eq!(config.mounts[0].propagation, 1);
        assert_eq!(config.mounts[0].uid_mappings[0].host_id, 65_536);
        assert_eq!(config.mounts[0].gid_mappings[0].host_id, 7);
        assert_eq!(config.mounts[1].image.as_ref().unwrap().image, "m");
        assert_eq!(config.cdi_devices[0].name, "vendor.com/gpu=0");
        assert_eq!(config.stop_signal, i32::from(Signal::Sigterm));
        let linux = config.linux.unwrap();
        assert_eq!(linux.resources.unwrap().memory_limit_in_bytes, 9_007_199_254_740_993);
        let context = linux.security_context.unwrap();
        assert_eq!(context.run_as_user.unwrap().value, 1000);
        assert_eq!(context.run_as_group.unwrap().value, 0, "an empty message is there, with zero in it");
        let namespaces = context.namespace_options.unwrap();
        assert_eq!(namespaces.pid, i32::from(NamespaceMode::Container));
        assert_eq!(namespaces.userns_options.unwrap().mode, i32::from(NamespaceMode::Node));
    }

    #[test]
    fn environment_values_keep_their_text() {
        let config: ContainerConfig = strict(CONTAINER).unwrap();
        let values: Vec<&[u8]> = config.envs.iter().map(|env| env.value.as_slice()).collect();
        assert_eq!(values, [&b"some text"[..], b"dGV4dA==", b""]);
        assert!(refusal::<ContainerConfig>(r#"{"envs":[{"key":"A","value":1}]}"#).contains("string"));
    }

    #[test]
    fn secrets_are_not_printed() {
        let config: ContainerConfig = strict(CONTAINER).unwrap();
        let info = [("info".to_owned(), CONTAINER.to_owned())].into();
        let status = super::v1::ContainerStatusResponse { status: None, info };
        let auth = super::v1::AuthConfig { password: "some text".to_owned(), ..Default::default() };
        let printed = format!("{config:?} {status:?} {auth:?}");
        assert!(printed.contains("PLAIN") && printed.contains("AuthConfig"), "{printed}");
        let bytes = format!("{:?}", b"some text".to_vec());
        assert!(!printed.contains("some text") && !printed.contains(&bytes), "{printed}");
    }

    #[test]
    fn a_sandbox_reads_in_full() {
        let config: PodSandboxConfig = strict(
            r#"{
                "metadata": {"name": "web-0", "uid": "6d1c", "namespace": "shop"},
                "hostname": "web-0", "log_directory": "/var/log/pods/shop_web-0_6d1c",
                "dns_config": {"servers": ["10.96.0.10"], "options": ["ndots:5"]},
                "port_mappings": [{"protocol": 1, "container_port": 53, "host_port": 53}],
                "labels": {"app": "web"},
                "linux": {
                    "cgroup_parent": "/kubepods/pod6d1c", "overhead": {}, "resources": {"cpu_shares": 2},
                    "security_context": {"namespace_options": {"network": 2}, "seccomp": {}},
                    "sysctls": {"net.core.somaxconn": "1024"}
                },
                "windows": {"security_context": {"namespace_options": {"network": 2}}}
            }"#,
        )
        .unwrap();
        assert_eq!(config.port_mappings[0].host_port, 53);
        assert_eq!(config.linux.unwrap().sysctls["net.core.somaxconn"], "1024");
        assert!(config.windows.is_some());
    }

    #[test]
    fn an_unknown_field_is_refused_by_name() {
        for (json, field) in [
            (r#"{"metadata":{"name":"web"},"novelty":1}"#, "`novelty`"),
            (r#"{"linux":{"security_context":{"seccomp":{"novelty":true}}}}"#, "`novelty`"),
            (r#"{"mounts":[{"container_path":"/x","novelty":""}]}"#, "`novelty`"),
            // Rust's spelling is not the interface's.
            (r#"{"cdi_devices":[]}"#, "`cdi_devices`"),
            (r#"{"mounts":[{"uid_mappings":[]}]}"#, "`uid_mappings`"),
        ] {
            let error = refusal::<ContainerConfig>(json);
            assert!(error.contains("unknown field") && error.contains(field), "{json}: {error}");
        }
        let error = refusal::<PodSandboxConfig>(r#"{"linux":{"security_context":{"novelty":[]}}}"#);
        assert!(error.contains("`novelty`"), "{error}");
    }

    #[test]
    fn null_members_are_absent_ones() {
        let config: ContainerConfig = strict(
            r#"{"metadata":null,"command":null,"labels":null,"CDI_devices":null,"log_path":null,
                "mounts":[{"container_path":"/x","uidMappings":null}],"linux":{"resources":{"unified":null}}}"#,
        )
        .unwrap();
        assert!(config.metadata.is_none() && config.command.is_empty() && config.labels.is_empty());
        assert_eq!(config.mounts[0].container_path, "/x");
        assert!(config.linux.unwrap().resources.is_some());
        assert!(refusal::<ContainerConfig>(r#"{"mounts":[null]}"#).contains("null"));
        assert!(refusal::<ContainerConfig>("null").contains("null"));
    }
}
