//! Reads the requests in the annotations of the node's pods from the watch.
//!
//! The request of a pod that is being deleted is ignored. The request of a finished pod is not: its author waits
//! for a status, which is a refusal. A group restart in progress that has not ended on the pod comes before the request in
//! the annotation.

use std::sync::Arc;

use tokio::time::Instant;

use crate::agent::cluster::answers::Answers;
use crate::agent::cluster::gates::Gates;
use crate::agent::cluster::metrics::Writes;
use crate::agent::request_source::{CurrentRequests, Key, PodRequest, RequestSource, StatusSink as _};
use crate::api::annotation;
use crate::api::group::{GroupPhase, GroupTask, epoch};
use crate::api::pod_ref::PodRef;
use crate::api::request::{InvalidRequest, Request};
use crate::cluster::groups::{self, Group, GroupRestarts};
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

    /// What the pod is asked for, with these group restarts in progress.
    fn pod_request(&self, groups: &[Arc<Group>], pod: &Pod) -> Option<(Key, PodRequest)> {
        if pod.is_deleting() {
            return None;
        }
        let reference = pod.reference();
        let key = Key::from(&reference);
        let annotated = Request::parse(pod.request()).transpose();
        let is_under_way = || self.gates.is_under_way(&reference);
        if let Some((phase, task, request)) = self.in_group(groups, &key, pod, annotated.as_ref()) {
            let held = phase != GroupPhase::Prepare || is_under_way();
            return Some((key, PodRequest { uid: None, held, group: Some(task), request: Ok(request) }));
        }
        let request = annotated?;
        // Refused now, it would replace the status of a group restart that has ended on the pod, which would begin again.
        let is_preparing = |group: &Arc<Group>| group.phase == GroupPhase::Prepare && group.has(pod.member());
        if request.is_err() && groups.iter().any(is_preparing) {
            return None;
        }
        Some((key, PodRequest { uid: None, held: is_under_way(), group: None, request }))
    }

    /// What the pod is asked for by a group restart that has not ended on it.
    fn in_group(
        &self,
        groups: &[Arc<Group>],
        key: &Key,
        pod: &Pod,
        annotated: Option<&Result<Request, InvalidRequest>>,
    ) -> Option<(GroupPhase, GroupTask, Request)> {
        let own: Vec<_> = groups.iter().map(Arc::as_ref).filter(|group| group.has(pod.member())).collect();
        // Most pods are in no group: their status is not read.
        if own.is_empty() || pod.is_finished() {
            return None;
        }
        let reported = self.answers.reported(key);
        let first = groups::first(own, reported.as_ref(), epoch(pod.annotation(annotation::GROUP_EPOCH)))?;
        let annotated = annotated.and_then(|request| request.as_ref().ok());
        let ended = annotated.zip(reported.as_ref()).filter(|(one, status)| status.has_ended(&one.id)).map(
            |(one, status)| GroupTask {
                ended_request: one.id.clone(),
                ended_phase: status.ended_phase(&one.id),
                ..first.task.clone()
            },
        );
        let task = ended.unwrap_or_else(|| first.task.clone());
        Some((first.phase, task, first.request.clone()))
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
        let groups = self.groups.in_progress();
        let requests = self.pods.list().iter().filter_map(|pod| self.pod_request(&groups, pod)).collect();
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
