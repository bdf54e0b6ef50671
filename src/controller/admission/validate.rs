//! `/validate`: refuses specs of this project's kinds that contradict themselves, and changes that could never be
//! applied. Pure.
//!
//! Refuses only problems that this very change introduces: an existing object is never blocked by an old problem,
//! and an object with a deletion timestamp is never blocked at all.

use serde::de::DeserializeOwned;

use crate::api::game_deployment::GameDeployment;
use crate::api::game_stateful_set::GameStatefulSet;
use crate::api::hook_run::MAX_SPEC_BYTES;
use crate::api::hook_template::HookTemplate;
use crate::api::in_place_rollout::InPlaceRollout;
use crate::api::pod_template::PodTemplate;
use crate::controller::admission::review::{Problem, Request};
use crate::hook::check::{Invalid, template};
use crate::rollout::check;
use crate::workload::check::{deployment, stateful_set};
use crate::workload::unknown_fields::unknown_fields;

/// How many fields the warnings of one review name.
const MAX_WARNINGS: usize = 10;

/// The problems of a request. Objects of other kinds have none. `resizes`: the API server resizes running pods.
pub(super) fn judge(asked: &Request, resizes: bool) -> Vec<Problem> {
    let changes = matches!(asked.operation.as_str(), "CREATE" | "UPDATE");
    let ours = matches!(asked.kind.group.as_str(), "tkex.tencent.com" | "inplace.dev");
    if !ours || !changes || asked.is_leaving() {
        return Vec::new();
    }
    match asked.kind.kind.as_str() {
        "InPlaceRollout" => compared::<InPlaceRollout>(asked, check::rollout),
        "GameDeployment" => compared::<GameDeployment>(asked, |old, new| deployment(old, new, resizes)),
        "GameStatefulSet" => compared::<GameStatefulSet>(asked, |old, new| stateful_set(old, new, resizes)),
        "HookTemplate" => compared::<HookTemplate>(asked, |_, new| hook(new)),
        _ => Vec::new(),
    }
}

/// Warnings about a workload that is not refused: fields of its template that Kubernetes does not have. A change that
/// does not touch the template has none.
pub(super) fn warnings(asked: &Request) -> Vec<String> {
    let unknown = match asked.kind.kind.as_str() {
        "GameDeployment" => unknown::<GameDeployment>(asked, |object| &object.spec.template),
        "GameStatefulSet" => unknown::<GameStatefulSet>(asked, |object| &object.spec.template),
        _ => Vec::new(),
    };
    let warning = |path: &String| format!("unknown field {path}: pods are created without it");
    unknown.iter().take(MAX_WARNINGS).map(warning).collect()
}

/// The unknown fields of a template that is new or changed.
fn unknown<K: DeserializeOwned>(asked: &Request, template: impl Fn(&K) -> &PodTemplate) -> Vec<String> {
    let Ok(new) = asked.new_as::<K>() else { return Vec::new() };
    let old = asked.old_as::<K>();
    let changed = old.as_ref().is_none_or(|old| template(old) != template(&new));
    if changed { unknown_fields(template(&new)) } else { Vec::new() }
}

/// The problems that `check` finds in the new object and not in the old one.
fn compared<K: DeserializeOwned>(
    asked: &Request,
    check: impl Fn(Option<&K>, &K) -> Vec<Problem>,
) -> Vec<Problem> {
    let old = asked.old_as::<K>();
    let new = match asked.new_as::<K>() {
        Ok(new) => new,
        // The stored object could not be decoded either.
        Err(_) if old.is_none() && asked.operation == "UPDATE" => return Vec::new(),
        Err(error) => return vec![format!("spec: cannot be decoded: {error}")],
    };
    let mut problems = check(old.as_ref(), &new);
    if let Some(old) = &old
        && !problems.is_empty()
    {
        let existing = check(None, old);
        problems.retain(|problem| !existing.contains(problem));
    }
    problems
}

