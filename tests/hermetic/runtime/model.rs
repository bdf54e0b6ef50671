//! The model of the node: sandboxes, containers and images, and the times at which processes end.
//!
//! A test may read and change all of it; what a caller of the interface may do is in `containers.rs`.

use std::collections::BTreeMap;
use std::path::Path;

use inplace::cri::proto::v1::PodSandboxConfig;

use super::images::Image;
use super::parts::{Answering, Container, Exec, Sandbox};

/// The state of the runtime. It survives the runtime's restarts.
pub(crate) struct Model {
    pub(crate) sandboxes: Vec<Sandbox>,
    pub(crate) containers: Vec<Container>,
    /// The images on the node, and those that can be pulled.
    pub(crate) images: Vec<Image>,
    /// `containerd` or `cri-o`: the latter reports no configuration, and answers a taken name with its owner.
    pub(crate) runtime_name: String,
    pub(crate) runtime_version: String,
    /// The conditions that `Status` reports.
    pub(crate) runtime_ready: bool,
    pub(crate) network_ready: bool,
    /// Whether environment values are printed as base64, as by runtimes that use the CRI of Kubernetes 1.36.
    pub(crate) env_base64: bool,
    /// A field of a later interface version, added to every printed configuration of a container.
    pub(crate) unknown_field: Option<String>,
    /// The same for sandboxes.
    pub(crate) unknown_sandbox_field: Option<String>,
    /// The values that `ImageFsInfo` reports.
    pub(crate) mountpoint: String,
    pub(crate) used_bytes: u64,
    /// The answers of containers to commands.
    pub(crate) exec: Answering,
    /// The sandbox configuration that the caller sent with each pull.
    pub(crate) pulled_for: Vec<Option<PodSandboxConfig>>,
    /// The events, see [`super::Fake::history`].
    pub(crate) history: Vec<String>,
    /// The ID that owns each reserved name.
    pub(super) names: BTreeMap<String, String>,
    ids: u64,
    last: i64,
}

impl Model {
    pub(super) fn new(folder: &Path) -> Self {
        Self {
            sandboxes: Vec::new(),
            containers: Vec::new(),
            images: Vec::new(),
            runtime_name: "containerd".to_owned(),
            runtime_version: "1.7.27".to_owned(),
            runtime_ready: true,
            network_ready: true,
            env_base64: false,
            unknown_field: None,
            unknown_sandbox_field: None,
            mountpoint: folder.display().to_string(),
            used_bytes: 1 << 30,
            exec: Box::new(|_, _| Exec::default()),
            pulled_for: Vec::new(),
            history: Vec::new(),
            names: BTreeMap::new(),
            ids: 0,
            last: 0,
        }
    }

    pub(crate) fn is_crio(&self) -> bool {
        self.runtime_name == "cri-o"
    }

    /// Makes the runtime behave like CRI-O 1.37: no configuration in `info`, image IDs without `sha256:`, and the
    /// existing container as the answer for a name that is taken.
    pub(crate) fn become_crio(&mut self) {
        "cri-o".clone_into(&mut self.runtime_name);
        "1.37.0".clone_into(&mut self.runtime_version);
    }

    /// Same as [`Self::become_crio`] for CRI-O 1.27, which lists the image of a container only by a digest of its
    /// repository.
    pub(crate) fn become_old_crio(&mut self) {
        self.become_crio();
        "1.27.8".clone_into(&mut self.runtime_version);
    }

    /// The image with this ID as this runtime lists it for a container: reference and ID. Only newer runtimes fill in the
    /// ID.
    pub(super) fn listed_image(&self, id: &str) -> (String, String) {
        let digest = self.images.iter().find(|image| image.id == id).map(Image::digest);
        match (digest, self.is_crio()) {
            (Some(digest), true) if self.runtime_version.starts_with("1.27.") => {
                (digest.to_owned(), String::new())
            }
            (_, true) => (self.printed_id(id), self.printed_id(id)),
            (_, false) => (self.printed_id(id), String::new()),
        }
    }

    /// The image ID as this runtime prints it.
    pub(super) fn printed_id(&self, id: &str) -> String {
        id.strip_prefix("sha256:").filter(|_| self.is_crio()).unwrap_or(id).to_owned()
    }

    // ---- queries ----

