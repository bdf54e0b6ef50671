//! Checks whether a hook can be run at all: all its problems are found before anything is measured.
//!
//! Messages name the metric and the field and say what to change. They must not contain the value of a
//! placeholder.

use std::time::Duration;

use crate::api::hook_run::{HookRunSpec, MAX_SPEC_BYTES};
use crate::api::hook_template::{Argument, HookTemplateSpec, Metric, Policy, Web};
use crate::api::request::HookArg;
use crate::hook::args::{self, Injected, Unresolved};
use crate::hook::assess::{Conditions, DEFAULT_ERROR_LIMIT, Limits};
use crate::hook::condition::Condition;
use crate::hook::program::Program;
use crate::hook::schedule::{MAX_DURATION, MIN_INTERVAL, Schedule, parse_duration};
use crate::hook::template;

/// Maximum number of metrics of one hook.
const MAX_METRICS: usize = 64;
/// Maximum number of containers of a pod for which a template is checked.
const MAX_CONTAINERS: usize = 64;

/// Why a hook cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// A problem of the hook as a whole.
    #[error("{0}")]
    Hook(String),
    /// Arguments without values.
    #[error(transparent)]
    Arguments(#[from] Unresolved),
    /// A problem with a field of one metric.
    #[error("metric `{metric}`: {field}: {problem}")]
    Field {
        /// The name of the metric.
        metric: String,
        /// The field, as it is spelled in YAML.
        field: String,
        /// What is wrong, and what is valid.
        problem: String,
    },
}

/// The spec of a HookRun of this template with these arguments. It is checked as a whole.
pub fn prepare(
    template: &HookTemplateSpec,
    given: &[HookArg],
    injected: Option<&Injected>,
) -> Result<HookRunSpec, Invalid> {
    hosts_stay(template, given)?;
    let spec = HookRunSpec {
        metrics: template.metrics.clone(),
        args: args::resolve(&template.args, given, injected)?,
        terminate: false,
        policy: Some(template.policy.unwrap_or(Policy::Parallel)),
    };
    Program::compile(&spec)?;
    Ok(spec)
}

/// Like [`prepare`], for a hook of an operation, which the agent of the node runs: one of a request, also the one after an
/// update in place of a workload. An agent's token cannot change a pod beyond the agent's own fields, so a hook that sets
/// annotations would fail in the middle of the operation on an API server that enforces the policy.
pub fn for_agent(
    template: &HookTemplateSpec,
    given: &[HookArg],
    injected: &Injected,
) -> Result<HookRunSpec, Invalid> {
    if let Some(metric) = template.metrics.iter().find(|metric| metric.provider.sets_annotations()) {
        let problem = "the agent, which runs the hooks of a request and those of `postInplaceUpdateStrategy`, may not \
                       set annotations of pods: use `function: get`, `web` or `exec` here. `patch` works where the \
                       controller runs the hook: in `preDeleteUpdateStrategy`, `preInplaceUpdateStrategy`, a canary \
                       step and the delete guard";
        return Err(Check { metric: &metric.name, args: &[] }.wrong("provider.kubernetes.function", problem));
    }
    prepare(template, given, Some(injected))
}

/// Headers, bodies and the user in a URL may be or contain secrets. So a user who may only request a run must not
/// choose the host to which the template sends them.
fn hosts_stay(template: &HookTemplateSpec, given: &[HookArg]) -> Result<(), Invalid> {
    let sends = |web: &&Web| !web.headers.is_empty() || web.body.is_some() || web.url.contains('@');
    for metric in &template.metrics {
        let web = metric.provider.web.as_ref().filter(sends).map(|web| ("provider.web.url", &web.url));
        let prometheus = metric.provider.prometheus.as_ref().filter(|asked| asked.address.contains('@'));
        let prometheus = prometheus.map(|asked| ("provider.prometheus.address", &asked.address));
        let Some((field, url)) = web.or(prometheus) else { continue };
        for name in template::of_host(url) {
            let declared = template.args.iter().find(|arg| arg.name == name);
            let Some(value) = declared.and_then(|arg| arg.value.as_ref()) else { continue };
            if given.iter().any(|arg| arg.name == name && arg.value != *value) {
                let problem = format!(
                    "`args.{name}` is a part of the host, and this template sends headers, a body or a user there: \
                     a request cannot override the value that the template gives it"
                );
                return Err(Check { metric: &metric.name, args: &[] }.wrong(field, &problem));
            }
        }
    }
    Ok(())
}

