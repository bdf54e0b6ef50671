//! What the desk works with: wishes by pod, wherever they come from, and the place where answers go.
//!
//! Only the words; `standalone` and `cluster` say where both are.

use std::collections::BTreeMap;

use tokio::time::Instant;

use crate::agent::announce::Announcement;
use crate::api::request::{InvalidRequest, Request};
use crate::api::status::Status;
use crate::operation::effect::{Class, Verb};
use crate::operation::snapshot::PodRef;

/// Which pod: one of the same name made again is another one, where its uid is known.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) namespace: String,
    pub(super) name: String,
    /// `None`: whichever pod has that name.
    pub(super) uid: Option<String>,
}

impl Key {
    /// The pod, when it is known which.
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

/// What is wished of one pod.
#[derive(Clone, Debug)]
pub(super) struct PodRequest {
    /// Set when the wish names one: another pod of the same name is not meant.
    pub(super) uid: Option<String>,
    /// True while something else is being done to the pod: the wish is not taken up yet.
    pub(super) held: bool,
    /// The request, or why it is none.
    pub(super) request: Result<Request, InvalidRequest>,
}

/// Everything that is wished at one moment.
#[derive(Debug, Default)]
pub(super) struct View {
    /// One wish per pod.
    pub(super) requests: BTreeMap<Key, PodRequest>,
    /// False while nothing is heard from where wishes come from: nothing is begun then, and what is missing may still
    /// be wished.
    pub(super) current: bool,
    /// Places with wishes that cannot be read.
    pub(super) unreadable: usize,
}

/// Where wishes come from.
pub(super) trait RequestSource {
    /// What is wished now; `None` while nothing is known.
    fn look(&mut self) -> Option<View>;

    /// Waits until that may have changed.
    async fn changed(&mut self);

    /// How the pod behind a journal file is named here.
    fn key(&self, pod: &PodRef) -> Key;

    /// Does what else is to be done to the pods that are not `busy`, and says when to come again.
    fn tend(&mut self, _busy: &dyn Fn(&Key) -> bool) -> Option<Instant> {
        None
    }
}

/// Where answers go. No method waits.
pub(super) trait StatusSink: Clone + Send + Sync + 'static {
    /// The last answer, as far as it is known.
    fn reported(&self, key: &Key) -> Option<Status>;

    /// The same, after a moment in which it may become known.
    fn last_status_soon(&self, key: &Key) -> impl Future<Output = Option<Status>> + Send {
        std::future::ready(self.reported(key))
    }

    /// Answers. The newest answer counts.
    fn report(&self, key: &Key, status: &Status);

    /// Whether the request `id`, which the journal holds, was asked for where wishes come from, and not by a command on
    /// the node. `None` while that cannot be told.
    fn asked(&self, key: &Key, id: &str) -> Option<bool>;

    /// Takes in what the journal knows as the last answer, which may never have been told.
    fn recall(&self, _pod: &PodRef, _last: Status) {}

    /// Hears of every effect of an operation: some are writes to where answers go.
    fn count(&self, _verb: Verb, _trouble: Option<Class>) {}

    /// Tells people, beside the answer.
    fn announce(&self, _key: &Key, _announcement: Announcement) {}
}
