//! A HookRun moves from one runner to another, and two runners never measure it at the same time.

use super::*;

/// Lasts long enough to be handed over.
fn polls(fixture: &Fixture) -> Value {
    fixture.metric("/", &json!({"interval": "100ms", "successfulLimit": 100_000}))
}

#[tokio::test]
async fn what_is_let_go_is_taken_at_once() {
    let fixture = Fixture::start().await;
    fixture.put("drain", &polls(&fixture));
    let controller = fixture.runner(CONTROLLER).await;
    fixture.until("the controller measures", "drain", |run| Fixture::measured(run) >= 2).await;
    // The agent is back. Its timeout is long, so it relies on the release by the controller.
    let agent = fixture.runner_with(AGENT, &fixture.api, 8, Duration::from_secs(600)).await;
    controller.ownership.send_replace(Ownership::Theirs);
    let run = fixture.until("the agent has it", "drain", |run| Fixture::runner_of(run) == Some(AGENT)).await;
    let before = run["status"]["metricResults"][0]["successful"].as_u64().unwrap();
    fixture
        .until("the agent goes on from there", "drain", |run| {
            run["status"]["metricResults"][0]["successful"].as_u64().is_some_and(|count| count >= before + 3)
        })
        .await;
    drop(agent);
}

/// The leader that ran it is gone, and its agent is back when the next one looks.
#[tokio::test]
async fn what_an_earlier_leader_took_is_let_go_unmeasured() {
    let fixture = Fixture::start().await;
    let taken = json!({"annotations": {"inplace.dev/runner": CONTROLLER}});
    fixture.put_as("drain", &json!({"metrics": [polls(&fixture)]}), &taken);
    let controller = fixture.runner(CONTROLLER).await;
    controller.ownership.send_replace(Ownership::Theirs);
    fixture.until("it is let go", "drain", |run| Fixture::runner_of(run).is_none()).await;
    assert_eq!(fixture.measurements(), 0);
    let _agent = fixture.runner_with(AGENT, &fixture.api, 8, Duration::from_secs(600)).await;
    fixture.until("the agent measures", "drain", |run| Fixture::measured(run) >= 2).await;
}

#[tokio::test]
async fn a_result_that_cannot_be_written_stays_where_it_is() {
    let fixture = Fixture::start().await;
    fixture.put("drain", &polls(&fixture));
    let running = fixture.runner(CONTROLLER).await;
    fixture.until("it measures", "drain", |run| Fixture::measured(run) >= 2).await;
    running.ownership.send_replace(Ownership::Unknown);
    fixture.put("other", &polls(&fixture));
    let known = fixture.measurements();
    fixture
        .until("it goes on", "drain", |run| {
            run["status"]["metricResults"][0]["successful"].as_u64().is_some_and(|count| count >= known + 3)
        })
        .await;
    assert_eq!(Fixture::runner_of(&fixture.run("drain")), Some(CONTROLLER));
    assert_eq!(Fixture::runner_of(&fixture.run("other")), None, "nothing is begun");
}

#[tokio::test]
async fn what_is_taken_away_stops_before_it_begins_elsewhere() {
    taken_away(None).await;
}

/// The runner that takes it reads its own name on it afterwards.
#[tokio::test]
async fn what_is_taken_away_by_a_write_without_an_answer_stops_before_it_begins_elsewhere() {
    taken_away(Some(Fault::AnswerAfterEffect(500, "etcdserver: request timed out"))).await;
}

async fn taken_away(fault: Option<Fault>) {
    let fixture = Fixture::short().await;
    fixture.put("drain", &polls(&fixture));
    // It would take the HookRun back only after a long time.
    let _first = fixture.runner_with(AGENT, &fixture.api, 8, Duration::from_secs(600)).await;
    fixture.until("the agent measures", "drain", |run| Fixture::measured(run) >= 2).await;
    if let Some(fault) = fault {
        fixture.api.on("PATCH hookrun").fault(fault);
    }
    let _second = fixture.runner(CONTROLLER).await;
    fixture.until("the controller has it", "drain", |run| Fixture::runner_of(run) == Some(CONTROLLER)).await;
    let stored = Fixture::successful(&fixture.run("drain"));
    fixture.until("the controller measures", "drain", |run| Fixture::successful(run) >= stored + 3).await;
    // Between the last measurement of the first runner and the first one of the second there is a pause, for most
    // of the delay.
    let longest = fixture.longest_pause();
    assert!(longest >= SHORT.fence / 3, "measured while it was handed over: {longest:?}");
    assert_eq!(Fixture::runner_of(&fixture.run("drain")), Some(CONTROLLER));
}

#[tokio::test]
async fn one_of_two_that_come_at_once_gets_it() {
    let fixture = Fixture::start().await;
    for number in 0..6 {
        fixture
            .put(&format!("run-{number}"), &fixture.metric("/", &json!({"count": 2, "interval": "100ms"})));
    }
    let release_timeout = Duration::from_secs(600);
    let _both = tokio::join!(
        fixture.runner_with(AGENT, &fixture.api, 8, release_timeout),
        fixture.runner_with(CONTROLLER, &fixture.api, 8, release_timeout),
    );
    for number in 0..6 {
        let run = fixture.phase(&format!("run-{number}"), "Successful").await;
        assert_eq!(Fixture::measured(&run), 2);
    }
    assert_eq!(fixture.measurements(), 12);
}
