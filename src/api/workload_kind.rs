//! The kinds of workloads that an `InPlaceRollout` can target, with their names in manifests, in paths of the API server and
//! on the command line. All have `spec.selector` and `spec.template`. Those of other projects need not be installed.

use crate::api::in_place_rollout::WorkloadRef;

/// A kind of workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// The kind, as in a manifest.
    pub name: &'static str,
    /// The API group.
    pub group: &'static str,
    /// The version in the group.
    pub version: &'static str,
    /// The short name on the command line; kubectl has it too for Kubernetes' own kinds.
    pub short: &'static str,
}

const fn kind(name: &'static str, group: &'static str, version: &'static str, short: &'static str) -> Kind {
    Kind { name, group, version, short }
}

/// All kinds. Of two kinds with the same name, a reference without an API version means the first.
pub const KINDS: [Kind; 11] = [
    kind("Deployment", "apps", "v1", "deploy"),
    kind("StatefulSet", "apps", "v1", "sts"),
    kind("DaemonSet", "apps", "v1", "ds"),
    REPLICA_SET,
    kind("Job", "batch", "v1", "job"),
    kind("GameDeployment", "tkex.tencent.com", "v1alpha1", "gdeploy"),
    kind("GameStatefulSet", "tkex.tencent.com", "v1alpha1", "gsts"),
    kind("CloneSet", "apps.kruise.io", "v1alpha1", "clone"),
    kind("StatefulSet", "apps.kruise.io", "v1beta1", "asts"),
    kind("DaemonSet", "apps.kruise.io", "v1alpha1", "ads"),
    kind("Rollout", "argoproj.io", "v1alpha1", "ro"),
];

/// `ReplicaSet`: the owner of a `Deployment`'s pods, owned by the `Deployment`.
pub const REPLICA_SET: Kind = kind("ReplicaSet", "apps", "v1", "rs");

impl Kind {
    /// The kind that `reference` names. `None` if it is unknown, or the reference has another API version.
    pub fn of(reference: &WorkloadRef) -> Option<Self> {
        KINDS.into_iter().find(|kind| {
            let same_version =
                reference.api_version.is_empty() || reference.api_version == kind.api_version();
            kind.name == reference.kind && same_version
        })
    }

    /// Parses the short name, the singular or the plural, each optionally with the group (`deployments.apps`), in upper or
    /// lower case, as kubectl does.
    pub fn read(text: &str) -> Option<Self> {
        let text = text.to_ascii_lowercase();
        let (name, group) =
            text.split_once('.').map_or((text.as_str(), None), |(name, group)| (name, Some(group)));
        KINDS.into_iter().find(|kind| {
            let versioned = format!("{}.{}", kind.version, kind.group);
            let in_group = group.is_none_or(|group| group == kind.group || group == versioned);
            in_group && (name == kind.short || name == kind.singular() || name == kind.plural())
        })
    }

    /// Group and version, as in a manifest: `apps/v1`.
    pub fn api_version(&self) -> String {
        format!("{}/{}", self.group, self.version)
    }

    /// The singular: `deployment`.
    pub fn singular(&self) -> String {
        self.name.to_ascii_lowercase()
    }

    /// The plural, as in a path: `deployments`.
    pub fn plural(&self) -> String {
        format!("{}s", self.singular())
    }

    /// True for `Deployment` and the `Rollout` of Argo Rollouts, whose pods belong to their `ReplicaSet`s.
    pub fn owns_replica_sets(&self) -> bool {
        matches!(self.name, "Deployment" | "Rollout")
    }
}
