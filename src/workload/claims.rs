//! Decides about the volume claims of a `GameStatefulSet` that exist: who owns them, which decides when the garbage
//! collector deletes them, and whether their storage request grows. Claims of other users are left alone. Writes nothing.
//!
//! | `whenDeleted` | `whenScaled` | owners of a claim |
//! |---|---|---|
//! | Retain | Retain | none |
//! | Delete | Retain | the set |
//! | Retain | Delete | its pod, while the pod is removed by a scale-in |
//! | Delete | Delete | the set, but its pod while the pod is removed by a scale-in |

use std::collections::BTreeMap;

use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::api::game_stateful_set::ClaimPolicy;
use crate::api::pod_template::ClaimTemplate;
use crate::api::quantity::Quantity;
use crate::podtask::pod::Pod;
use crate::podtask::write::VersionedRef;
use crate::workload::spec::{StatefulSet, WorkloadSpec};

/// When the storage class of a claim that could not grow is read again. Storage classes are not watched.
pub const READ_CLASS_AGAIN: SignedDuration = SignedDuration::from_secs(60);

/// A volume claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// The uid and the version that were read.
    pub uid: String,
    /// The resource version that was read.
    pub version: String,
    /// True when it is being deleted: a pod that uses it is never scheduled.
    pub terminating: bool,
    /// Labels of the claim.
    pub labels: BTreeMap<String, String>,
    /// The uid of its controller.
    pub controller: Option<String>,
    /// All its owners.
    pub owners: Vec<ClaimOwner>,
    /// True when a volume is bound to it. The API server refuses to change the request of another one.
    pub bound: bool,
    /// The requested storage.
    pub storage: Option<String>,
    /// Its storage class.
    pub class: Option<String>,
}

/// An owner of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimOwner {
    /// True for a pod.
    pub is_pod: bool,
    /// Name of the owner.
    pub name: String,
    /// Uid of the owner.
    pub uid: String,
}

/// Volume claims by name.
pub type Claims = BTreeMap<String, Claim>;

/// A storage class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorageClass {
    /// It was read.
    Read {
        /// Whether its volumes can be expanded (`allowVolumeExpansion`).
        expands: bool,
    },
    /// It does not exist.
    Absent,
    /// It could not be read; the text is the error.
    Unread(String),
}

/// Storage classes by name.
pub type StorageClasses = BTreeMap<String, StorageClass>;

/// Owners to add to a claim and to remove from it. All others stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerChange {
    /// Owner references to add.
    pub add: Vec<Value>,
    /// Uids of owners to remove.
    pub remove: Vec<String>,
}

impl Claim {
    /// The reference for a write.
    pub fn at(&self, name: &str) -> VersionedRef {
        VersionedRef { name: name.to_owned(), uid: self.uid.clone(), version: self.version.clone() }
    }

    /// True for a claim of this set, by the labels that the set gives to its claims. Another one may have been created
    /// by a user under the same name; only a pod uses it.
    pub fn is_of(&self, spec: &WorkloadSpec) -> bool {
        let mut given = spec.selector.match_labels.iter().flatten().peekable();
        given.peek().is_some()
            && given.all(|(key, value)| self.labels.get(key) == Some(value))
            && self.controller.as_ref().is_none_or(|uid| *uid == spec.uid)
    }

    /// True when an earlier pod of this name owns it: the garbage collector is about to delete it.
    pub fn is_owned_by_earlier_pod(&self, pod: &str, uid: Option<&str>) -> bool {
        self.owners.iter().any(|owner| owner.is_pod && owner.name == pod && Some(owner.uid.as_str()) != uid)
    }