/// What stands for the arguments that have no value in a template: a number, a URL, a scheme.
pub(super) const STAND_INS: [&str; 3] = ["1", "http://1", "http"];

/// The arguments of a template with `value` for those without one, and a pod that injects values.
pub(super) fn stand_in(template: &HookTemplateSpec, value: &str) -> (Vec<HookArg>, Injected) {
    let given = |arg: &Argument| HookArg { name: arg.name.clone(), value: value.to_owned() };
    let open = template.args.iter().filter(|arg| arg.value.is_none()).map(given).collect();
    let pod = Injected {
        pod_name: "pod".to_owned(),
        pod_namespace: "namespace".to_owned(),
        pod_ip: "127.0.0.1".to_owned(),
        host_ip: "127.0.0.1".to_owned(),
        containers: vec!["container".to_owned(); MAX_CONTAINERS],
        modified: vec!["container".to_owned(); MAX_CONTAINERS],
    };
    (open, pod)
}

/// Checks a template before it is run. An argument without a value may stand for any part of a field: a port, a
/// whole URL, a scheme. The template is valid if it can be run with one of these substitutes.
pub fn template(template: &HookTemplateSpec) -> Result<HookRunSpec, Invalid> {
    let prepared = |value: &str| {
        let (given, pod) = stand_in(template, value);
        prepare(template, &given, Some(&pod))
    };
    let [first, others @ ..] = STAND_INS;
    prepared(first)
        .or_else(|invalid| others.into_iter().find_map(|value| prepared(value).ok()).ok_or(invalid))
}

/// One metric, with its fields parsed and its limits set.
#[derive(Clone, Debug)]
pub(crate) struct CompiledMetric {
    pub(crate) name: String,
    pub(crate) schedule: Schedule,
    pub(crate) conditions: Conditions,
    pub(crate) limits: Limits,
}

/// Checks and parses every metric.
pub(crate) fn compile(spec: &HookRunSpec) -> Result<Vec<CompiledMetric>, Invalid> {
    if spec.metrics.is_empty() || spec.metrics.len() > MAX_METRICS {
        return Err(Invalid::Hook(format!("metrics: there must be 1 to {MAX_METRICS} of them")));
    }
    if serde_json::to_vec(spec).map_or(usize::MAX, |json| json.len()) > MAX_SPEC_BYTES {
        return Err(Invalid::Hook(format!(
            "the hook is larger than {} KiB with its arguments",
            MAX_SPEC_BYTES >> 10
        )));
    }
    let bare: Vec<_> =
        spec.args.iter().filter(|arg| arg.value.is_none()).map(|arg| arg.name.clone()).collect();
    if !bare.is_empty() {
        return Err(Unresolved(bare).into());
    }
    for (index, metric) in spec.metrics.iter().enumerate() {
        if metric.name.is_empty() {
            return Err(Invalid::Hook(format!("metrics[{index}].name: it must not be empty")));
        }
        if spec.metrics[..index].iter().any(|earlier| earlier.name == metric.name) {
            return Err(Invalid::Hook(format!("metrics[{index}].name: `{}` is used twice", metric.name)));
        }
    }
    spec.metrics.iter().map(|metric| compile_metric(metric, &spec.args)).collect()
}

