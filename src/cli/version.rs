//! `inplace version`: the versions of this program and of the controllers and agents of the cluster, and whether they
//! work together. Reads only.
//!
//! The API has no field for the version of a running agent. The version is the tag of the image of its container, or, if
//! the tag is not a version, the pod's label `app.kubernetes.io/version`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use serde::Serialize;

use crate::cli::cluster::{ClusterArgs, Failed, listed};
use crate::cli::exit::Exit;
use crate::cli::form::{Data, DataParser, HasName};
use crate::cli::output::{self, line, message};
use crate::failure::Class;

/// The version of this program.
const OWN: &str = env!("CARGO_PKG_VERSION");
/// The pods of this project.
const LABELS: &str = "app.kubernetes.io/name=inplace";
/// The label that says which part of the project a pod is.
const COMPONENT: &str = "app.kubernetes.io/component";
/// The label that may state the version.
const VERSION: &str = "app.kubernetes.io/version";
/// The namespace of the manifests, for a user who may not list the pods of all namespaces.
const NAMESPACE: &str = "inplace-system";

/// Show the versions of this program, of the controllers and of the agents, and whether they work together
///
/// The version of a controller or an agent is the tag of its image; without a version there, it is the label
/// app.kubernetes.io/version of its pod. Supported together are the same major and minor version. Exits with 3 if a
/// version is not supported.
#[derive(Debug, clap::Args)]
pub struct VersionCommand {
    /// Only the version of this program; asks no server
    #[arg(long)]
    client: bool,
    /// Form of the result
    #[arg(short, long, value_name = "FORM", value_parser = DataParser)]
    output: Option<Data>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// The result.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Versions {
    client: String,
    /// Absent with `--client`.
    #[serde(skip_serializing_if = "Option::is_none")]
    components: Option<Vec<Installed>>,
}

impl HasName for Versions {
    fn full_name(&self) -> String {
        format!("inplace/{}", self.client)
    }
}

/// The pods of one component with the same version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Installed {
    /// `agent` or `controller`.
    component: String,
    namespace: String,
    /// Absent if neither the image nor the label states it.
    version: Option<String>,
    image: String,
    pods: usize,
    skew: Skew,
}

/// Whether a version works with that of this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum Skew {
    Supported,
    NotSupported,
    Unknown,
}

impl Skew {
    fn text(self) -> &'static str {
        match self {
            Self::Supported => "supported",
            Self::NotSupported => "not supported",
            Self::Unknown => "unknown",
        }
    }
}

impl VersionCommand {
    /// Runs the command and returns its exit code.
    pub async fn run(self) -> Exit {
        let Self { client, output, cluster } = self;
        let found = if client { Ok(None) } else { components(&cluster).await.map(Some) };
        let (components, failed) = match found {
            Ok(components) => (components, None),
            Err(failed) => (None, Some(failed)),
        };
        let versions = Versions { client: OWN.to_owned(), components };
        match &output {
            Some(form) => form.print(&versions),
            None => print(&versions),
        }
        match failed {
            Some(failed) => {
                message(&format!("inplace: {failed}"));
                failed.exit()
            }
            None => exit(&versions),
        }
    }
}

fn exit(versions: &Versions) -> Exit {
    let mut components = versions.components.iter().flatten();
    if components.any(|one| one.skew == Skew::NotSupported) { Exit::Refused } else { Exit::Done }
}

/// The components of the cluster. All namespaces are read, or that of the manifests if the user may not do that.
async fn components(cluster: &ClusterArgs) -> Result<Vec<Installed>, Failed> {
    let (client, _) = cluster.connect().await?;
    let doing = "listing the pods of the agents and controllers";
    let params = ListParams::default().labels(LABELS);
    let named = |namespace: &str| Api::<Pod>::namespaced(client.clone(), namespace);
    let pods = match &cluster.namespace {
        Some(namespace) => listed(doing, &named(namespace), params).await?,
        None => match listed(doing, &Api::<Pod>::all(client.clone()), params.clone()).await {
            Err(Failed::Cluster(error)) if error.class() == Class::Denied => {
                listed(doing, &named(NAMESPACE), params).await?
            }
            pods => pods?,
        },
    };
    Ok(grouped(&pods))
}

fn grouped(pods: &[Pod]) -> Vec<Installed> {
    let mut groups: BTreeMap<_, Installed> = BTreeMap::new();
    for pod in pods {
        let labels = pod.metadata.labels.as_ref();
        let label = |name: &str| labels.and_then(|labels| labels.get(name)).cloned();
        let Some(component) = label(COMPONENT) else { continue };
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let mut containers = containers.filter(|container| container.name == component);
        let image = containers.next().and_then(|container| container.image.clone()).unwrap_or_default();
        let version = tag(&image).and_then(parsed).or_else(|| label(VERSION).as_deref().and_then(parsed));
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        // A tag that is not a version can name the images of two releases, of which the labels differ.
        let key = (component.clone(), namespace.clone(), image.clone(), version.clone());
        let skew = skew(version.as_deref());
        let found = Installed { component, namespace, version, image, pods: 0, skew };
        groups.entry(key).or_insert(found).pods += 1;
    }
    groups.into_values().collect()
}

