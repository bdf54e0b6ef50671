//! All problems of a template at once, for a person who writes it. Whether a template can be run is decided by `check`.

use crate::api::hook_template::{Argument, HookTemplateSpec, Metric};
use crate::hook::args;
use crate::hook::check::{self, Check, Invalid, STAND_INS, stand_in};

/// The problems of `template`; none if it is valid. The first problem of each field is reported.
pub fn problems(template: &HookTemplateSpec) -> Vec<Invalid> {
    let mut found = Vec::new();
    for (index, metric) in template.metrics.iter().enumerate() {
        if metric.name.is_empty() {
            found.push(Invalid::Hook(format!("metrics[{index}].name: it must not be empty")));
        }
        if !metric.name.is_empty()
            && template.metrics[..index].iter().any(|earlier| earlier.name == metric.name)
        {
            found.push(Invalid::Hook(format!("metrics[{index}].name: `{}` is used twice", metric.name)));
        }
    }
    let resolved = STAND_INS.map(|value| {
        let (given, pod) = stand_in(template, value);
        args::resolve(&template.args, &given, Some(&pod)).unwrap_or_default()
    });
    for metric in &template.metrics {
        // Arguments without a value may stand for any part of a field. The one that leaves the fewest problems counts.
        let of_each = resolved.iter().map(|args| of_metric(metric, args));
        found.extend(of_each.min_by_key(Vec::len).unwrap_or_default());
    }
    if found.is_empty() {
        found.extend(check::template(template).err());
    }
    found
}

fn of_metric(metric: &Metric, args: &[Argument]) -> Vec<Invalid> {
    let check = Check { metric: &metric.name, args };
    let mut found = Vec::new();
    found.extend(check.duration("initialDelay", metric.initial_delay.as_ref()).err());
    match check.interval(metric) {
        Ok(interval) => found.extend(check::limits(&check, metric, interval).err()),
        Err(invalid) => found.push(invalid),
    }
    found.extend(check.provider(&metric.provider));
    found.extend(check.condition("successCondition", metric.success_condition.as_ref()).err());
    found.extend(check.condition("failureCondition", metric.failure_condition.as_ref()).err());
    found
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn found(metrics: &Value) -> Vec<String> {
        let template: HookTemplateSpec =
            serde_json::from_value(json!({ "metrics": metrics, "args": [{ "name": "url" }] })).unwrap();
        problems(&template).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn all_problems_are_found_at_once() {
        let found = found(&json!([
            {"name": "a", "interval": "soon", "successCondition": "result >", "provider": {"web": {"url": "ftp://x",
                "headers": [{"key": "a b", "value": ""}], "statusCodes": [1], "timeoutSeconds": 99}}},
            {"name": "a", "count": 3, "provider": {"exec": {"container": "", "command": []}}},
        ]));
        let fields: Vec<_> = found.iter().map(|text| text.split(": ").nth(1).unwrap_or_default()).collect();
        assert_eq!(
            fields,
            [
                "`a` is used twice",
                "interval",
                "provider.web.url",
                "provider.web.headers[0]",
                "provider.web.statusCodes",
                "provider.web.timeoutSeconds",
                "successCondition",
                "interval",
                "provider.exec.container",
                "provider.exec.command"
            ],
            "{found:#?}"
        );
    }

    #[test]
    fn what_is_valid_has_no_problem_and_what_is_wrong_as_a_whole_has_one() {
        assert_eq!(found(&json!([{"name": "a", "provider": {"web": {"url": "{{ args.url }}"}}}])), [""; 0]);
        assert_eq!(found(&json!([])).len(), 1);
    }
}
