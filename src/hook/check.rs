//! Whether a hook can be run at all: everything that is wrong with it is found before anything is measured.
//!
//! Messages name the metric and the field and say what to change. They never hold a value that a placeholder stands for.

use std::time::Duration;

use crate::api::hook_run::HookRunSpec;
use crate::api::hook_template::{
    Argument, Exec, HookTemplateSpec, Kubernetes, Metric, Policy, Prometheus, Provider, Web,
};
use crate::api::request::HookArg;
use crate::hook::args::{self, Injected, Unresolved};
use crate::hook::assess::{Conditions, ERRORS_BORNE, Limits};
use crate::hook::condition::Condition;
use crate::hook::json_path;
use crate::hook::program::Program;
use crate::hook::schedule::{LONGEST, SHORTEST, Schedule, parse_duration};
use crate::hook::template;

/// Most metrics of one hook.
const MAX_METRICS: usize = 64;
/// Longest time one measurement may take.
const MAX_TIMEOUT: i32 = 3600;
/// The only fields that the kubernetes provider knows.
const ANNOTATIONS: &str = "metadata.annotations.";

/// Why a hook cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// Something of the whole.
    #[error("{0}")]
    Hook(String),
    /// Arguments without values.
    #[error(transparent)]
    Arguments(#[from] Unresolved),
    /// A field of one metric.
    #[error("metric `{metric}`: {field}: {problem}")]
    Field {
        /// Its name.
        metric: String,
        /// The field, as it is spelled in YAML.
        field: String,
        /// What is wrong and what is right.
        problem: String,
    },
}

/// What a run of this template is, with these arguments. It has been checked as a whole.
pub fn prepare(
    template: &HookTemplateSpec,
    given: &[HookArg],
    injected: Option<&Injected>,
) -> Result<HookRunSpec, Invalid> {
    let spec = HookRunSpec {
        metrics: template.metrics.clone(),
        args: args::resolve(&template.args, given, injected)?,
        terminate: false,
        policy: Some(template.policy.unwrap_or(Policy::Parallel)),
    };
    Program::compile(&spec)?;
    Ok(spec)
}

/// One metric, ready to be judged.
#[derive(Clone, Debug)]
pub(crate) struct Gauge {
    pub(crate) name: String,
    pub(crate) schedule: Schedule,
    pub(crate) conditions: Conditions,
    pub(crate) limits: Limits,
}

/// Checks every metric.
pub(crate) fn gauges(spec: &HookRunSpec) -> Result<Vec<Gauge>, Invalid> {
    if spec.metrics.is_empty() || spec.metrics.len() > MAX_METRICS {
        return Err(Invalid::Hook(format!("metrics: there must be 1 to {MAX_METRICS} of them")));
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
            return Err(Invalid::Hook(format!("metrics[{index}].name: `{}` is there twice", metric.name)));
        }
    }
    spec.metrics.iter().map(|metric| gauge(metric, &spec.args)).collect()
}

fn gauge(metric: &Metric, args: &[Argument]) -> Result<Gauge, Invalid> {
    let check = Check { metric: &metric.name, args };
    let schedule = Schedule {
        initial_delay: check.duration("initialDelay", metric.initial_delay.as_ref())?.unwrap_or_default(),
        interval: check.duration("interval", metric.interval.as_ref())?,
    };
    if schedule.interval.is_some_and(|interval| interval < SHORTEST) {
        return Err(check.wrong("interval", "it must be at least 100ms"));
    }
    let limits = limits(&check, metric, schedule.interval)?;
    check.provider(&metric.provider)?;
    let conditions = Conditions {
        success: check.condition("successCondition", metric.success_condition.as_ref())?,
        failure: check.condition("failureCondition", metric.failure_condition.as_ref())?,
    };
    Ok(Gauge { name: metric.name.clone(), schedule, conditions, limits })
}

/// What is borne and what is enough: section 4 of the design.
fn limits(check: &Check<'_>, metric: &Metric, interval: Option<Duration>) -> Result<Limits, Invalid> {
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
        errors_in_a_row: metric.consecutive_error_limit.unwrap_or(ERRORS_BORNE),
        successes,
        successes_in_a_row,
    })
}

/// Knows whose field it is looking at.
struct Check<'a> {
    metric: &'a str,
    args: &'a [Argument],
}

