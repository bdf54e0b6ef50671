//! Validation at admission: specs that contradict themselves, and changes that could never be carried out. All
//! problems are reported at once, each with the field and the remedy. Nothing is changed or defaulted.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::api::game_deployment::{GameDeployment, UpdateType};
use crate::api::game_stateful_set::{GameStatefulSet, PodManagementPolicy};
use crate::api::pod_template::PodTemplate;
use crate::api::priority::PriorityKey;
use crate::api::selector;
use crate::api::workload::Canary;
use crate::podtask::amount::Amount;
use crate::podtask::priority;
use crate::podtask::start_first;
use crate::workload::claims;
use crate::workload::diff::Change;
use crate::workload::environment;
use crate::workload::spec::WorkloadSpec;

/// The problems of a `GameDeployment`, and of the change from `old` to it. `resizes`: the API server resizes running pods.
pub fn deployment(old: Option<&GameDeployment>, new: &GameDeployment, resizes: bool) -> Vec<String> {
    let spec = &new.spec;
    let update = &spec.update_strategy;
    let mut problems = Problems { resizes, ..Problems::default() };
    problems.template(&spec.selector, &spec.template);
    problems.amount("spec.updateStrategy.partition", &update.partition);
    problems.amount("spec.updateStrategy.maxUnavailable", &update.max_unavailable);
    problems.amount("spec.updateStrategy.maxSurge", &update.max_surge);
    problems.amount("spec.scaleStrategy.createBatch", &spec.scale_strategy.create_batch);
    problems.canary(update.canary.as_ref());
    problems.priority(&update.priority);
    let desired = WorkloadSpec::of_deployment(new);
    problems.found.extend(desired.index_problem());
    problems.found.extend(desired.budget_problem());
    problems.found.extend(desired.deadline_problem());
    let before = old.map(WorkloadSpec::of_deployment);
    problems.start_first(before.as_ref(), &desired);
    if let (Some(old), Some(before)) = (old, &before) {
        problems.unchanged("spec.selector", old.spec.selector == spec.selector);
        problems.change(before, &desired);
    }
    problems.found
}

/// The problems of a `GameStatefulSet`, and of the change from `old` to it. `resizes`: the API server resizes running pods.
pub fn stateful_set(old: Option<&GameStatefulSet>, new: &GameStatefulSet, resizes: bool) -> Vec<String> {
    let spec = &new.spec;
    let update = &spec.update_strategy;
    let mut problems = Problems { resizes, ..Problems::default() };
    problems.template(&spec.selector, &spec.template);
    if let Some(rolling) = &update.rolling_update {
        problems.amount("spec.updateStrategy.rollingUpdate.partition", &rolling.partition);
        problems.amount("spec.updateStrategy.rollingUpdate.maxUnavailable", &rolling.max_unavailable);
        problems.amount("spec.updateStrategy.rollingUpdate.maxSurge", &rolling.max_surge);
    }
    problems.amount("spec.scaleStrategy.createBatch", &spec.scale_strategy.create_batch);
    problems.canary(update.canary.as_ref());
    problems.priority(&update.priority);
    if !update.priority.is_empty() && spec.pod_management_policy == PodManagementPolicy::OrderedReady {
        problems.add(
            "spec.updateStrategy.priority: needs spec.podManagementPolicy: Parallel; OrderedReady updates by ordinal"
                .to_owned(),
        );
    }
    for (at, claim) in spec.volume_claim_templates.iter().enumerate() {
        if let Err(error) = claim.typed() {
            problems.add(format!("spec.volumeClaimTemplates[{at}]: not a volume claim: {error}"));
        }
    }
    for (at, ordinal) in spec.reserve_orders.iter().enumerate() {
        if *ordinal < 0 {
            problems
                .add(format!("spec.reserveOrders[{at}]: {ordinal} is not an ordinal: ordinals begin with 0"));
        }
    }
    let desired = WorkloadSpec::of_stateful_set(new);
    problems.found.extend(desired.budget_problem());
    problems.found.extend(desired.deadline_problem());
    problems.start_first(old.map(WorkloadSpec::of_stateful_set).as_ref(), &desired);
    if let Some(old) = old {
        let before = &old.spec;
        problems.unchanged("spec.selector", before.selector == spec.selector);
        problems.unchanged("spec.serviceName", before.service_name == spec.service_name);
        problems.unchanged(
            "spec.podManagementPolicy",
            before.pod_management_policy == spec.pod_management_policy,
        );
        problems
            .found
            .extend(claims::template_problems(&before.volume_claim_templates, &spec.volume_claim_templates));
        problems.change(&WorkloadSpec::of_stateful_set(old), &desired);
    }
    problems.found
}

