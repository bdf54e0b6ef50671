//! Unit tests of `startup`: a kubelet that takes over from the old instance that its startup probe has passed.

use std::time::Duration;

use crate::operation::fixtures::{Answer, Bench, Kubelet, declared};
use crate::operation::outcome::Outcome;

const RESTART: &str = r#"{"containers":[{"name":"app"}],"deadlineSeconds":90,"engine":"Recreate"}"#;

/// A restart of a container with a startup probe that is due every 3 seconds. Its kubelet reports the new instance, and
/// that it is Ready and has started if `claims`.
fn restarted(request: &str, claims: bool) -> Bench {
    let mut bench = Bench::beside(Kubelet::Watching, request);
    while bench.operation.targets[0].reached.is_none() {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
    }
    bench.kubelet = Kubelet::Silent;
    let reported = declared(&mut bench.snapshot);
    (reported.has_startup_probe, reported.startup_period) = (true, Some(Duration::from_secs(3)));
    (reported.container_id, reported.running) = (Some("app-3".into()), true);
    (reported.ready, reported.started) = (claims, claims);
    bench
}

/// Milliseconds since the start of the new instance.
fn uptime(bench: &Bench) -> i128 {
    let started_at = bench.snapshot.by_id("app-3").unwrap().started_at.unwrap();
    bench.now.duration_since(started_at).as_millis()
}

fn run_until(bench: &mut Bench, ms: i128) {
    while uptime(bench) < ms {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None, "after {} ms", uptime(bench));
    }
}

#[test]
fn what_a_kubelet_takes_over_from_the_old_instance_does_not_count() {
    let mut bench = restarted(RESTART, true);
    run_until(&mut bench, 2900);
    // The probe is due, and the kubelet notices that this is another instance.
    declared(&mut bench.snapshot).started = false;
    run_until(&mut bench, 3500);
    declared(&mut bench.snapshot).ready = false;
    run_until(&mut bench, 9000);
    (declared(&mut bench.snapshot).ready, declared(&mut bench.snapshot).started) = (true, true);
    assert_eq!(bench.obey(), Outcome::Succeeded);
    assert!((9000..9500).contains(&uptime(&bench)), "{}", uptime(&bench));
}

#[test]
fn a_report_that_stays_the_same_counts_when_the_probe_must_have_run() {
    let mut bench = restarted(RESTART, true);
    run_until(&mut bench, 4900);
    assert_eq!(bench.obey(), Outcome::Succeeded);
    assert!((5000..6000).contains(&uptime(&bench)), "{}", uptime(&bench));
}

#[test]
fn after_a_report_about_the_new_instance_its_readiness_counts_at_once() {
    let mut bench = restarted(RESTART, false);
    run_until(&mut bench, 1000);
    (declared(&mut bench.snapshot).ready, declared(&mut bench.snapshot).started) = (true, true);
    assert_eq!(bench.obey(), Outcome::Succeeded);
    assert!((1000..1500).contains(&uptime(&bench)), "{}", uptime(&bench));
}

#[test]
fn a_probe_that_is_due_later_than_the_timeout_is_not_waited_for() {
    let request = RESTART.replace("\"engine\"", "\"readyTimeoutSeconds\":5,\"engine\"");
    let mut bench = restarted(&request, true);
    declared(&mut bench.snapshot).startup_period = Some(Duration::from_secs(60));
    run_until(&mut bench, 5000);
    assert_eq!(bench.obey(), Outcome::Succeeded);
    assert!((5000..6000).contains(&uptime(&bench)), "{}", uptime(&bench));
}
