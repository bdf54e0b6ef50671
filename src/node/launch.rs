//! `inplace node run` and `inplace node rm`: starts a whole pod from a manifest, and removes it, without a kubelet.
//!
//! The created objects carry the labels and annotations that a kubelet writes, so that all other programs on the
//! node, including this one, recognize a pod. Afterwards the pod is not managed: nothing restarts a container,
//! rotates a log or cleans up. Must not touch a pod that was not created here.
//!
//! Same as with a kubelet: the masked paths of /proc, seccomp unconfined for containers and the runtime's default
//! for the sandbox. Different from a kubelet: no /dev/termination-log, the runtime's /etc/hosts, the node's
//! resolver, no environment variables for services, and no limits, so the runtime's own cgroup and OOM score.

mod config;
mod expand;
mod files;
mod rm;
mod run;

use std::path::{Path, PathBuf};

use crate::operation::snapshot::Owner;

pub use config::{container_config, sandbox_config};
pub use files::BadFile;
pub use rm::{Removed, RmError, rm};
pub use run::{RunError, Started, StartedContainer, run};

/// The directories of the pods' files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dirs {
    state: PathBuf,
}

impl Dirs {
    /// The directories below `state`; `None` unless it is an absolute path in UTF-8, which the CRI requires.
    pub fn new(state: PathBuf) -> Option<Self> {
        (state.is_absolute() && state.to_str().is_some()).then_some(Self { state })
    }

    /// The state directory.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// The log directory of a pod.
    pub fn logs(&self, namespace: &str, name: &str, uid: &str) -> PathBuf {
        self.state.join("logs").join(format!("{namespace}_{name}_{uid}"))
    }

    /// The directory of a pod's volumes.
    pub fn volumes(&self, uid: &str) -> PathBuf {
        self.state.join("volumes").join(uid)
    }

    /// A symbolic link whose target is the uid of the pod that owns the name. It is created before and removed after
    /// everything else of the pod.
    fn claim(&self, namespace: &str, name: &str) -> PathBuf {
        self.state.join("pods").join(format!("{namespace}_{name}"))
    }
}

/// Describes the owner of a sandbox, and how to remove it.
fn owned_by(owner: Owner) -> &'static str {
    match owner {
        Owner::Kubelet => "the kubelet created it for the API server; delete it there (kubectl delete pod)",
        Owner::KubeletStatic => "the kubelet created it from a file or URL of this node; delete it there",
        Owner::NodeRun => "`inplace node run` created it; remove it with `inplace node rm`",
        Owner::Nobody => {
            "neither `inplace node run` nor a kubelet created it; remove it with the tool that did"
        }
    }
}

#[cfg(test)]
mod tests;
