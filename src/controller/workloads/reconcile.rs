//! One reconciliation of one workload: reads unconfirmed pods, adopts and releases objects, collects the input,
//! has `workload::decide` decide, applies the decision and writes the status.
//!
//! Must not decide anything itself: `workload::adoption` and `workload::decide` do.

use jiff::Timestamp;
use serde_json::Value;
use tokio::time::Instant;

use crate::cluster::error::{Class, Error};
use crate::controller::queue::Outcome;
use crate::controller::workloads::Context;
use crate::controller::workloads::applier::Applier;
use crate::controller::workloads::cache::{Key, Kind, SeenPod, Workload};
use crate::controller::workloads::revisions::{History, history, report_misfits};
use crate::podtask::write::PodRef;
use crate::process::clock;
use crate::process::log::chain;
use crate::workload::adoption::Claim;
use crate::workload::decide::{Decision, decide};
use crate::workload::input::Seen;
use crate::workload::new_pod;
use crate::workload::report::Report;

/// Reconciles `key` once. `unconfirmed` are pods whose last write has no confirmed result.
pub(super) async fn reconcile(context: &Context, key: &Key, unconfirmed: Vec<PodRef>) -> Outcome {
    let began = Instant::now();
    let outcome = match settle(context, key, unconfirmed).await {
        Some(outcome) => outcome,
        None => match context.known.get(key) {
            Some(workload) => bring_about(context, key, &workload).await,
            // It is gone, or cannot be decoded.
            None => Outcome::default(),
        },
    };
    context.metrics.looked(key.kind, began.elapsed().as_secs_f64());
    outcome
}

/// Reads the pods whose last write has no confirmed result. Returns an outcome if one cannot be read.
async fn settle(context: &Context, key: &Key, unconfirmed: Vec<PodRef>) -> Option<Outcome> {
    let mut left = Vec::new();
    for pod in unconfirmed {
        match context.server.see_pod(&key.namespace, &pod).await {
            Ok(Some(seen)) => context.known.learn_pod(seen),
            Ok(None) => context.known.forget_pod(&key.namespace, &pod.name, &pod.uid),
            Err(error) => {
                tracing::debug!("{key}: {}", chain(&error));
                left.push(pod);
            }
        }
    }
    (!left.is_empty()).then(|| Outcome { failed: true, unconfirmed: left, ..Outcome::default() })
}

async fn bring_about(context: &Context, key: &Key, workload: &Workload) -> Outcome {
    let spec = &workload.spec;
    if spec.deleting {
        // The garbage collector deletes its objects.
        return Outcome::default();
    }
    let pods = context.known.pods(spec);
    let (own, others): (Vec<_>, Vec<_>) = pods.into_iter().partition(|(whose, _)| *whose == Claim::Own);
    let revisions = context.known.orphaned_revisions(spec);
    if !revisions.is_empty() || others.iter().any(|(whose, _)| *whose != Claim::Leave) {
        match hand_over(context, key, workload, &revisions, &others).await {
            // The next reconciliation observes what was adopted.
            Ok(()) => return Outcome { again: Some(std::time::Duration::ZERO), ..Outcome::default() },
            Err(error) => {
                tracing::info!("{key}: {}", chain(&error));
                return Outcome { failed: true, ..Outcome::default() };
            }
        }
    }
    let own: Vec<_> = own.into_iter().map(|(_, pod)| pod).collect();
    report_misfits(context, key, workload).await;
    let history = match history(context, workload, &own).await {
        Ok(history) => history,
        Err(error) => {
            tracing::info!("{key}: {}", chain(&error));
            return Outcome { failed: true, ..Outcome::default() };
        }
    };
    let now = clock::now();
    let decision = decision(context, workload, &own, history, now);
    let Decision { actions, report, requeue_at } = decision;
    let mut applier = Applier::new(context, key, workload, &own);
    applier.carry_out(&actions).await;
    if let Some(report) = report {
        let report = applier.amended(report, now);
        write_report(&mut applier, &report).await;
    }
    let again = requeue_at.map(clock::until);
    applier.outcome(again).await
}

fn decision(
    context: &Context,
    workload: &Workload,
    own: &[SeenPod],
    history: History,
    now: Timestamp,
) -> Decision {
    let (spec, known) = (&workload.spec, &context.known);
    let pods: Vec<_> = own.iter().filter_map(|pod| pod.value.pod.as_ref()).collect();
    let seen = Seen {
        history: history.records,
        revisions: &history.needed,
        runs: &known.runs(spec),
        templates: &known.templates(&spec.namespace),
        nodes: &known.nodes(pods.iter().filter_map(|pod| pod.node.as_deref())),
        claims: &known.claims(spec),
        taken: &known.taken(spec),
        pods,
        now,
    };
    decide(spec, &workload.report, &seen)
}

/// Adopts revisions and pods without a controller, and releases the pods that its selector no longer matches.
async fn hand_over(
    context: &Context,
    key: &Key,
    workload: &Workload,
    revisions: &[PodRef],
    pods: &[(Claim, SeenPod)],
) -> Result<(), Error> {
    let spec = &workload.spec;
    let adopts = !revisions.is_empty() || pods.iter().any(|(whose, _)| *whose == Claim::Adopt);
    // A workload that was deleted must not adopt pods, nor may a new workload of the same name adopt them by this
    // decision. Hence the uid is read from the API server.
    if adopts && context.server.workload_uid(key).await?.as_ref() != Some(&spec.uid) {
        return Ok(());
    }
    let owner = new_pod::owner(spec);
    // Revisions first: whether a pod is touched depends on the revision that it is at.
    for revision in revisions {
        let done = context.server.adopt_revision(&key.namespace, revision, &owner).await;
        context.metrics.wrote("patch", &done);
        match done {
            Ok(seen) => context.known.learn_revision(seen),
            Err(error) if error.class() == Class::Gone => {}
            Err(error) => return Err(error),
        }
    }
    for (whose, pod) in pods {
        let Some(kept) = pod.value.pod.as_ref().filter(|_| *whose != Claim::Leave) else { continue };
        let adopt = *whose == Claim::Adopt;
        let done = context.server.own_pod(&key.namespace, &PodRef::of(kept), &owner, adopt).await;
        context.metrics.wrote("patch", &done);
        match done {
            Ok(seen) => context.known.learn_pod(seen),
            Err(error) if error.class() == Class::Gone => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes the status if it has changed.
async fn write_report(applier: &mut Applier<'_>, report: &Report) {
    let status = match applier.key.kind {
        Kind::Deployment => serde_json::to_value(report.deployment()),
        Kind::StatefulSet => serde_json::to_value(report.stateful_set()),
    };
    let status: Value = status.unwrap_or_default();
    if status == applier.workload.status {
        return;
    }
    let at = (applier.workload.spec.uid.as_str(), applier.version.as_str());
    let reported =
        applier.context.server.workload_status(&applier.context.known, applier.key, at, &status).await;
    applier.context.metrics.wrote("patch", &reported);
    match reported {
        Ok(_) => {}
        Err(error) if error.class() == Class::Gone => {}
        Err(error) => {
            if error.class() != Class::Refused {
                tracing::info!("{}: {}", applier.key, chain(&error));
            }
            applier.stale = true;
        }
    }
}
