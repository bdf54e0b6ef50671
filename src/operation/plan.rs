//! The plan: the engine for each container with the reason, and the warnings that a person should read first.
//!
//! The engine of an operation comes from its plan and from nowhere else. The execution starts with [`Plan::begin`];
//! nothing here executes it.

use jiff::Timestamp;
use serde::Serialize;

use crate::api::hook_template::Argument;
use crate::api::image::may_move;
use crate::api::pod_ref::PodRef;
use crate::api::request::{Order, Request};
use crate::api::status::{Action, ContainerInstance, Engine, Step};
use crate::operation::effect::GateAction;
use crate::operation::engine::{Choice, MAX_BACK_OFF};
use crate::operation::hook::{Hook, Moment};
use crate::operation::memory;
use crate::operation::port::Port;
use crate::operation::preflight::{Admitted, AdmittedTarget};
use crate::operation::snapshot::{
    Container, Declared, DeclaredContainer, Gate, Owner, PullPolicy, RestartPolicy, UserSource,
};
use crate::operation::state::{Operation, Target};

/// What will be done, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// The admitted request.
    pub request: Request,
    /// The pod that the request is for.
    pub pod: PodRef,
    /// The ID of the pod's sandbox, which is not replaced.
    #[serde(rename = "sandboxID")]
    pub sandbox_id: String,
    /// The stages that the operation goes through.
    pub steps: Vec<Step>,
    /// One entry per container, in the order of the request.
    pub containers: Vec<Planned>,
    /// The hooks that must pass.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<PlannedHook>,
    /// What a person should know before the operation starts.
    pub warnings: Vec<String>,
    /// The program that manages the pod.
    #[serde(skip)]
    pub owner: Owner,
    /// The readiness gate; `None` without an API server.
    #[serde(skip)]
    gate: Option<Gate>,
}

/// One container of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Planned {
    /// The container's name in the pod spec.
    pub name: String,
    /// Restart or swap.
    pub action: Action,
    /// The engine that is used here.
    pub engine: Engine,
    /// Why this engine is used.
    pub why: String,
    /// Without an API server: the engine that would be used through one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_cluster: Option<Engine>,
    /// Why that engine would be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_cluster_why: Option<&'static str>,
    /// The container instance that runs now.
    pub from: ContainerInstance,
    /// The image that it will run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The new image in the pod's spec, when the spec is changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec_image: Option<String>,
    #[serde(skip)]
    choice: Choice,
    #[serde(skip)]
    container: Container,
    #[serde(skip)]
    next_attempt: u32,
    #[serde(skip)]
    user: UserSource,
}

/// One hook of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedHook {
    /// The stage in which it runs.
    pub step: Step,
    /// The name of its template.
    pub template: String,
    /// The arguments that it runs with.
    pub args: Vec<Argument>,
    #[serde(skip)]
    hook: Hook,
}

impl From<Hook> for PlannedHook {
    fn from(hook: Hook) -> Self {
        let (template, args) = (hook.template.clone(), hook.spec.args.clone());
        Self { step: hook.moment.step(), template, args, hook }
    }
}

