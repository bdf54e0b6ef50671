//! The `GameStatefulSet` of the first document: updated from the highest ordinal down, one after the other, to
//! the partition.

use super::{SET_IN_PLACE, UpdateCase, workload::*};
use crate::{cluster::block_on, support::facts::observe};

pub(super) fn from_the_highest_ordinal_down(case: &UpdateCase<'_>) {
    case.create(SET_IN_PLACE);
    case.shows(SET, "5 5 5 5 5");
    let names = |ordinals: &[u32]| -> Vec<_> {
        ordinals.iter().map(|ordinal| format!("test-gamestatefulset-{ordinal}")).collect()
    };
    let pods = case.pods.now();
    assert_eq!(pods.keys().cloned().collect::<Vec<_>>(), names(&[0, 1, 2, 3, 4]));
    let (before, mark) = (identity(&pods), case.mark());

    case.set_image(SET, "python:latest");
    case.shows(SET, "5 5 3 2 2");
    assert_eq!(case.asked_since(mark), names(&[4, 3]));
    let rows: Vec<_> = case.pod_rows().into_iter().map(|(_, row)| row).collect();
    let row = |restarts: u32| format!("1/1 Running {restarts}");
    assert_eq!(rows, [0, 0, 0, 1, 1].map(row), "{}", case.all());
    assert_eq!(identity(&case.pods.now()), before);
    case.never_more_than(1, mark);
    // As in the document's `docker ps`: the restarted container has attempt 1, the others attempt 0.
    let endpoint = case.fixture.cluster.node().endpoint;
    for (pod, attempt) in case.pods.now().values().zip([0, 0, 0, 1, 1]) {
        let facts = block_on(observe(&endpoint, pod.metadata.uid.as_ref().unwrap()));
        assert_eq!(facts.running("python").attempt, attempt, "{facts:#?}");
        // The updated pod was drained first.
        assert_eq!(was_drained(&case.pods.history()[mark..], &name(pod)), attempt == 1, "{}", name(pod));
    }

    let mark = case.mark();
    case.replace(SET, "/spec/updateStrategy/rollingUpdate/partition", 0);
    case.shows(SET, "5 5 5 5 5");
    assert_eq!(case.asked_since(mark), names(&[2, 1, 0]));
    case.restarted(5);
    assert_eq!(identity(&case.pods.now()), before);
    case.never_more_than(1, mark);
}
