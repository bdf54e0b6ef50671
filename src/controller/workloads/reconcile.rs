//! One reconciliation of one workload: reads unconfirmed pods, adopts and releases objects, collects the input,
//! has `workload::decide` decide, applies the decision and writes the status.
//!
//! Must not decide anything itself: `workload::adoption` and `workload::decide` do.

use jiff::Timestamp;
use serde_json::Value;
use tokio::time::Instant;

use crate::cluster::error::{Class, Error};
use crate::controller::pods::confirm;
use crate::controller::queue::Outcome;
use crate::controller::reconciler::Reconciler;
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

impl Reconciler for Context {
    type Key = Key;

    async fn reconcile(&self, key: &Key, unconfirmed: Vec<PodRef>) -> Result<Outcome, Error> {
        let began = Instant::now();
        let unconfirmed = confirm(&self.server, &key.namespace, &self.known.pods, unconfirmed).await;
        let outcome = match self.known.get(key) {
            _ if !unconfirmed.is_empty() => Ok(Outcome { failed: true, unconfirmed, ..Outcome::default() }),
            Some(workload) => bring_about(self, key, &workload).await,
            // It is gone, or cannot be decoded.
            None => Ok(Outcome::default()),
        };
        self.metrics.looked(key.kind, began.elapsed().as_secs_f64());
        outcome
    }

    fn observe_depth(&self, due: usize) {
        self.metrics.queue.set(i64::try_from(due).unwrap_or(i64::MAX));
    }
}

async fn bring_about(context: &Context, key: &Key, workload: &Workload) -> Result<Outcome, Error> {
    let spec = &workload.spec;
    if spec.deleting {
        // The garbage collector deletes its objects.
        return Ok(Outcome::default());
    }
    let pods = context.known.pods(spec);
    let (own, others): (Vec<_>, Vec<_>) = pods.into_iter().partition(|(whose, _)| *whose == Claim::Own);
    let revisions = context.known.orphaned_revisions(spec);
    if !revisions.is_empty() || others.iter().any(|(whose, _)| *whose != Claim::Leave) {
        hand_over(context, key, workload, &revisions, &others).await?;
        // The next reconciliation observes what was adopted.
        return Ok(Outcome { again: Some(std::time::Duration::ZERO), ..Outcome::default() });
    }
    let own: Vec<_> = own.into_iter().map(|(_, pod)| pod).collect();
    report_misfits(context, key, workload).await;
    let history = history(context, workload, &own).await?;
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
    Ok(applier.outcome(again).await)
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
            Ok(seen) => context.known.pods.learn(seen),
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
        applier.context.server.workload_status(&applier.context.known, applier.key, at, status).await;
    applier.context.metrics.wrote("patch", &reported);
    match reported {
        Ok(_) => {}
        Err(error) if error.class() == Class::Gone => {}
        Err(error) if error.class() == Class::Refused => applier.stale = true,
        Err(error) => {
            tracing::info!("{}: {}", applier.key, chain(&error));
            applier.failure.get_or_insert((false, chain(&error)));
        }
    }
}
