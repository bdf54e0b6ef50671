//! The document's section on hooks that pass, scaling in: verbatim, with the published interval of a minute.

use inplace::api::hook_run::HookPhase;
use jiff::SignedDuration;

use super::{HOOKED, SUCCESS, UpdateCase, workload::*};

pub(super) fn a_pod_goes_when_its_hook_has_passed(case: &UpdateCase<'_>) {
    case.create(SUCCESS);
    case.create(HOOKED);
    case.shows(DEPLOYMENT, "6 6 6 6 6");
    let before = identity(&case.pods.now());

    case.scale(DEPLOYMENT, 5);
    let runs = case.runs(1, HookPhase::Running);
    case.shows(DEPLOYMENT, "5 6 6 6 6");
    let rows = case.pod_rows();
    assert_eq!(rows.len(), 6);
    assert!(rows.iter().all(|(_, row)| row == "1/1 Running 0"), "{rows:?}");
    let name = runs.keys().next().unwrap().clone();
    let revision = case.json(DEPLOYMENT)["status"]["updateRevision"].as_str().unwrap().to_owned();
    let leaves = pod_of(&revision, &name);

    // The hook runs for two minutes. The pod is deleted when the hook has succeeded, and not before.
    case.wait_runs("it has succeeded", |runs| {
        runs.get(&name).is_none_or(|run| phase_of(run) == Some(HookPhase::Successful))
    });
    case.shows(DEPLOYMENT, "5 5 5 5 5");
    let left = case.wait_pods("one has gone", |pods| pods.len() == 5);
    let expected: Vec<_> = before.into_iter().filter(|pod| pod[0] != leaves).collect();
    assert_eq!(identity(&left), expected);
    case.no_runs();

    let history = case.runs.history();
    let run = history.iter().rev().find_map(|runs| runs.get(&name)).unwrap();
    assert_eq!(phase_of(run), Some(HookPhase::Successful));
    let measurements = &run.status.as_ref().unwrap().metric_results[0].measurements;
    assert_eq!(measurements.len(), 3);
    for pair in measurements.windows(2) {
        let waited = pair[1].started_at.duration_since(pair[0].finished_at.unwrap());
        assert!(waited >= SignedDuration::from_secs(59), "{waited:#}");
    }
    let passed = measurements[2].finished_at.unwrap();
    let gone = case.pods.history();
    let gone = gone.iter().find_map(|pods| pods.get(&leaves)?.metadata.deletion_timestamp.clone()).unwrap();
    assert!(gone.0 >= passed, "gone at {}, passed at {passed}", gone.0);
}
