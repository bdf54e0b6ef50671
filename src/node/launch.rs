//! `inplace node run` and `node rm`: a whole pod from a manifest, and its end, without a kubelet.
//!
//! What is made carries the labels and annotations that a kubelet writes, so that everything else on the node (and
//! this program first of all) takes it for a pod. Afterwards nobody looks after it: nothing restarts a container,
//! rotates a log or cleans up behind it. Must not touch a pod that was not made here.
//!
//! As from a kubelet: the masked paths of /proc, seccomp unconfined for containers and the runtime's default for the
//! sandbox. Other than from a kubelet: no /dev/termination-log, the runtime's /etc/hosts, the node's resolver, no
//! environment of services, and no limits, so the runtime's own cgroup and OOM score.

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

/// Where pods have their files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dirs {
    state: PathBuf,
}

impl Dirs {
    /// Below `state`; `None` unless it is an absolute path in UTF-8, which is what a runtime can be told.
    pub fn new(state: PathBuf) -> Option<Self> {
        (state.is_absolute() && state.to_str().is_some()).then_some(Self { state })
    }

    /// The state directory.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// The logs of a pod.
    pub fn logs(&self, namespace: &str, name: &str, uid: &str) -> PathBuf {
        self.state.join("logs").join(format!("{namespace}_{name}_{uid}"))
    }

    /// The volumes of a pod.
    pub fn volumes(&self, uid: &str) -> PathBuf {
        self.state.join("volumes").join(uid)
    }

    /// A link whose target is the uid: who makes it has the pod's name. First to come, last to go.
    fn claim(&self, namespace: &str, name: &str) -> PathBuf {
        self.state.join("pods").join(format!("{namespace}_{name}"))
    }
}

/// The owner in words.
fn owned_by(owner: Owner) -> &'static str {
    match owner {
        Owner::Kubelet => "the kubelet made it for the API server; delete it there (kubectl delete pod)",
        Owner::KubeletStatic => "the kubelet made it from a file or URL of this node; delete it there",
        Owner::NodeRun => "node run made it; remove it with `inplace node rm`",
        Owner::Nobody => "neither node run nor a kubelet made it; remove it with the tool that did",
    }
}

#[cfg(test)]
mod tests;
