//! What a decision writes: labels and annotations of one pod at the version that was read, and events. Writes nothing.

use std::collections::BTreeMap;

use crate::api::annotation;
use crate::api::request::Request;
use crate::podtask::pod::Pod;

/// A pod, or another object that is written once, and the version of it that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionedRef {
    /// Name of the object.
    pub name: String,
    /// Uid of the object: another object of the same name is not written.
    pub uid: String,
    /// Resource version that was read.
    pub version: String,
}

/// Labels and annotations to set, or to remove where the value is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodPatch {
    /// Changes of labels.
    pub labels: BTreeMap<String, Option<String>>,
    /// Changes of annotations.
    pub annotations: BTreeMap<String, Option<String>>,
}

/// An event on the object that a controller reconciles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The reason: one word for programs.
    pub reason: &'static str,
    /// One line for people.
    pub message: String,
    /// True for type Warning: a person should check.
    pub warning: bool,
}

impl VersionedRef {
    /// Reference to a pod as it was read.
    pub fn of(pod: &Pod) -> Self {
        Self { name: pod.name.clone(), uid: pod.uid.clone(), version: pod.version.clone() }
    }
}

impl PodPatch {
    /// Writes `request`, in place of the one that the pod has.
    pub fn send(&mut self, request: &Request) {
        self.annotations.insert(annotation::REQUEST.to_owned(), serde_json::to_string(request).ok());
    }

    /// Removes the request `id`, unless the pod has another one.
    pub fn withdraw(&mut self, pod: &Pod, id: &str) {
        if pod.request.as_deref() == Some(id) {
            self.annotations.insert(annotation::REQUEST.to_owned(), None);
        }
    }
}

impl Event {
    pub(crate) fn warning(reason: &'static str, message: String) -> Self {
        Self { reason, message, warning: true }
    }
}
