//! Parses the names of workloads and `InPlaceRollout`s on the command line, in kubectl's notation.
//! The namespace is never part of a name; it comes from `-n` or from the kubeconfig's context.

use std::fmt;

use kube::core::ApiResource;

use crate::api::in_place_rollout::{InPlaceRollout, WorkloadRef};
use crate::api::workload_kind::Kind;
use crate::cli::form::HasName;

/// The API resource of a kind.
pub(in crate::cli) fn resource(kind: Kind) -> ApiResource {
    ApiResource {
        group: kind.group.to_owned(),
        version: kind.version.to_owned(),
        api_version: kind.api_version(),
        kind: kind.name.to_owned(),
        plural: kind.plural(),
    }
}

/// The name of a workload. `Display` is kubectl's form: `deployment.apps/web`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct WorkloadName {
    pub(in crate::cli) kind: Kind,
    pub(in crate::cli) name: String,
}

impl WorkloadName {
    /// The reference in a rollout's spec.
    pub(super) fn reference(&self) -> WorkloadRef {
        WorkloadRef {
            api_version: self.kind.api_version(),
            kind: self.kind.name.to_owned(),
            name: self.name.clone(),
        }
    }

    /// The workload that a rollout refers to; `None` if this program does not support the kind.
    pub(super) fn of(reference: &WorkloadRef) -> Option<Self> {
        Some(Self { kind: Kind::of(reference)?, name: reference.name.clone() })
    }
}

impl fmt::Display for WorkloadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}/{}", self.kind.singular(), self.kind.group, self.name)
    }
}

/// The name of an `InPlaceRollout`. `Display` is kubectl's form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct RolloutName(pub(in crate::cli) String);

impl RolloutName {
    /// Parses `ipr/NAME` or `ipr NAME`; `None` when the words name something else.
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

impl HasName for InPlaceRollout {
    fn full_name(&self) -> String {
        RolloutName(self.metadata.name.clone().unwrap_or_default()).to_string()
    }
}

/// True for an RFC 1123 subdomain, the syntax of most object names.
pub(in crate::cli) fn is_name(name: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=253).contains(&name.len())
        && name.starts_with(edge)
        && name.ends_with(edge)
        && name.chars().all(|c| edge(c) || c == '-' || c == '.')
}
