//! The document's section on hooks that pass, scaling in: verbatim, with the published interval of a minute.

use inplace::api::hook_run::HookPhase;
use jiff::SignedDuration;

use super::{HOOKED, Play, SUCCESS, workload::*};

pub(super) fn a_pod_goes_when_its_hook_has_passed(play: &Play<'_>) {
    play.create(SUCCESS);
    play.create(HOOKED);
    play.shows(DEPLOYMENT, "6 6 6 6 6");
    let before = identity(&play.pods.now());

    play.scale(DEPLOYMENT, 5);
    let runs = play.runs(1, HookPhase::Running);
    play.shows(DEPLOYMENT, "5 6 6 6 6");
    let rows = play.pod_rows();
    assert_eq!(rows.len(), 6);
    assert!(rows.iter().all(|(_, row)| row == "1/1 Running 0"), "{rows:?}");
    let name = runs.keys().next().unwrap().clone();
    let revision = play.json(DEPLOYMENT)["status"]["updateRevision"].as_str().unwrap().to_owned();
    let leaves = pod_of(&revision, &name);

    // The hook runs for two minutes. The pod is deleted when the hook has succeeded, and not before.
    play.wait_runs("it has succeeded", |runs| {
        runs.get(&name).is_none_or(|run| phase_of(run) == Some(HookPhase::Successful))
    });
    play.shows(DEPLOYMENT, "5 5 5 5 5");
    let left = play.wait_pods("one has gone", |pods| pods.len() == 5);
    let expected: Vec<_> = before.into_iter().filter(|pod| pod[0] != leaves).collect();
    assert_eq!(identity(&left), expected);
    play.no_runs();

    let history = play.runs.history();
    let run = history.iter().rev().find_map(|runs| runs.get(&name)).unwrap();
    assert_eq!(phase_of(run), Some(HookPhase::Successful));
    let measurements = &run.status.as_ref().unwrap().metric_results[0].measurements;
    assert_eq!(measurements.len(), 3);
    for pair in measurements.windows(2) {
        let waited = pair[1].started_at.duration_since(pair[0].finished_at.unwrap());
        assert!(waited >= SignedDuration::from_secs(59), "{waited:#}");
    }
    let passed = measurements[2].finished_at.unwrap();
    let gone = play.pods.history();
    let gone = gone.iter().find_map(|pods| pods.get(&leaves)?.metadata.deletion_timestamp.clone()).unwrap();
    assert!(gone.0 >= passed, "gone at {}, passed at {passed}", gone.0);
}