impl Plan {
    /// Plans an admitted request.
    pub fn of(admitted: Admitted) -> Self {
        let (request, pod, sandbox_id, owner, declared, targets, hooks) = admitted.into_parts();
        let hooks: Vec<_> = hooks.into_iter().map(PlannedHook::from).collect();
        let has = |moment| hooks.iter().any(|planned| planned.hook.moment == moment);
        let mut warnings = Vec::new();
        if owner.is_kubelet() && declared.is_none() {
            warnings.push(
                "a kubelet manages this pod: safe with restartPolicy Always; with another policy the kubelet may \
                 treat the pod as finished while the container is down"
                    .to_owned(),
            );
        }
        let mut swaps = false;
        let containers = targets
            .into_iter()
            .map(|target| {
                let action = if target.image.is_some() { Action::Swap } else { Action::Restart };
                swaps |= action == Action::Swap;
                let container =
                    declared.as_ref().and_then(|declared| declared.container(&target.container.name));
                warnings.extend(warnings_of(&target.container, target.image.as_deref()));
                warnings.extend(
                    container.into_iter().flat_map(|container| warnings_in_cluster(container, &target)),
                );
                if request.order == Order::StartFirst {
                    warnings.push(beside(&target.container, declared.as_ref(), target.room.as_deref()));
                }
                if target.shares_termination_log && target.choice.engine == Engine::Recreate {
                    warnings.push(shared_termination_log(&target.container.name));
                }
                let elsewhere = declared.is_none().then(|| in_cluster(action, owner));
                Planned {
                    name: target.container.name.clone(),
                    action,
                    engine: target.choice.engine,
                    why: target.choice.why.clone(),
                    in_cluster: elsewhere.map(|(engine, _)| engine),
                    in_cluster_why: elsewhere.map(|(_, why)| why),
                    from: target.from,
                    image: target.image,
                    spec_image: target.choice.change.as_ref().map(|change| change.to.clone()),
                    choice: target.choice,
                    container: target.container,
                    next_attempt: target.next_attempt,
                    user: container.map(|container| container.user).unwrap_or_default(),
                }
            })
            .collect();
        let drains = request.drained_by().is_some();
        let gate = declared.as_ref().map(|declared| declared.gate.clone());
        let left_closed = gate.as_ref().is_some_and(Gate::left_closed);
        let steps = [
            swaps.then_some(Step::Pull),
            has(Moment::Before).then_some(Step::PreHook),
            (request.order == Order::StartFirst).then_some(Step::Standby),
            has(Moment::Handover).then_some(Step::Handover),
            drains.then_some(Step::Drain),
            Some(Step::Swap),
            Some(Step::Verify),
            has(Moment::After).then_some(Step::PostHook),
            (drains || left_closed).then_some(Step::Ready),
        ];
        let steps = steps.into_iter().flatten().collect();
        Self { request, pod, sandbox_id, steps, containers, hooks, warnings, owner, gate }
    }

    /// The part of `owed`, the gate change that an earlier operation could not write, that is still to be made: none if the
    /// gate is not closed any more, or another client has closed it.
    pub fn owed_gate(&self, owed: Option<GateAction>) -> Option<GateAction> {
        owed.filter(|_| self.gate.as_ref().is_none_or(|gate| gate.left_closed() || gate.is_drained()))
    }

    /// The operation that executes this plan, begun at `now`. `owed`: the gate change that is still to be made. A gate that a
    /// failed operation left closed, or was to leave closed, is opened when this operation succeeds.
    pub fn begin(self, now: Timestamp, owed: Option<GateAction>) -> Operation {
        let inherits = match owed {
            Some(GateAction::Failed) => true,
            Some(GateAction::Open) => false,
            Some(GateAction::Drain) | None => self.gate.as_ref().is_some_and(Gate::left_closed),
        };
        let targets = self
            .containers
            .into_iter()
            .map(|planned| {
                let Planned { container, image, action, choice, next_attempt, user, .. } = planned;
                Target { user, ..Target::new(container, image, action, choice, next_attempt) }
            })
            .collect();
        let unsupervised = self.owner == Owner::NodeRun;
        let mut operation =
            Operation::new(self.request, self.pod, self.sandbox_id, unsupervised, targets, now);
        operation.in_cluster = self.gate.is_some();
        operation.step = self.steps.first().copied().unwrap_or(operation.step);
        for PlannedHook { hook, .. } in self.hooks {
            match hook.moment {
                Moment::Before | Moment::Handover => operation.pre_hook = Some(hook),
                Moment::After => operation.post_hook = Some(hook),
            }
        }
        if inherits {
            operation.drain.get_or_insert_default().inherited = true;
        }
        operation
    }
}

/// What `Auto` chooses for a container whose configuration can be cloned, where there is an API server.
fn in_cluster(action: Action, owner: Owner) -> (Engine, &'static str) {
    match (action, owner) {
        (Action::Restart, _) => (
            Engine::Recreate,
            "its configuration can be cloned, if the pod's spec allows it too (restartPolicy Always)",
        ),
        (Action::Swap, Owner::KubeletStatic) => {
            (Engine::Stop, "the image of a static pod is changed in its manifest, not through the API server")
        }
        (Action::Swap, Owner::Kubelet | Owner::NodeRun | Owner::Nobody) => {
            (Engine::Respec, "the image in the pod's spec is changed, and the kubelet replaces the container")
        }
    }
}

