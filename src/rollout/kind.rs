//! The kinds of workloads that a rollout can name. All have `spec.selector` and `spec.template`.

use crate::api::in_place_rollout::WorkloadRef;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// As in a manifest.
    pub name: &'static str,
    /// Its group.
    pub group: &'static str,
    /// Its version.
    pub version: &'static str,
    /// As in a path.
    pub plural: &'static str,
}

const fn kind(name: &'static str, group: &'static str, version: &'static str, plural: &'static str) -> Kind {
    Kind { name, group, version, plural }
}

/// All of them.
pub const KINDS: [Kind; 7] = [
    kind("Deployment", "apps", "v1", "deployments"),
    kind("StatefulSet", "apps", "v1", "statefulsets"),
    kind("DaemonSet", "apps", "v1", "daemonsets"),
    REPLICA_SET,
    kind("Job", "batch", "v1", "jobs"),
    kind("GameDeployment", "tkex.tencent.com", "v1alpha1", "gamedeployments"),
    kind("GameStatefulSet", "tkex.tencent.com", "v1alpha1", "gamestatefulsets"),
];

/// What stands between a `Deployment` and its pods.
pub const REPLICA_SET: Kind = kind("ReplicaSet", "apps", "v1", "replicasets");

impl Kind {
    /// The one that a reference means.
    pub fn of(reference: &WorkloadRef) -> Option<Self> {
        let found = KINDS.into_iter().find(|kind| kind.name == reference.kind)?;
        (reference.api_version.is_empty() || reference.api_version == found.api_version()).then_some(found)
    }

    /// Group and version.
    pub fn api_version(&self) -> String {
        format!("{}/{}", self.group, self.version)
    }

    /// True when its pods belong to something in between.
    pub fn is_deployment(&self) -> bool {
        self.name == "Deployment"
    }
}
