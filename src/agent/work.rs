//! The work on one pod, as the dispatcher knows it: what it begins with, while it runs, and how it ends. Decides nothing.

use tokio::sync::watch;

use crate::agent::announce::Announcement;
use crate::agent::request_source::Key;
use crate::api::group::GroupTask;
use crate::api::pod_ref::PodRef;
use crate::api::request::Request;
use crate::operation::outcome::Withdrawal;

/// The running work on one pod.
pub(super) struct Work {
    pub(super) id: String,
    /// False if a command on the node (`inplace node`) started the operation and died: the request is in no
    /// annotation, so no annotation can withdraw it. `None` while that is unknown.
    pub(super) asked: Option<bool>,
    /// True for a part of a group restart: the operation itself decides what follows when that ends.
    pub(super) in_group: bool,
    pub(super) withdraw: watch::Sender<Option<Withdrawal>>,
}

/// How the work on a pod ended.
pub(super) enum Ended {
    /// A final status was reported.
    Answered,
    /// The request could not start; the message gives the reason.
    NotYet(Box<Request>, Option<GroupTask>, String),
    /// The process is stopping; the next one resumes the operation.
    Paused,
}

/// An operation that begins or is resumed.
pub(super) struct Begin {
    pub(super) id: String,
    /// As in [`Work`].
    pub(super) asked: Option<bool>,
    pub(super) in_group: bool,
    /// What is announced once the operation has really started.
    pub(super) event: Option<Announcement>,
}

impl Begin {
    /// An operation that an earlier process left open. That process has announced its begin.
    pub(super) fn again(id: String, asked: Option<bool>, in_group: bool) -> Self {
        Self { id, asked, in_group, event: None }
    }
}

/// Operations that are resumed when the work on another pod of the same name has ended. With an API server the key
/// of a pod names its uid, so that there is no other pod.
#[derive(Default)]
pub(super) struct Postponed(Vec<(Key, PodRef, Begin)>);

impl Postponed {
    pub(super) fn add(&mut self, key: Key, pod: PodRef, begun: Begin) {
        if key.uid.is_none() && self.0.iter().all(|(_, other, _)| *other != pod) {
            self.0.push((key, pod, begun));
        }
    }

    /// The first operation of this key, which is removed.
    pub(super) fn take(&mut self, key: &Key) -> Option<(Key, PodRef, Begin)> {
        let first = self.0.iter().position(|(of, ..)| of == key)?;
        Some(self.0.remove(first))
    }
}

impl Work {
    pub(super) fn report(&self, withdrawal: Withdrawal) {
        self.withdraw
            .send_if_modified(|reported| reported.is_none().then(|| *reported = Some(withdrawal)).is_some());
    }
}
