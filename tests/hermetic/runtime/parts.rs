//! Sandboxes and containers of the model, and their answers to commands.

use std::time::Duration;

use inplace::api::annotation;
use inplace::cri::proto::v1::{ContainerConfig, ContainerState, LinuxContainerResources, PodSandboxConfig};

/// Answers commands.
pub(crate) type Answering = Box<dyn FnMut(&Container, &[String]) -> Exec + Send>;

/// The answer to a command.
#[derive(Clone, Debug, Default)]
pub(crate) struct Exec {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) exit_code: i32,
    /// How long the command takes.
    pub(crate) takes: Duration,
}

impl Exec {
    /// Success, with this standard output.
    pub(crate) fn ok(stdout: &str) -> Self {
        Self { stdout: stdout.to_owned(), ..Self::default() }
    }

    /// Failure, with this standard error.
    pub(crate) fn failed(exit_code: i32, stderr: &str) -> Self {
        Self { stderr: stderr.to_owned(), exit_code, ..Self::default() }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Sandbox {
    pub(crate) id: String,
    pub(crate) config: PodSandboxConfig,
    pub(crate) ready: bool,
    pub(crate) created_at: i64,
    pub(crate) ip: String,
    pub(crate) runtime_handler: String,
}

/// A container or a fence.
#[derive(Clone, Debug)]
pub(crate) struct Container {
    pub(crate) id: String,
    pub(crate) sandbox_id: String,
    /// The configuration in the create call.
    pub(crate) config: ContainerConfig,
    /// The sandbox configuration in the create call.
    pub(crate) pod_config: PodSandboxConfig,
    /// The ID that the configured image resolved to.
    pub(crate) image_id: String,
    /// The present resources; initially those of the configuration.
    pub(crate) resources: Option<LinuxContainerResources>,
    pub(crate) state: ContainerState,
    /// Nanoseconds since 1970; 0 if it has not happened.
    pub(crate) created_at: i64,
    pub(crate) started_at: i64,
    pub(crate) finished_at: i64,
    pub(crate) exit_code: i32,
    pub(crate) reason: String,
    pub(crate) message: String,
    /// When its process will end by itself, and with which exit code.
    pub(crate) ends: Option<(i64, i32)>,
    /// Whether the stop signal was sent.
    pub(crate) signalled: bool,
    pub(super) reserved: String,
    pub(super) pid: u32,
}

impl Sandbox {
    pub(crate) fn name(&self) -> &str {
        self.config.metadata.as_ref().map_or("", |metadata| &metadata.name)
    }
}

impl Container {
    /// The container's name in the pod; for a fence, the name that it holds.
    pub(crate) fn name(&self) -> &str {
        self.config.metadata.as_ref().map_or("", |metadata| &metadata.name)
    }

    pub(crate) fn attempt(&self) -> u32 {
        self.config.metadata.as_ref().map_or(0, |metadata| metadata.attempt)
    }

    pub(crate) fn pod(&self) -> &str {
        self.pod_config.metadata.as_ref().map_or("", |metadata| &metadata.name)
    }

    /// The image name in the pod's spec.
    pub(crate) fn image(&self) -> &str {
        let image = self.config.image.as_ref();
        image.map_or(
            "",
            |i| if i.user_specified_image.is_empty() { &i.image } else { &i.user_specified_image },
        )
    }

    pub(crate) fn is_fence(&self) -> bool {
        fence(&self.config)
    }

    pub(crate) fn is_running(&self) -> bool {
        self.state == ContainerState::ContainerRunning
    }

    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        self.config.labels.get(key).map(String::as_str)
    }

    pub(crate) fn annotation(&self, key: &str) -> Option<&str> {
        self.config.annotations.get(key).map(String::as_str)
    }

    /// The readable form: `app#1`, `fence app#2`.
    pub(crate) fn about(&self) -> String {
        about(&self.config)
    }

    /// Whether `what` (a container's name, or `pod/name`) matches this container.
    pub(super) fn is(&self, what: &str) -> bool {
        what == self.name() || what.split_once('/') == Some((self.pod(), self.name()))
    }

    pub(super) fn end(&mut self, at: i64, exit_code: i32) {
        self.state = ContainerState::ContainerExited;
        self.finished_at = at;
        self.exit_code = exit_code;
        self.ends = None;
    }
}

fn fence(config: &ContainerConfig) -> bool {
    config.labels.get(annotation::CONTAINER_NAME).is_some_and(|name| name == annotation::FENCE_NAME)
}

pub(super) fn about(config: &ContainerConfig) -> String {
    let metadata = config.metadata.clone().unwrap_or_default();
    format!("{}{}#{}", if fence(config) { "fence " } else { "" }, metadata.name, metadata.attempt)
}
