//! Reads the requests in the annotations of the node's pods from the watch.
//!
//! The request of a pod that is being deleted is ignored. The request of a finished pod is not: its author waits
//! for a status, which is a refusal.

use tokio::time::Instant;

use crate::agent::cluster::answers::Answers;
use crate::agent::cluster::gates::Gates;
use crate::agent::cluster::metrics::Writes;
use crate::agent::request_source::{CurrentRequests, Key, PodRequest, RequestSource};
use crate::api::pod_ref::PodRef;
use crate::api::request::Request;
use crate::cluster::pod::Pod;
use crate::cluster::pods::NodePods;
use crate::node::journal::Journal;

/// The request source of an agent in a cluster: the cached pods of the node.
#[derive(Debug)]
pub(in crate::agent) struct Watched {
    pods: NodePods,
    answers: Answers,
    gates: Gates,
}

impl Watched {
    pub(in crate::agent) fn new(pods: NodePods, answers: Answers, journal: Journal, writes: Writes) -> Self {
        let gates = Gates::new(pods.clone(), journal, writes, answers.permits());
        Self { pods, answers, gates }
    }

    fn pod_request(&self, pod: &Pod) -> Option<(Key, PodRequest)> {
        let request = Request::parse(pod.request()).transpose()?;
        if pod.is_deleting() {
            return None;
        }
        let reference = pod.reference();
        let held = self.gates.is_under_way(&reference);
        Some((Key::from(&reference), PodRequest { uid: None, held, request }))
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
        }
    }

    fn key(&self, pod: &PodRef) -> Key {
        Key::from(pod)
    }

    fn maintain(&mut self, busy: &dyn Fn(&Key) -> bool) -> Option<Instant> {
        self.gates.maintain(busy)
    }
}
