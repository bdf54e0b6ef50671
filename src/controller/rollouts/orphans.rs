//! Cleans up pods whose rollout is gone or has ended: a request that has not touched a container yet is withdrawn,
//! and the record of a task that has ended is closed. A running task that has touched a container is left to end. A
//! label without a record in progress is removed.
//!
//! Must not touch a pod of an active rollout.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::cluster::error::{Class, Error};
use crate::controller::disruptions::BudgetClaims;
use crate::controller::pods::patch;
use crate::controller::rollouts::Context;
use crate::controller::rollouts::cache::{Key, TargetPods};
use crate::process::clock;
use crate::process::log::chain;
use crate::rollout::decide::What;
use crate::rollout::orphan::orphan;
use crate::rollout::pod::Pod;

/// Shortest time between two reconciliations while something is left to do.
const PAUSE: Duration = Duration::from_secs(2);

pub(super) async fn run(context: &Context, stop: &CancellationToken) {
    let mut pods = TargetPods::worked_on(&context.server, stop);
    let mut cache = context.cache.clone();
    loop {
        let again =
            if pods.is_current() && cache.is_current() { reconcile(context, &pods).await } else { None };
        tokio::select! {
            () = stop.cancelled() => break,
            () = pods.changed() => {}
            () = cache.changed() => {}
            () = async {
                match again {
                    Some(at) => sleep(clock::until(at).max(PAUSE)).await,
                    None => std::future::pending().await,
                }
            } => {}
        }
    }
}

/// Reconciles all orphans. Returns when to requeue, if at all.
async fn reconcile(context: &Context, pods: &TargetPods) -> Option<Timestamp> {
    let active = context.cache.active();
    let mut again: Option<Timestamp> = None;
    for (namespace, pod) in pods.list() {
        if pod.worked_on.as_ref().is_some_and(|uid| active.contains(uid)) {
            continue;
        }
        let next = match close(context, pods, &namespace, &pod).await {
            Ok(next) => next,
            Err(error) => {
                if !matches!(error.class(), Class::Refused | Class::Gone) {
                    tracing::info!("pod {namespace}/{}: {}", pod.base.name, chain(&error));
                }
                Some(clock::now())
            }
        };
        again = again.into_iter().chain(next).min();
    }
    again
}

async fn close(
    context: &Context,
    pods: &TargetPods,
    namespace: &str,
    pod: &Pod,
) -> Result<Option<Timestamp>, Error> {
    let now = clock::now();
    let (write, again) = orphan(pod, now);
    let Some(write) = write else { return Ok(again) };
    if let Some(record) = pod.record.as_ref().filter(|_| write.what != What::Release) {
        // A rollout that was just created may be missing in the cache: the API server is asked.
        let key = Key { namespace: namespace.to_owned(), name: record.name.clone() };
        if context.server.is_under_way(&key, &record.rollout).await? {
            return Ok(Some(now));
        }
    }
    if let What::End(_, claims) = &write.what
        && !claims.is_empty()
    {
        let allowance = context.disruptions.allowance(namespace).await?;
        let count = |done: Result<(), &Error>| context.metrics.wrote("budget", &done);
        BudgetClaims::new(&context.disruptions, namespace, &allowance, &count)
            .release(claims, &pod.base.name)
            .await?;
    }
    let done = patch(&context.server, namespace, &pods.store, &write.pod, &write.patch).await;
    context.metrics.wrote("pod", &done.as_ref());
    done?;
    tracing::info!(
        "pod {namespace}/{}: closed the task of the rollout {}, which is gone or has ended",
        pod.base.name,
        pod.worked_on.as_deref().unwrap_or_default()
    );
    // A pod whose request was recalled is reconciled once more.
    Ok(Some(now).filter(|_| write.what == What::Recall))
}
