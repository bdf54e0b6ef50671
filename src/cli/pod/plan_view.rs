//! Describes a plan for the users of the pod, as text and as data. Pure.
//! The plan itself comes from the same code as on the node; this module only formats it.

use k8s_openapi::api::core::v1::Pod;
use serde::Serialize;

use crate::api::request::Request;
use crate::api::status::{Action, Engine, Step};
use crate::cli::form::HasName;
use crate::cli::pod::assemble::ObservedPod;
use crate::operation::plan::{Plan, Planned, PlannedHook};
use crate::operation::preflight::{Refusal, admit};
use crate::operation::snapshot::{Gate, Snapshot};

/// JSON output: the plan for one pod.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PlanView {
    namespace: String,
    name: String,
    node: String,
    /// Absent when the request would be carried out.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<Refused>,
    steps: Vec<Step>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hooks: Vec<PlannedHook>,
    containers: Vec<Expected>,
    warnings: Vec<String>,
    /// What the CLI cannot observe; the agent on the node observes it and makes the final decision.
    decided_on_the_node: Vec<String>,
    request: Request,
}

/// Why the request would be refused.
#[derive(Debug, Serialize)]
struct Refused {
    reason: &'static str,
    message: String,
}

/// The expected change of one container.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Expected {
    name: String,
    action: Action,
    engine: Engine,
    why: String,
    from_image: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    to_image: Option<String>,
    /// The image in the pod's spec afterwards, if the spec is changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    spec_image: Option<String>,
    downtime: &'static str,
    restarts: u32,
    restarts_then: u32,
}

impl HasName for PlanView {
    fn full_name(&self) -> String {
        format!("pod/{}", self.name)
    }
}

impl PlanView {
    /// Plans `request` for `pod` with the observation `seen`. `present` is the warning about a request that the pod has.
    pub(super) fn of(pod: &Pod, seen: ObservedPod, request: Request, present: Option<String>) -> Self {
        let ObservedPod { situation, unseen } = seen;
        let meta = &pod.metadata;
        let snapshot = situation.snapshot.clone();
        let mut view = Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
            refused: None,
            steps: Vec::new(),
            hooks: Vec::new(),
            containers: Vec::new(),
            warnings: Vec::new(),
            decided_on_the_node: unseen,
            request,
        };
        match admit(view.request.clone(), &situation).map(Plan::of) {
            Ok(plan) => {
                view.containers = plan.containers.iter().map(expected).collect();
                (view.steps, view.hooks, view.warnings) = (plan.steps, plan.hooks, plan.warnings);
                view.warnings.extend(gate(&view.request, &snapshot));
                view.warnings.extend(present);
            }
            Err(refusal) => view.refused = Some(refused(&refusal)),
        }
        view
    }

    /// The message of the refusal, if any.
    pub(super) fn refusal(&self) -> Option<&str> {
        self.refused.as_ref().map(|refused| refused.message.as_str())
    }

    /// The text output.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("pod/{} on node {}", self.name, self.node)];
        if let Some(Refused { reason, message }) = &self.refused {
            lines.push(format!("  would be refused ({reason}): {message}"));
        }
        for container in &self.containers {
            let Expected {
                name,
                action,
                engine,
                why,
                from_image,
                to_image,
                spec_image,
                downtime,
                restarts,
                restarts_then,
            } = container;
            let image =
                to_image.as_ref().map_or_else(|| from_image.clone(), |to| format!("{from_image} -> {to}"));
            lines.push(format!("  {action} {name}: {image}"));
            lines.push(format!("      engine    {engine}: {why}"));
            if let Some(spec_image) = spec_image {
                lines.push(format!("      spec      will name {spec_image}"));
            }
            lines.push(format!("      down      {downtime}"));
            lines.push(format!("      RESTARTS  {restarts} -> {restarts_then}"));
        }
        lines.extend(self.hooks.iter().map(hook));
        if self.refused.is_none() {
            lines.push(
                "  stays: the pod, its address, its volumes and /dev/shm, its other containers".to_owned(),
            );
            let steps = self.steps.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            lines.push(format!("  steps: {steps}"));
        }
        lines.extend(self.warnings.iter().map(|warning| format!("  note: {warning}")));
        let unseen = self.decided_on_the_node.join("; ");
        lines.push(format!("  the agent on the node makes the final decision; unknown here: {unseen}"));
        lines
    }
}

/// `hook drain (PreHook), with PodIP=10.0.0.7`.
fn hook(planned: &PlannedHook) -> String {
    let PlannedHook { step, template, args, .. } = planned;
    let args: Vec<_> =
        args.iter().map(|arg| format!("{}={}", arg.name, arg.value.as_deref().unwrap_or_default())).collect();
    let with = if args.is_empty() { String::new() } else { format!(", with {}", args.join(", ")) };
    format!("  hook {template} ({step}){with}")
}

