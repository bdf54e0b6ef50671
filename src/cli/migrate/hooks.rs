//! The hooks of a workload that cannot be run here, by the rules of whoever runs them: the controller, and the agent for the hook
//! after an update in place. Pure.

use std::collections::BTreeMap;

use crate::api::hook_run::HookRunSpec;
use crate::api::hook_template::HookTemplateSpec;
use crate::api::request::HookArg;
use crate::api::workload::WorkloadHook;
use crate::hook::args::Injected;
use crate::hook::check::{self, Invalid};
use crate::workload::hooks::{self, TemplateState};
use crate::workload::spec::WorkloadSpec;

/// The HookTemplates by namespace and name; `None`: this release cannot decode it.
pub(super) type Templates = BTreeMap<(String, String), Option<HookTemplateSpec>>;

/// Why hooks of a workload cannot be run, one sentence each.
pub(super) fn problems(spec: &WorkloadSpec, templates: &Templates) -> Vec<String> {
    let hooks = &spec.hooks;
    let pod = any_pod(spec);
    let changed = Injected { modified: pod.containers.clone(), ..pod.clone() };
    let problem_of = |field: &str, hook: &WorkloadHook, injected: Option<&Injected>| {
        problem(spec, templates, field, hook, |template, args| check::prepare(template, args, injected))
    };
    let mut problems = Vec::new();
    if let Some(hook) = &hooks.pre_delete {
        problems.extend(problem_of("spec.preDeleteUpdateStrategy", hook, Some(&pod)));
    }
    if let Some(hook) = hooks.pre_inplace.as_ref().filter(|_| spec.is_in_place()) {
        problems.extend(problem_of("spec.preInplaceUpdateStrategy", hook, Some(&changed)));
    }
    if let Some(hook) = hooks.post_inplace.as_ref().filter(|_| spec.is_in_place()) {
        let for_agent =
            |template: &HookTemplateSpec, args: &[HookArg]| check::for_agent(template, args, &pod);
        problems.extend(problem(spec, templates, "spec.postInplaceUpdateStrategy", hook, for_agent));
    }
    let steps = spec.update.canary.iter().flat_map(|canary| &canary.steps).enumerate();
    for (at, hook) in steps.filter_map(|(at, step)| Some((at, step.hook.as_ref()?))) {
        problems.extend(problem_of(&format!("spec.updateStrategy.canary.steps[{at}]"), hook, None));
    }
    problems
}

/// Why the hook of this field cannot be run, if so.
fn problem(
    spec: &WorkloadSpec,
    templates: &Templates,
    field: &str,
    hook: &WorkloadHook,
    is_valid: impl FnOnce(&HookTemplateSpec, &[HookArg]) -> Result<HookRunSpec, Invalid>,
) -> Option<String> {
    let state = match templates.get(&(spec.namespace.clone(), hook.template_name.clone())) {
        None => TemplateState::Missing,
        Some(None) => TemplateState::Invalid("this release cannot decode it".to_owned()),
        Some(Some(template)) => TemplateState::of(is_valid(template, &hooks::given(hook))),
    };
    state.problem(&hook.template_name, field)
}

/// What a pod of the workload gives to its hooks. Which pod it is makes no difference for whether they can be run.
fn any_pod(spec: &WorkloadSpec) -> Injected {
    Injected {
        pod_name: spec.name.clone(),
        pod_namespace: spec.namespace.clone(),
        pod_ip: "127.0.0.1".to_owned(),
        host_ip: "127.0.0.1".to_owned(),
        containers: spec.template.images().map(|(name, _)| name.to_owned()).collect(),
        modified: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(fields: &Value) -> WorkloadSpec {
        let containers = json!([{"name": "app", "image": "app:1"}]);
        let mut spec = json!({"replicas": 1, "selector": {"matchLabels": {"app": "web"}},
            "updateStrategy": {"type": "InplaceUpdate"},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": containers}}});
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let object = json!({"apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameDeployment",
            "metadata": {"name": "web", "namespace": "shop"}, "spec": spec});
        WorkloadSpec::of_deployment(&serde_json::from_value(object).unwrap())
    }

    /// The templates `weight`, which sets an annotation, `ask`, with an argument that a workload gives, and `odd`.
    fn templates() -> Templates {
        let field = json!({"path": "metadata.annotations.example.com/weight", "value": "0"});
        let weight = json!({"kubernetes": {"function": "patch", "fields": [field]}});
        let url = "http://{{ args.PodIP }}:1/{{ args.room }}/{{ args.ModifiedContainer[0] }}";
        let read = |name: &str, args: Value, provider: Value| -> Option<HookTemplateSpec> {
            let metrics = json!([{"name": name, "provider": provider}]);
            Some(serde_json::from_value(json!({"args": args, "metrics": metrics})).unwrap())
        };
        let named = |name: &str, spec| (("shop".to_owned(), name.to_owned()), spec);
        Templates::from([
            named("weight", read("weight", json!([]), weight)),
            named("ask", read("ask", json!([{"name": "room"}]), json!({"web": {"url": url}}))),
            named("odd", None),
        ])
    }

    fn found(fields: &Value) -> Vec<String> {
        problems(&spec(fields), &templates())
    }

    #[test]
    fn a_hook_that_sets_an_annotation_is_for_the_controller_only() {
        let weight = json!({"hook": {"templateName": "weight"}});
        let before = found(&json!({"preDeleteUpdateStrategy": weight, "preInplaceUpdateStrategy": weight}));
        assert!(before.is_empty(), "{before:?}");
        let after = found(&json!({"postInplaceUpdateStrategy": weight}));
        let says = "HookTemplate weight cannot be used for spec.postInplaceUpdateStrategy: metric `weight`: provider.";
        assert!(after.len() == 1 && after[0].starts_with(says), "{after:?}");
        let rolling =
            json!({"postInplaceUpdateStrategy": weight, "updateStrategy": {"type": "RollingUpdate"}});
        assert!(found(&rolling).is_empty(), "it is not used");
    }

    #[test]
    fn each_hook_gets_the_arguments_that_it_would_get() {
        let given = json!({"templateName": "ask", "args": [{"name": "room", "value": "1"}]});
        let before = found(&json!({"preInplaceUpdateStrategy": {"hook": given}}));
        assert!(before.is_empty(), "{before:?}");
        let bare = found(&json!({"preInplaceUpdateStrategy": {"hook": {"templateName": "ask"}}}));
        assert!(bare.len() == 1 && bare[0].contains("args.room was not resolved"), "{bare:?}");
        let deletes = found(&json!({"preDeleteUpdateStrategy": {"hook": given}}));
        assert!(deletes.len() == 1 && deletes[0].contains("ModifiedContainer[0]"), "{deletes:?}");
        let steps = json!([{"partition": 1}, {"hook": given}]);
        let step = found(&json!({"updateStrategy": {"type": "InplaceUpdate", "canary": {"steps": steps}}}));
        assert!(step.len() == 1 && step[0].contains("steps[1]: metric `ask`"), "{step:?}");
    }

    #[test]
    fn a_template_that_does_not_exist_or_cannot_be_decoded_is_named() {
        for (name, says) in [("absent", "does not exist"), ("odd", "this release cannot decode it")] {
            let found = found(&json!({"preDeleteUpdateStrategy": {"hook": {"templateName": name}}}));
            assert!(found.len() == 1 && found[0].contains(says), "{found:?}");
        }
    }
}