fn compile_metric(metric: &Metric, args: &[Argument]) -> Result<CompiledMetric, Invalid> {
    let check = Check { metric: &metric.name, args };
    let schedule = Schedule {
        initial_delay: check.duration("initialDelay", metric.initial_delay.as_ref())?.unwrap_or_default(),
        interval: check.interval(metric)?,
    };
    let limits = limits(&check, metric, schedule.interval)?;
    check.provider(&metric.provider).into_iter().next().map_or(Ok(()), Err)?;
    let conditions = Conditions {
        success: check.condition("successCondition", metric.success_condition.as_ref())?,
        failure: check.condition("failureCondition", metric.failure_condition.as_ref())?,
    };
    Ok(CompiledMetric { name: metric.name.clone(), schedule, conditions, limits })
}

/// The limits of a metric, with their defaults, as the section Conditions of docs/hooks.md states them.
pub(super) fn limits(
    check: &Check<'_>,
    metric: &Metric,
    interval: Option<Duration>,
) -> Result<Limits, Invalid> {
    let fields = [
        ("count", metric.count),
        ("failureLimit", metric.failure_limit),
        ("successfulLimit", metric.successful_limit),
        ("inconclusiveLimit", metric.inconclusive_limit),
        ("consecutiveErrorLimit", metric.consecutive_error_limit),
    ];
    if let Some((field, _)) = fields.iter().find(|(_, value)| value.is_some_and(|value| value < 0)) {
        return Err(check.wrong(field, "it must not be negative"));
    }
    if metric.consecutive_successful_limit.is_some_and(|limit| limit < 1) {
        return Err(check.wrong("consecutiveSuccessfulLimit", "it must be at least 1"));
    }
    let count = metric.count.filter(|count| *count > 0);
    if count.is_some_and(|count| count > 1) && interval.is_none() {
        return Err(check.wrong("interval", "it is needed for a count of more than 1"));
    }
    let successes = metric.successful_limit.filter(|limit| *limit > 0);
    let successes_in_a_row = metric.consecutive_successful_limit;
    let polls = successes.is_some() || successes_in_a_row.is_some();
    if count.is_none() && interval.is_some() && !polls {
        let problem = "with an interval and without a count it would never succeed: give count, successfulLimit or \
                       consecutiveSuccessfulLimit";
        return Err(check.wrong("count", problem));
    }
    let once = count.is_none() && interval.is_none();
    let count = if once { Some(1) } else { count };
    let limits_of_count = [
        ("failureLimit", metric.failure_limit.filter(|_| !once)),
        ("successfulLimit", successes),
        ("inconclusiveLimit", metric.inconclusive_limit.filter(|_| !once)),
        ("consecutiveSuccessfulLimit", successes_in_a_row),
    ];
    for (field, limit) in limits_of_count {
        if let (Some(count), Some(limit)) = (count, limit)
            && limit > count
        {
            let more = if once { "give an interval" } else { "give a larger count" };
            let problem = format!("{limit} cannot be reached with {count} measurement(s): {more}");
            return Err(check.wrong(field, &problem));
        }
    }
    Ok(Limits {
        count,
        failures: if polls { metric.failure_limit } else { Some(metric.failure_limit.unwrap_or(0)) },
        inconclusive: metric.inconclusive_limit.unwrap_or(0),
        errors_in_a_row: metric.consecutive_error_limit.unwrap_or(DEFAULT_ERROR_LIMIT),
        successes,
        successes_in_a_row,
    })
}

/// Checks the fields of one metric; the messages name it.
pub(super) struct Check<'a> {
    pub(super) metric: &'a str,
    pub(super) args: &'a [Argument],
}