fn hook(new: &HookTemplate) -> Vec<Problem> {
    // The size first: all further checks take time in proportion to it.
    if serde_json::to_vec(&new.spec).map_or(usize::MAX, |json| json.len()) > MAX_SPEC_BYTES {
        return vec![format!("spec: the hook is larger than {} KiB", MAX_SPEC_BYTES >> 10)];
    }
    let problem = match template(&new.spec) {
        Ok(_) => return Vec::new(),
        Err(Invalid::Field { metric, field, problem }) => {
            format!("spec.metrics[{metric}].{field}: {problem}")
        }
        Err(Invalid::Hook(problem)) => format!("spec.{problem}"),
        Err(Invalid::Arguments(problem)) => format!("spec.args: {problem}"),
    };
    vec![problem]
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::controller::admission::review;

    fn object(spec: &Value) -> Value {
        let mut whole = json!({
            "serviceName": "web", "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "app", "image": "a:1"}]}},
            "updateStrategy": {"type": "InplaceUpdate"},
        });
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        json!({"metadata": {"name": "web"}, "spec": whole})
    }

    /// The message of the refusal; empty if allowed.
    fn asked(kind: &str, old: Option<&Value>, new: &Value) -> String {
        let operation = if old.is_some() { "UPDATE" } else { "CREATE" };
        let body = json!({"request": {"uid": "u", "operation": operation, "name": "web", "object": new, "oldObject": old,
            "kind": {"group": "tkex.tencent.com", "version": "v1alpha1", "kind": kind}}});
        let asked = review::read(body.to_string().into()).unwrap();
        let answer = review::reply(&asked, &judge(&asked, false).into());
        answer["response"]["status"]["message"].as_str().unwrap_or_default().to_owned()
    }

    #[test]
    fn a_spec_that_contradicts_itself_is_refused_with_its_field() {
        let good = object(&json!({}));
        let orphan = object(&json!({"selector": {"matchLabels": {"app": "other"}}}));
        for kind in ["GameDeployment", "GameStatefulSet"] {
            assert_eq!(asked(kind, None, &good), "");
            assert!(
                asked(kind, None, &orphan).starts_with("spec.selector: "),
                "{}",
                asked(kind, None, &orphan)
            );
            let other = asked(kind, Some(&good), &orphan);
            assert!(other.contains("spec.selector: cannot be changed"), "{other}");
        }
        assert_eq!(asked("HookRun", None, &json!({"spec": "anything"})), "", "no kind that is judged");
        let unreadable =
            asked("GameDeployment", None, &json!({"metadata": {}, "spec": {"replicas": "many"}}));
        assert!(unreadable.starts_with("spec: cannot be decoded: "), "{unreadable}");
    }

    #[test]
    fn a_misspelt_field_of_a_template_is_a_warning_when_it_is_written() {
        let warned = |old: Option<&Value>, new: &Value| {
            let body = json!({"request": {"uid": "u", "operation": "UPDATE", "name": "web", "object": new, "oldObject": old,
                "kind": {"group": "tkex.tencent.com", "version": "v1alpha1", "kind": "GameDeployment"}}});
            warnings(&review::read(body.to_string().into()).unwrap())
        };
        let good = object(&json!({}));
        let mut typo = good.clone();
        typo["spec"]["template"]["spec"]["containers"][0]["imagePullPolcy"] = json!("Always");
        assert_eq!(warned(Some(&good), &good), Vec::<String>::new());
        let expected =
            ["unknown field spec.template.spec.containers[0].imagePullPolcy: pods are created without it"];
        assert_eq!(warned(Some(&good), &typo), expected);
        assert_eq!(warned(None, &typo), expected);
        let mut scaled = typo.clone();
        scaled["spec"]["replicas"] = json!(7);
        assert_eq!(warned(Some(&typo), &scaled), Vec::<String>::new(), "the template is as before");
    }

    #[test]
    fn an_object_is_never_stuck_with_a_problem_that_it_had() {
        let bad = json!({"updateStrategy": {"type": "InplaceUpdate", "maxSurge": "many"}});
        let (good, old) = (object(&json!({})), object(&bad));
        assert!(
            asked("GameDeployment", Some(&good), &old).starts_with("spec.updateStrategy.maxSurge: `many`")
        );
        let mut same = old.clone();
        same["metadata"]["annotations"] = json!({"a": "b"});
        same["spec"]["replicas"] = json!(7);
        assert_eq!(asked("GameDeployment", Some(&old), &same), "");
        let mut worse = same.clone();
        worse["spec"]["updateStrategy"]["partition"] = json!("-1");
        assert!(
            asked("GameDeployment", Some(&old), &worse).starts_with("spec.updateStrategy.partition: `-1`")
        );
        // An object that is being deleted is not blocked.
        let mut leaving = object(&json!({"selector": {"matchLabels": {"app": "x"}}}));
        leaving["metadata"]["deletionTimestamp"] = json!("2026-11-20T10:00:00Z");
        assert_eq!(asked("GameDeployment", Some(&good), &leaving), "");
        // Nor is one that could not be decoded before.
        let odd = json!({"metadata": {}, "spec": {"replicas": "many"}});
        assert_eq!(asked("GameDeployment", Some(&odd), &odd), "");
    }

    #[test]
    fn a_hook_that_could_not_run_is_refused_and_open_arguments_are_no_reason() {
        let hook = |url: &str, more: Value| {
            let mut metric = json!({"name": "webtest", "successCondition": "asInt(result) > 30",
                "provider": {"web": {"url": url, "jsonPath": "{$.age}"}}});
            metric.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({"metadata": {"name": "web"}, "spec": {"args": [{"name": "url"}, {"name": "scheme"}], "metrics": [metric]}})
        };
        for url in [
            "http://1.1.1.1:9091",
            "{{ args.url }}",
            "{{ args.scheme }}://{{ args.PodIP }}:80/{{ args.PodContainer[3] }}",
            "http://{{ args.HostIP }}/?{{ args.ModifiedContainer[0] }}",
        ] {
            assert_eq!(asked("HookTemplate", None, &hook(url, json!({}))), "", "{url}");
        }
        for (url, more, says) in [
            ("ftp://x", json!({}), "spec.metrics[webtest].provider.web.url: it must be a URL"),
            ("http://{{ args.nobody }}", json!({}), "spec.metrics[webtest].provider.web.url: `args.nobody`"),
            ("http://x", json!({"count": 3}), "spec.metrics[webtest].interval: it is needed"),
            // Hundreds of thousands of placeholders are not resolved one by one.
            (
                &format!("http://{}", "{{ args.url }}".repeat(200_000)),
                json!({}),
                "spec: the hook is larger than 128 KiB",
            ),
            ("http://x", json!({"name": ""}), "spec.metrics[0].name: it must not be empty"),
        ] {
            let reported = asked("HookTemplate", None, &hook(url, more));
            assert!(reported.starts_with(says), "{reported}");
        }
    }
}
