//! Simulates the kubelet beside the code under test: it creates the next attempt of a container by its own rules.

use inplace::api::annotation;
use inplace::cri::proto::v1::ContainerConfig;
use tonic::Status;

use super::images::digits;
use super::model::Model;

pub(super) const HASH: &str = "io.kubernetes.container.hash";

impl Model {
    /// Creates the attempt after the newest instance of `what` (a name or `pod/name`), as a kubelet does for a dead
    /// container, with another image if `image` is given. Returns the ID, or the error of the runtime.
    pub(crate) fn kubelet_creates(&mut self, what: &str, image: Option<&str>) -> Result<String, Status> {
        let newest = self.instances(what).last().copied().cloned();
        let newest = newest.unwrap_or_else(|| panic!("no instance of {what} to follow"));
        let mut config = newest.config.clone();
        // Labels that others have added are not in the pod's spec.
        config.labels.remove(annotation::OPERATION);
        for mount in config.mounts.iter_mut().filter(|mount| mount.image.is_some()) {
            mount.host_path.clear();
        }
        if let Some(reference) = image {
            let id = match self.local_image(reference) {
                Some(image) => image.id.clone(),
                None => self.pull(reference)?,
            };
            let spec = config.image.get_or_insert_default();
            spec.image = id;
            reference.clone_into(&mut spec.user_specified_image);
            let hash = digits(&format!("{} {reference}", newest.name()))[..8].to_owned();
            config.annotations.insert(HASH.to_owned(), hash);
        }
        numbered(&mut config, newest.attempt() + 1);
        self.create(&newest.sandbox_id, config, newest.pod_config)
    }

    /// Same as [`Self::kubelet_creates`], and starts the container.
    pub(crate) fn kubelet_restarts(&mut self, what: &str) -> Result<String, Status> {
        let id = self.kubelet_creates(what, None)?;
        self.start(&id).map(|()| id)
    }

    /// Ends the running container and starts the next attempt with another image.
    pub(crate) fn kubelet_swaps(&mut self, what: &str, image: &str) -> Result<String, Status> {
        self.die(what, 143);
        let id = self.kubelet_creates(what, Some(image))?;
        self.start(&id).map(|()| id)
    }
}

/// Sets all fields that differ between attempts.
pub(super) fn numbered(config: &mut ContainerConfig, attempt: u32) {
    let metadata = config.metadata.get_or_insert_default();
    metadata.attempt = attempt;
    config.log_path = format!("{}/{attempt}.log", metadata.name);
    config.annotations.insert(annotation::RESTART_COUNT.to_owned(), attempt.to_string());
}
