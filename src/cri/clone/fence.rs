//! Configurations of fences. A fence holds the name of an attempt, so that nothing else can create that attempt. It
//! is either a clone that is never started, or a holder: a container that runs and does nothing.
//!
//! Once a minute a kubelet removes the containers that do not run, including such a clone; it never removes a
//! running container. A holder inherits nothing from its container: no volume, no variable, no privilege, no
//! handler. It exits by itself if no process is left to remove it. Each fence has a log of its own (see
//! [`log_path`]), which is removed together with it.

use std::time::Duration;

use super::Source;
use crate::api::annotation;
use crate::cri::client::seconds;
use crate::cri::log_path;
use crate::cri::proto::v1::{
    Capability, ContainerConfig, ContainerMetadata, ImageSpec, Int64Value, LinuxContainerConfig,
    LinuxContainerResources, LinuxContainerSecurityContext, NamespaceMode, SecurityProfile,
    security_profile::ProfileType,
};
use crate::operation::effect::ImageChoice;

/// The program in the holder's image, and its subcommand that holds a name.
const PROGRAM: [&str; 2] = ["/inplace", "hold"];
/// The user and group ID `nobody`, which own nothing on a node.
const NOBODY: i64 = 65534;
/// The kernel's minimum: a holder only sleeps.
const CPU_SHARES: i64 = 2;
/// If the pod reaches its memory limit, the kernel kills the holder and not the container beside it.
const OOM_SCORE_ADJ: i64 = 1000;
/// The annotations of the container that concern the bookkeeping of its pod. The others concern what the container
/// runs: a kubelet that no longer knows the pod would run a handler that is named there.
const BOOKKEEPING: [&str; 3] =
    [annotation::RESTART_COUNT, annotation::SPEC_HASH, annotation::TERMINATION_GRACE];

impl Source {
    /// The fence that is never started. Everything else equals the replacement, so that its creation also proves
    /// that the replacement can be created.
    pub fn fence(&self, attempt: u32, image: Option<&ImageChoice>, operation_id: &str) -> ContainerConfig {
        let mut config = self.with(attempt, image, operation_id);
        config.log_path = log_path::of_fence(&self.config.log_path, attempt);
        config.labels.insert(annotation::CONTAINER_NAME.to_owned(), annotation::FENCE_NAME.to_owned());
        config
    }

    /// The standby: it equals the replacement, except for its names and its log. If the pod reaches its memory limit, the
    /// kernel ends the standby and not the container beside it.
    pub fn standby(&self, attempt: u32, image: Option<&ImageChoice>, operation_id: &str) -> ContainerConfig {
        let mut config = self.with(attempt, image, operation_id);
        let name = self.name().to_owned();
        config.log_path = log_path::of_standby(&self.config.log_path, attempt);
        config.metadata =
            Some(ContainerMetadata { name: format!("{}-{name}", annotation::STANDBY_NAME), attempt });
        config.labels.insert(annotation::CONTAINER_NAME.to_owned(), annotation::STANDBY_NAME.to_owned());
        config.labels.insert(annotation::STANDBY.to_owned(), name);
        config.linux.get_or_insert_default().resources.get_or_insert_default().oom_score_adj = OOM_SCORE_ADJ;
        config
    }

    /// The fence that runs, from the image with the ID `image_id`, for at most `longest` (whole seconds, rounded
    /// up).
    pub fn holder(
        &self,
        attempt: u32,
        image_id: &str,
        longest: Duration,
        operation_id: &str,
    ) -> ContainerConfig {
        let mut labels = self.config.labels.clone();
        for (label, value) in [
            (annotation::CONTAINER_NAME, annotation::FENCE_NAME),
            (annotation::OPERATION, operation_id),
            (annotation::HOLDER, "true"),
        ] {
            labels.insert(label.to_owned(), value.to_owned());
        }
        let annotations = self.config.annotations.iter();
        ContainerConfig {
            metadata: Some(ContainerMetadata { name: self.name().to_owned(), attempt }),
            image: Some(ImageSpec { image: image_id.to_owned(), ..ImageSpec::default() }),
            command: PROGRAM.map(str::to_owned).to_vec(),
            args: vec![seconds(longest).to_string()],
            labels,
            log_path: log_path::of_fence(&self.config.log_path, attempt),
            annotations: annotations
                .filter(|(key, _)| BOOKKEEPING.contains(&key.as_str()))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
            linux: Some(self.confined()),
            ..ContainerConfig::default()
        }
    }

    /// The namespaces of the pod, without any privilege in them.
    fn confined(&self) -> LinuxContainerConfig {
        let linux = self.config.linux.clone().unwrap_or_default();
        let limits = linux.resources.unwrap_or_default();
        let pods = linux.security_context.unwrap_or_default();
        let mut namespaces = pods.namespace_options.unwrap_or_default();
        namespaces.pid = NamespaceMode::Container.into();
        namespaces.target_id.clear();
        // If the container is unconfined, its node may not support seccomp at all.
        let unconfined = |profile: &SecurityProfile| profile.profile_type() == ProfileType::Unconfined;
        let default =
            || SecurityProfile { profile_type: ProfileType::RuntimeDefault.into(), ..Default::default() };
        let seccomp = pods.seccomp.map(|given| if unconfined(&given) { given } else { default() });
        let capabilities = Capability { drop_capabilities: vec!["ALL".to_owned()], ..Capability::default() };
        LinuxContainerConfig {
            resources: Some(LinuxContainerResources {
                cpu_shares: CPU_SHARES,
                oom_score_adj: OOM_SCORE_ADJ,
                // Do not run on CPUs that are assigned exclusively to other containers.
                cpuset_cpus: limits.cpuset_cpus,
                cpuset_mems: limits.cpuset_mems,
                ..LinuxContainerResources::default()
            }),
            security_context: Some(LinuxContainerSecurityContext {
                run_as_user: Some(Int64Value { value: NOBODY }),
                run_as_group: Some(Int64Value { value: NOBODY }),
                no_new_privs: true,
                readonly_rootfs: true,
                capabilities: Some(capabilities),
                selinux_options: pods.selinux_options,
                seccomp,
                namespace_options: Some(namespaces),
                masked_paths: pods.masked_paths,
                readonly_paths: pods.readonly_paths,
                ..LinuxContainerSecurityContext::default()
            }),
        }
    }
}
