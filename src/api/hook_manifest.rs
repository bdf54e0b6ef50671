//! Reads a `HookTemplate` from a file, as strictly as the API server does with `--validate=strict`.
//!
//! Unknown fields are errors; one error lists all of them by path. `hook::check` checks the values. An error must not quote a
//! value: values may contain tokens.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource as _;
use serde::Deserialize;

use crate::api::hook_template::{HookTemplate, HookTemplateSpec};
use crate::api::manifest::BadYaml;
use crate::api::manifest::yaml;

/// Maximum size of the file in bytes, about the maximum size of an object at the API server.
const MAX_TEXT: usize = 1 << 20;

/// Why a file is not a `HookTemplate`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTemplate {
    /// The file is not YAML, or a field has the wrong type.
    #[error(transparent)]
    Yaml(#[from] BadYaml),
    /// The file contains an object of another kind.
    #[error("it is a {kind:?} of {api_version:?}; a hook must be a {:?} of \
             {:?}", HookTemplate::kind(&()), HookTemplate::api_version(&()))]
    Kind {
        /// The `apiVersion` of the object.
        api_version: String,
        /// The `kind` of the object.
        kind: String,
    },
    /// Fields that a `HookTemplate` does not have, by path.
    #[error("unknown field: {}", .0.join(", "))]
    Unknown(Vec<String>),
    /// The object has no name.
    #[error("metadata.name is missing")]
    NoName,
    /// The file is larger than 1 MiB.
    #[error("it is larger than {MAX_TEXT} bytes")]
    TooLarge,
}

/// API version and kind of an object. The other fields are parsed only if these are right.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kind {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
}

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

/// Reads all `HookTemplate`s of a file with one or more documents. Objects of other kinds are skipped.
pub fn read_all(text: &str) -> Result<Vec<HookTemplate>, BadTemplate> {
    let is_one = |document: &String| {
        let kinds = yaml::all::<Option<Kind>>(document).unwrap_or_default();
        kinds.into_iter().flatten().any(|kind| kind.kind == HookTemplate::kind(&()))
    };
    documents(text).iter().filter(|document| is_one(document)).map(|document| read(document)).collect()
}

/// Splits a file into documents. Each starts with empty lines for the part of the file before it, so that the line numbers in
/// errors are those of the file.
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
