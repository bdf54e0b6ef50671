//! One reconciliation of one workload: reads unconfirmed pods, adopts and releases objects, collects the input,
//! has `workload::decide` decide, applies the decision and writes the status.
//!
//! Must not decide anything itself: `workload::adoption` and `workload::decide` do.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;
use tokio::time::Instant;

use crate::api::pod_template::ClaimTemplate;
use crate::cluster::error::{Class, Error};
use crate::controller::disruptions::BudgetClaims;
use crate::controller::pods::confirm;
use crate::controller::queue::Outcome;
use crate::controller::reconciler::Reconciler;
use crate::controller::workloads::Context;
use crate::controller::workloads::applier::Applier;
use crate::controller::workloads::cache::{Key, Kind, PodEntry, Workload};
use crate::controller::workloads::hook_templates::CachedTemplates;
use crate::controller::workloads::revisions::{History, history, report_unadopted};
use crate::podtask::disruption::DisruptionAllowance;
use crate::podtask::write::{Event, VersionedRef};
use crate::process::clock;
use crate::process::log::chain;
use crate::workload::adoption::PodOwnership;
use crate::workload::claims::{Claims, StorageClass, StorageClasses};
use crate::workload::decide::{Decision, decide};
use crate::workload::input::CachedObjects;
use crate::workload::new_pod;
use crate::workload::other_controller::QUIET;
use crate::workload::report::Report;
use crate::workload::resize;
use crate::workload::spec::WorkloadSpec;

impl Reconciler for Context {
    type Key = Key;

    async fn reconcile(&self, key: &Key, unconfirmed: Vec<VersionedRef>) -> Result<Outcome, Error> {
        let began = Instant::now();
        let unconfirmed = confirm(&self.server, &key.namespace, &self.cache.pods, unconfirmed).await;
        let outcome = match self.cache.get(key) {
            _ if !unconfirmed.is_empty() => Ok(Outcome { failed: true, unconfirmed, ..Outcome::default() }),
            Some(workload) => reconcile_cached(self, key, &workload).await,
            // It is gone, or cannot be decoded.
            None => Ok(Outcome::default()),
        };
        self.metrics.reconciled(key.kind, began.elapsed().as_secs_f64());
        outcome
    }

    fn observe_depth(&self, due: usize) {
        self.metrics.queue.set(i64::try_from(due).unwrap_or(i64::MAX));
    }
}

async fn reconcile_cached(context: &Context, key: &Key, workload: &Workload) -> Result<Outcome, Error> {
    let spec = &workload.spec;
    if spec.deleting {
        // The garbage collector deletes its objects.
        return Ok(Outcome::default());
    }
    if let Some(until) = report_other_controller(context, key, workload).await {
        return Ok(Outcome { again: Some(clock::until(until)), ..Outcome::default() });
    }
    let pods = context.cache.pods(spec);
    let (own, others): (Vec<_>, Vec<_>) =
        pods.into_iter().partition(|(ownership, _)| *ownership == PodOwnership::Own);
    let revisions = context.cache.orphaned_revisions(spec);
    if !revisions.is_empty() || others.iter().any(|(ownership, _)| *ownership != PodOwnership::Leave) {
        let has_changed = adopt_and_release(context, key, workload, &revisions, &others).await?;
        // The next reconciliation observes what was adopted. If nothing was, the cache is too old.
        let again = Some(std::time::Duration::ZERO);
        return Ok(Outcome { stale: !has_changed, again, ..Outcome::default() });
    }
    let own: Vec<_> = own.into_iter().map(|(_, pod)| pod).collect();
    report_unadopted(context, key, workload).await;
    let history = history(context, workload, &own).await?;
    let claims = context.cache.claims(spec);
    let classes = storage_classes(context, spec, &claims).await;
    let now = clock::now();
    let allowance = disruptions(context, workload).await;
    // A pod that an update left may have the resources of any revision.
    let templates = history.records.iter().map(|record| &record.images);
    let asks = spec.is_in_place() && resize::differ(templates, &spec.template);
    let resizes = asks && context.server.resizes().await?;
    let decision =
        decision(context, workload, &own, history, (&claims, &classes, &allowance), (resizes, now));
    let Decision { actions, report, requeue_at } = decision;
    let claimed = |done: Result<(), &Error>| context.metrics.claimed(done);
    let budget_claims = BudgetClaims::new(&context.disruptions, &key.namespace, &allowance, &claimed);
    let mut applier = Applier::new(context, key, workload, &own, budget_claims);
    applier.carry_out(&actions).await;
    if let Some(report) = report {
        let report = applier.amended(report, now);
        write_report(&mut applier, &report).await;
    }
    let again = requeue_at.map(clock::until);
    Ok(applier.outcome(again).await)
}

/// Reports that another controller writes the status of the workload. Returns until when the workload is left alone,
/// its status too: the other controller would answer every write.
async fn report_other_controller(context: &Context, key: &Key, workload: &Workload) -> Option<Timestamp> {
    let other = workload.other_writer.as_ref()?;
    let until = other.quiet_until(clock::now())?;
    let message = format!(
        "another controller ({}) writes the status of this {}: nothing is done until that has stopped for {} s. If it is a \
         bk-bcs operator, scale it to 0 replicas",
        other.manager,
        key.kind.name(),
        QUIET.as_secs()
    );
    context
        .events
        .report(key.reference(&workload.spec.uid), &Event::warning("AnotherController", message))
        .await;
    Some(until)
}

