//! `PodDisruptionBudget`s: which updates in place they allow, and what a decision does at them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::podtask::disruption::DisruptionAllowance;
use crate::workload::action::BudgetClaims;

/// A budget for all pods with this number of allowed disruptions and these entries.
pub(super) fn allowing(allowed: i64, entries: &[(&str, i64)]) -> DisruptionAllowance {
    let entries: BTreeMap<_, _> = entries.iter().map(|(name, second)| (*name, at(*second))).collect();
    let budget = json!({"metadata": {"name": "pdb"}, "spec": {"selector": {"matchLabels": {"app": "web"}}},
        "status": {"disruptionsAllowed": allowed, "disruptedPods": entries}});
    DisruptionAllowance::new([Arc::new(serde_json::from_value(budget).unwrap())], "v1")
}

fn in_place() -> Draft {
    deployment().with("/updateStrategy", json!({"type": "InplaceUpdate", "maxUnavailable": 3}))
}

/// Three pods at `app:1`.
fn three(draft: &Draft) -> Sight {
    sight(&["web-a", "web-b", "web-c"], &draft.revision())
}

fn progress(decision: &Decision) -> (String, String, String) {
    let report = decision.report.as_ref().unwrap();
    let condition = report.conditions.iter().find(|one| one.kind == "Progressing").unwrap();
    (condition.status.clone(), condition.reason.clone(), condition.message.clone())
}

/// The claims of the writes on pods.
fn claims(decision: &Decision) -> Vec<(&str, &BudgetClaims)> {
    let patches = decision.actions.iter().filter_map(|action| match action {
        Action::PatchPod { pod, claims, .. } => Some((pod.name.as_str(), claims)),
        _ => None,
    });
    patches.filter(|(_, claims)| **claims != BudgetClaims::None).collect()
}

#[test]
fn an_update_in_place_waits_for_a_budget_and_claims_what_it_allows() {
    let draft = in_place();
    let mut sight = three(&draft);
    let draft = draft.image("app:2");
    sight.disruptions = allowing(0, &[]);
    let waits = sight.decide(&draft);
    assert!(waits.requested().is_empty(), "{:#?}", waits.actions);
    let (status, reason, message) = progress(&waits);
    assert_eq!((&*status, &*reason), ("True", "PodDisruptionBudget"), "it is no failure");
    assert!(message.ends_with("waiting for PodDisruptionBudget pdb"), "{message}");
    assert_eq!(waits.requeue_at, Some(at(1)));
    sight.disruptions = allowing(2, &[]);
    let begins = sight.decide(&draft);
    assert_eq!(begins.requested(), ["web-a", "web-b"]);
    let claim = BudgetClaims::Claim(vec!["pdb".into()]);
    assert_eq!(claims(&begins), [("web-a", &claim), ("web-b", &claim)]);
    carry_out(&mut sight, &begins);
    assert_eq!(sight.pod("web-a").task.as_ref().unwrap().claims, ["pdb"]);
    // A pod in progress counts as disrupted, also when its entry has lapsed.
    sight.disruptions = allowing(1, &[("web-a", 0)]);
    assert!(sight.decide(&draft).requested().is_empty(), "web-b has a task and no entry");
    sight.disruptions = allowing(1, &[("web-a", 0), ("web-b", 0)]);
    assert_eq!(sight.decide(&draft).requested(), ["web-c"]);
    // The budgets cannot be read: nothing begins.
    sight.disruptions = DisruptionAllowance::unreadable();
    assert!(sight.decide(&draft).requested().is_empty());
}

#[test]
fn the_wait_for_a_budget_is_no_time_of_the_progress_deadline() {
    let draft = in_place().with("/progressDeadlineSeconds", json!(100));
    let draft = draft.with("/updateStrategy/onFailure", json!("Abort"));
    let mut sight = three(&draft);
    step(&mut sight, &draft);
    let update = draft.image("app:2");
    sight.disruptions = allowing(0, &[]);
    for _ in 0..3 {
        let waits = step(&mut sight, &update);
        assert_eq!(progress(&waits).1, "PodDisruptionBudget");
        assert_eq!(waits.report.unwrap().aborted_revision, "", "no pod has failed");
        sight.now += jiff::SignedDuration::from_secs(200);
    }
}

#[test]
fn an_entry_is_renewed_while_the_update_runs_and_removed_at_its_end() {
    let draft = in_place();
    let mut sight = three(&draft);
    let draft = draft.image("app:2");
    sight.disruptions = allowing(1, &[]);
    let begins = sight.decide(&draft);
    carry_out(&mut sight, &begins);
    sight.disruptions = allowing(0, &[("web-a", 0)]);
    let id = sight.pod("web-a").task.as_ref().unwrap().id();
    sight.pod("web-a").answer = Some(answer(&id, Phase::Running, Some(Step::Drain)));
    let renewals = |sight: &Sight| {
        let decision = sight.decide(&draft);
        decision.actions.iter().filter(|action| matches!(action, Action::RenewClaim { .. })).count()
    };
    sight.now = at(59);
    assert_eq!((renewals(&sight), sight.decide(&draft).requeue_at), (0, Some(at(60))));
    sight.now = at(60);
    assert_eq!(renewals(&sight), 1);
    for phase in [Phase::Succeeded, Phase::RolledBack] {
        let mut sight = sight.clone();
        sight.pod("web-a").answer = Some(answer(&id, phase, None));
        let ends = sight.decide(&draft);
        let release = BudgetClaims::Release(vec!["pdb".into()]);
        assert_eq!(claims(&ends)[0], ("web-a", &release), "{phase:?}");
        carry_out(&mut sight, &ends);
        assert!(sight.pod("web-a").task.as_ref().unwrap().claims.is_empty());
    }
}

