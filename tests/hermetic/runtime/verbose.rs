//! The JSON in the verbose answers of a runtime.
//!
//! Configurations are serialized through the descriptors of the interface, so that no field can be forgotten: with
//! the interface's field names, numbers for enums, and unset fields omitted, as Go prints them.

use std::collections::HashMap;
use std::sync::LazyLock;

use inplace::cri::proto::v1::{ContainerConfig, LinuxContainerResources};
use prost_reflect::prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MapKey, Value as Field};
use serde_json::{Map, Value, json};

use super::images::{Image, digits};
use super::model::Model;
use super::parts::{Container, Sandbox};

static INTERFACE: LazyLock<DescriptorPool> = LazyLock::new(|| {
    let mut compiler = protox::Compiler::new([concat!(env!("CARGO_MANIFEST_DIR"), "/proto")]).unwrap();
    compiler.open_file("runtime.proto").unwrap();
    compiler.descriptor_pool()
});

fn info(value: &Value) -> HashMap<String, String> {
    HashMap::from([("info".to_owned(), value.to_string())])
}

/// The verbose data of a container. CRI-O does not report the configuration.
pub(super) fn container(model: &Model, container: &Container) -> HashMap<String, String> {
    let spec = runtime_spec(model, container);
    let pid = if container.is_running() { container.pid } else { 0 };
    if model.is_crio() {
        return info(&json!({
            "sandboxID": container.sandbox_id, "pid": pid, "runtimeSpec": spec, "privileged": false,
        }));
    }
    let mut config = printed("ContainerConfig", &container.config, model.env_base64);
    if let Some(field) = &model.unknown_field {
        config[field] = json!(1);
    }
    info(&json!({
        "sandboxID": container.sandbox_id,
        "pid": pid,
        "removing": false,
        "snapshotKey": container.id,
        "snapshotter": "overlayfs",
        "runtimeType": "io.containerd.runc.v2",
        "runtimeOptions": {"systemd_cgroup": true},
        "config": config,
        "runtimeSpec": spec,
    }))
}

/// The verbose data of a sandbox.
pub(super) fn sandbox(model: &Model, sandbox: &Sandbox) -> HashMap<String, String> {
    let spec =
        json!({"ociVersion": "1.1.0", "process": {"args": ["/pause"]}, "hostname": sandbox.config.hostname});
    if model.is_crio() {
        // CRI-O reports no configuration here, and without an infra container only this.
        return info(&json!({"runtimeSpec": spec}));
    }
    let mut config = printed("PodSandboxConfig", &sandbox.config, model.env_base64);
    if let Some(field) = &model.unknown_sandbox_field {
        config[field] = json!(1);
    }
    info(&json!({
        "pid": 1,
        "processStatus": if sandbox.ready { "running" } else { "deleted" },
        "netNamespaceClosed": !sandbox.ready,
        "image": "pause",
        "snapshotKey": sandbox.id,
        "snapshotter": "overlayfs",
        "runtimeHandler": sandbox.runtime_handler,
        "runtimeType": "io.containerd.runc.v2",
        "runtimeOptions": {"systemd_cgroup": true},
        "config": config,
        "runtimeSpec": spec,
        "cniResult": {"Interfaces": {"eth0": {"IPConfigs": [{"IP": sandbox.ip}]}}},
    }))
}

/// The verbose data of an image. CRI-O has no `chainID`, and the code under test does not read it.
pub(super) fn image(image: &Image) -> HashMap<String, String> {
    info(&json!({
        "chainID": format!("sha256:{}", digits(&image.id)),
        "imageSpec": {
            "architecture": image.architecture,
            "os": "linux",
            "config": {"Env": image.env, "Cmd": ["/server"]},
            "rootfs": {"type": "layers", "diff_ids": [image.id]},
        },
    }))
}

