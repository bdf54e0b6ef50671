//! Updates in place that a bk-bcs operator began before it was replaced: its marks on the pods, the kubelets that go on with
//! them, and the readiness gates of all pods.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::api::request::Request;
use crate::api::status::Step;
use crate::api::{annotation, workload_key};
use crate::podtask::foreign::{ForeignStep, ForeignUpdate};
use crate::podtask::pod::{Pod, PodPhase};
use crate::podtask::write::{PodPatch, VersionedRef};
use crate::workload::action::{Action, Why};
use crate::workload::decide::Decision;
use crate::workload::model::ForeignMove;
use crate::workload::revision::{self, Revision};

use super::World;
use super::nodes::is_on;

/// The name that the operator gives the revision of the template.
const REVISION: &str = "web-7f8c5d6b9f";
/// The container of the pods.
const APP: &str = "app";

/// A readiness gate that is closed while no operation runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    /// As a bk-bcs operator closes it.
    ByOperator,
    /// As the controller closes it before its first request.
    ByController,
    /// As an operation leaves it that failed after it touched the pod.
    Failed,
}

/// What the operator wrote on a pod, and what its container runs.
#[derive(Debug)]
pub(super) struct Marks {
    began: Timestamp,
    /// The image that the annotation of the grace period names.
    grace: Option<String>,
    /// The image that the annotation of the state says the container had; `None` without the annotation.
    before: Option<String>,
    /// The image that the container runs.
    runs: String,
}

impl World {
    /// The operator begins the update of the pod at this index to the template, and gets so far.
    pub(super) fn begin_foreign(&mut self, at: usize, how: ForeignMove) {
        let many = self.pods.len().max(1);
        let idle = |pod: &Pod| pod.is_ready() && pod.label != REVISION;
        if !self.pods.get(at % many).is_some_and(idle) {
            return;
        }
        self.write_foreign_revision();
        let image = self.spec().template.image(APP).unwrap().to_owned();
        let pod = &mut self.pods[at % many];
        let before = pod.image(APP).unwrap().to_owned();
        pod.label = REVISION.to_owned();
        pod.ready_since = None;
        let (grace, runs) = match how {
            ForeignMove::Graced => (Some(image.clone()), before.clone()),
            ForeignMove::Written => (None, before.clone()),
            ForeignMove::Restarted => (None, image.clone()),
        };
        if grace.is_none() {
            pod.images = vec![(APP.to_owned(), image)];
        }
        let uid = pod.uid.clone();
        self.gates.insert(uid.clone(), Gate::ByOperator);
        self.marks.insert(uid, Marks { began: self.now, grace, before: Some(before), runs });
    }

    fn write_foreign_revision(&mut self) {
        if self.revisions.iter().any(|revision| revision.name == REVISION) {
            return;
        }
        let found = revision::find("web", &self.spec().template, &self.history(), 0);
        let number = self.revisions.iter().map(|revision| revision.number).max().unwrap_or_default() + 1;
        self.revisions.push(Revision { name: REVISION.to_owned(), number, ..found.revision });
    }

    /// The kubelet of the pod at this index restarts the container whose image the operator has written.
    pub(super) fn restart_foreign(&mut self, at: usize) {
        let many = self.pods.len().max(1);
        let Some(pod) = self.pods.get_mut(at % many).filter(|pod| !is_on(pod, &self.lost)) else { return };
        let Some(marks) = self.marks.get_mut(&pod.uid) else { return };
        let image = pod.image(APP).unwrap();
        if marks.runs != image && pod.phase == PodPhase::Running && !self.open.contains_key(&pod.uid) {
            image.clone_into(&mut marks.runs);
            pod.version.push('f');
        }
    }

    /// An agent has started the container of the pod with this image.
    pub(super) fn note_image(&mut self, uid: &str, image: &str) {
        if let Some(marks) = self.marks.get_mut(uid) {
            image.clone_into(&mut marks.runs);
        }
    }

    /// The controller writes the condition of the gate.
    pub(super) fn set_gate(&mut self, pod: &VersionedRef, open: bool) {
        let same = |one: &&mut Pod| one.uid == pod.uid && one.version == pod.version;
        let Some(pod) = self.pods.iter_mut().find(same) else { return };
        if open {
            let gate = self.gates.remove(&pod.uid);
            assert_ne!(
                gate,
                Some(Gate::Failed),
                "{}: an operation failed after it touched the pod",
                pod.name
            );
            let runs = self.marks.get(&pod.uid).map(|marks| marks.runs.as_str());
            pod.ready_since = (!is_on(pod, &self.lost) && runs == pod.image(APP)).then_some(self.now);
        } else {
            self.gates.insert(pod.uid.clone(), Gate::ByController);
        }
        pod.version.push('g');
    }