impl Check<'_> {
    fn wrong(&self, field: &str, problem: &str) -> Invalid {
        let metric = crate::hook::value::cut(self.metric, 128);
        Invalid::Field { metric, field: field.to_owned(), problem: problem.to_owned() }
    }

    fn duration(&self, field: &str, text: Option<&String>) -> Result<Option<Duration>, Invalid> {
        let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(None) };
        match parse_duration(text) {
            Ok(duration) if duration > LONGEST => {
                Err(self.wrong(field, "it must be at most 8784h (366 days)"))
            }
            Ok(duration) => Ok(Some(duration)),
            Err(problem) => Err(self.wrong(field, problem)),
        }
    }

    fn condition(&self, field: &str, source: Option<&String>) -> Result<Option<Condition>, Invalid> {
        let Some(source) = source.filter(|source| !source.trim().is_empty()) else { return Ok(None) };
        Condition::compile(source).map(Some).map_err(|error| self.wrong(field, &error.to_string()))
    }

    fn rendered(&self, field: &str, text: &str) -> Result<String, Invalid> {
        template::render(text, self.args).map_err(|error| self.wrong(field, &error.to_string()))
    }

    fn url(&self, field: &str, text: &str) -> Result<(), Invalid> {
        let url = self.rendered(field, text)?;
        let uri = url.parse::<http::Uri>().ok();
        let scheme = uri.as_ref().and_then(http::Uri::scheme_str);
        if !matches!(scheme, Some("http" | "https")) {
            let problem = "it must be a URL that begins with http:// or https://";
            return Err(self.wrong(field, problem));
        }
        Ok(())
    }

    fn provider(&self, provider: &Provider) -> Result<(), Invalid> {
        let Provider { web, prometheus, kubernetes, exec } = provider;
        match (web, prometheus, kubernetes, exec) {
            (Some(web), None, None, None) => self.web(web),
            (None, Some(prometheus), None, None) => self.prometheus(prometheus),
            (None, None, Some(kubernetes), None) => self.kubernetes(kubernetes),
            (None, None, None, Some(exec)) => self.exec(exec),
            _ => {
                Err(self.wrong("provider", "there must be exactly one of web, prometheus, kubernetes, exec"))
            }
        }
    }

    fn web(&self, web: &Web) -> Result<(), Invalid> {
        self.url("provider.web.url", &web.url)?;
        for (index, header) in web.headers.iter().enumerate() {
            let field = format!("provider.web.headers[{index}]");
            if http::HeaderName::from_bytes(header.key.as_bytes()).is_err() {
                return Err(self.wrong(&field, "its key is not the name of an HTTP header"));
            }
            if http::HeaderValue::from_str(&self.rendered(&field, &header.value)?).is_err() {
                return Err(self.wrong(&field, "its value holds characters that no HTTP header may hold"));
            }
        }
        if let Some(body) = &web.body {
            self.rendered("provider.web.body", body)?;
        }
        if let Some(path) = web.json_path.as_ref().filter(|path| !path.is_empty()) {
            json_path::Path::parse(path)
                .map_err(|error| self.wrong("provider.web.jsonPath", &error.to_string()))?;
        }
        if web.status_codes.iter().any(|code| !(200..=599).contains(code)) {
            return Err(self.wrong("provider.web.statusCodes", "each must be 200 to 599"));
        }
        self.timeout("provider.web.timeoutSeconds", web.timeout_seconds)
    }

    fn timeout(&self, field: &str, seconds: Option<i32>) -> Result<(), Invalid> {
        match seconds {
            Some(seconds) if seconds > MAX_TIMEOUT => Err(self.wrong(field, "it must be at most 3600")),
            _ => Ok(()),
        }
    }

    fn prometheus(&self, prometheus: &Prometheus) -> Result<(), Invalid> {
        self.url("provider.prometheus.address", &prometheus.address)?;
        if self.rendered("provider.prometheus.query", &prometheus.query)?.trim().is_empty() {
            return Err(self.wrong("provider.prometheus.query", "it must not be empty"));
        }
        Ok(())
    }

    fn kubernetes(&self, kubernetes: &Kubernetes) -> Result<(), Invalid> {
        if kubernetes.fields.is_empty() {
            return Err(self.wrong("provider.kubernetes.fields", "there must be at least one"));
        }
        for (index, field) in kubernetes.fields.iter().enumerate() {
            if field.path.strip_prefix(ANNOTATIONS).is_none_or(str::is_empty) {
                let name = format!("provider.kubernetes.fields[{index}].path");
                return Err(self.wrong(&name, "only `metadata.annotations.KEY` is supported"));
            }
        }
        Ok(())
    }

    fn exec(&self, exec: &Exec) -> Result<(), Invalid> {
        if exec.container.is_empty() {
            return Err(self.wrong("provider.exec.container", "it must not be empty"));
        }
        if exec.command.first().is_none_or(String::is_empty) {
            return Err(self.wrong("provider.exec.command", "it must name a program"));
        }
        for (index, word) in exec.command.iter().enumerate() {
            self.rendered(&format!("provider.exec.command[{index}]"), word)?;
        }
        self.timeout("provider.exec.timeoutSeconds", exec.timeout_seconds)
    }
}