fn runtime_spec(model: &Model, container: &Container) -> Value {
    let config = &container.config;
    let image = model.images.iter().find(|image| image.id == container.image_id);
    let args: Vec<_> = config.command.iter().chain(&config.args).collect();
    let pod = container.pod_config.metadata.clone().unwrap_or_default();
    let parent = container.pod_config.linux.as_ref().map_or("", |linux| linux.cgroup_parent.as_str());
    json!({
        "ociVersion": "1.1.0",
        "process": {
            "terminal": config.tty,
            "args": if args.is_empty() { json!(["/server"]) } else { json!(args) },
            "env": environment(image, config, &container.pod_config.hostname),
            "cwd": if config.working_dir.is_empty() { "/" } else { &config.working_dir },
        },
        "root": {"path": "rootfs"},
        "mounts": config.mounts.iter().map(|mount| json!({
            "destination": mount.container_path, "type": "bind", "source": mount.host_path,
        })).collect::<Vec<_>>(),
        "annotations": {
            "io.kubernetes.cri.container-name": container.name(),
            "io.kubernetes.cri.container-type": "container",
            "io.kubernetes.cri.image-name": image.and_then(|image| image.repo_tags.first()),
            "io.kubernetes.cri.sandbox-id": container.sandbox_id,
            "io.kubernetes.cri.sandbox-name": pod.name,
            "io.kubernetes.cri.sandbox-namespace": pod.namespace,
            "io.kubernetes.cri.sandbox-uid": pod.uid,
        },
        "linux": {
            "resources": resources(container.resources.as_ref()),
            "cgroupsPath": format!("{parent}/{}", container.id),
        },
    })
}

/// The environment of the process: the image's variables, the host name, and the configured variables, which
/// override.
fn environment(image: Option<&Image>, config: &ContainerConfig, hostname: &str) -> Vec<String> {
    let mut env = image.map(|image| image.env.clone()).unwrap_or_default();
    env.push(format!("HOSTNAME={hostname}"));
    for variable in &config.envs {
        let start = format!("{}=", variable.key);
        let line = format!("{start}{}", String::from_utf8_lossy(&variable.value));
        match env.iter_mut().find(|line| line.starts_with(&start)) {
            Some(earlier) => *earlier = line,
            None => env.push(line),
        }
    }
    env
}

fn resources(resources: Option<&LinuxContainerResources>) -> Value {
    let resources = resources.cloned().unwrap_or_default();
    let mut cpu = Map::new();
    for (name, value) in
        [("shares", resources.cpu_shares), ("quota", resources.cpu_quota), ("period", resources.cpu_period)]
    {
        if value != 0 {
            cpu.insert(name.to_owned(), json!(value));
        }
    }
    for (name, value) in [("cpus", &resources.cpuset_cpus), ("mems", &resources.cpuset_mems)] {
        if !value.is_empty() {
            cpu.insert(name.to_owned(), json!(value));
        }
    }
    let mut memory = Map::new();
    for (name, value) in
        [("limit", resources.memory_limit_in_bytes), ("swap", resources.memory_swap_limit_in_bytes)]
    {
        if value != 0 {
            memory.insert(name.to_owned(), json!(value));
        }
    }
    json!({"cpu": cpu, "memory": memory, "unified": resources.unified})
}

fn printed(name: &str, message: &impl Message, base64: bool) -> Value {
    let descriptor = INTERFACE.get_message_by_name(&format!("runtime.v1.{name}")).unwrap();
    let message = DynamicMessage::decode(descriptor, message.encode_to_vec().as_slice()).unwrap();
    object(&message, base64)
}

fn object(message: &DynamicMessage, base64: bool) -> Value {
    let members = message.fields().map(|(field, value)| (field.name().to_owned(), member(value, base64)));
    Value::Object(members.collect())
}

fn member(value: &Field, base64: bool) -> Value {
    match value {
        Field::Bool(value) => json!(value),
        Field::I32(value) | Field::EnumNumber(value) => json!(value),
        Field::I64(value) => json!(value),
        Field::U32(value) => json!(value),
        Field::U64(value) => json!(value),
        Field::F32(value) => json!(value),
        Field::F64(value) => json!(value),
        Field::String(text) => json!(text),
        Field::Bytes(bytes) if base64 => json!(in_base64(bytes)),
        Field::Bytes(bytes) => json!(String::from_utf8_lossy(bytes)),
        Field::Message(message) => object(message, base64),
        Field::List(values) => values.iter().map(|value| member(value, base64)).collect(),
        Field::Map(members) => {
            let members = members.iter().map(|(key, value)| match key {
                MapKey::String(key) => (key.clone(), member(value, base64)),
                other => panic!("a map by {other:?}"),
            });
            Value::Object(members.collect())
        }
    }
}

fn in_base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let four = |three: &[u8]| {
        let bits = (0..3).fold(0, |bits, i| (bits << 8) | usize::from(three.get(i).copied().unwrap_or(0)));
        let digit = |i: usize| {
            if i > three.len() { '=' } else { char::from(DIGITS[(bits >> (18 - 6 * i)) & 63]) }
        };
        [digit(0), digit(1), digit(2), digit(3)]
    };
    bytes.chunks(3).flat_map(four).collect()
}