/// What a standby means for the pod. A readiness probe that runs a command is run in the standby as well.
fn beside(container: &Container, declared: Option<&Declared>, room: Option<&str>) -> String {
    let name = &container.name;
    let limit = declared.and_then(|declared| declared.memory_limit);
    let declared = declared.and_then(|declared| declared.container(name));
    let probe = if declared.is_some_and(|declared| declared.readiness.is_some()) {
        "its readiness probe is run in the second one and must pass there, but a command that connects to a shared port may \
         reach either"
    } else {
        "a probe over the network may reach either, so that the listening sockets are counted instead"
    };
    let datagrams = if container.ports.iter().any(|port| matches!(port, Port::Udp(_))) {
        "; datagrams to its UDP ports may reach either, also those of clients that the first one serves"
    } else {
        ""
    };
    let room = room.map_or_else(|| memory::unobserved(limit), str::to_owned);
    format!(
        "{name}: a second one runs beside it and takes a share of its connections as soon as it listens; {probe}{datagrams}; \
         {room}"
    )
}

fn warnings_of(container: &Container, image: Option<&str>) -> Vec<String> {
    let mut warnings = vec![format!(
        "{}: files it wrote outside its volumes are lost, /dev/shm and volumes stay",
        container.name
    )];
    if container.grace.as_secs() > 60 {
        let grace = container.grace.as_secs();
        warnings.push(format!("{}: it may take up to its grace period of {grace} s to stop", container.name));
    }
    if let Some(image) = image.filter(|image| may_move(image)) {
        warnings.push(format!("{}: {image} is a tag and may move; a digest does not", container.name));
    }
    if image.is_some_and(|image| image == container.image) {
        warnings.push(format!(
            "{}: it already runs {}; the image is pulled again",
            container.name, container.image
        ));
    }
    warnings
}

fn shared_termination_log(name: &str) -> String {
    format!(
        "{name}: the new container shares the termination message file of the old one, with its content: the \
         kubelet's folder is not visible to inplace under its own path (mount it there)"
    )
}

