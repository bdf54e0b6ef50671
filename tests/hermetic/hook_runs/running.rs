//! HookRuns from the first reconciliation to their verdict.

use super::*;
use crate::support::http_server::Request;

#[tokio::test]
async fn a_run_is_taken_measured_and_reported() {
    let fixture = Fixture::start().await;
    fixture.put("drain", &fixture.metric("/", &json!({"count": 2, "interval": "100ms"})));
    let _running = fixture.runner(AGENT).await;
    let run = fixture.phase("drain", "Successful").await;
    assert_eq!(Fixture::runner_of(&run), Some(AGENT));
    let result = &run["status"]["metricResults"][0];
    assert_eq!((&result["successful"], &result["count"]), (&json!(2), &json!(2)), "{result}");
    // The value is text, and counters with 0 are omitted.
    assert_eq!(result["measurements"][1]["value"], json!("45"));
    assert!(result.get("failed").is_none() && result.get("error").is_none(), "{result}");
    assert_eq!(fixture.measurements(), 2);
    fixture.api.until("the event", |store| !store.events.is_empty()).await;
    let event = &fixture.api.events()[0];
    assert_eq!((&event["reason"], &event["type"]), (&json!("Complete"), &json!("Normal")), "{event}");
    assert_eq!(
        (&event["involvedObject"]["kind"], &event["involvedObject"]["name"]),
        (&json!("HookRun"), &json!("drain"))
    );
    assert_eq!(event["source"]["host"], "here");
    // Taken once; written at the start and for each measurement. The first result is not written alone if the write of
    // the start takes as long as the interval.
    assert_eq!(fixture.api.count("PATCH hookrun shop/drain"), 1);
    let writes = fixture.api.count("PATCH hookrun/status shop/drain");
    assert!((2..=3).contains(&writes), "{:?}", fixture.api.calls());
}

#[tokio::test]
async fn a_failure_and_a_run_that_cannot_be_run_say_why() {
    let fixture = Fixture::start().await;
    fixture.put("fails", &fixture.metric("/", &json!({"successCondition": "asInt(result) < 30"})));
    fixture.put("odd", &fixture.metric("/", &json!({"successCondition": "asInt(result"})));
    fixture.put("broken", &json!({"name": 7}));
    let _running = fixture.runner(AGENT).await;
    fixture.phase("fails", "Failed").await;
    let odd = fixture.phase("odd", "Error").await;
    let message = odd["status"]["message"].as_str().unwrap();
    assert!(message.contains("webtest") && message.contains("successCondition"), "{message}");
    let broken = fixture.phase("broken", "Error").await;
    assert!(broken["status"]["message"].as_str().unwrap().contains("cannot be read"), "{broken}");
    fixture.api.until("the events", |store| store.events.len() == 3).await;
    for event in fixture.api.events() {
        assert_eq!((&event["reason"], &event["type"]), (&json!("Failed"), &json!("Warning")), "{event}");
    }
}

#[tokio::test]
async fn what_is_anothers_or_over_is_left_alone() {
    let fixture = Fixture::start().await;
    let metric = fixture.metric("/", &json!({}));
    let spec = json!({"metrics": [metric]});
    fixture.put_as("operation", &spec, &json!({"labels": {"inplace.dev/operation": "r1"}}));
    let mut over = fixture.put("over", &metric);
    over["status"] = json!({"phase": "Failed"});
    let over = fixture.api.put(over);
    fixture.put("last", &metric);
    let _running = fixture.runner(AGENT).await;
    fixture.phase("last", "Successful").await;
    assert_eq!(fixture.run("over"), over);
    assert_eq!(fixture.run("operation").get("status"), None);
    assert_eq!(fixture.measurements(), 1);
}

#[tokio::test]
async fn by_hand_it_is_approved_or_ended_at_once() {
    let fixture = Fixture::start().await;
    let waits = fixture.metric("/", &json!({"count": 5, "interval": "1h"}));
    for name in ["approved", "terminated", "not-begun"] {
        fixture.put(name, &waits);
    }
    // Another spelling has no effect.
    fixture.put_as(
        "not-approved",
        &json!({"metrics": [waits]}),
        &json!({"annotations": {"inplace.dev/approve": "yes"}}),
    );
    let _running = fixture.runner(AGENT).await;
    for name in ["approved", "terminated", "not-begun", "not-approved"] {
        fixture.until("it has measured once", name, |run| Fixture::measured(run) == 1).await;
    }
    fixture.api.edit_of("hookruns", "shop", "approved", |run| {
        run["metadata"]["annotations"]["inplace.dev/approve"] = json!("true");
    });
    let approved = fixture.phase("approved", "Successful").await;
    assert!(approved["status"]["message"].as_str().unwrap().contains("by hand"), "{approved}");
    fixture.api.edit_of("hookruns", "shop", "terminated", |run| run["spec"]["terminate"] = json!(true));
    let ended = fixture.until("it has ended", "terminated", |run| {
        !matches!(run["status"]["phase"].as_str(), None | Some("Running"))
    });
    let ended = ended.await;
    assert_ne!(ended["status"]["phase"], "Successful", "to end it approves nothing: {ended}");
    assert_eq!(fixture.run("not-approved")["status"]["phase"], "Running");
    assert_eq!(fixture.measurements(), 4);
}

