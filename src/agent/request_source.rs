//! The interface between the dispatcher and its surroundings: a source of requests by pod, and a sink for statuses.
//!
//! Types and traits only; `standalone` and `cluster` implement them.

use std::collections::BTreeMap;

use tokio::time::Instant;

use crate::agent::announce::Announcement;
use crate::api::group::GroupTask;
use crate::api::pod_ref::PodRef;
use crate::api::request::{InvalidRequest, Request};
use crate::api::status::Status;
use crate::failure::Class;
use crate::operation::effect::Verb;

/// Identifies a pod. If the uid is known, a pod that is created again under the same name is a different one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) namespace: String,
    pub(super) name: String,
    /// `None`: any pod of that name.
    pub(super) uid: Option<String>,
}

impl Key {
    /// The reference to the pod. `None` if the uid is unknown.
    pub(super) fn pod(&self) -> Option<PodRef> {
        let (namespace, name) = (self.namespace.clone(), self.name.clone());
        Some(PodRef { namespace, name, uid: self.uid.clone()? })
    }
}

impl From<&PodRef> for Key {
    fn from(pod: &PodRef) -> Self {
        Self { namespace: pod.namespace.clone(), name: pod.name.clone(), uid: Some(pod.uid.clone()) }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The request of one pod.
#[derive(Clone, Debug)]
pub(super) struct PodRequest {
    /// The uid that the request names, if it names one: another pod of the same name is not meant.
    pub(super) uid: Option<String>,
    /// True while the pod is being changed otherwise (its gate is being written): the request does not start yet.
    pub(super) held: bool,
    /// The group restart that the request is part of.
    pub(super) group: Option<GroupTask>,
    /// The request, or the reason why it is invalid.
    pub(super) request: Result<Request, InvalidRequest>,
}

/// All requests at one moment.
#[derive(Debug, Default)]
pub(super) struct CurrentRequests {
    /// One request per pod.
    pub(super) requests: BTreeMap<Key, PodRequest>,
    /// False while the source of requests is unreachable: no request starts then, and a missing request may still
    /// exist.
    pub(super) current: bool,
    /// The number of files or other places whose requests cannot be read.
    pub(super) unreadable: usize,
}

pub(super) trait RequestSource {
    /// Returns the current requests. `None` before the source has been read for the first time.
    fn current(&mut self) -> Option<CurrentRequests>;

    /// Waits until the requests may have changed.
    async fn changed(&mut self);

    /// The key that this source uses for the pod of a journal file.
    fn key(&self, pod: &PodRef) -> Key;

    /// Does pending work on pods that are not `busy`, beside operations. Returns the time of the next call, if any.
    fn maintain(&mut self, _busy: &dyn Fn(&Key) -> bool) -> Option<Instant> {
        None
    }
}

/// A sink for statuses. No method waits for a write.
pub(super) trait StatusSink: Clone + Send + Sync + 'static {
    /// The last status of the pod, if it is known.
    fn reported(&self, key: &Key) -> Option<Status>;

    /// The same; an implementation may first wait a short time for the status to become known.
    fn last_status_soon(&self, key: &Key) -> impl Future<Output = Option<Status>> + Send {
        std::future::ready(self.reported(key))
    }

    /// Reports a status. A newer status replaces an older one.
    fn report(&self, key: &Key, status: &Status);

    /// Whether the request `id` of a journal entry came from this source and not from a command on the node. `None`
    /// while that is unknown.
    fn asked(&self, key: &Key, id: &str) -> Option<bool>;

    /// Takes the last status of a pod from the journal, which may never have been written.
    fn recall(&self, _pod: &PodRef, _last: Status) {}

    /// Counts an effect of an operation: some effects are writes to the API server.
    fn count(&self, _verb: Verb, _effect_error: Option<Class>) {}

    /// Announces an event to users, beside the status.
    fn announce(&self, _key: &Key, _announcement: Announcement) {}
}