#[test]
fn a_budget_does_not_hold_pods_that_are_not_ready_and_no_deletion() {
    let draft = in_place();
    let mut sight = three(&draft);
    sight.disruptions = allowing(0, &[]);
    sight.pod("web-b").ready_since = None;
    let update = draft.clone().image("app:2");
    assert_eq!(sight.decide(&update).requested(), ["web-b"], "a broken pod is repaired");
    let rolling = deployment().with("/updateStrategy", json!({"type": "RollingUpdate", "maxUnavailable": 3}));
    assert_eq!(sight.decide(&rolling.image("app:2")).deleted().len(), 3, "as Kubernetes' own controllers do");
    assert_eq!(sight.decide(&draft.with("/replicas", json!(1))).deleted().len(), 2, "a scale-in");
}

#[test]
fn a_budget_is_asked_again_when_the_hook_has_passed_and_an_eviction_is_left_alone() {
    let draft = in_place().with("/preInplaceUpdateStrategy", json!({"hook": {"templateName": "test"}}));
    let mut sight = three(&draft);
    let draft = draft.image("app:2");
    sight.disruptions = allowing(0, &[]);
    assert!(sight.decide(&draft).asked().is_empty(), "no hook begins while the budget allows no pod");
    sight.disruptions = allowing(1, &[("web-a", 0)]);
    let asks = sight.decide(&draft);
    assert_eq!(asks.asked().len(), 1, "web-a is being evicted");
    carry_out(&mut sight, &asks);
    sight.runs[0].phase = HookPhase::Successful;
    sight.disruptions = allowing(0, &[]);
    let waits = sight.decide(&draft);
    assert!(waits.requested().is_empty(), "another eviction was faster: {:#?}", waits.actions);
    assert_eq!(progress(&waits).1, "PodDisruptionBudget");
    sight.disruptions = allowing(1, &[]);
    assert_eq!(sight.decide(&draft).requested(), ["web-b"]);
}

#[test]
fn a_node_gets_no_more_requests_than_its_agent_carries_out_at_once() {
    let names: Vec<_> = (0..8).map(|index| format!("web-{index}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let draft = in_place().with("/replicas", json!(8)).with("/updateStrategy/maxUnavailable", json!("100%"));
    let hook = json!({"hook": {"templateName": "test"}});
    for draft in [draft.clone(), draft.with("/preInplaceUpdateStrategy", hook)] {
        let mut sight = sight(&names, &draft.revision());
        let update = draft.image("app:2");
        let node = crate::workload::order::Node { ready: true, at_once: Some(3), ..Default::default() };
        sight.nodes.insert("node".to_owned(), node);
        let decision = sight.decide(&update);
        carry_out(&mut sight, &decision);
        for run in &mut sight.runs {
            run.phase = HookPhase::Successful;
        }
        let decision = if decision.asked().is_empty() { decision } else { sight.decide(&update) };
        assert_eq!(decision.requested().len(), 3);
        carry_out(&mut sight, &decision);
        assert!(sight.decide(&update).requested().is_empty());
        // One ends: the next one begins.
        let first = decision.requested()[0];
        let id = sight.pod(first).task.as_ref().unwrap().id();
        sight.pod(first).answer = Some(answer(&id, Phase::Refused, None));
        let ends = sight.decide(&update);
        carry_out(&mut sight, &ends);
        let next = sight.decide(&update);
        let begun = [next.requested(), ends.requested(), next.asked(), ends.asked()];
        assert_eq!(begun.iter().map(Vec::len).sum::<usize>(), 1);
    }
}

#[test]
fn an_entry_that_is_renewed_is_renewed_again_without_an_event() {
    let draft = in_place().with("/replicas", json!(1));
    let mut sight = sight(&["web-a"], &draft.revision());
    let draft = draft.image("app:2");
    sight.disruptions = allowing(1, &[]);
    let begins = sight.decide(&draft);
    carry_out(&mut sight, &begins);
    let id = sight.pod("web-a").task.as_ref().unwrap().id();
    sight.pod("web-a").answer = Some(answer(&id, Phase::Running, Some(Step::Drain)));
    // The pod drains for a long time: nothing changes about it.
    for (entry, now) in [(0, 60), (60, 120), (120, 180)] {
        sight.disruptions = allowing(0, &[("web-a", entry)]);
        sight.now = at(now);
        assert_eq!(sight.decide(&draft).requeue_at, Some(at(now + 60)), "an entry lapses after two minutes");
    }
}
