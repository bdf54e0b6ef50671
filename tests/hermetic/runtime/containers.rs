//! The calls on sandboxes and containers, with the checks and error texts of containerd 1.7.

use std::time::Duration;

use inplace::cri::proto::v1::{ContainerConfig, ContainerMetadata, ContainerState, PodSandboxConfig};
use tonic::{Code, Status};

use super::model::{Model, now};
use super::parts::{Container, Sandbox, about};

/// containerd's answer for an error without a code of its own.
fn unknown(message: String) -> Status {
    Status::new(Code::Unknown, message)
}

impl Model {
    /// Creates a sandbox and returns its ID.
    pub(crate) fn run_sandbox(&mut self, config: PodSandboxConfig, handler: &str) -> Result<String, Status> {
        let metadata = config.metadata.clone().unwrap_or_default();
        let name = format!("{}_{}_{}_{}", metadata.name, metadata.namespace, metadata.uid, metadata.attempt);
        let id = self.new_id();
        self.reserve("sandbox", &name, &id)?;
        let ip = format!("10.88.0.{}", self.sandboxes.len() + 2);
        let created_at = self.tick();
        let runtime_handler = handler.to_owned();
        self.history.push(format!("ran sandbox {}/{}", metadata.namespace, metadata.name));
        self.sandboxes.push(Sandbox { id: id.clone(), config, ready: true, created_at, ip, runtime_handler });
        Ok(id)
    }

    /// Stops a sandbox and everything that runs in it.
    pub(crate) fn stop_sandbox(&mut self, id: &str) {
        let Some(sandbox) = self.sandbox_mut(id) else { return };
        sandbox.ready = false;
        let (id, name) = (sandbox.id.clone(), sandbox.name().to_owned());
        let inside: Vec<_> =
            self.containers.iter().filter(|c| c.sandbox_id == id).map(|c| c.id.clone()).collect();
        for container in inside {
            self.exit(&container, 137);
        }
        self.history.push(format!("stopped sandbox {name}"));
    }

    /// Removes a stopped sandbox and all its containers.
    pub(crate) fn remove_sandbox(&mut self, id: &str) -> Result<(), Status> {
        let Some(sandbox) = self.sandbox(id).cloned() else { return Ok(()) };
        if sandbox.ready {
            return Err(unknown(format!("sandbox container {:?} is not fully stopped", sandbox.id)));
        }
        self.containers.retain(|container| container.sandbox_id != sandbox.id);
        let containers = &self.containers;
        self.sandboxes.retain(|other| other.id != sandbox.id);
        let sandboxes = &self.sandboxes;
        self.names.retain(|_, owner| {
            containers.iter().any(|c| c.id == *owner) || sandboxes.iter().any(|s| s.id == *owner)
        });
        self.history.push(format!("removed sandbox {}", sandbox.name()));
        Ok(())
    }

    /// Reserves the name of an attempt without a container, as if another client were about to create it.
    pub(crate) fn hold_name(&mut self, pod: &PodSandboxConfig, name: &str, attempt: u32) {
        let id = self.new_id();
        let metadata = ContainerMetadata { name: name.to_owned(), attempt };
        self.names.insert(reserved_name(&metadata, pod), id);
    }

    fn reserve(&mut self, kind: &str, name: &str, id: &str) -> Result<(), Status> {
        match self.names.get(name) {
            None => {
                self.names.insert(name.to_owned(), id.to_owned());
                Ok(())
            }
            Some(owner) => Err(unknown(format!(
                "failed to reserve {kind} name {name:?}: name {name:?} is reserved for {owner:?}"
            ))),
        }
    }

    /// Creates a container and returns its ID.
    pub(crate) fn create(
        &mut self,
        sandbox_id: &str,
        mut config: ContainerConfig,
        pod_config: PodSandboxConfig,
    ) -> Result<String, Status> {
        let Some(sandbox) = self.sandbox(sandbox_id).cloned() else {
            return Err(Status::not_found(format!("failed to find sandbox id {sandbox_id:?}: not found")));
        };
        if !sandbox.ready {
            return Err(unknown(format!("sandbox container {:?} is not running", sandbox.id)));
        }
        let Some(metadata) = &config.metadata else {
            return Err(unknown("container config must include metadata".to_owned()));
        };
        let name = reserved_name(metadata, &pod_config);
        if self.is_crio()
            && let Some(owner) = self.names.get(&name)
        {
            return Ok(owner.clone());
        }
        let id = self.new_id();
        self.reserve("container", &name, &id)?;
        let reference = config.image.as_ref().map_or("", |image| image.image.as_str());
        let image = match self.local_image(reference) {
            None => Err(Status::not_found(format!("failed to resolve image {reference:?}: not found"))),
            Some(image) => match &image.refuses_create {
                Some(message) => Err(unknown(message.clone())),
                None => Ok(image.id.clone()),
            },
        };
        let image = image.and_then(|image| mount_images(&mut config, &id).map(|()| image));
        let image_id = image.inspect_err(|_| drop(self.names.remove(&name)))?;
        self.history.push(format!("created {}", about(&config)));
        let created_at = self.tick();
        self.containers.push(Container {
            id: id.clone(),
            sandbox_id: sandbox.id,
            resources: config.linux.as_ref().and_then(|linux| linux.resources.clone()),
            config,
            pod_config,
            image_id,
            state: ContainerState::ContainerCreated,
            created_at,
            started_at: 0,
            finished_at: 0,
            exit_code: 0,
            reason: String::new(),
            message: String::new(),
            ends: None,
            signalled: false,
            reserved: name,
            pid: 0,
        });
        Ok(id)
    }

