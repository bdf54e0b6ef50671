//! The document's section on variable arguments: values of the workload and the pod get into the hook, and from
//! there into the URL. The hook measures every twenty seconds.

use inplace::api::hook_run::HookPhase;
use serde_json::{Value, json};

use super::{ARGS, HOOKED_ARGS, UpdateCase, workload::*};

pub(super) fn arguments_get_into_the_url(case: &UpdateCase<'_>) {
    case.create(&ARGS.replace("60s", "20s"));
    case.create(HOOKED_ARGS);
    case.shows(DEPLOYMENT, "4 4 4 4 4");
    let (before, pods) = (identity(&case.pods.now()), case.pods.now());

    case.scale(DEPLOYMENT, 2);
    let runs = case.runs(2, HookPhase::Running);
    let owner = case.json(DEPLOYMENT);
    let revision = owner["status"]["updateRevision"].as_str().unwrap();
    // As soon as both have measured: a URL that was not rendered is an error, and a run that has passed is removed.
    let measured = case.wait_runs("both have measured", |all| {
        runs.keys().all(|run_name| {
            all.get(run_name).is_some_and(|run| {
                let results = run.status.iter().flat_map(|status| &status.metric_results);
                results.map(|result| result.successful).sum::<i32>() > 0
            })
        })
    });
    for run_name in runs.keys() {
        let run = serde_json::to_value(&*measured[run_name]).unwrap();
        let pod = &pods[&pod_of(revision, run_name)];
        let arg = |name: &str, value: &str| json!({"name": name, "value": value});
        let ip = pod.status.as_ref().unwrap().pod_ip.clone().unwrap();
        let args = run["spec"]["args"].as_array().unwrap();
        for expected in [
            arg("PodIP", &ip),
            arg("PodName", &name(pod)),
            arg("PodNamespace", "args"),
            arg("service-name", "test-gamedeployment-svc.default.svc.cluster.local"),
        ] {
            assert!(args.contains(&expected), "{expected}: {run:#}");
        }
        let metric = &run["spec"]["metrics"][0];
        assert_eq!(metric["provider"]["web"]["url"], "http://{{ args.PodIP }}:9091");
        assert_eq!(
            (&metric["count"], &metric["failureLimit"], &metric["successCondition"]),
            (&json!(3), &json!(2), &json!("asInt(result) > 30"))
        );
        let measurement = &run["status"]["metricResults"][0]["measurements"][0];
        assert_eq!((&measurement["phase"], &measurement["value"]), (&json!("Successful"), &json!("45")));
        let of = &run["metadata"]["ownerReferences"][0];
        assert_eq!((&of["kind"], &of["uid"]), (&json!("GameDeployment"), &owner["metadata"]["uid"]));
        assert_eq!((&of["controller"], &of["blockOwnerDeletion"]), (&json!(true), &json!(true)));
    }

    case.shows(DEPLOYMENT, "2 2 2 2 2");
    case.no_runs();
    let after = case.wait_pods("two are left", |pods| pods.len() == 2);
    let gone: Vec<_> = runs.keys().map(|run| pod_of(revision, run)).collect();
    let left: Vec<_> = before.into_iter().filter(|pod| !gone.contains(&pod[0])).collect();
    assert_eq!(identity(&after), left);
    assert_eq!(case.json(DEPLOYMENT)["status"]["preDeleteHookCondition"], Value::Null);
}
