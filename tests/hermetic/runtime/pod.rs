//! Builds pods as a kubelet or another creator would have made them.

use std::collections::{BTreeMap, HashMap};

use inplace::api::annotation;
use inplace::cri::proto::v1::{
    ContainerConfig, ContainerMetadata, DnsConfig, ImageSpec, KeyValue, LinuxContainerConfig,
    LinuxContainerResources, LinuxContainerSecurityContext, LinuxPodSandboxConfig, Mount, NamespaceMode,
    NamespaceOption, PodSandboxConfig, PodSandboxMetadata,
};
use inplace::operation::snapshot::Owner;

use super::images::digits;
use super::kubelet::{HASH, numbered};
use super::model::Model;

/// A pod to be created.
pub(crate) struct Pod {
    namespace: String,
    name: String,
    owner: Owner,
    attempt: u32,
    /// Distinguishes pods of the same name.
    generation: u32,
    labels: HashMap<String, String>,
    annotations: HashMap<String, String>,
    containers: Vec<ContainerConfig>,
}

/// A pod that was created.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) sandbox_id: String,
    ids: BTreeMap<String, String>,
}

impl Made {
    /// The ID of the first instance of a container.
    #[track_caller]
    pub(crate) fn id(&self, container: &str) -> &str {
        self.ids.get(container).unwrap_or_else(|| panic!("{} has no {container}", self.name))
    }
}

impl Pod {
    /// A pod that a kubelet has created from the API.
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            owner: Owner::Kubelet,
            attempt: 0,
            generation: 0,
            labels: HashMap::from([("app".to_owned(), name.to_owned())]),
            annotations: HashMap::new(),
            containers: Vec::new(),
        }
    }

    /// Sets the owner of the sandbox.
    pub(crate) fn owner(mut self, owner: Owner) -> Self {
        self.owner = owner;
        self
    }

    /// A recreated pod with the same name and another uid.
    pub(crate) fn again(mut self) -> Self {
        self.generation += 1;
        self
    }

    /// Sets the attempt of the running containers.
    pub(crate) fn attempt(mut self, attempt: u32) -> Self {
        self.attempt = attempt;
        self
    }

    pub(crate) fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    pub(crate) fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Adds a container.
    pub(crate) fn container(mut self, name: &str, image: &str) -> Self {
        self.containers.push(container(name, image));
        self
    }

    /// Changes the container that was added last.
    pub(crate) fn with(mut self, change: impl FnOnce(&mut ContainerConfig)) -> Self {
        change(self.containers.last_mut().unwrap());
        self
    }

    /// Sets a preStop handler, as JSON, for the container that was added last.
    pub(crate) fn pre_stop(self, handler: &str) -> Self {
        self.with(|config| {
            config.annotations.insert(annotation::PRE_STOP.to_owned(), handler.to_owned());
        })
    }

    /// Sets the grace period of the container that was added last.
    pub(crate) fn grace(self, seconds: u32) -> Self {
        let key = annotation::TERMINATION_GRACE.to_owned();
        self.with(|config| {
            config.annotations.insert(key, seconds.to_string());
        })
    }

    pub(super) fn put(self, model: &mut Model) -> Made {
        let past = model.history.len();
        let pod = self.sandbox();
        let metadata = pod.metadata.clone().unwrap();
        let sandbox_id = model.run_sandbox(pod.clone(), "").unwrap();
        let mut ids = BTreeMap::new();
        for mut config in self.containers {
            if self.owner == Owner::Nobody {
                config.labels.clear();
                config.annotations.clear();
            } else {
                config.labels.extend(sandbox_labels(&metadata));
            }
            let image = config.image.as_mut().unwrap();
            image.image.clone_from(&model.image(&image.user_specified_image).id);
            numbered(&mut config, self.attempt);
            let name = config.metadata.clone().unwrap().name;
            let id = model.create(&sandbox_id, config, pod.clone()).unwrap();
            model.start(&id).unwrap();
            ids.insert(name, id);
        }
        model.history.truncate(past);
        Made { namespace: self.namespace, name: self.name, uid: metadata.uid, sandbox_id, ids }
    }

    fn sandbox(&self) -> PodSandboxConfig {
        let uid = uid(&self.namespace, &self.name, self.generation);
        let metadata = PodSandboxMetadata {
            name: self.name.clone(),
            namespace: self.namespace.clone(),
            uid: uid.clone(),
            attempt: 0,
        };
        let (mut labels, mut annotations) = (self.labels.clone(), self.annotations.clone());
        match self.owner {
            Owner::Kubelet | Owner::KubeletStatic => {
                let source = if self.owner == Owner::Kubelet { "api" } else { "file" };
                labels.extend(sandbox_labels(&metadata));
                annotations.insert(annotation::CONFIG_SOURCE.to_owned(), source.to_owned());
                annotations.insert("kubernetes.io/config.seen".to_owned(), "2026-01-02T03:04:05Z".to_owned());
            }
            Owner::NodeRun => {
                labels.extend(sandbox_labels(&metadata));
                labels.entry(annotation::NODE_RUN.to_owned()).or_insert_with(|| "true".to_owned());
            }
            Owner::Nobody => {}
        }
        PodSandboxConfig {
            metadata: Some(metadata),
            hostname: self.name.clone(),
            log_directory: format!("/var/log/pods/{}_{}_{uid}", self.namespace, self.name),
            dns_config: Some(DnsConfig { servers: vec!["10.96.0.10".to_owned()], ..DnsConfig::default() }),
            labels,
            annotations,
            linux: Some(LinuxPodSandboxConfig {
                cgroup_parent: format!("/kubepods/burstable/pod{uid}"),
                ..LinuxPodSandboxConfig::default()
            }),
            ..PodSandboxConfig::default()
        }
    }
}

