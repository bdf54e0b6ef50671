//! The installed manifests as text: renders them with kustomize and with the chart. Runs kubectl, Helm and Python, without
//! network access.

mod image;
mod install;
mod platforms;
mod rights;
mod schema;
mod values;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Objects by kind, namespace and name.
type Objects = BTreeMap<(String, String, String), Value>;

/// Compares object by object, so that a difference is readable.
fn same(one: &Objects, other: &Objects) {
    assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
    for (key, object) in one {
        assert_eq!(object, &other[key], "{key:?}");
    }
}

fn key(kind: &str, namespace: &str, name: &str) -> (String, String, String) {
    (kind.to_owned(), namespace.to_owned(), name.to_owned())
}

/// The pod of the only `DaemonSet`.
fn pod(objects: &Objects) -> &Value {
    let mut all = objects.iter().filter(|((kind, ..), _)| kind == "DaemonSet");
    let (_, found) = all.next().unwrap();
    assert!(all.next().is_none());
    &found["spec"]["template"]["spec"]
}

fn kustomize(folders: &[&str]) -> Objects {
    folders
        .iter()
        .flat_map(|folder| objects(&run("kubectl", &["kustomize", &format!("daemonset/{folder}")])))
        .collect()
}

/// The objects of an overlay; `make` gets the path of the folder `daemonset`, which kustomize needs as a relative one.
fn overlay(make: impl FnOnce(&str) -> Value) -> Objects {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let here = folder.path().canonicalize().unwrap();
    let up = "../".repeat(here.components().count() - 1);
    let manifests = Path::new(env!("CARGO_MANIFEST_DIR")).join("daemonset").canonicalize().unwrap();
    let overlay = make(&format!("{up}{}", manifests.strip_prefix("/").unwrap().display()));
    std::fs::write(here.join("kustomization.yaml"), overlay.to_string()).unwrap();
    objects(&run("kubectl", &["kustomize", here.to_str().unwrap()]))
}

/// The chart's objects for a new cluster.
fn chart(values: &Value) -> Objects {
    chart_of(&[&values.to_string()])
}

/// The same, from several values: files or texts.
fn chart_of(values: &[&str]) -> Objects {
    chart_for("1.36.0", "v1,admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy", values)
}

/// The chart's objects for a cluster of this release with these API versions, including the folder `crds`, which Helm
/// installs before the templates, and without the policy of Helm for the namespace.
fn chart_for(release: &str, api_versions: &str, values: &[&str]) -> Objects {
    let environment = [format!("CHART_KUBERNETES={release}"), format!("CHART_API_VERSIONS={api_versions}")];
    let script = ["bash", "tests/lab/chart.sh", "daemonset/chart"];
    let args: Vec<_> =
        environment.iter().map(String::as_str).chain(script).chain(values.iter().copied()).collect();
    let mut all = objects(&run("env", &args));
    // Only Helm knows this annotation: a test in `install` checks it.
    for object in all.values_mut().filter(|object| object["kind"] == "Namespace") {
        let meta = object["metadata"].as_object_mut().unwrap();
        let annotations = meta["annotations"].as_object_mut().unwrap();
        annotations.remove("helm.sh/resource-policy");
        if annotations.is_empty() {
            meta.remove("annotations");
        }
    }
    for kind in ["hooktemplates", "hookruns", "gamedeployments", "gamestatefulsets", "inplacerollouts"] {
        all.extend(objects(&read(format!("daemonset/chart/crds/{kind}.yaml"))));
    }
    all
}

fn objects(text: &str) -> Objects {
    let all: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    let mut found = Objects::new();
    for object in all.into_iter().filter(|object| !object.is_null()) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let meta = &object["metadata"];
        let key = (text(&object["kind"]), text(&meta["namespace"]), text(&meta["name"]));
        assert!(found.insert(key.clone(), object).is_none(), "{key:?} is there twice");
    }
    found
}

fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).unwrap()
}

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program)
        .args(args)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}; run: make setup"));
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