/// What the `PodDisruptionBudget`s allow. If they cannot be read, no Ready pod is updated in place; everything else
/// continues.
async fn disruptions(context: &Context, workload: &Workload) -> DisruptionAllowance {
    let spec = &workload.spec;
    if !spec.is_in_place() {
        return DisruptionAllowance::default();
    }
    // A budget that was created before the spec was changed binds from that change on.
    let read = if spec.generation == workload.report.generation {
        context.disruptions.allowance(&spec.namespace).await
    } else {
        context.disruptions.newest(&spec.namespace).await
    };
    read.unwrap_or_else(|error| {
        tracing::info!("{}/{}: {}", spec.namespace, spec.name, chain(&error));
        DisruptionAllowance::unreadable()
    })
}

fn decision(
    context: &Context,
    workload: &Workload,
    own: &[PodEntry],
    history: History,
    (claims, classes, disruptions): (&Claims, &StorageClasses, &DisruptionAllowance),
    (resizes, now): (bool, Timestamp),
) -> Decision {
    let (spec, cache) = (&workload.spec, &context.cache);
    let pods: Vec<_> = own.iter().filter_map(|pod| pod.value.pod.as_deref()).collect();
    let mut nodes = cache.nodes(pods.iter().filter_map(|pod| pod.node.as_deref()));
    let agents = context.agents.by_node().unwrap_or_default();
    for (name, node) in &mut nodes {
        node.at_once = agents.get(name).map(|agent| agent.max_operations);
    }
    let objects = CachedObjects {
        history: history.records,
        revisions: &history.needed,
        runs: &cache.runs(spec),
        templates: &CachedTemplates { cache, namespace: &spec.namespace },
        nodes: &nodes,
        claims,
        classes,
        taken: &cache.taken(spec),
        disruptions,
        pods,
        resizes,
        now,
    };
    decide(spec, &workload.report, &objects)
}

/// Reads the storage classes of the claims that are to grow. Normally there are none. A class that cannot be read must
/// not stop anything else.
async fn storage_classes(context: &Context, spec: &WorkloadSpec, claims: &Claims) -> StorageClasses {
    let templates = spec.stateful().map_or(&[][..], |set| &set.claims);
    let of_template = |template: &ClaimTemplate| {
        let beginning = format!("{}-{}-", template.name(), spec.name);
        let alike = claims.iter().filter(move |(name, _)| name.starts_with(&beginning));
        alike.filter_map(|(_, claim)| claim.class_to_read(template)).collect::<Vec<_>>()
    };
    let names: BTreeSet<_> = templates.iter().flat_map(of_template).collect();
    let mut classes = StorageClasses::new();
    for name in names {
        let class = match context.server.expands(name).await {
            Ok(Some(expands)) => StorageClass::Read { expands },
            Ok(None) => StorageClass::Absent,
            Err(error) => StorageClass::Unread(chain(&error)),
        };
        classes.insert(name.to_owned(), class);
    }
    classes
}

/// Adopts revisions and pods without a controller, and releases the pods that its selector no longer matches.
async fn adopt_and_release(
    context: &Context,
    key: &Key,
    workload: &Workload,
    revisions: &[VersionedRef],
    pods: &[(PodOwnership, PodEntry)],
) -> Result<bool, Error> {
    let spec = &workload.spec;
    let adopts = !revisions.is_empty() || pods.iter().any(|(ownership, _)| *ownership == PodOwnership::Adopt);
    // A workload that was deleted must not adopt pods, nor may a new workload of the same name adopt them by this
    // decision. Hence the uid is read from the API server.
    if adopts && context.server.workload_uid(key).await?.as_ref() != Some(&spec.uid) {
        return Ok(false);
    }
    let owner = new_pod::owner(spec);
    let mut has_changed = false;
    // Revisions first: whether a pod is touched depends on the revision that it is at.
    for revision in revisions {
        let done = context.server.adopt_revision(&key.namespace, revision, &owner).await;
        context.metrics.wrote("patch", &done);
        match done {
            Ok(seen) => {
                context.cache.upsert_revision(seen);
                has_changed = true;
            }
            Err(error) if error.class() == Class::Gone => {}
            Err(error) => return Err(error),
        }
    }
    for (ownership, pod) in pods {
        let Some(cached) = pod.value.pod.as_deref().filter(|_| *ownership != PodOwnership::Leave) else {
            continue;
        };
        let adopt = *ownership == PodOwnership::Adopt;
        let done = context.server.own_pod(&key.namespace, &VersionedRef::of(cached), &owner, adopt).await;
        context.metrics.wrote("patch", &done);
        match done {
            Ok(seen) => {
                context.cache.pods.upsert(seen);
                has_changed = true;
            }
            Err(error) if error.class() == Class::Gone => {}
            Err(error) => return Err(error),
        }
    }
    Ok(has_changed)
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
        applier.context.server.workload_status(&applier.context.cache, applier.key, at, status).await;
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
