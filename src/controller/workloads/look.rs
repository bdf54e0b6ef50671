//! One look at one workload: what is seen of it, what follows, and what is told of it afterwards.

use jiff::Timestamp;
use serde_json::Value;
use tokio::time::Instant;

use crate::cluster::error::{Class, Error};
use crate::cluster::workloads::{Key, Kind, SeenPod, Workload};
use crate::controller::queue::Outcome;
use crate::controller::workloads::Site;
use crate::controller::workloads::hand::Hand;
use crate::controller::workloads::revisions::{History, history, report_misfits};
use crate::process::clock;
use crate::process::log::chain;
use crate::workload::action::PodRef;
use crate::workload::adoption::Claim;
use crate::workload::birth;
use crate::workload::decide::{Decision, decide};
use crate::workload::report::Report;
use crate::workload::scene::Seen;

/// Looks at `key` once. `doubts` are pods of which nobody knows whether they were written.
pub(super) async fn look(site: &Site, key: &Key, doubts: Vec<PodRef>) -> Outcome {
    let began = Instant::now();
    let outcome = match settle(site, key, doubts).await {
        Some(outcome) => outcome,
        None => match site.known.get(key) {
            Some(workload) => bring_about(site, key, &workload).await,
            // It is gone, or cannot be read.
            None => Outcome::default(),
        },
    };
    site.metrics.looked(key.kind, began.elapsed().as_secs_f64());
    outcome
}

/// Finds out what became of pods whose last write had no answer.
async fn settle(site: &Site, key: &Key, doubts: Vec<PodRef>) -> Option<Outcome> {
    let mut left = Vec::new();
    for pod in doubts {
        match site.server.see_pod(&key.namespace, &pod).await {
            Ok(Some(seen)) => site.known.learn_pod(seen),
            Ok(None) => site.known.forget_pod(&key.namespace, &pod.name, &pod.uid),
            Err(error) => {
                tracing::debug!("{key}: {}", chain(&error));
                left.push(pod);
            }
        }
    }
    (!left.is_empty()).then(|| Outcome { failed: true, doubts: left, ..Outcome::default() })
}

async fn bring_about(site: &Site, key: &Key, workload: &Workload) -> Outcome {
    let wish = &workload.wish;
    if wish.deleting {
        // The garbage collector does the rest.
        return Outcome::default();
    }
    let pods = site.known.pods(wish);
    let (own, others): (Vec<_>, Vec<_>) = pods.into_iter().partition(|(whose, _)| *whose == Claim::Own);
    let revisions = site.known.orphaned_revisions(wish);
    if !revisions.is_empty() || others.iter().any(|(whose, _)| *whose != Claim::Leave) {
        match hand_over(site, key, workload, &revisions, &others).await {
            // What was adopted is seen by the next look.
            Ok(()) => return Outcome { again: Some(std::time::Duration::ZERO), ..Outcome::default() },
            Err(error) => {
                tracing::info!("{key}: {}", chain(&error));
                return Outcome { failed: true, ..Outcome::default() };
            }
        }
    }
    let own: Vec<_> = own.into_iter().map(|(_, pod)| pod).collect();
    report_misfits(site, key, workload).await;
    let history = match history(site, workload, &own).await {
        Ok(history) => history,
        Err(error) => {
            tracing::info!("{key}: {}", chain(&error));
            return Outcome { failed: true, ..Outcome::default() };
        }
    };
    let now = clock::now();
    let decision = decision(site, workload, &own, history, now);
    let Decision { actions, report, look_again } = decision;
    let mut hand = Hand::new(site, key, workload, &own);
    hand.carry_out(&actions).await;
    if let Some(report) = report {
        let report = hand.amended(report, now);
        tell(&mut hand, &report).await;
    }
    let again = look_again.map(clock::until);
    hand.outcome(again).await
}

fn decision(site: &Site, workload: &Workload, own: &[SeenPod], history: History, now: Timestamp) -> Decision {
    let (wish, known) = (&workload.wish, &site.known);
    let pods: Vec<_> = own.iter().filter_map(|pod| pod.value.pod.as_ref()).collect();
    let seen = Seen {
        history: history.records,
        revisions: &history.needed,
        runs: &known.runs(wish),
        templates: &known.templates(&wish.namespace),
        nodes: &known.nodes(pods.iter().filter_map(|pod| pod.node.as_deref())),
        claims: &known.claims(wish),
        taken: &known.taken(wish),
        pods,
        now,
    };
    decide(wish, &workload.report, &seen)
}

/// Takes revisions and pods in that nobody controls, and lets those go that are not wanted by its selector any more.
async fn hand_over(
    site: &Site,
    key: &Key,
    workload: &Workload,
    revisions: &[PodRef],
    pods: &[(Claim, SeenPod)],
) -> Result<(), Error> {
    let wish = &workload.wish;
    let adopts = !revisions.is_empty() || pods.iter().any(|(whose, _)| *whose == Claim::Adopt);
    // One that was deleted must not get pods any more, nor may another one of its name.
    if adopts && site.server.workload_uid(key).await?.as_ref() != Some(&wish.uid) {
        return Ok(());
    }
    let owner = birth::owner(wish);
    // First of all: which revision a pod is at says whether it is touched.
    for revision in revisions {
        let done = site.server.adopt_revision(&key.namespace, revision, &owner).await;
        site.metrics.wrote("patch", &done);
        match done {
            Ok(seen) => site.known.learn_revision(seen),
            Err(error) if error.class() == Class::Gone => {}
            Err(error) => return Err(error),
        }
    }
    for (whose, pod) in pods {
        let Some(kept) = pod.value.pod.as_ref().filter(|_| *whose != Claim::Leave) else { continue };
        let adopt = *whose == Claim::Adopt;
        let done = site.server.own_pod(&key.namespace, &PodRef::of(kept), &owner, adopt).await;
        site.metrics.wrote("patch", &done);
        match done {
            Ok(seen) => site.known.learn_pod(seen),
            Err(error) if error.class() == Class::Gone => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes the status, if it says anything new.
async fn tell(hand: &mut Hand<'_>, report: &Report) {
    let status = match hand.key.kind {
        Kind::Deployment => serde_json::to_value(report.deployment()),
        Kind::StatefulSet => serde_json::to_value(report.stateful_set()),
    };
    let status: Value = status.unwrap_or_default();
    if status == hand.workload.status {
        return;
    }
    let at = (hand.workload.wish.uid.as_str(), hand.version.as_str());
    let told = hand.site.server.workload_status(&hand.site.known, hand.key, at, &status).await;
    hand.site.metrics.wrote("patch", &told);
    match told {
        Ok(_) => {}
        Err(error) if error.class() == Class::Gone => {}
        Err(error) => {
            if error.class() != Class::Refused {
                tracing::info!("{}: {}", hand.key, chain(&error));
            }
            hand.stale = true;
        }
    }
}
