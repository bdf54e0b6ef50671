//! Pulls the images that annotations of the node's pods name: one at a time, and only while no operation pulls.
//!
//! Must not delay an operation, and must not report to the API server: a prefetch that fails is only logged and counted,
//! because the request that needs the image pulls it again and reports.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::api::image::ImageRef;
use crate::api::pod_ref::PodRef;
use crate::api::{annotation, workload_key};
use crate::cluster::pod::Pod;
use crate::cluster::pods::NodePods;
use crate::node::Node;
use crate::node::prefetch::{Prefetched, prefetch};
use crate::process::backoff::Backoff;

/// The annotations: each writer has its own.
const KEYS: [&str; 3] = [annotation::PREFETCH, annotation::ROLLOUT_PREFETCH, workload_key::PREFETCH];
/// Entries that one annotation may have; others are ignored.
const MAX_IMAGES: usize = 8;
/// Attempts at one image with each of its pods. After that the image is left to its request.
const MAX_ATTEMPTS: u32 = 3;
/// Pods whose credentials and sandbox are tried for one image.
const MAX_PODS: usize = 3;
/// Attempts at one image in all: [`MAX_ATTEMPTS`] with each of [`MAX_PODS`]. Pods that name it later add none.
const MAX_IN_ALL: u32 = 9;
/// The pauses between the attempts with the same pod.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(30), Duration::from_secs(300));

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// Pulls images ahead of the requests that need them.
#[derive(Debug)]
pub(in crate::agent) struct Prefetches {
    pods: NodePods,
    node: Node,
    ended: Family<ResultLabel, Counter>,
    /// The images that are named now and were tried, by reference.
    tried: BTreeMap<String, Tried>,
}

/// The state of an image that was tried.
#[derive(Debug)]
enum Tried {
    /// It is on the node.
    Present,
    /// The attempts with these pods failed, after `before` attempts with each of them. The next ones are at `again`.
    /// `attempts` includes those with pods that do not name the image any longer.
    Failed { attempts: u32, pods: BTreeSet<PodRef>, before: u32, again: Instant },
}

impl Prefetches {
    pub(in crate::agent) fn new(pods: NodePods, node: Node, registry: &mut Registry) -> Self {
        let ended = Family::default();
        registry.register("prefetches", "Prefetches of images that have ended, by result", ended.clone());
        Self { pods, node, ended, tried: BTreeMap::new() }
    }

    /// Pulls until `stop`.
    pub(in crate::agent) async fn run(mut self, stop: CancellationToken) {
        let _ = stop.run_until_cancelled(self.pull_all()).await;
    }

    async fn pull_all(&mut self) {
        loop {
            let named = named(&self.pods.list());
            self.forget(&named);
            let now = Instant::now();
            let attempts = named.into_iter().filter_map(|(reference, pods)| {
                let (at, pod) = Tried::next(self.tried.get(&reference), &pods, now)?;
                Some((at, reference, pod))
            });
            let next = attempts.min_by_key(|(at, ..)| *at);
            let at = next.as_ref().map(|(at, ..)| *at);
            let Some((_, reference, pod)) = next.filter(|(at, ..)| *at <= now) else {
                self.wait(at.unwrap_or(now + BACKOFF.after(MAX_ATTEMPTS))).await;
                continue;
            };
            let pulls = self.node.pulls.clone();
            pulls.idle().await;
            tokio::select! {
                // An operation comes first, also when both are ready.
                biased;
                () = pulls.preempts(&reference) => self.count("Interrupted"),
                () = withdrawn(self.pods.clone(), &reference) => self.count("Withdrawn"),
                ended = prefetch(&self.node, &pod, &reference) => self.record(reference, &pod, ended),
            }
        }
    }

    /// Removes the images that no pod names any longer, and the pods that do not name their image any longer.
    fn forget(&mut self, named: &BTreeMap<String, Vec<PodRef>>) {
        self.tried.retain(|reference, tried| {
            let naming = named.get(reference);
            if let (Some(naming), Tried::Failed { pods, .. }) = (naming, tried) {
                pods.retain(|pod| naming.contains(pod));
            }
            naming.is_some()
        });
    }

    /// Waits for a change of the pods, or until `at`.
    async fn wait(&mut self, at: Instant) {
        tokio::select! {
            () = self.pods.changed() => {}
            () = tokio::time::sleep_until(at) => {}
        }
    }

    fn record(
        &mut self,
        reference: String,
        pod: &PodRef,
        ended: Result<Prefetched, crate::operation::effect::EffectError>,
    ) {
        let failed = match ended {
            Ok(prefetched) => {
                self.count(if prefetched == Prefetched::Pulled { "Pulled" } else { "Present" });
                tracing::info!(%pod, image = reference, "the image of a later request is on the node");
                self.tried.insert(reference, Tried::Present);
                return;
            }
            Err(failed) => failed,
        };
        self.count("Failed");
        tracing::info!(
            %pod,
            image = reference,
            error = failed.message,
            "the image of a later request could not be pulled: its request pulls it"
        );
        let tried = Tried::failed(self.tried.remove(&reference), pod.clone(), Instant::now());
        self.tried.insert(reference, tried);
    }

    fn count(&self, result: &'static str) {
        self.ended.get_or_create(&ResultLabel { result }).inc();
    }
}

