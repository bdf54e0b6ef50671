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
/// Attempts at one image. After that the image is left to its request.
const MAX_ATTEMPTS: u32 = 3;
/// The pauses between the attempts.
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
    /// It is on the node, or was given up.
    Over,
    /// It is tried again at this time, after this number of failed attempts.
    Again(Instant, u32),
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
            self.tried.retain(|reference, _| named.contains_key(reference));
            let now = Instant::now();
            let Some((reference, pod)) = named.into_iter().find(|(reference, _)| self.is_due(reference, now))
            else {
                self.wait(now).await;
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

    fn is_due(&self, reference: &str, now: Instant) -> bool {
        match self.tried.get(reference) {
            None => true,
            Some(Tried::Over) => false,
            Some(Tried::Again(at, _)) => *at <= now,
        }
    }

    /// Waits for a change of the pods, or until an image is due again.
    async fn wait(&mut self, now: Instant) {
        let due = self.tried.values().filter_map(|tried| match tried {
            Tried::Again(at, _) => Some(*at),
            Tried::Over => None,
        });
        let until = due.min().map_or(BACKOFF.after(MAX_ATTEMPTS), |at| at.saturating_duration_since(now));
        tokio::select! {
            () = self.pods.changed() => {}
            () = tokio::time::sleep(until) => {}
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
                self.tried.insert(reference, Tried::Over);
                return;
            }
            Err(failed) => failed,
        };
        self.count("Failed");
        let before = match self.tried.get(&reference) {
            Some(Tried::Again(_, failures)) => *failures,
            _ => 0,
        };
        tracing::info!(
            %pod,
            image = reference,
            error = failed.message,
            "the image of a later request could not be pulled: its request pulls it"
        );
        let next = if before + 1 < MAX_ATTEMPTS {
            Tried::Again(Instant::now() + BACKOFF.after(before), before + 1)
        } else {
            Tried::Over
        };
        self.tried.insert(reference, next);
    }

    fn count(&self, result: &'static str) {
        self.ended.get_or_create(&ResultLabel { result }).inc();
    }
}

/// The images that pods name, each with one of the pods.
fn named(pods: &[std::sync::Arc<Pod>]) -> BTreeMap<String, PodRef> {
    let mut named = BTreeMap::new();
    for pod in pods.iter().filter(|pod| !pod.is_deleting() && !pod.is_finished()) {
        for reference in KEYS.iter().filter_map(|key| pod.annotation(key)).flat_map(references) {
            named.entry(reference).or_insert_with(|| pod.reference());
        }
    }
    named
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
    fn references_are_separated_by_commas_and_bounded() {
        let found = references(" repo/app:v2,repo/app:v2 , ,not a reference,side@sha256:zz");
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["repo/app:v2"]);
        let many: Vec<_> = (0..20).map(|number| format!("app:{number}")).collect();
        assert_eq!(references(&many.join(",")).len(), MAX_IMAGES);
        let late = format!("{},app:1", ["not a reference"; MAX_IMAGES].join(","));
        assert!(references(&late).is_empty(), "invalid ones count as well");
    }
}