#[derive(Default)]
struct Problems {
    resizes: bool,
    found: Vec<String>,
}

impl Problems {
    fn add(&mut self, problem: String) {
        self.found.push(problem);
    }

    fn template(&mut self, selected: &LabelSelector, template: &PodTemplate) {
        if !selector::matches(selected, &template.labels()) {
            let text = selector::text(selected);
            self.add(format!("spec.selector: `{text}` does not match spec.template.metadata.labels: the workload would not find its own pods"));
        }
        if let Err(error) = template.typed() {
            self.add(format!("spec.template: not a pod template: {error}"));
        }
        let policy = template.0.pointer("/spec/restartPolicy").and_then(serde_json::Value::as_str);
        if policy.is_some_and(|policy| policy != "Always") {
            self.add("spec.template.spec.restartPolicy: must be Always".to_owned());
        }
    }

    fn amount(&mut self, field: &str, value: &IntOrString) {
        match Amount::read(value) {
            Ok(_) => {}
            Err(error) => self.add(format!("{field}: {error}")),
        }
    }

    fn priority(&mut self, keys: &[PriorityKey]) {
        self.found.extend(priority::problems("spec.updateStrategy.priority", keys));
    }

    fn canary(&mut self, canary: Option<&Canary>) {
        for (at, step) in canary.iter().flat_map(|canary| &canary.steps).enumerate() {
            let field = format!("spec.updateStrategy.canary.steps[{at}]");
            if let Some(partition) = &step.partition {
                self.amount(&format!("{field}.partition"), partition);
            }
            if step.partition.is_none() && step.hook.is_none() && step.pause.is_none() {
                self.add(format!("{field}: a step needs a partition, a hook or a pause"));
            }
        }
    }

    fn unchanged(&mut self, field: &str, same: bool) {
        if !same {
            self.add(format!(
                "{field}: cannot be changed: delete the workload with --cascade=orphan and create it again"
            ));
        }
    }

    /// Rejects the order `StartFirst` where the agents would refuse every request: for the template as it is, or for the
    /// containers that a change of it updates in place.
    fn start_first(&mut self, old: Option<&WorkloadSpec>, new: &WorkloadSpec) {
        if !new.starts_first() {
            return;
        }
        let changed = || {
            let change = Change::between(&old?.template, &new.template, self.resizes);
            let mut names: BTreeSet<_> = change.containers.iter().map(String::as_str).collect();
            names.extend(environment::restarted(&old?.template, &new.template));
            let is_in_place = change.refusal().is_none() && !names.is_empty();
            if is_in_place { start_first::problem(&new.template, names) } else { None }
        };
        if let Some(why) = start_first::never(&new.template).or_else(changed) {
            self.add(format!(
                "spec.updateStrategy.inPlaceUpdateStrategy.order: StartFirst is not possible: {why}; use StopFirst"
            ));
        }
    }

