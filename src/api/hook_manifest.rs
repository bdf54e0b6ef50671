//! A `HookTemplate` in a file: read as strictly as the API server reads it with `--validate=strict`.
//!
//! What is not known is refused by its path, all of it at once, never skipped. Whether the template makes sense is for
//! `hook::check`. Must not quote a value: there may be tokens in it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource as _;
use serde::Deserialize;

use crate::api::hook_template::{HookTemplate, HookTemplateSpec};
use crate::api::manifest::BadYaml;
use crate::api::manifest::yaml;

/// Largest file read, in bytes; the API server takes objects of about this size.
const MAX_TEXT: usize = 1 << 20;

/// Why a file is no `HookTemplate`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTemplate {
    /// It is no YAML, or a field has another type.
    #[error(transparent)]
    Yaml(#[from] BadYaml),
    /// It is another object.
    #[error("it is a {kind:?} of {api_version:?}; a hook must be a {:?} of \
             {:?}", HookTemplate::kind(&()), HookTemplate::api_version(&()))]
    Kind {
        /// What it says of itself.
        api_version: String,
        /// The same.
        kind: String,
    },
    /// Fields that a hook does not have.
    #[error("unknown field: {}", .0.join(", "))]
    Unknown(Vec<String>),
    /// It has no name.
    #[error("metadata.name is missing")]
    NoName,
    /// It is no hook.
    #[error("it is larger than {MAX_TEXT} bytes")]
    TooLarge,
}

/// What the object says of itself; everything else is looked at when this is right.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kind {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
}

/// The whole object.
#[derive(Deserialize)]
struct Document {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    metadata: ObjectMeta,
    spec: HookTemplateSpec,
}

/// Reads the only document of a file, in YAML or JSON.
pub fn read(text: &str) -> Result<HookTemplate, BadTemplate> {
    if text.len() > MAX_TEXT {
        return Err(BadTemplate::TooLarge);
    }
    let (Kind { api_version, kind }, _) = yaml::one(text)?;
    if kind != HookTemplate::kind(&()) || api_version != HookTemplate::api_version(&()) {
        return Err(BadTemplate::Kind { api_version, kind });
    }
    let (Document { metadata, spec, .. }, unknown) = yaml::one(text)?;
    if !unknown.is_empty() {
        return Err(BadTemplate::Unknown(unknown));
    }
    if metadata.name.as_deref().unwrap_or_default().is_empty() {
        return Err(BadTemplate::NoName);
    }
    Ok(HookTemplate { metadata, spec })
}

/// Reads all of those that stand in a file of one or more documents; what is none is skipped.
pub fn read_all(text: &str) -> Result<Vec<HookTemplate>, BadTemplate> {
    let is_one = |document: &String| {
        let kinds = yaml::all::<Option<Kind>>(document).unwrap_or_default();
        kinds.into_iter().flatten().any(|kind| kind.kind == HookTemplate::kind(&()))
    };
    documents(text).iter().filter(|document| is_one(document)).map(|document| read(document)).collect()
}

/// The documents of a file, each on the lines that it has there.
fn documents(text: &str) -> Vec<String> {
    let (mut documents, mut document) = (Vec::new(), String::new());
    for (before, line) in text.lines().enumerate() {
        if line == "---" || line.starts_with("--- ") {
            documents.push(std::mem::replace(&mut document, "\n".repeat(before)));
        }
        document.push_str(line);
        document.push('\n');
    }
    documents.push(document);
    documents
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"apiVersion: tkex.tencent.com/v1alpha1
kind: HookTemplate
metadata:
  name: test
spec:
  args:
    - name: PodIP
  metrics:
    - name: webtest
      count: 3
      interval: 60s
      failureLimit: 2
      successCondition: "asInt(result) > 30"
      provider:
        web:
          url: http://{{ args.PodIP }}:9091
          jsonPath: "{$.age}"
"#;

    fn refused(from: &str, to: &str) -> String {
        assert!(GOOD.contains(from), "{from}");
        read(&GOOD.replace(from, to)).unwrap_err().to_string()
    }

    #[test]
    fn a_template_as_users_write_it_is_read() {
        let template = read(GOOD).unwrap();
        let metric = &template.spec.metrics[0];
        assert_eq!((metric.name.as_str(), metric.count, metric.failure_limit), ("webtest", Some(3), Some(2)));
        let web = metric.provider.web.as_ref().unwrap();
        assert_eq!(web.json_path.as_deref(), Some("{$.age}"));
        assert_eq!(template.spec.args[0].value, None);
    }

    #[test]
    fn what_a_hook_does_not_have_is_refused_by_its_path() {
        let error = refused("      count: 3\n", "      counts: 3\n      Interval: 60s\n");
        assert_eq!(error, "unknown field: spec.metrics[0].counts, spec.metrics[0].Interval");
        let error = refused("  name: test\n", "  name: test\n  lables: {}\n");
        assert_eq!(error, "unknown field: metadata.lables");
        assert!(refused("kind: HookTemplate", "kind: HookRun").contains("\"HookRun\""));
        assert!(refused("tkex.tencent.com/v1alpha1", "v1").contains("tkex.tencent.com/v1alpha1"));
        assert_eq!(refused("name: test", "namespace: test"), "metadata.name is missing");
    }

    #[test]
    fn a_file_may_hold_several_and_other_things() {
        let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\n";
        let other = GOOD.replace("name: test", "name: other");
        let names = |text: &str| {
            let found = read_all(text).unwrap().into_iter();
            found.map(|template| template.metadata.name.unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(names(&format!("{GOOD}---\n{pod}---\n{other}")), ["test", "other"]);
        assert_eq!(names(&format!("---\n{pod}--- # the gate\n{GOOD}")), ["test"]);
        assert_eq!((names(pod), names("")), (vec![], vec![]));
        let bad = read_all(&format!("{pod}---\n{}", GOOD.replace("count: 3", "count: s3cret"))).unwrap_err();
        assert!(bad.to_string().starts_with("line 14,"), "{bad}");
    }

    #[test]
    fn what_has_another_type_is_refused_by_its_place_without_its_value() {
        let error = refused("count: 3", "count: s3cret");
        assert!(error.starts_with("line 10,") && !error.contains("s3cret"), "{error}");
        let error = refused("- name: PodIP", "- {name: PodIP, value: 30}");
        assert!(error.contains("put it in quotes"), "{error}");
        assert!(read(&format!("{GOOD}---\n{GOOD}")).is_err());
        assert!(read("").is_err());
        assert_eq!(read(&"#".repeat(MAX_TEXT + 1)), Err(BadTemplate::TooLarge));
    }
}
