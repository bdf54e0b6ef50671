//! A HookRun moves from one runner to another, and two runners never measure it at the same time.

use super::*;

/// Lasts long enough to be handed over.
fn polls(site: &Site) -> Value {
    site.metric("/", &json!({"interval": "100ms", "successfulLimit": 100_000}))
}

#[tokio::test]
async fn what_is_let_go_is_taken_at_once() {
    let site = Site::start().await;
    site.put("drain", &polls(&site));
    let controller = site.runner(CONTROLLER).await;
    site.until("the controller measures", "drain", |run| Site::measured(run) >= 2).await;
    // The agent is back. Its patience is long, so it relies on the release by the controller.
    let agent = site.runner_with(AGENT, &site.api, 8, Duration::from_secs(600)).await;
    controller.ownership.send_replace(Ownership::Theirs);
    let run = site.until("the agent has it", "drain", |run| Site::runner_of(run) == Some(AGENT)).await;
    let before = run["status"]["metricResults"][0]["successful"].as_u64().unwrap();
    site.until("the agent goes on from there", "drain", |run| {
        run["status"]["metricResults"][0]["successful"].as_u64().is_some_and(|count| count >= before + 3)
    })
    .await;
    drop(agent);
}

#[tokio::test]
async fn what_cannot_be_told_stays_where_it_is() {
    let site = Site::start().await;
    site.put("drain", &polls(&site));
    let running = site.runner(CONTROLLER).await;
    site.until("it measures", "drain", |run| Site::measured(run) >= 2).await;
    running.ownership.send_replace(Ownership::Unknown);
    site.put("other", &polls(&site));
    let known = site.asked.count();
    site.until("it goes on", "drain", |run| {
        run["status"]["metricResults"][0]["successful"].as_u64().is_some_and(|count| count >= known + 3)
    })
    .await;
    assert_eq!(Site::runner_of(&site.run("drain")), Some(CONTROLLER));
    assert_eq!(Site::runner_of(&site.run("other")), None, "nothing is begun");
}

#[tokio::test]
async fn what_is_taken_away_stops_before_it_begins_elsewhere() {
    let site = Site::start().await;
    site.put("drain", &polls(&site));
    // It would take the HookRun back only after a long time.
    let _first = site.runner_with(AGENT, &site.api, 8, Duration::from_secs(600)).await;
    site.until("the agent measures", "drain", |run| Site::measured(run) >= 2).await;
    let _second = site.runner(CONTROLLER).await;
    site.until("the controller has it", "drain", |run| Site::runner_of(run) == Some(CONTROLLER)).await;
    let stored = Site::successful(&site.run("drain"));
    site.until("the controller measures", "drain", |run| Site::successful(run) >= stored + 3).await;
    // Between the last measurement of the first runner and the first one of the second there is a pause, for most
    // of the delay.
    let longest = site.asked.longest_pause();
    assert!(longest >= TERMS.fence / 3, "measured while it was handed over: {longest:?}");
    assert_eq!(Site::runner_of(&site.run("drain")), Some(CONTROLLER));
}

#[tokio::test]
async fn one_of_two_that_come_at_once_gets_it() {
    let site = Site::start().await;
    for number in 0..6 {
        site.put(&format!("run-{number}"), &site.metric("/", &json!({"count": 2, "interval": "100ms"})));
    }
    let patience = Duration::from_secs(600);
    let _both = tokio::join!(
        site.runner_with(AGENT, &site.api, 8, patience),
        site.runner_with(CONTROLLER, &site.api, 8, patience),
    );
    for number in 0..6 {
        let run = site.phase(&format!("run-{number}"), "Successful").await;
        assert_eq!(Site::measured(&run), 2);
    }
    assert_eq!(site.asked.count(), 12);
}
