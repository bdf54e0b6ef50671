//! What is installed to observe agents and controllers: one set of alert rules in three forms, a case and a runbook for each
//! alert, and no metric that does not exist. Evaluates no expression: `tests/node` and `tests/cluster` have a Prometheus.

use std::collections::BTreeSet;
use std::fs;

use regex::Regex;
use serde_json::Value;

use crate::docs::anchors;

const ALERTS: &str = "daemonset/monitoring/alerts.yaml";
const DASHBOARD: &str = "daemonset/monitoring/dashboard.json";
/// The rows of the dashboard: the questions of a person on call.
const QUESTIONS: [&str; 7] = [
    "Is a pod closed?",
    "Are operations failing, and why?",
    "How long are containers down?",
    "Is something stuck?",
    "Do agents and controller work?",
    "Rollouts",
    "Group restarts",
];

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Each alert.
fn alerts() -> Vec<Value> {
    let rules: Value = serde_saphyr::from_str(&read(ALERTS)).unwrap();
    let groups = rules["groups"].as_array().unwrap();
    groups.iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
}

fn name(alert: &Value) -> &str {
    alert["alert"].as_str().unwrap()
}

fn panels() -> Vec<Value> {
    let board: Value = serde_json::from_str(&read(DASHBOARD)).unwrap();
    board["panels"].as_array().unwrap().clone()
}

/// The queries of a panel.
fn queries(panel: &Value) -> Vec<&str> {
    let targets = panel["targets"].as_array();
    targets.into_iter().flatten().map(|target| target["expr"].as_str().unwrap()).collect()
}

/// `prometheus-rule.yaml` as it has to be.
fn prometheus_rule() -> String {
    let head = "# The rules of alerts.yaml for the Prometheus Operator: `make reference` writes this file, a test compares both.\n\
                apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: inplace\n  \
                namespace: inplace-system\n  labels:\n    app.kubernetes.io/name: inplace\n    \
                app.kubernetes.io/component: monitoring\n    app.kubernetes.io/part-of: inplace\nspec:\n";
    let rules = read(ALERTS);
    let rules = rules.lines().skip_while(|line| line.starts_with('#'));
    rules.fold(head.to_owned(), |text, line| text + "  " + line + "\n")
}

#[test]
fn reference_of_the_alert_rules() {
    let copies = [
        ("daemonset/monitoring/prometheus-rule.yaml", prometheus_rule()),
        ("daemonset/chart/files/alerts.yaml", read(ALERTS)),
        ("daemonset/chart/files/dashboard.json", read(DASHBOARD)),
    ];
    for (path, expected) in copies {
        #[expect(clippy::disallowed_methods, reason = "tests have no command line")]
        if std::env::var_os("INPLACE_WRITE_REFERENCE").is_some() {
            fs::write(path, &expected).unwrap();
        }
        assert!(
            read(path) == expected,
            "{path} is not what {ALERTS} and {DASHBOARD} say; run: make reference"
        );
    }
}

#[test]
fn each_alert_has_a_runbook_and_a_case() {
    let runbooks = anchors(&read("docs/runbooks.md"));
    let cases: Value = serde_saphyr::from_str(&read("tests/node/alerts.yaml")).unwrap();
    let cases: BTreeSet<_> =
        cases["tests"].as_array().unwrap().iter().map(|case| case["name"].as_str().unwrap()).collect();
    let alerts = alerts();
    for alert in &alerts {
        let name = name(alert);
        let runbook = format!("docs/runbooks.md#{}", name.to_lowercase());
        assert_eq!(alert["annotations"]["runbook"], runbook.as_str(), "{name}");
        assert!(runbooks.contains(&name.to_lowercase()), "docs/runbooks.md has no heading {name}");
        assert!(cases.contains(name), "tests/node/alerts.yaml has no case {name}");
        for key in ["summary", "description"] {
            assert!(alert["annotations"][key].is_string(), "{name} has no {key}");
        }
        let severity = alert["labels"]["severity"].as_str();
        assert!(matches!(severity, Some("critical" | "warning")), "{name}: {severity:?}");
    }
    let names: BTreeSet<_> = alerts.iter().map(name).collect();
    assert_eq!(names.len(), alerts.len(), "an alert is there twice");
    let headed =
        runbooks.iter().filter(|anchor| anchor.starts_with("inplace") && !anchor.contains('-')).count();
    assert_eq!((headed, cases.len()), (names.len(), names.len()), "a runbook or a case of no alert");
}

#[test]
fn every_metric_that_is_used_exists() {
    let page = read("docs/reference/metrics.md");
    let row = Regex::new(r"(?m)^\| `([a-z_]+)` \| (\w+) \|").unwrap();
    let mut known = BTreeSet::from(["up".to_owned()]);
    for found in row.captures_iter(&page) {
        let suffixes: &[&str] = if &found[2] == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        known.extend(suffixes.iter().map(|suffix| format!("{}{suffix}", &found[1])));
    }
    let (alerts, panels) = (alerts(), panels());
    let used = alerts.iter().map(|alert| alert["expr"].as_str().unwrap());
    let used: Vec<_> = used.chain(panels.iter().flat_map(queries)).collect();
    assert!(used.len() > 70, "only {} expressions", used.len());
    let metric = Regex::new(r"\b(?:inplace|process)_[a-z_]+|\bup\b").unwrap();
    let quoted = Regex::new(r#""[^"]*""#).unwrap();
    for expression in &used {
        // Values of labels are no metrics.
        let bare = quoted.replace_all(expression, "");
        let found: Vec<_> = metric.find_iter(&bare).map(|found| found.as_str().to_owned()).collect();
        assert!(!found.is_empty(), "no metric in {expression}");
        for metric in found {
            assert!(known.contains(&metric), "{metric} does not exist: {expression}");
        }
    }
    // What nobody looks at is not worth its place at every scrape.
    let all = used.join("\n");
    let unused = known.iter().filter(|metric| !metric.ends_with("_sum") && !metric.ends_with("_count"));
    let unused: Vec<_> = unused.filter(|metric| !all.contains(metric.as_str())).collect();
    assert!(unused.is_empty(), "neither an alert nor the dashboard uses {unused:?}");
}

#[test]
fn the_dashboard_has_a_row_for_each_question() {
    let panels = panels();
    let rows = panels.iter().filter(|panel| panel["type"] == "row");
    assert_eq!(rows.map(|row| row["title"].as_str().unwrap()).collect::<Vec<_>>(), QUESTIONS);
    let mut ids = BTreeSet::new();
    for pair in panels.windows(2) {
        assert!(
            pair[0]["type"] != "row" || pair[1]["type"] != "row",
            "a row without a panel: {}",
            pair[0]["title"]
        );
    }
    for panel in &panels {
        assert!(ids.insert(panel["id"].as_i64().unwrap()), "the id of {} is there twice", panel["title"]);
        let is_query = !matches!(panel["type"].as_str(), Some("row" | "text"));
        assert_eq!(!queries(panel).is_empty(), is_query, "{}", panel["title"]);
    }
}
