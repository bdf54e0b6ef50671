//! The cached parts of a pod's metadata that decide whether the pod belongs to a group restart.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};

use crate::api::group::Member;
use crate::cluster::pod::ENTRY;

/// Labels, controller and creation time.
#[derive(Clone, Debug)]
pub(super) struct Membership {
    labels: BTreeMap<String, String>,
    owner: Option<String>,
    created: Timestamp,
}

/// Reads the parts of the metadata.
pub(super) fn membership(
    labels: BTreeMap<String, String>,
    owners: Vec<OwnerReference>,
    created: Option<Time>,
) -> Membership {
    let owner = owners.into_iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid);
    Membership { labels, owner, created: created.map_or(Timestamp::UNIX_EPOCH, |time| time.0) }
}

impl Membership {
    /// The same for a pod of this namespace.
    pub(super) fn of<'a>(&'a self, namespace: &'a str) -> Member<'a> {
        Member { namespace, labels: &self.labels, owner: self.owner.as_deref(), created: self.created }
    }

    /// The approximate memory use of the texts, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let labels: usize = self.labels.iter().map(|(key, value)| ENTRY + key.len() + value.len()).sum();
        labels + self.owner.as_ref().map_or(0, String::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_labels_count_as_what_they_take() {
        let labels = (0..10_000).map(|number| (format!("k{number}"), String::new())).collect();
        let membership = membership(labels, Vec::new(), None);
        assert!(membership.bytes() > 1_000_000, "{}", membership.bytes());
    }
}
