//! Reads any events of watches, and decides about what they contain: a request that a decision writes is valid, and is written
//! on a pod that was there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use inplace::api::annotation;
use inplace::api::container_recreate_request::ContainerRecreateRequest;
use inplace::api::in_place_rollout::InPlaceRollout;
use inplace::api::request::Request;
use inplace::cluster::pod::Pod as NodePod;
use inplace::controller::watched;
use inplace::operation::plan::Plan;
use inplace::operation::preflight::{self, Hashes, Hooks, Runtime, Situation};
use inplace::operation::snapshot::{Container, Owner, Sandbox, Snapshot, State};
use inplace::podtask::disruption::{Disruption, DisruptionAllowance};
use inplace::podtask::priority::NodeLabels;
use inplace::podtask::write::PodPatch;
use inplace::recreate_request::{self, RecreateRequest};
use inplace::rollout::decide::{self, RolloutInput};
use inplace::rollout::desired::Rollout;
use inplace::rollout::pod::Pod as RolloutPod;
use inplace::rollout::target::TargetState;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::core::WatchEvent;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// The part of an event that says what it is about.
#[derive(Deserialize)]
struct Event {
    object: Kind,
}

#[derive(Deserialize)]
struct Kind {
    kind: String,
}

/// What the events of one input contain.
#[derive(Default)]
struct Seen {
    pods: Vec<Pod>,
    rollouts: Vec<InPlaceRollout>,
    requests: Vec<ContainerRecreateRequest>,
    budgets: Vec<Arc<Disruption>>,
}

pub(super) fn run(data: &[u8]) {
    let now = Timestamp::from_second(1_800_000_000).expect("a time");
    let mut seen = Seen::default();
    // Each line is an event.
    for line in data.split(|byte| *byte == b'\n') {
        let Ok(event) = serde_json::from_slice::<Event>(line) else { continue };
        match event.object.kind.as_str() {
            "Pod" => {
                if let Some(pod) = object::<NodePod>(line) {
                    of_node(&pod, now);
                }
                seen.pods.extend(object(line));
            }
            "InPlaceRollout" => seen.rollouts.extend(object(line)),
            "ContainerRecreateRequest" => seen.requests.extend(object(line)),
            "PodDisruptionBudget" => seen.budgets.extend(object(line).map(Arc::new)),
            _ => {}
        }
        watched(line);
    }
    seen.rollouts.iter().for_each(|rollout| of_rollout(rollout, &seen, now));
    seen.requests.iter().for_each(|request| of_request(request, &seen, now));
}

/// The object of an event, if it can be read.
fn object<T: DeserializeOwned>(line: &[u8]) -> Option<T> {
    #[derive(Deserialize)]
    struct Of<T> {
        object: T,
    }
    serde_json::from_slice::<WatchEvent<serde_json::Value>>(line).ok()?;
    serde_json::from_slice::<Of<T>>(line).ok().map(|event| event.object)
}

/// What the agent decides about a pod of its node: whether its request can be carried out. All its containers run.
fn of_node(pod: &NodePod, now: Timestamp) {
    let _ = (
        pod.status(),
        pod.failure(),
        pod.origin(),
        pod.member(),
        pod.leaves_at(now),
        pod.gate(&pod.gates_of_agents()),
    );
    let declared = pod.declared_at(true, now);
    let Ok(Some(request)) = Request::parse(pod.request()) else { return };
    let instance = |declared: &inplace::operation::snapshot::DeclaredContainer| Container {
        id: declared.container_id.clone().unwrap_or_default(),
        name: declared.name.clone(),
        fence: false,
        holder: false,
        standby: false,
        attempt: declared.restarts,
        state: State::Running,
        image: declared.image.clone(),
        image_id: declared.image_id.clone(),
        spec_hash: String::new(),
        operation: None,
        created_at: now,
        started_at: Some(now),
        finished_at: None,
        exit_code: 0,
        start_error: None,
        grace: std::time::Duration::from_secs(30),
        has_pre_stop: false,
        ports: Vec::new(),
    };
    let sandbox = Sandbox { id: "s".to_owned(), pod: pod.reference(), ready: true, owner: Owner::Kubelet };
    let containers: Vec<_> = declared.containers.iter().map(instance).collect();
    let source =
        preflight::Source { image_present: true, runs_declared: true, ..preflight::Source::default() };
    let situation = Situation {
        sources: containers.iter().map(|container| (container.name.clone(), source.clone())).collect(),
        snapshot: Snapshot { declared: Some(declared), ..Snapshot::of_runtime(Some(sandbox), containers) },
        runtime: Runtime { name: "containerd".to_owned(), version: "1.6.20".to_owned() },
        hashes: Hashes::new(),
        hooks: Hooks::default(),
        memory: None,
        group: None,
        now,
    };
    if let Ok(admitted) = preflight::admit(request, &situation) {
        let operation = Plan::of(admitted).begin(now, None);
        inplace::operation::next::next(&operation, &situation.snapshot, now);
    }
}

/// What the controller decides about a rollout: at first, and again with the status that it wrote.
fn of_rollout(object: &InPlaceRollout, seen: &Seen, now: Timestamp) {
    let mut rollout = Rollout::read(object.clone());
    let pods: Vec<_> = seen.pods.iter().map(RolloutPod::read).collect();
    let target =
        TargetState::Present { owners: None, templates: Vec::new(), desired: None, gives_up_at: None };
    let nodes: NodeLabels = BTreeMap::new();
    for target in [&target, &target, &TargetState::Absent] {
        let decision = decide::decide(
            &rollout,
            RolloutInput {
                target,
                pods: pods.iter().collect(),
                allowance: DisruptionAllowance::new(seen.budgets.iter().cloned(), "v1"),
                nodes: &nodes,
                newer: None,
                aborting: None,
                active: BTreeSet::new(),
                agents: None,
                now,
            },
        );
        for write in &decision.writes {
            assert!(pods.iter().any(|pod| pod.base.uid == write.pod.uid && pod.base.name == write.pod.name));
            is_valid(&write.patch);
        }
        assert!(!decision.delete || decision.status.phase.is_terminal(), "it deletes a rollout in progress");
        serde_json::to_string(&decision.status).expect("a status can be written");
        rollout.before = decision.status;
    }
}

/// What the controller decides about a `ContainerRecreateRequest`, with its pod and without.
fn of_request(object: &ContainerRecreateRequest, seen: &Seen, now: Timestamp) {
    let request = RecreateRequest::read(object.clone());
    let pods: Vec<_> = seen.pods.iter().map(recreate_request::Pod::read).collect();
    for pod in pods.iter().map(Some).chain([None]) {
        let decision = recreate_request::decide(&request, pod, now);
        assert!(decision.patch.is_none() || pod.is_some(), "it writes on a pod that is not there");
        decision.patch.iter().for_each(is_valid);
        serde_json::to_string(&decision.status).expect("a status can be written");
    }
}

fn is_valid(patch: &PodPatch) {
    if let Some(Some(text)) = patch.annotations.get(annotation::REQUEST) {
        let request = Request::parse(Some(text));
        assert!(matches!(request, Ok(Some(_))), "{text}: {request:?}");
    }
}