    /// The container with this ID or unique ID prefix.
    pub(crate) fn container(&self, id: &str) -> Option<&Container> {
        let mut found = self.containers.iter().filter(|c| !id.is_empty() && c.id.starts_with(id));
        found.next().filter(|_| found.next().is_none())
    }

    pub(crate) fn container_mut(&mut self, id: &str) -> Option<&mut Container> {
        let id = self.container(id)?.id.clone();
        self.containers.iter_mut().find(|container| container.id == id)
    }

    /// The sandbox with this ID or unique ID prefix.
    pub(crate) fn sandbox(&self, id: &str) -> Option<&Sandbox> {
        let mut found = self.sandboxes.iter().filter(|s| !id.is_empty() && s.id.starts_with(id));
        found.next().filter(|_| found.next().is_none())
    }

    pub(crate) fn sandbox_mut(&mut self, id: &str) -> Option<&mut Sandbox> {
        let id = self.sandbox(id)?.id.clone();
        self.sandboxes.iter_mut().find(|sandbox| sandbox.id == id)
    }

    /// All instances of `what` (a name or `pod/name`), in the order of their creation, without fences.
    pub(crate) fn instances(&self, what: &str) -> Vec<&Container> {
        let mut instances: Vec<_> = self.containers.iter().filter(|c| !c.is_fence() && c.is(what)).collect();
        instances.sort_by_key(|instance| instance.created_at);
        instances
    }

    pub(crate) fn running(&self, what: &str) -> Vec<&Container> {
        self.instances(what).into_iter().filter(|instance| instance.is_running()).collect()
    }

    /// The fences of `what`.
    pub(crate) fn fences(&self, what: &str) -> Vec<&Container> {
        self.containers.iter().filter(|c| c.is_fence() && c.is(what)).collect()
    }

    // ---- events without a call ----

    /// The process of the running `what` exits by itself.
    pub(crate) fn die(&mut self, what: &str, exit_code: i32) {
        let ids: Vec<_> = self.running(what).into_iter().map(|instance| instance.id.clone()).collect();
        for id in ids {
            self.exit(&id, exit_code);
        }
    }

    /// Removes a container without a trace, as if another client had removed it.
    pub(crate) fn vanish(&mut self, id: &str) {
        if let Some(container) = self.container(id).cloned() {
            self.names.remove(&container.reserved);
            self.containers.retain(|other| other.id != container.id);
        }
    }

    /// The process of a container ends.
    pub(crate) fn exit(&mut self, id: &str, exit_code: i32) {
        let at = self.tick();
        self.exit_at(id, at, exit_code);
    }

    fn exit_at(&mut self, id: &str, at: i64, exit_code: i32) {
        if let Some(container) = self.container_mut(id).filter(|container| container.is_running()) {
            container.end(at, exit_code);
            let event = format!("exited {} {exit_code}", container.about());
            self.history.push(event);
        }
    }

    // ---- time ----

    /// Ends the processes whose end time has passed.
    pub(super) fn settle(&mut self) {
        let now = now();
        let mut due: Vec<_> = self.ends().filter(|(at, ..)| *at <= now).collect();
        due.sort();
        for (at, exit_code, id) in due {
            self.last = self.last.max(at);
            self.exit_at(&id, at, exit_code);
        }
    }

    /// The time at which the next process ends by itself.
    pub(super) fn next_end(&self) -> Option<i64> {
        self.ends().map(|(at, ..)| at).min()
    }

    fn ends(&self) -> impl Iterator<Item = (i64, i32, String)> + '_ {
        let running = self.containers.iter().filter(|container| container.is_running());
        running.filter_map(|container| container.ends.map(|(at, code)| (at, code, container.id.clone())))
    }

    /// The present time; strictly increasing.
    pub(super) fn tick(&mut self) -> i64 {
        self.last = now().max(self.last + 1);
        self.last
    }

    /// A unique ID of 64 hexadecimal digits; its first digits are unique too.
    pub(super) fn new_id(&mut self) -> String {
        self.ids += 1;
        super::images::digits(&format!("id {}", self.ids))
    }
}

/// Nanoseconds since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "a runtime has a clock of its own, whatever the test does with its"
)]
pub(super) fn now() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_nanos()).unwrap_or(i64::MAX)
}
