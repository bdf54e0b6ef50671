//! The provider `prometheus` against a real Prometheus.

use inplace::{
    api::hook_run::{HookPhase, Measurement},
    hook::place::Place,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{hook::measure, support::prometheus::Prometheus};

/// A Prometheus that monitors itself.
struct Monitored {
    prometheus: Prometheus,
    _folder: TempDir,
}

impl Monitored {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = "global: {scrape_interval: 1s, scrape_timeout: 1s}\n\
                      scrape_configs: [{job_name: self, static_configs: [{targets: ['127.0.0.1:@PORT']}]}]\n";
        Self { prometheus: Prometheus::start(folder.path(), config), _folder: folder }
    }

    fn ask(&self, query: &str, more: &Value) -> (HookPhase, Measurement) {
        let provider = json!({"prometheus": {"address": "http://127.0.0.1:{{ args.PORT }}", "query": query}});
        let mut metric = json!({"provider": provider});
        metric.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let args = json!([{"name": "PORT", "value": self.prometheus.port.to_string()}, {"name": "job", "value": "self"}]);
        measure("/run/none/none.sock", &Place::default(), &metric, &args)
    }
}

#[test]
fn a_real_prometheus_is_asked_and_judged() {
    let prometheus = Monitored::start();
    let b = r#"label_replace(vector(0.25), "pod", "b", "", "")"#;
    let a = r#"label_replace(vector(1234567), "pod", "a", "", "")"#;
    for (query, condition, phase, value) in [
        ("scalar(vector(42))", "result == 42", HookPhase::Successful, "42"),
        ("scalar(vector(42))", "result > 42", HookPhase::Failed, "42"),
        ("42", "result == 42.0", HookPhase::Successful, "42"),
        ("vector(7)", "result[0] == 7", HookPhase::Successful, "[7]"),
        (
            &format!("{b} or {a}"),
            "result[1] < 1 && 1234567 in result",
            HookPhase::Successful,
            "[1234567,0.25]",
        ),
        (&format!("{a} or {b}"), "result[1] < 1", HookPhase::Successful, "[1234567,0.25]"),
        ("scalar(absent_metric)", "result == 0", HookPhase::Inconclusive, "NaN"),
        ("absent_metric", "size(result) == 0", HookPhase::Successful, "[]"),
        // A missing element is no approval.
        ("absent_metric", "result[0] == 0", HookPhase::Error, "[]"),
        ("1/0", "result > 1000", HookPhase::Successful, "inf"),
    ] {
        let (ended, measurement) = prometheus.ask(query, &json!({"successCondition": condition}));
        assert_eq!((ended, measurement.value.as_str()), (phase, value), "{query}: {measurement:?}");
    }
    // The metrics of its own scrape, which become available after a moment.
    let polled = json!({
        "successCondition": "size(result) == 1 && result[0] == 1",
        "interval": "100ms",
        "successfulLimit": 1,
    });
    let (phase, measurement) = prometheus.ask(r#"up{job="{{ args.job }}"}"#, &polled);
    assert_eq!((phase, measurement.value.as_str()), (HookPhase::Successful, "[1]"));
}

#[test]
fn what_a_real_prometheus_cannot_answer_is_an_error_with_its_words() {
    let prometheus = Monitored::start();
    for (query, why) in [
        ("up{", "Prometheus cannot answer the query: invalid parameter \"query\""),
        ("no_such_function(1)", "unknown function"),
        ("\"text\"", "the query must return a scalar or a vector, not a string"),
        ("up[5m]", "the query must return a scalar or a vector, not a range vector"),
    ] {
        let (phase, measurement) = prometheus.ask(query, &json!({}));
        assert_eq!(phase, HookPhase::Error, "{query}");
        assert!(measurement.message.contains(why), "{query}: {measurement:?}");
    }
}
