//! Resizes of the simulated cluster: the API server writes or refuses them, and kubelets answer.

use serde_json::Value;

use crate::podtask::pod::{Pod, PodPhase};
use crate::podtask::resources::Resize;
use crate::podtask::task::PodTask;
use crate::podtask::write::VersionedRef;
use crate::workload::fixtures::write_resize;
use crate::workload::model::ResizeMove;
use crate::workload::resize;

use super::nodes::is_on;
use super::{World, patch_pod};

/// The limit that users change.
pub(in crate::workload::model) const CPU: &str = "/template/spec/containers/0/resources/limits/cpu";

impl World {
    /// The controller writes a resize. A release without resizes does not have the path.
    pub(super) fn resize(&mut self, pod: &VersionedRef, spec: &Value, task: &PodTask) {
        let same = |one: &&mut Pod| one.uid == pod.uid && one.version == pod.version;
        let Some(pod) = self.pods.iter_mut().find(same).filter(|_| self.resizes) else { return };
        if self.quota {
            patch_pod(pod, &resize::refused(task, "the quota is used up"), &mut self.wanted);
        } else {
            write_resize(pod, spec);
            pod.version.push('r');
        }
    }

    /// The kubelet of the pod at this index answers, if the pod has resources that it has not.
    pub(super) fn answer_resize(&mut self, at: usize, how: ResizeMove) {
        let many = self.pods.len().max(1);
        let lost = &self.lost;
        let Some(pod) = self.pods.get_mut(at % many).filter(|pod| !is_on(pod, lost)) else { return };
        if pod.phase != PodPhase::Running || pod.resize == Resize::Taken {
            return;
        }
        pod.resize = match how {
            ResizeMove::Take => Resize::Taken,
            ResizeMove::Defer => Resize::Waits("Deferred".into()),
            ResizeMove::Refuse => Resize::Infeasible { note: "Infeasible".into(), newest: true },
        };
        pod.version.push('q');
    }
}