    /// A write of the controller removes annotations of the operator.
    pub(super) fn patch_marks(&mut self, uid: &str, patch: &PodPatch) {
        let Some(marks) = self.marks.get_mut(uid) else { return };
        let removes = |key: &str| patch.annotations.get(key) == Some(&None);
        if removes(workload_key::UPDATE_GRACE) {
            marks.grace = None;
        }
        if removes(workload_key::UPDATE_STATE) {
            marks.before = None;
        }
    }

    /// What the pods show of their gates and of the updates of the operator.
    pub(super) fn report_gates(&mut self) {
        for pod in &mut self.pods {
            let gate = self.gates.get(&pod.uid).filter(|_| !is_drained(&self.open, pod));
            pod.gate_left_closed = matches!(gate, Some(Gate::ByController | Gate::Failed));
            let taken_over = pod.gate_left_closed && pod.task.as_ref().is_some_and(|task| task.gate_closed);
            let marks = self.marks.get(&pod.uid);
            pod.foreign =
                marks.and_then(|marks| ForeignUpdate::read(&marked(pod, marks, gate.copied()), taken_over));
        }
    }

    /// No pod is touched while its kubelet restarts a container for the operator, and a gate that the operator closed opens only
    /// when the container runs the image that the pod's spec names.
    pub(super) fn check_foreign(&self, decision: &Decision) {
        for action in &decision.actions {
            let pod = |name: &str| self.pods.iter().find(|pod| pod.name == name).unwrap();
            match action {
                Action::DeletePod { pod: one, why: Why::Recreate }
                | Action::PatchPod { pod: one, why: Why::Resize | Why::InPlace, .. }
                | Action::SetGate { pod: one, open: false } => {
                    let step = pod(&one.name).foreign.as_ref().map(|update| update.step(self.now));
                    assert_ne!(step, Some(ForeignStep::Wait), "{} is restarted by its kubelet", one.name);
                }
                Action::SetGate { pod: one, open: true } => {
                    let pod = pod(&one.name);
                    assert!(!is_drained(&self.open, pod), "an agent works on {}", one.name);
                    let runs = self.marks.get(&pod.uid).map(|marks| marks.runs.as_str());
                    assert_eq!(runs, pod.image(APP), "{} takes traffic with an old container", one.name);
                }
                _ => {}
            }
        }
    }

    /// How often agents have started the container of a pod.
    pub(in crate::workload::model) fn starts(&self, uid: &str) -> u32 {
        self.starts.get(uid).copied().unwrap_or_default()
    }

    /// The uids of the pods whose update the operator began, with the new image in their specs or without it.
    pub(in crate::workload::model) fn foreign_uids(&self, written: bool) -> Vec<String> {
        let is_written = |marks: &Marks| marks.grace.is_none();
        let marks = self.marks.iter().filter(|(_, marks)| is_written(marks) == written);
        marks.map(|(uid, _)| uid.clone()).collect()
    }
}

/// True while an agent works on the pod and its gate shows that: from the drain on.
fn is_drained(open: &BTreeMap<String, Request>, pod: &Pod) -> bool {
    open.contains_key(&pod.uid) && pod.answer.as_ref().is_some_and(|answer| answer.step > Some(Step::Pull))
}

/// The pod as the API server has it, as far as an update of the operator shows.
fn marked(pod: &Pod, marks: &Marks, gate: Option<Gate>) -> k8s_openapi::api::core::v1::Pod {
    let mut annotations = json!({});
    if let Some(image) = &marks.grace {
        let grace = json!({"revision": REVISION, "containerImages": {APP: image}, "graceSeconds": 30});
        annotations[workload_key::UPDATE_GRACE] = json!(grace.to_string());
    }
    if let Some(before) = &marks.before {
        let state = json!({"revision": REVISION, "updateTimestamp": marks.began.to_string(),
            "lastContainerStatuses": {APP: {"imageID": before}}});
        annotations[workload_key::UPDATE_STATE] = json!(state.to_string());
    }
    let (status, reason) = match gate {
        None => ("True", annotation::GATE_READY),
        Some(Gate::ByOperator) => ("False", workload_key::UPDATE_GATE),
        Some(Gate::ByController | Gate::Failed) => ("False", annotation::GATE_FAILED),
    };
    let started = marks.began - SignedDuration::from_hours(1);
    let object = json!({
        "metadata": {"annotations": annotations},
        "spec": {"containers": [{"name": APP, "image": pod.image(APP)}]},
        "status": {
            "conditions": [{"type": annotation::GATE, "status": status, "reason": reason}],
            "containerStatuses": [{"name": APP, "image": marks.runs, "imageID": marks.runs, "ready": true, "restartCount": 0,
                "state": {"running": {"startedAt": started.to_string()}}}],
        },
    });
    serde_json::from_value(object).unwrap()
}