impl Tried {
    /// When the next attempt at the image is due, and with which of `pods`; `None` if it is on the node or was given up.
    /// After a failure another pod is tried at once: the credentials or the sandbox may be the cause.
    fn next(tried: Option<&Self>, pods: &[PodRef], now: Instant) -> Option<(Instant, PodRef)> {
        let first = pods.first()?;
        let (failed, before, again) = match tried {
            None => return Some((now, first.clone())),
            Some(Self::Present | Self::Failed { attempts: MAX_IN_ALL.., .. }) => return None,
            Some(Self::Failed { pods, before, again, .. }) => (pods, *before, *again),
        };
        match pods.iter().find(|pod| !failed.contains(*pod)) {
            Some(pod) => Some((now, pod.clone())),
            None => (before + 1 < MAX_ATTEMPTS).then(|| (again.max(now), first.clone())),
        }
    }

    /// The state after an attempt with `pod` that failed `now`.
    fn failed(tried: Option<Self>, pod: PodRef, now: Instant) -> Self {
        let (attempts, mut pods, mut before) = match tried {
            Some(Self::Failed { attempts, pods, before, .. }) => (attempts, pods, before),
            _ => (0, BTreeSet::new(), 0),
        };
        if pods.contains(&pod) {
            (pods, before) = (BTreeSet::new(), before + 1);
        }
        pods.insert(pod);
        Self::Failed { attempts: attempts + 1, pods, before, again: now + BACKOFF.after(before) }
    }
}

/// The images that pods name, each with at most [`MAX_PODS`] of the pods, if possible of different namespaces.
fn named(pods: &[std::sync::Arc<Pod>]) -> BTreeMap<String, Vec<PodRef>> {
    let mut named: BTreeMap<String, Vec<PodRef>> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| !pod.is_deleting() && !pod.is_finished()) {
        let pod_ref = pod.reference();
        for reference in KEYS.iter().filter_map(|key| pod.annotation(key)).flat_map(references) {
            add(named.entry(reference).or_default(), &pod_ref);
        }
    }
    named
}

/// Adds a pod of a new namespace at the front, any other one at the end.
fn add(pods: &mut Vec<PodRef>, pod: &PodRef) {
    let is_new = pods.iter().all(|other| other.namespace != pod.namespace);
    if is_new || pods.len() < MAX_PODS && !pods.contains(pod) {
        pods.insert(if is_new { 0 } else { pods.len() }, pod.clone());
        pods.truncate(MAX_PODS);
    }
}

/// The references in the value of the annotation; invalid ones are ignored. Whoever may change a pod writes it, and it is
/// read at each change of any pod: no more of it is parsed than counts.
fn references(text: &str) -> BTreeSet<String> {
    let valid = |part: &str| ImageRef::parse(part).ok().map(|image| image.to_string());
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.take(MAX_IMAGES).filter_map(valid).collect()
}

/// Returns once no pod names `reference`.
async fn withdrawn(mut pods: NodePods, reference: &str) {
    while named(&pods.list()).contains_key(reference) {
        pods.changed().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_pods_of_an_image_are_tried_first_of_different_namespaces() {
        let mut pods = Vec::new();
        for name in ["a/1", "a/2", "a/2", "b/1", "a/3", "c/1", "b/2"] {
            let (namespace, name) = name.split_once('/').unwrap();
            add(&mut pods, &PodRef { namespace: namespace.into(), name: name.into(), uid: name.into() });
        }
        let pods: Vec<_> = pods.iter().map(ToString::to_string).collect();
        assert_eq!(pods, ["c/1", "b/1", "a/1"]);
    }

    /// How often an image whose pulls fail is tried if these pods name it, one list after the other.
    fn attempts(lists: impl IntoIterator<Item = Vec<PodRef>>) -> usize {
        let mut tried: Option<Tried> = None;
        let (now, mut attempts) = (Instant::now(), 0);
        for pods in lists {
            if let Some((at, pod)) = Tried::next(tried.as_ref(), &pods, now) {
                tried = Some(Tried::failed(tried.take(), pod, at));
                attempts += 1;
            }
        }
        attempts
    }

    #[test]
    fn an_image_that_fails_is_given_up_however_many_pods_name_it() {
        let pod = |uid: usize| PodRef { namespace: "a".into(), name: "web".into(), uid: uid.to_string() };
        assert_eq!(attempts(vec![vec![pod(0)]; 20]), 3);
        assert_eq!(attempts(vec![vec![pod(0), pod(1), pod(2)]; 20]), 9);
        assert_eq!(attempts((0..20).map(|uid| vec![pod(uid)])), 9, "each time another pod");
    }

    #[test]
    fn references_are_separated_by_commas_and_bounded() {
        let found = references(" repo/app:v2,repo/app:v2 , ,not a reference,side@sha256:zz");
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["repo/app:v2"]);
        let many: Vec<_> = (0..20).map(|number| format!("app:{number}")).collect();
        assert_eq!(references(&many.join(",")).len(), MAX_IMAGES);
        let late = format!("{},app:1", ["not a reference"; MAX_IMAGES].join(","));
        assert!(references(&late).is_empty(), "invalid ones count as well");
    }
}