/// The warnings that follow from the pod's spec and its kubelet.
fn warnings_in_cluster(declared: &DeclaredContainer, target: &AdmittedTarget) -> Vec<String> {
    let name = &declared.name;
    let engine = target.choice.engine;
    let spec_image = target.choice.change.as_ref().map(|change| change.to.as_str());
    let mut warnings = Vec::new();
    let next_image = spec_image.unwrap_or(&declared.image);
    let is_tag = may_move(next_image);
    if declared.pull_policy == PullPolicy::Always && engine != Engine::Recreate {
        warnings.push(format!(
            "{name}: imagePullPolicy Always: its kubelet contacts the registry while {name} is down{}",
            if is_tag { ", and uses the image to which the tag resolves then" } else { "" }
        ));
    }
    let grace = target.container.grace;
    if let Some(liveness) = declared.liveness
        && engine != Engine::Respec
        && (grace > liveness.kills_after || liveness.grace.is_some_and(|own| own < grace))
    {
        let (grace, after) = (grace.as_secs(), liveness.kills_after.as_secs());
        let own = liveness.grace.map(|own| format!(" with a grace period of {} s", own.as_secs()));
        warnings.push(format!(
            "{name}: its liveness probe continues while it stops: if the probe fails for {after} s, its kubelet \
             kills it{} before its grace period of {grace} s is over",
            own.unwrap_or_default()
        ));
    }
    if engine == Engine::Recreate && !declared.devices.is_empty() {
        warnings.push(format!(
            "{name}: it uses {}: a device plugin that prepares its device before each start is not called for this start",
            declared.devices.join(", ")
        ));
    }
    if engine == Engine::Stop {
        let longest = MAX_BACK_OFF.as_secs();
        warnings.push(format!(
            "{name}: its kubelet treats the stop as a crash and waits about 1 s the first time, 10 s to \
             {longest} s if it was restarted within 10 minutes"
        ));
    }
    if let (Engine::Respec, None, Some(alias)) = (engine, &target.image, spec_image) {
        warnings
            .push(format!("{name}: the pod's spec will name {alias}, which its owner's template does not"));
    }
    if let Some(change) = &target.choice.change
        && !(change.cloneable && change.hash.is_some())
    {
        warnings.push(format!(
            "{name}: its kubelet may delay a fourth change of its image within 10 minutes by 10 s or more"
        ));
    }
    if target.image.is_some() && declared.restart_policy != RestartPolicy::Always {
        warnings.push(format!(
            "{name}: its restartPolicy is not Always: an image that exits by itself ends the pod, and no \
             rollback is possible"
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::operation::fixtures::{
        ask, at, declared, find, pod, pod_in_cluster, situation, situation_in_cluster,
    };
    use crate::operation::snapshot::{Liveness, Snapshot};

    fn plan(text: &str, owner: Owner) -> Plan {
        Plan::of(ask(text, &situation(pod(owner))).unwrap())
    }

    #[test]
    fn every_engine_has_its_place() {
        for (text, owner, in_cluster) in [
            ("restart app", Owner::Kubelet, Engine::Recreate),
            ("restart app", Owner::KubeletStatic, Engine::Recreate),
            ("restart app", Owner::Nobody, Engine::Recreate),
            ("swap app=repo/app:v2", Owner::Nobody, Engine::Respec),
            ("swap app=repo/app:v2", Owner::NodeRun, Engine::Respec),
        ] {
            let planned = plan(text, owner).containers.remove(0);
            assert_eq!(
                (planned.engine, planned.in_cluster),
                (Engine::Recreate, Some(in_cluster)),
                "{text} {owner:?}"
            );
        }
        assert_eq!(in_cluster(Action::Swap, Owner::Kubelet).0, Engine::Respec);
        assert_eq!(in_cluster(Action::Swap, Owner::KubeletStatic).0, Engine::Stop);
    }

    #[test]
    fn what_a_person_should_know_is_said() {
        let digest = format!("swap app=repo/app@sha256:{}", "a".repeat(64));
        for (text, owner, warning, said) in [
            ("restart app", Owner::Kubelet, "restartPolicy Always", true),
            ("restart app", Owner::Nobody, "restartPolicy Always", false),
            ("restart app", Owner::Nobody, "/dev/shm and volumes stay", true),
            ("swap app=repo/app:v2", Owner::Nobody, "app: repo/app:v2 is a tag and may move", true),
            (&digest, Owner::Nobody, "is a tag", false),
            ("swap app=repo/app:v1", Owner::Nobody, "app: it already runs repo/app:v1", true),
            ("swap app=repo/app:v2", Owner::Nobody, "it already runs", false),
            ("restart app", Owner::Nobody, "its grace period of", false),
            ("restart side", Owner::Nobody, "side: it may take up to its grace period of 61 s", true),
        ] {
            let mut snapshot = pod(owner);
            find(&mut snapshot, "side-2").grace = std::time::Duration::from_secs(61);
            let plan = Plan::of(ask(text, &situation(snapshot)).unwrap());
            assert_eq!(plan.warnings.join("; ").contains(warning), said, "{text}: {:?}", plan.warnings);
        }
    }

    #[test]
    fn the_stages_are_golden() {
        for (text, steps) in [
            ("restart app", r#"["Swap","Verify"]"#),
            ("swap app=repo/app:v2", r#"["Pull","Swap","Verify"]"#),
            (
                r#"{"containers":[{"name":"app"},{"name":"side","image":"a:v2"}]}"#,
                r#"["Pull","Swap","Verify"]"#,
            ),
        ] {
            let plan = plan(text, Owner::NodeRun);
            assert_eq!(serde_json::to_string(&plan.steps).unwrap(), steps);
            assert_eq!(plan.clone().begin(at(0), None).step, plan.steps[0]);
        }
        let json = serde_json::to_value(plan("swap app=repo/app:v2", Owner::NodeRun)).unwrap();
        assert_eq!(json["sandboxID"], "sandbox-1");
        assert_eq!(json["containers"][0]["inCluster"], "Respec");
        assert_eq!(json["containers"][0]["from"]["containerID"], "app-2");
    }

    #[test]
    fn only_pods_without_another_cleaner_are_cleaned() {
        for (owner, cleans_up) in [(Owner::Kubelet, false), (Owner::Nobody, false), (Owner::NodeRun, true)] {
            assert_eq!(plan("restart app", owner).begin(at(0), None).unsupervised, cleans_up);
        }
    }

    #[test]
    fn a_drain_is_a_stage_of_its_own_and_ends_with_traffic() {
        for (text, steps) in [
            (
                r#"{"containers":[{"name":"app"}],"gracePeriodSeconds":20}"#,
                r#"["Drain","Swap","Verify","Ready"]"#,
            ),
            (
                r#"{"containers":[{"name":"app","image":"a:v2"}],"gracePeriodSeconds":20}"#,
                r#"["Pull","Drain","Swap","Verify","Ready"]"#,
            ),
        ] {
            let plan = Plan::of(ask(text, &situation(pod_in_cluster())).unwrap());
            assert_eq!(serde_json::to_string(&plan.steps).unwrap(), steps);
            let operation = plan.begin(at(0), None);
            assert!(operation.drain.is_some() && operation.in_cluster && !operation.unsupervised);
        }
    }

    /// The gate that an earlier operation could not set.
    #[test]
    fn an_operation_takes_over_what_is_to_be_done_with_a_gate_that_is_still_closed() {
        let closed = |reason: &str| Gate::Closed { reason: reason.to_owned() };
        let (drained, left_closed) = (closed("InPlaceDrain"), closed("InPlaceFailed"));
        let (open, keep) = (Some(GateAction::Open), Some(GateAction::Failed));
        for (gate, before, owed, inherits) in [
            (&drained, None, None, false),
            (&drained, open, open, false),
            (&drained, keep, keep, true),
            (&left_closed, None, None, true),
            (&left_closed, open, open, false),
            (&left_closed, keep, keep, true),
            (&Gate::Open, keep, None, false),
            (&Gate::Open, open, None, false),
            (&closed("Maintenance"), open, None, false),
        ] {
            let mut snapshot = pod_in_cluster();
            snapshot.declared.as_mut().unwrap().gate = gate.clone();
            let plan = Plan::of(ask("restart app", &situation(snapshot)).unwrap());
            assert_eq!(plan.owed_gate(before), owed, "{gate:?} {before:?}");
            let inherited = plan.begin(at(0), owed).drain.is_some_and(|drain| drain.inherited);
            assert_eq!(inherited, inherits, "{gate:?} {before:?}");
        }
    }

    fn liveness(kills_after: u64, grace: Option<u64>) -> Liveness {
        let seconds = Duration::from_secs;
        Liveness { kills_after: seconds(kills_after), grace: grace.map(seconds) }
    }

    #[test]
    fn in_a_cluster_the_plan_says_what_its_kubelet_makes_of_it() {
        type Change = fn(&mut Snapshot);
        fn keep(_: &mut Snapshot) {}
        let respec = r#"{"containers":[{"name":"app"}],"engine":"Respec"}"#;
        let stop = r#"{"containers":[{"name":"app"}],"engine":"Stop"}"#;
        let digest = format!("swap app=repo/app@sha256:{}", "a".repeat(64));
        let always: Change = |s| declared(s).pull_policy = PullPolicy::Always;
        let older: Change = |s| find(s, "app-2").spec_hash = "0ld".into();
        let on_failure: Change = |s| declared(s).restart_policy = RestartPolicy::OnFailure;
        let device: Change = |s| declared(s).devices = vec!["gpu.example/card".into()];
        let probed: Change = |s| declared(s).liveness = Some(liveness(1, None));
        let probed_long: Change = |s| declared(s).liveness = Some(liveness(3600, None));
        let probed_grace: Change = |s| declared(s).liveness = Some(liveness(3600, Some(1)));
        for (text, change, warning, said) in [
            ("restart app", keep as Change, "a kubelet manages this pod", false),
            ("restart app", device, "uses gpu.example/card: a device plugin", true),
            (respec, device, "a device plugin", false),
            ("restart app", keep, "a device plugin", false),
            ("restart app", probed, "if the probe fails for 1 s, its kubelet kills it", true),
            ("restart app", probed_grace, "kills it with a grace period of 1 s", true),
            ("restart app", probed_long, "liveness", false),
            (respec, probed, "liveness", false),
            ("restart app", keep, "liveness", false),
            ("restart app", always, "contacts the registry", false),
            (respec, always, "contacts the registry", true),
            (respec, always, "uses the image to which the tag resolves", false),
            (stop, always, "uses the image to which the tag resolves", true),
            (&digest, always, "uses the image to which the tag resolves", false),
            (respec, keep, "which its owner's template does not", true),
            ("swap app=repo/app:v2", keep, "which its owner's template does not", false),
            (stop, keep, "treats the stop as a crash", true),
            (respec, keep, "treats the stop as a crash", false),
            ("swap app=repo/app:v2", keep, "its kubelet may delay", false),
            ("swap app=repo/app:v2", older, "its kubelet may delay", true),
            ("swap app=repo/app:v2", on_failure, "no rollback is possible", true),
            ("swap app=repo/app:v2", keep, "no rollback is possible", false),
        ] {
            let mut snapshot = pod_in_cluster();
            change(&mut snapshot);
            let plan = Plan::of(ask(text, &situation_in_cluster(snapshot)).unwrap());
            assert_eq!(plan.warnings.join("; ").contains(warning), said, "{text}: {:?}", plan.warnings);
            assert_eq!(plan.containers[0].in_cluster, None, "{text}");
        }
    }
}
