//! How workloads and `InPlaceRollout`s are written on the command line: as kubectl takes them.
//!
//! The namespace is never part of a name; it comes from `-n` or the kubeconfig's context.

use std::fmt;

use kube::core::ApiResource;

use crate::api::in_place_rollout::WorkloadRef;

/// A kind whose pods an `InPlaceRollout` can work on.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::cli) struct Kind {
    /// As in manifests.
    name: &'static str,
    group: &'static str,
    version: &'static str,
    short: &'static str,
}

/// All of them. Plurals are the lower-case kind and an `s`.
const KINDS: [Kind; 7] = [
    Kind { name: "Deployment", group: "apps", version: "v1", short: "deploy" },
    Kind { name: "StatefulSet", group: "apps", version: "v1", short: "sts" },
    Kind { name: "DaemonSet", group: "apps", version: "v1", short: "ds" },
    Kind { name: "ReplicaSet", group: "apps", version: "v1", short: "rs" },
    Kind { name: "Job", group: "batch", version: "v1", short: "job" },
    Kind { name: "GameDeployment", group: "tkex.tencent.com", version: "v1alpha1", short: "gdeploy" },
    Kind { name: "GameStatefulSet", group: "tkex.tencent.com", version: "v1alpha1", short: "gsts" },
];

impl Kind {
    /// By its short name, its singular or its plural, the latter two also with the group.
    pub(in crate::cli) fn read(text: &str) -> Option<&'static Self> {
        let text = text.to_ascii_lowercase();
        let (name, group) =
            text.split_once('.').map_or((text.as_str(), None), |(name, group)| (name, Some(group)));
        KINDS.iter().find(|kind| {
            let versioned = format!("{}.{}", kind.version, kind.group);
            let in_group = group.is_none_or(|group| group == kind.group || group == versioned);
            let singular = kind.singular();
            in_group && (name == kind.short || name == singular || name.strip_suffix('s') == Some(&singular))
        })
    }

    fn singular(&self) -> String {
        self.name.to_ascii_lowercase()
    }

    /// How the API server has it.
    pub(in crate::cli) fn resource(&self) -> ApiResource {
        ApiResource {
            group: self.group.to_owned(),
            version: self.version.to_owned(),
            api_version: format!("{}/{}", self.group, self.version),
            kind: self.name.to_owned(),
            plural: format!("{}s", self.singular()),
        }
    }
}

/// A workload. Displays as kubectl prints it: `deployment.apps/web`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct WorkloadName {
    pub(in crate::cli) kind: &'static Kind,
    pub(in crate::cli) name: String,
}

impl WorkloadName {
    /// As a rollout names it.
    pub(super) fn reference(&self) -> WorkloadRef {
        WorkloadRef {
            api_version: self.kind.resource().api_version,
            kind: self.kind.name.to_owned(),
            name: self.name.clone(),
        }
    }

    /// The workload that a rollout names; `None` for a kind that is not known here.
    pub(super) fn of(reference: &WorkloadRef) -> Option<Self> {
        let kind = KINDS.iter().find(|kind| kind.name == reference.kind)?;
        Some(Self { kind, name: reference.name.clone() })
    }
}

impl fmt::Display for WorkloadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}/{}", self.kind.singular(), self.kind.group, self.name)
    }
}

/// The name of an `InPlaceRollout`. Displays as kubectl prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct RolloutName(pub(in crate::cli) String);

impl RolloutName {
    /// `ipr/NAME` or `ipr NAME`; `None` when it is something else that is named.
    pub(in crate::cli) fn read(words: &[String]) -> Option<Result<Self, String>> {
        let (kind, name) = match words {
            [one] => one.split_once('/')?,
            [kind, name] => (kind.as_str(), name.as_str()),
            _ => return None,
        };
        let kind = kind.to_ascii_lowercase();
        let kind = kind.strip_suffix(".inplace.dev").unwrap_or(&kind);
        if !matches!(kind, "ipr" | "inplacerollout" | "inplacerollouts") {
            return None;
        }
        let named = is_name(name).then(|| Self(name.to_owned()));
        Some(named.ok_or_else(|| format!("`{name}` is not an InPlaceRollout's name: write ipr/NAME")))
    }
}

impl fmt::Display for RolloutName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "inplacerollout.inplace.dev/{}", self.0)
    }
}

/// RFC 1123 subdomain, as names of most objects are.
pub(in crate::cli) fn is_name(name: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=253).contains(&name.len())
        && name.starts_with(edge)
        && name.ends_with(edge)
        && name.chars().all(|c| edge(c) || c == '-' || c == '.')
}
