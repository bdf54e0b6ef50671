//! The operations that this process has seen in the statuses of pods: a status has only the present step, and a pod only the
//! status of its last request. Records what the watch delivers, in memory only. Decides nothing.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt as _;

use crate::api::status::{Status, Step};
use crate::cli::dashboard::kinds::PodFacts;
use crate::cluster::trim::Trimmed;

/// How many operations are kept for each pod.
const MOST: usize = 10;
/// The longest status that is kept, in bytes: whoever may write to a pod decides what is in it.
const MAX_BYTES: usize = 16 << 10;

/// The operations that were seen, by the uid of their pod, the oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen(HashMap<String, Vec<SeenOperation>>);

/// One operation.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SeenOperation {
    /// Its last status.
    pub(super) status: Status,
    /// The steps, and when the status with each of them arrived. Empty if the operation had ended before.
    pub(super) steps: Vec<(Step, Timestamp)>,
    /// When the status with its end arrived.
    pub(super) ended: Option<Timestamp>,
}

impl Seen {
    /// Records the statuses of all pods.
    pub(super) fn observe(&mut self, pods: &[Arc<Trimmed<PodFacts>>], now: Timestamp) {
        let uids: HashSet<_> = pods.iter().filter_map(|pod| pod.uid()).collect();
        self.0.retain(|uid, _| uids.contains(uid));
        for pod in pods {
            let (Some(uid), Some(status)) = (pod.uid(), &pod.value.pod.answer) else { continue };
            record(self.0.entry(uid).or_default(), status, now);
        }
    }

    /// The operations of a pod, the oldest first.
    pub(super) fn of(&self, uid: &str) -> &[SeenOperation] {
        self.0.get(uid).map_or(&[], Vec::as_slice)
    }
}

fn record(operations: &mut Vec<SeenOperation>, status: &Status, now: Timestamp) {
    if operations.last().is_some_and(|last| last.status == *status) || !is_small(status) {
        return;
    }
    let is_last = operations.last().is_some_and(|last| last.status.id == status.id);
    if !is_last {
        if operations.len() == MOST {
            operations.remove(0);
        }
        operations.push(SeenOperation { status: status.clone(), steps: Vec::new(), ended: None });
    }
    let Some(last) = operations.last_mut() else { return };
    let had_begun = !is_last || !last.status.phase.is_terminal();
    if let Some(step) = status.step.filter(|_| !status.phase.is_terminal())
        && last.steps.last().is_none_or(|(before, _)| *before != step)
    {
        last.steps.push((step, now));
    }
    if status.phase.is_terminal() && had_begun && !last.steps.is_empty() {
        last.ended = Some(now);
    }
    last.status = status.clone();
}

fn is_small(status: &Status) -> bool {
    serde_json::to_string(status).is_ok_and(|text| text.len() <= MAX_BYTES)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(id: &str, phase: &str, step: &str) -> Arc<Trimmed<PodFacts>> {
        let status = json!({"id": id, "phase": phase, "step": step, "reason": "", "message": "", "startedAt": null,
            "finishedAt": null, "containers": []});
        let pod = json!({"metadata": {"name": "web-0", "namespace": "shop", "uid": "u",
            "annotations": {"inplace.dev/status": status.to_string()}}});
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn each_step_has_the_time_at_which_it_arrived() {
        let mut seen = Seen::default();
        for (second, phase, step) in [
            (1, "Running", "Pull"),
            (2, "Running", "Swap"),
            (3, "Running", "Swap"),
            (4, "Running", "Verify"),
            (6, "Succeeded", "Ready"),
            (9, "Succeeded", "Ready"),
        ] {
            seen.observe(&[pod("a", phase, step)], at(second));
        }
        let [operation] = seen.of("u") else { panic!("{seen:?}") };
        assert_eq!(operation.steps, [(Step::Pull, at(1)), (Step::Swap, at(2)), (Step::Verify, at(4))]);
        assert_eq!(operation.ended, Some(at(6)));
    }

    #[test]
    fn an_operation_that_had_ended_before_has_no_steps() {
        let mut seen = Seen::default();
        seen.observe(&[pod("a", "Succeeded", "Ready")], at(1));
        assert_eq!((seen.of("u")[0].steps.len(), seen.of("u")[0].ended), (0, None));
    }

    #[test]
    fn a_status_of_any_size_is_not_kept() {
        let mut seen = Seen::default();
        seen.observe(&[pod(&"x".repeat(100_000), "Running", "Swap")], at(1));
        assert!(seen.of("u").is_empty());
    }

    #[test]
    fn the_last_operations_are_kept_until_the_pod_is_gone() {
        let mut seen = Seen::default();
        for number in 0..15 {
            seen.observe(&[pod(&number.to_string(), "Running", "Swap")], at(number));
        }
        let ids: Vec<_> = seen.of("u").iter().map(|operation| operation.status.id.clone()).collect();
        assert_eq!((ids.len(), ids[0].as_str(), ids[9].as_str()), (MOST, "5", "14"));
        seen.observe(&[], at(20));
        assert!(seen.of("u").is_empty());
    }
}
