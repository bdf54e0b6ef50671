//! The provider `prometheus` against a real Prometheus.

use std::{
    fs::{self, File},
    net::TcpListener,
    process::{Child, Command, Stdio},
};

use inplace::{
    api::hook_run::{HookPhase, Measurement},
    hook::place::Place,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{hook::measure, support::wait::eventually};

/// A Prometheus that monitors itself; killed on drop.
struct Prometheus {
    child: Child,
    port: u16,
    folder: TempDir,
}

impl Prometheus {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = format!(
            "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\n\
             scrape_configs: [{{job_name: self, static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}]\n"
        );
        fs::write(folder.path().join("config.yaml"), config).unwrap();
        let log = File::create(folder.path().join("log")).unwrap();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", folder.path().join("config.yaml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("prometheus: {error}; run: make setup"));
        let mut prometheus = Self { child, port, folder };
        eventually("a Prometheus that answers", || {
            assert!(prometheus.child.try_wait().unwrap().is_none(), "{}", prometheus.log());
            (prometheus.ask("vector(1)", &json!({})).0 == HookPhase::Successful).then_some(())
        });
        prometheus
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    fn ask(&self, query: &str, more: &Value) -> (HookPhase, Measurement) {
        let provider = json!({"prometheus": {"address": "http://127.0.0.1:{{ args.PORT }}", "query": query}});
        let mut metric = json!({"provider": provider});
        metric.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let args =
            json!([{"name": "PORT", "value": self.port.to_string()}, {"name": "job", "value": "self"}]);
        measure("/run/none/none.sock", &Place::default(), &metric, &args)
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_real_prometheus_is_asked_and_judged() {
    let prometheus = Prometheus::start();
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
    let prometheus = Prometheus::start();
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