/// The tag of an image, without a digest.
fn tag(image: &str) -> Option<&str> {
    let image = image.split('@').next()?;
    let (_, tag) = image.rsplit_once(':')?;
    (!tag.contains('/')).then_some(tag)
}

/// The text as a version `1.2.3`, if it is one; `v1.2.3` is the same.
fn parsed(text: &str) -> Option<String> {
    let text = text.strip_prefix('v').unwrap_or(text);
    major_minor(text).map(|_| text.to_owned())
}

fn major_minor(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.splitn(3, '.');
    let (major, minor, patch) = (parts.next()?, parts.next()?, parts.next()?);
    patch.starts_with(|c: char| c.is_ascii_digit()).then_some(())?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn skew(version: Option<&str>) -> Skew {
    match version.and_then(major_minor) {
        None => Skew::Unknown,
        found if found == major_minor(OWN) => Skew::Supported,
        Some(_) => Skew::NotSupported,
    }
}

fn print(versions: &Versions) {
    line(&format!("client: {}", versions.client));
    let Some(components) = &versions.components else { return };
    if components.is_empty() {
        message("no agent and no controller of inplace was found");
        return;
    }
    let row = |one: &Installed| {
        let version = one.version.clone().unwrap_or_else(|| "-".to_owned());
        let (component, namespace) = (one.component.clone(), one.namespace.clone());
        vec![
            component,
            namespace,
            version,
            one.pods.to_string(),
            one.skew.text().to_owned(),
            one.image.clone(),
        ]
    };
    let rows: Vec<_> = components.iter().map(row).collect();
    output::table(&["COMPONENT", "NAMESPACE", "VERSION", "PODS", "SKEW", "IMAGE"], &rows);
    if components.iter().any(|one| one.skew == Skew::NotSupported) {
        message(&format!(
            "client {OWN} and the versions that are not supported were not tested together: use the same major and \
             minor version of all"
        ));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(component: &str, image: &str, label: Option<&str>) -> Pod {
        let mut pod = json!({
            "metadata": {"name": "a", "namespace": "inplace-system", "labels": {COMPONENT: component}},
            "spec": {"containers": [{"name": "proxy", "image": "other:9.9.9"}, {"name": component, "image": image}]},
        });
        if let Some(label) = label {
            pod["metadata"]["labels"][VERSION] = json!(label);
        }
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn the_version_is_that_of_the_image_or_of_the_label() {
        for (image, label, version) in [
            ("registry.example:5000/inplace:v0.1.7", None, Some("0.1.7")),
            ("inplace:0.1.0-rc.1@sha256:00", Some("0.3.0"), Some("0.1.0-rc.1")),
            ("inplace:dev", Some("0.1.2"), Some("0.1.2")),
            ("inplace:dev", Some("dev"), None),
            ("registry.example:5000/inplace", None, None),
            ("inplace@sha256:00", None, None),
        ] {
            let found = grouped(&[pod("agent", image, label)]).remove(0);
            assert_eq!(found.version.as_deref(), version, "{image} {label:?}");
        }
    }

    #[test]
    fn pods_with_the_same_image_and_different_labels_are_apart() {
        let pods = ["0.1.2", "9.9.9", "0.1.2"].map(|label| pod("agent", "inplace:dev", Some(label)));
        let found = grouped(&pods);
        let found: Vec<_> = found.iter().map(|one| (one.version.as_deref(), one.pods)).collect();
        assert_eq!(found, [(Some("0.1.2"), 2), (Some("9.9.9"), 1)]);
    }

    #[test]
    fn only_the_same_minor_version_is_supported() {
        let (major, minor) = major_minor(OWN).unwrap();
        for (version, expected) in [
            (Some(format!("{major}.{minor}.99")), Skew::Supported),
            (Some(format!("{major}.{}.0", minor + 1)), Skew::NotSupported),
            (Some(format!("{}.{minor}.0", major + 1)), Skew::NotSupported),
            (None, Skew::Unknown),
        ] {
            assert_eq!(skew(version.as_deref()), expected, "{version:?}");
        }
        let next = format!("inplace:{major}.{}.0", minor + 1);
        let pods =
            [pod("agent", &next, None), pod("agent", &next, None), pod("controller", "inplace:dev", None)];
        let components = grouped(&pods);
        assert_eq!(components.iter().map(|one| one.pods).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(exit(&Versions { client: OWN.into(), components: Some(components) }), Exit::Refused);
    }
}