fn refused(refusal: &Refusal) -> Refused {
    Refused { reason: refusal.reason(), message: refusal.to_string() }
}

fn expected(planned: &Planned) -> Expected {
    Expected {
        name: planned.name.clone(),
        action: planned.action,
        engine: planned.engine,
        why: planned.why.clone(),
        from_image: planned.from.image.clone(),
        to_image: planned.image.clone(),
        spec_image: planned.spec_image.clone(),
        downtime: downtime(planned.engine),
        restarts: planned.from.attempt,
        restarts_then: planned.from.attempt.saturating_add(1),
    }
}

/// The expected downtime, as measured on a small machine.
fn downtime(engine: Engine) -> &'static str {
    match engine {
        Engine::Recreate => "the time to stop, plus about 0.1 s",
        Engine::Respec => "the time to stop, plus about 0.1 s; more if its kubelet delays it",
        Engine::Stop => {
            "the time to stop, plus 1 s; 10 to 300 s if it ended within the last ten minutes \
             (CrashLoopBackOff counts a stop as a crash)"
        }
    }
}

/// The effect on the pod's traffic.
fn gate(request: &Request, snapshot: &Snapshot) -> Option<String> {
    let gate = &snapshot.declared.as_ref()?.gate;
    match gate {
        Gate::Closed { reason } => {
            Some(format!("the pod is out of traffic already (its readiness gate is closed: {reason})"))
        }
        Gate::Absent => Some(
            "the pod has no readiness gate InPlaceUpdateReady: it is not taken out of traffic first"
                .to_owned(),
        ),
        Gate::Unset | Gate::Open if request.drained_by().is_none() => {
            Some("without --grace it is not taken out of traffic first".to_owned())
        }
        Gate::Unset | Gate::Open => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::pod::assemble::tests::{pod, seen};

    fn plan_view(text: &str) -> PlanView {
        let pod = pod();
        PlanView::of(&pod, seen(&pod), Request::parse(Some(text)).unwrap().unwrap(), None)
    }

    #[test]
    fn a_plan_says_what_people_will_see() {
        let plan_view = plan_view("restart app");
        let text = plan_view.lines().join("\n");
        for part in [
            "pod/web on node node-1",
            "Restart app: registry.local:5000/app:v1",
            "engine    Recreate: ",
            "about 0.1 s",
            "RESTARTS  1 -> 2",
            "stays: the pod, its address",
            "without --grace it is not taken out of traffic",
            "files it wrote outside its volumes are lost",
            "the agent on the node makes the final decision",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert_eq!(plan_view.refusal(), None);
        assert!(!text.contains("xyzzy"));
    }

    #[test]
    fn the_engine_is_that_of_the_decisions() {
        let digest =
            "registry.local:5000/app@sha256:2f277fae3b0a33002c6d78ad5d248ee89c551f604f45e252b7013a5551b10b5e";
        for (text, engine, why, spec) in [
            ("restart app", Engine::Recreate, "its kubelet adopts the clone", None),
            ("restart side", Engine::Respec, "its environment comes from objects", Some(digest)),
            ("swap app=registry.local:5000/app:v2", Engine::Respec, "", Some("registry.local:5000/app:v2")),
            (r#"{"containers":[{"name":"app"}],"engine":"Stop"}"#, Engine::Stop, "starts it again", None),
        ] {
            let plan_view = plan_view(text);
            let [container] = plan_view.containers.as_slice() else { panic!("{:?}", plan_view.refused) };
            assert_eq!(container.engine, engine, "{text}");
            assert!(container.why.contains(why), "{text}: {}", container.why);
            assert_eq!(container.spec_image.as_deref(), spec, "{text}");
            let warnings = plan_view.warnings.join("; ");
            assert_eq!(warnings.contains("imagePullPolicy Always"), text == "restart side", "{warnings}");
            // A container that may not be cloned cannot be replaced by the agent while the kubelet is in
            // back-off.
            assert_eq!(warnings.contains("fourth change"), text == "restart side", "{warnings}");
        }
    }

    #[test]
    fn a_refusal_is_the_plan() {
        let plan_view = plan_view("restart proxy");
        assert!(plan_view.refusal().unwrap().contains("not running"));
        let json = serde_json::to_value(&plan_view).unwrap();
        assert_eq!(json["refused"]["reason"], "NotRunning");
        assert!(plan_view.lines().join("\n").contains("would be refused (NotRunning)"));
    }
}
