//! Converts the parsed document into a valid pod: sets the defaults of Kubernetes, and collects all invalid values.
//!
//! Must not look at the node, and must not put values of environment variables into a message.

use std::collections::BTreeSet;

use super::document::{self, Document};
use super::{
    Container, ContainerPort, EnvVar, Handler, HostPathKind, Manifest, Port, PullPolicy, Volume, VolumeMount,
    VolumeSource,
};
use crate::api::annotation;
use crate::api::image::ImageRef;

/// The problems found so far, each with its path.
#[derive(Default)]
struct Problems(Vec<String>);

impl Problems {
    fn add(&mut self, path: &str, problem: impl std::fmt::Display) {
        self.0.push(format!("{path}: {problem}"));
    }

    fn unless(&mut self, right: bool, path: &str, problem: impl std::fmt::Display) {
        if !right {
            self.add(path, problem);
        }
    }

    fn label(&mut self, path: &str, name: &str) {
        self.unless(is_dns_label(name), path, format_args!("`{name}` is not a valid name: {DNS_LABEL}"));
    }
}

const DNS_LABEL: &str =
    "1 to 63 lower-case letters, digits and `-`, with a letter or digit at the beginning and at the end";

pub(super) fn checked(document: Document) -> Result<Manifest, Vec<String>> {
    let mut problems = Problems::default();
    let (metadata, spec) = (document.metadata, document.spec);
    let namespace =
        metadata.namespace.filter(|text| !text.is_empty()).unwrap_or_else(|| "default".to_owned());
    problems.label("metadata.name", &metadata.name);
    problems.label("metadata.namespace", &namespace);
    let uid = metadata.uid.filter(|uid| !uid.is_empty());
    let uid_ok = |uid: &String| uid.len() <= 63 && uid.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    let uid_hint = "letters, digits and `-`, at most 63; without a value one is generated";
    problems.unless(uid.as_ref().is_none_or(uid_ok), "metadata.uid", uid_hint);
    if metadata.annotations.contains_key(annotation::CONFIG_SOURCE) {
        let path = format!("metadata.annotations[{}]", annotation::CONFIG_SOURCE);
        problems.add(&path, "a kubelet sets this on its own pods: remove it");
    }
    match spec.restart_policy.as_deref() {
        None | Some("Never") => {}
        Some(_) => problems.add(
            "spec.restartPolicy",
            "`inplace node run` does not restart containers: remove it or set it to Never",
        ),
    }
    let grace = u32::try_from(spec.termination_grace_period_seconds.unwrap_or(30));
    problems.unless(grace.is_ok(), "spec.terminationGracePeriodSeconds", "seconds, 0 or more; 30 by default");
    let volumes = volumes(spec.volumes, &mut problems);
    problems.unless(!spec.containers.is_empty(), "spec.containers", "at least one container is required");
    let mut names = BTreeSet::new();
    let mut containers = Vec::new();
    for (at, raw) in spec.containers.into_iter().enumerate() {
        let path = format!("spec.containers[{at}]");
        unique(&mut names, &raw.name, &path, &mut problems);
        containers.extend(container(raw, &path, &volumes, &mut problems));
    }
    if !problems.0.is_empty() {
        return Err(problems.0);
    }
    Ok(Manifest {
        namespace,
        name: metadata.name,
        uid,
        labels: metadata.labels,
        annotations: metadata.annotations,
        containers,
        volumes,
        share_process_namespace: spec.share_process_namespace.unwrap_or(false),
        host_network: spec.host_network.unwrap_or(false),
        grace_seconds: grace.unwrap_or(30),
    })
}

fn unique(names: &mut BTreeSet<String>, name: &str, path: &str, problems: &mut Problems) {
    let path = format!("{path}.name");
    problems.label(&path, name);
    problems.unless(names.insert(name.to_owned()), &path, format_args!("`{name}` is used twice"));
}

