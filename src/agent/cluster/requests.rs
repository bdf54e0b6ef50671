//! Reads the requests in the annotations of the node's pods from the watch.
//!
//! The request of a pod that is being deleted is ignored. The request of a finished pod is not: its author waits
//! for a status, which is a refusal. A group restart in progress that has not ended on the pod comes before the request in
//! the annotation.

use tokio::time::Instant;

use crate::agent::cluster::answers::Answers;
use crate::agent::cluster::gates::Gates;
use crate::agent::cluster::metrics::Writes;
use crate::agent::request_source::{CurrentRequests, Key, PodRequest, RequestSource, StatusSink as _};
use crate::api::group::{GroupPhase, GroupTask};
use crate::api::pod_ref::PodRef;
use crate::api::request::Request;
use crate::cluster::groups::GroupRestarts;
use crate::cluster::pod::Pod;
use crate::cluster::pods::NodePods;
use crate::node::journal::Journal;

/// The request source of an agent in a cluster: the cached pods of the node.
#[derive(Debug)]
pub(in crate::agent) struct Watched {
    pods: NodePods,
    answers: Answers,
    gates: Gates,
    groups: GroupRestarts,
}

impl Watched {
    pub(in crate::agent) fn new(
        pods: NodePods,
        answers: Answers,
        groups: GroupRestarts,
        journal: Journal,
        writes: Writes,
    ) -> Self {
        let gates = Gates::new(pods.clone(), journal, writes, answers.permits());
        Self { pods, answers, gates, groups }
    }

    fn pod_request(&self, pod: &Pod) -> Option<(Key, PodRequest)> {
        if pod.is_deleting() {
            return None;
        }
        let key = Key::from(&pod.reference());
        let annotated = Request::parse(pod.request()).transpose();
        let reported = self.answers.reported(&key);
        let asked = self.groups.request_for(pod.member(), reported.as_ref());
        if let Some(asked) = asked.filter(|_| !pod.is_finished()) {
            let annotated = annotated.as_ref().and_then(|request| request.as_ref().ok());
            let ended = annotated.filter(|one| reported.is_some_and(|status| status.has_ended(&one.id)));
            let ended_request = ended.map(|one| one.id.clone()).unwrap_or_default();
            let held = asked.phase != GroupPhase::Prepare || self.gates.is_under_way(&pod.reference());
            let group = Some(GroupTask { ended_request, ..asked.task });
            return Some((key, PodRequest { uid: None, held, group, request: Ok(asked.request) }));
        }
        let request = annotated?;
        let held = self.gates.is_under_way(&pod.reference());
        Some((key, PodRequest { uid: None, held, group: None, request }))
    }
}

impl RequestSource for Watched {
    fn current(&mut self) -> Option<CurrentRequests> {
        if !self.pods.has_synced() {
            return None;
        }
        // Check first whether the cache is current: what is listed after the check is at least as new.
        let current = self.pods.is_current();
        self.answers.settle();
        let requests = self.pods.list().iter().filter_map(|pod| self.pod_request(pod)).collect();
        Some(CurrentRequests { requests, current, unreadable: 0 })
    }

    async fn changed(&mut self) {
        tokio::select! {
            () = self.pods.changed() => {}
            () = self.gates.changed() => {}
            () = self.groups.changed() => {}
        }
    }

    fn key(&self, pod: &PodRef) -> Key {
        Key::from(pod)
    }

    fn maintain(&mut self, busy: &dyn Fn(&Key) -> bool) -> Option<Instant> {
        self.gates.maintain(busy)
    }
}
