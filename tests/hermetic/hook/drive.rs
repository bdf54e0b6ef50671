//! The executor: which measurements are concurrent, what is reported, and what is not measured twice.

use std::cell::RefCell;

use inplace::api::hook_run::{HookPhase, HookRunStatus};
use inplace::hook::executor::Executor;
use inplace::hook::place::Place;
use inplace::hook::settings::Settings;
use serde_json::{Value, json};

use super::server::Server;
use super::{executor, settings, spec};

fn metric(name: &str, server: &Server, path: &str, more: &Value) -> Value {
    let web = json!({"url": server.url(path), "jsonPath": "{$.age}", "timeoutSeconds": 30});
    let mut metric = json!({"name": name, "successCondition": "result == '43'", "provider": {"web": web}});
    metric.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    metric
}

fn phase_of(status: &HookRunStatus, name: &str) -> Option<HookPhase> {
    status.metric_results.iter().find(|result| result.name == name).map(|result| result.phase)
}

#[tokio::test]
async fn a_slow_metric_delays_no_other_one() {
    let server = Server::start();
    let often = json!({"interval": "100ms", "count": 5});
    let spec = spec(&json!([
        metric("slow", &server, "/gate", &json!({})),
        metric("quick", &server, "/age", &often)
    ]));
    // The slow metric is answered only after the quick one has ended; if it delayed the quick one, it would end
    // as an error.
    let status = executor()
        .run(&spec, HookRunStatus::default(), &Place::default(), |status| {
            if phase_of(status, "quick") == Some(HookPhase::Successful) {
                assert!(
                    status.phase == Some(HookPhase::Successful)
                        || phase_of(status, "slow") == Some(HookPhase::Running)
                );
                server.open(1);
            }
        })
        .await;
    assert_eq!(status.phase, Some(HookPhase::Successful), "{status:#?}");
    assert_eq!(status.metric_results.iter().map(|result| result.count).sum::<i32>(), 6);
}

#[tokio::test]
async fn a_slow_hook_delays_no_other_hook() {
    let server = Server::start();
    let executor = executor();
    let run = async |spec| {
        let status = executor.run(&spec, HookRunStatus::default(), &Place::default(), |_| {}).await;
        assert_eq!(status.phase, Some(HookPhase::Successful), "{status:#?}");
    };
    let slow = run(spec(&json!([metric("m", &server, "/gate", &json!({}))])));
    let quick = async {
        run(spec(&json!([metric("m", &server, "/age", &json!({"interval": "100ms", "count": 3}))]))).await;
        server.open(1);
    };
    tokio::join!(slow, quick);
}

#[tokio::test]
async fn no_more_measurements_at_once_than_there_are_permits() {
    let server = Server::start();
    let executor = Executor::new(Settings { max_at_once: 2, ..settings() });
    let metrics: Vec<_> = (0..6).map(|at| metric(&format!("m{at}"), &server, "/crowd", &json!({}))).collect();
    let status = executor
        .clone()
        .run(&spec(&metrics.into()), HookRunStatus::default(), &Place::default(), |_| {})
        .await;
    assert_eq!(status.phase, Some(HookPhase::Successful), "{status:#?}");
    assert_eq!((server.most(), server.requests().len()), (2, 6));
}

#[tokio::test]
async fn what_begins_together_is_reported_together() {
    let server = Server::start();
    let metrics: Vec<_> = (0..3).map(|at| metric(&format!("m{at}"), &server, "/age", &json!({}))).collect();
    let reported = RefCell::new(Vec::new());
    let status = executor()
        .run(&spec(&metrics.into()), HookRunStatus::default(), &Place::default(), |status| {
            reported.borrow_mut().push(status.clone());
        })
        .await;
    let reported = reported.into_inner();
    let running = |status: &HookRunStatus| {
        let all = status.metric_results.iter().flat_map(|result| &result.measurements);
        all.filter(|one| one.finished_at.is_none()).count()
    };
    assert_eq!(running(&reported[0]), 3);
    assert!(reported.len() <= 4, "one beginning and at most three ends: {}", reported.len());
    assert!(reported.windows(2).all(|two| two[0] != two[1]), "reported without a change");
    assert_eq!(reported.last(), Some(&status));
}

#[tokio::test]
async fn a_run_that_was_dropped_goes_on_and_repeats_nothing_that_had_ended() {
    let server = Server::start();
    let steps = json!({"interval": "100ms", "count": 4});
    // The first metric needs no gate. The requests of the second one wait until the gate is open; then all of
    // them pass.
    let spec =
        spec(&json!([metric("free", &server, "/age", &json!({})), metric("held", &server, "/gate", &steps)]));
    let reported = RefCell::new(HookRunStatus::default());
    let executor = executor();
    let place = Place::default();
    let run = executor
        .run(&spec, HookRunStatus::default(), &place, |status| *reported.borrow_mut() = status.clone());
    let permit_is_reported = async {
        server.arrived(2).await;
        while phase_of(&reported.borrow(), "free") != Some(HookPhase::Successful) {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        status = run => panic!("{status:#?}"),
        () = permit_is_reported => {}
    }
    let last = reported.into_inner();
    let first =
        last.metric_results.iter().find(|result| result.name == "free").unwrap().measurements[0].clone();
    // The status as it is stored and read back.
    let last: HookRunStatus = serde_json::from_value(serde_json::to_value(last).unwrap()).unwrap();
    server.open(1);
    let status = executor.run(&spec, last.clone(), &place, |_| {}).await;
    assert_eq!(status.phase, Some(HookPhase::Successful), "{status:#?}");
    assert_eq!(status.started_at, last.started_at);
    let free = status.metric_results.iter().find(|result| result.name == "free").unwrap();
    assert_eq!((free.count, &free.measurements[..]), (1, &[first][..]));
    let asked = |path: &str| server.requests().iter().filter(|request| request.line.ends_with(path)).count();
    // The measurement that was running is repeated, since its result is unknown.
    assert_eq!((asked("/age"), asked("/gate")), (1, 5));
    // An ended run does not change.
    let again = executor.run(&spec, status.clone(), &place, |_| panic!("reported")).await;
    assert_eq!((again, asked("/gate")), (status, 5));
}

#[tokio::test]
async fn a_run_that_is_not_valid_or_was_stopped_measures_nothing() {
    let server = Server::start();
    let mut terminated = spec(&json!([metric("m", &server, "/age", &json!({}))]));
    terminated.terminate = true;
    let status = executor().run(&terminated, HookRunStatus::default(), &Place::default(), |_| {}).await;
    assert!(
        status.phase.is_some_and(|phase| phase.is_completed() && phase != HookPhase::Successful),
        "{status:?}"
    );
    let invalid =
        spec(&json!([metric("m", &server, "/age", &json!({"successCondition": "asInt(result) >"}))]));
    let status = executor().run(&invalid, HookRunStatus::default(), &Place::default(), |_| {}).await;
    assert_eq!(status.phase, Some(HookPhase::Error));
    assert!(status.message.contains("metric `m`: successCondition"), "{status:?}");
    assert!(server.requests().is_empty());
}