fn container(
    raw: document::Container,
    path: &str,
    volumes: &[Volume],
    problems: &mut Problems,
) -> Option<Container> {
    let image =
        ImageRef::parse(&raw.image).map_err(|error| problems.add(&format!("{path}.image"), error)).ok();
    let pull = match raw.image_pull_policy.as_deref() {
        None | Some("") => image.as_ref().map_or(PullPolicy::IfNotPresent, default_policy),
        Some("Always") => PullPolicy::Always,
        Some("IfNotPresent") => PullPolicy::IfNotPresent,
        Some("Never") => PullPolicy::Never,
        Some(_) => {
            problems.add(&format!("{path}.imagePullPolicy"), "Always, IfNotPresent or Never");
            PullPolicy::Never
        }
    };
    for (at, env) in raw.env.iter().enumerate() {
        let right = !env.name.is_empty() && !env.name.contains(['=', '\0']);
        problems.unless(right, &format!("{path}.env[{at}].name"), "a name without `=` is required");
    }
    let mut paths = BTreeSet::new();
    for (at, mount) in raw.volume_mounts.iter().enumerate() {
        let path = format!("{path}.volumeMounts[{at}]");
        let known = volumes.iter().any(|volume| volume.name == mount.name);
        problems.unless(
            known,
            &format!("{path}.name"),
            format_args!("the pod has no volume `{}`", mount.name),
        );
        let path = format!("{path}.mountPath");
        let right = mount.mount_path.starts_with('/') && !mount.mount_path.contains(':');
        problems.unless(right, &path, "an absolute path without `:`");
        problems.unless(paths.insert(&mount.mount_path), &path, "another volume is already mounted there");
    }
    let ports = ports(raw.ports, path, problems);
    let pre_stop = raw
        .lifecycle
        .pre_stop
        .map(|raw| handler(raw, &format!("{path}.lifecycle.preStop"), &ports, problems));
    let mount = |raw: document::VolumeMount| VolumeMount {
        name: raw.name,
        mount_path: raw.mount_path,
        read_only: raw.read_only.unwrap_or(false),
    };
    Some(Container {
        name: raw.name,
        image: image?,
        pull,
        command: raw.command,
        args: raw.args,
        working_dir: raw.working_dir,
        env: raw.env.into_iter().map(|raw| EnvVar { name: raw.name, value: raw.value }).collect(),
        ports,
        mounts: raw.volume_mounts.into_iter().map(mount).collect(),
        pre_stop,
    })
}

/// The default of Kubernetes: `Always` for the tag `latest` or no tag, because the image behind it can change.
fn default_policy(image: &ImageRef) -> PullPolicy {
    let rest = &image.as_str()[image.repository().len()..];
    if image.digest().is_none() && matches!(rest, "" | ":latest") {
        PullPolicy::Always
    } else {
        PullPolicy::IfNotPresent
    }
}

fn ports(mut raw: Vec<ContainerPort>, path: &str, problems: &mut Problems) -> Vec<ContainerPort> {
    let mut names = BTreeSet::new();
    for (at, port) in raw.iter_mut().enumerate() {
        let path = format!("{path}.ports[{at}]");
        if port.protocol.is_empty() {
            "TCP".clone_into(&mut port.protocol);
        }
        let protocol_ok = matches!(port.protocol.as_str(), "TCP" | "UDP" | "SCTP");
        problems.unless(protocol_ok, &format!("{path}.protocol"), "TCP, UDP or SCTP");
        let number_ok = is_port(i64::from(port.container_port));
        problems.unless(number_ok, &format!("{path}.containerPort"), PORT);
        if !port.name.is_empty() {
            unique(&mut names, &port.name, &path, problems);
        }
    }
    raw
}

