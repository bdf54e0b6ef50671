//! One reconciliation of one `ContainerRecreateRequest`: reads its pod, has `recreate_request::decide` decide, and writes the
//! pod and the status, in this order.
//!
//! Must not decide anything. A write whose result is unknown is decided about again with the pod as it is then: the record on
//! the pod says whether it was made.

use std::time::Duration;

use crate::cluster::error::{Class, Error};
use crate::controller::queue::Outcome;
use crate::controller::reconciler::Reconciler;
use crate::controller::recreate_requests::Context;
use crate::controller::recreate_requests::cache::{Key, reference};
use crate::podtask::write::VersionedRef;
use crate::process::clock;
use crate::process::log::chain;
use crate::recreate_request::{Decision, Pod, RecreateRequest, decide, withdraw};

/// When a pod is looked at again whose object exists and is not in the cache: no watch may report its end.
const AGAIN: Duration = Duration::from_secs(60);

impl Reconciler for Context {
    type Key = Key;

    async fn reconcile(&self, key: &Key, _unconfirmed: Vec<VersionedRef>) -> Result<Outcome, Error> {
        if self.cache.is_unreadable(key) {
            return Ok(Outcome::default());
        }
        let object = self.cache.get(key).filter(|object| !object.deleting);
        let withdrawn = self.withdraw_others(key, object.as_deref()).await;
        let skipped = matches!(withdrawn, Ok(true)).then_some(AGAIN);
        let Some(object) = object else {
            return Ok(Outcome { again: skipped, ..outcome(key, withdrawn.map(drop)) });
        };
        let pod = self.server.pod_of(&object).await?;
        let decision = decide(&object, pod.as_ref(), clock::now());
        let applied = self.apply(&object, pod.as_ref(), &decision).await;
        let ended = outcome(key, withdrawn.and(applied));
        let again = decision.again.map(clock::until).into_iter().chain(skipped).min();
        Ok(Outcome { again, ..ended })
    }
}

impl Context {
    /// Withdraws what is left on pods: of objects of this name that are gone, and of this one on another pod than its own.
    /// True if a pod was left alone, because the API server has its object.
    async fn withdraw_others(&self, key: &Key, object: Option<&RecreateRequest>) -> Result<bool, Error> {
        let mut has_skipped = false;
        for pod in self.cache.pods(key) {
            let is_own = |uid: &str| object.is_some_and(|object| object.works_on(uid, &pod.base.name));
            let Some(record) = pod.record.as_ref().filter(|record| !is_own(&record.uid)) else { continue };
            if self.server.works_on(key, &record.uid, &pod.base.name).await? {
                has_skipped = true;
                continue;
            }
            let patch = withdraw(&pod, &record.uid);
            match self.server.patch_pod_of(&key.namespace, &self.cache, &pod, &patch).await {
                Err(error) if error.class() == Class::Gone => {}
                done => done?,
            }
            tracing::info!(
                "pod {}/{}: withdrew what {key}, which works on it no more, has left",
                key.namespace,
                pod.base.name
            );
        }
        Ok(has_skipped)
    }

    async fn apply(
        &self,
        object: &RecreateRequest,
        pod: Option<&Pod>,
        decision: &Decision,
    ) -> Result<(), Error> {
        if let (Some(pod), Some(patch)) = (pod, &decision.patch) {
            self.server.patch_pod_of(&object.namespace, &self.cache, pod, patch).await?;
        }
        if let Some(status) = &decision.status {
            self.server.recreate_status(&self.cache, object, status).await?;
        }
        if let Some(event) = &decision.event {
            self.events.report(reference(object), event).await;
        }
        if decision.delete {
            self.server.delete_recreate_request(object).await?;
        }
        Ok(())
    }
}

/// The outcome for the queue. An object that was changed or deleted since it was read is reconciled again.
fn outcome(key: &Key, done: Result<(), Error>) -> Outcome {
    let Err(error) = done else { return Outcome::default() };
    if matches!(error.class(), Class::Refused | Class::Gone) {
        return Outcome { stale: true, ..Outcome::default() };
    }
    tracing::info!("{key}: {}", chain(&error));
    Outcome { failed: true, ..Outcome::default() }
}