#[tokio::test]
async fn a_deleted_run_stops_and_its_namesake_is_another_one() {
    let fixture = Fixture::start().await;
    let polls = fixture.metric("/first", &json!({"interval": "100ms", "successfulLimit": 1000}));
    fixture.put("drain", &polls);
    let _running = fixture.runner(AGENT).await;
    fixture.until("it measures", "drain", |run| Fixture::measured(run) >= 2).await;
    fixture.api.store(|store| store.remove_of("hookruns", "shop", "drain"));
    fixture.put("drain", &fixture.metric("/second", &json!({"count": 3, "interval": "100ms"})));
    let run = fixture.phase("drain", "Successful").await;
    assert_eq!(Fixture::measured(&run), 3);
    let requests = fixture.hook_server.requests();
    let log: Vec<_> = requests.iter().map(Request::path).collect();
    let second = log.iter().position(|path| *path == "/second").unwrap();
    assert!(log[second..].iter().all(|path| *path == "/second"), "{log:?}");
}

#[tokio::test]
async fn more_than_may_run_wait_the_oldest_first() {
    let fixture = Fixture::start().await;
    let slow = fixture.metric("/", &json!({"initialDelay": "150ms"}));
    for (name, made) in [("c", 1), ("b", 2), ("a", 3)] {
        let meta = json!({"creationTimestamp": format!("2026-11-20T10:00:0{made}Z")});
        fixture.put_as(name, &json!({"metrics": [slow]}), &meta);
    }
    let _running = fixture.runner_with(AGENT, &fixture.api, 1, Duration::ZERO).await;
    fixture.phase("a", "Successful").await;
    let writes = fixture.api.writes();
    let ends =
        |name: &str| writes.iter().rposition(|line| line.ends_with(&format!("status shop/{name}"))).unwrap();
    let begins = |name: &str| writes.iter().position(|line| line.ends_with(&format!("shop/{name}"))).unwrap();
    assert!(ends("c") < begins("b") && ends("b") < begins("a"), "{writes:#?}");
}

#[tokio::test]
async fn one_namespace_does_not_hold_up_the_others() {
    let fixture = Fixture::start().await;
    let endless = fixture.metric("/", &json!({"initialDelay": "1h"}));
    for index in 0..40 {
        let meta = json!({"namespace": "greedy", "creationTimestamp": "2026-11-20T10:00:00Z"});
        fixture.put_as(&format!("run-{index}"), &json!({"metrics": [endless]}), &meta);
    }
    let meta = json!({"creationTimestamp": "2026-11-20T11:00:00Z"});
    fixture.put_as("drain", &json!({"metrics": [fixture.metric("/", &json!({}))]}), &meta);
    let _running = fixture.runner(AGENT).await;
    fixture.phase("drain", "Successful").await;
    let taken = |index: &usize| {
        let run = fixture.api.get("hookruns", "greedy", &format!("run-{index}")).unwrap();
        !run["metadata"]["annotations"]["inplace.dev/runner"].is_null()
    };
    assert!((0..40).filter(taken).count() <= 6, "a quarter of the 8 is for others");
}

#[tokio::test]
async fn large_runs_of_one_namespace_are_taken_up_a_few_at_a_time_and_hold_up_nobody() {
    let fixture = Fixture::start().await;
    let mut large = fixture.metric("/", &json!({"initialDelay": "1h"}));
    large["provider"]["web"]["body"] = json!("x".repeat(100 << 10));
    for index in 0..60 {
        let meta = json!({"namespace": "greedy", "creationTimestamp": "2026-11-20T10:00:00Z"});
        fixture.put_as(&format!("run-{index}"), &json!({"metrics": [large]}), &meta);
    }
    let late = json!({"creationTimestamp": "2026-11-20T11:00:00Z"});
    let late_and_greedy = json!({"namespace": "greedy", "creationTimestamp": "2026-11-20T11:00:00Z"});
    fixture.put_as("drain", &json!({"metrics": [fixture.metric("/", &json!({}))]}), &late);
    fixture.put_as("small", &json!({"metrics": [fixture.metric("/", &json!({}))]}), &late_and_greedy);
    let _running = fixture.runner_with(AGENT, &fixture.api, 100, Duration::ZERO).await;
    fixture.phase("drain", "Successful").await;
    let taken = |store: &Store| {
        let runs = (0..60).filter_map(|index| store.get("hookruns", "greedy", &format!("run-{index}")));
        runs.filter(|run| !run["metadata"]["annotations"]["inplace.dev/runner"].is_null()).count()
    };
    fixture.api.until("large ones are taken up", |store| taken(store) > 0).await;
    assert!(fixture.api.store(|store| taken(store)) <= 3, "three quarters of the 512 KiB");
}

#[tokio::test]
async fn a_run_that_is_too_large_ends_as_an_error_and_holds_up_nobody() {
    let fixture = Fixture::start().await;
    let mut large = fixture.metric("/", &json!({}));
    for index in 0..12 {
        // One is as large as an object can be. As many of them keep a slow machine busy for longer than the test waits.
        large["provider"]["web"]["body"] = json!("x".repeat(if index == 0 { 1_400_000 } else { 200_000 }));
        fixture.put(&format!("large-{index}"), &large);
    }
    fixture.put("small", &fixture.metric("/", &json!({})));
    let _running = fixture.runner(AGENT).await;
    fixture.phase("small", "Successful").await;
    for index in 0..12 {
        let run = fixture.phase(&format!("large-{index}"), "Error").await;
        assert!(
            run["status"]["message"].as_str().unwrap().contains("larger than 128 KiB"),
            "{}",
            run["status"]
        );
    }
    // The verdict is the last write.
    let writes = fixture.api.writes();
    let ends = writes.iter().filter(|line| line.ends_with("status shop/large-0")).count();
    assert_eq!(ends, 1, "{writes:#?}");
}