    /// Starts a created container.
    pub(crate) fn start(&mut self, id: &str) -> Result<(), Status> {
        let at = self.tick();
        let Some(container) = self.container(id).cloned() else {
            return Err(missing(id));
        };
        let id = &container.id;
        if container.state != ContainerState::ContainerCreated {
            let state = container.state.as_str_name();
            return Err(unknown(format!(
                "failed to set starting state for container {id:?}: container is in {state} state"
            )));
        }
        let ready = self.sandbox(&container.sandbox_id).is_some_and(|sandbox| sandbox.ready);
        let image = self.images.iter().find(|image| image.id == container.image_id).cloned();
        let refusal = match image.as_ref().and_then(|image| image.refuses_start.as_ref()) {
            _ if !ready => Some(format!("sandbox container {:?} is not running", container.sandbox_id)),
            Some(why) => Some(format!(
                "failed to create containerd task: failed to create shim task: OCI runtime create failed: {why}: unknown"
            )),
            None => None,
        };
        let about = container.about();
        let container = self.container_mut(id).ok_or_else(|| missing(id))?;
        if let Some(message) = refusal {
            container.end(at, 128);
            "StartError".clone_into(&mut container.reason);
            container.message.clone_from(&message);
            self.history.push(format!("did not start {about}"));
            return Err(unknown(message));
        }
        container.state = ContainerState::ContainerRunning;
        container.started_at = at;
        container.pid = u32::try_from(at % 30_000).unwrap_or(0) + 1000;
        container.ends = image.and_then(|i| i.dies_after).map(|(after, code)| (later(at, after), code));
        self.history.push(format!("started {about}"));
        Ok(())
    }

    /// Begins to stop a container. Returns true if the container still runs and the caller has to wait.
    pub(super) fn begin_stop(&mut self, id: &str, timeout: i64) -> bool {
        let Some(container) = self.container(id).filter(|c| c.is_running()).cloned() else {
            return false;
        };
        let id = &container.id;
        if timeout <= 0 {
            self.exit(id, 137);
            return false;
        }
        if !container.signalled {
            self.history.push(format!("signalled {}", container.about()));
            let image = self.images.iter().find(|image| image.id == container.image_id);
            let obeys = image.map_or(Some((Duration::ZERO, 143)), |image| {
                (!image.ignores_stop).then_some((image.stop_takes, image.stop_code))
            });
            if let Some(container) = self.container_mut(id) {
                container.signalled = true;
                // The process may already be about to exit, and earlier.
                let obeys = obeys.map(|(after, code)| (later(now(), after), code));
                container.ends = [container.ends, obeys].into_iter().flatten().min();
            }
            self.settle();
        }
        self.container(id).is_some_and(Container::is_running)
    }

    /// Kills a container with SIGKILL.
    pub(super) fn kill(&mut self, id: &str) {
        self.exit(id, 137);
    }

    /// Removes a container; a running one is killed first.
    pub(crate) fn remove(&mut self, id: &str) {
        let Some(container) = self.container_mut(id) else { return };
        // A container in an unknown state is ended too, since it may have run.
        if container.state == ContainerState::ContainerUnknown {
            container.state = ContainerState::ContainerRunning;
        }
        let container = container.clone();
        self.exit(&container.id, 137);
        self.vanish(&container.id);
        self.history.push(format!("removed {}", container.about()));
    }
}

/// Mounts the image volumes of a container as containerd 2.1 does: it writes their folders into the configuration that it
/// stores and reports, and does not accept them there.
fn mount_images(config: &mut ContainerConfig, id: &str) -> Result<(), Status> {
    for mount in config.mounts.iter_mut().filter(|mount| mount.image.is_some()) {
        if !mount.host_path.is_empty() {
            return Err(unknown(format!("hostpath must be empty while mount image: {mount:?}")));
        }
        mount.host_path = format!("/run/containerd/io.containerd.grpc.v1.cri/image-volumes/{id}");
        mount.uid_mappings.clear();
        mount.gid_mappings.clear();
    }
    Ok(())
}

/// containerd's answer for an unknown container.
pub(super) fn missing(id: &str) -> Status {
    Status::not_found(format!("an error occurred when try to find container {id:?}: not found"))
}

pub(super) fn not_running(container: &Container) -> Status {
    unknown(format!("failed to exec in container: container is in {} state", container.state.as_str_name()))
}

fn reserved_name(container: &ContainerMetadata, pod: &PodSandboxConfig) -> String {
    let metadata = pod.metadata.clone().unwrap_or_default();
    let ContainerMetadata { name, attempt } = container;
    format!("{name}_{}_{}_{}_{attempt}", metadata.name, metadata.namespace, metadata.uid)
}

fn later(at: i64, by: Duration) -> i64 {
    at.saturating_add(i64::try_from(by.as_nanos()).unwrap_or(i64::MAX))
}
