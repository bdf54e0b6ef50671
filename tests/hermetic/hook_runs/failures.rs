//! Restarts, lost answers, an API server that is away, kinds that are not installed.

use super::super::api_server::Fault;
use super::*;
use crate::support::wait::until;

#[tokio::test]
async fn what_was_measured_is_not_measured_again_after_a_restart() {
    let fixture = Fixture::start().await;
    fixture.put("drain", &fixture.metric("/", &json!({"count": 4, "interval": "1s"})));
    let first = fixture.runner(AGENT).await;
    fixture.until("it has measured twice", "drain", |run| Fixture::measured(run) >= 2).await;
    drop(first);
    let _second = fixture.runner(AGENT).await;
    let run = fixture.phase("drain", "Successful").await;
    assert_eq!(Fixture::measured(&run), 4, "{run}");
    // The measurement that is running at the end of the first runner is not stored, and is repeated.
    assert!((4..=5).contains(&fixture.measurements()), "{} were made: {run}", fixture.measurements());
}

#[tokio::test]
async fn what_was_being_measured_is_measured_again() {
    let fixture = Fixture::start().await;
    fixture.put("drain", &fixture.metric("/hang", &json!({})));
    let first = fixture.runner(AGENT).await;
    fixture.api.arrived("PATCH hookrun/status", 1).await;
    fixture.api.patiently("the hook server is queried", until(|| fixture.measurements() > 0)).await;
    drop(first);
    fixture.api.edit_of("hookruns", "shop", "drain", |run| {
        run["spec"]["metrics"][0]["provider"]["web"]["url"] =
            json!(format!("http://{}/", fixture.hook_server.address));
    });
    let _second = fixture.runner(AGENT).await;
    let run = fixture.phase("drain", "Successful").await;
    assert_eq!(Fixture::measured(&run), 1, "{run}");
    assert_eq!(fixture.measurements(), 2);
}

#[tokio::test]
async fn on_sigterm_the_last_measurement_is_still_written() {
    let fixture = Fixture::start().await;
    fixture.put("drain", &fixture.metric("/", &json!({"count": 2, "interval": "1h"})));
    // The start is written; the write of the end is rejected with 429.
    fixture.api.on("PATCH hookrun/status").nth(2).fault(Fault::Answer(429, "slow down"));
    let mut running = fixture.runner(AGENT).await;
    fixture.api.arrived("PATCH hookrun/status", 2).await;
    running.stop.cancel();
    fixture.api.patiently("it ends", &mut running.task).await.unwrap();
    assert_eq!(Fixture::measured(&fixture.run("drain")), 1);
}

#[tokio::test]
async fn a_status_is_written_until_it_is_there_and_nothing_is_measured_twice() {
    let fixture = Fixture::start().await;
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
        let before = fixture.measurements();
        for call in ["PATCH hookrun", "PATCH hookrun/status"] {
            fixture.api.on(call).times(2).fault(fault);
        }
        let running = fixture.runner(AGENT).await;
        fixture.put(name, &fixture.metric("/", &json!({"count": 2, "interval": "100ms"})));
        let run = fixture.phase(name, "Successful").await;
        assert_eq!((Fixture::measured(&run), fixture.measurements() - before), (2, 2), "{fault:?}: {run}");
        drop(running);
    }
}

#[tokio::test]
async fn a_status_that_is_too_large_for_the_api_server_ends_the_run() {
    let fixture = Fixture::start().await;
    let _running = fixture.runner(AGENT).await;
    let refused = |code, message| fixture.api.on("PATCH hookrun/status").fault(Fault::Answer(code, message));
    let metric = fixture.metric("/", &json!({"interval": "1h", "count": 2}));
    refused(413, "limit is 3145728");
    fixture.put("start", &metric);
    let start = fixture.phase("start", "Error").await;
    // Between its only measurement and its approval nothing is written: the next write is that of the end.
    fixture.put("end", &metric);
    fixture.until("it has measured once", "end", |run| Fixture::measured(run) == 1).await;
    refused(500, "etcdserver: request is too large");
    fixture.api.edit_of("hookruns", "shop", "end", |run| {
        run["metadata"]["annotations"]["inplace.dev/approve"] = json!("true");
    });
    for run in [start, fixture.phase("end", "Error").await] {
        assert!(run["status"]["message"].as_str().unwrap().contains("as too large"), "{run}");
        assert!(run["status"]["metricResults"].is_null(), "{run}");
    }
}

#[tokio::test]
async fn without_a_word_from_the_api_server_nothing_is_measured() {
    let fixture = Fixture::short().await;
    fixture.put("drain", &fixture.metric("/", &json!({"interval": "100ms", "successfulLimit": 1000})));
    let _running = fixture.runner(AGENT).await;
    fixture.until("it measures", "drain", |run| Fixture::measured(run) >= 3).await;
    fixture.api.go_away().await;
    // Long after the lapse nothing is measured.
    tokio::time::sleep(SHORT.lapse * 2).await;
    let quiet = fixture.measurements();
    tokio::time::sleep(SHORT.lapse).await;
    assert_eq!(fixture.measurements(), quiet);
    fixture.api.come_back().await;
    fixture
        .until("it measures again", "drain", |run| {
            run["status"]["metricResults"][0]["successful"].as_u64().is_some_and(|count| count > quiet)
        })
        .await;
    // The measurements while the API server was away are stored. Those that were running at the lapse and at the
    // end are not.
    fixture.api.edit_of("hookruns", "shop", "drain", |run| {
        run["metadata"]["annotations"]["inplace.dev/approve"] = json!("true");
    });
    let run = fixture.phase("drain", "Successful").await;
    let stored = run["status"]["metricResults"][0]["successful"].as_u64().unwrap();
    let asked = fixture.measurements();
    assert!(stored <= asked && asked <= stored + 2, "{stored} of {asked} measurements are stored");
}

#[tokio::test]
async fn without_the_kind_there_is_nothing_and_it_is_not_asked_for_all_the_time() {
    let fixture = Fixture::start().await;
    fixture
        .api
        .on("LIST hookruns")
        .times(1000)
        .fault(Fault::Answer(404, "the server could not find the requested resource"));
    let server = fixture.server().await;
    let stop = CancellationToken::new();
    let _guard = stop.clone().drop_guard();
    let mut runs = HookRuns::watch(server.clone(), "HookRuns", "", stop);
    fixture
        .api
        .patiently("it knows that there are none", async {
            while !runs.has_synced() {
                runs.changed().await;
            }
        })
        .await;
    assert!(runs.list().is_empty() && !runs.is_current());
    assert!(server.hook_template("shop", "none").await.unwrap().is_none());
    // The usual retries would have come several times. A second look shows that the server is not just starting.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(fixture.api.count("LIST hookruns"), 2, "{:?}", fixture.api.calls());
}