fn sandbox_labels(pod: &PodSandboxMetadata) -> HashMap<String, String> {
    HashMap::from([
        (annotation::POD_NAME.to_owned(), pod.name.clone()),
        (annotation::POD_NAMESPACE.to_owned(), pod.namespace.clone()),
        (annotation::POD_UID.to_owned(), pod.uid.clone()),
    ])
}

/// Sets a value in every kind of field that a clone must retain. The attempt is set later.
fn container(name: &str, image: &str) -> ContainerConfig {
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    ContainerConfig {
        metadata: Some(ContainerMetadata { name: name.to_owned(), attempt: 0 }),
        image: Some(ImageSpec { user_specified_image: image.to_owned(), ..ImageSpec::default() }),
        envs: vec![
            KeyValue { key: "GREETING".to_owned(), value: "grüße".into() },
            KeyValue { key: "LOOKS_CODED".to_owned(), value: "dGV4dA==".into() },
        ],
        mounts: vec![Mount {
            container_path: "/data".to_owned(),
            host_path: "/var/lib/data".to_owned(),
            ..Mount::default()
        }],
        labels: HashMap::from([pair(annotation::CONTAINER_NAME, name)]),
        annotations: HashMap::from([
            pair(HASH, &digits(&format!("{name} {image}"))[..8]),
            pair(annotation::TERMINATION_MESSAGE_PATH, "/dev/termination-log"),
            pair("io.kubernetes.container.terminationMessagePolicy", "File"),
            pair(annotation::TERMINATION_GRACE, "30"),
        ]),
        linux: Some(LinuxContainerConfig {
            resources: Some(LinuxContainerResources {
                cpu_shares: 102,
                memory_limit_in_bytes: 64 << 20,
                oom_score_adj: 999,
                ..LinuxContainerResources::default()
            }),
            security_context: Some(LinuxContainerSecurityContext {
                namespace_options: Some(NamespaceOption {
                    pid: NamespaceMode::Container.into(),
                    ..NamespaceOption::default()
                }),
                ..LinuxContainerSecurityContext::default()
            }),
        }),
        ..ContainerConfig::default()
    }
}

fn uid(namespace: &str, name: &str, generation: u32) -> String {
    let d = digits(&format!("{namespace}/{name}{}", "'".repeat(generation as usize)));
    format!("{}-{}-4{}-8{}-{}", &d[..8], &d[8..12], &d[13..16], &d[17..20], &d[20..32])
}
