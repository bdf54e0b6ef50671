//! How workloads and `InPlaceRollout`s are written on the command line: as kubectl takes them.
//!
//! The namespace is never part of a name; it comes from `-n` or the kubeconfig's context.

use std::fmt;

use kube::core::ApiResource;

use crate::api::in_place_rollout::WorkloadRef;
use crate::api::workload_kind::Kind;

/// How the API server has a kind.
pub(in crate::cli) fn resource(kind: Kind) -> ApiResource {
    ApiResource {
        group: kind.group.to_owned(),
        version: kind.version.to_owned(),
        api_version: kind.api_version(),
        kind: kind.name.to_owned(),
        plural: kind.plural(),
    }
}

/// A workload. Displays as kubectl prints it: `deployment.apps/web`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct WorkloadName {
    pub(in crate::cli) kind: Kind,
    pub(in crate::cli) name: String,
}

impl WorkloadName {
    /// As a rollout names it.
    pub(super) fn reference(&self) -> WorkloadRef {
        WorkloadRef {
            api_version: self.kind.api_version(),
            kind: self.kind.name.to_owned(),
            name: self.name.clone(),
        }
    }

    /// The workload that a rollout names; `None` for a kind that is not known here.
    pub(super) fn of(reference: &WorkloadRef) -> Option<Self> {
        Some(Self { kind: Kind::of(reference)?, name: reference.name.clone() })
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
