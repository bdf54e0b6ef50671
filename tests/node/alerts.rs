//! The alert rules, evaluated by Prometheus' own tool.

use std::process::Command;

fn promtool(args: &[&str]) -> String {
    let output = Command::new("promtool")
        .args(args)
        .output()
        .unwrap_or_else(|error| panic!("promtool: {error}; run: make setup"));
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "promtool {args:?}: {text}");
    text
}

/// `alerts.yaml` beside this file has a case for each alert, as a hermetic test checks.
#[test]
fn each_alert_fires_in_its_case_and_not_before() {
    promtool(&["check", "rules", "daemonset/monitoring/alerts.yaml"]);
    promtool(&["test", "rules", "tests/node/alerts.yaml"]);
}