fn handler(mut raw: Handler, path: &str, ports: &[ContainerPort], problems: &mut Problems) -> Handler {
    let given = [raw.exec.is_some(), raw.http_get.is_some(), raw.tcp_socket.is_some(), raw.sleep.is_some()];
    let one = given.iter().filter(|given| **given).count() == 1;
    problems.unless(one, path, "exactly one of exec, httpGet, tcpSocket and sleep is required");
    if let Some(exec) = &raw.exec {
        problems.unless(!exec.command.is_empty(), &format!("{path}.exec.command"), "a command is required");
    }
    let mut port_ok = |port: &Port, path: String| match port {
        Port::Number(number) => problems.unless(is_port(*number), &path, PORT),
        Port::Name(name) => {
            let known = ports.iter().any(|port| port.name == *name);
            problems.unless(known, &path, format_args!("the container has no port `{name}`"));
        }
    };
    if let Some(socket) = &raw.tcp_socket {
        port_ok(&socket.port, format!("{path}.tcpSocket.port"));
    }
    if let Some(get) = &mut raw.http_get {
        port_ok(&get.port, format!("{path}.httpGet.port"));
        if get.path.is_empty() {
            "/".clone_into(&mut get.path);
        }
        if get.scheme.is_empty() {
            "HTTP".clone_into(&mut get.scheme);
        }
        let scheme_ok = matches!(get.scheme.as_str(), "HTTP" | "HTTPS");
        problems.unless(scheme_ok, &format!("{path}.httpGet.scheme"), "HTTP or HTTPS");
    }
    if let Some(sleep) = &raw.sleep {
        problems.unless(sleep.seconds >= 0, &format!("{path}.sleep.seconds"), "seconds, 0 or more");
    }
    raw
}

fn volumes(raw: Vec<document::Volume>, problems: &mut Problems) -> Vec<Volume> {
    let mut names = BTreeSet::new();
    let mut volume = |(at, raw): (usize, document::Volume)| {
        let path = format!("spec.volumes[{at}]");
        unique(&mut names, &raw.name, &path, problems);
        let source = match (raw.empty_dir, raw.host_path) {
            (Some(_), Some(_)) => {
                problems.add(&path, "a volume is either emptyDir or hostPath");
                VolumeSource::Directory
            }
            (_, Some(host)) => host_path(host, &format!("{path}.hostPath"), problems),
            // In Kubernetes a volume without a source is an `emptyDir`.
            (empty, None) => match empty.and_then(|empty| empty.medium).as_deref() {
                None | Some("") => VolumeSource::Directory,
                Some("Memory") => VolumeSource::Memory,
                Some(_) => {
                    problems.add(&format!("{path}.emptyDir.medium"), "Memory, or empty");
                    VolumeSource::Directory
                }
            },
        };
        Volume { name: raw.name, source }
    };
    raw.into_iter().enumerate().map(&mut volume).collect()
}

fn host_path(raw: document::HostPath, path: &str, problems: &mut Problems) -> VolumeSource {
    let right = raw.path.starts_with('/') && !raw.path.split('/').any(|part| part == "..");
    problems.unless(right, &format!("{path}.path"), "an absolute path without `..`");
    let kind = match raw.kind.as_deref().unwrap_or_default() {
        "" => HostPathKind::Any,
        "DirectoryOrCreate" => HostPathKind::DirectoryOrCreate,
        "Directory" => HostPathKind::Directory,
        "FileOrCreate" => HostPathKind::FileOrCreate,
        "File" => HostPathKind::File,
        "Socket" => HostPathKind::Socket,
        "CharDevice" => HostPathKind::CharDevice,
        "BlockDevice" => HostPathKind::BlockDevice,
        _ => {
            let kinds =
                "DirectoryOrCreate, Directory, FileOrCreate, File, Socket, CharDevice, BlockDevice, or empty";
            problems.add(&format!("{path}.type"), kinds);
            HostPathKind::Any
        }
    };
    VolumeSource::Host { path: raw.path, kind }
}

const PORT: &str = "a port is a number from 1 to 65535";

fn is_port(number: i64) -> bool {
    (1..=65_535).contains(&number)
}

fn is_dns_label(name: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=63).contains(&name.len())
        && name.starts_with(edge)
        && name.ends_with(edge)
        && name.chars().all(|c| edge(c) || c == '-')
}