    /// Rejects a change of the template that the update strategy cannot apply to the pods.
    fn change(&mut self, old: &WorkloadSpec, new: &WorkloadSpec) {
        let both = old.is_in_place() && new.is_in_place();
        if !both || new.update.fallback || new.update.way == UpdateType::OnDelete {
            return;
        }
        if let Some(why) = Change::between(&old.template, &new.template, self.resizes).refusal() {
            self.add(format!("spec.template: {why}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::workload::fixtures;

    fn deployment(old: Option<&GameDeployment>, new: &GameDeployment) -> Vec<String> {
        super::deployment(old, new, false)
    }

    fn stateful_set(old: Option<&GameStatefulSet>, new: &GameStatefulSet) -> Vec<String> {
        super::stateful_set(old, new, false)
    }

    #[test]
    fn a_good_spec_has_no_problem() {
        assert!(deployment(None, &fixtures::deployment().object()).is_empty());
        assert!(stateful_set(None, &fixtures::stateful_set().set_object()).is_empty());
    }

    #[test]
    fn everything_wrong_is_reported_at_once_with_its_field() {
        let object = fixtures::deployment()
            .with("/selector/matchLabels/app", json!("other"))
            .with("/template/spec/containers/0/ports", json!("x"))
            .with("/updateStrategy/maxSurge", json!("many"))
            .with("/updateStrategy/canary", json!({"steps": [{}, {"partition": "1.5%"}]}))
            .object();
        let problems = deployment(None, &object);
        for field in
            ["spec.selector:", "spec.template:", "maxSurge: `many`", "steps[0]:", "steps[1].partition:"]
        {
            assert!(problems.iter().any(|problem| problem.contains(field)), "{field} in {problems:#?}");
        }
        assert_eq!(problems.len(), 5, "{problems:#?}");
    }

    /// 18: a change that cannot be made in place is refused before any hook runs.
    #[test]
    fn a_change_that_cannot_be_made_in_place_is_refused_at_admission() {
        let old = fixtures::deployment().with("/updateStrategy/type", json!("InplaceUpdate"));
        let image = old.clone().image("app:2").object();
        assert!(deployment(Some(&old.object()), &image).is_empty());
        let changed = old.clone().with("/template/spec/hostNetwork", json!(true));
        let problems = deployment(Some(&old.object()), &changed.object());
        assert!(problems[0].starts_with("spec.template: spec.hostNetwork cannot be changed"), "{problems:?}");
        let mut fallback = changed.object();
        fallback.metadata.annotations =
            Some([("inplace.dev/in-place-fallback".to_owned(), "Recreate".to_owned())].into());
        assert!(deployment(Some(&old.object()), &fallback).is_empty());
        let rolling = changed.with("/updateStrategy/type", json!("RollingUpdate")).object();
        assert!(deployment(Some(&old.object()), &rolling).is_empty());
    }

    #[test]
    fn what_cannot_start_first_is_refused_at_admission() {
        let first = |way: &str| {
            let strategy = json!({"type": way, "inPlaceUpdateStrategy": {"order": "StartFirst"}});
            fixtures::deployment().with("/updateStrategy", strategy)
        };
        let of = |old: Option<&fixtures::Draft>, new: &fixtures::Draft| {
            deployment(old.map(fixtures::Draft::object).as_ref(), &new.object())
        };
        let field = "spec.updateStrategy.inPlaceUpdateStrategy.order: StartFirst is not possible: ";
        let on_host = |draft: fixtures::Draft| draft.with("/template/spec/hostNetwork", json!(true));
        for way in ["InplaceUpdate", "HotPatchUpdate"] {
            assert!(of(None, &first(way)).is_empty());
            let problems = of(None, &on_host(first(way)));
            assert!(problems[0].starts_with(field) && problems[0].contains("hostNetwork"), "{problems:?}");
        }
        for way in ["RollingUpdate", "OnDelete"] {
            assert!(of(None, &on_host(first(way))).is_empty(), "nothing is updated in place");
        }
        // Which containers change is known at the change only.
        let old = first("InplaceUpdate").with(
            "/template/spec/containers",
            json!([{"name": "app", "image": "app:1"}, {"name": "side", "image": "side:1",
                    "lifecycle": {"postStart": {"exec": {"command": ["a"]}}}}]),
        );
        assert!(of(None, &old).is_empty(), "the first one can");
        let app = old.clone().image("app:2");
        assert!(of(Some(&old), &app).is_empty());
        let image = |draft: fixtures::Draft| draft.with("/template/spec/containers/1/image", json!("side:2"));
        let reader =
            json!([{"name": "Z", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['zone']"}}}]);
        let reads = old.clone().with("/template/spec/containers/1/env", reader);
        let zoned = reads.clone().with("/template/metadata/labels/zone", json!("b"));
        let problems = of(Some(&reads), &zoned);
        assert!(problems[0].contains("container side has"), "its label restarts it: {problems:?}");
        for (new, says) in
            [(image(old.clone()), "container side has a postStart"), (image(app), "app, side change")]
        {
            let problems = of(Some(&old), &new);
            assert!(problems[0].starts_with(field) && problems[0].contains(says), "{problems:?}");
            assert_eq!(problems.len(), 1);
            let stop =
                |draft: fixtures::Draft| draft.with("/updateStrategy/inPlaceUpdateStrategy", json!({}));
            assert!(of(Some(&old), &stop(new)).is_empty());
        }
        let set = fixtures::stateful_set().with(
            "/updateStrategy",
            json!({"type": "InplaceUpdate", "inPlaceUpdateStrategy": {"order": "StartFirst"}}),
        );
        assert!(stateful_set(None, &set.set_object()).is_empty());
        assert!(stateful_set(None, &on_host(set).set_object())[0].starts_with(field));
    }

    #[test]
    fn limits_under_which_no_pod_can_be_updated_are_refused() {
        let strategy = |way: &str, unavailable: serde_json::Value, surge: serde_json::Value| json!({"type": way, "maxUnavailable": unavailable, "maxSurge": surge});
        let of =
            |strategy| deployment(None, &fixtures::deployment().with("/updateStrategy", strategy).object());
        for way in ["RollingUpdate", "InplaceUpdate", "HotPatchUpdate"] {
            for zero in [json!(0), json!("0%")] {
                let problems = of(strategy(way, zero.clone(), zero));
                assert!(problems[0].starts_with("spec.updateStrategy.maxUnavailable: it "), "{problems:?}");
                assert_eq!(problems.len(), 1);
            }
            assert!(of(strategy(way, json!(1), json!(0))).is_empty());
            assert!(of(strategy(way, json!("1%"), json!(0))).is_empty(), "at least one pod");
        }
        assert!(of(strategy("InplaceUpdate", json!(0), json!(1))).is_empty());
        let hot = of(strategy("HotPatchUpdate", json!(0), json!(1)));
        assert!(hot[0].contains("HotPatchUpdate does not use maxSurge"), "{hot:?}");
        assert!(of(strategy("OnDelete", json!(0), json!(0))).is_empty(), "the user deletes");
        let set = fixtures::stateful_set().with(
            "/updateStrategy",
            json!({"type": "InplaceUpdate", "rollingUpdate": {"maxUnavailable": 0}}),
        );
        assert!(stateful_set(None, &set.set_object()).is_empty(), "one after the other, whatever it says");
        let problems = stateful_set(None, &set.with("/podManagementPolicy", json!("Parallel")).set_object());
        assert!(
            problems[0].starts_with("spec.updateStrategy.rollingUpdate.maxUnavailable: "),
            "{problems:?}"
        );
    }

    #[test]
    fn a_progress_deadline_that_every_update_exceeds_is_refused() {
        let limited = fixtures::deployment()
            .with("/progressDeadlineSeconds", json!(100))
            .with("/updateStrategy", json!({"type": "InplaceUpdate", "maxUnavailable": 1}));
        assert!(deployment(None, &limited.object()).is_empty());
        let ready = limited.clone().with("/minReadySeconds", json!(100));
        let problems = deployment(None, &ready.object());
        assert!(
            problems[0]
                .starts_with("spec.progressDeadlineSeconds: must be greater than minReadySeconds (100 s)")
        );
        assert!(deployment(None, &ready.with("/minReadySeconds", json!(99)).object()).is_empty());
        let grace = limited
            .with("/minReadySeconds", json!(50))
            .with("/updateStrategy/inPlaceUpdateStrategy", json!({"gracePeriodSeconds": 60}));
        assert!(deployment(None, &grace.object())[0].contains("(110 s)"));
        let first =
            grace.clone().with("/updateStrategy/inPlaceUpdateStrategy", json!({"order": "StartFirst"}));
        let problems = deployment(None, &first.object());
        assert!(
            problems[0].contains("twice minReadySeconds, because of the order StartFirst (100 s)"),
            "{problems:?}"
        );
        assert!(deployment(None, &first.with("/minReadySeconds", json!(49)).object()).is_empty());
        let rolling = grace.with("/updateStrategy/type", json!("RollingUpdate"));
        assert!(deployment(None, &rolling.object()).is_empty());
        let set = fixtures::stateful_set()
            .with("/progressDeadlineSeconds", json!(5))
            .with("/minReadySeconds", json!(5));
        assert_eq!(stateful_set(None, &set.set_object()).len(), 1);
    }

    #[test]
    fn the_selector_cannot_be_changed() {
        let other = |draft: &fixtures::Draft| {
            let label = |draft: fixtures::Draft, path: &str| draft.with(path, json!("blue"));
            let draft = label(draft.clone(), "/selector/matchLabels/track");
            label(draft, "/template/metadata/labels/track")
        };
        let refused =
            "spec.selector: cannot be changed: delete the workload with --cascade=orphan and create it again";
        let old = fixtures::deployment();
        let new = other(&old);
        assert!(deployment(None, &new.object()).is_empty(), "a new workload can have it");
        assert_eq!(deployment(Some(&old.object()), &new.object()), [refused]);
        assert!(deployment(Some(&new.object()), &new.object()).is_empty());
        let old = fixtures::stateful_set();
        assert_eq!(stateful_set(Some(&old.set_object()), &other(&old).set_object()), [refused]);
    }

    #[test]
    fn what_pods_and_claims_hang_on_cannot_be_changed() {
        let old = fixtures::stateful_set();
        let new = old.clone().with("/serviceName", json!("other")).with("/reserveOrders", json!([-1]));
        let problems = stateful_set(Some(&old.set_object()), &new.set_object());
        assert!(problems.iter().any(|problem| problem.starts_with("spec.serviceName: cannot be changed")));
        assert!(problems.iter().any(|problem| problem.starts_with("spec.reserveOrders[0]: -1")));
    }
}