    /// The change of its owners that the policy asks for; `None` if they are right, or if the claim is not the set's.
    pub fn owner_change(
        &self,
        spec: &WorkloadSpec,
        set: &StatefulSet,
        pod: &Pod,
        scaled_in: bool,
    ) -> Option<OwnerChange> {
        if self.terminating || !self.is_of(spec) {
            return None;
        }
        let by_pod = set.retention.when_scaled == ClaimPolicy::Delete && scaled_in;
        let by_set = set.retention.when_deleted == ClaimPolicy::Delete && !by_pod;
        let references = [
            (by_set, "tkex.tencent.com/v1alpha1", spec.kind_name(), &spec.name, &spec.uid),
            (by_pod, "v1", "Pod", &pod.name, &pod.uid),
        ];
        let mut change = OwnerChange::default();
        for (wanted, api_version, kind, name, uid) in references {
            let there = self.owners.iter().any(|owner| owner.uid == *uid);
            if wanted && !there {
                change.add.push(json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": uid}));
            }
            if !wanted && there {
                change.remove.push(uid.clone());
            }
        }
        (change != OwnerChange::default()).then_some(change)
    }

    /// The storage request that the template asks for, if it is larger than that of this claim.
    fn wanted_storage(&self, template: &ClaimTemplate) -> Option<String> {
        let wanted = storage(template)?;
        let now = Quantity::parse(self.storage.as_deref()?)?;
        let text = wanted.as_str().map_or_else(|| wanted.to_string(), str::to_owned);
        Quantity::read(wanted).is_some_and(|wanted| wanted > now).then_some(text)
    }

    /// The name of the storage class that decides whether this claim can be expanded, if it is to be.
    pub fn class_to_read(&self, template: &ClaimTemplate) -> Option<&str> {
        self.wanted_storage(template).and(self.class.as_deref())
    }

    /// The larger storage request that this claim gets, if it is to grow; an error if it cannot. A claim without a volume
    /// waits for one.
    ///
    /// # Errors
    /// The sentence says why, and what to do.
    pub fn growth(
        &self,
        name: &str,
        spec: &WorkloadSpec,
        template: &ClaimTemplate,
        classes: &StorageClasses,
    ) -> Result<Option<String>, String> {
        let Some(wanted) = self.wanted_storage(template) else { return Ok(None) };
        let no = |why: String| {
            Err(format!(
                "claim {name} stays at {} and not {wanted}: {why}",
                self.storage.as_deref().unwrap_or_default()
            ))
        };
        if !self.is_of(spec) {
            return no("it does not have the labels of spec.selector.matchLabels, so it is not a claim of this set; \
                 change it yourself"
                .to_owned());
        }
        if !self.bound || self.terminating {
            return Ok(None);
        }
        let Some(class) = self.class.as_deref().filter(|class| !class.is_empty()) else {
            return no("it has no storage class, so its volume cannot be expanded".to_owned());
        };
        match classes.get(class) {
            Some(StorageClass::Read { expands: true }) => Ok(Some(wanted)),
            Some(StorageClass::Read { expands: false }) => no(format!(
                "its storage class {class} does not allow expansion: set allowVolumeExpansion there if its driver can expand volumes"
            )),
            Some(StorageClass::Absent) => no(format!("its storage class {class} does not exist")),
            Some(StorageClass::Unread(error)) => {
                no(format!("its storage class {class} could not be read: {error}"))
            }
            // It is read before the next decision.
            None => Ok(None),
        }
    }
}

/// The storage request of a claim template.
fn storage(template: &ClaimTemplate) -> Option<&Value> {
    template.0.pointer("/spec/resources/requests/storage")
}

/// Why the claim templates cannot be changed from `old` to `new`, if so. Only storage requests can grow.
pub fn template_problems(old: &[ClaimTemplate], new: &[ClaimTemplate]) -> Vec<String> {
    let mut problems = Vec::new();
    let without_storage = |template: &ClaimTemplate| {
        let mut rest = template.0.clone();
        if let Some(requests) = rest.pointer_mut("/spec/resources/requests").and_then(Value::as_object_mut) {
            requests.remove("storage");
        }
        rest
    };
    let same = old.len() == new.len()
        && old.iter().zip(new).all(|(old, new)| without_storage(old) == without_storage(new));
    if !same {
        return vec![
            "spec.volumeClaimTemplates: only storage requests can be changed, and only to larger ones: for any other \
             change delete the workload with --cascade=orphan and create it again"
                .to_owned(),
        ];
    }
    for (at, (old, new)) in old.iter().zip(new).enumerate() {
        let field = format!("spec.volumeClaimTemplates[{at}].spec.resources.requests.storage");
        match (storage(old).and_then(Quantity::read), storage(new).and_then(Quantity::read)) {
            _ if storage(old) == storage(new) => {}
            (Some(old), Some(new)) if new >= old => {}
            (Some(_), Some(_)) => {
                problems.push(format!("{field}: cannot become smaller: volumes do not shrink"));
            }
            _ => problems.push(format!("{field}: is not a quantity, or was none")),
        }
    }
    problems
}

#[cfg(test)]
mod tests;
