//! The kinds of workloads that an `InPlaceRollout` can name: as in manifests, in the API server's paths, and as kubectl takes
//! them. All have `spec.selector` and `spec.template`.

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
    /// kubectl's short name.
    pub short: &'static str,
}

const fn kind(name: &'static str, group: &'static str, version: &'static str, short: &'static str) -> Kind {
    Kind { name, group, version, short }
}

/// All of them.
pub const KINDS: [Kind; 7] = [
    kind("Deployment", "apps", "v1", "deploy"),
    kind("StatefulSet", "apps", "v1", "sts"),
    kind("DaemonSet", "apps", "v1", "ds"),
    REPLICA_SET,
    kind("Job", "batch", "v1", "job"),
    kind("GameDeployment", "tkex.tencent.com", "v1alpha1", "gdeploy"),
    kind("GameStatefulSet", "tkex.tencent.com", "v1alpha1", "gsts"),
];

/// What stands between a `Deployment` and its pods.
pub const REPLICA_SET: Kind = kind("ReplicaSet", "apps", "v1", "rs");

impl Kind {
    /// The one that a reference means.
    pub fn of(reference: &WorkloadRef) -> Option<Self> {
        let found = KINDS.into_iter().find(|kind| kind.name == reference.kind)?;
        (reference.api_version.is_empty() || reference.api_version == found.api_version()).then_some(found)
    }

    /// By its short name, its singular or its plural, the latter two also with the group, in any case: as kubectl does.
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

    /// Group and version.
    pub fn api_version(&self) -> String {
        format!("{}/{}", self.group, self.version)
    }

    /// As people write it.
    pub fn singular(&self) -> String {
        self.name.to_ascii_lowercase()
    }

    /// As in a path.
    pub fn plural(&self) -> String {
        format!("{}s", self.singular())
    }

    /// True when its pods belong to something in between.
    pub fn is_deployment(&self) -> bool {
        self.name == "Deployment"
    }
}