impl Check<'_> {
    pub(super) fn wrong(&self, field: &str, problem: &str) -> Invalid {
        let metric = crate::hook::value::cut(self.metric, 128);
        Invalid::Field { metric, field: field.to_owned(), problem: problem.to_owned() }
    }

    pub(super) fn duration(&self, field: &str, text: Option<&String>) -> Result<Option<Duration>, Invalid> {
        let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(None) };
        match parse_duration(text) {
            Ok(duration) if duration > MAX_DURATION => {
                Err(self.wrong(field, "it must be at most 8784h (366 days)"))
            }
            Ok(duration) => Ok(Some(duration)),
            Err(problem) => Err(self.wrong(field, problem)),
        }
    }

    pub(super) fn interval(&self, metric: &Metric) -> Result<Option<Duration>, Invalid> {
        let interval = self.duration("interval", metric.interval.as_ref())?;
        if interval.is_some_and(|interval| interval < MIN_INTERVAL) {
            return Err(self.wrong("interval", "it must be at least 100ms"));
        }
        Ok(interval)
    }

    pub(super) fn condition(
        &self,
        field: &str,
        source: Option<&String>,
    ) -> Result<Option<Condition>, Invalid> {
        let Some(source) = source.filter(|source| !source.trim().is_empty()) else { return Ok(None) };
        Condition::compile(source).map(Some).map_err(|error| self.wrong(field, &error.to_string()))
    }

    pub(super) fn rendered(&self, field: &str, text: &str) -> Result<String, Invalid> {
        template::render(text, self.args).map_err(|error| self.wrong(field, &error.to_string()))
    }
}

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "json! reads better where it is used")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn template(metrics: Value) -> HookTemplateSpec {
        serde_json::from_value(json!({ "metrics": metrics, "args": [{ "name": "token", "value": "s3cr3t\n" }, { "name": "ip" }] }))
            .unwrap()
    }

    fn prepared(metrics: Value) -> Result<HookRunSpec, Invalid> {
        prepare(&template(metrics), &[HookArg { name: "ip".into(), value: "10.0.0.7".into() }], None)
    }

    /// The error for one metric with these fields; empty if it is valid.
    fn refused(fields: Value) -> String {
        let mut metric =
            json!({ "name": "m", "provider": { "web": { "url": "http://{{ args.ip }}:9091" } } });
        metric.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        prepared(json!([metric])).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn what_is_right_is_taken_as_it_is() {
        for fields in [
            json!({}),
            json!({ "count": 0, "interval": "5s", "successfulLimit": 1 }),
            json!({ "count": 3, "interval": "60s", "failureLimit": 3, "initialDelay": "1m30s" }),
            json!({ "interval": "500ms", "consecutiveSuccessfulLimit": 2, "consecutiveErrorLimit": 0 }),
            json!({ "interval": "", "initialDelay": "", "successCondition": "" }),
            json!({ "provider": { "kubernetes": { "function": "get", "fields": [{ "path": "metadata.annotations.a/b.c", "value": "" }] } } }),
            json!({ "provider": { "exec": { "container": "app", "command": ["cat", "{{ args.ip }}"] } } }),
            json!({ "provider": { "prometheus": { "address": "http://prometheus:9090", "query": "up{pod=\"{{ args.ip }}\"}" } } }),
            json!({ "provider": { "web": { "url": "https://[::1]:1/{{args.ip}}?x=1", "timeoutSeconds": -1, "statusCodes": [204], "jsonPath": "" } } }),
        ] {
            assert_eq!(refused(fields.clone()), "", "{fields}");
        }
        let run =
            prepared(json!([{ "name": "m", "provider": { "web": { "url": "http://{{ args.ip }}" } } }]))
                .unwrap();
        assert_eq!(run.policy, Some(Policy::Parallel));
        assert_eq!(
            run.metrics[0].provider.web.as_ref().unwrap().url,
            "http://{{ args.ip }}",
            "it keeps its braces"
        );
        assert_eq!(run.args[1].value.as_deref(), Some("10.0.0.7"));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_metric_and_field() {
        let web = |fields: Value| json!({ "provider": { "web": fields } });
        for (fields, expect) in [
            (json!({ "count": 3 }), "metric `m`: interval: it is needed for a count of more than 1"),
            (
                json!({ "interval": "5s" }),
                "metric `m`: count: with an interval and without a count it would never succeed",
            ),
            (json!({ "interval": "5 s" }), "interval: write a duration as"),
            (json!({ "interval": "1ms", "successfulLimit": 1 }), "interval: it must be at least 100ms"),
            (json!({ "initialDelay": "9999h" }), "initialDelay: it must be at most"),
            (json!({ "count": -1 }), "count: it must not be negative"),
            (json!({ "failureLimit": -1 }), "failureLimit: it must not be negative"),
            (json!({ "consecutiveSuccessfulLimit": 0 }), "consecutiveSuccessfulLimit: it must be at least 1"),
            (
                json!({ "count": 2, "interval": "1s", "failureLimit": 3 }),
                "failureLimit: 3 cannot be reached with 2 measurement(s)",
            ),
            (
                json!({ "successfulLimit": 2 }),
                "successfulLimit: 2 cannot be reached with 1 measurement(s): give an interval",
            ),
            (
                json!({ "successCondition": "asInt(result) >" }),
                "successCondition: `asInt(result) >` is not a condition: line 1, column 16",
            ),
            (
                json!({ "failureCondition": "x" }),
                "failureCondition: `x` is not a condition: line 1, column 1: `x` is unknown",
            ),
            (json!({ "provider": {} }), "provider: there must be exactly one"),
            (
                json!({ "provider": { "web": { "url": "http://a" }, "prometheus": { "address": "http://a", "query": "up" } } }),
                "exactly one",
            ),
            (web(json!({ "url": "ftp://a" })), "provider.web.url: it must be a URL"),
            (web(json!({ "url": "a/b" })), "provider.web.url: it must be a URL"),
            (
                web(json!({ "url": "http://{{ args.nobody }}" })),
                "provider.web.url: `args.nobody` is not declared",
            ),
            (web(json!({ "url": "http://{{ args.ip" })), "provider.web.url: `{{` at byte 7 is never closed"),
            (
                web(json!({ "url": "http://a", "jsonPath": "age" })),
                "provider.web.jsonPath: jsonPath `age` is not valid",
            ),
            (
                web(json!({ "url": "http://a", "headers": [{ "key": "a b", "value": "" }] })),
                "headers[0]: its key is not",
            ),
            (
                web(json!({ "url": "http://a", "headers": [{ "key": "a", "value": "{{ args.token }}" }] })),
                "headers[0]: its value contains",
            ),
            (
                web(json!({ "url": "http://a", "body": "{{ x }}" })),
                "provider.web.body: `{{ x }}` is not valid",
            ),
            (web(json!({ "url": "http://a", "statusCodes": [99] })), "statusCodes"),
            (
                web(json!({ "url": "http://a", "timeoutSeconds": 61 })),
                "timeoutSeconds: it must be at most 60",
            ),
            (
                json!({ "provider": { "prometheus": { "address": "prometheus:9090", "query": "up" } } }),
                "prometheus.address",
            ),
            (
                json!({ "provider": { "prometheus": { "address": "http://a", "query": " " } } }),
                "prometheus.query",
            ),
            (
                json!({ "provider": { "kubernetes": { "function": "get", "fields": [] } } }),
                "there must be at least one",
            ),
            (
                json!({ "provider": { "kubernetes": { "function": "patch", "fields": [{ "path": "spec.nodeName", "value": "" }] } } }),
                "metadata.annotations.KEY",
            ),
            (json!({ "provider": { "exec": { "container": "", "command": ["a"] } } }), "exec.container"),
            (
                json!({ "provider": { "exec": { "container": "a", "command": [] } } }),
                "exec.command: it must name a program",
            ),
            (
                json!({ "provider": { "exec": { "container": "a", "command": ["a", "{{ args.b }}"] } } }),
                "exec.command[1]: `args.b` is not declared",
            ),
        ] {
            let error = refused(fields.clone());
            assert!(error.contains(expect), "{fields} -> {error}");
            assert!(!error.contains("s3cr3t"), "{error}");
        }
    }

    #[test]
    fn a_request_does_not_choose_the_host_that_gets_what_a_template_sends() {
        let template_of = |provider: Value| -> HookTemplateSpec {
            serde_json::from_value(json!({
                "metrics": [{ "name": "m", "provider": provider }],
                "args": [{ "name": "host", "value": "safe" }, { "name": "open" }, { "name": "path", "value": "a" }],
            }))
            .unwrap()
        };
        let template = |web: Value| template_of(json!({ "web": web }));
        let given = |name: &str, value: &str| {
            let open = HookArg { name: "open".into(), value: "x".into() };
            vec![open, HookArg { name: name.into(), value: value.into() }]
        };
        let header = json!([{ "key": "Authorization", "value": "s3cr3t" }]);
        for url in
            ["http://{{ args.host }}/p", "{{args.host}}", "http:///{{args.host}}", "http://a:{{args.host}}?x"]
        {
            for sent in [json!({ "headers": header }), json!({ "body": "s3cr3t" })] {
                let mut web = json!({ "url": url });
                web.as_object_mut().unwrap().extend(sent.as_object().unwrap().clone());
                let error = prepare(&template(web), &given("host", "evil"), None).unwrap_err().to_string();
                assert!(error.contains("args.host") && error.contains("override"), "{url}: {error}");
                assert!(!error.contains("s3cr3t"), "{error}");
            }
        }
        let url = "http://{{ args.host }}/{{ args.path }}";
        let sends = template(json!({ "url": url, "headers": header }));
        // A request may choose the path, the same value again, and the host of a template that sends neither
        // headers nor a body.
        assert!(prepare(&sends, &given("path", "/x"), None).is_ok());
        assert!(prepare(&sends, &given("host", "safe"), None).is_ok());
        assert!(prepare(&template(json!({ "url": url })), &given("host", "evil"), None).is_ok());
        let open = template(json!({ "url": "http://{{ args.open }}", "headers": header }));
        assert!(prepare(&open, &given("path", "x"), None).is_ok());
        let user = template(json!({ "url": "http://reader:s3cr3t@{{ args.host }}" }));
        assert!(prepare(&user, &given("host", "evil"), None).is_err());
        let asks =
            |address: &str| template_of(json!({ "prometheus": { "address": address, "query": "up" } }));
        let user = asks("http://reader:s3cr3t@{{ args.host }}:9090/{{ args.path }}");
        let error = prepare(&user, &given("host", "evil"), None).unwrap_err().to_string();
        assert!(error.contains("provider.prometheus.address: `args.host` is a part of the host"), "{error}");
        assert!(!error.contains("s3cr3t"), "{error}");
        assert!(prepare(&user, &given("path", "x"), None).is_ok());
        assert!(prepare(&user, &given("host", "safe"), None).is_ok());
        assert!(prepare(&asks("http://{{ args.host }}:9090"), &given("host", "evil"), None).is_ok());
    }

    #[test]
    fn a_hook_is_not_larger_than_an_agent_can_keep() {
        let body =
            json!({ "provider": { "web": { "url": "http://a", "body": "x".repeat(MAX_SPEC_BYTES) } } });
        assert_eq!(refused(body), "the hook is larger than 128 KiB with its arguments");
        let body =
            json!({ "provider": { "web": { "url": "http://a", "body": "x".repeat(MAX_SPEC_BYTES / 2) } } });
        assert_eq!(refused(body), "");
    }

    #[test]
    fn metrics_are_counted_named_and_named_once() {
        let metric = |name: &str| json!({ "name": name, "provider": { "web": { "url": "http://a" } } });
        let many: Vec<_> = (0..65).map(|index| metric(&format!("m{index}"))).collect();
        for (metrics, expect) in [
            (json!([]), "metrics: there must be 1 to 64"),
            (json!(many), "metrics: there must be 1 to 64"),
            (json!([metric("")]), "metrics[0].name: it must not be empty"),
            (json!([metric("a"), metric("b"), metric("a")]), "metrics[2].name: `a` is used twice"),
        ] {
            let error = prepared(metrics).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        }
        let bare = prepare(&template(json!([metric("a")])), &[], None).unwrap_err().to_string();
        assert!(bare.starts_with("args.ip was not resolved"), "{bare}");
    }
}
