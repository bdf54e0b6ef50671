//! Restarts, lost answers, an API server that is away, kinds that are not installed.

use super::super::api_server::Fault;
use super::*;

#[tokio::test]
async fn what_was_measured_is_not_measured_again_after_a_restart() {
    let site = Site::start().await;
    site.put("drain", &site.metric("/", &json!({"count": 4, "interval": "300ms"})));
    let first = site.runner(AGENT).await;
    site.until("it has measured twice", "drain", |run| Site::measured(run) >= 2).await;
    drop(first);
    let _second = site.runner(AGENT).await;
    let run = site.phase("drain", "Successful").await;
    assert_eq!(Site::measured(&run), 4, "{run}");
    // The measurement that is running at the end of the first runner is not stored, and is repeated.
    assert!((4..=5).contains(&site.asked.count()), "{} were made: {run}", site.asked.count());
}

#[tokio::test]
async fn what_was_being_measured_is_measured_again() {
    let site = Site::start().await;
    site.put("drain", &site.metric("/hang", &json!({})));
    let first = site.runner(AGENT).await;
    site.api.arrived("PATCH hookrun/status", 1).await;
    site.api
        .patiently("it is asked", async {
            while site.asked.count() == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    drop(first);
    site.api.edit_of("hookruns", "shop", "drain", |run| {
        run["spec"]["metrics"][0]["provider"]["web"]["url"] =
            json!(format!("http://{}/", site.asked.address));
    });
    let _second = site.runner(AGENT).await;
    let run = site.phase("drain", "Successful").await;
    assert_eq!(Site::measured(&run), 1, "{run}");
    assert_eq!(site.asked.count(), 2);
}

#[tokio::test]
async fn on_sigterm_the_last_measurement_is_still_written() {
    let site = Site::start().await;
    site.put("drain", &site.metric("/", &json!({"count": 2, "interval": "1h"})));
    // The start is written; the write of the end is rejected with 429.
    site.api.on("PATCH hookrun/status").nth(2).fault(Fault::Answer(429, "slow down"));
    let mut running = site.runner(AGENT).await;
    site.api.arrived("PATCH hookrun/status", 2).await;
    running.stop.cancel();
    site.api.patiently("it ends", &mut running.task).await.unwrap();
    assert_eq!(Site::measured(&site.run("drain")), 1);
}

#[tokio::test]
async fn a_status_is_written_until_it_is_there_and_nothing_is_measured_twice() {
    let site = Site::start().await;
    for fault in [
        Fault::Answer(429, "slow down"),
        Fault::CutAfterEffect,
        Fault::Cut,
        Fault::AnswerAfterEffect(500, "who knows"),
        Fault::Answer(409, "conflict"),
        Fault::Nonsense,
    ] {
        let name =
            format!("{fault:?}").to_lowercase().replace(|other: char| !other.is_ascii_alphanumeric(), "-");
        let name = name.trim_matches('-');
        let before = site.asked.count();
        for call in ["PATCH hookrun", "PATCH hookrun/status"] {
            site.api.on(call).times(2).fault(fault);
        }
        let running = site.runner(AGENT).await;
        site.put(name, &site.metric("/", &json!({"count": 2, "interval": "100ms"})));
        let run = site.phase(name, "Successful").await;
        assert_eq!((Site::measured(&run), site.asked.count() - before), (2, 2), "{fault:?}: {run}");
        drop(running);
    }
}

#[tokio::test]
async fn without_a_word_from_the_api_server_nothing_is_measured() {
    let site = Site::start().await;
    site.put("drain", &site.metric("/", &json!({"interval": "100ms", "successfulLimit": 1000})));
    let _running = site.runner(AGENT).await;
    site.until("it measures", "drain", |run| Site::measured(run) >= 3).await;
    site.api.go_away().await;
    // Long after the lapse nothing is measured.
    tokio::time::sleep(TERMS.lapse * 2).await;
    let quiet = site.asked.count();
    tokio::time::sleep(TERMS.lapse).await;
    assert_eq!(site.asked.count(), quiet);
    site.api.come_back().await;
    site.until("it measures again", "drain", |run| {
        run["status"]["metricResults"][0]["successful"].as_u64().is_some_and(|count| count > quiet)
    })
    .await;
    // The measurements while the API server was away are stored. Those that were running at the lapse and at the
    // end are not.
    site.api.edit_of("hookruns", "shop", "drain", |run| {
        run["metadata"]["annotations"]["inplace.dev/approve"] = json!("true");
    });
    let run = site.phase("drain", "Successful").await;
    let stored = run["status"]["metricResults"][0]["successful"].as_u64().unwrap();
    let asked = site.asked.count();
    assert!(stored <= asked && asked <= stored + 2, "{stored} of {asked} measurements are stored");
}

#[tokio::test]
async fn without_the_kind_there_is_nothing_and_it_is_not_asked_for_all_the_time() {
    let site = Site::start().await;
    site.api
        .on("LIST hookruns")
        .times(1000)
        .fault(Fault::Answer(404, "the server could not find the requested resource"));
    let server = site.server().await;
    let stop = CancellationToken::new();
    let _guard = stop.clone().drop_guard();
    let mut runs = HookRuns::watch(server.clone(), "HookRuns", "", stop);
    site.api
        .patiently("it knows that there are none", async {
            while !runs.has_synced() {
                runs.changed().await;
            }
        })
        .await;
    assert!(runs.list().is_empty() && !runs.is_current());
    assert!(server.hook_template("shop", "none").await.unwrap().is_none());
    // The usual retries would have come several times.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(site.api.count("LIST hookruns"), 1, "{:?}", site.api.calls());
}
